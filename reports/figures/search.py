"""Searches: shares by the number of agents."""

from __future__ import annotations

from typing import TYPE_CHECKING

import plotly.graph_objects as go

from harness.metrics.objective import JOINT
from reports import _format
from reports.figures import style

if TYPE_CHECKING:
    from harness.experiments.agents.agents_json import AgentsAnswer


NO_TRIAL = "No trial has ended yet."


def agents_share(info: AgentsAnswer) -> go.Figure | str:
    """A line for each bound of the tiers over the number of agents, on a logarithmic axis; means over the seeds."""
    numbers = sorted({trial.users for trial in info.trials})
    if not numbers:
        return NO_TRIAL
    drawn = style.new()
    counted = dict.fromkeys(share.text for trial in info.trials for share in trial.shares)
    texts = [text for text in counted if not text.startswith(JOINT)]
    percents: list[float] = []
    for text, look in zip(texts, style.SYSTEMS * len(texts), strict=False):
        shares = []
        for users in numbers:
            counts = [trial.share(text) for trial in info.trials if trial.users == users]
            shares.append(100 * sum(row.met for row in counts) / max(1, sum(row.of for row in counts)))
        percents += shares
        style.curve(drawn, numbers, shares, text, look, "%{x} agents: %{y:.1f}%", mode="lines+markers")
    style.axes(drawn, style.log_axis("agents", numbers), style.share_axis("within the bound (%)", percents))
    for row in info.answers:
        if row.agents is not None:
            style.upright(drawn, row.agents, f"{row.agents:.3g} agents")
    values = {row.tier: [f"{_format.number(row.agents)} agents"] for row in info.answers if row.agents is not None}
    return style.done(drawn, style.finding(values or {"Agents": ["no interval"]}),
                      ["Lines: means over the seeds. Upright: where a tier is crossed."])  # fmt: skip

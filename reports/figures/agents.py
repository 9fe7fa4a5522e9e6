"""The figure of a search for agents: the share of requests within each bound against the number of agents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.experiments.agents.search import share_of
from reports import _format
from reports.figures import style

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from harness.experiments.agents.agents_json import AgentsAnswer

NO_TRIAL = "No trial has ended yet."


def agents_share(info: AgentsAnswer) -> go.Figure | str:
    """A line for each bound of the tiers over the number of agents, on a logarithmic axis; means over the seeds."""
    numbers = sorted({trial.users for trial in info.trials})
    if not numbers:
        return NO_TRIAL
    drawn = style.new()
    texts = list(dict.fromkeys(share.text for trial in info.trials for share in trial.shares if share.text != "joint"))
    every: list[float] = []
    for text, look in zip(texts, style.SYSTEMS * len(texts), strict=False):
        shares = []
        for users in numbers:
            found = [share_of(trial, text) for trial in info.trials if trial.users == users]
            shares.append(100 * sum(one.met for one in found) / max(1, sum(one.of for one in found)))
        every += shares
        style.curve(drawn, numbers, shares, text, look, "%{x} agents: %{y:.1f}%", mode="lines+markers")
    style.axes(drawn, style.log_axis("agents", numbers), style.share_axis("within the bound (%)", every))
    for one in info.answers:
        if one.agents is not None:
            style.upright(drawn, one.agents, f"{_format.number(one.agents)} agents")
    values = {one.tier: [f"{_format.number(one.agents)} agents"] for one in info.answers if one.agents is not None}
    return style.done(drawn, style.finding(values or {"Agents": ["no interval"]}),
                      ["Lines: means over the seeds. Upright: where a tier is crossed."])  # fmt: skip

"""Searches: placements beside one another, and shares by the number of agents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import plotly.graph_objects as go

from harness.experiments.place.place_json import PlaceAnswer, PlacedUnit
from harness.metrics.objective import JOINT
from reports import _format
from reports._format import in_figure
from reports.figures import style
from reports.figures.style import Look

if TYPE_CHECKING:
    from harness.experiments.agents.agents_json import AgentsAnswer


NO_TRIAL = "No trial has ended yet."
NOTHING_PLACED = "No candidate was searched to its end; rerun the command to resume."
MOST = 10
"""Candidates of each group that are drawn."""
_PLACED = {
    "high": ("prefill and decode apart (high)", Look(style.OCHRE, symbol="star")),
    "low": ("pairs (low)", Look(style.BLUE)),
    "vllm++": ("colocated (vllm++)", Look(style.VERMILLION, symbol="square")),
    "mii": ("colocated (mii)", Look(style.PURPLE, symbol="triangle-up")),
}
_SIDES = {
    True: ("meets the goal", Look(style.GREEN)),
    None: ("not decided", Look(style.OCHRE, symbol="diamond")),
    False: ("misses the goal", Look(style.VERMILLION, symbol="x")),
}
_ROW = 24
"""Pixels of a placement."""


def placed(info: PlaceAnswer) -> go.Figure | str:
    """A row for each placement with its value and interval: the best of its algorithm on top, or of a requested rate
    the cheapest, by whether they meet the goal."""
    if not info.candidates:
        return NOTHING_PLACED
    groups, more = _groups(info)
    rows = [row for _, group in groups for row in group]
    objective, goal, at_rate = info.objective, info.query.goal, info.target_rps is not None
    names = _names(info.candidates[: len(rows)] if at_rate else rows)
    unit = "%" if at_rate else objective.unit
    drawn = style.panels([_ROW * (len(rows) + 1)], 100 + _ROW * (len(rows) + 1))
    x_values: list[float] = []
    for (name, look), group in groups:
        values = np.array([_ends(row, at_rate=at_rate) for row in group])
        x_values += values.ravel().tolist()
        style.curve(drawn, values[:, 0], [names[id(row)] for row in group], name, look, f"%{{y}}: %{{x:.4r}} {unit}",
                    mode="markers", size=10, ends=(values[:, 1], values[:, 2]), across=True,
                    symbols=look.symbols(row.at_least for row in group))  # fmt: skip
    title = "rate per GPU (req/s)" if objective.name == "gpu" else objective.unit
    x = style.axis(title, rangemode="tozero")
    if at_rate:
        x = style.share_axis("within the SLO (%)", x_values + ([] if goal is None else [100 * goal]))
    order = {"categoryorder": "array", "categoryarray": [*names.values()], "dtick": 1}
    style.axes(drawn, x, style.axis("", autorange="reversed", type="category", **order))
    if at_rate and goal is not None:
        drawn.add_vline(x=100 * goal, line={"color": style.GREY, "width": 1})
    left_out = f"{_format.count(more, 'candidate')} more in the tables" if more else ""
    return style.done(drawn, style.finding({"Placements": [f"{len(rows)}", left_out]}), [
        "The vertical line is the goal." if at_rate else "",
        "Behind a name: (tp, pp). Lines: 95% interval, where there is one.",
        "Hollow: at least this rate, no higher one was too high." if any(row.at_least for row in rows) else "",
    ])  # fmt: skip


def _groups(info: PlaceAnswer) -> tuple[list[tuple[tuple[str, Look], list[PlacedUnit]]], int]:
    """The placements to draw by how they are drawn, and how many there are besides."""
    if info.target_rps is not None:
        chosen = info.candidates[: len(_SIDES) * MOST]
        groups = [(drawn, [one for one in chosen if one.meets is side]) for side, drawn in _SIDES.items()]
        return [row for row in groups if row[1]], len(info.candidates) - len(chosen)
    # a capacity in place of the rate of short runs; earlier versions had halves of pairs among the candidates
    last = {(one.name, one.hardware): one for one in (*info.candidates, *info.best)}
    ranked = sorted((one for one in last.values() if one.kind in ("colocated", "pair")), key=lambda one: -one.value)
    groups = [(drawn, [one for one in ranked if one.algorithm == name][:MOST]) for name, drawn in _PLACED.items()]
    return [row for row in groups if row[1]], len(ranked) - sum(len(group) for _, group in groups)


def _ends(one: PlacedUnit, *, at_rate: bool) -> tuple[float, float, float]:
    """What is drawn of a placement, and the ends of its interval, which are the same where there is none."""
    value, low, high, scale = one.attainment or 0.0, one.attainment_low, one.attainment_high, 100.0
    if not at_rate:
        value, low, high = one.rate_per_gpu_rps, one.low_per_gpu_rps, one.high_per_gpu_rps
        scale = one.value / value if value else 0.0
    return scale * value, scale * min(value, value if low is None else low), scale * max(value, high or value)


def _names(units: Sequence[PlacedUnit]) -> dict[int, str]:
    """The name of each at its row, by its id; with GPUs where there are several kinds, else (tp, pp) tells them."""
    several = len({row.hardware for row in units}) > 1
    return {
        id(row): in_figure(f"{row.name}, {row.gpus} x {row.hardware}" if several else row.name, 60) for row in units
    }


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

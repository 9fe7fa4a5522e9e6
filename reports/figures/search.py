"""Searches: placements beside one another, and shares by the number of agents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

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
    """A row for each placement, the best of its algorithm on top."""
    if not info.candidates:
        return NOTHING_PLACED
    if info.target_rps is not None:
        return _at_rate(info)
    # a capacity in place of the rate of short runs; earlier versions had halves of pairs among the candidates
    last = {(one.name, one.hardware): one for one in (*info.candidates, *info.best)}
    every = sorted((one for one in last.values() if one.kind in ("colocated", "pair")), key=lambda one: -one.value)
    groups = {name: [one for one in every if one.algorithm == name][:MOST] for name in _PLACED}
    shown = [one for group in groups.values() for one in group]
    height = _ROW * (len(shown) + 1)
    drawn = style.panels([height], 100 + height)
    objective, names = info.objective, _names(shown)
    for name, group in groups.items():
        if group:
            _placements(drawn, group, names, *_PLACED[name], objective.unit, 1)
    title = "rate per GPU (req/s)" if objective.name == "gpu" else objective.unit
    style.axes(
        drawn, style.axis(title, rangemode="tozero"),
        style.axis("", autorange="reversed", type="category", dtick=1),
    )  # fmt: skip
    values = {"Placements that met the SLO": ["none at any rate"]}
    if info.best:
        best = info.best[0]
        values = {f"Best ({best.algorithm})": [
            in_figure(best.name, 60), f"{_format.number(best.value, 4)} {objective.unit}"
        ]}  # fmt: skip
    intervals = any(one.low_per_gpu_rps is not None for one in shown)
    return style.done(drawn, style.finding(values), [
        f"The best {len(shown)} of {len(every)} candidates are drawn." if len(shown) < len(every) else "",
        "Behind a name: (tp, pp).",
        "Hollow: at least this rate, no higher one was too high." if any(one.at_least for one in shown) else "",
        "Lines: 95% interval; rates without one are those of short runs." if intervals else "",
    ])  # fmt: skip


def _at_rate(info: PlaceAnswer) -> go.Figure:
    """The share of requests that meet the SLO in each deployment that was run, the cheapest on top."""
    shown = info.candidates[: len(_SIDES) * MOST]
    names = _names(shown)
    drawn = style.panels([_ROW * (len(shown) + 1)], 100 + _ROW * (len(shown) + 1))
    for side, (name, look) in _SIDES.items():
        if group := [one for one in shown if one.meets is side]:
            shares = [[*_percent(one)] for one in group]
            error = {"type": "data", "symmetric": False, "color": look.color,
                     "array": [high - share for share, _, high in shares],
                     "arrayminus": [share - low for share, low, _ in shares]}  # fmt: skip
            style.curve(drawn, [share for share, _, _ in shares], [names[id(one)] for one in group], name, look,
                        "%{y}: %{x:.1f}%", mode="markers", size=10, error_x=error)  # fmt: skip
    order = {"categoryorder": "array", "categoryarray": [*names.values()], "dtick": 1}
    goal = [] if info.query.goal is None else [100 * info.query.goal]
    x = style.share_axis("within the SLO (%)", [share for one in shown for share in _percent(one)] + goal)
    style.axes(drawn, x, style.axis("", autorange="reversed", **order))
    if info.query.goal is not None:
        drawn.add_vline(x=100 * info.query.goal, line={"color": style.GREY, "width": 1})
    best = info.best[0] if info.best else None
    cheapest = ["none in this cluster"] if best is None else [
        in_figure(best.name, 60), f"{best.attainment or 0:.1%} at {best.rate_rps:g} req/s"
    ]  # fmt: skip
    more = len(info.candidates) - len(shown)
    return style.done(drawn, style.finding({"Cheapest that meets the SLO": cheapest}), [
        f"{more} more deployments were run." if more else "", "The vertical line is the goal.",
        "Behind a name: (tp, pp). Lines: 95% interval over seeds, where there are several.",
    ])  # fmt: skip


def _percent(one: PlacedUnit) -> Iterator[float]:
    """The share and the ends of its interval, which are the share itself where there is none."""
    share = one.attainment or 0.0
    for value in (share, one.attainment_low, one.attainment_high):
        yield 100 * (share if value is None else value)


def _names(units: Sequence[PlacedUnit]) -> dict[int, str]:
    """The name of each at its row, by its id; with GPUs where there are several kinds, else (tp, pp) tells them."""
    several = len({one.hardware for one in units}) > 1
    return {
        id(one): in_figure(f"{one.name}, {one.gpus} x {one.hardware}" if several else one.name, 60) for one in units
    }


def _placements(
    drawn: go.Figure, group: Sequence[PlacedUnit], names: Mapping[int, str], name: str, look: Look, unit: str, row: int
) -> None:
    error = {"type": "data", "symmetric": False, "color": look.color, "array": [*_ends(group, "high", 1)],
             "arrayminus": [*_ends(group, "low", -1)]}  # fmt: skip
    symbols = look.symbols(one.at_least for one in group)
    style.curve(drawn, [one.value for one in group], [names[id(one)] for one in group], name, look,
                f"%{{y}}: %{{x:.4r}} {unit}", row=row, mode="markers", size=10, error_x=error,
                symbols=symbols)  # fmt: skip


def _ends(group: Sequence[PlacedUnit], end: str, sign: int) -> Iterator[float]:
    """How far an end of the interval is from the value; 0 where there is no interval."""
    for one in group:
        rate = one.rate_per_gpu_rps
        value = one.low_per_gpu_rps if end == "low" else one.high_per_gpu_rps
        far = 0.0 if value is None else max(0.0, sign * (value - rate))
        yield far * one.value / rate if rate else 0.0


def agents_share(info: AgentsAnswer) -> go.Figure | str:
    """A line for each bound of the tiers over the number of agents, on a logarithmic axis; means over the seeds."""
    numbers = sorted({trial.users for trial in info.trials})
    if not numbers:
        return NO_TRIAL
    drawn = style.new()
    counted = dict.fromkeys(share.text for trial in info.trials for share in trial.shares)
    texts = [text for text in counted if not text.startswith(JOINT)]
    every: list[float] = []
    for text, look in zip(texts, style.SYSTEMS * len(texts), strict=False):
        shares = []
        for users in numbers:
            found = [trial.share(text) for trial in info.trials if trial.users == users]
            shares.append(100 * sum(one.met for one in found) / max(1, sum(one.of for one in found)))
        every += shares
        style.curve(drawn, numbers, shares, text, look, "%{x} agents: %{y:.1f}%", mode="lines+markers")
    style.axes(drawn, style.log_axis("agents", numbers), style.share_axis("within the bound (%)", every))
    for one in info.answers:
        if one.agents is not None:
            style.upright(drawn, one.agents, f"{one.agents:.3g} agents")
    values = {one.tier: [f"{_format.number(one.agents)} agents"] for one in info.answers if one.agents is not None}
    return style.done(drawn, style.finding(values or {"Agents": ["no interval"]}),
                      ["Lines: means over the seeds. Upright: where a tier is crossed."])  # fmt: skip

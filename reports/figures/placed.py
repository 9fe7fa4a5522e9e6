"""Placements beside one another: the rate per GPU of each, with the interval over seeds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from reports import _numbers
from reports._clean import in_figure
from reports.answers import place as said
from reports.figures import _style as style

if TYPE_CHECKING:
    import plotly.graph_objects as go

ORDER = 1
OF = "place"
SECTION = "figures"
TITLE = "Rate per GPU of each placement"
MISSING = "No candidate was searched to its end; the same command goes on."
MOST = 10
"""Placements of each group that are drawn."""

_LOOKS = {
    "pair": ("pairs (low)", style.BLUE, "circle"),
    "colocated": ("colocated (vllm++)", style.VERMILLION, "square"),
    "prefill": ("prefill alone (high)", style.GREEN, "diamond"),
    "decode": ("decode alone (high)", style.PURPLE, "x"),
}


def figure(info: Mapping[str, Any]) -> go.Figure | str:
    """A row for each placement, the best of its group on top."""
    every = info.get("candidates") or []
    if not every:
        return MISSING
    groups = {kind: _best(every, kind) for kind in _LOOKS}
    drawn = style.new(160 + 24 * sum(map(len, groups.values())))
    for kind, group in groups.items():
        if group:
            _points(drawn, kind, group)
    drawn.update_xaxes(style.axis("rate per GPU (req/s)", rangemode="tozero"))
    drawn.update_yaxes(style.axis("placement (tp, pp)", autorange="reversed", type="category"))
    return style.done(drawn, _finding(info), _notes(every, groups))


def _best(every: Sequence[Mapping[str, Any]], kind: str) -> list[Mapping[str, Any]]:
    return [one for one in every if one["kind"] == kind][:MOST]


def _points(drawn: go.Figure, kind: str, group: Sequence[Mapping[str, Any]]) -> None:
    name, color, symbol = _LOOKS[kind]
    drawn.add_scatter(
        x=[one["rate_per_gpu_rps"] for one in group],
        y=[in_figure(f"{one['name']}, {one['gpus']} x {one['hardware']}", 60) for one in group],
        error_x={"type": "data", "symmetric": False, "color": color, "array": [*_ends(group, "high")],
                 "arrayminus": [*_ends(group, "low")]},
        name=name, mode="markers", marker={"size": 10, "symbol": symbol, "color": color},
        hovertemplate="%{y}: %{x:.4r} req/s per GPU",
    )  # fmt: skip


def _ends(group: Sequence[Mapping[str, Any]], end: str) -> Iterator[float]:
    """How far an end of the interval is from the rate; 0 where there is no interval."""
    for one in group:
        value = one[f"{end}_per_gpu_rps"]
        yield 0.0 if value is None else max(0.0, (1 if end == "high" else -1) * (value - one["rate_per_gpu_rps"]))


def _finding(info: Mapping[str, Any]) -> str:
    if not info["best"]:
        return "No placement keeps the SLO at any rate."
    best = info["best"][0]
    rate = f"{_numbers.number(best['rate_per_gpu_rps'], 4)} req/s per GPU"
    return f"The best is {in_figure(best['name'], 60)} of {best['algorithm']} with {rate}."


def _notes(every: Sequence[Mapping[str, Any]], groups: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    shown = sum(map(len, groups.values()))
    intervals = any(one["low_per_gpu_rps"] is not None for one in every)
    return [
        f"The best {shown} of {len(every)} are drawn." if shown < len(every) else "",
        "Lines: 95% interval of the mean over seeds." if intervals else said.NO_INTERVAL,
    ]

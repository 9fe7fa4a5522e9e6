"""Placements beside one another: what each is worth, with the interval over seeds."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from reports import _format
from reports._format import in_figure
from reports.figures import _style as style

ORDER = 1
OF = "place"
SECTION = "figures"
TITLE = "Rate per GPU of each placement"
MISSING = "No candidate was searched to its end; the same command goes on."
MOST = 10
"""Candidates of each group that are drawn."""

Info = Mapping[str, Any]

_WHOLE = {
    "apart": ("prefill and decode apart (high)", style.OCHRE, "star"),
    "pair": ("pairs (low)", style.BLUE, "circle"),
    "colocated": ("colocated (vllm++)", style.VERMILLION, "square"),
}
_HALVES = {
    "prefill": ("prefill alone (high)", style.GREEN, "diamond"),
    "decode": ("decode alone (high)", style.PURPLE, "x"),
}
_ROW, _BETWEEN = 24, 80
"""Pixels of a placement, and from one panel to the next."""


def figure(info: Info) -> go.Figure | str:
    """A row for each placement, the best of its group on top; halves of a placement in a panel of their own."""
    every = info.get("candidates") or []
    if not every:
        return MISSING
    groups = {kind: [one for one in every if one["kind"] == kind][:MOST] for kind in (*_WHOLE, *_HALVES)}
    groups["apart"] = [one for one in info["best"] if one["algorithm"] == "high"]
    panels = [panel for looks in (_WHOLE, _HALVES) if (panel := {k: groups[k] for k in looks if groups[k]})]
    heights = [_ROW * (sum(map(len, panel.values())) + 1) for panel in panels]
    inner = sum(heights) + _BETWEEN * (len(panels) - 1)
    drawn = style.panels(heights, 100 + inner, shared=False, spacing=_BETWEEN / inner if len(panels) > 1 else 0)
    objective = info["objective"]
    title = "rate per GPU (req/s)" if objective["name"] == "gpu" else str(objective["unit"])
    for row, panel in enumerate(panels, start=1):
        for kind, group in panel.items():
            _points(drawn, info, kind, group, row)
        drawn.update_xaxes(style.axis(title, rangemode="tozero"), row=row, col=1)
        drawn.update_yaxes(style.axis("", autorange="reversed", type="category"), row=row, col=1)
    return style.done(drawn, _finding(info), _notes(every, groups))


def _points(drawn: go.Figure, info: Info, kind: str, group: Sequence[Info], row: int) -> None:
    name, color, symbol = (_WHOLE | _HALVES)[kind]
    drawn.add_scatter(
        x=[one["value"] for one in group],
        y=[in_figure(f"{one['name']}, {one['gpus']} x {one['hardware']}", 60) for one in group],
        error_x={"type": "data", "symmetric": False, "color": color, "array": [*_ends(group, "high")],
                 "arrayminus": [*_ends(group, "low")]},
        name=name, mode="markers", marker={"size": 10, "symbol": symbol, "color": color},
        hovertemplate=f"%{{y}}: %{{x:.4r}} {info['objective']['unit']}", row=row, col=1,
    )  # fmt: skip


def _ends(group: Sequence[Info], end: str) -> Iterator[float]:
    """How far an end of the interval is from the worth; 0 where there is no interval."""
    for one in group:
        rate, value = one["rate_per_gpu_rps"], one[f"{end}_per_gpu_rps"]
        far = 0.0 if value is None else max(0.0, (1 if end == "high" else -1) * (value - rate))
        yield far * one["value"] / rate if rate else 0.0


def _finding(info: Info) -> str:
    if not info["best"]:
        return "No placement meets the SLO at any rate."
    best = info["best"][0]
    worth = f"{_format.number(best['value'], 4)} {info['objective']['unit']}"
    return f"The best is {in_figure(best['name'], 60)} of {best['algorithm']} with {worth}."


def _notes(every: Sequence[Info], groups: Mapping[str, Sequence[Info]]) -> list[str]:
    shown = sum(len(group) for kind, group in groups.items() if kind != "apart")
    intervals = any(one["low_per_gpu_rps"] is not None for one in every)
    return [
        f"The best {shown} of {len(every)} candidates are drawn." if shown < len(every) else "",
        "Behind a name: (tp, pp).",
        "Prefill or decode alone is one side of a placement and has an axis of its own."
        if any(groups[kind] for kind in _HALVES) else "",
        "Lines: 95% interval of the mean over seeds." if intervals else "One seed gives no interval.",
    ]  # fmt: skip

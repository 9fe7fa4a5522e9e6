"""Attainment against SLO scale: every bound tightened or relaxed by one factor, from the stored table.

The curve DistServe (OSDI 2024, figures 8 and 9) draws from many runs; the scale at which a request turns from
missed to met is the greatest of its value / bound, so one stored run gives the whole curve exactly.
"""

import numpy as np
import plotly.graph_objects as go

from harness.data.folder import Run
from reports import _data, _format
from reports._format import in_figure
from reports.figures import _style as style

ORDER = 3
OF = "run"
SECTION = "figures"
TITLE = "Attainment against SLO scale"
_GRID = 241
_LOOKS = [(style.VERMILLION, "dot", "square"), (style.GREEN, "dash", "diamond"), (style.PURPLE, "dashdot", "x")]


def figure(run: Run) -> go.Figure | str:
    """Share of requests that meet the SLO when every bound is multiplied by the scale on the x axis."""
    if run.requests.num_rows == 0:
        return _data.EMPTY
    found = _data.margins(run)
    if not found:
        return "The run had no bound on single requests; give --slo ttft=0.25,tpot=0.1 to see attainment."
    goal = _data.slo(run).goal
    together = _data.joint(found)
    scales = _scales(together, goal)
    drawn = style.new()
    drawn.add_trace(_curve(scales, together, "all bounds", style.line(style.BLUE, width=3), "circle"))
    for i, margin in enumerate(found if len(found) > 1 else []):
        color, dash, symbol = _LOOKS[i % len(_LOOKS)]
        name = in_figure(f"{margin.name} only")
        drawn.add_trace(_curve(scales, margin.ratio, name, style.line(color, dash), symbol))
    drawn.update_layout(
        xaxis=style.log_axis("SLO scale (1 = the SLO of this run)", scales),
        yaxis=style.axis("requests within the SLO (%)", range=[-2, 104]),
    )
    style.level(drawn, goal * 100, f"goal {goal * 100:g}%")
    cross = crossing(together, goal)
    _mark(drawn, 1.0, "SLO of this run", 0.14, scales)
    if cross is not None:
        _mark(drawn, cross, f"{goal * 100:g}% at scale {_format.number(cross)}", 0.02, scales)
    return style.done(drawn, _finding(found, together, goal, cross))


def crossing(ratio: np.ndarray, goal: float) -> float | None:
    """The smallest scale at which a share `goal` of all requests meets the bounds; None when none does."""
    needed = max(1, int(np.ceil(goal * len(ratio) - 1e-9)))
    at = float(np.sort(ratio)[needed - 1])
    return at if np.isfinite(at) else None


def _scales(together: np.ndarray, goal: float) -> np.ndarray:
    finite = together[np.isfinite(together) & (together > 0)]
    cross = crossing(together, goal)
    low = float(np.quantile(finite, 0.02)) * 0.8 if len(finite) else 0.25
    high = max(2.0, (cross or 1.0) * 1.3, float(np.quantile(finite, 0.995)) if len(finite) else 2.0)
    low, high = min(max(low, 0.01), 0.5), min(high, 1000.0)
    grid = np.geomspace(low, high, _GRID)
    marks = [1.0] if cross is None or not low <= cross <= high else [1.0, cross]
    return np.unique(np.concatenate([grid, marks]))


def _curve(scales: np.ndarray, ratio: np.ndarray, name: str, line: dict[str, object], symbol: str) -> go.Scatter:
    share = np.searchsorted(np.sort(ratio), scales, side="right") / len(ratio) * 100.0
    return go.Scatter(
        x=scales, y=share, name=name, mode="lines+markers", line=line,
        marker={"size": 8, "maxdisplayed": 12, "symbol": symbol, "color": line["color"]},
        hovertemplate="scale %{x:.3r}: %{y:.1f}%",
    )  # fmt: skip


def _mark(drawn: go.Figure, x: float, text: str, y: float, scales: np.ndarray) -> None:
    """A vertical line with its name beside it, on the side that has room."""
    left = np.log(x / scales[0]) > 0.75 * np.log(scales[-1] / scales[0])
    drawn.add_vline(x=x, line={"color": style.GREY, "width": 1, "dash": "dot"})
    drawn.add_annotation(
        x=float(np.log10(x)), y=y, yref="paper", text=text, showarrow=False, font={"size": 12}, yanchor="bottom",
        xanchor="right" if left else "left", xshift=-4 if left else 4,
    )  # fmt: skip


def _finding(found: list[_data.Margin], together: np.ndarray, goal: float, cross: float | None) -> str:
    met = _format.share(float(np.mean(together <= 1.0)), goal)
    if cross is None:
        failed = int(np.sum(~np.isfinite(together)))
        return (
            f"{met} of the requests meet the SLO; no scale reaches {goal * 100:g}%, because "
            f"{_format.count(failed, 'request')} of {len(together):,} failed."
        )
    named = [m for m in found if np.isfinite(m.bound.limit)]
    bounds = ", ".join(f"{m.name} {_format.seconds(m.bound.limit * cross)}" for m in named) or "as each request says"
    kept = "is kept down to" if cross <= 1 else "is reached only from"
    scaled = f"{_format.number(cross)} times its bounds ({bounds})"
    return f"{met} of the requests meet the SLO; {goal * 100:g}% {kept} {scaled}."

"""TTFT of each request over the time of the run: a growing queue, a stall or a burst shows here."""

import numpy as np
import plotly.graph_objects as go

from harness.data.folder import Run
from harness.metrics.quantiles import quantile
from reports import _data, _format
from reports.figures import _latencies, _reduce
from reports.figures import _style as style

ORDER = 8
OF = "run"
SECTION = "figures"
OVER_TIME = True
TITLE = "Time to first token over the run"
_STRETCHES = 40
_LEAST = 10


def figure(run: Run) -> go.Figure | str:
    """TTFT in seconds (log axis) against the planned time, met and missed apart, with p50 and p90 of stretches."""
    at, ttft = _data.column(run, "scheduled_s"), _data.metric(run, "ttft")
    known = np.isfinite(ttft) & (ttft > 0)
    if not np.any(known):
        return _data.EMPTY if run.requests.num_rows == 0 else (
            "No request waited a measurable time for its first token; the counts by status and the errors say more."
        )  # fmt: skip
    order = np.argsort(at, kind="stable")[known[np.argsort(at, kind="stable")]]
    at, ttft = at[order], ttft[order]
    found = _data.margins(run)
    met = (_data.joint(found) <= 1.0)[order] if found else np.ones(len(at), dtype=bool)
    drawn = style.new()
    kept = _reduce.sampled(ttft)
    _points(drawn, at[kept], ttft[kept], met[kept], bounded=bool(found))
    _lines(drawn, at, ttft)
    drawn.update_layout(
        xaxis=style.axis("planned time since the start (s)"),
        yaxis=style.log_axis("TTFT (s, log scale)", [ttft.min(), ttft.max()]),
    )
    cut = run.info.warmup
    if cut.requests:
        drawn.add_vline(
            x=cut.at_s, line={"color": style.GREY, "width": 1, "dash": "dot"},
            annotation_text="measured from here", annotation_font_size=12,
        )  # fmt: skip
    return style.done(
        drawn,
        _finding(ttft),
        [
            _reduce.note(len(at), len(kept), "requests", "evenly chosen, with the extremes of each stretch"),
            _data.warmed_up(run),
        ],
    )


def _points(drawn: go.Figure, at: np.ndarray, ttft: np.ndarray, met: np.ndarray, *, bounded: bool) -> None:
    looks = [(met, "met the SLO" if bounded else "requests", style.BLUE, "circle")]
    if bounded:
        looks.append((~met, "missed the SLO", style.VERMILLION, "x"))
    for chosen, name, color, symbol in looks:
        if np.any(chosen):
            drawn.add_scatter(
                x=at[chosen], y=ttft[chosen], mode="markers", name=name, hovertemplate="%{x:.2f} s: %{y:.4r} s",
                marker={"size": 5, "color": color, "symbol": symbol, "opacity": 0.75},
            )  # fmt: skip


def _lines(drawn: go.Figure, at: np.ndarray, ttft: np.ndarray) -> None:
    """p50 and p90 of stretches of equally many requests."""
    middle, *found = _latencies.stretches(at, ttft, (0.5, 0.9), _STRETCHES)
    for name, values, dash in zip(("p50", "p90"), found, ("solid", "dash"), strict=True):
        if len(middle):
            drawn.add_scatter(
                x=middle, y=values, name=f"{name} of {len(middle)} stretches", mode="lines",
                line=style.line(style.GREY, dash, 2.5), hovertemplate="%{x:.2f} s: %{y:.4r} s",
            )  # fmt: skip


def _finding(ttft: np.ndarray) -> str:
    """Compares the last third with the first: a queue that grows makes the later requests wait longer."""
    third = len(ttft) // 3
    if third < _LEAST:
        return f"TTFT lies between {_format.seconds(float(ttft.min()))} and {_format.seconds(float(ttft.max()))}."
    first, last = quantile(ttft[:third], 0.5), quantile(ttft[-third:], 0.5)
    return (
        f"The median TTFT is {_format.seconds(first)} in the first third of the requests and "
        f"{_format.seconds(last)} in the last third."
    )

"""What the client did: planned and sent requests per second, and how late each request left."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from harness.quantiles import quantile
from reports import _data, _numbers
from reports.figures import _reduce
from reports.figures import _style as style

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from harness.folder import Run

ORDER = 11
TITLE = "Planned and sent requests"
LATE_S = 0.010
_WIDTHS_S = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400)
_MOST_BINS = 120


def figure(run: Run) -> go.Figure | str:
    """Requests per second by the plan and as sent, in equal stretches of time, above the lateness of each request."""
    planned = np.sort(_planned(run))
    sent = _data.column(run, "sent_s")
    late = sent - _data.column(run, "scheduled_s")
    if len(planned) == 0:
        return _data.EMPTY
    left = sent[np.isfinite(sent)]
    width = _width(max(float(planned[-1]), float(np.max(left, initial=0.0))), len(planned))
    drawn = style.panels([0.6, 0.4], 520)
    _rate(drawn, planned, width, "planned", style.line(style.BLUE))
    _rate(drawn, left, width, "sent", style.line(style.VERMILLION, "dot", 2.5))
    kept = _lateness(drawn, sent, late)
    drawn.update_yaxes(style.axis("requests per second", rangemode="tozero"), row=1, col=1)
    drawn.update_yaxes(style.axis("lateness (ms)", rangemode="tozero"), row=2, col=1)
    drawn.update_xaxes(style.axis(""), row=1, col=1)
    drawn.update_xaxes(style.axis("time since the start (s)"), row=2, col=1)
    finite = late[np.isfinite(late)]
    notes = [
        f"Rates are counts of {_numbers.limit(width)} each.",
        _reduce.note(len(finite), kept, "values of lateness", "evenly chosen, with the extremes of each stretch"),
    ]
    return style.done(drawn, _finding(planned, sent, finite), notes)


def _planned(run: Run) -> np.ndarray:
    """Scheduled times: of the schedule where it is stored, which also holds what was never sent."""
    if run.schedule is None:
        return _data.column(run, "scheduled_s")
    times: np.ndarray = run.schedule.column("scheduled_s").to_numpy()
    return times


def _width(span_s: float, requests: int) -> float:
    """A round width that leaves about eight requests or more in a stretch, and no more than 120 stretches."""
    bins = min(_MOST_BINS, max(4, requests // 8))
    return next((w for w in _WIDTHS_S if span_s / w <= bins), span_s / bins)


def _rate(drawn: go.Figure, times: np.ndarray, width: float, name: str, line: dict[str, object]) -> None:
    bins = int(np.floor(float(np.max(times)) / width)) + 1 if len(times) else 1
    counts = np.bincount(np.maximum(times // width, 0).astype(np.int64), minlength=bins)
    edges = np.arange(len(counts) + 1) * width
    drawn.add_scatter(
        x=edges, y=np.append(counts, counts[-1]) / width, row=1, col=1, name=name, mode="lines",
        line={**line, "shape": "hv"}, hovertemplate="%{x:.6~r} s: %{y:.3r} req/s",
    )  # fmt: skip


def _lateness(drawn: go.Figure, sent: np.ndarray, late: np.ndarray) -> int:
    known = np.isfinite(late)
    order = np.argsort(sent[known], kind="stable")
    x, y = sent[known][order], late[known][order] * 1000.0
    kept = _reduce.sampled(y)
    drawn.add_scatter(
        x=x[kept], y=y[kept], row=2, col=1, name="lateness", mode="markers",
        marker={"size": 4, "color": style.GREEN, "symbol": "circle"}, hovertemplate="%{x:.2f} s: %{y:.3r} ms late",
    )  # fmt: skip
    if len(y) and float(np.max(y)) > LATE_S * 1000 / 4:
        style.level(drawn, LATE_S * 1000, "late from 10 ms", row=2, col=1)
    return len(kept)


def _finding(planned: np.ndarray, sent: np.ndarray, late: np.ndarray) -> str:
    left = int(np.sum(np.isfinite(sent)))
    text = f"{left:,} of {len(planned):,} planned requests were sent"
    if not len(late):
        return text + "."
    if not np.any(late):
        return text + ", every one at its planned time."
    behind = int(np.sum(late > LATE_S))
    share = f"{_numbers.share(behind / len(late))} were" if behind else "none was"
    return (
        f"{text}; half left within {_numbers.seconds(quantile(late, 0.5))} of their time, the latest "
        f"{_numbers.seconds(float(np.max(late)))} after it; {share} more than 10 ms late."
    )

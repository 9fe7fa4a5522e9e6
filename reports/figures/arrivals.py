"""What the client did: planned and sent requests per second, and how late each request left."""

import numpy as np
import plotly.graph_objects as go

from harness.data.folder import Run
from harness.metrics.quantiles import quantile
from reports import _data, _format
from reports.figures import _latencies, _reduce
from reports.figures import _style as style
from reports.figures._rate import stretch

ORDER = 11
OF = "run"
SECTION = "fidelity"
TITLE = "Planned and sent requests"
LATE_S = 0.010
_MOST_BINS = 120
_STRETCHES = 40


def figure(run: Run) -> go.Figure | str:
    """Requests per second by the plan and as sent, in equal stretches of time, above the lateness of each request."""
    times = _data.sending(run)
    sent = _data.column(run, "sent_s")
    late = sent - _data.column(run, "scheduled_s")
    if len(times.planned) == 0:
        return _data.EMPTY
    due = len(times.planned) if run.schedule is None else run.schedule.num_rows
    shown = _shown(times)
    end_s = max(float(np.max(values, initial=0.0)) for _, values, _ in shown)
    width = stretch(end_s, max(len(values) for _, values, _ in shown), _MOST_BINS)
    drawn = style.panels([0.6, 0.4], 520)
    for name, values, line in shown:
        _rate(drawn, values, width, name, line)
    _declared(drawn, run, end_s)
    kept = _lateness(drawn, sent, late)
    _percentiles(drawn, sent, late)
    drawn.update_yaxes(style.axis("requests per second", rangemode="tozero"), row=1, col=1)
    drawn.update_yaxes(style.axis("lateness (ms)", rangemode="tozero"), row=2, col=1)
    drawn.update_xaxes(style.axis(""), row=1, col=1)
    drawn.update_xaxes(style.axis("time since the start (s)"), row=2, col=1)
    finite = late[np.isfinite(late)]
    notes = [
        f"Rates are counts of {_format.limit(width)} each.",
        _reduce.note(len(finite), kept, "values of lateness", "evenly chosen, with the extremes of each stretch"),
    ]
    return style.done(drawn, _finding(due, sent, finite), notes)


def _shown(times: _data.Sending) -> list[tuple[str, np.ndarray, dict[str, object]]]:
    """Name, times and line of what is counted; what users of a closed loop do was not planned."""
    blue, red, green = style.line(style.BLUE), style.line(style.VERMILLION, "dot", 2.5), style.line(style.GREEN, "dash")
    if times.everything is None:
        return [("planned", times.planned, blue), ("sent", times.sent, red)]
    everything = ("sent, follow-ups included", times.everything, green)
    return [everything] if times.closed else [("planned", times.planned, blue), ("sent", times.sent, red), everything]


def _declared(drawn: go.Figure, run: Run, end_s: float) -> None:
    """The rate that the arrivals declare; not that of a recording, which is only what was measured."""
    course, asked_rps = run.info.fidelity.rate_curve, run.info.fidelity.requested_rps
    if course and course.rps and course.end_s is not None:
        at, values = np.linspace(0.0, course.end_s, len(course.rps) + 1), np.array([*course.rps, course.rps[-1]])
    elif asked_rps is not None and not run.info.workload.recorded:
        at, values = np.array([0.0, end_s]), np.array([asked_rps, asked_rps], np.float64)
    else:
        return
    drawn.add_scatter(
        x=at, y=values, row=1, col=1, name="declared", mode="lines",
        line={**style.line(style.GREY, "dash", 2), "shape": "hv"}, hovertemplate="%{x:.6~r} s: %{y:.3r} req/s",
    )  # fmt: skip


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


def _percentiles(drawn: go.Figure, sent: np.ndarray, late: np.ndarray) -> None:
    """p50 and p99 of the lateness of stretches of equally many requests; of a simulator, which is never late, none."""
    known = np.isfinite(late)
    order = np.argsort(sent[known], kind="stable")
    middle, *found = _latencies.stretches(sent[known][order], late[known][order] * 1000.0, (0.5, 0.99), _STRETCHES)
    for name, values, dash in zip(("p50", "p99"), found, ("solid", "dash"), strict=True):
        if np.any(values > 0):
            drawn.add_scatter(
                x=middle, y=values, row=2, col=1, name=f"lateness {name}", mode="lines",
                line=style.line(style.GREY, dash, 2.5), hovertemplate=f"%{{x:.2f}} s: {name} %{{y:.3r}} ms late",
            )  # fmt: skip


def _finding(due: int, sent: np.ndarray, late: np.ndarray) -> str:
    left = int(np.sum(np.isfinite(sent)))
    text = f"{left:,} of {due:,} planned requests were sent"
    if not len(late):
        return text + "."
    if not np.any(late):
        return text + ", every one at its planned time."
    behind = int(np.sum(late > LATE_S))
    share = f"{_format.share(behind / len(late))} were" if behind else "none was"
    return (
        f"{text}; half left within {_format.seconds(quantile(late, 0.5))} of their time, the latest "
        f"{_format.seconds(float(np.max(late)))} after it; {share} more than 10 ms late."
    )

"""What a remote server said of itself over time: requests running and waiting, and its KV memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import plotly.graph_objects as go

from harness.validity import server_metrics
from reports import _format
from reports.figures import _reduce
from reports.figures import _style as style

if TYPE_CHECKING:
    from harness.data.folder import Run

_PANELS = (
    ("running", "running", "running<br>requests", style.BLUE, 1.0),
    ("waiting", "waiting", "waiting<br>requests", style.PURPLE, 1.0),
    ("kv_use", "KV memory", "KV memory<br>in use (%)", style.GREEN, 100.0),
)


def figure(run: Run) -> go.Figure | None:
    """A panel per gauge that the server has, at the times of the readings; None where it has none."""
    told = server_metrics.view(run)
    if told is None:
        return None
    at_s = told.read_s[told.read_s >= 0.0]  # between the reading before and the start lies the client's calibration
    if len(at_s) < 2:
        return None
    known = [(word, told.gauge(word, at_s, mean=word == "kv_use")) for word, *_ in _PANELS]
    found = {word: values for word, values in known if values is not None}
    if "running" not in found:
        return None
    shown = [panel for panel in _PANELS if panel[0] in found]
    drawn = style.panels([1 / len(shown)] * len(shown), 180 + 150 * len(shown))
    ours = server_metrics.in_flight(run.requests, at_s)
    kept = _reduce.extremes([*found.values(), ours])
    for row, (word, name, title, color, scale) in enumerate(shown, start=1):
        _line(drawn, row, at_s[kept], scale * found[word][kept], name, style.line(color, width=1.5))
        if word == "running":
            _line(drawn, row, at_s[kept], ours[kept], "sent and not ended (client)", style.line(style.GREY, "dot", 1.5))
        drawn.update_yaxes(style.axis(title, rangemode="tozero"), row=row, col=1)
        last = "time since the start (s)" if row == len(shown) else ""
        drawn.update_xaxes(style.axis(last, range=[0.0, float(at_s[-1])]), row=row, col=1)
    note = _reduce.note(len(at_s), len(kept), "readings", "the least and the greatest of each stretch")
    return style.done(drawn, _finding(found), ["Told by the metrics of the server, each second.", note])


def _line(drawn: go.Figure, row: int, x: np.ndarray, y: np.ndarray, name: str, line: dict[str, object]) -> None:
    hover = "%{x:.2f} s: %{y:,.4~g}"
    drawn.add_scatter(x=x, y=y, row=row, col=1, name=name, mode="lines", line=line, hovertemplate=hover)


def _finding(found: dict[str, np.ndarray]) -> str:
    running = found["running"]
    mean = _format.number(float(running.mean()))
    texts = [f"{mean} requests were running in the mean of the readings, {running.max():,.0f} at most"]
    if "waiting" in found:
        texts.append(f"requests waited at {_format.share(float((found['waiting'] > 0).mean()))} of the readings")
    if "kv_use" in found:
        texts.append(f"{_format.share(float(found['kv_use'].max()))} of the KV memory was in use at most")
    return "; ".join(texts) + "."

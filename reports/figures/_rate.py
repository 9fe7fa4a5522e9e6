"""Rate over time: arrivals per second in equal stretches, against the rate that was wanted where there is one."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from reports import _format
from reports.figures import _style as style
from reports.figures._traffic import Floats, Rate, Stream

WIDTHS_S = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400)
MOST_BINS = 200
UNITS = ((2 * 86400.0, 86400.0, "days"), (3 * 3600.0, 3600.0, "hours"), (0.0, 1.0, "s"))
"""From this span on (s), the axis counts in this many seconds, called so."""

LOOKS = ((style.BLUE, "solid", 2.0), (style.VERMILLION, "dot", 2.5))


def figure(streams: Sequence[Stream], wanted: Rate | None = None) -> go.Figure | str:
    """Steps of equal width, one line per stream; the wanted rate as a grey line."""
    shown = [stream for stream in streams if stream.arrivals]
    end_s = max(_end(stream) for stream in shown)
    width = stretch(end_s, max(stream.arrivals for stream in shown))
    scale, unit = next((by, name) for least, by, name in UNITS if end_s >= least)
    drawn = style.new(340)
    for stream, (color, dash, thick) in zip(shown, LOOKS, strict=False):
        edges, per_s = _rates(stream, width)
        drawn.add_scatter(
            x=edges / scale, y=np.append(per_s, per_s[-1]), name=stream.name, mode="lines",
            line={**style.line(color, dash, thick), "shape": "hv"},
            hovertemplate="%{x:.6~r} " + unit + ": %{y:.3r} req/s",
        )  # fmt: skip
    if wanted is not None:
        drawn.add_scatter(
            x=wanted.at_s / scale, y=wanted.rps, name=wanted.name, mode="lines",
            line=style.line(style.GREY, "dash", 1.5), hovertemplate="%{x:.6~r} " + unit + ": %{y:.3r} req/s",
        )  # fmt: skip
    drawn.update_layout(
        xaxis=style.axis(f"time since the start ({unit})"), yaxis=style.axis("requests per second", rangemode="tozero")
    )
    return style.done(drawn, _finding(shown[0], width), [f"Rates are counts of {span_text(width)} each."])


def stretch(span_s: float, arrivals: int, most: int = MOST_BINS) -> float:
    """A round width that leaves about eight arrivals or more in a stretch, and no more than `most` stretches."""
    bins = min(most, max(4, arrivals // 8))
    return float(next((w for w in WIDTHS_S if span_s / w <= bins), span_s / bins))


def _rates(stream: Stream, width: float) -> tuple[Floats, Floats]:
    """(k + 1,) edges and (k,) rates; the last stretch ends with the stream; a short rest joins the one before."""
    edges, counts = stream.per_bin(width)
    edges[-1] = max(_end(stream), edges[-2] + 1e-3 * width)
    if len(counts) > 1 and edges[-1] - edges[-2] < width / 2:
        edges, counts = np.delete(edges, -2), np.append(counts[:-2], counts[-2:].sum())
    return edges, counts / np.diff(edges)


def _end(stream: Stream) -> float:
    return float(stream.times_s[-1]) if stream.times_s is not None else stream.span_s


def _finding(stream: Stream, width: float) -> str:
    _, per_s = _rates(stream, width)
    span_s = stream.span_s
    mean = stream.arrivals / span_s if span_s > 0 else 0.0
    text = f"{stream.arrivals:,} arrivals in {span_text(span_s)}"
    if mean == 0:
        return text + "."
    return (
        f"{text}, {_format.number(mean)} per second in the mean; the busiest {span_text(width)} had "
        f"{_format.number(float(per_s.max()))} per second, the quietest {_format.number(float(per_s.min()))}."
    )


def span_text(seconds: float) -> str:
    """A stretch of time in the largest unit of which it has several: '31 days', '58.4 minutes', '20 s'."""
    if seconds >= 2 * 86400:
        return f"{_format.plain(seconds / 86400, 3)} days"
    if seconds >= 3 * 3600:
        return f"{_format.plain(seconds / 3600, 3)} hours"
    if seconds >= 10 * 60:
        return f"{_format.plain(seconds / 60, 3)} minutes"
    return _format.limit(float(f"{seconds:.4g}"))

"""Traffic without a run: streams of arrivals and lengths as arrays, and their rate over time.

Lengths alone are in `cdf`.

How bursty requests come, of a run and of traffic: the dispersion of their counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from harness.data.folder import Run
from harness.data.lists import Floats
from harness.stats import arrivals
from reports import _data, _format
from reports.figures import style
from reports.figures.drawing import Drawing
from reports.figures.style import Look

MOST_WIDTH_BINS = 2_000_000
"""Widths with more bins than this are not drawn: a month in tenths of a second would fill the memory."""
SHORT = "A dispersion curve needs arrivals over ten bins or more; take a longer stretch of the traffic."
_STYLES = (Look(style.BLUE), Look(style.VERMILLION, "dot", "diamond"), Look(style.GREEN, "dash", "square"))
WIDTHS_S = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400)
MOST_BINS = 200
UNITS = ((2 * 86400.0, 86400.0, "days"), (3 * 3600.0, 3600.0, "hours"), (0.0, 1.0, "s"))
"""From this span on (s), the axis counts in this many seconds, called so."""


@dataclass(frozen=True, slots=True)
class Stream:
    """Arrivals and lengths under one name."""

    name: str
    times_s: Floats | None = None  # (n,) sorted
    prompt_tokens: Floats | None = None  # (m,)
    output_tokens: Floats | None = None  # (m,)

    @property
    def arrivals(self) -> int:
        """How many there are."""
        return 0 if self.times_s is None else len(self.times_s)

    @property
    def span_s(self) -> float:
        """Seconds from the first arrival to the last."""
        return 0.0 if self.times_s is None or not len(self.times_s) else float(self.times_s[-1] - self.times_s[0])


@dataclass(frozen=True, slots=True, eq=False)
class Fitted:
    """Indices of dispersion at `widths_s` (widths,): of the trace, and both ends of what draws of its model have."""

    widths_s: Floats
    recorded: Floats | None
    low: Floats
    high: Floats
    name: str


def rate(streams: Sequence[Stream]) -> Drawing:
    """Arrivals per second in equal stretches, one step line per stream."""
    timed = [stream for stream in streams if stream.arrivals]
    end_s = max(_end(stream) for stream in timed)
    width = stretch(end_s, max(stream.arrivals for stream in timed))
    scale, unit = next((by, name) for least, by, name in UNITS if end_s >= least)
    hover = "%{x:.6~r} " + unit + ": %{y:.3r} req/s"
    drawn = style.new(340)
    styles = (Look(style.BLUE), Look(style.VERMILLION, "dot", width=2.5))
    for stream, look in zip(timed, styles, strict=False):
        edges, per_s = _rates(stream, width)
        y = np.append(per_s, per_s[-1])
        style.curve(drawn, edges / scale, y, stream.name, look, hover, mode="lines", step="hv")
    x = style.axis(f"time since the start ({unit})")
    style.axes(drawn, x, style.axis("requests per second", rangemode="tozero"))
    first = timed[0]
    values = {"Arrivals": [f"{first.arrivals:,} in {_format.span(first.span_s)}"]}
    if first.span_s > 0:
        per_s = _rates(first, width)[1]
        values["arrivals per second"] = [
            f"mean {_format.number(first.arrivals / first.span_s)}",
            f"busiest {_format.span(width)} {_format.number(float(per_s.max()))}",
            f"quietest {_format.number(float(per_s.min()))}",
        ]
    return style.done(drawn, style.finding(values), [f"Rates are counts of {_format.span(width)} each."])


def stretch(span_s: float, arrivals: int, most: int = MOST_BINS) -> float:
    """A round width that leaves about eight arrivals or more in a stretch, and no more than `most` stretches."""
    bins = min(most, max(4, arrivals // 8))
    return float(next((w for w in WIDTHS_S if span_s / w <= bins), span_s / bins))


def _rates(stream: Stream, width: float) -> tuple[Floats, Floats]:
    """(k + 1,) edges and (k,) rates; the last stretch ends with the stream; a short rest joins the one before."""
    assert stream.times_s is not None
    bins = np.floor(stream.times_s / width).astype(np.int64)
    counts = np.bincount(bins - bins[0]).astype(np.float64)
    edges = np.asarray((bins[0] + np.arange(len(counts) + 1)) * width, np.float64)
    edges[-1] = max(_end(stream), edges[-2] + 1e-3 * width)
    # a rest of a few seconds has a rate of chance, which would pass for the busiest or the quietest stretch
    if len(counts) > 1 and edges[-1] - edges[-2] < width / 2:
        edges, counts = np.delete(edges, -2), np.append(counts[:-2], counts[-2:].sum())
    return edges, counts / np.diff(edges)


def _end(stream: Stream) -> float:
    return 0.0 if stream.times_s is None else float(stream.times_s[-1])


class Curve(NamedTuple):
    """A curve with its name: (widths,) indices of dispersion, NaN where unknown."""

    name: str
    widths_s: Floats
    values: Floats

    @classmethod
    def of(cls, stream: Stream, widths_s: Floats, tick_s: float | None) -> "Curve":
        """That of a stream of arrivals, whose stamps may be on ticks."""
        assert stream.times_s is not None
        return cls(stream.name, widths_s, arrivals.dispersion_curve(stream.times_s, widths_s, tick_s))

    def known(self) -> "Curve":
        """Where a log axis can show it."""
        positive = np.isfinite(self.values) & (self.values > 0)
        return Curve(self.name, self.widths_s[positive], self.values[positive])


def burstiness(run: Run) -> Drawing | str:
    """Dispersion curves of plan and sending on two log axes, with the range in which chance puts Poisson."""
    if run.requests.num_rows == 0:
        return _data.EMPTY
    times = _data.sending(run)
    series = [("planned", times.planned), ("sent", times.sent)]
    if times.everything is not None:
        series = [*([] if times.closed else series), ("sent, follow-ups included", times.everything)]
    streams = [Stream(name, np.asarray(values, np.float64)) for name, values in series if len(values)]
    if not streams:
        return _data.EMPTY
    tick_s = run.info.fidelity.tick_s
    grain_s = None if tick_s is None else float(tick_s)
    widths_s = widths(streams[0].span_s, streams[0].arrivals, grain_s)
    return dispersion([Curve.of(s, widths_s, grain_s) for s in streams], streams[0].span_s)


def dispersion_of(streams: Sequence[Stream], fitted: Fitted | None, grain_s: float | None) -> Drawing | str:
    """The curves of the streams, that of a trace as its fit has it, with the band of the fit."""
    bins_s = widths(max(s.span_s for s in streams), max(s.arrivals for s in streams), grain_s)
    curves = [Curve.of(s, bins_s, grain_s) for s in streams if s.arrivals]
    if fitted is not None and fitted.recorded is not None:
        curves[:1] = [Curve(streams[0].name, fitted.widths_s, fitted.recorded)]
    return dispersion(curves, streams[0].span_s, fitted)


def dispersion(curves: Sequence[Curve], span_s: float, fitted: Fitted | None = None) -> Drawing | str:
    """Log-log: the curves, Poisson at 1 with the range in which chance puts 95% of it, and the band of a fit."""
    curves = [c for c in (c.known() for c in curves) if len(c.widths_s)]
    if not curves:
        return SHORT
    drawn = style.new(420)
    ends = [float(v) for c in curves for v in c.values]
    bins_s = np.unique(np.concatenate([c.widths_s for c in curves]))
    bands = [("Poisson, 95%", bins_s, *chance(bins_s, span_s), style.GREY)]
    if fitted is not None:
        inside = np.isfinite(fitted.low) & np.isfinite(fitted.high) & (fitted.low > 0)
        low, high = fitted.low[inside], fitted.high[inside]
        bands.append((fitted.name, fitted.widths_s[inside], low, high, style.VERMILLION))
        ends += [*low.tolist(), *high.tolist()]
    for name, at_s, low, high, color in bands:
        style.band(drawn, at_s, (low, high), (f"{name}, lower end", name), color, showlegend=True)
    look = Look(style.GREY, "longdash", width=1.0)
    style.curve(drawn, bins_s, np.ones(len(bins_s)), "Poisson is 1", look, None, mode="lines")
    for line, look in zip(curves, _STYLES, strict=False):
        style.curve(drawn, line.widths_s, line.values, line.name, look, "%{x:.4~r} s: %{y:.3r}", size=7)
    style.axes(
        drawn,
        style.log_axis("width of the bins (s, log scale)", bins_s),
        style.log_axis("variance / mean of counts (log scale)", [*ends, 0.5, 2.0]),
    )
    note = f"The grey band holds 95% of Poisson processes of the same length ({_format.span(span_s)})."
    values = {
        f"Variance / mean of counts, {line.name}": [
            f"{_format.plain(float(line.values[i]), 3)} in {_format.span(float(line.widths_s[i]))}" for i in (0, -1)
        ]
        for line in curves
    }
    return style.done(drawn, style.finding(values), [note])


def widths(span_s: float, n: int, grain_s: float | None = None) -> Floats:
    """1, 2, 5 of each decade: from a few arrivals' distance (or the grain of the stamps) to a tenth of the span."""
    if span_s <= 0 or n < arrivals.MIN_BINS:
        return np.zeros(0)
    least = max(grain_s or 0.0, 0.2 * span_s / n, span_s / MOST_WIDTH_BINS)
    most = span_s / arrivals.MIN_BINS
    if grain_s:
        tenfold = [grain_s * m * 10.0**e for e in range(9) for m in (1, 2, 5)]
    else:
        tenfold = [float(f"{m}e{e}") for e in range(-6, 8) for m in (1, 2, 5)]
    return np.array([width for width in tenfold if least <= width * (1 + 1e-9) and width <= most])


def chance(widths_s: Floats, span_s: float) -> tuple[Floats, Floats]:
    """Where 95% of the indices of dispersion of a Poisson process over `span_s` lie, per width.

    (bins - 1) times the index is nearly chi-square with bins - 1 degrees of freedom; its quantiles by Wilson and
    Hilferty (PNAS 17, 1931), whose error is below the width of a line from 10 bins on.
    """
    free = np.maximum(span_s / widths_s - 1, 1.0)
    portion = 2 / (9 * free)
    low, high = (np.maximum(1 - portion + z * np.sqrt(portion), 0.05) ** 3 for z in (-1.96, 1.96))
    return low, high

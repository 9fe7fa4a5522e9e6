"""The dispersion curve: how much more than Poisson the counts vary, against the width of the bins they are taken in."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go

from harness.stats import arrivals as stats_arrivals
from reports import _format
from reports.figures import _style as style
from reports.figures._rate import span_text
from reports.figures._traffic import Curves, Floats, Stream

MOST_BINS = 2_000_000
"""Widths with more bins than this are not drawn: a month in tenths of a second would fill the memory."""

FAR = 3.1
"""Normal value from which a curve is said to leave Poisson's range: at one of a dozen widths, 95% is left by chance."""

SHORT = "A dispersion curve needs arrivals over ten bins or more; take a longer stretch of the traffic."
LOOKS = ((style.BLUE, "solid", "circle"), (style.VERMILLION, "dot", "diamond"), (style.GREEN, "dash", "square"))
_TOYS = (("longdash", "x"), ("dashdot", "cross"), ("longdashdot", "triangle-up"), ("dot", "triangle-down"))


class Curve(NamedTuple):
    """A curve with its name: (widths,) indices of dispersion, NaN where unknown."""

    name: str
    widths_s: Floats
    values: Floats


def of_traffic(streams: Sequence[Stream], known: Curves, grain_s: float | None) -> go.Figure | str:
    """The curves of the streams and those that the caller has, with the band of a fit and the toys."""
    own = widths(max(s.span_s for s in streams), max(s.arrivals for s in streams), grain_s)
    curves = [Curve(s.name, own, curve(s, own, grain_s)) for s in streams if s.arrivals]
    if known.widths_s is not None and known.found is not None and curves:
        curves[0] = Curve(streams[0].name, known.widths_s, known.found)
    elif known.widths_s is not None and known.found is not None:
        curves = [Curve(streams[0].name, known.widths_s, known.found)]
    return figure(curves, streams[0].span_s, known)


def figure(curves: Sequence[Curve], span_s: float, known: Curves | None = None) -> go.Figure | str:
    """Log-log: the curves, Poisson at 1 with the range in which chance puts 95% of it, a fit's band, toys."""
    known = known or Curves()
    curves = [c for c in (_positive(c) for c in curves) if len(c.widths_s)]
    if not curves:
        return SHORT
    drawn = style.new(420)
    ends = [float(v) for c in curves for v in c.values]
    at = np.unique(np.concatenate([c.widths_s for c in curves]))
    low, high = chance(at, span_s)
    _band(drawn, at, low, high, "Poisson, 95%", style.GREY, "dot")
    drawn.add_scatter(
        x=at, y=np.ones(len(at)), name="Poisson is 1", mode="lines", line=style.line(style.GREY, "longdash", 1),
        hoverinfo="skip",
    )  # fmt: skip
    if known.band is not None and known.widths_s is not None:
        inside = np.isfinite(known.band.low) & np.isfinite(known.band.high) & (known.band.low > 0)
        band = (known.widths_s[inside], known.band.low[inside], known.band.high[inside])
        _band(drawn, *band, known.band.name, style.VERMILLION, "dash")
        ends += [float(v) for part in band[1:] for v in part]
    if known.widths_s is not None:
        for (name, values), (dash, symbol) in zip(known.toys.items(), _TOYS, strict=False):
            toy = _positive(Curve(name, known.widths_s, values))
            _line(drawn, toy, style.PURPLE, dash, symbol, 1.5)
            ends += [float(v) for v in toy.values]
    for one, (color, dash, symbol) in zip(curves, LOOKS, strict=False):
        _line(drawn, one, color, dash, symbol, 2.0)
    drawn.update_layout(
        xaxis=style.log_axis("width of the bins (s, log scale)", at),
        yaxis=style.log_axis("variance / mean of counts (log scale)", [*ends, 0.5, 2.0]),
    )
    note = f"The grey band holds 95% of Poisson processes of the same length ({span_text(span_s)})."
    return style.done(drawn, finding(curves, span_s), [note])


def widths(span_s: float, arrivals: int, grain_s: float | None = None) -> Floats:
    """1, 2, 5 of each decade: from a few arrivals' distance (or the grain of the stamps) to a tenth of the span."""
    if span_s <= 0 or arrivals < stats_arrivals.MIN_BINS:
        return np.zeros(0)
    least = max(grain_s or 0.0, 0.2 * span_s / arrivals, span_s / MOST_BINS)
    most = span_s / stats_arrivals.MIN_BINS
    if grain_s:
        tenfold = [grain_s * m * 10.0**e for e in range(9) for m in (1, 2, 5)]
    else:
        tenfold = [float(f"{m}e{e}") for e in range(-6, 8) for m in (1, 2, 5)]
    return np.array([width for width in tenfold if least <= width * (1 + 1e-9) and width <= most])


def curve(stream: Stream, widths_s: Floats, tick_s: float | None = None) -> Floats:
    """(widths,) indices of dispersion of a stream; NaN where they cannot be told."""
    found = (stream.dispersion(float(width_s), tick_s) for width_s in widths_s)
    return np.array([math.nan if value is None else value for value in found])


def chance(widths_s: Floats, span_s: float, normal: float = 1.96) -> tuple[Floats, Floats]:
    """Where 95% of the indices of dispersion of a Poisson process over `span_s` lie, per width.

    With another `normal` it is the share of a normal law within so many standard deviations.
    (bins - 1) times the index is nearly chi-square with bins - 1 degrees of freedom; its quantiles by Wilson and
    Hilferty (PNAS 17, 1931), whose error is below the width of a line from 10 bins on.
    """
    free = np.maximum(span_s / widths_s - 1, 1.0)
    part = 2 / (9 * free)
    low, high = (np.maximum(1 - part + z * np.sqrt(part), 0.05) ** 3 for z in (-normal, normal))
    return low, high


def finding(curves: Sequence[Curve], span_s: float) -> str:
    """One sentence: what the first curve says of the traffic, and how far the second is from it."""
    first = curves[0]
    low, high = chance(first.widths_s, span_s, FAR)
    above, below = first.values > high, first.values < low
    ends = [(_format.plain(float(first.values[i]), 3), span_text(float(first.widths_s[i]))) for i in (0, -1)]
    least, most = (_format.plain(float(v), 3) for v in (first.values.min(), first.values.max()))
    # the curve at least doubles over its last decade, which a renewal process does at its first alone
    decade = first.values[first.widths_s >= first.widths_s[-1] / 10.001]
    rises = above[-1] and len(first.widths_s) > 3 and first.values[-1] > 2 * decade[0]
    said = "Counts vary " if first.name == "arrivals" else f"Counts as {first.name} vary "
    if not np.any(above | below):
        said += "as those of a Poisson process at every width"
    elif rises:
        (narrow, narrow_s), (wide, wide_s) = ends
        said += f"{wide} times as much as Poisson's in {wide_s} and {narrow} times in {narrow_s}: the rate itself moves"
    elif np.any(above) and not np.any(below):
        said += f"up to {most} times as much as Poisson's, and no more so over long times: the bursts are short"
    elif np.any(below) and not np.any(above):
        said += f"less than those of a Poisson process, down to {least} times as much"
    else:
        said += f"{least} to {most} times as much as Poisson's, by the width of the bins"
    rest = "".join(f"; {c.name}, up to {_format.plain(float(c.values.max()), 3)} times" for c in curves[2:])
    return said + _other(curves) + rest + "."


def _other(curves: Sequence[Curve]) -> str:
    if len(curves) < 2:
        return ""
    first, second = curves[:2]
    common = np.intersect1d(first.widths_s, second.widths_s)
    pick = [np.isin(c.widths_s, common) for c in (first, second)]
    distance = stats_arrivals.curve_distance(second.values[pick[1]], first.values[pick[0]])
    if not math.isfinite(distance):
        return ""
    name = second.name
    if distance < 0.1:
        return f"; {name} agrees with it"
    return f"; {name} differs by a factor of {2**distance:.2g} in the mean over the widths"


def _positive(one: Curve) -> Curve:
    known = np.isfinite(one.values) & (one.values > 0)
    return Curve(one.name, one.widths_s[known], one.values[known])


def _line(drawn: go.Figure, one: Curve, color: str, dash: str, symbol: str, width: float) -> None:
    drawn.add_scatter(
        x=one.widths_s, y=one.values, name=one.name, mode="lines+markers", line=style.line(color, dash, width),
        marker={"symbol": symbol, "size": 7, "color": color}, hovertemplate="%{x:.4~r} s: %{y:.3r}",
    )  # fmt: skip


def _band(drawn: go.Figure, at: Floats, low: Floats, high: Floats, name: str, color: str, dash: str) -> None:
    edge = style.line(color, dash, 0)
    drawn.add_scatter(
        x=at, y=low, name=f"{name}, lower end", mode="lines", line=edge, showlegend=False, hoverinfo="skip"
    )
    drawn.add_scatter(
        x=at, y=high, name=name, mode="lines", line=edge, fill="tonexty", fillcolor=style.faint(color),
        hoverinfo="skip",
    )  # fmt: skip

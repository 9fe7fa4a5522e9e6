"""How bursty requests come: the dispersion of their counts, and the gaps between them, of a run and of traffic."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go

from harness.data.folder import Run
from harness.data.run_json import Fidelity
from harness.stats import arrivals
from reports import _data, _format
from reports.figures import style
from reports.figures.style import Look
from reports.figures.traffic import Curves, Floats, Law, Stream, span_text

MOST_BINS = 2_000_000
"""Widths with more bins than this are not drawn: a month in tenths of a second would fill the memory."""

FAR = 3.1
"""Normal value from which a curve is outside Poisson's range: at one of a dozen widths, 95% is left by chance."""

SHORT = "A dispersion curve needs arrivals over ten bins or more; take a longer stretch of the traffic."
_STYLES = (Look(style.BLUE), Look(style.VERMILLION, "dot", "diamond"), Look(style.GREEN, "dash", "square"))
_TOYS = (
    Look(style.PURPLE, "longdash", "x", 1.5),
    Look(style.PURPLE, "dashdot", "cross", 1.5),
    Look(style.PURPLE, "longdashdot", "triangle-up", 1.5),
    Look(style.PURPLE, "dot", "triangle-down", 1.5),
)


class Curve(NamedTuple):
    """A curve with its name: (widths,) indices of dispersion, NaN where unknown."""

    name: str
    widths_s: Floats
    values: Floats

    def known(self) -> "Curve":
        """Where a log axis can show it."""
        there = np.isfinite(self.values) & (self.values > 0)
        return Curve(self.name, self.widths_s[there], self.values[there])


def burstiness(run: Run) -> go.Figure | str:
    """Dispersion curves of plan and sending on two log axes, with the range in which chance puts Poisson."""
    if run.requests.num_rows == 0:
        return _data.EMPTY
    times = _data.sending(run)
    named = [("planned", times.planned), ("sent", times.sent)]
    if times.everything is not None:
        named = [*([] if times.closed else named), ("sent, follow-ups included", times.everything)]
    streams = [Stream(name, np.asarray(values, np.float64)) for name, values in named if len(values)]
    if not streams:
        return _data.EMPTY
    tick_s = run.info.fidelity.tick_s
    grain_s = None if tick_s is None else float(tick_s)
    at = widths(streams[0].span_s, streams[0].arrivals, grain_s)
    return dispersion([Curve(s.name, at, curve(s, at, grain_s)) for s in streams], streams[0].span_s)


def dispersion_of(streams: Sequence[Stream], known: Curves, grain_s: float | None) -> go.Figure | str:
    """The curves of the streams and those that the caller has, with the band of a fit and the toys."""
    own = widths(max(s.span_s for s in streams), max(s.arrivals for s in streams), grain_s)
    curves = [Curve(s.name, own, curve(s, own, grain_s)) for s in streams if s.arrivals]
    if known.widths_s is not None and known.found is not None:
        curves[:1] = [Curve(streams[0].name, known.widths_s, known.found)]
    return dispersion(curves, streams[0].span_s, known)


def dispersion(curves: Sequence[Curve], span_s: float, known: Curves | None = None) -> go.Figure | str:
    """Log-log: the curves, Poisson at 1 with the range in which chance puts 95% of it, a fit's band, toys."""
    known = known or Curves()
    curves = [c for c in (c.known() for c in curves) if len(c.widths_s)]
    if not curves:
        return SHORT
    drawn = style.new(420)
    ends = [float(v) for c in curves for v in c.values]
    at = np.unique(np.concatenate([c.widths_s for c in curves]))
    _band(drawn, at, chance(at, span_s), "Poisson, 95%", style.GREY)
    look = Look(style.GREY, "longdash", width=1.0)
    style.curve(drawn, at, np.ones(len(at)), "Poisson is 1", look, None, mode="lines")
    shown = list(zip(curves, _STYLES, strict=False))
    if known.widths_s is not None:
        if known.band is not None:
            inside = np.isfinite(known.band.low) & np.isfinite(known.band.high) & (known.band.low > 0)
            both = known.band.low[inside], known.band.high[inside]
            _band(drawn, known.widths_s[inside], both, known.band.name, style.VERMILLION)
            ends += [float(v) for end in both for v in end]
        toys = [Curve(name, known.widths_s, values).known() for name, values in known.toys.items()]
        shown = [*zip(toys, _TOYS, strict=False), *shown]
    for one, look in shown:
        style.curve(drawn, one.widths_s, one.values, one.name, look, "%{x:.4~r} s: %{y:.3r}", size=7)
        ends += [float(v) for v in one.values]
    style.axes(
        drawn,
        style.log_axis("width of the bins (s, log scale)", at),
        style.log_axis("variance / mean of counts (log scale)", [*ends, 0.5, 2.0]),
    )
    note = f"The grey band holds 95% of Poisson processes of the same length ({span_text(span_s)})."
    return style.done(drawn, dispersion_finding(curves, span_s), [note])


def _band(drawn: go.Figure, at: Floats, ends: tuple[Floats, Floats], name: str, color: str) -> None:
    style.band(drawn, at, ends, (f"{name}, lower end", name), color, showlegend=True)


def widths(span_s: float, n: int, grain_s: float | None = None) -> Floats:
    """1, 2, 5 of each decade: from a few arrivals' distance (or the grain of the stamps) to a tenth of the span."""
    if span_s <= 0 or n < arrivals.MIN_BINS:
        return np.zeros(0)
    least = max(grain_s or 0.0, 0.2 * span_s / n, span_s / MOST_BINS)
    most = span_s / arrivals.MIN_BINS
    if grain_s:
        tenfold = [grain_s * m * 10.0**e for e in range(9) for m in (1, 2, 5)]
    else:
        tenfold = [float(f"{m}e{e}") for e in range(-6, 8) for m in (1, 2, 5)]
    return np.array([width for width in tenfold if least <= width * (1 + 1e-9) and width <= most])


def curve(stream: Stream, widths_s: Floats, tick_s: float | None = None) -> Floats:
    """(widths,) indices of dispersion of a stream; NaN where they are unknown."""
    found = (stream.dispersion(float(width_s), tick_s) for width_s in widths_s)
    return np.array([math.nan if value is None else value for value in found])


def chance(widths_s: Floats, span_s: float, normal: float = 1.96) -> tuple[Floats, Floats]:
    """Where 95% of the indices of dispersion of a Poisson process over `span_s` lie, per width.

    With another `normal` it is the share of a normal law within so many standard deviations.
    (bins - 1) times the index is nearly chi-square with bins - 1 degrees of freedom; its quantiles by Wilson and
    Hilferty (PNAS 17, 1931), whose error is below the width of a line from 10 bins on.
    """
    free = np.maximum(span_s / widths_s - 1, 1.0)
    portion = 2 / (9 * free)
    low, high = (np.maximum(1 - portion + z * np.sqrt(portion), 0.05) ** 3 for z in (-normal, normal))
    return low, high


def dispersion_finding(curves: Sequence[Curve], span_s: float) -> str:
    """What the first curve says of the traffic, and how far the others are from it."""
    first = curves[0]
    low, high = chance(first.widths_s, span_s, FAR)
    above, below = first.values > high, first.values < low
    (narrow, narrow_s), (wide, wide_s) = (
        (_format.plain(float(first.values[i]), 3), span_text(float(first.widths_s[i]))) for i in (0, -1)
    )
    least, most = (_format.plain(float(v), 3) for v in (first.values.min(), first.values.max()))
    # the curve at least doubles over its last decade, which a renewal process does at its first alone
    decade = first.values[first.widths_s >= first.widths_s[-1] / 10.001]
    rises = above[-1] and len(first.widths_s) > 3 and first.values[-1] > 2 * decade[0]
    if not np.any(above | below):
        found = ["as of a Poisson process at every width"]
    elif rises:
        found = [f"{wide} times Poisson's in {wide_s}", f"{narrow} times in {narrow_s}", "so the rate itself moves"]
    elif not np.any(below):
        found = [f"up to {most} times Poisson's", "no more so over long times, so the bursts are short"]
    elif not np.any(above):
        found = [f"less than Poisson's, down to {least} times"]
    else:
        found = [f"{least} to {most} times Poisson's, by the width of the bins"]
    values = {"Variance of counts" if first.name == "arrivals" else f"Variance of counts as {first.name}": found}
    for number, other in enumerate(curves[1:]):
        distance = _distance(first, other) if number == 0 else math.nan
        differs = "agrees with it" if distance < 0.1 else f"differs by a factor of {2**distance:.2g} in the mean"
        up_to = f"up to {_format.plain(float(other.values.max()), 3)} times Poisson's" if number else ""
        values[other.name] = [differs if math.isfinite(distance) else "", up_to]
    return style.finding(values)


def _distance(first: Curve, second: Curve) -> float:
    """Mean distance of the logarithms (base 2) over the widths that both have."""
    common = np.intersect1d(first.widths_s, second.widths_s)
    pick = [np.isin(c.widths_s, common) for c in (first, second)]
    return float(arrivals.curve_distance(second.values[pick[1]], first.values[pick[0]]))


CLOSED = "No gaps are drawn: in a closed loop requests come when answers come, so their gaps are those of the system."
NO_TIMES = "Gaps are not drawn: only counts per bin were kept of these arrivals, not their times."
FEW = "Gaps are not drawn: there are fewer than ten between different instants."
FEWEST = 10
POINTS = 120
MOST = 1000
FLAT = 0.95
"""Gaps that more than this share are longer than lie left of the picture: the curve is flat there."""

WIDE = 10_000
"""The picture reaches from the longest gap down to this part of it at most: shorter ones make no difference to a
server that needs milliseconds for a step."""


class Tail(NamedTuple):
    """(points,) gaps, rising, and the share of gaps that are longer than each."""

    name: str
    gaps: Floats
    longer: Floats


def gaps(run: Run) -> go.Figure | str:
    """Share of gaps that are longer, on two log axes: in seconds, or in operational time where the law is of that."""
    if run.requests.num_rows == 0:
        return _data.EMPTY
    fidelity, times = run.info.fidelity, _data.sending(run)
    if times.closed:
        return CLOSED
    if fidelity.tick_s is not None:
        return on_grid(float(fidelity.tick_s))
    law, distance = _law(fidelity), "at an unknown distance from their declared law"
    if fidelity.ks is not None and fidelity.ks_p is not None:
        probability = _format.probability(fidelity.ks_p)
        distance = f"{_format.number(fidelity.ks, 2)} from their declared law (KS, p {probability})"
    if law is not None and fidelity.law == "operational":
        finding = style.finding({"Gaps without the declared changes of the rate": [distance]})
        return tails([law[0]], law[1], finding, [], operational=True)
    found = _longer([("planned", np.diff(times.planned)), ("sent", np.diff(times.sent))])
    if not found:
        return FEW
    drawn = [survival(name, values) for name, values in found]
    end = distance if law is not None else "no law declared" if fidelity.law == "none" else ""
    finding = style.finding({"Gaps": [*moments(found[0][1]), end]})
    total, kept = sum(len(values) for _, values in found), sum(len(t.gaps) for t in drawn)
    note = style.reduced(total, kept, "gaps", style.RANKS)
    return tails(drawn, None if law is None else law[1], finding, [note], operational=False)


def _law(fidelity: Fidelity) -> tuple[Tail, Tail] | None:
    """What was drawn and what was declared, where both were stored."""
    found = fidelity.gaps
    if found is None or not found.at or not len(found.at) == len(found.drawn) == len(found.declared):
        return None
    at, drawn, declared = (np.asarray(values, np.float64) for values in (found.at, found.drawn, found.declared))
    return Tail("planned", at, drawn), Tail("declared law", at, declared)


def _longer(found: Sequence[tuple[str, Floats]]) -> list[tuple[str, Floats]]:
    """Those with enough gaps between different instants."""
    return [(name, values) for name, values in found if np.sum(values > 0) >= FEWEST]


def gaps_of(streams: Sequence[Stream], law: Law | None, grain_s: float | None) -> go.Figure | str:
    """Gaps of each stream, in operational time where the law is one of that."""
    if grain_s:
        return on_grid(grain_s)
    timed = [(stream.name, stream.times_s) for stream in streams if stream.times_s is not None]
    if not timed:
        return NO_TIMES
    clock = None if law is None else law.operational_time
    found = _longer([(name, np.diff(times_s if clock is None else clock(times_s))) for name, times_s in timed])
    if not found:
        return FEW
    drawn = [survival(name, values) for name, values in found]
    first, declared, distance = found[0][1], None, ""
    if law is not None:
        declared = Tail(law.name, at := spaced(first), 1 - np.asarray(law.cdf(at), np.float64))
        ks, p = arrivals.kolmogorov_smirnov(first, law.cdf, least=arrivals.SHORTEST_S)
        distance = f"KS distance from {law.name} {_format.number(ks, 2)} (p {_format.probability(p)})"
    what = "Gaps in operational time (mean 1)" if clock is not None else "Gaps"
    finding = style.finding({what: [*moments(first)[0 if clock is None else 2 :], distance]})
    note = style.reduced(len(first), len(drawn[0].gaps), "gaps", style.RANKS)
    return tails(drawn, declared, finding, [note], operational=clock is not None)


def on_grid(tick_s: float) -> str:
    """Why there is no picture of gaps between ticks."""
    return (
        f"Gaps are not drawn: the stamps stand on a grid of {_format.limit(float(f'{tick_s:.3g}'))}, so a gap is a "
        "number of ticks and not a time; the dispersion tells how bursty the traffic is."
    )


def moments(values: Floats) -> list[str]:
    """Median, 99th percentile and coefficient of variation of gaps in seconds."""
    middle, high = (_format.seconds(float(v)) for v in np.quantile(values, [0.5, 0.99]))
    cv = f"coefficient of variation {float(values.std() / values.mean()):.2f} (Poisson: 1)"
    return [f"p50 {middle}", f"p99 {high}", cv]


def tails(
    found: Sequence[Tail], declared: Tail | None, finding: str, notes: Sequence[str], *, operational: bool
) -> go.Figure:
    """Log-log tails of gaps in seconds or in operational time; `declared` is that of the law, if there is one."""
    drawn = style.new(400)
    least = min(float(tail.longer[tail.longer > 0].min()) for tail in found)
    longest = max(float(tail.gaps[-1]) for tail in found)
    near = max(longest / WIDE, min(float(np.interp(-FLAT, -tail.longer, tail.gaps)) for tail in found))
    if declared is not None:
        inside = (declared.longer > least / 3) & (declared.gaps > near / 2)
        _tail(drawn, declared, inside, Look(style.GREY, "dash", width=3.0), "")
    for tail, look in zip(found, _STYLES, strict=False):
        _tail(drawn, tail, (tail.longer > 0) & (tail.gaps > near / 2), look, "hv")
    unit = "gap in operational time (1 is the mean, log scale)" if operational else "gap (s, log scale)"
    ends = [float(v) for tail in found for v in tail.gaps[(tail.gaps >= near) & (tail.gaps > 0)]]
    y = style.log_axis("gaps that are longer (%, log scale)", [100.0, least * 100])
    style.axes(drawn, style.log_axis(unit, ends), y)
    return style.done(drawn, finding, notes)


def _tail(drawn: go.Figure, tail: Tail, inside: np.ndarray, look: Look, step: str) -> None:
    hover = "longer than %{x:.3r}: %{y:.3r}%"
    style.curve(drawn, tail.gaps[inside], tail.longer[inside] * 100, tail.name, look, hover, mode="lines", step=step)


def survival(name: str, values: Floats) -> Tail:
    """The tail of gaps: all of them, or even ranks with both ends whole."""
    ordered = np.sort(values)
    kept = style.ranks(len(ordered), MOST)
    return Tail(name, ordered[kept], 1 - (kept + 1) / len(ordered))


def spaced(values: Floats) -> Floats:
    """(points,) evenly spaced in their logarithm, over the gaps and somewhat beyond."""
    positive = values[values > 0]
    return np.geomspace(float(positive.min()), float(positive.max()) * 1.5, POINTS)

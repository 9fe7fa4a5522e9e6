"""Gaps between arrivals: the share that is longer, on two log axes, against the declared law."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go

from harness.stats.arrivals import SHORTEST_S, kolmogorov_smirnov
from reports import _format
from reports.figures import _reduce
from reports.figures import _style as style
from reports.figures._traffic import Floats, Law, Stream

FEWEST = 10
LOOKS = ((style.BLUE, "solid"), (style.VERMILLION, "dot"))
NO_TIMES = "Gaps are not drawn: only counts per bin were kept of these arrivals, not their times."
FEW = "Gaps are not drawn: there are fewer than ten between different instants."
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


def of_traffic(streams: Sequence[Stream], law: Law | None, grain_s: float | None) -> go.Figure | str:
    """Gaps of each stream, in operational time where the law is one of that."""
    if grain_s:
        return on_grid(grain_s)
    timed = [(stream.name, stream.times_s) for stream in streams if stream.times_s is not None]
    if not timed:
        return NO_TIMES
    clock = None if law is None else law.operational_time
    gaps = [(name, np.diff(times_s if clock is None else clock(times_s))) for name, times_s in timed]
    gaps = [(name, found) for name, found in gaps if np.sum(found > 0) >= FEWEST]
    if not gaps:
        return FEW
    tails = [survival(name, found) for name, found in gaps]
    declared, distance = None, ""
    if law is not None:
        declared = Tail(law.name, at := spaced(gaps[0][1]), 1 - np.asarray(law.cdf(at), np.float64))
        ks, p = kolmogorov_smirnov(gaps[0][1], law.cdf, least=SHORTEST_S)
        distance = f"; KS distance from {law.name} {_format.number(ks, 2)} (p {_format.probability(p)})"
    said = told(gaps[0][1], operational=clock is not None) + distance + "."
    reduced = _reduce.note(len(gaps[0][1]), len(tails[0].gaps), "gaps", _reduce.RANKS)
    return figure(tails, declared, said, [reduced], operational=clock is not None)


def on_grid(tick_s: float) -> str:
    """Why there is no picture of gaps between ticks."""
    return (
        f"Gaps are not drawn: the stamps stand on a grid of {_format.limit(float(f'{tick_s:.3g}'))}, so a gap is a "
        "number of ticks and not a time; the dispersion tells how bursty the traffic is."
    )


def figure(
    tails: Sequence[Tail], declared: Tail | None, said: str, notes: Sequence[str], *, operational: bool
) -> go.Figure:
    """Log-log tails of gaps in seconds or in operational time; `declared` is that of the law, if there is one."""
    drawn = style.new(400)
    least = min(float(tail.longer[tail.longer > 0].min()) for tail in tails)
    longest = max(float(tail.gaps[-1]) for tail in tails)
    near = max(longest / WIDE, min(float(np.interp(-FLAT, -tail.longer, tail.gaps)) for tail in tails))
    if declared is not None:
        inside = (declared.longer > least / 3) & (declared.gaps > near / 2)
        _line(drawn, declared, inside, style.line(style.GREY, "dash", 3))
    for tail, (color, dash) in zip(tails, LOOKS, strict=False):
        inside = (tail.longer > 0) & (tail.gaps > near / 2)
        _line(drawn, tail, inside, {**style.line(color, dash), "shape": "hv"})
    unit = "gap in operational time (1 is the mean, log scale)" if operational else "gap (s, log scale)"
    ends = [float(v) for tail in tails for v in tail.gaps[(tail.gaps >= near) & (tail.gaps > 0)]]
    drawn.update_layout(
        xaxis=style.log_axis(unit, ends),
        yaxis=style.log_axis("gaps that are longer (%, log scale)", [100.0, least * 100]),
    )
    return style.done(drawn, said, notes)


def survival(name: str, gaps: Floats) -> Tail:
    """The tail of gaps: all of them, or even ranks with both ends whole."""
    ordered = np.sort(gaps)
    kept = _reduce.ranks(len(ordered), MOST)
    return Tail(name, ordered[kept], 1 - (kept + 1) / len(ordered))


def spaced(gaps: Floats) -> Floats:
    """(points,) evenly spaced in their logarithm, over the gaps and somewhat beyond."""
    positive = gaps[gaps > 0]
    return np.geomspace(float(positive.min()), float(positive.max()) * 1.5, POINTS)


def told(gaps: Floats, *, operational: bool) -> str:
    """What the gaps are, without a stop at the end."""
    middle, high = (float(v) for v in np.quantile(gaps, [0.5, 0.99]))
    cv = float(gaps.std() / gaps.mean())
    if operational:
        return f"In operational time, where the mean is 1, gaps have a coefficient of variation of {cv:.2f}"
    return (
        f"Half of the gaps are below {_format.seconds(middle)} and 1% above {_format.seconds(high)}; their "
        f"coefficient of variation is {cv:.2f} (Poisson: 1)"
    )


def _line(drawn: go.Figure, tail: Tail, inside: np.ndarray, line: dict[str, object]) -> None:
    drawn.add_scatter(
        x=tail.gaps[inside], y=tail.longer[inside] * 100, name=tail.name, mode="lines", line=line,
        hovertemplate="longer than %{x:.3r}: %{y:.3r}%",
    )  # fmt: skip

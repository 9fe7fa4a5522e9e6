"""What arrivals promise, their rate and the law of their gaps, and how far a schedule is from it."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from harness.burstiness import Floats, spread

GapCdf: TypeAlias = Callable[[np.ndarray], np.ndarray]
OperationalTime: TypeAlias = Callable[[np.ndarray], np.ndarray]

MIN_GAPS = 10
"""Fewest gaps that are compared with a law."""

SHORTEST_S = 1e-6
"""Gaps below this are only counted, not told apart: a very bursty law (gamma with cv 4) puts up to half of its gaps
there, where a running sum of times in float64 rounds them away and no network can tell them apart."""

POINTS = 32
"""Points at which the law and the gaps are stored for the picture."""

STRETCHES = 60
"""Stretches of time in which the declared rate is stored for the picture."""

MIN_ARRIVALS = 100
"""Fewest arrivals whose rate is judged."""


@dataclass(frozen=True, slots=True)
class Law:
    """What was declared of the arrivals.

    `rate_rps` is their mean rate in the long run; None where all come at one instant, or when answers come.
    `gap_cdf` is the probability that a gap is at most so long: in seconds, or in operational time where there is an
    `operational_time` (s -> expected arrivals), which takes a changing rate out of the gaps. `known` is False where
    the workload is gone, so that it cannot be told whether there was a law, or a rate that changes: then the rate is
    not judged. A schedule shorter than `settles_s` need not have the mean rate, because that rate is itself drawn at
    random.
    """

    rate_rps: float | None
    gap_cdf: GapCdf | None = None
    operational_time: OperationalTime | None = None
    known: bool = True
    settles_s: float = 0.0


def judged(planned_s: Floats, law: Law) -> dict[str, Any]:
    """How the drawn times (s, sorted) agree with the law, fit for JSON; None for what cannot be told.

    `law` says what was declared: "clock", "operational", "none" or "unknown". `ks` and `ks_p` compare the gaps with
    it. `gaps` holds both at some points. `expected_rps` is the declared rate over the time of this schedule, where it
    may be another than the long-run mean, `rate_curve` its course, and `rate_z` how many standard errors the drawn
    rate is from it.
    """
    facts: dict[str, Any] = {"law": _kind(law), "ks": None, "ks_p": None, "gaps": None}
    facts |= {"expected_rps": None, "rate_curve": None, "rate_z": None}
    if len(planned_s) < 2 or planned_s[-1] <= planned_s[0]:
        return facts
    along = None if law.operational_time is None else np.asarray(law.operational_time(planned_s), np.float64)
    facts |= _against(planned_s, along, law.gap_cdf)
    span_s = float(planned_s[-1] - planned_s[0])
    expected = law.rate_rps * span_s if law.rate_rps else None
    if law.operational_time is not None and along is not None:
        expected = float(along[-1] - along[0])
        facts |= {"expected_rps": expected / span_s, "rate_curve": _course(law.operational_time, float(planned_s[-1]))}
    if law.known and expected and len(planned_s) >= MIN_ARRIVALS and span_s >= law.settles_s:
        facts["rate_z"] = (len(planned_s) - 1 - expected) / math.sqrt(_dispersion_of_all(planned_s) * expected)
    return facts


def kolmogorov_smirnov(values: Floats, cdf: GapCdf, *, least: float = 0.0) -> tuple[float, float]:
    """Largest distance between the values and their law, and how probable one as large is if the law holds.

    The two distribution functions are compared at values from `least` on; smaller ones count, but where they lie
    below it makes no difference (and the probability is an upper bound). The probability is Kolmogorov's limit with
    the correction of Stephens (JRSS B 32, 1970) for finite samples, within 0.03 of the exact one from 10 values on,
    and closer where it is small.
    """
    from scipy.special import kolmogorov  # heavy: only where a law is declared

    n = len(values)
    shown = np.maximum(np.sort(values), least)  # those below stand at `least`, where both functions are compared
    at = np.asarray(cdf(shown), np.float64)
    above, below = np.arange(1, n + 1) / n - at, at - np.arange(n) / n
    distance = float(max(above.max(), below[shown > least].max(initial=0.0)))
    root = math.sqrt(n)
    return distance, float(kolmogorov((root + 0.12 + 0.11 / root) * distance))


def _kind(law: Law) -> str:
    if not law.known:
        return "unknown"
    if law.gap_cdf is None:
        return "none"
    return "clock" if law.operational_time is None else "operational"


def _against(planned_s: Floats, along: Floats | None, cdf: GapCdf | None) -> dict[str, Any]:
    gaps = np.diff(planned_s if along is None else along)
    if cdf is None or len(gaps) < MIN_GAPS or gaps.max() <= 0:
        return {}
    per_s = 1.0 if along is None else (along[-1] - along[0]) / (planned_s[-1] - planned_s[0])
    ks, p = kolmogorov_smirnov(gaps, cdf, least=SHORTEST_S * per_s)
    return {"ks": ks, "ks_p": p, "gaps": _curves(gaps, cdf)}


def _curves(gaps: Floats, cdf: GapCdf) -> dict[str, list[float]]:
    """Shares of gaps that are longer, as drawn and as declared, at points evenly spaced in their logarithm."""
    ordered = np.sort(gaps)
    low = max(float(np.quantile(ordered, 0.02)), float(ordered[-1]) * 1e-6)
    at = np.geomspace(low, float(ordered[-1]), POINTS)
    drawn = 1 - np.searchsorted(ordered, at, side="right") / len(ordered)
    declared = 1 - np.asarray(cdf(at), np.float64)
    return {name: _short(values) for name, values in (("at", at), ("drawn", drawn), ("declared", declared))}


def _course(operational_time: OperationalTime, end_s: float) -> dict[str, Any] | None:
    """The declared rate in equal stretches from 0 to `end_s`; None where it does not change."""
    edges = np.linspace(0.0, end_s, STRETCHES + 1)
    rps = np.diff(np.asarray(operational_time(edges), np.float64)) / np.diff(edges)
    steady = bool(np.ptp(rps) <= 1e-6 * rps.max())
    return None if steady else {"end_s": end_s, "rps": _short(rps)}


def _short(values: Floats) -> list[float]:
    return [float(f"{value:.5g}") for value in values]


def _dispersion_of_all(times_s: Floats) -> float:
    """Index of dispersion at the length of the whole schedule, at least 1: what its number of arrivals varies by.

    It is measured at a twentieth of the schedule and carried on to the whole with the slope that it has over the
    widths below (between 0, as in a renewal process, and 1, as where the rate has a long memory).
    """
    places = (times_s - times_s[0]) / (times_s[-1] - times_s[0])
    bins = (20, 40, 80, 160)
    found = [spread(np.bincount(np.minimum((places * n).astype(np.int64), n - 1), minlength=n)) for n in bins]
    known = [(n, value) for n, value in zip(bins, found, strict=True) if value]
    if len(known) < len(bins):
        return 1.0
    logs = np.log([value for _, value in known])
    slope = float(np.polyfit(-np.log(bins), logs, 1)[0])
    whole: float = np.exp(logs[0]) * bins[0] ** min(max(slope, 0.0), 1.0)
    return max(1.0, float(whole))

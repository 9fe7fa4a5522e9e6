"""How bursty arrivals are: dispersion of counts, their memory, and the spread of gaps. Times in seconds, sorted.

A test of gaps alone cannot tell real traffic from Poisson (their distance on the Azure trace is 0.02), because the
burstiness of real traffic lies in its rate. The index of dispersion over several widths and the autocorrelation of
counts can.

What arrivals promise, their rate and the law of their gaps, and how far a schedule is from it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from harness.data.lists import BLOCK
from harness.data.run_json import Fidelity, RateCurve

Floats: TypeAlias = npt.NDArray[np.float64]

WIDTHS_S = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0)
"""Bin widths at which two dispersion curves are compared."""

MIN_BINS = 10
"""Fewest bins of an index of dispersion; with 10 its standard error is already about 0.5 for Poisson."""
LEAST_GAPS = 10
"""Gaps below which a window has no coefficient of variation."""
TICK = 0.005
"""Stamps sit on ticks if the steps between them are whole multiples of one, to this share of it: the recorded ticks
of 3 s of the Mooncake trace are 2.997 to 3.003 s long."""
SHARED = 0.01
"""Fewest gaps that are 0 where stamps sit on ticks; without shared stamps there is no tick to be seen."""
LEAST_TICK_S = 0.001
GapCdf: TypeAlias = Callable[[np.ndarray], np.ndarray]
OperationalTime: TypeAlias = Callable[[np.ndarray], np.ndarray]
MIN_GAPS = 10
"""Fewest gaps that are compared with a law."""
SHORTEST_S = 1e-6
"""Gaps below this are only counted, not distinguished: a very bursty law (gamma with cv 4) puts up to half of its gaps
there, where a running sum of times in float64 rounds them away and no network preserves them."""
STRETCHES = 60
"""Stretches of time in which the declared rate is stored for the picture."""
POISSON_CV2 = 1.02
"""Squared coefficient of variation of gaps up to which arrivals are no burstier than Poisson's, with the error of the
integral."""
MIN_ARRIVALS = 100
"""Fewest arrivals whose rate is judged."""


@dataclass(frozen=True, slots=True, eq=False)
class Counts:
    """Arrivals per bin of equal width; only bins that have some are held, so that memory does not grow with the span.

    `index` (K,) rises, `number` (K,) is above 0; there are `bins` bins in all.
    """

    index: npt.NDArray[np.int64]
    number: npt.NDArray[np.int64] | Floats
    bins: int

    @classmethod
    def of(cls, per_bin: npt.NDArray[np.int64] | Floats) -> "Counts":
        """The same as an array (bins,) holds it."""
        index = np.flatnonzero(per_bin)
        return cls(index, per_bin[index], len(per_bin))

    def filled(self) -> npt.NDArray[np.int64]:
        """(bins,) all bins, the empty ones as well."""
        dense = np.zeros(self.bins, np.int64)
        dense[self.index] = self.number
        return dense

    @property
    def mean(self) -> float:
        return float(self.number.sum()) / self.bins if self.bins else 0.0

    @property
    def squares(self) -> float:
        """Sum of the squares of what each bin has more or less than the mean."""
        more = self.number - self.mean
        return float(more @ more) + (self.bins - len(self.index)) * self.mean**2


def counts(times_s: Floats, width_s: float, tick_s: float | None = None) -> Counts:
    """Arrivals per bin of `width_s`: the whole bins from the first arrival to the last.

    Stamps that stand on ticks are counted in bins of whole ticks about as wide.
    """
    if tick_s is not None:
        per, ticks = max(1, round(width_s / tick_s)), per_tick(times_s, tick_s)
        return Counts.of(ticks[: len(ticks) // per * per].reshape(-1, per).sum(axis=1))
    if len(times_s) == 0:
        return Counts.of(np.zeros(0, np.int64))
    bins = int((times_s[-1] - times_s[0]) / width_s)

    def bin_of(rows: slice | npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return np.asarray((times_s[rows] - times_s[0]) / width_s).astype(np.int64)  # which rises as the times do

    rows = range(0, len(times_s), BLOCK)
    begins = np.concatenate([[0], *(i + 1 + np.flatnonzero(np.diff(bin_of(slice(i, i + BLOCK + 1)))) for i in rows)])
    index = bin_of(begins)
    whole = int(np.searchsorted(index, bins))  # what comes after is not a bin as wide as the others
    return Counts(index[:whole], np.diff(begins, append=len(times_s))[:whole], bins)


def dispersion(times_s: Floats, width_s: float, tick_s: float | None = None) -> float | None:
    """Index of dispersion of counts: variance by mean of the arrivals per bin (Poisson: 1 at every width).

    None with fewer than 10 whole bins. `tick_s` as in `counts`.
    """
    return spread(counts(times_s, width_s, tick_s))


def spread(per_bin: Counts | npt.NDArray[np.int64] | npt.NDArray[np.float64]) -> float | None:
    """Variance by mean of counts; None with fewer than 10 of them, or where nothing was counted."""
    counts = per_bin if isinstance(per_bin, Counts) else Counts.of(per_bin)
    if counts.bins < MIN_BINS or not len(counts.index):
        return None
    return counts.squares / (counts.bins - 1) / counts.mean


def dispersion_curve(
    times_s: Floats, widths_s: Sequence[float] | Floats = WIDTHS_S, tick_s: float | None = None
) -> Floats:
    """(widths,) indices of dispersion; NaN where there are fewer than 10 bins."""
    indices = (dispersion(times_s, float(width_s), tick_s) for width_s in widths_s)
    return np.array([math.nan if value is None else value for value in indices])


def curve_distance(found: Floats, wanted: Floats) -> float:
    """Root mean square of log2(found / wanted) over the widths at which both are known; NaN if there is none."""
    valid = np.isfinite(found) & np.isfinite(wanted) & (found > 0) & (wanted > 0)
    if not valid.any():
        return math.nan
    return float(np.sqrt(np.mean(np.log2(found[valid] / wanted[valid]) ** 2)))


def autocorrelation(values: Counts | npt.NDArray[np.float64] | npt.NDArray[np.int64], lag: int = 1) -> float | None:
    """Correlation of a series with itself `lag` steps later (biased estimator); None if it is constant or short."""
    counts = values if isinstance(values, Counts) else Counts.of(values)
    index, mean, squares, pairs = counts.index, counts.mean, counts.squares, counts.bins - lag
    if pairs < MIN_BINS or squares == 0:
        return None
    # a pair of bins adds (a - mean)(b - mean): of two empty ones mean**2, of one that has some -mean (a - mean)
    later = np.minimum(np.searchsorted(index, index + lag), len(index) - 1)
    first = np.flatnonzero(index[later] == index + lag)
    later = later[first]
    more = counts.number - mean
    begins, ends = more[: np.searchsorted(index, pairs)], more[np.searchsorted(index, lag) :]
    both = more[[first, later]]
    single = begins.sum() + ends.sum() - both[0].sum() - both[1].sum()
    empty = pairs - len(begins) - len(ends) + len(first)
    return float((both[0] @ both[1] - mean * single + empty * mean**2) / squares)


def gap_cv(times_s: Floats) -> float | None:
    """Standard deviation by mean of the gaps; None with fewer than two gaps or all at one instant."""
    gaps_s = np.diff(times_s)
    if len(gaps_s) < 2 or (mean_s := gaps_s.mean()) <= 0:
        return None
    gaps_s -= mean_s
    return math.sqrt(float(np.square(gaps_s, out=gaps_s).sum()) / (len(gaps_s) - 1)) / float(mean_s)


def window_cvs(times_s: Floats, width_s: float) -> Floats:
    """(windows,) `gap_cv` inside each window of `width_s` that has at least `LEAST_GAPS` gaps."""
    if len(times_s) == 0:
        return np.zeros(0)
    window = ((times_s - times_s[0]) // width_s).astype(np.int64)
    parts = np.split(times_s, np.flatnonzero(np.diff(window)) + 1)
    cvs = [gap_cv(part) for part in parts if len(part) > LEAST_GAPS]
    return np.array([value for value in cvs if value is not None])


def distance(one: Floats, other: Floats) -> float:
    """Two-sample Kolmogorov-Smirnov distance of two sorted series: the largest between their shares at or below."""
    pooled = np.concatenate([one, other])
    below = [np.searchsorted(values, pooled, side="right") / len(values) for values in (one, other)]
    return float(np.abs(below[0] - below[1]).max())


def tick_s(times_s: Floats) -> float | None:
    """The tick (s) on which several arrivals stand at a time, such as 3 s; None where they do not, or below 1 ms."""
    steps = np.diff(times_s)
    steps = steps[steps > 0]
    if len(steps) < MIN_BINS - 1 or len(steps) >= (1 - SHARED) * (len(times_s) - 1):
        return None
    least = float(np.quantile(steps, 0.01))
    times = np.round(steps / least)
    if least < LEAST_TICK_S or (times < 1).any() or (np.abs(steps / least - times) > TICK * times).any():
        return None
    return float(steps.sum() / times.sum())  # the mean: with it ticks do not drift away from the stamps


def per_tick(times_s: Floats, width_s: float) -> npt.NDArray[np.int64]:
    """(ticks,) arrivals on each tick of `width_s`, from the first to the last; each counts for the nearest one."""
    if len(times_s) == 0:
        return np.zeros(0, np.int64)
    return np.bincount(np.round((times_s - times_s[0]) / width_s).astype(np.int64))


@dataclass(frozen=True, slots=True)
class Law:
    """What was declared of the arrivals.

    `rate_rps` is their mean rate in the long run; None where all come at one instant, or when answers come.
    `gap_cdf` is the probability that a gap is at most so long: in seconds, or in operational time where there is an
    `operational_time` (s -> expected arrivals), which takes a changing rate out of the gaps. `known` is False where
    the workload is gone, so that it is unknown whether there was a law, or a rate that changes: then the rate is
    not judged. A schedule shorter than `settles_s` need not have the mean rate, because that rate is itself drawn at
    random.
    """

    rate_rps: float | None
    gap_cdf: GapCdf | None = None
    operational_time: OperationalTime | None = None
    known: bool = True
    settles_s: float = 0.0

    @property
    def has_bursts(self) -> bool:
        """Whether requests may come in bursts: not where gaps of one law vary no more than those of Poisson arrivals.

        What was drawn does not tell: a burst may be so rare that a run has none.
        """
        if self.gap_cdf is None or self.operational_time is not None or not self.rate_rps:
            return True
        gaps_s = np.geomspace(1e-4, 1e3, 2000) / self.rate_rps
        square = np.trapezoid(2 * gaps_s * (1 - np.asarray(self.gap_cdf(gaps_s), np.float64)), gaps_s)
        return bool(square * self.rate_rps**2 - 1 > POISSON_CV2)


def judged(planned_s: Floats, law: Law) -> Fidelity:
    """How the drawn times (s, sorted) agree with the law; the sending plays no part."""
    fidelity = Fidelity(law=_kind(law))
    if len(planned_s) < 2 or planned_s[-1] <= planned_s[0]:
        return fidelity
    along = None if law.operational_time is None else np.asarray(law.operational_time(planned_s), np.float64)
    changes = _against(planned_s, along, law.gap_cdf)
    span_s = float(planned_s[-1] - planned_s[0])
    expected = law.rate_rps * span_s if law.rate_rps else None
    if law.operational_time is not None and along is not None:
        expected = float(along[-1] - along[0])
        changes |= {
            "expected_rps": expected / span_s,
            "rate_curve": _course(law.operational_time, float(planned_s[-1])),
        }
    if law.known and expected and len(planned_s) >= MIN_ARRIVALS and span_s >= law.settles_s:
        changes["rate_z"] = (len(planned_s) - 1 - expected) / math.sqrt(_dispersion_of_all(planned_s) * expected)
    return msgspec.structs.replace(fidelity, **changes)


def kolmogorov_smirnov(values: Floats, cdf: GapCdf, *, least: float = 0.0) -> tuple[float, float]:
    """Largest distance between the values and their law, and how probable one as large is if the law holds.

    The two distribution functions are compared at values from `least` on; smaller ones count, but where they lie
    below it makes no difference (and the probability is an upper bound). The probability is Kolmogorov's limit with
    the correction of Stephens (JRSS B 32, 1970) for finite samples, within 0.03 of the exact one from 10 values on,
    and closer where it is small.
    """
    n = len(values)
    distance, ordered = 0.0, np.sort(values)
    for start in range(0, n, BLOCK):
        # those below stand at `least`, where both functions are compared
        clipped = np.maximum(ordered[start : start + BLOCK], least)
        expected, place = np.asarray(cdf(clipped), np.float64), start + np.arange(len(clipped))
        above, below = (place + 1) / n - expected, expected - place / n
        distance = max(distance, float(above.max()), float(below[clipped > least].max(initial=0.0)))
    root = math.sqrt(n)
    return distance, _kolmogorov((root + 0.12 + 0.11 / root) * distance)


def _kolmogorov(x: float) -> float:
    """How often Kolmogorov's limit exceeds x: of its two series the one that needs few terms.

    Note: scipy.special has it too, and takes a tenth of the time of a short command to load.
    """
    if x >= 1:
        return 2 * sum(math.exp(-2 * (k * x) ** 2) * (1 if k % 2 else -1) for k in range(1, 6))
    terms = (math.exp(-(((2 * k - 1) * math.pi / x) ** 2) / 8) for k in range(1, 5))
    return 1 - math.sqrt(2 * math.pi) / x * sum(terms) if x > 0.01 else 1.0


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
    return {"ks": ks, "ks_p": p}


def _course(operational_time: OperationalTime, end_s: float) -> RateCurve | None:
    """The declared rate in equal stretches from 0 to `end_s`; None where it does not change."""
    edges = np.linspace(0.0, end_s, STRETCHES + 1)
    rps = np.diff(np.asarray(operational_time(edges), np.float64)) / np.diff(edges)
    steady = bool(np.ptp(rps) <= 1e-6 * rps.max())
    return None if steady else RateCurve(end_s=end_s, rps=[float(f"{value:.5g}") for value in rps])


def _dispersion_of_all(times_s: Floats) -> float:
    """Index of dispersion at the length of the whole schedule, at least 1: what its number of arrivals varies by.

    It is measured at a twentieth of the schedule and extrapolated to the whole with the slope that it has over the
    widths below (between 0, as in a renewal process, and 1, as where the rate has a long memory).
    """
    bins = (20, 40, 80, 160)
    per_bin = [np.zeros(n, np.int64) for n in bins]
    for start in range(0, len(times_s), BLOCK):
        places = (times_s[start : start + BLOCK] - times_s[0]) / (times_s[-1] - times_s[0])
        for n, counted in zip(bins, per_bin, strict=True):
            counted += np.bincount(np.minimum((places * n).astype(np.int64), n - 1), minlength=n)
    spreads = [spread(counted) for counted in per_bin]
    defined = [(n, value) for n, value in zip(bins, spreads, strict=True) if value]
    if len(defined) < len(bins):
        return 1.0
    logs = np.log([value for _, value in defined])
    slope = float(np.polyfit(-np.log(bins), logs, 1)[0])
    extrapolated: float = np.exp(logs[0]) * bins[0] ** min(max(slope, 0.0), 1.0)
    return max(1.0, float(extrapolated))

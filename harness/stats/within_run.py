"""Intervals that one run can give of itself, and the cases in which it can give none.

A moving-block bootstrap over the requests in the order of their scheduled times: neighbours wait in the same queue, so
blocks of them are drawn and not single requests. Requests of a session are alike as well, however far apart, so of
traffic with sessions these are drawn, too, and the interval holds both. Near the knee of a system even that fails,
because the rare long busy period is mostly not in the sample; there the answer is that there is no interval.
Source of the bootstrap: H. R. Künsch, "The jackknife and the bootstrap for general stationary observations", Annals of
Statistics 17, 1989; of sessions: C. A. Field and A. H. Welsh, "Bootstrapping clustered data", J. R. Statist. Soc. B 69,
2007.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from harness.api import Slo
from harness.data.lists import number
from harness.data.mapped import stored
from harness.data.run_json import Interval, Intervals, Within
from harness.metrics.measure import headline, metrics, per_request, succeeded
from harness.metrics.objective import Score, score
from harness.metrics.quantiles import quantile, quantiles
from harness.stats.tails import CONFIDENCE, student

Floats: TypeAlias = npt.NDArray[np.float64]

NORMAL = 1.959963984540054
"""Quantile of the normal distribution at (1 + CONFIDENCE) / 2."""

BLOCK, BLOCKS, MOST_BLOCKS = 200, 10, 1000
"""Requests in a block; of short runs so many that there are ten blocks, of very long ones that there are a thousand:
longer blocks remember more and take less time."""

RESAMPLES, PARTS = 2000, 20
"""Resamples of a run, and parts that are summed one after the other to take little memory."""
MOST_ALIKE = 0.5
"""Lag-1 autocorrelation of TTFT from which on a queue has a memory too long for the blocks of one run."""

NOISE = 2.0
"""Standard errors, of 1/sqrt(requests), within which the autocorrelation of independent values stays."""

FEWEST_MISSES = 0.01
"""Share of requests that must miss, and that must meet, for an interval of attainment: near the ends it collapses."""

FEWEST, FEWEST_FOR_P99 = 100, 500
FEWEST_SESSIONS, SESSIONS_FOR_P99 = 6, 50
"""Fewest values, and fewest sessions, for an interval of a mean or a share, and of a p99: below, it covers the truth
too rarely."""

ROUNDING = 1e-9
"""Relative differences of values that are equal but for rounding."""

REPEAT = "repeat with other seeds (bench sweep --seeds 5)"


@dataclass(frozen=True, slots=True)
class Blocks:
    """Resamples of a series: where the blocks of each begin. Equal `n` gives equal ones."""

    n: int
    size: int
    starts: npt.NDArray[np.int64]  # (RESAMPLES, blocks)

    @classmethod
    def draw(cls, n: int) -> Blocks:
        """Blocks for a series of `n` values: ten at least, about a thousand at most."""
        size = min(max(BLOCK, n // MOST_BLOCKS), n // BLOCKS)
        starts = np.random.default_rng(0).integers(0, n - size + 1, (RESAMPLES, -(-n // size)))
        return cls(n, size, starts)

    def sums(self, values: Floats) -> Floats:
        """(RESAMPLES,) sums of `values` (n,), NaN as 0, over each resample, cut so that it has n values."""
        up_to = np.zeros(self.n + 1)
        up_to[1:] = values
        up_to[np.isnan(up_to)] = 0.0
        np.cumsum(up_to, out=up_to)
        last = self.n - (self.starts.shape[1] - 1) * self.size

        parts = ((part[:, :-1], part[:, -1]) for part in np.array_split(self.starts, PARTS))
        return np.concatenate([
            (up_to[whole + self.size] - up_to[whole]).sum(axis=1) + up_to[cut + last] - up_to[cut]
            for whole, cut in parts
        ])  # fmt: skip

    @property
    def count(self) -> float:
        return self.n / self.size


@dataclass(frozen=True, slots=True, eq=False)
class Sessions:
    """Resamples of whole sessions: which of them each holds. Of more than `MOST_BLOCKS` some are drawn together."""

    group: npt.NDArray[np.int64]  # (n,) number of the session of each request
    drawn: npt.NDArray[np.int64]  # (RESAMPLES, sessions)

    @classmethod
    def draw(cls, session: Floats) -> Sessions | None:
        """Resamples of the sessions (n,); a request without one is one by itself. None where each has one request."""
        sessionless = np.isnan(session)
        if sessionless.all():
            return None
        names = np.where(sessionless, -1.0 - np.arange(len(session)), session)  # numbers of sessions are 0 and above
        group = np.unique(names, return_inverse=True)[1]
        count = int(group.max(initial=-1)) + 1
        if count == len(session):
            return None
        group = group % min(count, MOST_BLOCKS)
        count = min(count, MOST_BLOCKS)
        return cls(group, np.random.default_rng(0).integers(0, count, (RESAMPLES, count)))

    def sums(self, values: Floats) -> Floats:
        """(RESAMPLES,) sums of `values` (n,), NaN as 0, over each resample."""
        summed = np.bincount(self.group, np.nan_to_num(values), self.drawn.shape[1])
        resampled: Floats = summed[self.drawn].sum(axis=1)
        return resampled

    @property
    def count(self) -> float:
        """How many sessions of one length would tell as much: long ones count for more requests."""
        sizes = np.bincount(self.group).astype(float)
        return float(sizes.sum() ** 2 / (sizes**2).sum())


@dataclass(frozen=True, slots=True, eq=False)
class Resampled:
    """Intervals by units of a run that are drawn as wholes: of several kinds the widest."""

    units: Sequence[Blocks | Sessions]

    def mean(self, values: Floats) -> tuple[float, float]:
        """Interval of the mean of the values (n,) that are not NaN, and above 0.

        Moved out on the scale of logarithms: a few long waits make the ends of a mean scatter by more than itself, and
        moved out on its own scale the lower one became negative. Neither covers less (docs/guide/statistics.md).
        """
        middle = float(np.nanmean(values))
        if middle <= 0:  # a backend that answers at once under a virtual clock
            return 0.0, 0.0
        ends = [(middle * (low / middle) ** wider, middle * (high / middle) ** wider)
                for low, high, wider in self._ends(values)]  # fmt: skip
        return _widest(ends)

    def share(self, met: Floats) -> tuple[float, float]:
        """Interval of the share of ones in `met` (n,), which has both: as `mean`, on the scale of log odds."""
        met_share = float(met.mean())
        odds = met_share / (1 - met_share)

        def moved(end: float, wider: float) -> float:
            moved_odds = odds * (end / (1 - end) / odds) ** wider if end < 1 else math.inf
            return moved_odds / (1 + moved_odds) if moved_odds < math.inf else 1.0

        return _widest([(moved(low, wider), moved(high, wider)) for low, high, wider in self._ends(met)])

    def percentile(self, values: Floats, q: float) -> tuple[float, float]:
        """Interval of quantile `q` of the values (n,) that are not NaN: that of the share at or below it, turned into
        values (Woodruff, Journal of the American Statistical Association 47, 1952)."""
        defined, at_or_below = ~np.isnan(values), values <= quantile(values, q)
        share = int(at_or_below.sum()) / int(defined.sum())
        low, high = _widest([(q - wider * (high - share), q + wider * (share - low))
                             for low, high, wider in self._ends(np.where(defined, at_or_below, np.nan))])  # fmt: skip
        low, high = quantiles(values[defined], [max(0.0, low), min(1.0, high)])
        return low, high

    def _ends(self, values: Floats) -> Iterator[tuple[float, float, float]]:
        """Ends of the mean of the values (n,) that are not NaN over the resamples, and how much to move these out.

        Some ten units scatter too little, so the ends are moved out by Student's t of so many for the normal quantile,
        and by the root of k/(k - 1).
        """
        tail = (1 + CONFIDENCE) / 2
        for unit in self.units:
            with np.errstate(invalid="ignore", divide="ignore"):
                means = unit.sums(values) / unit.sums(~np.isnan(values))
            k = unit.count
            wider = math.sqrt(k / (k - 1)) * student(k) / NORMAL
            yield quantile(means, 1 - tail), quantile(means, tail), wider


def _widest(ends: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return min(low for low, _ in ends), max(high for _, high in ends)


def within(
    table: pa.Table,
    slo: Slo,
    *,
    overloaded: bool = False,
    valid: bool = True,
    bursts: bool = True,
    scored: Score | None = None,
) -> Within:
    """Intervals of the requests that were measured; `why_not` says why there are none.

    `attainment` has `low` and `high`, or is None; without a single miss `at_least` is Wilson's lower bound, where
    requests are independent: single ones, without `bursts`, whose waits are not alike. `metrics` has pairs for the mean
    and the p99 of the `headline` metrics, in seconds.
    `alike` is the lag-1 autocorrelation of TTFT, `sessions` how many of one length would tell as much as those here.
    `scored` is the score of the table where that is known.
    """
    order = stored(np.argsort(number(table, "scheduled_s"), kind="stable"))
    ok = succeeded(table)

    def series(name: str) -> Floats:
        values = per_request(metrics()[name], table)
        values = np.where(ok & np.isfinite(values), values, np.nan)
        return np.asarray(values[order()])

    alike = autocorrelation(series("ttft"))
    by_sessions = Sessions.draw(number(table, "session")[order()])
    sessions = None if by_sessions is None else by_sessions.count
    why_not = next(_why_not(len(table), alike, sessions, overloaded=overloaded, valid=valid), None)
    scored = score(table, slo) if scored is None else scored
    met = scored.met[order()] if slo.bounds and scored.by_request else np.zeros(0, bool)
    independent = not bursts and sessions is None and alike is not None and abs(alike) <= NOISE / math.sqrt(len(table))
    least = at_least(len(met)) if len(met) and met.all() and valid and not overloaded and independent else None
    partial = Within(confidence=CONFIDENCE, resamples=RESAMPLES, alike=alike, at_least=least, why_not=why_not,
                   sessions=sessions)  # fmt: skip
    if why_not is not None:
        return partial
    blocks, share = Blocks.draw(len(table)), None
    drawn = Resampled([blocks] if by_sessions is None else [blocks, by_sessions])
    if len(met) and FEWEST_MISSES <= met.mean() <= 1 - FEWEST_MISSES:
        low, high = drawn.share(met)
        share = Interval(low=low, high=high)
    rare = sessions is None or sessions >= SESSIONS_FOR_P99
    intervals = {metric.name: _of(drawn, series(metric.name), rare=rare) for metric in headline()}
    return msgspec.structs.replace(partial, block=blocks.size, attainment=share, metrics=intervals)


def at_least(n: int) -> float:
    """Lower end of Wilson's interval of a share, of which all of `n` were seen."""
    return n / (n + NORMAL**2)


def autocorrelation(values: Floats) -> float | None:
    """Lag-1 autocorrelation of the values that are not NaN; None of fewer than two, 0 of equal ones."""
    defined = values[~np.isnan(values)]
    if len(defined) < 2:
        return None
    middle, most = defined.mean(), max(defined.max(), -defined.min())
    defined -= middle
    if max(defined.max(), -defined.min()) <= ROUNDING * most:
        return 0.0
    return float((defined[1:] * defined[:-1]).sum() / (defined**2).sum())


def _why_not(
    n: int, alike: float | None, sessions: float | None, *, overloaded: bool, valid: bool
) -> Iterator[str]:  # fmt: skip
    if not valid:
        yield "no interval, because the run is not valid"
    elif overloaded:
        yield "no interval, because the queue grew all through the run"
    elif n < FEWEST or alike is None:
        yield f"no interval from fewer than {FEWEST} requests; send more (--requests, --duration)"
    elif sessions is not None and sessions < FEWEST_SESSIONS:
        yield (
            f"no interval, because requests of a session are alike and there are fewer than {FEWEST_SESSIONS} sessions "
            f"(as many as {sessions:.1f} of one length); send more (--requests, --duration)"
        )
    elif alike >= MOST_ALIKE:
        yield (
            f"one run: no interval, because neighbouring requests wait alike (correlation of TTFT {alike:.2f}, an "
            f"interval needs less than {MOST_ALIKE:g}); {REPEAT}"
        )


def _of(drawn: Resampled, values: Floats, *, rare: bool) -> Intervals:
    count = int((~np.isnan(values)).sum())
    return Intervals(
        mean=drawn.mean(values) if count >= FEWEST else None,
        p99=drawn.percentile(values, 0.99) if rare and count >= FEWEST_FOR_P99 else None,
    )

"""Verdict on paired losses: Student's t on their mean and on steady losses, with the loss that would have been found.

A loss is ln(head/base), or head - base, with the sign turned so that positive is worse; there is one for each pair.
The rule: one p from both tests beside alpha, and a one-sided bound on either side beside a `Limits` of what matters.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

Verdict = Literal["regressed", "improved", "equivalent", "inconclusive"]
Floats: TypeAlias = npt.NDArray[np.float64]
Key = TypeVar("Key")

ALPHA = 0.01
"""One-sided chance to call a loss where there is none."""

POWER = 0.95
"""Chance to find a loss of the minimum detectable effect."""

LEAST_PAIRS = 3
"""Fewer pairs have no power at all: the detectable loss of two is 20 times that of three."""

SIGN_FLIPS = 20
"""Most pairs whose sign flips are all tried (a million of them)."""

MOST_PAIRS = 1000
"""More pairs than this are not practical; where more are needed, the number needed is None."""

MEAN_WEIGHT = 2 / 3
"""Share of alpha of the plain mean, which alone sees stalls; the rest is that of the steady losses (tests/perf)."""

TRIMMED = 10
"""Of so many pairs the steady test leaves out the best and the worst."""

GROUPS, LEAST_GROUPS, LEAST_IN_GROUP = 20, 5, 5
"""Groups of requests of a run, and the fewest requests in one."""

LEAST_P = 1e-300


@dataclass(frozen=True, slots=True)
class Limits:
    """Of a loss: below `min_effect` it is of no interest, from `must_detect` on it must not slip through."""

    min_effect: float
    must_detect: float


@dataclass(frozen=True, slots=True)
class TTest:
    """A t test of losses against 0: their mean with a one-sided bound at 1 - alpha on either side, and p of a loss.

    `sd` is that of a single loss, and of the untrimmed ones the standard deviation of a trimmed mean times the root of
    their number.
    """

    mean: float
    sd: float
    low: float
    high: float
    p: float


@dataclass(frozen=True, slots=True)
class Decision:
    """The verdict on the losses of `pairs` and the statistics behind it, in the unit of the losses.

    `mean`, `sd`, `low`, `high` and `p_mean` are those of the plain mean; infinite or None for a single pair. `steady`
    is the same of the steady losses. `p` decides: it combines both. `p_sign_flip` is from the signs alone (exact, for
    2 to 20 pairs). `mde` is the loss that these pairs find with a chance of 0.95, `pairs_needed` how many would find
    `must_detect`; None without a standard deviation, or where more than 1,000 would be needed.
    """

    verdict: Verdict
    pairs: int
    mean: float
    sd: float | None
    low: float
    high: float
    p: float | None
    p_mean: float | None
    p_sign_flip: float | None
    mde: float | None
    pairs_needed: int | None
    alpha: float
    steady: TTest | None = None


def decide(losses: Sequence[float], limits: Limits, alpha: float = ALPHA, steady: Sequence[float] = ()) -> Decision:
    """The verdict on the losses of some pairs. Raises ValueError for none, or for one that is not finite.

    `steady` are losses of the same pairs that ignore what strikes a part of a run. Either kind may show a loss; a gain
    or equivalence must not be contradicted by the other.
    """
    values = np.asarray(losses, float)
    if not len(values) or not np.isfinite([*values, *steady]).all():
        raise ValueError(f"losses must be one or more finite numbers, got {list(losses)}")
    mean, pairs = float(values.mean()), len(values)
    if pairs == 1:
        return Decision("inconclusive", 1, mean, None, -math.inf, math.inf, None, None, None, None, None, alpha)
    plain = _test(values, alpha)
    robust = _test(np.asarray(steady, float), alpha, trimmed=pairs // TRIMMED) if len(steady) == pairs else None
    sd = plain.sd if robust is None else min(plain.sd, robust.sd)
    p = _either(plain.p, None if robust is None else robust.p)
    return Decision(
        verdict=_verdict(plain, robust, p, limits, alpha),
        pairs=pairs,
        mean=mean,
        sd=plain.sd,
        low=plain.low,
        high=plain.high,
        p=p,
        p_mean=plain.p,
        p_sign_flip=sign_flip_p(values) if pairs <= SIGN_FLIPS else None,
        mde=mde(sd, pairs, alpha),
        pairs_needed=pairs_needed(sd, limits.must_detect, alpha),
        alpha=alpha,
        steady=robust,
    )


def decide_all(
    cases: Mapping[Key, tuple[Sequence[float], Limits, Sequence[float]]], alpha: float = ALPHA
) -> dict[Key, Decision]:
    """A verdict for each of several metrics, of its losses, their limits and its steady losses (or none).

    Each p is adjusted for their number, so that one alarm in all has `alpha`. What the adjustment takes back from
    `regressed` is `equivalent` where the loss is surely below `must_detect`, else `inconclusive`.
    """
    decisions = {key: decide(losses, limits, alpha, steady) for key, (losses, limits, steady) in cases.items()}
    adjusted = closed({key: d.p for key, d in decisions.items() if d.p is not None and any(cases[key][0])})
    for key, p in adjusted.items():
        verdict = decisions[key].verdict
        if verdict == "regressed" and p > alpha:
            verdict = _bounded(decisions[key].high, cases[key][1])
        decisions[key] = replace(decisions[key], p=p, verdict=verdict)
    return decisions


def closed(p: Mapping[Key, float]) -> dict[Key, float]:
    """Each p adjusted for all: the largest harmonic mean over the sets of hypotheses that hold it (closed testing).

    Where all agree that is p itself, where only one is small as many times p as there are. Metrics that never differed
    are to be left out: no draw of signs could have made them significant (Tarone, 1990).
    Source: D. J. Wilson, "The harmonic mean p-value for combining dependent tests", PNAS 2019.
    """
    adjusted = {}
    for name, p_raw in p.items():
        others = sorted((1 / max(q, LEAST_P) for other, q in p.items() if other != name))
        sums = np.cumsum([1 / max(p_raw, LEAST_P), *others])  # the worst set of a size has the largest of the others
        adjusted[name] = min(1.0, max(float(size / total) for size, total in enumerate(sums, 1)))
    return adjusted


def whole(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict over several metrics: the worst of them; `improved` where nothing is worse or open."""
    return next((v for v in ("regressed", "inconclusive", "improved") if v in verdicts), "equivalent")


def mde(sd: float, pairs: int, alpha: float = ALPHA) -> float:
    """Minimum detectable effect: the loss that a test at `alpha` finds with a chance of `POWER`."""
    return _noncentrality(pairs - 1, alpha) * sd / math.sqrt(pairs)


def pairs_needed(sd: float, must_detect: float, alpha: float = ALPHA) -> int | None:
    """Fewest pairs, 3 or more, that find a loss of `must_detect`; None where 1,000 are too few."""
    counts = range(LEAST_PAIRS, MOST_PAIRS + 1)
    place = bisect_left(counts, True, key=lambda pairs: mde(sd, pairs, alpha) <= must_detect)
    return counts[place] if place < len(counts) else None


def sign_flip_p(losses: Sequence[float] | Floats) -> float:
    """Share of all ways to turn signs around that give a mean loss as large as this one: exact and one-sided.

    Source: R. A. Fisher, The Design of Experiments, 1935. It assumes no normal law, only that a loss is as likely as
    a gain of the same size where there is no difference.
    """
    sums = np.zeros(1)
    for size in np.abs(np.asarray(losses, float)):
        sums = np.concatenate([sums + size, sums - size])
    observed = float(np.sum(losses))
    rounding = 1e-12 * float(np.abs(losses).sum())
    return float((sums >= observed - rounding).mean())


def outliers(losses: Sequence[float], must_detect: float) -> list[int]:
    """Places of the losses that are above `must_detect` in size, and above twice the median size.

    Signs play no part: where base and head are equal, turning round any loss changes nothing, so that to make these
    pairs again favours neither side, and t keeps its alpha (around their median it would not: tests/perf).
    """
    sizes = np.abs(np.asarray(losses, float))
    return [] if len(sizes) < LEAST_PAIRS else _above(sizes, max(must_detect, 2 * float(np.median(sizes))))


def uneven(scatter: Sequence[float], must_detect: float) -> list[int]:
    """Places of the pairs in which some groups of requests were slowed down, and others not.

    `scatter` is the standard deviation of a pair's losses over its groups: above `must_detect`, and above twice that of
    the most even pair. It is the same for base against head and head against base.
    """
    return [] if len(scatter) < LEAST_PAIRS else _above(np.asarray(scatter), max(must_detect, 2 * min(scatter)))


def _above(values: Floats, limit: float) -> list[int]:
    return np.flatnonzero(values > limit).tolist()


def steady_loss(base: Floats, head: Floats) -> tuple[float, float] | None:
    """ln(head/base) of the median group of requests, and the standard deviation over the groups.

    Positive values of the same requests in order of time, in up to 20 groups of 5 or more one after another; None for
    fewer than 5 groups. What strikes less than half of the groups does not move the median.
    """
    groups = min(GROUPS, len(base) // LEAST_IN_GROUP)
    if groups < LEAST_GROUPS:
        return None
    starts = np.arange(groups) * len(base) // groups
    losses = np.log(np.add.reduceat(head, starts) / np.add.reduceat(base, starts))
    return float(np.median(losses)), float(losses.std(ddof=1))


def _test(values: Floats, alpha: float, trimmed: int = 0) -> TTest:
    """Student's t; with `trimmed` values left out at either end that of Yuen (Biometrika 1974)."""
    ordered = np.sort(values)
    core = ordered[trimmed : len(values) - trimmed]
    mean = float(core.mean())
    # equal values have sd 0; the formula would give the rounding error of their mean
    winsorized = np.clip(values, core[0], core[-1])
    sd = 0.0 if core[0] == core[-1] else float(winsorized.std(ddof=1))
    error = sd * math.sqrt((len(values) - 1) / (len(core) * (len(core) - 1)))
    reach = float(_quantile(len(core) - 1, alpha)) * error
    return TTest(mean, error * math.sqrt(len(values)), mean - reach, mean + reach, _p(mean, error, len(core) - 1))


def _either(plain: float, steady: float | None) -> float:
    """p that one of two tests shows a loss: their weighted harmonic mean, which is p itself where both agree."""
    if steady is None:
        return plain
    return 1 / (MEAN_WEIGHT / max(plain, LEAST_P) + (1 - MEAN_WEIGHT) / max(steady, LEAST_P))


def _verdict(plain: TTest, steady: TTest | None, p: float, limits: Limits, alpha: float) -> Verdict:
    tests = [(MEAN_WEIGHT, plain)] if steady is None else [(MEAN_WEIGHT, plain), (1 - MEAN_WEIGHT, steady)]
    worst = min(tests, key=lambda each: each[1].p / each[0])[1]  # the one with the larger part in p
    if p <= alpha and worst.mean > limits.min_effect:
        return "regressed"
    best = min(tests, key=lambda each: (1 - each[1].p) / each[0])[1]
    gain = _either(1 - plain.p, None if steady is None else 1 - steady.p)
    if gain <= alpha and -best.mean > limits.min_effect and plain.high < limits.must_detect:
        return "improved"
    return _bounded(plain.high, limits)


def _bounded(high: float, limits: Limits) -> Verdict:
    """What a difference is that was not found: surely small, or open."""
    return "equivalent" if high < limits.must_detect else "inconclusive"


def _p(mean: float, error: float, freedom: int) -> float:
    """One-sided p of a loss; without any scatter the sign of the mean is certain."""
    from scipy import special

    if error == 0:
        return 0.0 if mean > 0 else 1.0
    return float(special.stdtr(freedom, -mean / error))


@cache
def _quantile(freedom: int, alpha: float) -> float:
    from scipy import special

    return float(-special.stdtrit(freedom, alpha))


@cache
def _noncentrality(freedom: int, alpha: float) -> float:
    """The noncentrality at which a one-sided t test has the power `POWER`, by bisection.

    Note: scipy's nctdtrinc loses digits for few degrees of freedom; nctdtr gives NaN or 0 far out, where it is 0.
    """
    from scipy import special

    t = _quantile(freedom, alpha)
    low, high = 0.0, 4 * t + 20
    for _ in range(100):
        middle = (low + high) / 2
        missed = float(np.nan_to_num(special.nctdtr(freedom, middle, t)))
        low, high = (middle, high) if missed > 1 - POWER else (low, middle)
    return (low + high) / 2

"""Verdict on paired losses: Student's t on their mean, with the loss that would have been found.

A loss is ln(head/base), or head - base, with the sign turned so that positive is worse; there is one for each pair.
The rule: a one-sided bound at 1 - alpha on either side of the mean loss, beside a `Limits` of what matters.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

Verdict = Literal["regressed", "improved", "equivalent", "inconclusive"]
Floats: TypeAlias = npt.NDArray[np.float64]

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

LEAST_FOR_OUTLIERS = 5

FAR = 6.0
"""Robust standard deviations from the median at which a pair is named as an outlier (it stays)."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Of a loss: below `min_effect` it is of no interest, from `must_detect` on it must not slip through."""

    min_effect: float
    must_detect: float


@dataclass(frozen=True, slots=True)
class Decision:
    """The verdict on the losses of `pairs` and the statistics behind it, in the unit of the losses.

    `low` and `high` are each a one-sided bound at 1 - `alpha`; infinite for a single pair. `p` is the chance of such a
    loss where there is none, `p_sign_flip` the same from the signs alone (exact, for 2 to 20 pairs). `mde` is the loss
    that these pairs find with a chance of 0.95, `pairs_needed` how many would find `must_detect`; None without a
    standard deviation, or where more than 1,000 would be needed.
    """

    verdict: Verdict
    pairs: int
    mean: float
    sd: float | None
    low: float
    high: float
    p: float | None
    p_sign_flip: float | None
    mde: float | None
    pairs_needed: int | None
    alpha: float


def decide(losses: Sequence[float], limits: Limits, alpha: float = ALPHA) -> Decision:
    """The verdict on the losses of some pairs. Raises ValueError for none, or for one that is not finite."""
    values = np.asarray(losses, float)
    if not len(values) or not np.isfinite(values).all():
        raise ValueError(f"losses must be one or more finite numbers, got {list(losses)}")
    mean, pairs = float(values.mean()), len(values)
    if pairs == 1:
        return Decision("inconclusive", 1, mean, None, -math.inf, math.inf, None, None, None, None, alpha)
    # equal values have sd 0; the formula would give the rounding error of their mean
    sd = 0.0 if (values == values[0]).all() else float(values.std(ddof=1))
    reach = float(_quantile(pairs - 1, alpha)) * sd / math.sqrt(pairs)
    return Decision(
        verdict=_verdict(mean, mean - reach, mean + reach, limits),
        pairs=pairs,
        mean=mean,
        sd=sd,
        low=mean - reach,
        high=mean + reach,
        p=_p(mean, sd, pairs),
        p_sign_flip=sign_flip_p(values) if pairs <= SIGN_FLIPS else None,
        mde=mde(sd, pairs, alpha),
        pairs_needed=pairs_needed(sd, limits.must_detect, alpha),
        alpha=alpha,
    )


def decide_all(
    losses: Mapping[str, Sequence[float]], limits: Mapping[str, Limits], alpha: float = ALPHA
) -> dict[str, Decision]:
    """A verdict for each of several metrics, with Holm's correction for `regressed`.

    Source: S. Holm, "A simple sequentially rejective multiple test procedure", 1979. What Holm takes back is
    `equivalent` where the loss is surely below `must_detect`, else `inconclusive`.
    """
    found = {name: decide(values, limits[name], alpha) for name, values in losses.items()}
    kept = _holm({name: d.p for name, d in found.items() if d.p is not None}, alpha)
    return {
        name: decision
        if decision.verdict != "regressed" or name in kept
        else replace(decision, verdict=_bounded(decision.high, limits[name]))
        for name, decision in found.items()
    }


def whole(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict over several metrics: the worst of them; `improved` where nothing is worse or open."""
    return next((v for v in ("regressed", "inconclusive", "improved") if v in verdicts), "equivalent")


def mde(sd: float, pairs: int, alpha: float = ALPHA, power: float = POWER) -> float:
    """Minimum detectable effect: the loss that a test at `alpha` finds with a chance of `power`."""
    return _noncentrality(pairs - 1, alpha, power) * sd / math.sqrt(pairs)


def pairs_needed(sd: float, must_detect: float, alpha: float = ALPHA, power: float = POWER) -> int | None:
    """Fewest pairs, 3 or more, that find a loss of `must_detect`; None where 1,000 are too few."""
    if sd == 0:
        return LEAST_PAIRS
    low, high = LEAST_PAIRS - 1, MOST_PAIRS
    if not mde(sd, high, alpha, power) <= must_detect:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if mde(sd, middle, alpha, power) <= must_detect else (middle, high)
    return high


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


def outliers(losses: Sequence[float]) -> list[int]:
    """Places of the losses that are more than 6 robust standard deviations (1.4826 MAD) from the median.

    Of fewer than 5 there are none: two that happen to be close would make the third one look far away.
    """
    values = np.asarray(losses, float)
    if len(values) < LEAST_FOR_OUTLIERS:
        return []
    away = np.abs(values - np.median(values))
    robust = 1.4826 * float(np.median(away))
    return np.flatnonzero(away > FAR * robust).tolist() if robust > 0 else []


def _verdict(mean: float, low: float, high: float, limits: Limits) -> Verdict:
    if low > 0 and mean > limits.min_effect:
        return "regressed"
    if high < 0 and -mean > limits.min_effect:
        return "improved"
    return _bounded(high, limits)


def _bounded(high: float, limits: Limits) -> Verdict:
    """What a difference is that was not found: surely small, or open."""
    return "equivalent" if high < limits.must_detect else "inconclusive"


def _p(mean: float, sd: float, pairs: int) -> float:
    """One-sided p of a loss; without any scatter the sign of the mean is certain."""
    from scipy import special

    if sd == 0:
        return 0.0 if mean > 0 else 1.0
    return float(special.stdtr(pairs - 1, -mean / (sd / math.sqrt(pairs))))


def _holm(p: Mapping[str, float], alpha: float) -> set[str]:
    """The names that are significant together at `alpha`."""
    kept: set[str] = set()
    for rank, name in enumerate(sorted(p, key=lambda name: p[name])):
        if p[name] > alpha / (len(p) - rank):
            break
        kept.add(name)
    return kept


@cache
def _quantile(freedom: int, alpha: float) -> float:
    """Student's t at 1 - alpha."""
    from scipy import special

    return float(-special.stdtrit(freedom, alpha))


@cache
def _noncentrality(freedom: int, alpha: float, power: float) -> float:
    """The noncentrality at which a one-sided t test has the given power, by bisection.

    Note: scipy's nctdtrinc loses digits for few degrees of freedom; nctdtr gives NaN or 0 far out, where it is 0.
    """
    from scipy import special

    t = _quantile(freedom, alpha)
    low, high = 0.0, 4 * t + 20
    for _ in range(100):
        middle = (low + high) / 2
        missed = float(np.nan_to_num(special.nctdtr(freedom, middle, t)))
        low, high = (middle, high) if missed > 1 - power else (low, middle)
    return (low + high) / 2

"""The quality of a fit in sentences.

The index of dispersion that a log-Gaussian Cox process with gamma gaps in operational time must have.

Let the rate be m * F(t), where F has mean 1 and log F is Gaussian with covariance C(u) = sum(sd**2 exp(-u/tau)), so
that F has covariance exp(C(u)) - 1 (moments of a lognormal). Let L be the integral of the rate over T seconds and N
the arrivals in T: a stationary renewal process of mean gap 1 seen for the operational time L. By the law of total
variance, Var N = E[V(L)] + Var L, where V is the variance function of that renewal process. Divided by E N = m T:

    IDC(T) = E[V(L)] / (m T) + 2 m / T * integral from 0 to T of (T - u) (exp(C(u)) - 1) du

Sources: Cox and Isham, Point Processes, 1980 (doubly stochastic processes); Moeller, Syversveen and Waagepetersen,
Scandinavian Journal of Statistics 25, 1998 (second moments of a log-Gaussian Cox process); Cox, Renewal Theory, 1962,
chapter 4 (V, and its limit for long times). E[V(L)] takes L as lognormal with its exact mean and variance.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from harness.data.lists import Floats
from workloads.arrivals._services import Component

GOOD = 0.5  # root mean square of log2 of the dispersion curve: within a factor 1.4 on average
CLOSE_KS = 0.1
LEAST_CV = 0.01  # below, gaps count as even
SAME_KS, ONE_IN_100 = 0.05, 1.63
"""KS distance from which laws differ, beyond what samples of one law are apart: of n and m independent values in one
case of a hundred 1.63 sqrt(1/n + 1/m) (Smirnov, Annals of Mathematical Statistics 19, 1948)."""
SAME_REUSE = 0.03
"""Of blocks that repeat an earlier one, and of the hits in each of five caches."""
_HARDLY_LOGNORMAL = "The rate of this trace is hardly lognormal: --mode rate-following may fit better."
_MEMORY = 6  # mean gaps, and as many times 1 / shape, after which V has reached its limit for long times
_POINTS = 160  # of the table of V
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(9)
_UNIT_NODES, _UNIT_WEIGHTS = np.polynomial.legendre.leggauss(24)
_PARTS = 12  # of the integral over lags, geometric, so that short and long memories are both met


class Agreement(NamedTuple):
    """What was compared, how far the model is `off`, from which `limit` on they differ, and both in words."""

    name: str
    off: float
    limit: float
    text: str

    def sentence(self) -> str:
        """The verdict, with its numbers."""
        return f"{self.name} {'agrees with' if self.off <= self.limit else 'DIFFERS FROM'} the trace: {self.text}."


def sentences(facts: Mapping[str, Any]) -> list[str]:
    """What the numbers of `Quality.facts()` say: each verdict with its threshold, and what has none."""
    misfits = facts["mode"] == "parametric" and misfit(facts) > 0
    parts = [
        *(check.sentence() for check in checks(facts)), _unknown(facts), _HARDLY_LOGNORMAL if misfits else "",
        _memory(facts), _rate(facts),
    ]  # fmt: skip
    return [text for text in parts if text]


def checks(facts: Mapping[str, Any]) -> list[Agreement]:
    """The verdicts that the facts allow, the dispersion curve first."""
    drawn = []
    rms, usual, widths = facts["curve_distance_all"], facts["curve_distance"]["model"], facts["widths_s"]
    if rms["model"] is not None:
        band = f", {_factor(usual)} up to 120 s" if usual is not None and widths[-1] > 120 else ""
        text = (
            f"in bins of {widths[0]:g} to {widths[-1]:g} s dispersion is off by a factor of {_factor(rms['model'])} "
            f"(limit {_factor(GOOD)}; root mean square over widths, median of {facts['seeds']} draws{band}); Poisson "
            f"arrivals by {_factor(rms['poisson'])}, gamma gaps by {_factor(rms['gamma'])}"
        )
        drawn.append(Agreement("Burstiness", rms["model"], GOOD, text))
    ks, cv = facts["gaps_ks"], facts["gap_cv"]
    if ks["model"] is not None:
        text = (
            f"{_number(cv['trace'])} / {_number(cv['median'])} (limit: within 90 % of the draws, {_number(cv['low'])} "
            f"to {_number(cv['high'])}, or a factor of {_factor(GOOD)}); KS distance {ks['model']:.3f}, of Poisson "
            f"arrivals {_number(ks['poisson'], 3)}, which says little about bursts"
        )
        drawn.append(Agreement("The CV of gaps", _cv_off(facts), GOOD, text))
    lengths = facts["lengths"]
    for side, name in (("prompt", "The length of prompts"), ("output", "The length of outputs")):
        off, (recorded, mean) = lengths[f"{side}_ks"], lengths[f"mean_{side}_tokens"]
        limit = SAME_KS + ONE_IN_100 * math.sqrt(1 / lengths["rows"] + 1 / lengths["drawn"])
        text = f"KS distance {off:.3f} (limit {limit:.3f}), mean {recorded:.4g} / {mean:.4g} tokens"
        drawn.append(Agreement(name, off, limit, text))
    if facts["sessions"] is not None:
        return drawn + _of_sessions(facts["sessions"])
    reuse = facts["prefix_reuse"]
    if reuse["trace"]:
        drawn.append(_reused(reuse, ""))
    return drawn


def _of_sessions(found: Mapping[str, Any]) -> list[Agreement]:
    drawn = []
    for key, limit in found["ks_limit"].items():
        off, middle = found["ks"][key], " / ".join(f"{value:.4g}" for value in found["middle"][key])
        text = f"KS distance {off:.3f} (limit {limit:.3f}; median of {found['draws']} draws), p50 {middle}"
        drawn.append(Agreement(f"The law of {key.removesuffix('s')}s of whole sessions", off, limit, text))
    if (off := found["curve_distance"]) is not None:
        text = f"dispersion off by a factor of {_factor(off)} (limit {_factor(GOOD)})"
        drawn.append(Agreement("Burstiness of whole sessions", off, GOOD, text))
    lru = found["lru"]
    off = max(abs(recorded - other) for recorded, other in zip(lru["trace"], lru["model"], strict=True))
    caches = ", ".join(
        f"{f'{tokens / 1e6:.3g}M' if tokens >= 1e6 else f'{tokens / 1e3:.3g}k'} {recorded:.1%} / {other:.1%}"
        for tokens, recorded, other in zip(lru["tokens"], lru["trace"], lru["model"], strict=True)
    )
    users = f" with {found['users']} sessions at once" if found["users"] else ""
    hits = (
        f"; hits of an LRU cache{users}, trace / model, by its tokens: {caches} (off by at most {100 * off:.1f} points"
    )
    return [*drawn, _reused(found["reuse"], f"{hits}, limit {100 * SAME_REUSE:g})", off)]


def _reused(reuse: Mapping[str, float], hits: str, off: float = 0.0) -> Agreement:
    shares = f"{reuse['trace']:.1%} of its prompt blocks repeat an earlier one, of those drawn {reuse['model']:.1%}"
    off = max(off, abs(reuse["trace"] - reuse["model"]))
    return Agreement("Prefix reuse", off, SAME_REUSE, f"{shares} (limit {100 * SAME_REUSE:g} points){hits}")


def _unknown(facts: Mapping[str, Any]) -> str:
    """What cannot be compared."""
    texts = []
    if facts["curve_distance_all"]["model"] is None:
        texts.append("The trace is too short to tell its burstiness: fewer than 10 bins of the narrowest width.")
    if facts["gaps_ks"]["model"] is None:
        grain = _number(facts["grain_s"])
        texts.append(f"The gap distribution is not identifiable: timestamps lie on a grid of {grain} s.")
    return " ".join(texts)


def _factor(log2: float | None) -> str:
    """A distance in log2 as the factor that it is: 0.5 is '1.41'."""
    return "unknown" if log2 is None else f"{2.0**log2:.3g}" if log2 < 9 else "more than 500"


def _cv_off(facts: Mapping[str, Any]) -> float:
    """By how much (log2) the CV of all gaps is off; 0 where the trace is one of the draws, or it is unknown."""
    cv = facts["gap_cv"]
    if None in (cv["trace"], cv["median"]) or cv["low"] <= cv["trace"] <= cv["high"]:
        return 0.0
    return float(abs(math.log2(max(cv["median"], LEAST_CV) / max(cv["trace"], LEAST_CV))))


def misfit(facts: Mapping[str, Any]) -> float:
    """By how much dispersion, gap CV and gaps together are off beyond what is good for each; 0 where none is."""
    curve, ks = facts["curve_distance_all"]["model"] or 0.0, facts["gaps_ks"]["model"] or 0.0
    return sum(max(off - 1, 0.0) for off in (curve / GOOD, ks / CLOSE_KS, _cv_off(facts) / GOOD))


def _memory(facts: Mapping[str, Any]) -> str:
    acf = facts["acf"]
    parts = [
        f"{width:g} s {_number(recorded)} / {_number(median)}"
        for width, recorded, median in zip(acf["widths_s"], acf["trace"], acf["median"], strict=True)
    ]
    return f"Lag-1 autocorrelation of counts, trace / model: {', '.join(parts)}." if parts else ""


def _rate(facts: Mapping[str, Any]) -> str:
    drawn, lengths = facts["rate_rps_drawn"], facts["lengths"]
    spearman = f"{_number(lengths['spearman_trace'])} / {_number(lengths['spearman_model'])}"
    ranks = f"Rank correlation of lengths, trace / model: {spearman}."
    if drawn["low"] is None:
        return ranks
    return (
        f"Mean rate of a draw as long as the trace, where it is not held: {drawn['low']:.3g} to {drawn['high']:.3g} "
        f"req/s in 90 % of the draws; of the trace: {facts['rate_rps']:.3g}. {ranks}"
    )


def _number(value: float | None, digits: int = 2) -> str:
    return "unknown" if value is None else f"{value:.{digits}f}"


@dataclass(frozen=True, slots=True)
class Renewal:
    """Variance of the number of points of a stationary gamma renewal process of mean gap 1, for any length.

    V(x) = x + 2 * integral of (H(y) - y), H(y) the sum over k of the probability that k gaps end before y; for long
    x, V(x) = x / shape + (1 - 1 / shape**2) / 6.
    """

    shape: float
    lengths: Floats = field(init=False, repr=False, compare=False)  # (X,) growing
    excess: Floats = field(init=False, repr=False, compare=False)  # (X,) V(x) / x - 1

    def __post_init__(self) -> None:
        lengths = np.geomspace(1e-4, _MEMORY * (1 + 1 / self.shape), _POINTS)
        object.__setattr__(self, "lengths", lengths)
        object.__setattr__(self, "excess", _excess(self.shape, lengths))

    def dispersion(self, lengths: Floats) -> Floats:
        """Variance by mean of the number of points in each of `lengths` (any shape)."""
        if self.shape == 1:
            return np.ones(np.shape(lengths))
        lengths = np.asarray(lengths, np.float64)
        late = 1 / self.shape + (1 - self.shape**-2) / (6 * lengths)
        early = 1 + np.interp(np.log(lengths), np.log(self.lengths), self.excess)
        return np.asarray(np.where(lengths > self.lengths[-1], late, early))


def _excess(shape: float, x: Floats) -> Floats:
    from scipy.special import gammainc  # heavy

    terms = int(x[-1] + 8 * math.sqrt(x[-1] / shape) + 8 / shape) + 8
    k = np.arange(1, terms + 1)[:, None]  # (K, 1)
    integral = (x * gammainc(k * shape, shape * x) - k * gammainc(k * shape + 1, shape * x)).sum(axis=0)
    return np.asarray(2 * integral / x - x)


def rate_variance(components: Sequence[Component], widths_s: Floats) -> Floats:
    """Variance of the mean of the factors F over each of `widths_s`: 2 / T**2 * integral of (T - u) (exp(C(u)) - 1)."""
    if not components:
        return np.zeros(len(widths_s))
    sd, tau_s = np.array(components, np.float64).T
    edges = np.concatenate([[0.0], np.geomspace(1e-4, 1, _PARTS)])  # of u / T
    span, middle = np.diff(edges) / 2, (edges[1:] + edges[:-1]) / 2
    u = (middle[:, None] + span[:, None] * _UNIT_NODES).ravel()  # (Q,)
    weights = (span[:, None] * _UNIT_WEIGHTS).ravel() * (1 - u)
    lags_s = np.outer(widths_s, u)  # (W, Q)
    covariance = np.zeros_like(lags_s)
    for part_sd, part_tau_s in zip(sd, tau_s, strict=True):
        covariance += part_sd**2 * np.exp(-lags_s / part_tau_s)
    return np.asarray(2 * np.expm1(covariance) @ weights)


def dispersion(
    rate_rps: float, components: Sequence[Component], gaps: Renewal, widths_s: Floats, profile: Floats
) -> Floats:
    """(W,) index of dispersion of the counts in bins of `widths_s`.

    `profile` (W,) is the variance over time of the mean, in bins of each width, of a known curve of mean 1 by which
    the rate is multiplied as well (over a day, say); 0 for none. Taken as slow compared with the bins.
    """
    widths_s = np.asarray(widths_s, np.float64)
    spread = profile + (1 + profile) * rate_variance(components, widths_s)
    mean = rate_rps * widths_s
    log_sd = np.sqrt(np.log1p(spread))[:, None]
    shares = np.exp(log_sd * _NODES - log_sd**2 / 2)  # (W, nodes) of the mean
    local = (gaps.dispersion(mean[:, None] * shares) * shares) @ (_WEIGHTS / math.sqrt(2 * math.pi))
    return np.asarray(local + mean * spread)


def seen_in(curve: Floats, whole: float, widths_s: Floats, span_s: float) -> Floats:
    """What a trace of `span_s` shows of `curve` on average: its own mean takes the place of the true one.

    With n bins the expected sample variance is (Var N(T) - Var N(span) / n**2) n / (n - 1); `whole` is the index of
    dispersion at the span itself. Source: the variance of a mean of correlated values.
    """
    n = np.maximum(np.floor(span_s / widths_s), 2)
    return np.asarray((curve - whole / n) * n / (n - 1))

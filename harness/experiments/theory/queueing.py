"""Prefill as a queue: Poisson arrivals, every prompt as long as the others, one at a time (M/D/1).

Sources: Zhong et al., DistServe, OSDI 2024, section 3.1 (the forms for tensor and pipeline parallelism); Crommelin 1932
and Franx, "A simple solution for the M/D/c waiting time distribution", 2001 (the distribution, in terms that are all
positive and so exact at any load).
"""

from dataclasses import dataclass
from functools import lru_cache
from math import exp, inf

_NEGLIGIBLE = 1e-18
"""A probability that no sum notices."""


def mean_wait(rho: float) -> float:
    """Mean wait in service times at utilisation `rho` below 1."""
    return rho / (2 * (1 - rho)) if rho < 1 else inf


@lru_cache(maxsize=64)
def _tails(rho: float) -> tuple[float, ...]:
    """P(more than n arrivals within one service), n = 0, 1, ..., as far as it matters."""
    terms, n = [exp(-rho)], 0
    while terms[-1] > _NEGLIGIBLE or n < rho:
        n += 1
        terms.append(terms[-1] * rho / n)
    sums, total = [], 0.0
    for term in reversed(terms):
        sums.append(total)
        total += term
    return tuple(reversed(sums))


class _Queue:
    """P(at most n wait) for growing n at one utilisation; the recursion of Tijms, of positive terms alone."""

    __slots__ = ("_cumulated", "_inside", "_tails")

    def __init__(self, rho: float) -> None:
        self._tails = _tails(rho)
        self._inside = [1 - rho]  # P(n in the system)
        self._cumulated = [1 - rho]

    def _at_most_inside(self, n: int) -> float:
        inside, tails = self._inside, self._tails
        while len(inside) <= n:
            j = len(inside)
            first = inside[0] * tails[j - 1] if j - 1 < len(tails) else 0.0
            others = sum(inside[k] * tails[j - k] for k in range(max(1, j - len(tails) + 1), j))
            inside.append((first + others) / (1 - tails[0]))
            self._cumulated.append(self._cumulated[-1] + inside[-1])
        return self._cumulated[n]

    def waiting(self, n: int) -> float:
        """P(at most `n` wait, besides the one that is served)."""
        return self._at_most_inside(n + 1)


@lru_cache(maxsize=64)
def _queue(rho: float) -> _Queue:
    return _Queue(rho)


def wait_cdf(rho: float, wait: float) -> float:
    """P(wait <= `wait` service times) at utilisation `rho` in [0, 1)."""
    if rho <= 0:
        return 1.0
    queue, k = _queue(rho), int(wait) + 1
    left = rho * (k - wait)
    term, total = exp(-left), 0.0
    for j in range(k):
        total += queue.waiting(k - 1 - j) * term
        term *= left / (j + 1)
        if term < _NEGLIGIBLE:
            break
    return min(1.0, total)


def wait_quantile(rho: float, share: float) -> float:
    """The wait in service times that a `share` of the requests does not exceed; 0 where so many do not wait."""
    if rho >= 1:
        return inf
    if wait_cdf(rho, 0.0) >= share:
        return 0.0
    low, high = 0.0, 1.0
    while wait_cdf(rho, high) < share:
        low, high = high, 2 * high
    while high - low > 1e-9 * max(1.0, high):
        middle = (low + high) / 2
        low, high = (middle, high) if wait_cdf(rho, middle) < share else (low, middle)
    return high


@dataclass(frozen=True, slots=True)
class Prefill:
    """A replica that prefills prompts of `execution_s` seconds each, split over GPUs in one of two ways.

    With `tp` GPUs side by side a prompt takes execution_s / `speedup`; with `pp` stages it takes as long as on one,
    and the next may begin after execution_s / pp. `replicas` share the arrivals at random.
    """

    execution_s: float
    tp: int = 1
    pp: int = 1
    speedup: float = 1.0
    replicas: int = 1

    @property
    def own_s(self) -> float:
        """Seconds of a prompt that does not wait."""
        return self.execution_s / self.speedup

    @property
    def between_s(self) -> float:
        """Seconds from the start of one prompt to that of the next, while others wait."""
        return self.own_s / self.pp

    def utilisation(self, rate_rps: float) -> float:
        """Busy share of the first stage when `rate_rps` prompts arrive per second at all replicas together."""
        return rate_rps / self.replicas * self.between_s

    def mean_s(self, rate_rps: float) -> float:
        """Mean TTFT in seconds; infinite where the queue grows."""
        return self.own_s + self.between_s * mean_wait(self.utilisation(rate_rps))

    def quantile_s(self, rate_rps: float, share: float) -> float:
        """TTFT in seconds that a `share` of the requests does not exceed."""
        return self.own_s + self.between_s * wait_quantile(self.utilisation(rate_rps), share)


def crossover(speedup: float, ways: int = 2) -> float | None:
    """rho = rate x execution time below which `ways`-way tensor parallelism with this speed-up has the lower mean TTFT.

    Above it pipeline parallelism over as many stages has. None where tensor parallelism is the better one as long as
    both are stable; 0 where it never is.
    """
    tensor, pipeline = Prefill(1.0, tp=ways, speedup=speedup), Prefill(1.0, pp=ways)

    def ahead(rho: float) -> float:
        return pipeline.mean_s(rho) - tensor.mean_s(rho)

    if speedup <= 1:
        return 0.0
    low, high = 0.0, min(speedup, ways) * (1 - 1e-12)
    if ahead(high) > 0:
        return None
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if ahead(middle) > 0 else (low, middle)
    return high

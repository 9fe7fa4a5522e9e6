"""Laws: closed forms and invariants that hold for every serving system.

Source: queueing theory (Little, 1961; M/D/1 by Pollaczek, Khinchine and Crommelin), and arithmetic over the shapes of
models.
"""

from functools import lru_cache
from math import exp, inf

from backends.latency import step_times
from harness import registry
from harness.api import Request, Row

NEGLIGIBLE = 1e-18
"""A probability that no sum notices."""
ANSWER_TOKENS = 200
"""Tokens of a simulated answer, over which the context grows."""
LEAST_DRAWN = 64
"""Requests at least, over which the simulated speed-up of drafts is a mean."""


def speculative(
    k: int = 4, alpha: float = 0.7, batch: int = 1, cost: float = 0.1, context_tokens: int = 512,
    simulate: bool = False, model: str = "opt-13b", hardware: str = "a100-80g", latency: str = "roofline", tp: int = 1,
) -> list[Row]:  # fmt: skip
    """Compute the speed-up of decoding with `k` verified drafts, each accepted with probability `alpha`.

    A draft costs `cost` of a decode step. 'memory bound' is the speed-up of one sequence whose verification takes as
    long as a decode; 'in batch' that of `batch` sequences by the latency model, where verified tokens cost as much as
    generated ones beyond the knee. The simulation has equal requests that come at once, with 200 tokens each.

    Source: Leviathan et al., Fast Inference from Transformers via Speculative Decoding, ICML 2023.
    """
    if alpha > 1 or cost > 1:
        raise ValueError("alpha and cost are shares of at most 1.")
    system = {"model": model, "hardware": hardware, "tp": tp}
    timed, tokens = step_times(latency, **system), tokens_per_step(k, alpha)
    plain_s = timed.decode_s(batch, batch * context_tokens)
    verify_s = timed.step_s([(k + 1, context_tokens)] * batch, 0, 0)  # k + 1 tokens of every sequence
    row: Row = {
        "accepted_share": (tokens - 1) / k, "tokens_per_step": tokens,
        "memory_bound_ratio": tokens / (1 + k * cost),
        "in_batch_ratio": tokens * plain_s / (verify_s + k * cost * plain_s),
    }  # fmt: skip
    if simulate:
        drafts = f"k={k},alpha={alpha!r},cost={cost!r}"
        row["simulated_ratio"] = _simulated_speed_up(batch, context_tokens, drafts, latency=latency, **system)
    return [row]


def tokens_per_step(drafts: int, accepted: float) -> float:
    """Mean tokens of a step that verifies `drafts` tokens, each accepted with probability `accepted`."""
    return drafts + 1.0 if accepted == 1 else (1 - accepted ** (drafts + 1)) / (1 - accepted)


def _simulated_speed_up(batch: int, context: int, speculate: str, **system: object) -> float:
    """How many times as fast `batch` equal requests of `context` tokens decode with drafts, on a simulated replica.

    Small batches come in several waves, far apart, since what is accepted is drawn.
    """
    tpot_s = []
    waves = -(-LEAST_DRAWN // batch)
    requests = [Request(i, 1e4 * (i // batch), context, ANSWER_TOKENS) for i in range(batch * waves)]
    for drafts in (None, speculate):
        simulator = registry.make(
            "backends", "sim", policy="vllm-v0:max_seqs=100000", speculate=drafts, log_steps=False,
            kv_blocks=batch * (context + 2 * ANSWER_TOKENS) // 8 + 64, **system,
        )  # fmt: skip
        tpot_s.append(sum(r.token_s[-1] - r.token_s[0] for r in simulator.simulate(iter(requests))))
    return float(tpot_s[0] / tpot_s[1])


def mean_wait(rho: float) -> float:
    """Mean wait in service times at utilisation `rho` below 1."""
    return rho / (2 * (1 - rho)) if rho < 1 else inf


@lru_cache(maxsize=64)
def _tails(rho: float) -> tuple[float, ...]:
    """P(more than n arrivals within one service), n = 0, 1, ..., as far as it matters."""
    terms, n = [exp(-rho)], 0
    while terms[-1] > NEGLIGIBLE or n < rho:
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
    """Return P(wait <= `wait` service times) at utilisation `rho` in [0, 1).

    Source: Crommelin 1932 and Franx, "A simple solution for the M/D/c waiting time distribution", 2001: terms that are
    all positive and so exact at any load.
    """
    if rho <= 0:
        return 1.0
    queue, k = _queue(rho), int(wait) + 1
    mean = rho * (k - wait)
    term, total = exp(-mean), 0.0
    for j in range(k):
        total += queue.waiting(k - 1 - j) * term
        term *= mean / (j + 1)
        if term < NEGLIGIBLE:
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

"""Does the interval of the steady-state search hold on queues whose truth costs nothing? Hundreds of searches a minute.

The same search as `bench capacity`, on chains of Lindley's recursion instead of the simulator: one server, first come
first served, requests within the SLO when they wait no longer than a bound. Service times, arrivals, bound and goal are
drawn; the truth is read off long runs of other seeds. `tests/perf/random_systems.py` does it on the simulator.

    python tests/perf/capacity_queues.py [--first 0] [--queues 20] [--searches 10]
"""

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from harness.experiments.capacity.chain import ChainRequest, Observed, Unloaded
from harness.experiments.capacity.conditions import Condition
from harness.experiments.capacity.steady import Found, SteadySearch, SteadySpec
from harness.metrics.objective import JOINT

TRUTH = 2_000_000
"""Requests of a run of which four at each rate tell the truth."""


@dataclass(frozen=True)
class Queue:
    """Mean service is 1 s; `bound_s` is the longest wait; gaps are gamma of `cv`, at a rate that jumps (`dwell_s`)."""

    cv_service: float
    cv: float
    bound_s: float
    goal: float
    dwell_s: float = 0.0

    def waits(self, seed: int, rate_rps: float, until_s: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """When requests are due, how long they wait and when they end; all (requests,)."""
        gaps_rng, service_rng, rate_rng = np.random.default_rng(seed).spawn(3)
        n = int(until_s * rate_rps * 1.3 + 10 * math.sqrt(until_s * rate_rps) * max(1, self.cv) + 400)
        shape = self.cv**-2
        unit = np.cumsum(gaps_rng.gamma(shape, 1 / shape, n))
        due_s = unit / rate_rps
        if self.dwell_s:  # half of the time at half of the rate, the other half at one and a half times of it
            dwells = rate_rng.exponential(self.dwell_s, int(until_s * 1.3 / self.dwell_s) + 60)
            ends = np.cumsum(dwells)
            rates = np.where((np.arange(len(dwells)) + rate_rng.integers(2)) % 2 == 0, 0.5, 1.5)
            due_s = np.interp(due_s, np.concatenate([[0], np.cumsum(dwells * rates)]), np.concatenate([[0], ends]))
        due_s = due_s[: np.searchsorted(due_s, until_s * 1.02 + 50)]
        sigma = math.sqrt(math.log(1 + self.cv_service**2))
        work = service_rng.lognormal(-(sigma**2) / 2, sigma, n)[: len(due_s)]
        behind = np.cumsum(work) - work - due_s
        wait = behind - np.minimum.accumulate(np.minimum(behind, 0))
        wait = np.maximum(wait, 0)
        return due_s, wait, due_s + wait + work

    def observed(self, request: ChainRequest) -> Observed:
        """A chain."""
        due_s, wait, end_s = self.waits(request.seed, request.rate_rps, request.until_s)
        block, ended = ((np.maximum(t - request.cut_s, -1e-9) // request.block_s).astype(int) for t in (due_s, end_s))
        inside = (block >= 0) & (block < request.blocks)
        of = np.bincount(block[inside], minlength=request.blocks)
        met = np.bincount(block[inside], wait[inside] <= self.bound_s, minlength=request.blocks).astype(int)
        came, gone = (
            np.bincount(np.clip(b, 0, request.blocks), minlength=request.blocks + 1)[:-1] for b in (block, ended)
        )
        return Observed(request, {JOINT: met}, {JOINT: of}, np.cumsum(came - gone), len(due_s))

    def alone(self) -> Unloaded:
        """Service times."""
        sigma = math.sqrt(math.log(1 + self.cv_service**2))
        return Unloaded((), 1.0, math.exp(-(sigma**2) / 2 + 2.33 * sigma))

    def searched(self, seed: int, limit: int, tolerance: float = 0.03) -> Found:
        """One search."""
        spec = SteadySpec(
            (Condition(JOINT, self.goal),), self.goal, tolerance, limit, seed, memory_s=self.dwell_s / 2,
            patience_s=2 * self.bound_s,
        )  # fmt: skip
        steps, made = SteadySearch(spec, self.alone()).steps(), None
        while True:
            try:
                made = [self.observed(request) for request in steps.send(made)]
            except StopIteration as end:
                return end.value

    def truth(self) -> float:
        """Where the mean over long runs crosses the goal."""
        low, high = 1e-3, 1.0
        for _ in range(40):
            rate = (low + high) / 2
            span_s = TRUTH / rate
            shares = []
            for seed in range(2):
                _, wait, _ = self.waits(9_000_000 + seed, rate, span_s)
                shares.append(float((wait[len(wait) // 20 :] <= self.bound_s).mean()))
            low, high = (rate, high) if np.mean(shares) >= self.goal else (low, rate)
            if high / low < 1.003:
                break
        return (low + high) / 2


def drawn(number: int) -> Queue:
    """The queue of that number."""
    rng = np.random.default_rng([23, number])
    return Queue(
        float(rng.choice([0.3, 1.0, 2.0])), float(rng.choice([1.0, 1.0, 2.0, 4.0])), float(10 ** rng.uniform(0.3, 1.7)),
        float(rng.choice([0.9, 0.9, 0.99])), float(rng.choice([0.0, 0.0, 20.0, 100.0])),
    )  # fmt: skip


def rows(first: int, queues: int, searches: int, limit: int) -> Iterator[tuple[Queue, float, list[Found]]]:
    """Each queue with its truth and its searches."""
    for number in range(first, first + queues):
        queue = drawn(number)
        yield queue, queue.truth(), [queue.searched(100_000 * (s + 1), limit) for s in range(searches)]


def main() -> None:
    """Print a line for each queue and the totals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--queues", type=int, default=20)
    parser.add_argument("--searches", type=int, default=10)
    parser.add_argument("--limit", type=int, default=1_000_000)
    given = parser.parse_args()
    total: list[tuple[bool, bool, float, float, int]] = []
    for queue, truth, found in rows(given.first, given.queues, given.searches, given.limit):
        mine = []
        for one in found:
            low, high = (one.estimate.low_rps, one.estimate.high_rps) if one.estimate else one.bracket
            held = (low or 0) <= truth * 1.003 and truth / 1.003 <= (high or math.inf)  # what the truth is known to
            half = (high / low - 1) / 2 if low and high else math.inf
            off = math.log(one.estimate.rate_rps / truth) if one.estimate and one.resolved else math.nan
            mine.append((held, one.resolved, half, off, one.requests))
        total += mine
        print(f"{summary(mine)}  truth {truth:.3f} {queue}", flush=True)
    print(f"{summary(total)}  all")


def summary(found: Sequence[tuple[bool, bool, float, float, int]]) -> str:
    """Coverage, resolution, bias, half width and cost."""
    held, resolved, half, off, requests = (np.array(column) for column in zip(*found, strict=True))
    bias = np.nanmean(off) if resolved.any() else math.nan
    return (
        f"held {held.mean():4.0%} resolved {resolved.mean():4.0%} bias {100 * bias:+5.1f}% "
        f"+-{100 * np.median(half):.1f}% {np.median(requests):9,.0f} requests"
    )


if __name__ == "__main__":
    main()

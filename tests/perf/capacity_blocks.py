"""Does the interval of a search on a wall clock hold, and is its budget kept? Hundreds of searches a minute.

The same search as `bench capacity` against a server, under a virtual clock that every trial advances by what it would
take. The servers are queues with several slots, drawn by number: service times, slots, arrivals, bound and goal; the
truth is read off long runs of other seeds. With --curves they are curves of attainment over the rate, flat and steep,
whose truth is exact, and the searches begin where the closed loop of `bench quick` would let them.

    python tests/perf/capacity_blocks.py [--first 0] [--queues 20] [--searches 10] [--budget 600 1800] [--slots 48]
    python tests/perf/capacity_blocks.py --curves --queues 250 --searches 2 --budget 30 45 60 180
"""

import argparse
import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.stats import norm

from harness.api import Bound
from harness.experiments.capacity.blocks import search
from harness.experiments.capacity.conditions import Share, sure_misses
from harness.experiments.capacity.search_spec import SearchResult, SearchSpec, TrialRequest
from harness.experiments.capacity.trials import CLUMP, FAR, PART, SETTLE, Trial, answered_rps, arrived_rps, dispersion
from harness.metrics.objective import JOINT, parse_slo
from harness.validity.steady_state import grown

Floats: TypeAlias = npt.NDArray[np.float64]

OVERHEAD_S = 2.0
"""What a run takes beyond its traffic and its last answer."""
TRUTH = 400_000
SEED = 20261128
LOOP_SHARE = 0.3
"""Of the budget, what the closed loop takes at most."""


@dataclass(frozen=True)
class Server:
    """`slots` requests at a time; a request meets the SLO that ends within `bound` mean service times."""

    slots: int
    mean_s: float
    cv_service: float
    cv: float
    bound: float
    goal: float

    def served(self, seed: int, rate_rps: float, requests: int) -> tuple[Floats, Floats, Floats]:
        """When requests are due, begun and ended; all (requests,)."""
        gaps_rng, service_rng = np.random.default_rng(seed).spawn(2)
        due_s = np.cumsum(gaps_rng.gamma(self.cv**-2, self.cv**2 / rate_rps, requests))
        sigma = math.sqrt(math.log(1 + self.cv_service**2))
        service = self.mean_s * service_rng.lognormal(-(sigma**2) / 2, sigma, requests)
        free_s = [0.0] * self.slots
        begun_s, end_s = np.empty(requests), np.empty(requests)
        for i, (at_s, takes_s) in enumerate(zip(due_s.tolist(), service.tolist(), strict=True)):
            begun_s[i] = max(at_s, free_s[0])
            end_s[i] = begun_s[i] + takes_s
            heapq.heapreplace(free_s, end_s[i])
        return due_s, begun_s, end_s

    def alone(self, seed: int, requests: int) -> Floats:
        """(requests,) how long requests take, one after the other."""
        sigma = math.sqrt(math.log(1 + self.cv_service**2))
        return self.mean_s * np.random.default_rng(seed).lognormal(-(sigma**2) / 2, sigma, requests)

    @property
    def bound_s(self) -> float:
        """The longest time of a request that meets the SLO."""
        sigma = math.sqrt(math.log(1 + self.cv_service**2))
        return self.mean_s * math.exp(2.33 * sigma - sigma**2 / 2) * self.bound

    def truth(self) -> float:
        """Where attainment over long runs crosses the goal."""
        low, high = 0.02 * self.slots / self.mean_s, 1.05 * self.slots / self.mean_s
        while high / low > 1.004:
            rate = math.sqrt(low * high)
            due_s, _, end_s = self.served(9_000_001, rate, TRUTH)
            good = float((end_s - due_s <= self.bound_s)[TRUTH // 20 :].mean()) >= self.goal
            low, high = (rate, high) if good else (low, rate)
        return math.sqrt(low * high)


@dataclass(frozen=True)
class CurveServer:
    """Attainment falls on a logistic curve from `ceiling` and crosses the goal at `knee_rps` (0: nowhere).

    Requests that follow each other miss together (`together` is the correlation of their latent normals), a trial
    begins empty and takes `fills` answers to reach its load, and no more than `most_rps` are answered.
    """

    knee_rps: float
    most_rps: float
    mean_s: float
    slope: float
    ceiling: float
    together: float
    fills: float
    goal: float

    @property
    def bound_s(self) -> float:
        """The longest time of a request that meets the SLO: those that wait their turn below the knee do."""
        return 2 * self.mean_s + 30 / self.most_rps

    def attained(self, rate_rps: Floats) -> Floats:
        """Attainment in the long run."""
        if not self.knee_rps:
            return np.full(len(rate_rps), self.ceiling)
        ratio = self.goal / self.ceiling
        z = math.log(ratio / (1 - ratio)) - self.slope * np.log(np.maximum(rate_rps, 1e-9) / self.knee_rps)
        return np.asarray(self.ceiling / (1 + np.exp(-np.clip(z, -30, 30))))

    def served(self, seed: int, rate_rps: float, requests: int) -> tuple[Floats, Floats, Floats]:
        """When requests are due, begun and ended; all (requests,)."""
        gaps_rng, latent_rng = np.random.default_rng(seed).spawn(2)
        due_s = np.cumsum(gaps_rng.exponential(1 / rate_rps, requests))
        free_s = np.arange(requests) / self.most_rps
        begun_s = np.maximum.accumulate(due_s - free_s) + free_s
        latent = latent_rng.standard_normal(requests)
        for i in range(1, requests):
            latent[i] = self.together * latent[i - 1] + math.sqrt(1 - self.together**2) * latent[i]
        load_rps = rate_rps * -np.expm1(-(due_s / self.mean_s + 0.2) / self.fills)
        good = norm.cdf(latent) <= self.attained(load_rps)
        return due_s, begun_s, begun_s + np.where(good, self.mean_s, 1.2 * self.bound_s)

    def alone(self, seed: int, requests: int) -> Floats:
        """(requests,) how long requests take, one after the other."""
        good = np.random.default_rng(seed).random(requests) <= self.ceiling
        return np.where(good, self.mean_s, 1.2 * self.bound_s)

    def truth(self) -> float:
        """Where attainment crosses the goal."""
        return self.knee_rps


@dataclass
class Clock:
    """One search of a server; `spent_s` is what its trials took."""

    server: Server | CurveServer
    budget_s: float
    spent_s: float = 0.0
    trials: list[Trial] = field(default_factory=list)

    def trial(self, want: TrialRequest) -> Trial:
        """A trial, as `bench capacity` makes it on a wall clock: what is under way when the budget ends has missed."""
        key, server = want.key, self.server
        if key.rate_rps == 0:
            e2e_s = server.alone(key.seed, key.planned)
            return self._made(want, np.zeros(key.planned), np.zeros(key.planned), e2e_s, float(e2e_s.sum()), None)
        due_s, begun_s, end_s = server.served(key.seed, key.rate_rps, key.planned)
        late_s = due_s + server.bound_s
        missed = end_s > late_s
        known_s = np.where(missed, late_s, end_s)
        order = np.argsort(known_s)
        misses, ended = np.cumsum(missed[order]), np.arange(1, key.planned + 1)
        if key.goal is not None:
            over = misses >= sure_misses(server.goal, key.planned)
        else:
            spread = np.sqrt(CLUMP * server.goal * (1 - server.goal) * ended)
            over = (misses > (1 - server.goal + FAR) * ended + 4 * spread) & (ended >= PART * key.planned)
        if over.any():  # those under way are awaited
            at_s = float(known_s[order][int(np.argmax(over))])
            sent = due_s <= at_s
            return self._made(want, due_s[sent], begun_s[sent], end_s[sent], float(end_s[sent].max()), False)
        good = grown(due_s, begun_s, float(due_s[-1])) is None
        return self._made(want, due_s, begun_s, end_s, float(end_s.max()), good)

    def _made(
        self, want: TrialRequest, due_s: Floats, begun_s: Floats, end_s: Floats, span_s: float, good: bool | None
    ) -> Trial:
        key = want.key
        left_s = max(0.0, self.budget_s - self.spent_s - OVERHEAD_S)
        if span_s > left_s and key.rate_rps:
            sent, span_s = due_s <= left_s, left_s
            due_s, begun_s, end_s = due_s[sent], begun_s[sent], np.where(end_s <= left_s, end_s, math.inf)[sent]
        self.spent_s += span_s + OVERHEAD_S
        answered_s = end_s[np.isfinite(end_s)]
        mask = end_s - due_s <= self.server.bound_s
        inside = np.full(len(due_s), True)
        if want.settle_s is not None:
            took_s = (end_s - due_s)[np.isfinite(end_s)]
            tail_s = min(want.settle_s / SETTLE, float(took_s.mean())) if len(took_s) else 0.0
            inside = (due_s >= want.settle_s) & (due_s <= key.planned / key.rate_rps - tail_s)
        mask = mask[inside]
        shares = tuple(Share(text, int(mask.sum()), len(mask), mask) for text in (JOINT, Bound("e2e", 1.0)))
        passed, grew = (None, good is False) if key.goal is None else (bool(good), False)
        e2e_s = float((end_s - due_s)[np.isfinite(end_s)].mean()) if len(answered_s) else None
        return Trial(
            key, len(due_s), len(mask), 0.0, passed, grew, e2e_s, span_s, span_s + OVERHEAD_S, shares,
            answered_rps=answered_rps(answered_s) if key.rate_rps else None, arrived_rps=arrived_rps(due_s[inside]),
            dispersion=dispersion(due_s[inside]),
        )  # fmt: skip

    def searched(self, seed: int, from_rps: float | None = None) -> SearchResult:
        """The search."""
        spec = SearchSpec(
            replace(parse_slo("e2e=1"), goal=self.server.goal), self.server.goal, "joint", 660, first_seed=seed,
            tolerance=0.05, budget_s=self.budget_s, from_rps=from_rps,
        )  # fmt: skip
        steps, made = search(spec, lambda: self.budget_s - self.spent_s), None
        while True:
            try:
                wanted = steps.send(made)
            except StopIteration as end:
                return end.value
            made = [self.trial(one) for one in wanted] if self.spent_s < self.budget_s else []
            self.trials += made


def drawn(number: int, slots: int | None, mean_s: float | None) -> Server:
    """The server of that number."""
    rng = np.random.default_rng([31, number])
    server = Server(
        int(rng.choice([4, 8, 16, 48, 96])), float(10 ** rng.uniform(-0.5, 1.0)), float(rng.choice([0.01, 0.5, 1.0])),
        float(rng.choice([1.0, 1.0, 1.0, 2.0])), float(rng.uniform(1.05, 3.0)),
        float(rng.choice([0.9, 0.9, 0.95, 0.99])),
    )  # fmt: skip
    return replace(server, slots=slots or server.slots, mean_s=mean_s or server.mean_s)


def drawn_curve(number: int) -> CurveServer:
    """The curve of that number: 0.5 to 50 requests at once at the knee, and one of ten without a rate low enough."""
    rng = np.random.default_rng([SEED, number])
    mean_s = float(10 ** rng.uniform(-0.7, 0.3))
    knee_rps = float(10 ** rng.uniform(-0.3, 1.7)) / mean_s
    goal = float(rng.choice([0.9, 0.9, 0.9, 0.95, 0.99]))
    ceiling = 1 - (1 - goal) * float(rng.choice([0.0, 0.0, 0.35, 0.7]))
    most_rps = knee_rps * float(rng.uniform(1.2, 3.0))
    slope, together, fills = (
        float(10 ** rng.uniform(0.0, 1.5)),
        float(rng.uniform(0.0, 0.9)),
        float(rng.uniform(0.2, 2)),
    )
    if rng.random() < 0.1:
        ceiling, knee_rps = goal - float(rng.uniform(0.02, 0.4)), 0.0
    return CurveServer(knee_rps, most_rps, mean_s, slope, ceiling, together, fills, goal)


Sides: TypeAlias = tuple[float | None, float | None, float]
"""The rate below and the rate above of a search, None where there is none, and the truth."""


def brackets(numbers: Sequence[int], searches: int, budget_s: float) -> str:
    """How often the sides of a search hold the truth: those of intervals, those that are sure, and all."""
    each: dict[str, list[Sides]] = {"intervals": [], "sure sides": [], "all sides": []}
    spent = []
    for number in numbers:
        server = drawn_curve(number)
        for search_number in range(searches):
            rng = np.random.default_rng([SEED, number, search_number])
            clock = Clock(server, budget_s, spent_s=min(LOOP_SHARE * budget_s, 8 * server.mean_s) + OVERHEAD_S)
            result = clock.searched(100_000 * (search_number + 1), server.most_rps * float(rng.lognormal(-0.5, 0.7)))
            spent.append(clock.spent_s / budget_s)
            if result.answered is not None:
                each["intervals"].append((result.answered.low_rps, result.answered.high_rps, server.truth()))
                continue
            sides = result.bracket.low, result.bracket.high
            for name in ("sure sides", "all sides"):
                low, high = (s.rate_rps if s and (s.sure or name == "all sides") else None for s in sides)
                each[name].append((low, high, server.truth()))
    lines = [f"{budget_s:g} s: {len(spent)} searches, {np.mean(spent):.0%} of the budget spent"]
    return "\n  ".join([*lines, *(f"{name}: {held(rows)}" for name, rows in each.items())])


def held(rows: Sequence[Sides]) -> str:
    """Of how many the truth lies between, which side is wrong how often, and how far they are apart."""
    lows = [(low, truth) for low, _, truth in rows if low]
    highs = [(high, truth) for _, high, truth in rows if high]
    two = [high / low for low, high, _ in rows if low and high]
    low_wrong = sum(low > 1.005 * truth for low, truth in lows)
    high_wrong = sum(high < truth / 1.005 for high, truth in highs)
    some = len(lows) + len(highs) - len(two)
    above = [high / truth for high, truth in highs if truth]
    return (
        f"{some} with a side ({len(two)} with two, median ratio {np.median(two or [math.nan]):.2f}), "
        f"{1 - (low_wrong + high_wrong) / max(1, some):.1%} hold the truth; low side wrong {low_wrong} of {len(lows)}, "
        f"high side wrong {high_wrong} of {len(highs)} (median {np.median(above or [math.nan]):.2f} times the truth)"
    )


def main() -> None:
    """Print a line for each server and the totals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--queues", type=int, default=20)
    parser.add_argument("--searches", type=int, default=10)
    parser.add_argument("--budget", type=float, nargs="+", default=[600.0])
    parser.add_argument("--slots", type=int)
    parser.add_argument("--mean", type=float)
    parser.add_argument("--curves", action="store_true")
    given = parser.parse_args()
    if given.curves:
        for budget_s in given.budget:
            print(brackets(range(given.first, given.first + given.queues), given.searches, budget_s), flush=True)
        return
    total: dict[float, list[tuple[bool, bool, float, float, float]]] = {budget_s: [] for budget_s in given.budget}
    for number in range(given.first, given.first + given.queues):
        server = drawn(number, given.slots, given.mean)
        truth = server.truth()
        for budget_s in given.budget:
            mine = []
            for one in range(given.searches):
                clock = Clock(server, budget_s)
                found = clock.searched(100_000 * (one + 1))
                estimate, bracket = found.answered, found.bracket
                low = estimate.low_rps if estimate else bracket.low and bracket.low.rate_rps
                high = estimate.high_rps if estimate else bracket.high and bracket.high.rate_rps
                held = (low or 0) <= truth * 1.005 and truth / 1.005 <= (high or math.inf) and not found.unreachable
                half = (high / low - 1) / 2 if low and high else math.inf
                off = math.log(estimate.rate_rps / truth) if estimate else math.nan
                mine.append((held, estimate is not None, half, off, clock.spent_s / budget_s))
            total[budget_s] += mine
            print(f"{budget_s:g} s: {summary(mine)}  truth {truth:.3f} {server}", flush=True)
    for budget_s, found_all in total.items():
        each = np.array([held for held, *_ in found_all]).reshape(given.queues, given.searches)
        print(f"{budget_s:g} s: {summary(found_all)}  all, worst server held {each.mean(1).min():.0%}")


def summary(found: Sequence[tuple[bool, bool, float, float, float]]) -> str:
    """Coverage, share with an interval, bias, half widths, and what was spent of the budget."""
    held, interval, half, off, spent = (np.array(column) for column in zip(*found, strict=True))
    bias = np.nanmean(off) if interval.any() else math.nan
    return (
        f"held {held.mean():4.0%} interval {interval.mean():4.0%} bias {100 * bias:+5.1f}% "
        f"+-{100 * np.median(half):.1f}% (9 of 10 within {100 * np.quantile(half, 0.9, method='higher'):.1f}%, "
        f"within 10% {(half <= 0.1).mean():.0%}) time {spent.min():.2f} to {spent.max():.2f}"
    )


if __name__ == "__main__":
    main()

"""Whether a simulated system meets its goals at one rate, over a horizon: the mean share of runs, with an interval."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from harness.experiments.capacity.horizon import HorizonSearch, SearchEnded
from harness.experiments.capacity.search_spec import TrialRequest
from harness.experiments.capacity.trials import Key
from harness.stats.seeds import student

if TYPE_CHECKING:
    from harness.experiments.capacity.conditions import Condition
    from harness.experiments.capacity.trials import Trial

LIMIT = 400_000
"""Requests that may be spent on the question."""
CLUMP, SURE = 6.0, 4.0
"""One run tells a miss by so many standard errors, where so many requests miss together."""
INTERIM = 1.3
"""Wider than an interval must be what decides, because it is looked at more than once."""


@dataclass(frozen=True, slots=True)
class Attained:
    """The share of the condition that is the farthest below its goal, with its 95% interval (None: no interval).

    `meets` is False where the goal is surely missed, None where the seeds do not tell. `by_seed` are the shares by
    seed: on equal seeds two systems have the same traffic.
    """

    meets: bool | None
    share: float
    low: float | None
    high: float | None
    binding: str
    requests: int
    by_seed: dict[int, float] = field(default_factory=dict)


Steps = Generator[list[TrialRequest], "list[Trial]", Attained]


class AtRate(HorizonSearch):
    """The question for one rate."""

    def attained(self, seeds: Sequence[int], *, rough: bool = False) -> Steps:
        """Runs of these seeds, and of as many again until the side of the goals is known or the limit is spent; one
        alone decides where it can, and with `rough` in any case. A recording is one run."""
        spec, rate_rps = self.spec, self.spec.at_rps
        assert rate_rps is not None
        if not spec.one_traffic and (yield from self._alone()) is not None:
            return Attained(False, 0.0, None, None, "without load", self._spent)
        self.horizon_s = self._horizon_at(rate_rps)
        wanted, slo = self._objective(self.horizon_s)
        runs: list[Trial] = []
        new = list(seeds[:1])
        if self._spent > spec.limit:
            return Attained(None, 0.0, None, None, "not run: --max-requests is too low", self._spent)
        while True:
            runs += yield from self._made(
                [TrialRequest(Key(seed, rate_rps, spec.planned), wanted, slo=slo) for seed in new]
                if spec.one_traffic
                else [self._request(seed, rate_rps, self.horizon_s, wanted, slo, None) for seed in new]
            )
            found = self._judged(runs, wanted)
            if rough or spec.one_traffic or found.meets is not None:
                return found
            affordable = int((spec.limit - self._spent) / (rate_rps * (self.horizon_s + self.settle_s)))
            more = min(max(len(seeds) // 2, 2, len(runs)), affordable)  # 1, 5, 10, 20, ... seeds
            if more < 1:
                return found
            new = list(range(seeds[0] + len(runs), seeds[0] + len(runs) + more))

    def rough(self) -> Generator[list[TrialRequest], list[Trial], tuple[float, int]]:
        """About the highest rate that meets the goals, between two short runs, and the requests that it took."""
        if (yield from self._alone()) is not None:
            return 0.0, self._spent
        try:
            low, high = yield from self._bracket()
        except SearchEnded:
            low, high = max((rate for rate, good in self._sides.items() if good), default=None), None
        return math.sqrt(low * high) if low and high else low or 0.0, self._spent

    def _judged(self, runs: Sequence[Trial], wanted: Sequence[Condition]) -> Attained:
        """What the runs say of the condition that is the farthest below its goal."""
        shares = {c: {t.key.seed: t.share(c.key).met / max(1, t.share(c.key).of) for t in runs} for c in wanted}
        condition = min(wanted, key=lambda c: math.fsum(shares[c].values()) / len(runs) - c.goal)
        by_seed, goal = shares[condition], condition.goal
        n, of = len(runs), max(1, sum(trial.share(condition.key).of for trial in runs))
        mean = math.fsum(by_seed.values()) / n
        error = math.sqrt(goal * (1 - goal) / of)  # of independent requests
        if self.spec.one_traffic:
            return Attained(mean >= goal, mean, None, None, str(condition.key), self._spent, by_seed)
        if n == 1:
            meets = False if mean < goal - SURE * math.sqrt(CLUMP) * error else None
            return Attained(meets, mean, None, None, str(condition.key), self._spent, by_seed)
        half = student(n) * max(error, float(np.std([*by_seed.values()], ddof=1)) / math.sqrt(n))
        meets = True if mean - INTERIM * half >= goal else False if mean + INTERIM * half < goal else None
        low, high = max(0.0, mean - half), min(1.0, mean + half)
        return Attained(meets, mean, low, high, str(condition.key), self._spent, by_seed)

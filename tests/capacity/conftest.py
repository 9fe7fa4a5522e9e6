"""Systems that cost nothing: trials drawn from a known curve, and searches that run on them."""

import math
from dataclasses import dataclass, field

import numpy as np
import pytest

from harness.api import Bound
from harness.experiments.capacity.blocks import search
from harness.experiments.capacity.conditions import Share, missed
from harness.experiments.capacity.search_spec import SearchSpec
from harness.experiments.capacity.trials import Key, Trial
from harness.metrics.objective import JOINT, parse_slo

OVERHEAD_S = 1.0


@dataclass
class System:
    """Attainment is a logistic curve of the rate that crosses 90% at `knee_rps`; a trial's load is off by `scatter`.

    Probes pass up to `fooled_rps`, and miss with the seed `unlucky`. No more than `most_rps` are answered, and what is
    sent beyond that waits without a miss. `tried` are the trials, `spent_s` what they took.
    """

    knee_rps: float = 10.0
    slope: float = 25.0
    scatter: float = 0.02
    ceiling: float = 1.0
    e2e_s: float = 1.0
    fooled_rps: float = 0.0
    unlucky: int | None = None
    late_seeds: range = range(0)
    most_rps: float = math.inf
    tried: list[Key] = field(default_factory=list)
    spent_s: float = 0.0

    @property
    def made(self) -> int:
        """How many trials."""
        return len(self.tried)

    def attainment(self, seed: int, rate_rps: float) -> float:
        if rate_rps == 0:
            return self.ceiling
        away = math.log(rate_rps / self.knee_rps) + self.scatter * np.random.default_rng(seed).standard_normal()
        return self.ceiling / (1 + math.exp(min(700, -(math.log(9) - self.slope * away))))

    def trial(self, key: Key, wanted=()) -> Trial:
        self.tried.append(key)
        rng = np.random.default_rng([key.seed, round(1e6 * key.rate_rps), key.planned])
        mask = rng.random(key.planned) < self.attainment(key.seed, key.rate_rps)
        shares = tuple(Share(text, int(mask.sum()), len(mask), mask) for text in (JOINT, Bound("ttft", 0.25)))
        met = key.seed != self.unlucky and (key.rate_rps <= self.fooled_rps or not missed(shares, wanted))
        late = key.seed in self.late_seeds
        passed = None if key.goal is None or late else met
        span_s = key.planned * self.e2e_s if key.rate_rps == 0 else key.planned / key.rate_rps + self.e2e_s
        self.spent_s += span_s + OVERHEAD_S
        arrived_rps = key.rate_rps or None
        return Trial(
            key, key.planned, key.planned, 0.0, passed, False, self.e2e_s, span_s, span_s + OVERHEAD_S, shares,
            answered_rps=arrived_rps and min(arrived_rps, self.most_rps), arrived_rps=arrived_rps, dispersion=1.0,
            late=late,
        )  # fmt: skip

    def searched(self, budget_s: float = 600.0, **aim):
        """What a search finds in that time."""
        spec = {"goal": 0.9, "definition": "joint", "planned": 660, "own_rps": 2.0, "tolerance": 0.05, **aim}
        spec = {"budget_s": None if math.isinf(budget_s) else budget_s, **spec}
        going = search(SearchSpec(slo=parse_slo("ttft=0.25"), **spec), lambda: budget_s - self.spent_s)
        wanted = next(going)
        while True:
            over = self.spent_s >= budget_s
            try:
                wanted = going.send([] if over else [self.trial(w.key, w.conditions) for w in wanted])
            except StopIteration as end:
                return end.value


@pytest.fixture
def system():
    """A factory of systems with a known capacity."""
    return System

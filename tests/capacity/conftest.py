"""Systems that cost nothing: trials drawn from a known curve, and searches that run on them."""

import math
from dataclasses import dataclass

import numpy as np
import pytest

from harness.experiments.capacity.conditions import JOINT, Share, kept_all
from harness.experiments.capacity.execute import MeasuredAttainment
from harness.experiments.capacity.search import search
from harness.experiments.capacity.search_spec import SearchSpec
from harness.experiments.capacity.trials import Key, Trial
from harness.metrics.slo import parse


@dataclass
class System:
    """Attainment is a logistic curve of the rate that crosses 90% at `knee_rps`; a seed shifts it by `scatter`.

    In trials shorter than `fills_s` none misses, from `grows_rps` on the queue grows all through, and probes pass up
    to `fooled_rps`.
    """

    knee_rps: float = 10.0
    slope: float = 25.0
    scatter: float = 0.03
    ceiling: float = 1.0
    e2e_s: float = 1.0
    fills_s: float = 0.0
    grows_rps: float = math.inf
    fooled_rps: float = 0.0
    made: int = 0

    def attainment(self, seed: int, rate_rps: float, planned: int) -> float:
        scatter = self.scatter * math.sqrt(2000 / max(2000, planned))  # a longer trial averages more
        away = math.log(rate_rps / self.knee_rps) + scatter * np.random.default_rng(seed).standard_normal()
        return self.ceiling / (1 + math.exp(-(math.log(9) - self.slope * away)))

    def trial(self, key: Key, wanted=()) -> Trial:
        self.made += 1
        rng = np.random.default_rng([key.seed, round(1e6 * key.rate_rps), key.planned])
        full = key.planned / key.rate_rps >= self.fills_s
        share = self.attainment(key.seed, key.rate_rps, key.planned) if full else 1.0
        mask = rng.random(key.planned) < share
        shares = tuple(Share(text, int(mask.sum()), len(mask), mask) for text in (JOINT, "ttft=0.25"))
        grew = full and key.rate_rps >= self.grows_rps
        fooled = key.rate_rps <= self.fooled_rps
        passed = None if key.goal is None else fooled or (kept_all(shares, wanted) and not grew)
        span_s = key.planned / key.rate_rps
        return Trial(key, key.planned, key.planned, 0.0, passed, grew, self.e2e_s, span_s, 0.0, shares)

    def searched(self, budget: int = 10_000, known=(), **aim):
        """What a search finds that may make `budget` trials."""
        spec = {"goal": 0.9, "definition": "joint", "planned": 2000, "own_rps": 2.0, "tolerance": 0.03, **aim}
        going = search(SearchSpec(slo=parse("ttft=0.25"), **spec), MeasuredAttainment(), known)
        wanted = next(going)
        while True:
            left = max(0, budget - self.made)
            try:
                wanted = going.send([self.trial(w.key, w.conditions) for w in wanted[:left]])
            except StopIteration as end:
                return end.value


@pytest.fixture
def system():
    """A factory of systems with a known capacity."""
    return System


@pytest.fixture
def traffic():
    """A factory of draws: exponential gaps at a rate, lognormal prompts and outputs."""
    from harness.experiments.capacity.traffic import Drawn

    def drawn(seed=0, rate_rps=5.0, requests=2000):
        rng = np.random.default_rng(seed)
        due_s = np.cumsum(rng.exponential(1, requests)) / rate_rps
        prompts, outputs = (rng.lognormal(mean, 1.0, requests).round() + 1 for mean in (5.5, 4.5))
        return Drawn(due_s, prompts, outputs)

    return drawn

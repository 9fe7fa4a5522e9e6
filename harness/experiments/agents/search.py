"""How many agents meet a tier: the searches of `bench capacity`, with a number of agents in the place of a rate.

On a simulator 3.4 agents are 3 in six of ten runs and 4 in the others, by their seeds: so attainment falls with every
step of the load, as it does with a rate, and the answer is the whole number below the crossing. What a run happened to
draw is not taken off: in a closed loop a slow system is sent less. On a wall clock a block is a run of its own.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence

import numpy as np

from harness.api import Slo
from harness.experiments.capacity.blocks import SPENT, Blocks
from harness.experiments.capacity.conditions import kept_all
from harness.experiments.capacity.horizon import HorizonSearch, SearchEnded, Steps
from harness.experiments.capacity.search_spec import SearchResult, SearchSteps, TrialRequest
from harness.experiments.capacity.trials import Trial
from harness.stats.crossing import FEWEST_SEEDS

CUT = 0.25
"""Of the horizon, what comes before it and is not counted: in it agents start, and their caches become warm."""
MOST_AGENTS = 4096
"""No more are tried."""
WALL_STEP = 4
"""Times as many agents in the next trial of a bracket on a wall clock, where there is time for about eight."""
GOLDEN = (math.sqrt(5) - 1) / 2
ONE_MISSES = SearchResult(None, resolved=True, unreachable=True, why="even one agent alone misses it.")


def agents_at(load: float, seed: int) -> int:
    """Return how many agents a run has: of many seeds their mean is the load."""
    return max(1, math.floor(load + seed * GOLDEN % 1.0))


class AgentSearch(HorizonSearch):
    """A search under a virtual clock."""

    def objective(self) -> Slo:
        """Return the SLO by which trials are judged: with the implied bound on waiting, where it has none."""
        assert self.spec.horizon_s is not None
        self.alone_s = 1.0
        return self._objective(self.spec.horizon_s)[1]

    def _alone(self) -> Generator[list[TrialRequest], list[Trial], SearchResult | None]:
        """Run one agent: how many requests it sends, and whether the tier is met at all."""
        assert self.spec.horizon_s is not None
        self.horizon_s, self.settle_s, self.alone_s = self.spec.horizon_s, CUT * self.spec.horizon_s, 1.0
        wanted, slo = self._objective(self.horizon_s)
        alone = yield from self._made(
            [self._request(seed, 1.0, self.horizon_s, wanted, slo, None) for seed in self._fresh(FEWEST_SEEDS)]
        )
        self.pace_rps = sum(trial.requests for trial in alone) / sum(trial.system_s for trial in alone)
        return None if any(kept_all(trial.shares, wanted) for trial in alone) else ONE_MISSES

    def _probe(self, rate_rps: float) -> Generator[list[TrialRequest], list[Trial], bool]:
        if rate_rps > MOST_AGENTS:
            raise SearchEnded(f"{max(self._sides):,.0f} agents still met it, and no more were tried.")
        return (yield from super()._probe(rate_rps))

    @property
    def _hardly(self) -> float:
        return 1.0

    def _below_all(self, rate_rps: float) -> SearchResult | str:  # noqa: ARG002  # it is less than one
        return ONE_MISSES

    def _overload(self) -> Steps:
        yield from ()

    @property
    def _stable(self) -> tuple[float | None, str | None]:
        """Nothing: in a closed loop no queue grows without end."""
        return None, None

    def _drawn(self, trials: Sequence[Trial]) -> np.ndarray:
        return np.zeros((len(trials), 0))

    @property
    def _enough(self) -> bool:
        best = self._best
        return super()._enough or (best is not None and math.exp(best.high) - math.exp(best.low) <= 1)


class AgentBlocks(Blocks):
    """A search on a wall clock: every trial has new prompts, because a server remembers those that it was sent."""

    def steps(self) -> SearchSteps:
        """Yield the trials to run, one by one: more and more agents until some miss the tier, then around there."""
        users, sides = int(self._spec.from_rps or 1), dict[bool, int]()
        while len(sides) < 2:
            made = yield [self._block(users, 0.0)]
            if not made:
                return self._found(SPENT)
            self._made += made
            good = self._good(made[0])
            sides[good] = users
            users = users * WALL_STEP if good else users // WALL_STEP
            if users < 1:
                return ONE_MISSES
            if users > MOST_AGENTS:
                return self._found(f"{sides[True]:,} agents still met it, and no more were tried.")
        return (yield from self._narrow())

    def _block(self, rate_rps: float, sd: float) -> TrialRequest:  # noqa: ARG002  # all last equally long
        return TrialRequest(self._key(max(1.0, round(rate_rps)), 0), self._spec.wanted)

"""What a search of a capacity is after, asks for and finds."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from harness.capacity.conditions import Condition, Definition, bounds_of, conditions

if TYPE_CHECKING:
    from harness.api import Slo
    from harness.capacity.curve import Curve
    from harness.capacity.estimate import Estimate, Shares
    from harness.capacity.trials import Key, Tried

FIRST_SEEDS, FIRST_SEEDS_ON_THE_CLOCK = 12, 8
"""Seeds before the first decision to stop, of a simulator and in real time, where each costs minutes. Looking early
costs coverage: of nominal 95%, 92% of 60 searches after 8 seeds, 94% of 200 after 12 (chatbot)."""

Trials = Generator["list[Wanted]", "list[Tried]", "Found"]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A trial that the search needs next; a probe is decided by its conditions."""

    key: Key
    conditions: tuple[Condition, ...] = ()


class Measures(Protocol):
    """How attainment is taken from trials: as found, or adjusted for the traffic that was drawn."""

    def fit(self, trials: Sequence[Tried], condition: Condition) -> None:
        """Learn from all trials so far."""
        ...

    def __call__(self, trials: Sequence[Tried], condition: Condition) -> Shares:
        """The attainment of each trial."""
        ...


@dataclass(frozen=True, slots=True)
class Aim:
    """What a search is after: one goal, to a tolerance (half of the interval as a share of the capacity).

    `one_traffic`: every seed sends the same, as with a recording; then one trial a rate is all there is.
    """

    slo: Slo
    goal: float
    definition: Definition
    planned: int
    first_seed: int = 0
    tolerance: float = 0.03
    max_seeds: int = 20
    at_rps: float | None = None
    from_rps: float | None = None
    own_rps: float = 1.0
    virtual: bool = True
    one_traffic: bool = False

    @property
    def first_seeds(self) -> int:
        """Seeds before the first decision to stop."""
        return min(FIRST_SEEDS if self.virtual else FIRST_SEEDS_ON_THE_CLOCK, self.max_seeds)

    @property
    def wanted(self) -> tuple[Condition, ...]:
        """The conditions that must hold."""
        return conditions(self.slo, self.goal, self.definition)

    @property
    def bounds(self) -> tuple[Condition, ...]:
        """Each bound by itself."""
        return tuple(bounds_of(self.slo, self.goal))


@dataclass(frozen=True, slots=True)
class Found:
    """What came of a search: an estimate, or why there is none. `unreachable`: the goal is missed without load."""

    estimate: Estimate | None
    resolved: bool
    unreachable: bool = False
    why: str | None = None
    bounds: dict[str, Curve] = field(default_factory=dict)


def plain(rate_rps: float) -> float:
    """Four digits: enough for any interval, and a name that a person can read."""
    return float(f"{rate_rps:.4g}")

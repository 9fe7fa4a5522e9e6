"""What a search is told beside the options of a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from harness.config import CHECKS, RunSpec
from harness.errors import UsageError, no_such
from harness.spec import seconds

if TYPE_CHECKING:
    from harness.capacity.conditions import Definition

DEFINITIONS: tuple[Definition, ...] = ("joint", "separate", "sarathi")
KEPT = {"virtual": 2000, "wall": 600}
"""Requests of a trial after the warm-up cut, where nothing says how many: a run starts empty, so this belongs to the
definition of a capacity (statistics of the harness, section 6)."""
FOR_WARMUP = 1.1
TOLERANCE = {"virtual": 0.03, "wall": 0.05}
MOST_SEEDS = 20


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of `bench capacity` itself; rates in requests per second, None where the clock decides."""

    goals: tuple[float, ...] = (0.9,)
    definition: Definition = "joint"
    tolerance: float | None = None
    max_seeds: int = MOST_SEEDS
    budget_s: float | None = None
    at_rps: float | None = None
    from_rps: float | None = None
    adjust: bool = True

    def tolerance_of(self, clock: str) -> float:
        """Half of the interval, as a share of the capacity, that ends the search."""
        return TOLERANCE[clock] if self.tolerance is None else self.tolerance


def settings(
    goal: str | None,
    definition: str | None,
    tolerance: str | None,
    max_seeds: str | None,
    budget: str | None,
    at: str | None,
    rate_from: str | None,
    *,
    adjust: bool = True,
) -> Settings:
    """The settings of the texts of a command line. Raises UsageError."""
    found = Settings(adjust=adjust)
    if goal is not None:
        goals = tuple(sorted({_share(part, "goal") for part in goal.split(",")}))
        found = replace(found, goals=goals)
    if definition is not None:
        found = replace(found, definition=_definition(definition))
    if tolerance is not None:
        found = replace(found, tolerance=_share(tolerance, "tolerance"))
    if max_seeds is not None:
        found = replace(found, max_seeds=_seeds(max_seeds))
    if budget is not None:
        found = replace(found, budget_s=_budget(budget))
    if at is not None:
        found = replace(found, at_rps=float(CHECKS["rate"](at, "--at")))  # type: ignore[arg-type]  # it is a number
    if rate_from is not None:
        found = replace(found, from_rps=float(CHECKS["rate"](rate_from, "--rate-from")))  # type: ignore[arg-type]  # as above
    return found


def _share(text: str, name: str) -> float:
    found = float(CHECKS["goal"](text.strip(), f"--{name}"))  # type: ignore[arg-type]  # it is a number
    if found == 1:
        more = "a queue never keeps all; ask for 99.9%" if name == "goal" else "take 3%"
        raise UsageError(f"--{name} must be a share below 1, got '{text.strip()}': {more}.")
    return found


def _definition(text: str) -> Definition:
    for known in DEFINITIONS:
        if known == text.strip().lower():
            return known
    raise no_such("definition of capacity", text, DEFINITIONS)


def _seeds(text: str) -> int:
    found: int = int(CHECKS["requests"](text, "--max-seeds"))  # type: ignore[call-overload]  # it is a whole number
    if found < 5:
        raise UsageError(f"--max-seeds must be 5 or more, got {found}: fewer seeds give no interval.")
    return found


def _budget(text: str) -> float:
    found = seconds(text, "--budget")
    if not found > 0 or math.isinf(found):
        raise UsageError(f"--budget must be longer than 0 s, got '{text}'.")
    return found


def requests_of(spec: RunSpec, clock: str) -> int:
    """Requests that a trial sends: those asked for, or the usual number and a tenth more for the warm-up."""
    return math.ceil(KEPT[clock] * FOR_WARMUP) if spec.requests is None else spec.requests


def exit_code(states: Sequence[str], verdicts: Sequence[str]) -> int:
    """0 known; 1 surely not carried at the rate asked about, or at no rate; 5 not decided."""
    if verdicts:
        return 1 if "not carried" in verdicts else 5 if "unresolved" in verdicts else 0
    return 1 if "unreachable" in states else 5 if "unresolved" in states else 0

"""The options for scoring stored runs.

Ranges of factors: those of `bench sweep`, and also `0.25:4` without a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from harness.errors import UsageError
from harness.experiments.sweep.axes import values

if TYPE_CHECKING:
    from harness.experiments.rescore.objectives import Objective
    from harness.metrics.profiles._base import Profile


POINTS = 17
"""Numbers in a range without a step: with 0.25:4 every fourth root of two, to three digits."""


@dataclass(frozen=True, slots=True)
class RescoreOptions:
    """How to score the runs. Without `objectives` each run is scored under the SLO it was run with.

    `goals` are shares; the first decides which bound binds, and `fail_under` whether the answer is good. `factors` of
    the SLO scale may be none.
    """

    objectives: tuple[Objective, ...] = ()
    goals: tuple[float, ...] = ()
    conditions: Literal["joint", "separate"] = "joint"
    factors: tuple[float, ...] = ()
    by: tuple[str, ...] = ()
    profiles: tuple[Profile, ...] = ()
    tokens: bool = False
    fail_under: float | None = None


def _plain(text: str, what: str) -> float:
    """A number above 0, called `what` in the message."""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 < value < float("inf"):
        raise UsageError(f"{what} must be a number above 0, got '{text.strip()}'.")
    return value


def numbers(text: str, what: str) -> list[float]:
    """The numbers of a range or a list, rising.

    `low:high` has 17 of equal ratio, `low:high:step` steps, `low:high:x2` doublings. Raises UsageError, calling the
    range `what`.
    """
    found = [number for part in text.split(",") for number in _part(part.strip(), what)]
    return sorted(set(found))


def _part(part: str, what: str) -> list[float]:
    ends = part.split(":")
    if len(ends) > 3:
        raise UsageError(f"{what} is low:high, low:high:step, low:high:x2 or 1,2,3, got '{part}'.")
    read_ends = [end if end.lower().startswith("x") else f"{_plain(end, what):.12g}" for end in ends]
    if len(ends) != 2:
        return [float(value) for value in values(":".join(read_ends), what)]
    low, high = (_plain(end, what) for end in ends)
    if high <= low:
        raise UsageError(f"{what}: a range rises, got '{part}'.")
    inner = np.geomspace(low, high, POINTS)[1:-1]
    short = [float(f"{value:.3g}") for value in inner]  # the values shown are the values used
    narrow = len({low, *short, high}) < POINTS
    return [low, *(inner.tolist() if narrow else short), high]

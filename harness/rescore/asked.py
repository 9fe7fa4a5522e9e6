"""What is asked of stored runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from harness.metrics.profiles._base import Profile
    from harness.rescore.objectives import Objective


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked of the runs. Without `objectives` each run is scored under the SLO it was run with.

    `goals` are shares; the first decides which bound binds, and `fail_under` whether the answer is good. `factors` of
    the SLO scale and `limits_s` of the plane may be empty. `failed_as_infinite` has failed requests in percentiles.
    """

    objectives: tuple[Objective, ...] = ()
    goals: tuple[float, ...] = ()
    conditions: Literal["joint", "separate"] = "joint"
    factors: tuple[float, ...] = ()
    limits_s: tuple[tuple[str, tuple[float, ...]], ...] = ()
    by: tuple[str, ...] = ()
    profiles: tuple[Profile, ...] = ()
    tokens: bool = False
    failed_as_infinite: bool = False
    fail_under: float | None = None

"""Tasks: requests that belong together are of use only if all of them kept the objective."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from harness.metrics._lists import number

if TYPE_CHECKING:
    from harness.slo import Seen

Mask: TypeAlias = npt.NDArray[np.bool_]


def tasks(seen: Seen, met: Mask, per_second: Callable[[int], float]) -> dict[str, Any] | None:
    """How many sessions had every request keep the objective; None where no request is part of a session.

    `goodput_tasks_rps` counts those, `goodput_users_rps` also the requests that stand alone: a task counts once.
    """
    if seen.table["session"].null_count == len(seen.table):
        return None
    session = number(seen.table, "session")
    inside = ~np.isnan(session)
    known, group = np.unique(session[inside], return_inverse=True)
    missed = np.bincount(group, ~met[inside], len(known))
    good, alone = int(np.count_nonzero(missed == 0)), int(np.count_nonzero(met & ~inside))
    return {
        "tasks": len(known),
        "met": good,
        "attainment": good / len(known),
        "goodput_tasks_rps": per_second(good),
        "goodput_users_rps": per_second(good + alone),
    }

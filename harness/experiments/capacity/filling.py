"""How long a run takes to fill a system with sessions, which is not counted."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness.data.schedule import Schedule
from harness.errors import UsageError
from harness.options import RunSpec
from harness.runner.plan import load_workload
from harness.spec import seconds

FILLED = 0.99
"""Of the sessions that are under way in the steady state, those that have to be there before a run counts."""
DRAWN = 5_000
"""Requests of sessions that tell how long sessions last."""


@dataclass(frozen=True, slots=True, eq=False)
class Filling:
    """At least `least_s`; `sessions` are rows of a schedule, None where there are none."""

    least_s: float = 0.0
    sessions: pa.Table | None = None

    def seconds(self, each_s: float) -> float:
        """Seconds after which an endless stream of the sessions has 99% of its mean number under way, where each
        request takes `each_s`.

        Of sessions that begin at a constant rate and last D, the share E[min(D, t)] / E[D] is under way at t.
        """
        if self.sessions is None:
            return self.least_s
        begun_s: dict[int, float] = {}
        ended_s: dict[int, float] = {}  # by request
        last_s: dict[int, float] = {}
        for id_, session, due_s, delay_s, after in zip(*self.sessions.to_pydict().values(), strict=True):
            due_s = max([due_s, *(ended_s[parent] + delay_s for parent in after)])
            begun_s.setdefault(session, due_s)
            ended_s[id_] = due_s + each_s
            last_s[session] = max(last_s.get(session, 0.0), ended_s[id_])
        lasts_s = np.sort([last_s[session] - first_s for session, first_s in begun_s.items()])
        longer = np.arange(len(lasts_s) - 1, -1, -1)
        under_way = np.cumsum(lasts_s) + longer * lasts_s
        return max(self.least_s, float(lasts_s[np.searchsorted(under_way, FILLED * under_way[-1])]))


def filling(spec: RunSpec, least_s: float = 0.0) -> Filling:
    """That of the traffic of a spec, at least `least_s`. Raises UsageError for a warm-up that is no time."""
    if spec.warmup is not None:
        if spec.warmup.isdecimal() or spec.warmup == "mser5":
            raise UsageError("Runs over a horizon have no fixed number of requests; give --warmup as a time, or none.")
        return Filling(0.0 if spec.warmup == "none" else seconds(spec.warmup, "--warmup"))
    loaded = load_workload(replace(spec, requests=DRAWN, duration=None), exact=True)
    drawn = Schedule.draw(loaded.workload, seed=spec.seed, requests=DRAWN).table
    rows = drawn.filter(pc.is_valid(drawn["session"])).sort_by("id")
    if not len(rows):
        return Filling(least_s)
    return Filling(least_s, rows.select(["id", "session", "scheduled_s", "delay_s", "after"]).combine_chunks())

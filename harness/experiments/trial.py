"""The same traffic at another load: one unit-rate schedule, its times divided by the rate (common random numbers).

Lengths, contents, sessions and think times stay as the seed drew them; a trace is compressed in time.

A run without a folder: one spec simulated in memory, for searches and sweeps that need thousands of them.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness.api import RequestRecord, Simulator
from harness.data.records import to_table
from harness.data.schedule import Schedule
from harness.errors import UsageError
from harness.options import RunSpec
from harness.runner.plan import Plan, load_workload, plan
from harness.runner.virtual import tables
from harness.spec import parse, seconds

FILLED = 0.99
"""Of the sessions that are under way at first, those that must have sent a request before a run counts."""
DRAWN = 5_000
"""Requests of sessions that tell how long sessions last."""


def own_rate(spec: RunSpec) -> float:
    """Requests per second that the traffic of a spec has as it is given.

    Raises UsageError where there is no such rate: users in a closed loop, requests as listed, a trace at one instant.
    """
    loaded = load_workload(replace(spec, scale=None) if spec.trace is not None and spec.arrivals is None else spec)
    if loaded.timing == "closed":
        raise UsageError(
            f"'{loaded.arrivals_text}' has no rate to change: in a closed loop the answers decide it; "
            "take --arrivals poisson, or sweep over arrivals.users."
        )
    if loaded.timing == "recorded" and spec.trace is None:
        raise UsageError(f"'{spec.workload}' comes at listed times, so its rate cannot be changed; name another.")
    rate_rps = loaded.rate_rps
    if not rate_rps or rate_rps <= 0:
        raise UsageError("The requests come at one instant, so there is no rate to change; name other traffic.")
    return float(rate_rps)


def at_rate(spec: RunSpec, rate_rps: float, own_rps: float | None = None) -> RunSpec:
    """The spec with its traffic at `rate_rps`; `own_rps` saves reading a trace again for `own_rate`."""
    if spec.trace is None or spec.arrivals is not None:  # sessions of a trace at drawn starts have a rate as well
        return replace(spec, rate=rate_rps)
    if spec.scale is not None:
        raise UsageError("--scale and a search over rates exclude each other: the rates scale the trace (compress).")
    return replace(spec, scale=f"compress:{rate_rps / (own_rate(spec) if own_rps is None else own_rps):.12g}")


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedTrial:
    """What came of a spec: its plan and its `requests` table. `complete` is False where it was stopped early."""

    plan: Plan
    table: pa.Table
    complete: bool


def simulate(spec: RunSpec, stop: Callable[[RequestRecord], bool] | None = None) -> SimulatedTrial:
    """Simulate a spec, to its end or until `stop` says True of a record. Raises UsageError for a wall clock.

    Without a table of steps, which is not read: the records are those of `bench run`, to the last bit.
    """
    return run(plan(without_steps(spec)), stop)


def run(planned: Plan, stop: Callable[[RequestRecord], bool] | None = None) -> SimulatedTrial:
    """Simulate a plan, to its end or until `stop` says True of a record. Raises UsageError for a wall clock."""
    spec = planned.spec
    if not planned.virtual:
        raise UsageError(f"'{spec.backend}' runs in real time; only a simulator can be tried without a folder.")
    records: list[RequestRecord] = []
    complete = True
    simulator = cast("Simulator", planned.backend)
    follow_ups = planned.follow_ups(records.append)
    if stop is None and follow_ups is None:
        parts = [to_table([]), *tables(simulator, planned.schedule.planned(), None)]
        return SimulatedTrial(planned, pa.concat_tables(parts).combine_chunks(), complete=True)
    for record in simulator.simulate(planned.schedule.planned(), follow_ups):
        records.append(record)
        if stop is not None and stop(record):
            complete = False
            break
    return SimulatedTrial(planned, to_table(records), complete)


def without_steps(spec: RunSpec) -> RunSpec:
    """The spec without a table of steps, which costs a sixth of the time."""
    backend = parse(spec.backend)
    if backend.name != "sim" or "log_steps" in backend.args:
        return spec
    return replace(spec, backend=str(replace(backend, args={**backend.args, "log_steps": "false"})))


@dataclass(frozen=True, slots=True, eq=False)
class Filling:
    """At least `least_s`; `sessions` are rows of a schedule, None where there are none."""

    least_s: float = 0.0
    sessions: pa.Table | None = None

    def seconds(self, each_s: float) -> float:
        """Seconds after which 99% of the sessions that are under way at first have sent a request, so that what a cache
        can hold of them has been computed, where each request takes `each_s`.

        Of gaps of length D between requests, met at random, the share E[min(D, t)] / E[D] is over by t.
        """
        if self.sessions is None:
            return self.least_s
        ended_s: dict[int, float] = {}  # by request
        last_s: dict[int, float] = {}
        gaps: list[float] = []
        for id_, session, due_s, delay_s, after in zip(*self.sessions.to_pydict().values(), strict=True):
            due_s = max([due_s, *(ended_s[parent] + delay_s for parent in after)])
            gaps.append(max(due_s - last_s.get(session, due_s), 0.0))
            last_s[session], ended_s[id_] = max(last_s.get(session, due_s), due_s), due_s + each_s
        gaps_s = np.sort(gaps)
        longer = np.arange(len(gaps_s) - 1, -1, -1)
        over = np.cumsum(gaps_s) + longer * gaps_s
        return max(self.least_s, float(gaps_s[np.searchsorted(over, FILLED * over[-1])]))


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

"""A run without a folder: one spec simulated in memory, for searches and sweeps that need thousands of them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

import pyarrow as pa

from harness.api import RequestRecord, Simulator
from harness.config import RunSpec
from harness.errors import UsageError
from harness.plan import Plan, plan
from harness.records import to_table
from harness.spec import parse


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """What came of a spec: its plan and its `requests` table. `complete` is False where it was stopped early."""

    plan: Plan
    table: pa.Table
    complete: bool


def simulate(spec: RunSpec, stop: Callable[[RequestRecord], bool] | None = None) -> Trial:
    """Simulate a spec, to its end or until `stop` says True of a record. Raises UsageError for a wall clock.

    Without a table of steps, which nobody reads: the records are those of `bench run`, to the last bit.
    """
    planned = plan(_without_steps(spec))
    if not planned.virtual:
        raise UsageError(f"'{spec.backend}' runs in real time; only a simulator can be tried without a folder.")
    records: list[RequestRecord] = []
    complete = True
    simulator = cast("Simulator", planned.backend)
    for record in simulator.simulate(planned.schedule.planned(), planned.follow_ups(records.append)):
        records.append(record)
        if stop is not None and stop(record):
            complete = False
            break
    return Trial(planned, to_table(records), complete)


def _without_steps(spec: RunSpec) -> RunSpec:
    backend = parse(spec.backend)
    if backend.name != "sim" or "log_steps" in backend.args:
        return spec
    return replace(spec, backend=str(replace(backend, args={**backend.args, "log_steps": "false"})))

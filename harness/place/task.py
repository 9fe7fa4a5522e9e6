"""The search of one candidate, as it is carried out in a worker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from harness.place.search import Ends, bisected, nearby
from harness.place.tally import missed
from harness.plan import make_backend
from harness.releases import Releases

if TYPE_CHECKING:
    from harness.api import RequestRecord, Slo
    from harness.capacity.conditions import Condition
    from harness.config import RunSpec
    from harness.place.systems import System
    from harness.place.traffic import Traffic

TOO_SHORT = "--requests"
"""What binds where all requests of a trial are sent within the time that one takes: such trials find no limit."""


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """A candidate under the traffic of each seed; `spec` makes its system, `key` names it. Rates are per GPU."""

    key: str
    system: System
    spec: RunSpec
    slo: Slo
    wanted: tuple[Condition, ...]
    traffic: Traffic
    seeds: tuple[int, ...]
    top_rps: float
    width_rps: float


@dataclass(frozen=True, slots=True)
class Found:
    """What came of a candidate: the ends of its search by seed, and what it took."""

    ends: dict[int, Ends]
    trials: int
    requests: int


def searched(task: Task) -> Found:
    """Search a candidate in this process: the first seed from 0, the others from what it found."""
    trials = _Trials(task)
    first, *others = task.seeds
    found = {first: bisected(trials.of(first), task.top_rps, task.width_rps)}
    for seed in others:
        found[seed] = nearby(trials.of(seed), found[first])
    return Found(found, trials.made, trials.requests)


class _Trials:
    """Makes the trials of a candidate; the simulator is built once."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._simulator: Any = make_backend(task.spec)  # a simulator with `reset`, as `refused` has made sure
        self.made = 0
        self.requests = 0

    def of(self, seed: int) -> Any:
        """What tells of a rate per GPU whether a trial of that seed carries it."""
        return lambda rate_rps: self.missed(seed, rate_rps * self._task.system.gpus)

    def missed(self, seed: int, rate_rps: float) -> str | None:
        """The condition that is not kept at a rate of the whole system; None: all are."""
        schedule = self._task.traffic.at(seed, rate_rps)
        self._simulator.reset()
        dropped: list[RequestRecord] = []
        follow_ups = Releases(schedule, dropped.append) if schedule.has_follow_ups else None
        self.made += 1
        self.requests += len(schedule)
        e2e_s = _Mean()
        records = e2e_s.of(self._simulator.simulate(schedule.planned(), follow_ups))
        found = missed(_with_dropped(records, dropped), self._task.slo, self._task.wanted, len(schedule))
        return TOO_SHORT if found is None and schedule.span_s < e2e_s.value else found


class _Mean:
    """The mean time to the last token of the records that pass by, in seconds."""

    def __init__(self) -> None:
        self._sum_s, self._count = 0.0, 0

    def of(self, records: Iterator[RequestRecord]) -> Iterator[RequestRecord]:
        """The records as they come."""
        for record in records:
            if record.status == "ok":
                self._sum_s += record.token_s[-1] - record.scheduled_s
                self._count += 1
            yield record

    @property
    def value(self) -> float:
        return self._sum_s / max(1, self._count)


def _with_dropped(records: Iterator[RequestRecord], dropped: Sequence[RequestRecord]) -> Iterator[RequestRecord]:
    yield from records
    yield from dropped


def spec_of(spec: RunSpec, system: System, latency: str | None) -> RunSpec:
    """The spec that makes a system."""
    given: dict[str, Any] = {"model": spec.model, "hardware": system.hardware, **system.parts}
    if latency is not None:
        given["latency"] = latency
    return replace(spec, **given)

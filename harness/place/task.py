"""The search of one candidate, as it is carried out in a worker."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from harness.api import RequestRecord, Slo
from harness.capacity.bracket import SHORTEST
from harness.capacity.conditions import Condition
from harness.config import RunSpec
from harness.overload import grown
from harness.place.search import Ends, bisected, nearby
from harness.place.systems import System
from harness.place.tally import missed
from harness.place.traffic import Traffic
from harness.plan import make_backend
from harness.releases import Releases

TOO_SHORT = "--requests"
"""What binds where a trial is short against the time that one request takes: such trials find no limit."""

QUEUE = "a growing queue"
"""What binds where the SLO is kept so far, and would not be in a longer trial."""


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
    most_requests: int | None = None
    """A trial that passes is made again with up to so many requests, until it is long against the time that one takes.
    None: as the planner that DistServe released, whose trials only have to be longer than one request."""


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
        requests = self._task.traffic.requests
        while True:
            found, span_s, e2e_s = self._made(seed, rate_rps, requests)
            if found is not None:
                return found
            if self._task.most_requests is None:
                return TOO_SHORT if span_s < e2e_s else None
            if span_s >= SHORTEST * e2e_s:
                return None
            if requests >= self._task.most_requests:
                return TOO_SHORT
            needed = requests * SHORTEST * e2e_s / max(span_s, 1e-9)
            requests = round(min(self._task.most_requests, max(2 * requests, needed)))

    def _made(self, seed: int, rate_rps: float, requests: int) -> tuple[str | None, float, float]:
        """What a trial of so many requests does not keep, the time in which they were sent, and their mean E2E."""
        schedule = self._task.traffic.at(seed, rate_rps, requests)
        self._simulator.reset()
        dropped: list[RequestRecord] = []
        follow_ups = Releases(schedule, dropped.append) if schedule.has_follow_ups else None
        self.made += 1
        self.requests += len(schedule)
        seen = _Seen()
        records = seen.of(self._simulator.simulate(schedule.planned(), follow_ups))
        every = chain(records, dropped)  # `yield from` would close `records` where a trial is sure before its end
        found = missed(every, self._task.slo, self._task.wanted, len(schedule))
        if found is None and self._task.most_requests is not None:
            for _ in records:  # whether the queue grew is seen at the end
                pass
            found = QUEUE if seen.grew else None
        return found, schedule.span_s, seen.e2e_s


class _Seen:
    """The times of the records that pass by, in seconds."""

    def __init__(self) -> None:
        self._times: list[tuple[float, float, float]] = []

    def of(self, records: Iterator[RequestRecord]) -> Iterator[RequestRecord]:
        """The records as they come."""
        for record in records:
            if record.status == "ok":
                self._times.append((record.scheduled_s, record.token_s[0], record.token_s[-1]))
            yield record

    @property
    def e2e_s(self) -> float:
        """The mean time to the last token."""
        return sum(end_s - due_s for due_s, _, end_s in self._times) / max(1, len(self._times))

    @property
    def grew(self) -> bool:
        """Whether the queue grew all through."""
        return grown(*np.array(sorted(self._times)).reshape(-1, 3).T, bursty=True) is not None


def spec_of(spec: RunSpec, system: System, latency: str | None) -> RunSpec:
    """The spec that makes a system."""
    given: dict[str, Any] = {"model": spec.model, "hardware": system.hardware, **system.parts}
    if latency is not None:
        given["latency"] = latency
    return replace(spec, **given)

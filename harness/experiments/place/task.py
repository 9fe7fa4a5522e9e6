"""The trials of DistServe's planner: one draw a seed, sent at any rate by dividing its times.

Whether a trial keeps its conditions: counted record by record, and ended as soon as that is certain.

The search of one candidate, as it runs in a worker.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, cast

import numpy as np
import pyarrow as pa

from harness.api import RequestRecord, ReusableSimulator, Slo
from harness.data.dependencies import Releases
from harness.data.records import to_table
from harness.data.schedule import Schedule
from harness.experiments.capacity.conditions import JOINT, Condition, Share, kept_all, shares
from harness.experiments.place.search import Ends, bisected, nearby
from harness.experiments.place.systems import Deployment
from harness.experiments.trial import at_rate, own_rate
from harness.metrics.slo import bound_text
from harness.options import RunSpec
from harness.runner.plan import load_workload, make_backend
from harness.spec import parse


@dataclass(frozen=True, slots=True, eq=False)
class Traffic:
    """Schedules by seed. Where a rate does no more than divide the times, `drawn` holds each seed's at 1 req/s; else,
    and for turns that wait for answers, every rate is drawn anew."""

    spec: RunSpec
    own_rps: float
    drawn: dict[int, Schedule]

    def at(self, seed: int, rate_rps: float) -> Schedule:
        """What a trial of that seed sends at that rate."""
        unit = self.drawn.get(seed)
        if unit is None:
            return _draw(self.spec, self.own_rps, seed, rate_rps)
        due_s = unit.table["scheduled_s"].to_numpy() / rate_rps
        return Schedule(_with(unit.table, "scheduled_s", due_s), unit.sha256)


def traffic(spec: RunSpec, seeds: Sequence[int]) -> Traffic:
    """The traffic of a spec with `spec.requests` requests, Poisson arrivals as DistServe draws them.

    Raises UsageError for traffic that has no rate.
    """
    own_rps = own_rate(spec)
    first = _draw(spec, own_rps, seeds[0], 1.0)
    if not _is_divided(spec, own_rps, first):
        return Traffic(spec, own_rps, {})
    drawn = {seed: first if seed == seeds[0] else _draw(spec, own_rps, seed, 1.0) for seed in seeds}
    if parse(load_workload(spec).arrivals_text).name == "poisson":
        # The gaps of a Poisson process as LLMServe/DistServe draws them (simdistserve/base/workload.py): numpy's legacy
        # generator, the first request at 0.
        for seed, unit in drawn.items():
            gaps = np.random.RandomState(seed).gamma(1, 1.0, size=len(unit) - 1)
            drawn[seed] = Schedule(_with(unit.table, "scheduled_s", np.cumsum([0.0, *gaps])), unit.sha256)
    return Traffic(spec, own_rps, drawn)


def _is_divided(spec: RunSpec, own_rps: float, unit: Schedule) -> bool:
    if unit.has_follow_ups:
        return False
    twice = _draw(spec, own_rps, spec.seed, 2.0)
    times = (one.table["scheduled_s"].to_numpy() for one in (unit, twice))
    return bool(np.allclose(next(times), 2 * next(times), rtol=1e-9))


def _draw(spec: RunSpec, own_rps: float, seed: int, rate_rps: float) -> Schedule:
    at_rps = at_rate(replace(spec, seed=seed), rate_rps, own_rps)
    return Schedule.draw(load_workload(at_rps).workload, seed=seed, requests=spec.requests)


def _with(table: pa.Table, name: str, values: np.ndarray) -> pa.Table:
    place = table.schema.get_field_index(name)
    return table.set_column(place, table.schema.field(place), pa.array(values, table.schema.field(place).type))


COUNTED = ("ttft", "tpot", "e2e")
"""Metrics of a bound that is looked at as records come; with another the whole trial is scored as a table."""


def missed(records: Iterable[RequestRecord], slo: Slo, wanted: Sequence[Condition], planned: int) -> str | None:
    """The condition that a trial of `planned` requests misses, by the largest margin; None: it meets all.

    Records are taken only until it is certain. `wanted` are conditions of that SLO.
    """
    if any(bound.metric not in COUNTED or bound.tag is not None for bound in slo.bounds):
        return _scored(records, slo, wanted)
    kept: list[RequestRecord] = []
    counter = MissCounter(slo, wanted, planned)
    for record in records:
        if record.slo_ttft_s is not None or record.slo_tpot_s is not None:  # its own bounds replace those of the SLO
            return _scored([*kept, record, *records], slo, wanted)
        kept.append(record)
        if (found := counter.take(record)) is not None:
            return found
        if counter.sure:
            return None
    return counter.worst()


def _scored(records: Iterable[RequestRecord], slo: Slo, wanted: Sequence[Condition]) -> str | None:
    found = shares(to_table(list(records)), slo)
    if kept_all(found, wanted):
        return None
    by_text: dict[str, Share] = {share.text: share for share in found}
    text = min(wanted, key=lambda c: by_text[c.text].met / max(1, by_text[c.text].of) - c.goal).text
    return _named(text, slo, {text: share.of - share.met for text, share in by_text.items()})


def _named(text: str, slo: Slo, misses: Mapping[str, int]) -> str:
    """The name of a condition; of all bounds at once, that of the bound which is missed most."""
    each = [bound_text(bound) for bound in slo.bounds if bound.percentile is None]
    return max(each, key=lambda name: misses.get(name, 0)) if text == JOINT and each else text


class MissCounter:
    """Misses of each condition so far, against those that are allowed, and of each bound."""

    def __init__(self, slo: Slo, wanted: Sequence[Condition], planned: int) -> None:
        self._planned = planned
        self._slo = slo
        self._bounds = [(bound_text(bound), bound) for bound in slo.bounds]
        every = tuple(bound_text(bound) for bound in slo.bounds if bound.percentile is None)
        self._watched = [(c.text, every if c.text == JOINT else (c.text,)) for c in wanted]
        self._allowed = {c.text: planned - c.goal * planned + 1e-9 for c in wanted}
        self._misses = dict.fromkeys([*self._allowed, *(text for text, _ in self._bounds)], 0)
        self._seen = 0

    def take(self, record: RequestRecord) -> str | None:
        """Count a record; returns the condition that is now certainly missed, if any."""
        self._seen += 1
        values = _values(record)
        broken = {text for text, bound in self._bounds if values is None or values[bound.metric] > bound.limit}
        if not broken:
            return None
        counted = broken | {text for text, bounds in self._watched if not broken.isdisjoint(bounds)}
        for text in counted:
            self._misses[text] += 1
        over = [text for text, allowed in self._allowed.items() if self._misses[text] > allowed]
        return _named(over[0], self._slo, self._misses) if over else None

    @property
    def sure(self) -> bool:
        """Whether all conditions are met whatever is still to come."""
        left = self._planned - self._seen
        return all(self._misses[text] + left <= allowed for text, allowed in self._allowed.items())

    def worst(self) -> str | None:
        """The condition that is missed most at the end, if any; fewer records than planned may have come."""
        share = self._seen / self._planned
        over = {text: self._misses[text] - allowed * share for text, allowed in self._allowed.items()}
        text = max(over, key=lambda name: over[name])
        return _named(text, self._slo, self._misses) if over[text] > 1e-6 else None


def _values(record: RequestRecord) -> dict[str, float] | None:
    """Seconds of each counted metric; None for a request that failed. What is undefined meets its bound."""
    if record.status != "ok":
        return None
    times = record.token_s
    first_s, last_s, later = times[0], times[-1], len(times) - 1
    tpot_s = (last_s - first_s) / later if later else 0.0
    return {"ttft": first_s - record.scheduled_s, "tpot": tpot_s, "e2e": last_s - record.scheduled_s}


TOO_SHORT = "--requests"
"""What binds where all requests of a trial are sent within the time that one takes: such trials find no limit."""


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """A candidate under the traffic of each seed; `spec` makes its system, `key` names it. Rates are per GPU."""

    key: str
    system: Deployment
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
        self._simulator = cast("ReusableSimulator", make_backend(task.spec))  # the settings have made sure
        self.made = 0
        self.requests = 0

    def of(self, seed: int) -> Any:
        """Maps a rate per GPU to the condition that a trial of that seed misses, None where it is sustained."""
        return lambda rate_rps: self.missed(seed, rate_rps * self._task.system.gpus)

    def missed(self, seed: int, rate_rps: float) -> str | None:
        """The condition that is missed at a rate of the whole system; None: all are met."""
        schedule = self._task.traffic.at(seed, rate_rps)
        self._simulator.reset()
        dropped: list[RequestRecord] = []
        follow_ups = Releases(schedule, dropped.append) if schedule.has_follow_ups else None
        self.made += 1
        self.requests += len(schedule)
        e2e_s: list[float] = []

        def records() -> Iterator[RequestRecord]:
            for record in self._simulator.simulate(schedule.planned(), follow_ups):
                if record.status == "ok":
                    e2e_s.append(record.token_s[-1] - record.scheduled_s)
                yield record

        found = missed(chain(records(), dropped), self._task.slo, self._task.wanted, len(schedule))
        return TOO_SHORT if found is None and schedule.span_s < sum(e2e_s) / max(1, len(e2e_s)) else found

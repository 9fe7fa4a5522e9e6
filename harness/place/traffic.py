"""What the trials of a placement send: one draw a seed, at any rate by dividing its times."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from harness.config import RunSpec
from harness.load import at_rate, own_rate
from harness.plan import load_workload
from harness.schedule import Schedule
from harness.spec import parse


@dataclass(frozen=True, slots=True, eq=False)
class Traffic:
    """Schedules by seed. Where a rate does no more than divide the times, `drawn` holds each seed's at 1 req/s, and
    `longer` those of more requests; else, and for turns that wait for answers, every rate is drawn anew."""

    spec: RunSpec
    own_rps: float
    drawn: dict[int, Schedule]
    longer: dict[tuple[int, int], Schedule] = field(default_factory=dict)

    @property
    def requests(self) -> int:
        """Requests of a trial."""
        assert self.spec.requests is not None  # place gives a number to every search
        return self.spec.requests

    def at(self, seed: int, rate_rps: float, requests: int | None = None) -> Schedule:
        """What a trial of that seed sends at that rate; of more requests than usual where they are given."""
        spec = self.spec if requests is None else replace(self.spec, requests=requests)
        unit = self.drawn.get(seed)
        if unit is None:
            return _draw(spec, self.own_rps, seed, rate_rps)
        if spec.requests != self.spec.requests:
            key = seed, spec.requests or 0
            if key not in self.longer:
                self.longer[key] = _draw(spec, self.own_rps, seed, 1.0)
            unit = self.longer[key]
        due_s = unit.table["scheduled_s"].to_numpy() / rate_rps
        return Schedule(_with(unit.table, "scheduled_s", due_s), unit.sha256)


def traffic(spec: RunSpec, seeds: Sequence[int], *, released: bool = False) -> Traffic:
    """The traffic of a spec with `spec.requests` requests; `released` takes Poisson arrivals as DistServe draws them.

    Raises UsageError for traffic that has no rate.
    """
    own_rps = own_rate(spec)
    first = _draw(spec, own_rps, seeds[0], 1.0)
    if not _is_divided(spec, own_rps, first):
        return Traffic(spec, own_rps, {})
    drawn = {seed: first if seed == seeds[0] else _draw(spec, own_rps, seed, 1.0) for seed in seeds}
    if released and parse(load_workload(spec).arrivals_text).name == "poisson":
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
    asked = at_rate(replace(spec, seed=seed), rate_rps, own_rps)
    return Schedule.draw(load_workload(asked).workload, seed=seed, requests=spec.requests)


def _with(table: pa.Table, name: str, values: np.ndarray) -> pa.Table:
    place = table.schema.get_field_index(name)
    return table.set_column(place, table.schema.field(place), pa.array(values, table.schema.field(place).type))

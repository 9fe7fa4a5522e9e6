"""What a curve over the rate is drawn of: systems, each with points; `reports.study` reads them.

Several studies as one: their systems side by side, each named by what distinguishes it.

What the requests of a study tell, beyond what its answer holds: latencies, phases and causes of misses per point.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from harness.data import large
from harness.data.folder import read_info
from harness.data.run_json import RunInfo, Stages
from harness.errors import BenchError, UsageError
from harness.experiments.sweep.answer import ASIDE
from harness.experiments.sweep.crossings import ratio
from harness.experiments.sweep.sweep_json import SweepPoint
from harness.stats.seeds import Spread
from reports import _data, _format
from reports._format import clean
from reports._sending import floors

Info = Mapping[str, Any]
_ASIDE = (*ASIDE, "rate", "slo", "timeout")
"""Options that do not tell systems apart."""
ENOUGH = 20_000
"""Requests of a point after which no further seed of it is read."""
GONE = (
    "The runs of the points are not where they were, so nothing is known of single requests; "
    "keep the folder of the sweep whole."
)


@dataclass(frozen=True, slots=True)
class Kept:
    """One bound of the SLO at a point and the share of requests that keep it.

    Of a bound on a percentile there is no share; `passed` says whether it was kept. The limit is NaN where each request
    brings its own.
    """

    text: str
    metric: str
    limit_s: float
    tag: str | None
    percentile: float | None
    attainment: Spread | None
    passed: bool | None = None


@dataclass(frozen=True, slots=True)
class Point:
    """What came of all seeds at one rate (req/s for the whole system, not per GPU; of users who wait that achieved).

    `metrics` is metric -> mean, p50, p90, p99 -> spread in seconds; empty where every run was overloaded. `folders`
    are those of its runs that can still be read.
    """

    rate_rps: float
    seeds: int
    requests: int
    overloaded: int
    invalid: int
    attainment: Spread | None
    bounds: tuple[Kept, ...]
    goodput_rps: Spread | None = None
    throughput_rps: Spread | None = None
    output_tps: Spread | None = None
    metrics: Mapping[str, Mapping[str, Spread | None]] = field(default_factory=dict)
    folders: tuple[Path, ...] = ()

    def keeps(self, goal: float) -> bool:
        """Whether so many requests met the SLO, no bound on a percentile broke, and no queue grew."""
        if self.overloaded or any(bound.passed is False for bound in self.bounds):
            return False
        if self.attainment is None:  # nothing was scored, or all bounds are on percentiles
            return any(bound.percentile is not None for bound in self.bounds)
        return self.attainment.mean >= goal


@dataclass(frozen=True, slots=True)
class Capacity:
    """The highest rate (req/s) that reaches a goal: `searched`, or `interpolated` between points, and its interval.

    `rps` is None where the goal is not crossed; `note` says why, and `side` on which side of it all rates lie.
    `between` are the rates that were tried on both sides of it.
    """

    goal: float
    rps: float | None
    low_rps: float | None
    high_rps: float | None
    how: Literal["searched", "interpolated"]
    note: str = ""
    side: Literal["above", "below"] | None = None
    between: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class System:
    """One line of a curve: what distinguishes it from the others, its GPUs, its points by rising rate.

    `gpus` is None where it is unknown (a remote endpoint). `slo` is what its points were scored under. `made` names it
    by what was run alone; `again` says that another system has the same runs, which were only scored otherwise. `line`
    are its points as a sweep holds them, by rising rate; a search has none.
    """

    name: str
    gpus: int | None
    points: tuple[Point, ...]
    capacities: tuple[Capacity, ...]
    slo: str = ""
    made: str = ""
    again: bool = False
    line: tuple[SweepPoint, ...] = ()

    def capacity(self, goal: float) -> Capacity | None:
        """What is known of its capacity at a goal."""
        return next((c for c in self.capacities if c.goal == goal), None)


@dataclass(frozen=True, slots=True)
class Study:
    """Systems to be seen together. `sources` are the stored answers (sweep.json, capacity.json). `over` has the same
    over another option, where no rate is varied.

    `slo` is empty where they were scored under several. `memo` holds what was read of a run. Where the points differ in
    another `axis` than the rate, that stands in its place. The systems may be the `sides` of a comparison, whose points
    have pairs in the place of seeds.
    """

    slo: str
    goals: tuple[float, ...]
    systems: tuple[System, ...]
    sources: tuple[Info, ...]
    axis: str = "rate"
    sides: bool = False
    over: Study | None = None
    memo: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def per_gpu(self) -> bool:
        """Whether rates are to be divided by GPUs: the number of each system is known."""
        return all(system.gpus for system in self.systems)

    def share(self, system: System) -> float:
        """What the rates of a system are divided by: its GPUs, or 1 where those of some system are not known."""
        return float(system.gpus or 1) if self.per_gpu else 1.0

    @property
    def per_gpu_text(self) -> str:
        """What stands behind the name of a rate, or of a ratio of rates."""
        return " per GPU" if self.per_gpu else ""

    @property
    def rate_unit(self) -> str:
        return f"req/s{self.per_gpu_text}" if self.axis == "rate" else clean(self.axis, 40)


Ends: TypeAlias = tuple[float | None, float | None, float | None]
"""A value and the ends of its interval; None where they are not known."""


@dataclass(frozen=True, slots=True)
class Crossed:
    """Where a system crosses a goal, in the unit of its study, and how often what the system `base` sustains that is.

    `between` are the rates as they were tried, not divided by GPUs.
    """

    system: System
    goal: float
    at: Ends
    base: str
    times: Ends
    between: tuple[float, float] | None
    side: str


def crossed(study: Study) -> list[Crossed]:
    """Every system at every goal; over the first system that has a ratio to another, as sweep.json has them."""
    pairs = product(combinations(study.systems, 2), study.goals) if study.axis == "rate" else ()
    base, rows = next((base for (base, head), goal in pairs if _ratio(base, head, goal)), None), []
    for goal, system in product(study.goals, study.systems):
        capacity, share = system.capacity(goal) or Capacity(goal, None, None, None, "searched"), study.share(system)
        times = None if base is None or system is base else _ratio(base, system, goal)
        scale = 1.0 if base is None else study.share(base) / share  # a ratio of rates per GPU, where these are compared
        rows.append(Crossed(
            system, goal,
            _scaled((capacity.rps, capacity.low_rps, capacity.high_rps), 1 / share),
            "" if base is None else base.name,
            _scaled(times or (None, None, None), scale),
            capacity.between,
            "" if capacity.side is None else f"all {capacity.side}",
        ))  # fmt: skip
    return rows


def _ratio(base: System, head: System, goal: float) -> Ends | None:
    """What `head` sustains over what `base` does; None where they were not swept over the rate under the same SLO."""
    return ratio(base.line, head.line, goal) if base.slo == head.slo and base.line and head.line else None


def _scaled(ends: Ends, by: float) -> Ends:
    value, low, high = (None if end is None else end * by for end in ends)
    return value, low, high


def of_many(studies: Mapping[str, Study]) -> Study:
    """The systems of all studies, which are named by their folders; goals are those of any."""
    specs: dict[str, dict[str, Any]] = {}
    for name, study in studies.items():
        spec = study.sources[0].get("spec") or {} if study.sources else {}
        specs[name] = {key: value for key, value in spec.items() if key not in _ASIDE}
    systems = [
        replace(system, name=text, made=run_text)
        for name, study in studies.items()
        for system, (text, run_text) in zip(study.systems, _names(name, study, specs), strict=True)
    ]
    slos = {system.slo for system in systems}
    goals = sorted({goal for study in studies.values() for goal in study.goals})
    sources = tuple(source for study in studies.values() for source in study.sources)
    # Equal names are counted: 'policy sarathi (2)'.
    seen: dict[str, int] = {}
    unique = []
    for system in systems:
        seen[system.name] = number = seen.get(system.name, 0) + 1
        unique.append(system if number == 1 else replace(system, name=f"{system.name} ({number})"))
    return Study(slos.pop() if len(slos) == 1 else "", tuple(goals), tuple(unique), sources)


def _names(name: str, study: Study, specs: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """What distinguishes the systems of one study from those of the others, and from one another; and what was run."""
    others = [spec for other, spec in specs.items() if other != name]
    differs = {key: value for key, value in specs[name].items() if any(spec.get(key) != value for spec in others)}
    label = ", ".join(f"{clean(key, 40)} {clean(value, 60)}" for key, value in differs.items()) or clean(name, 60)
    several = len({system.made for system in study.systems}) > 1
    for system in study.systems:
        system_text = system.name if len(study.systems) > 1 else ""
        run_text = system.made if several else ""
        yield _joined(label, system_text), _joined(label, run_text)


def _joined(*texts: str) -> str:
    return ", ".join(text for text in texts if text)


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """A run after the cut of its warm-up: how many requests, phases, and causes of misses under its SLO."""

    requests: int
    stages: Stages


def of(study: Study, point: Point) -> list[Samples]:
    """The runs of a point, seed by seed, until `ENOUGH` requests; empty where none can be read."""
    runs: list[Samples] = []
    for folder in point.folders:
        samples = _samples(study, folder)
        if samples is not None:
            runs.append(samples)
        if sum(run.requests for run in runs) >= ENOUGH:
            break
    return runs


def phases(samples: Sequence[Samples]) -> dict[str, float]:
    """Percent of the time in each stage over the runs, each run counting as often as it has requests that ended well;
    empty where none has, and where they tell other stages."""
    stages = [run.stages for run in samples if run.stages.times]
    if len({tuple(run.times) for run in stages}) != 1:
        return {}
    shares = [[time.share * 100.0 for time in run.times.values()] for run in stages]
    means = np.average(shares, axis=0, weights=[run.requests for run in stages])
    return dict(zip(stages[0].times, means.tolist(), strict=True))


def seeds_note(study: Study, points: Sequence[Point]) -> str:
    """The sentence on seeds that were not read."""
    if all(len(point.folders) <= len(of(study, point)) for point in points):
        return ""
    return f"Of each point the first seeds are read, until {_format.count(ENOUGH, 'request')}."


def _samples(study: Study, folder: Path) -> Samples | None:
    return _data.kept(study, str(folder), lambda: _read(folder))


def _read(folder: Path) -> Samples | None:
    try:
        run = _data.measured(large.load(folder, large=0))  # no gap between tokens is looked at
    except (BenchError, OSError, ValueError, KeyError):
        return None
    return Samples(run.requests.num_rows, _data.stages(run))


def infos(folders: Iterable[Path]) -> Iterator[RunInfo]:
    """run.json of the folders that have one which can be read."""
    for folder in folders:
        try:
            yield read_info(folder)
        except UsageError:
            continue


def floor_s(study: Study) -> Mapping[str, float]:
    """The client's floor by metric: 99% of all times are nearer to the truth, in the worst of the runs."""
    floors_s: dict[str, float] = {}
    folders = dict.fromkeys(f for system in study.systems for point in system.points for f in point.folders)
    for info in infos(folders):
        for metric, floor in floors(info).items():
            floors_s[metric] = max(floors_s.get(metric, 0.0), floor.p99_s)
    return floors_s

"""Systems over the rate, as figures of the subject `study` draw them: from sweeps, searches or several of them.

from harness import answers
from reports import study
from reports.figures.curves import attainment_rate

attainment_rate(study.of_sweep(answers.of("curve"), "curve")).show()
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from msgspec import structs

from harness.api import Bound
from harness.data.codec import encode
from harness.data.folder import read_info
from harness.data.run_json import RunInfo
from harness.errors import BenchError, UsageError
from harness.experiments.capacity.capacity_json import CapacityAnswer
from harness.experiments.capacity.store import TABLE
from harness.experiments.capacity.trials import TRIALS_FOLDER as TRIALS
from harness.experiments.capacity.trials import Ledger, Trial, folder_name
from harness.experiments.sweep.answer import ASIDE, over_seeds
from harness.experiments.sweep.axes import RATE
from harness.experiments.sweep.runs import swept
from harness.experiments.sweep.sweep_json import SweepAnswer, SweepPoint, SweptBound, SweptRun
from harness.metrics.objective import JOINT, ShareKey, restored_slo
from harness.metrics.summary import known
from harness.stats.seeds import Spread, spread
from reports import _data, _format
from reports._format import clean
from reports._sending import floors

Info: TypeAlias = Mapping[str, Any]
Where: TypeAlias = tuple[tuple[str, Any], ...]
_ASIDE = (*ASIDE, "rate", "slo", "timeout")
"""Options that do not tell systems apart."""
GONE = (
    "The runs of the points are not where they were, so nothing is known of single requests; "
    "keep the folder of the sweep whole."
)
NAMES = {"slo-scale": "SLO scale", "slo": "SLO"}
LONE = 0.05
"""A lowest rate below this share of the next is that of requests one by one, which no curve needs to reach."""


class Point(SweepPoint, frozen=True, kw_only=True):
    """What came of all seeds at one rate (req/s for the whole system, not per GPU; of users who wait that achieved).

    `folders` are those of its runs that can still be read. Of the trials of a search `runs` are left out.
    """

    rate_rps: float
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

    `gpus` is None where it is unknown (a remote endpoint). `slo` is what its points were scored under.
    """

    name: str
    gpus: int | None
    points: tuple[Point, ...]
    capacities: tuple[Capacity, ...]
    slo: str = ""

    @property
    def line(self) -> tuple[Point, ...]:
        """Its points of a sweep over the rate, which have seeds in common with those of others; a search has none."""
        return tuple(point for point in self.points if point.bounds and RATE in point.values)

    def capacity(self, goal: float) -> Capacity | None:
        """What is known of its capacity at a goal."""
        return next((c for c in self.capacities if c.goal == goal), None)


@dataclass(frozen=True, slots=True)
class Study:
    """Systems to be seen together. `sources` are the stored answers (sweep.json, capacity.json). `over` has the same
    over another option, where no rate is varied.

    `slo` is empty where they were scored under several. `memo` holds what was read of a run. Where the points differ in
    another `axis` than the rate, that stands in its place.
    """

    slo: str
    goals: tuple[float, ...]
    systems: tuple[System, ...]
    sources: tuple[Info, ...]
    axis: str = "rate"
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


def of_many(studies: Mapping[str, Study]) -> Study:
    """The systems of all studies, which are named by their folders; goals are those of any."""
    specs: dict[str, dict[str, Any]] = {}
    for name, study in studies.items():
        spec = study.sources[0].get("spec") or {} if study.sources else {}
        specs[name] = {key: value for key, value in spec.items() if key not in _ASIDE}
    systems = [
        replace(system, name=text)
        for name, study in studies.items()
        for system, text in zip(study.systems, _names(name, study, specs), strict=True)
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


def _names(name: str, study: Study, specs: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """What distinguishes the systems of one study from those of the others, and from one another."""
    others = [spec for other, spec in specs.items() if other != name]
    differs = {key: value for key, value in specs[name].items() if any(spec.get(key) != value for spec in others)}
    label = ", ".join(f"{clean(key, 40)} {clean(value, 60)}" for key, value in differs.items()) or clean(name, 60)
    for system in study.systems:
        yield ", ".join(filter(None, (label, system.name if len(study.systems) > 1 else "")))


def runs_of(study: Study, point: Point) -> list[RunInfo]:
    """The runs of a point, seed by seed; empty where none can be read."""
    return _data.kept(study, str(point.folders), lambda: [*infos(point.folders)])


def phases(runs: Sequence[RunInfo]) -> dict[str, float]:
    """Percent of the time in each stage over the runs, each run counting as often as it has requests that ended well;
    empty where none has, and where they tell other stages."""
    stages = [run.stages for run in runs if run.stages.times]
    if len({tuple(run.times) for run in stages}) != 1:
        return {}
    shares = [[time.share * 100.0 for time in run.times.values()] for run in stages]
    means = np.average(shares, axis=0, weights=[run.requests for run in stages])
    return dict(zip(stages[0].times, means.tolist(), strict=True))


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


def of_sweep(info: SweepAnswer, path: str | Path) -> Study:
    """What a sweep.json tells, whose runs are looked for below `path`; they may be gone."""
    home = Path(path)
    study, option = along(info, RATE, home), _option(info)
    return study if option is None else replace(study, over=along(info, option, home))


def along(info: SweepAnswer, axis: str, home: Path) -> Study:
    """The systems over the values of an axis."""
    lines: dict[Where, list[SweepPoint]] = {}
    for point in info.points:
        others = tuple((name, value) for name, value in point.values.items() if name != axis)
        lines.setdefault(others, []).append(point)
    systems = tuple(_system(info, others, points, home, axis) for others, points in lines.items())
    slos = {system.slo for system in systems}
    return Study(slos.pop() if len(slos) == 1 else "", tuple(info.goals), systems, (encode(info),), axis)


def _option(info: SweepAnswer) -> str | None:
    """The first axis of several numbers that stands in the place of the rate, where no rate is varied."""
    several = {axis.name: axis.values for axis in info.axes if len(axis.values) > 1}
    numbers = [name for name, values in several.items() if all(type(value) in (int, float) for value in values)]
    return None if RATE in several else next(iter(numbers), None)


def axis_title(name: str) -> str:
    return {"rate": "rate (req/s)", "slo-scale": "SLO scale"}.get(name, clean(name))


def named(values: Iterable[tuple[str, Any]]) -> str:
    """'policy vllm-v0, replicas 2' of values of axes."""
    return ", ".join(f"{NAMES.get(name, clean(name, 40))} {clean(value, 60)}" for name, value in values)


def at(values: Iterable[tuple[str, Any]]) -> str:
    """'2 req/s, policy sarathi' of values of axes."""
    pairs = list(values)
    rates = [f"{_format.plain(float(value), 4)} req/s" for name, value in pairs if name == RATE]
    return ", ".join([*rates, *filter(None, [named((name, value) for name, value in pairs if name != RATE)])])


def _system(info: SweepAnswer, where: Where, points: list[SweepPoint], home: Path, axis: str) -> System:
    converted = [_point(info, point, home, axis) for point in points]
    rated = sorted((point for point in converted if point is not None), key=lambda point: point.rate_rps)
    slos = {clean(point.slo or "", 400) for point in points}
    # GPUs of every run of the line; none where they differ or are unknown.
    counts = {run.gpus for point in points for run in point.runs[:1]}
    gpus = counts.pop() if len(counts) == 1 else None
    capacities = tuple(  # where the curve crosses each goal, by interpolation
        Capacity(row.goal, row.at, row.low, row.high, "interpolated", clean(row.why or "", 300), row.side, row.between)
        for row in info.crossings
        if row.along == axis and row.where == dict(where)
    )
    return System(
        named(where) or _alone(info.spec),
        gpus if axis == RATE and isinstance(gpus, int) and gpus > 0 else None,
        tuple(rated),
        capacities,
        slos.pop() if len(slos) == 1 else "",
    )


def _alone(spec: Mapping[str, Any]) -> str:
    """The name of the one system of a sweep or a search: 'sim, vllm-v0'."""
    parts = [str(spec.get(name) or "") for name in ("backend", "policy")]
    return ", ".join(clean(text, 60) for text in parts if text) or "the system"


def _point(info: SweepAnswer, point: SweepPoint, home: Path, axis: str) -> Point | None:
    folders = tuple(home / run.folder for run in point.runs if run.valid)
    readable = tuple(folder for folder in folders if (folder / "run.json").is_file() or folder.is_file())
    # The requested rate, else that of the traffic itself, else (users who wait for answers) that achieved.
    requested = point.values.get(axis, info.spec.get(RATE))
    stored = next(infos(readable), None) if requested is None else None
    rate = requested if stored is None else stored.workload.rate_rps
    achieved = point.throughput_rps
    rate_rps = achieved.mean if rate is None and achieved is not None else rate
    rate_rps = float(rate_rps) if isinstance(rate_rps, int | float) and rate_rps > 0 else None
    if rate_rps is None:
        return None
    return Point(**structs.asdict(point), rate_rps=rate_rps, folders=readable)


def of_capacity(info: CapacityAnswer, path: str | Path) -> Study:
    """What a search found, also one that was killed; `path` is its folder, where trials.parquet is looked for.

    Without that file points know attainment as a whole alone. Requests one by one are no point of a curve.
    """
    tried = trials(path)
    # only whole trials of the size that the capacities speak of, where the file tells it
    planned = {row.requests for row in info.answers} if info.answers else {info.run.requests}
    planned.discard(None)
    if info.over_horizon:  # of all lengths
        planned.clear()
    complete = [t for t in tried if t.key.goal is None and (not planned or t.key.planned in planned)]
    complete.sort(key=lambda t: (t.key.rate_rps, t.key.seed))
    by_rate = [list(group) for _, group in groupby(complete, key=lambda t: t.key.rate_rps)]
    slo = restored_slo(info.slo)
    by_request = any(bound.percentile is None for bound in slo.bounds)
    points = [_tried(group, slo.bounds, folders(path)) for group in by_rate] or [
        structs.replace(
            _of_runs(p.rate_rps), valid=p.seeds, requests=p.requests, overloaded=p.overloaded,
            attainment=Spread(p.seeds, p.attainment, None, None, p.least, p.most),
        )
        for p in info.curve if by_request
    ]  # fmt: skip
    points = points[lone([point.rate_rps for point in points]) :]
    gpu_count = info.backend.get("gpus")
    gpus = gpu_count if isinstance(gpu_count, int) and gpu_count > 0 else None
    text = clean(info.slo.text or str(slo), 400)
    capacities = tuple(
        Capacity(row.goal, None if row.state == "unreachable" else row.capacity_rps, row.low_rps, row.high_rps,
                 "searched", clean(row.why or "", 300).rstrip("."))
        for row in info.answers
    )  # fmt: skip
    system = System(_alone(info.spec), gpus, tuple(points), capacities, text)
    return Study(text, goals(info), (system,), (encode(info),))


def lone(rates_rps: Sequence[float]) -> bool:
    """Whether the first of these rising rates is that of requests one by one."""
    return len(rates_rps) > 1 and rates_rps[0] < LONE * rates_rps[1]


def goals(info: CapacityAnswer) -> tuple[float, ...]:
    """The goals of a search, rising."""
    goal = info.spec.get("goal")
    return tuple(sorted(info.searched_goals)) or ((float(goal),) if isinstance(goal, int | float) else ())


def trials(path: str | Path) -> list[Trial]:
    """Every trial of the search in a folder, in the order in which they were made; none where they are gone."""
    location = Path(path)
    file = (location if location.is_dir() else location.parent) / TABLE
    try:
        return list(Ledger(file)) if file.is_file() else []
    except UsageError:
        return []


def folders(path: str | Path) -> dict[str, Path]:
    """The folders of runs that a search on a real clock keeps, by name."""
    location = Path(path)
    home = (location if location.is_dir() else location.parent) / TRIALS
    return {folder.name: folder for folder in sorted(home.iterdir())} if home.is_dir() else {}


def _of_runs(rate_rps: float, runs: Sequence[SweptRun] = ()) -> Point:
    """What a sweep tells of these runs."""
    return Point(**structs.asdict(over_seeds({}, "", [*runs])), rate_rps=rate_rps)


def _tried(made: Sequence[Trial], bounds: Sequence[Bound], kept: Mapping[str, Path]) -> Point:
    run_folders = tuple(folder for t in made if (folder := kept.get(folder_name(t.key))) is not None)
    try:
        runs = [swept(read_info(folder), "") for folder in run_folders]
    except (BenchError, KeyError, TypeError, AttributeError):  # one of them cannot be read
        runs = []
    return structs.replace(
        _of_runs(made[0].key.rate_rps, runs),
        valid=len(made),
        invalid=0,
        requests=sum(t.kept for t in made),
        overloaded=sum(t.overloaded for t in made),
        attainment=_spread(made, JOINT) if made[0].by_request else None,
        bounds=[
            SweptBound(text=str(b), metric=b.metric, limit_s=known(b.limit), tag=b.tag, percentile=b.percentile,
                       attainment=_spread(made, b) if b.percentile is None else None)
            for b in bounds
        ],
        runs=[],
        folders=run_folders,
    )  # fmt: skip


def _spread(made: Sequence[Trial], key: ShareKey) -> Spread | None:
    return spread([share(tried, key) for tried in made], most=1.0)


def share(tried: Trial, key: ShareKey) -> float | None:
    """The share of that name in a trial; None where it was not taken, or of nothing."""
    counted = next((s for s in tried.shares if s.key == key), None)
    return counted.met / counted.of if counted is not None and counted.of else None

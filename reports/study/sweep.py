"""The systems of a sweep: one for each combination of what it varies besides the rate."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import nan
from pathlib import Path
from typing import Any

from msgspec import UNSET

from harness.data.codec import encode
from harness.experiments.rescore.slo_json import SloCurve
from harness.experiments.sweep.axes import RATE, RESCORED, SCALE, SLO
from harness.experiments.sweep.sweep_json import SweepAnswer, SweepPoint
from harness.stats.seeds import Spread
from reports import _format
from reports._format import clean
from reports.study.runs import Capacity, Kept, Point, Study, System, infos

Where = tuple[tuple[str, Any], ...]

NAMES = {"slo-scale": "SLO scale", "slo": "SLO"}


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
    systems = _marked(info, {others: _system(info, others, points, home, axis) for others, points in lines.items()})
    slos = {system.slo for system in systems}
    return Study(slos.pop() if len(slos) == 1 else "", tuple(info.goals), systems, (encode(info),), axis)


def _option(info: SweepAnswer) -> str | None:
    """The first axis of several numbers that stands in the place of the rate, where no rate is varied."""
    several = {axis.name: axis.values for axis in info.axes if len(axis.values) > 1}
    numbers = [name for name, values in several.items() if all(type(value) in (int, float) for value in values)]
    return None if RATE in several else next(iter(numbers), None)


def _marked(info: SweepAnswer, systems: Mapping[Where, System]) -> tuple[System, ...]:
    """The systems, of which one of those that share their runs stands for them: that under the SLO of the runs."""
    groups: dict[str, list[Where]] = {}
    for where, system in systems.items():
        groups.setdefault(system.made, []).append(where)
    base = {SCALE: 1, SLO: info.spec.get(SLO)}
    heads = {max(group, key=lambda where: sum(base.get(name) == value for name, value in where))
             for group in groups.values()}  # fmt: skip
    return tuple(system if where in heads else replace(system, again=True) for where, system in systems.items())


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
    # GPUs of every run of the line; none where they differ or are unknown. Older sweeps leave it to their runs.
    counts: set[object] = set()
    for run in (run for point in points for run in point.runs[:1]):
        stored = next(infos([home / run.folder]), None)
        counts.add(run.gpus if run.gpus is not UNSET or stored is None else stored.backend.get("gpus"))
    gpus = counts.pop() if len(counts) == 1 else None
    capacities = tuple(  # where the curve crosses each goal, by interpolation
        Capacity(row.goal, row.at, row.low, row.high, "interpolated", clean(row.why or "", 300), row.side, row.between)
        for row in info.crossings
        if row.along == axis and row.where == dict(where)
    )
    scored = [point for point in points if point.bounds and RATE in point.values]  # as the ratios of sweep.json
    return System(
        named(where) or _alone(info.spec),
        gpus if axis == RATE and isinstance(gpus, int) and gpus > 0 else None,
        tuple(rated),
        capacities,
        slos.pop() if len(slos) == 1 else "",
        made=named(value for value in where if value[0] not in RESCORED) or _alone(info.spec),
        line=tuple(sorted(scored, key=lambda point: float(str(point.values[RATE])))),
    )


def _alone(spec: Mapping[str, Any]) -> str:
    """The name of the one system of a sweep: 'sim, vllm-v0'."""
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
    return Point(
        rate_rps=rate_rps,
        seeds=point.valid,
        requests=point.requests,
        overloaded=point.overloaded,
        invalid=point.invalid,
        attainment=point.attainment,
        bounds=tuple(
            Kept(b.text, b.metric, nan if b.limit_s is None else b.limit_s, b.tag, b.percentile, b.attainment, b.passed)
            for b in point.bounds
        ),
        goodput_rps=point.goodput_rps,
        throughput_rps=point.throughput_rps,
        output_tps=point.output_tps,
        metrics=point.metrics,
        folders=readable,
    )


def of_curve(curve: SloCurve) -> Study:
    """A curve that `bench slo` scored again, as one system."""
    points = tuple(
        Point(
            rate_rps=point.rate_rps, seeds=point.runs, requests=point.requests, overloaded=point.overloaded,
            invalid=point.invalid, attainment=point.attainment, goodput_rps=point.goodput_rps,
            bounds=tuple(bound_of(text, spread) for text, spread in point.bounds.items()),
        )
        for point in curve.points
    )  # fmt: skip
    capacities = tuple(
        Capacity(cross.goal, cross.at_rps, None, None, "interpolated",
                 "" if cross.side is None else f"all rates lie {cross.side} it")
        for cross in curve.crossings
    )  # fmt: skip
    slo = clean(curve.slo, 400)
    system = System(clean(curve.label or "the system", 60), None, points, capacities, slo)
    return Study(slo, tuple(cross.goal for cross in curve.crossings), (system,), ())


def bound_of(text: str, attainment: Spread | None) -> Kept:
    """A bound by its text: 'ttft@long=2'; the limit of a rule that is no bound (fastgen) is NaN."""
    name, _, limit = text.rpartition("=")
    metric, _, tag = name.rpartition(":")[2].partition("@")
    try:
        limit_s = float(limit)
    except ValueError:
        limit_s = nan
    return Kept(text, metric or text, limit_s, tag or None, None, attainment)

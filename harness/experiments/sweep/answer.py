"""The answer of a sweep: a curve with its spread over seeds, its crossings and warnings.

Runs that were made one by one are a sweep over whatever differs between them.

Whether a curve keeps what `--fail-under` asks for at every point, and the exit code that follows.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from harness.data import codec
from harness.data.codec import Facts, Text, alike, encode, inner
from harness.data.folder import Run
from harness.data.host import versions
from harness.data.run_json import Resolution, RunInfo, ScoredBound, Warned, Workload
from harness.experiments.sweep.axes import RATE, SCALE, SLO, Layout, point_folder, run_folder, valued
from harness.experiments.sweep.crossings import compared
from harness.experiments.sweep.runs import PARTS, RunResult, swept
from harness.experiments.sweep.sweep_json import RunCount, SweepAnswer, SweepAxis, SweepPoint, SweptBound, SweptRun
from harness.metrics.measure import in_summary
from harness.metrics.objective import meets
from harness.options import NO_SETTINGS
from harness.stats.seeds import LEAST_SEEDS, spread
from harness.validity.remote import undecided

ASIDE = ("seed", "requests", "duration", "goal", "drain", "warmup", "senders", "priority", "scale", *NO_SETTINGS)
"""Options that may differ without making another system or another rate of it."""
OWN_SLO = "SLO requested"
"""The SLO as an axis: these runs are not the same ones scored again."""
MOST_DIGITS = 4
"""Digits of a rate that no option sets: that of a recording."""
Values = tuple[tuple[str, Any], ...]
GOOD, BELOW, FAILED, NOT_VALID, OPEN = 0, 1, 3, 4, 5


def answer(
    stored: Mapping[str, Any], results: Mapping[str, RunResult], state: str, error: str | None = None
) -> SweepAnswer:
    """The whole of sweep.json: the plan that is `stored`, and the results of the runs that ended, by folder."""
    layout = Layout.restored(stored)
    planned = []
    for values in layout.points:
        folder = point_folder(values)
        ended = [results.get(run_folder(folder, seed), RunResult("not made")).scored for seed in layout.seeds]
        planned.append(over_seeds(
            {name: valued(text) for name, text in values}, folder, [run for run in ended if run is not None]
        ))  # fmt: skip
    points = [point for point in planned if point.runs]
    done = sum(run_result.ended == "finished" for run_result in results.values())
    info = compared(codec.of(SweepAnswer, {
        **stored,
        "state": state,
        "exit_code": 0,
        "runs": {"planned": len(layout.runs), "done": done},
        "points": points,
        "crossings": [],
        "ratios": [],
        "differences": [],
        "error": error,
        "warnings": [],
    }))  # fmt: skip
    return info.change(exit_code=exit_code(info), warnings=list(_warnings(info)))


def over_seeds(values: Mapping[str, object], folder: str, runs: list[SweptRun]) -> SweepPoint:
    """One point, at `values` of the axes, over its seeds. Only valid runs count."""
    valid = [run for run in runs if run.valid]
    overloaded = sum(run.overloaded for run in valid)
    metrics = {
        metric.name: {part: spread([run.metrics[metric.name][part] for run in valid]) for part in PARTS}
        for metric in in_summary()
        if all(metric.name in run.metrics for run in valid)
    }
    by_text: dict[str | None, list[ScoredBound]] = {}
    for run in valid:
        for bound in run.bounds:  # requests' own may be there in some runs only
            by_text.setdefault(bound.text, []).append(bound)
    return SweepPoint(
        values=dict(values),
        folder=folder,
        slo=runs[0].slo if runs else None,
        requests=sum(run.requests for run in valid),
        valid=len(valid),
        invalid=len(runs) - len(valid),
        overloaded=overloaded,
        attainment=spread([run.attainment for run in valid], most=1.0),
        bounds=[_bound(bounds) for bounds in by_text.values()],
        goodput_rps=spread([run.goodput_rps for run in valid]),
        throughput_rps=spread([run.throughput_rps for run in valid]),
        output_tps=spread([run.output_tps for run in valid]),
        failed=spread([run.failed for run in valid], most=1.0),
        metrics=metrics if valid and not overloaded else {},
        runs=runs,
    )


def _bound(bounds: Sequence[ScoredBound]) -> SweptBound:
    """One bound over the seeds. A percentile that no number tells, because too many failed, is no part of a mean."""
    first, values = bounds[0], [bound.value_s for bound in bounds]
    value_s = None if first.percentile is None or None in values else spread(values)
    if first.percentile is None:
        passed = None
    elif value_s is None or first.limit_s is None:
        passed = not any(bound.passed is False for bound in bounds)
    else:
        passed = value_s.mean <= first.limit_s
    return SweptBound(
        text=first.text or "",
        metric=first.metric,
        limit_s=first.limit_s,
        tag=first.tag,
        percentile=first.percentile,
        attainment=spread([bound.attainment for bound in bounds], most=1.0),
        value_s=value_s,
        passed=passed,
    )


def _warnings(info: SweepAnswer) -> Iterator[str]:
    """Sentences on what the curve does not tell, each with what to do."""
    runs = [run for point in info.points for run in point.runs]
    seeds = len(info.seeds)
    if info.runs.done < info.runs.planned:
        yield (
            f"{info.runs.done} of {info.runs.planned} runs are done; "
            "the same command with the same --out goes on from there."
        )
    if info.fixed:
        yield (
            "The traffic is a recording that no seed moves, so one simulated run tells all and there is no interval; "
            "other parts of the trace (--start, --stop) show how much it varies."
        )
    elif seeds < LEAST_SEEDS:
        few_seeds = "one run at each point: no interval" if seeds == 1 else f"{seeds} seeds at each point: no interval"
        yield f"{few_seeds}; repeat with --seeds {LEAST_SEEDS} or more, into the same --out."
    yield from run_warnings(runs)
    yield from _judged(info)
    shares = [point.attainment for point in info.points if point.attainment is not None]
    if shares and not any(point.bounds for point in info.points if point.attainment is not None):
        yield "There is no SLO, so attainment counts every request that ended well; give --slo ttft=0.25,tpot=0.1."


def _judged(info: SweepAnswer) -> Iterator[str]:
    """Which points keep an exit code of 0 away."""
    fail_under = info.fail_under
    shares = [point for point in info.points if point.attainment is not None]
    percentiles = [point for point in info.points if point.attainment is None]
    share = f"--fail-under {100 * (fail_under or 0):g}%"
    if failing := [_named(point) for point in below(shares, fail_under)]:
        yield f"{share} is not kept at {'; '.join(failing)}."
    if failing := [_named(point) for point in below(percentiles, fail_under)]:
        yield f"A bound on a percentile is broken at {'; '.join(failing)}."
    why = "because a run was overloaded or a bound is nearer than the client's own error"
    if unsure := [_named(point) for point in left_open(shares, fail_under)]:
        yield f"Whether {share} is kept is open at {'; '.join(unsure)}, {why}."
    if unsure := [_named(point) for point in left_open(percentiles, fail_under)]:
        yield f"Whether every bound on a percentile is met is open at {'; '.join(unsure)}, {why}."


def _named(point: SweepPoint) -> str:
    return ", ".join(f"{name} {value}" for name, value in point.values.items()) or "the one point"


def run_warnings(runs: Sequence[SweptRun]) -> Iterator[str]:
    """What keeps single runs from counting, then their warnings, each kind once with the first of its messages."""
    for run in runs:
        if not run.valid:
            yield f"{run.folder} is not valid and does not count: {' '.join(run.reasons)}"
        if run.failed_for:
            yield f"{run.folder}: {run.failed_for}"
    by_code: dict[Text, list[tuple[str, Warned]]] = {}
    for run in runs:
        for warning in run.warnings:
            if run.overloaded and warning.code == "not-stationary":
                continue  # it follows from the overload, which the table of the points shows
            by_code.setdefault(warning.code, []).append((run.folder, warning))
    for code, warned in by_code.items():
        folder, first = warned[0]
        heading = f"{code} in {len(warned)} of {len(runs)} runs, first in {folder}"
        yield f"{heading}: {first.message}{'; ' if first.remedy else ''}{first.remedy}."


def exit_code(info: SweepAnswer) -> int:
    """The first that applies of 3 the backend failed, 4 a run is not valid, 1 below `fail_under`, 5 not decided."""
    points, fail_under = info.points, info.fail_under
    if info.state == "failed" or any(run.failed_for for point in points for run in point.runs):
        return FAILED
    if any(point.invalid for point in points):
        return NOT_VALID
    if below(points, fail_under):
        return BELOW
    if info.state != "finished" or left_open(points, fail_under):
        return OPEN
    return GOOD


def below(points: list[SweepPoint], fail_under: float | None) -> list[SweepPoint]:
    """The points that surely fail: too few requests met the SLO, or a bound on a percentile is broken."""
    return [p for p in points if p.valid and not _keeps(p, fail_under) and not _floor_decides(p, fail_under)]


def left_open(points: list[SweepPoint], fail_under: float | None) -> list[SweepPoint]:
    """The points that kept it only while the run lasted, because the queue grew, or that the client's error decides."""
    judged = points if fail_under is not None else []
    return [p for p in judged if _floor_decides(p, fail_under) or (p.overloaded and _keeps(p, fail_under))]


def _keeps(point: SweepPoint, fail_under: float | None) -> bool:
    """Whether it has as many requests within the SLO, and passed every bound on a percentile; None asks for nothing."""
    percentiles = [bound.passed for bound in point.bounds if bound.percentile is not None]
    return fail_under is None or meets(point.mean_attainment, percentiles, fail_under)


def _floor_decides(point: SweepPoint, fail_under: float | None) -> bool:
    """Whether the mean over the seeds changes sides when all bounds are moved by the client's own error."""
    moved = [run.resolution for run in point.runs if run.valid and run.resolution is not None]
    if fail_under is None or not moved:
        return False
    shares = [resolved.attainment for resolved in moved if resolved.attainment is not None]
    low, high = (sum(share[side] for share in shares) / len(moved) for side in (0, 1))
    sides = all(resolved.kept[0] for resolved in moved), all(resolved.kept[1] for resolved in moved)
    attainment = (low, high) if len(shares) == len(moved) else None
    return undecided(Resolution(attainment=attainment, kept=sides), fail_under)


def gathered(runs: Iterable[tuple[Run, str]]) -> SweepAnswer:
    """The sweep.json of these runs, each with the name of its folder; runs are read one by one.

    Runs with the same options but another seed make one point. Those that cannot be scored are warnings.
    """
    scored: list[tuple[RunInfo, Facts, SweptRun]] = []
    unscored: list[str] = []
    for run, folder in runs:
        try:
            scored.append((run.info, {**options_of(run.info), OWN_SLO: run.info.slo.text}, swept(run.info, folder)))
        except (KeyError, TypeError, AttributeError) as error:
            unscored.append(f"{folder} has no {error} that could be read, so it is left out.")
    return together(scored, unscored)


def together(
    scored: Sequence[tuple[RunInfo, Facts, SweptRun]], unscored: Sequence[str] = (), goals: Iterable[float] = ()
) -> SweepAnswer:
    """The sweep.json of runs with what distinguishes each, for their own goals or others; `unscored` are warnings."""
    rated = [row for row in scored if row[1].get(RATE) is not None]
    if 0 < len(rated) < len(scored):  # as seeds of one point they would hide at which rate the others ran
        left_out = [run.folder for _, opts, run in scored if opts.get(RATE) is None]
        unscored = [
            *unscored,
            *(f"{folder} has no rate, which the others have, so it is no point." for folder in left_out),
        ]
        scored = rated
    infos, options = [info for info, _, _ in scored], [options for _, options, _ in scored]
    names = dict.fromkeys(name for opts in options for name in opts)
    varied = [name for name in names if len({str(opts.get(name)) for opts in options}) > 1]
    axes = [name for name in names if name != RATE and name in (SCALE, *varied)]  # a scale is one where it is alone too
    if options and all(opts.get(RATE) is not None for opts in options):
        axes.insert(0, RATE)
    points = _points(axes, [(options, run) for _, options, run in scored])
    traffic = alike([inner(encode(info), "workload") for info in infos]) | {"rate_rps": None, "arrivals_rps": None}
    return compared(
        SweepAnswer(
            versions=alike([info.versions for info in infos]) or dict(versions()),
            spec={name: value for name, value in alike([info.spec for info in infos]).items() if name != "seed"},
            traffic=msgspec.convert(traffic, Workload),
            backend=alike([info.backend for info in infos]),
            clock="virtual" if {info.clock for info in infos} == {"virtual"} else "wall",
            axes=[SweepAxis(name=name, values=list(dict.fromkeys(p.values[name] for p in points))) for name in axes],
            seeds=sorted({run.seed for _, _, run in scored if isinstance(run.seed, int)}),
            goals=sorted(goals or {float(info.slo.goal or 0.9) for info in infos}) or [0.9],
            fail_under=None,
            state="finished",
            exit_code=0,
            runs=RunCount(len(scored) + len(unscored), len(scored)),
            points=points,
            crossings=[],
            warnings=[*unscored, *_of_gathered([run for _, _, run in scored])],
        )
    )


def options_of(info: RunInfo) -> Facts:
    """What distinguishes a run from others, beside its SLO."""
    spec, own_rps, set_rate = info.spec, info.workload.rate_rps, info.spec.get(RATE)
    rate = float(f"{own_rps:.{MOST_DIGITS}g}") if set_rate is None and own_rps is not None and own_rps > 0 else set_rate
    return {RATE: rate, **{name: value for name, value in spec.items() if name not in (*ASIDE, SLO, RATE)}}


def _points(axes: Sequence[str], runs: Sequence[tuple[Facts, SweptRun]]) -> list[SweepPoint]:
    """A point for each combination of values that there is, in the order of rates."""
    by_values: dict[Values, list[SweptRun]] = {}
    for options, run in runs:
        by_values.setdefault(tuple((name, _value(options.get(name))) for name in axes), []).append(run)
    points = [over_seeds(dict(values), runs[0].folder, runs) for values, runs in by_values.items()]
    return sorted(points, key=lambda point: float(str(point.values.get(RATE) or 0.0)))


def _value(value: object) -> object:
    """A value of an axis: a number or a text."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        return value
    return "default" if value is None else str(value)


def _of_gathered(runs: Sequence[SweptRun]) -> Iterator[str]:
    if free := [run.folder for run in runs if not run.bounds]:
        yield (
            f"{len(free)} of {len(runs)} runs had no SLO, first {free[0]}: their attainment counts every request that "
            "ended well; bench slo, with each of them and one --slo, scores them alike."
        )
    yield from run_warnings(runs)

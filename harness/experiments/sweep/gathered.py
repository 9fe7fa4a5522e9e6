"""Runs that were made one by one, as a sweep over whatever differs between them."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from harness.data.codec import Facts, alike, encode, inner
from harness.data.folder import Run
from harness.data.host import versions
from harness.data.run_json import RunInfo, Workload
from harness.experiments.sweep.answer import over_seeds, run_warnings
from harness.experiments.sweep.axes import RATE, Rescoring
from harness.experiments.sweep.crossings import compared
from harness.experiments.sweep.runs import swept
from harness.experiments.sweep.sweep_json import RunCount, SweepAnswer, SweepAxis, SweepPoint, SweptRun
from harness.options import NO_SETTINGS

ASIDE = ("seed", "requests", "duration", "goal", "drain", "warmup", "senders", "scale", *NO_SETTINGS)
"""Options that may differ without making another system or another rate of it."""

SLO = "slo"
OWN_SLO = "SLO requested"
"""The SLO as an axis: these runs are not the same ones scored again."""

MOST_DIGITS = 4
"""Digits of a rate that no option sets: that of a recording."""

Values = tuple[tuple[str, Any], ...]


def gathered(runs: Iterable[tuple[Run, str]]) -> SweepAnswer:
    """The sweep.json of these runs, each with the name of its folder; runs are read one by one.

    Runs with the same options but another seed make one point. Those that cannot be scored are warnings.
    """
    scored: list[tuple[RunInfo, Facts, SweptRun]] = []
    unscored: list[str] = []
    for run, folder in runs:
        try:
            scored.append((run.info, _options(run.info), swept(run, folder, Rescoring())))
        except (KeyError, TypeError, AttributeError) as error:
            unscored.append(f"{folder} has no {error} that could be read, so it is left out.")
    infos, options = [info for info, _, _ in scored], [options for _, options, _ in scored]
    names = dict.fromkeys(name for one in options for name in one)
    axes = [name for name in names if name != RATE and len({str(one.get(name)) for one in options}) > 1]
    if options and all(one.get(RATE) is not None for one in options):
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
            goals=sorted({float(info.slo.goal or 0.9) for info in infos}) or [0.9],
            fail_under=None,
            state="finished",
            exit_code=0,
            runs=RunCount(len(scored) + len(unscored), len(scored)),
            points=points,
            crossings=[],
            warnings=[*unscored, *_warnings([run for _, _, run in scored])],
        )
    )


def _options(info: RunInfo) -> Facts:
    """What distinguishes a run from others."""
    spec, own, set_rate = info.spec, info.workload.rate_rps, info.spec.get(RATE)
    rate = float(f"{own:.{MOST_DIGITS}g}") if set_rate is None and own is not None and own > 0 else set_rate
    options = {name: value for name, value in spec.items() if name not in (*ASIDE, SLO, RATE)}
    return {RATE: rate, **options, OWN_SLO: info.slo.text}


def _points(axes: Sequence[str], runs: Sequence[tuple[Facts, SweptRun]]) -> list[SweepPoint]:
    """A point for each combination of values that there is, in the order of rates."""
    found: dict[Values, list[SweptRun]] = {}
    for options, run in runs:
        found.setdefault(tuple((name, _value(options.get(name))) for name in axes), []).append(run)
    points = [over_seeds(dict(values), runs[0].folder, runs) for values, runs in found.items()]
    return sorted(points, key=lambda point: float(str(point.values.get(RATE) or 0.0)))


def _value(value: object) -> object:
    """A value of an axis: a number or a text."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        return value
    return "default" if value is None else str(value)


def _warnings(runs: Sequence[SweptRun]) -> Iterator[str]:
    if free := [run.folder for run in runs if not run.bounds]:
        yield (
            f"{len(free)} of {len(runs)} runs had no SLO, first {free[0]}: their attainment counts every request that "
            "ended well; bench slo, with each of them and one --slo, scores them alike."
        )
    yield from run_warnings(runs)

"""Runs that were made one by one, as a sweep over whatever differs between them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from harness.data import codec
from harness.data.codec import encode
from harness.data.folder import Run
from harness.data.host import versions
from harness.experiments.sweep.answer import over_seeds, run_warnings
from harness.experiments.sweep.axes import RATE, Rescoring
from harness.experiments.sweep.crossings import compared
from harness.experiments.sweep.runs import swept
from harness.experiments.sweep.sweep_json import SweepAnswer, SweepPoint, SweptRun
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
    scored, unscored = [], []
    for run, folder in runs:
        try:
            scored.append((_described(run), swept(run, folder, Rescoring())))
        except (KeyError, TypeError, AttributeError) as error:
            unscored.append(f"{folder} has no {error} that could be read, so it is left out.")
    descriptions = [described for described, _ in scored]
    options = [described["options"] for described in descriptions]
    names = dict.fromkeys(name for one in options for name in one)
    axes = [name for name in names if name != RATE and len({str(one.get(name)) for one in options}) > 1]
    if options and all(one.get(RATE) is not None for one in options):
        axes.insert(0, RATE)
    points = _points(axes, scored)
    goals = sorted({float(described["goal"]) for described in descriptions}) or [0.9]
    return compared(codec.of(SweepAnswer, {
        "schema": 1,
        "kind": "sweep",
        "versions": _alike([described["versions"] for described in descriptions]) or versions(),
        "spec": {key: value for key, value in _alike([d["spec"] for d in descriptions]).items() if key != "seed"},
        "traffic": _alike([described["workload"] for described in descriptions]),
        "backend": _alike([described["backend"] for described in descriptions]),
        "clock": "virtual" if {d["clock"] for d in descriptions} == {"virtual"} else "wall",
        "fixed": False,
        "axes": [{"name": name, "values": list(dict.fromkeys(p.values[name] for p in points))} for name in axes],
        "seeds": sorted({run.seed for _, run in scored if isinstance(run.seed, int)}),
        "goals": goals,
        "fail_under": None,
        "state": "finished",
        "exit_code": 0,
        "runs": {"planned": len(scored) + len(unscored), "done": len(scored)},
        "points": points,
        "crossings": [],
        "ratios": [],
        "differences": [],
        "error": None,
        "warnings": [*unscored, *_warnings([run for _, run in scored])],
    }))  # fmt: skip


def _described(run: Run) -> dict[str, Any]:
    """What distinguishes a run from others."""
    info, stored = run.info, encode(run.info)
    spec, own = info.spec, info.workload.rate_rps
    set_rate = spec.get(RATE)
    rate = float(f"{own:.{MOST_DIGITS}g}") if set_rate is None and own is not None and own > 0 else set_rate
    options = {key: value for key, value in spec.items() if key not in (*ASIDE, SLO, RATE)}
    return {
        "options": {RATE: rate, **options, OWN_SLO: info.slo.text},
        "spec": spec,
        "workload": {**stored.get("workload", {}), "rate_rps": None, "arrivals_rps": None},
        "backend": info.backend,
        "versions": info.versions,
        "clock": info.clock,
        "goal": info.slo.goal or 0.9,
    }


def _points(axes: Sequence[str], runs: Sequence[tuple[Mapping[str, Any], SweptRun]]) -> list[SweepPoint]:
    """A point for each combination of values that there is, in the order of rates."""
    found: dict[Values, list[SweptRun]] = {}
    for described, run in runs:
        found.setdefault(tuple((name, _value(described["options"].get(name))) for name in axes), []).append(run)
    points = [over_seeds(dict(values), runs[0].folder, runs) for values, runs in found.items()]
    return sorted(points, key=lambda point: float(str(point.values.get(RATE) or 0.0)))


def _value(value: object) -> object:
    """A value of an axis: a number or a text."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        return value
    return "default" if value is None else str(value)


def _alike(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What is equal in all of them."""
    first = found[0] if found else {}
    return {name: value for name, value in first.items() if all(one.get(name) == value for one in found)}


def _warnings(runs: Sequence[SweptRun]) -> Iterator[str]:
    if free := [run.folder for run in runs if not run.bounds]:
        yield (
            f"{len(free)} of {len(runs)} runs had no SLO, first {free[0]}: their attainment counts every request that "
            "ended well; bench slo, with each of them and one --slo, scores them alike."
        )
    yield from run_warnings(runs)

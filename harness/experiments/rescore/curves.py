"""Attainment over the rate, from runs that differ in rate and seed and in nothing else."""

import json
from collections.abc import Sequence
from itertools import groupby

from msgspec.structs import replace

from harness.data.codec import Facts
from harness.experiments.rescore.slo_json import CurveCrossing, CurvePoint, ScoredRun, SloCurve, SloScore
from harness.options import NO_SETTINGS
from harness.stats.curves import crossing
from harness.stats.seeds import spread

FREE = ("rate", "seed", "scale", *NO_SETTINGS)
"""Options in which the runs of one curve may differ."""


def curves(runs: Sequence[ScoredRun]) -> list[SloCurve]:
    """A curve per system and objective, where there are runs at two rates or more; their points rise."""
    rated = [run for run in runs if run.rate_rps and run.measured]
    found = []
    for key, group in groupby(sorted(rated, key=_key), _key):
        made = sorted(group, key=_rate_rps)
        if len(set(map(_rate_rps, made))) > 1:
            found += [_curve(made, i, json.loads(key)[0]) for i in range(len(made[0].slos))]
    return _distinguished(found)


def _rate_rps(run: ScoredRun) -> float:
    return run.rate_rps or 0.0


def _key(run: ScoredRun) -> str:
    options = {name: value for name, value in run.spec.items() if name not in FREE}
    return json.dumps([options, [slo.text for slo in run.slos]], sort_keys=True, default=str)


def _curve(runs: Sequence[ScoredRun], index: int, options: Facts) -> SloCurve:
    points = [_point(list(group), index) for _, group in groupby(runs, _rate_rps)]
    return SloCurve(
        options=options, slo=runs[0].slos[index].text, points=points,
        crossings=[found for goal in runs[0].goals if (found := _crossing(points, goal)) is not None],
    )  # fmt: skip


def _point(runs: Sequence[ScoredRun], index: int) -> CurvePoint:
    slos = [run.slos[index] for run in runs]
    scales = [slo.scale for slo in slos if slo.scale is not None]
    whole = len(scales) == len(slos)
    shares = zip(*([share or 0.0 for share in scale.attainment] for scale in scales), strict=True)
    return CurvePoint(
        rate_rps=_rate_rps(runs[0]),
        runs=len(runs),
        requests=sum(run.measured for run in runs),
        overloaded=sum(overloaded(run.queue_grew, slo) for run, slo in zip(runs, slos, strict=True)),
        invalid=sum(run.valid is False for run in runs),
        attainment=spread([slo.attainment for slo in slos], most=1.0),
        goodput_rps=spread([slo.goodput_rps for slo in slos]),
        bounds={
            bound.text: spread([slo.bounds[i].attainment for slo in slos], most=1.0)
            for i, bound in enumerate(slos[0].bounds)
        },
        factors=scales[0].factors if whole else [],
        scale=[sum(each) / len(each) for each in shares] if whole else [],
        missed={
            bound.text: sum(slo.bounds[i].passed is False for slo in slos)
            for i, bound in enumerate(slos[0].bounds)
            if bound.percentile is not None
        },
    )


def overloaded(grew: bool, slo: SloScore) -> bool:
    """Whether a queue that grew is overload: not where the first goal is reached; without a bound it always is."""
    return grew and not (slo.bounds and slo.joint[0])


def _crossing(points: Sequence[CurvePoint], goal: float) -> CurveCrossing | None:
    """Where the mean attainment crosses a goal; None where that is not all of the SLO: a bound is on a percentile."""
    means = [p.attainment.mean for p in points if p.attainment is not None and not p.missed]
    if len(means) < len(points):
        return None
    found = crossing([p.rate_rps for p in points], means, [p.requests for p in points], goal)
    return CurveCrossing(goal, found.at, found.between, found.side)


def _distinguished(found: Sequence[SloCurve]) -> list[SloCurve]:
    """Each curve with the options in which it differs from the others as its `label`."""
    names = sorted({name for one in found for name in one.options})
    differ = [name for name in names if len({str(one.options.get(name)) for one in found}) > 1]
    return [
        replace(one, label=", ".join(f"{name}={one.options[name]}" for name in differ if name in one.options))
        for one in found
    ]

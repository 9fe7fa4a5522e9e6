"""Attainment over the rate, from runs that differ in rate and seed and in nothing else."""

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from harness.stats.curves import crossing
from harness.stats.seeds import spread

FREE = ("rate", "seed", "scale", "fail-under")
"""Options in which the runs of one curve may differ."""

Run = Mapping[str, Any]


def curves(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """A curve per system and objective, where there are runs at two rates or more; their points rise."""
    known = [run for run in runs if run["rate_rps"] and run["measured"]]
    found = []
    for key, group in groupby(sorted(known, key=_key), _key):
        made = sorted(group, key=lambda run: float(run["rate_rps"]))
        if len({run["rate_rps"] for run in made}) > 1:
            found += [_curve(made, i, json.loads(key)) for i in range(len(made[0]["slos"]))]
    return _distinguished(found)


def _key(run: Run) -> str:
    options = {name: value for name, value in run["spec"].items() if name not in FREE}
    return json.dumps([options, [slo["text"] for slo in run["slos"]]], sort_keys=True, default=str)


def _curve(runs: Sequence[Run], index: int, key: Sequence[Any]) -> dict[str, Any]:
    points = [_point(list(group), index) for _, group in groupby(runs, lambda run: run["rate_rps"])]
    return {
        "options": key[0],
        "slo": runs[0]["slos"][index]["text"],
        "points": points,
        "crossings": [_crossing(points, goal) for goal in runs[0]["goals"] if all(p["attainment"] for p in points)],
    }


def _point(runs: Sequence[Run], index: int) -> dict[str, Any]:
    slos = [run["slos"][index] for run in runs]
    names = [bound["text"] for bound in slos[0]["bounds"]]
    scales = [slo["scale"]["attainment"] for slo in slos if slo["scale"]]
    whole = len(scales) == len(slos)
    return {
        "rate_rps": runs[0]["rate_rps"],
        "runs": len(runs),
        "requests": sum(run["measured"] for run in runs),
        "overloaded": sum(overloaded(run["queue_grew"], slo) for run, slo in zip(runs, slos, strict=True)),
        "invalid": sum(run["valid"] is False for run in runs),
        "attainment": spread([slo["attainment"] for slo in slos], most=1.0),
        "goodput_rps": spread([slo["goodput_rps"] for slo in slos]),
        "bounds": {
            name: spread([slo["bounds"][i]["attainment"] for slo in slos], most=1.0) for i, name in enumerate(names)
        },
        "factors": slos[0]["scale"]["factors"] if whole else [],
        "scale": [sum(shares) / len(shares) for shares in zip(*scales, strict=True)] if whole else [],
    }


def overloaded(grew: bool, slo: Mapping[str, Any]) -> bool:
    """Whether a queue that grew is overload: not where the first goal is reached; without a bound it always is."""
    return grew and not (slo["bounds"] and slo["joint"][0])


def _crossing(points: Sequence[Mapping[str, Any]], goal: float) -> dict[str, Any]:
    """Where the mean attainment crosses a goal; `at` is None where it does not between the rates at hand."""
    found = crossing(
        [p["rate_rps"] for p in points],
        [p["attainment"]["mean"] for p in points],
        [p["requests"] for p in points],
        goal,
    )
    between = None if found.between is None else list(found.between)
    return {"goal": goal, "at_rps": found.at, "between": between, "side": found.side}


def _distinguished(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each curve with the options in which it differs from the others as its `label`."""
    names = sorted({name for one in found for name in one["options"]})
    differ = [name for name in names if len({str(one["options"].get(name)) for one in found}) > 1]
    for one in found:
        one["label"] = ", ".join(f"{name}={one['options'][name]}" for name in differ if name in one["options"])
    return found

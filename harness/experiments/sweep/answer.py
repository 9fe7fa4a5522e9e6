"""What the runs of a sweep amount to: a curve with its spread over seeds, its crossings, what a reader must know.

Whether a curve keeps what `--fail-under` asks for at every point, and the exit code that follows.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.data.run_json import Resolution
from harness.experiments.sweep.axes import RATE, SCALE, Layout, Point, run_folder, valued
from harness.experiments.sweep.runs import PARTS, RATES, Told
from harness.metrics.measure import in_summary
from harness.metrics.slo import meets
from harness.stats.curves import crossing
from harness.stats.seeds import LEAST_SEEDS, spread
from harness.validity.remote import undecided

SHARES = ("attainment", "failed")
SKEWED = 0.95
"""Attainment above which Student's t of few seeds was found to hold too seldom (tests/perf/sweep_intervals.py)."""


def answer(stored: Mapping[str, Any], told: Mapping[str, Told], state: str, error: str | None = None) -> dict[str, Any]:
    """The whole of sweep.json: the plan that is `stored`, and what was `told` of the runs that ended, by folder."""
    layout = Layout.restored(stored)
    place = {look: number for number, look in enumerate(layout.looks)}
    found = [
        over_seeds(
            {name: valued(text) for name, text in point.values},
            point.folder,
            _runs(layout, point, told, place[point.look]),
        )
        for point in layout.points
    ]
    points = [point for point in found if point["runs"]]
    done = sum(t.ended == "finished" for t in told.values())
    info: dict[str, Any] = {
        **stored,
        "state": state,
        "exit_code": 0,
        "runs": {"planned": len(layout.runs), "done": done},
        "points": points,
        "crossings": crossings(stored["goals"], points),
        "error": error,
    }
    return info | {"exit_code": exit_code(info), "warnings": list(_warnings(info))}


def _runs(layout: Layout, point: Point, told: Mapping[str, Told], look: int) -> list[dict[str, Any]]:
    """What is known of the runs of a point, seed by seed, under its look."""
    ended = [told[place] for seed in layout.seeds if (place := run_folder(point.folder, seed)) in told]
    return [run.facts[look] for run in ended if run.facts]


def over_seeds(values: Mapping[str, Any], folder: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """One point, at `values` of the axes, over its seeds. Only valid runs count."""
    valid = [run for run in runs if run["valid"]]
    overloaded = sum(run["overloaded"] for run in valid)
    metrics = {
        metric.name: {part: spread([run["metrics"][metric.name][part] for run in valid]) for part in PARTS}
        for metric in in_summary()
        if all(metric.name in run["metrics"] for run in valid)
    }
    bounds = [bound for run in valid for bound in run["bounds"]]  # requests' own may be there in some runs only
    return {
        "values": dict(values),
        "folder": folder,
        "slo": runs[0]["slo"] if runs else None,
        "requests": sum(run["requests"] for run in valid),
        "valid": len(valid),
        "invalid": len(runs) - len(valid),
        "overloaded": overloaded,
        "attainment": _over(valid, "attainment"),
        "bounds": [
            _bound([bound for bound in bounds if bound["text"] == text])
            for text in dict.fromkeys(bound["text"] for bound in bounds)
        ],
        **{name: _over(valid, name) for name in RATES},
        "metrics": {} if overloaded else metrics,
        "runs": runs,
    }


def _over(runs: Sequence[Mapping[str, Any]], name: str) -> dict[str, Any] | None:
    return spread([run[name] for run in runs], most=1.0 if name in SHARES else None)


def _bound(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One bound over the seeds. A percentile that no number tells, because too many failed, is no part of a mean."""
    kept = {name: found[0][name] for name in ("text", "metric", "limit_s", "tag", "percentile")}
    values = [bound["value_s"] for bound in found]
    over = None if kept["percentile"] is None or None in values else spread(values)
    attainment = spread([b["attainment"] for b in found], most=1.0)
    return kept | {"attainment": attainment, "value_s": over, "passed": _passed(found, over)}


def _passed(found: Sequence[Mapping[str, Any]], over: Mapping[str, Any] | None) -> bool | None:
    """Whether a percentile keeps its bound, in the mean over the seeds; None for a bound on single requests."""
    if found[0]["percentile"] is None:
        return None
    if over is None:
        return not any(bound["passed"] is False for bound in found)
    return bool(over["mean"] <= found[0]["limit_s"])


def crossings(goals: Sequence[float], points: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Where attainment crosses each goal, along the rate and along the SLO scale."""
    return [found for axis in (RATE, SCALE) for found in _crossings(goals, points, axis)]


def _crossings(goals: Sequence[float], points: Sequence[Mapping[str, Any]], along: str) -> Iterator[dict[str, Any]]:
    """Where attainment crosses each goal along an axis, for every combination of the others."""
    lines: dict[tuple[tuple[str, Any], ...], list[Mapping[str, Any]]] = {}
    for point in points:
        if along in point["values"] and point["bounds"]:
            where = tuple((name, value) for name, value in point["values"].items() if name != along)
            lines.setdefault(where, []).append(point)
    for where, line in lines.items():
        ordered = sorted(line, key=lambda point: point["values"][along])
        if len(ordered) > 1:
            for goal in goals:
                yield {"along": along, "where": dict(where), "goal": goal, **_crossed(ordered, along, goal)}


def _crossed(line: Sequence[Mapping[str, Any]], along: str, goal: float) -> dict[str, Any]:
    if any(bound["percentile"] is not None for point in line for bound in point["bounds"]):
        why = "a bound on a percentile is part of the SLO, which attainment does not tell of"
        return {"at": None, "between": None, "side": None, "why": why}
    at = [float(point["values"][along]) for point in line]
    found = crossing(
        at,
        [point["attainment"]["mean"] for point in line],
        [max(point["requests"], 1) for point in line],
        goal,
        rising=along == SCALE,
    )
    if found.between is not None:
        return {"at": found.at, "between": list(found.between), "side": None, "why": None}
    unit = " req/s" if along == RATE else ""
    why = f"attainment is {found.side} the goal from {at[0]:g} to {at[-1]:g}{unit}"
    return {"at": None, "between": None, "side": found.side, "why": why}


def _warnings(info: Mapping[str, Any]) -> Iterator[str]:
    """Sentences on what the curve does not tell, each with what to do."""
    by_folder = {point["folder"]: point for point in info["points"]}  # what differs in its score alone shares its runs
    runs = [run for point in by_folder.values() for run in point["runs"]]
    seeds = len(info["seeds"])
    if info["runs"]["done"] < info["runs"]["planned"]:
        yield (
            f"{info['runs']['done']} of {info['runs']['planned']} runs are done; "
            "the same command with the same --out goes on from there."
        )
    if info["fixed"]:
        yield (
            "The traffic is a recording that no seed moves, so one simulated run tells all and there is no interval; "
            "other parts of the trace (--start, --stop) show how much it varies."
        )
    elif seeds < LEAST_SEEDS:
        one = "one run at each point: no interval" if seeds == 1 else f"{seeds} seeds at each point: no interval"
        yield f"{one}; repeat with --seeds {LEAST_SEEDS} or more, into the same --out."
    yield from cautions(runs)
    yield from _judged(info)
    scored = [point for point in info["points"] if point["attainment"] is not None]
    if scored and not any(point["bounds"] for point in scored):
        yield "There is no SLO, so attainment counts every request that ended well; give --slo ttft=0.25,tpot=0.1."
    shares = [point["attainment"] for point in scored if point["attainment"]["low"] is not None]
    if any(share["mean"] > SKEWED and share["most"] - share["least"] > 0.01 for share in shares):
        yield (
            f"Intervals of attainment above {SKEWED:.0%} hold less often than they say where seeds differ, because a "
            "seed that is far worse is rare (docs/guide/sweep.md has figures); more --seeds help."
        )
    if hollow := [point for point in info["points"] if point["overloaded"]]:
        falls = any(point["attainment"] is not None for point in hollow)
        yield (
            "Where a run was overloaded there are no latencies: they would tell how long the run was."
            f"{' Attainment there falls further in a longer run.' if falls else ''}"
        )


def _judged(info: Mapping[str, Any]) -> Iterator[str]:
    """Which points keep an exit code of 0 away."""
    fail_under = info["fail_under"]
    shares = [point for point in info["points"] if point["attainment"] is not None]
    percentiles = [point for point in info["points"] if point["attainment"] is None]
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


def _named(point: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in point["values"].items()) or "the one point"


def cautions(runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What keeps single runs from counting, then what they warn of, each kind once with the first of its sentences."""
    for run in runs:
        if not run["valid"]:
            yield f"{run['folder']} is not valid and does not count: {' '.join(run['reasons'])}"
        if run["failed_for"]:
            yield f"{run['folder']}: {run['failed_for']}"
    told: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs:
        for caution in run["warnings"]:
            told.setdefault(caution["code"], []).append(caution | {"folder": run["folder"]})
    for code, found in told.items():
        first = found[0]
        where = f"{code} in {len(found)} of {len(runs)} runs, first in {first['folder']}"
        yield f"{where}: {first['message']}{'; ' if first['remedy'] else ''}{first['remedy']}."


GOOD, BELOW, FAILED, NOT_VALID, OPEN = 0, 1, 3, 4, 5

PointRow = Mapping[str, Any]


def exit_code(info: Mapping[str, Any]) -> int:
    """The first that applies of 3 the backend failed, 4 a run is not valid, 1 below `fail_under`, 5 not decided."""
    points, fail_under = info["points"], info["fail_under"]
    if info["state"] == "failed" or any(run["failed_for"] for point in points for run in point["runs"]):
        return FAILED
    if any(point["invalid"] for point in points):
        return NOT_VALID
    if next(below(points, fail_under), None) is not None:
        return BELOW
    if info["state"] != "finished" or next(left_open(points, fail_under), None) is not None:
        return OPEN
    return GOOD


def below(points: list[PointRow], fail_under: float | None) -> Iterator[PointRow]:
    """The points that surely fail: too few requests kept the SLO, or a bound on a percentile is broken."""
    if fail_under is None:
        return
    for point in points:
        if point["valid"] and not _keeps(point, fail_under) and not _floor_decides(point, fail_under):
            yield point


def left_open(points: list[PointRow], fail_under: float | None) -> Iterator[PointRow]:
    """The points that kept it only while the run lasted, because the queue grew, or that the client's error decides."""
    if fail_under is None:
        return
    for point in points:
        if _floor_decides(point, fail_under) or (point["overloaded"] and _keeps(point, fail_under)):
            yield point


def _keeps(point: PointRow, fail_under: float) -> bool:
    percentiles = [bound["passed"] for bound in point["bounds"] if bound["percentile"] is not None]
    return meets((point["attainment"] or {}).get("mean"), percentiles, fail_under)


def _floor_decides(point: PointRow, fail_under: float | None) -> bool:
    """Whether the mean over the seeds changes sides when all bounds are moved by the client's own error."""
    told = [run["resolution"] for run in point["runs"] if run["valid"] and run["resolution"] is not None]
    if fail_under is None or not told:
        return False
    scored = all(one["attainment"] is not None for one in told)
    low, high = (sum(one["attainment"][side] for one in told) / len(told) if scored else 0.0 for side in (0, 1))
    kept = all(one["kept"][0] for one in told), all(one["kept"][1] for one in told)
    return undecided(Resolution(attainment=(low, high) if scored else None, kept=kept), fail_under)

"""Whether a curve keeps what `--fail-under` asks for at every point, and the exit code that follows."""

from collections.abc import Iterator, Mapping
from typing import Any

from harness.resolution import undecided
from harness.slo import meets

GOOD, BELOW, FAILED, NOT_VALID, OPEN = 0, 1, 3, 4, 5

Point = Mapping[str, Any]


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


def below(points: list[Point], fail_under: float | None) -> Iterator[Point]:
    """The points that surely fail: too few requests kept the SLO, or a bound on a percentile is broken."""
    if fail_under is None:
        return
    for point in points:
        if point["valid"] and not _keeps(point, fail_under) and not _floor_decides(point, fail_under):
            yield point


def left_open(points: list[Point], fail_under: float | None) -> Iterator[Point]:
    """The points that kept it only while the run lasted, because the queue grew, or that the client's error decides."""
    if fail_under is None:
        return
    for point in points:
        if _floor_decides(point, fail_under) or (point["overloaded"] and _keeps(point, fail_under)):
            yield point


def _keeps(point: Point, fail_under: float) -> bool:
    return meets((point["attainment"] or {}).get("mean"), point["bounds"], fail_under)


def _floor_decides(point: Point, fail_under: float | None) -> bool:
    """Whether the mean over the seeds changes sides when all bounds are moved by the client's own error."""
    told = [run["resolution"] for run in point["runs"] if run["valid"] and run["resolution"] is not None]
    if fail_under is None or not told:
        return False
    scored = all(one["attainment"] is not None for one in told)
    means = [sum(one["attainment"][side] for one in told) / len(told) for side in (0, 1)] if scored else None
    kept = [all(one["kept"][side] for one in told) for side in (0, 1)]
    return undecided({"resolution": {"attainment": means, "kept": kept}}, fail_under)

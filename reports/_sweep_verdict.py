"""What a sweep amounts to in a few words: its state, whether the goal was reached, and the sentences of its head."""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from harness.experiments.sweep.axes import RATE
from harness.metrics import slo
from reports import _format
from reports._format import clean
from reports.answers import _sweep_said as words
from reports.figures import attainment_rate
from reports.study.runs import Info, Study
from reports.study.sweep import at

_ENDS = {"running": "NOT FINISHED", "interrupted": "INTERRUPTED", "failed": "BACKEND FAILED"}
_JUDGED = {0: ("KEPT AT EVERY POINT", True), 1: ("NOT KEPT AT EVERY POINT", False), 5: ("NOT DECIDED", None)}
BEST = 6
"""Systems that a sentence can name."""


def mark(info: Info) -> tuple[str, bool | None]:
    """The state in capitals, and whether it is good or bad news (None: neither)."""
    if info["state"] in _ENDS:
        return _ENDS[info["state"]], None
    points = [point for point in info["points"] if point["valid"]]
    if not points or any(point["invalid"] for point in points):
        return "NOT VALID", None
    points = [point for point in points if point["bounds"]]
    if not points:
        return "NO GOAL GIVEN", None
    if info["fail_under"] is not None:
        return _JUDGED.get(info["exit_code"], ("NOT DECIDED", None))
    kept = [_kept(point, info["goals"][0]) for point in points]
    if any(kept) and not all(kept):
        crossed = any(crossing["at"] is not None for crossing in info["crossings"])
        return "GOAL CROSSED" if crossed else "GOAL REACHED IN PART", None
    if any(point["overloaded"] for point in points) and all(kept):
        return "OVERLOADED", False
    return ("GOAL REACHED", True) if all(kept) else ("GOAL MISSED", False)


def _kept(point: Info, goal: float) -> bool:
    percentiles = [bound["passed"] for bound in point["bounds"] if bound["percentile"] is not None]
    return slo.meets((point["attainment"] or {}).get("mean"), percentiles, goal)


def answer(info: Info, study: Study) -> str:
    """The one sentence that a manager reads."""
    if any(system.points for system in study.systems) and not any(system.slo for system in study.systems):
        return "No SLO was given, so attainment counts every request that ended well."
    curves = [system for system in study.systems if len({point.rate_rps for point in system.points}) > 1]
    if curves:
        return " ".join([attainment_rate.finding(study), *_further(study)])
    return _ranked(info) or "No run has ended that could be scored."


def _further(study: Study) -> Iterator[str]:
    """What is carried at the goals after the first one."""
    for goal in study.goals[1:]:
        told = [(system, system.carried(goal)) for system in study.systems]
        known = [
            f"{_format.number(one.rps / study.share(system))} {study.rate_unit}"
            + (f" ({system.name})" if len(study.systems) > 1 else "")
            for system, one in told
            if one is not None and one.rps is not None
        ]
        if known and len(known) <= BEST:
            yield f"{100 * goal:g}%: {', '.join(known)}."


def _ranked(info: Info) -> str:
    """Best and worst of points that have no rate in common to be drawn over."""
    told = [point for point in info["points"] if point["attainment"] is not None and point["bounds"]]
    if not told:  # all bounds are on percentiles, or nothing was scored
        points = [point for point in info["points"] if point["bounds"]]
        kept = sum(_kept(point, info["goals"][0]) for point in points)
        return f"Every bound holds at {kept:,} of {_format.count(len(points), 'point')}." if points else ""
    ordered = sorted(told, key=lambda point: -point["attainment"]["mean"])
    best, worst = ordered[0], ordered[-1]
    goal = info["goals"][0]
    text = f"{_share(best, goal)} of the requests keep the SLO{_at(best)}"
    return f"{text}, {_share(worst, goal)}{_at(worst)}." if len(told) > 1 else f"{text}; the goal is {100 * goal:g}%."


def _share(point: Info, goal: float) -> str:
    spread = point["attainment"]
    shown = _format.share(spread["mean"], goal)
    return shown if spread["low"] is None else f"{shown} ({words.interval(spread)})"


def _at(point: Info) -> str:
    values = at(point["values"].items())
    return f" at {values}" if values else ""


def state(info: Info) -> str:
    """How far it can be trusted."""
    runs, points, seeds = info["runs"], info["points"], len(info["seeds"])
    invalid = sum(point["invalid"] for point in {p["folder"]: p for p in points}.values())
    grown = sum(bool(point["overloaded"]) for point in points)
    texts = [
        f"{runs['done']:,} of {_format.count(runs['planned'], 'run')} done",
        "" if not runs["done"] else f"{invalid:,} not valid, which do not count" if invalid else "all of them valid",
        _format.count(seeds, "seed") + (" at each point" if len(points) > 1 else ""),
    ]
    if grown:
        texts.append(f"a queue grew all through a run at {_format.count(grown, 'point')}")
    return "; ".join(text for text in texts if text) + "."


def commands(info: Info, path: str) -> tuple[str, ...]:
    """The command that makes the sweep, and the one that finds the capacity with its interval."""
    found = [_sweep(info)]
    if any(axis["name"] == RATE for axis in info["axes"]) and info["spec"].get("slo"):
        fixed = {axis["name"]: axis["values"][0] for axis in info["axes"] if axis["name"] != RATE}
        plain = {name: value for name, value in fixed.items() if "." not in name and name not in ("slo", "slo-scale")}
        goals = {"goal": ",".join(f"{100 * goal:g}%" for goal in info["goals"])}
        found.append(_command("capacity", {**info["spec"], **plain, **goals}))
    return (*found, f"bench slo {shlex.quote(clean(path, None))} --slo ttft=0.5,tpot=0.1") if path else tuple(found)


def _sweep(info: Info) -> str:
    axes = {axis["name"]: [str(value) for value in axis["values"]] for axis in info["axes"]}
    seeds = info["seeds"]
    counted = list(seeds) == list(range(seeds[0], seeds[0] + len(seeds))) if seeds else False
    own: dict[str, Any] = {"seeds": str(len(seeds)) if counted else ",".join(map(str, seeds))}
    if counted and seeds[0]:
        own["seed"] = seeds[0]
    if info["fail_under"] is not None:
        own["fail-under"] = info["fail_under"]
    own["goal"] = ",".join(f"{100 * goal:g}%" for goal in info["goals"])
    rate = {RATE: _listed(axes.pop(RATE))} if RATE in axes else {}
    text = _command("sweep", {**info["spec"], **rate, **own})
    return " ".join(
        [text, *(f"--over {shlex.quote(f'{clean(n)}={clean(_listed(v), None)}')}" for n, v in axes.items())]
    )


def _listed(values: list[str]) -> str:
    """Values as --rate and --over take them."""
    if any("," in value for value in values):
        return "|".join(values) + ("|" if len(values) == 1 else "")
    return ",".join(values)


def _command(name: str, given: Mapping[str, Any]) -> str:
    options = [f"--{clean(key)} {shlex.quote(clean(value, None))}" for key, value in given.items() if value is not None]
    return " ".join(["bench", name, *options])

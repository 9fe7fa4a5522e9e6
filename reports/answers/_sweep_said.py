"""What is said of a sweep: its tables and sentences, which each form lays out."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from harness.metrics.measure import headline, metrics
from reports import _format
from reports._format import clean

Info = Mapping[str, Any]

AXES = {"rate": "rate (req/s)", "slo-scale": "SLO scale"}
KEPT = ("attainment", "goodput (req/s)")
"""Columns that stay where they have nothing to tell."""

PERCENTILES = ("p50", "p90", "p99")
SENTENCES = 3
"""Most crossings that are told in sentences."""


@dataclass(frozen=True, slots=True)
class Rows:
    """A table: its first `left` columns name the rows."""

    heads: list[str]
    rows: list[list[str]]
    left: int


def title(info: Info) -> str:
    """What was swept over, with which traffic, on what."""
    spec = info["spec"]
    trace = str(spec.get("trace") or "").replace("\\", "/").rpartition("/")[2]
    traffic = trace or spec.get("workload") or "several workloads"
    backend = spec.get("backend") or "several backends"
    over = ", ".join(clean(axis["name"]) for axis in info["axes"]) or "seeds"
    return f"Sweep over {over}: {clean(traffic)} on {clean(backend)}"


def asked(info: Info) -> str:
    """SLO, goals, seeds, requests and the cut of the warm-up."""
    spec, seeds = info["spec"], info["seeds"]
    goals = " and ".join(f"{_format.option(goal * 100)}%" for goal in info["goals"])
    parts = [f"SLO {clean(spec['slo'])} (seconds), goal {goals}"] if spec.get("slo") else [f"goal {goals}"]
    parts.append(f"{_format.count(len(seeds), 'seed')} at each point")
    if spec.get("requests"):
        parts.append(f"{_format.count(spec['requests'], 'request')} a run")
    parts.append(f"warm-up cut: {clean(spec.get('warmup', 'several rules'))}")
    return "; ".join(parts)


def tables(info: Info) -> Iterator[Rows]:
    """Attainment first, then latencies, then crossings where they are too many for sentences."""
    yield _attainment(info)
    timed = [m.name for m in headline() if any(m.name in point["metrics"] for point in info["points"])]
    if timed:
        yield _latencies(info, timed)
    if len(info["crossings"]) > SENTENCES:
        for along in dict.fromkeys(crossing["along"] for crossing in info["crossings"]):
            yield _crossed(info, along)


def _attainment(info: Info) -> Rows:
    names, goal = _axes(info), info["goals"][0]
    bounds = {
        bound["metric"] + _tag(bound): f"{bound['metric']}{_tag(bound)}{' met' if bound['percentile'] is None else ''}"
        for point in info["points"]
        for bound in point["bounds"]
    }
    columns: dict[str, Callable[[Info], str]] = {
        "attainment": lambda point: _mean(point["attainment"], partial(_format.share, goal=goal)),
        "95% interval": lambda point: interval(point["attainment"]),
        "range of seeds": lambda point: _range(point["attainment"]),
        **{head: partial(_met, name=name) for name, head in bounds.items()},
        "goodput (req/s)": lambda point: _mean(point["goodput_rps"], _format.number),
        "overload": lambda point: _of(point, "overloaded"),
        "not valid": lambda point: _of(point, "invalid"),
    }
    told = {head: [cell(point) for point in info["points"]] for head, cell in columns.items()}
    shown = {head: cells for head, cells in told.items() if head in KEPT or set(cells) - {"-"}}
    # a column of the SLO where points have different ones and no axis tells which
    told_by_axis = any(axis.get("rescored") for axis in info["axes"])
    slo = [] if told_by_axis or len({point["slo"] for point in info["points"]}) < 2 else ["slo"]
    rows = [
        [*values(names, point), *(clean(point[name]) for name in slo), *(cells[i] for cells in shown.values())]
        for i, point in enumerate(info["points"])
    ]
    return Rows([*map(axis, names), *(name.upper() for name in slo), *shown], rows, len(names) + len(slo))


def _latencies(info: Info, timed: Sequence[str]) -> Rows:
    """Those of runs: axes that only score the same runs again have no part in it."""
    names = [axis["name"] for axis in info["axes"] if not axis.get("rescored")]
    heads = [f"{metrics()[name].label} {part} (ms)" for name in timed for part in PERCENTILES]
    runs = {point["folder"]: point for point in info["points"]}.values()
    return Rows(
        [*map(axis, names), *heads], [[*values(names, point), *_times(point, timed)] for point in runs], len(names)
    )


def _crossed(info: Info, along: str) -> Rows:
    names = [name for name in _axes(info) if name != along]
    rows = []
    for crossing in info["crossings"]:
        if crossing["along"] == along:
            between = crossing["between"]
            beside = "-" if crossing["side"] is None else f"all {clean(crossing['side'])}"
            around = beside if between is None else " .. ".join(_format.option(end) for end in between)
            at = _format.number(crossing["at"])
            rows.append([*(clean(crossing["where"][name]) for name in names), _goal(crossing), at, around])
    return Rows([*map(axis, names), "goal", f"crossed at {axis(along)}", "between"], rows, len(names))


def _axes(info: Info) -> list[str]:
    return [axis["name"] for axis in info["axes"]]


def axis(name: str) -> str:
    """An axis with its unit."""
    return AXES.get(name, clean(name))


def _goal(crossing: Info) -> str:
    return f"{_format.option(crossing['goal'] * 100)}%"


def _tag(bound: Info) -> str:
    percentile = "" if bound["percentile"] is None else f" p{bound['percentile']:g}"
    return percentile + ("" if bound["tag"] is None else f"@{clean(bound['tag'])}")


def _met(point: Info, name: str) -> str:
    """The share that met a bound; of a bound on a percentile its value, beside the limit where it is broken."""
    bound = next((bound for bound in point["bounds"] if bound["metric"] + _tag(bound) == name), None)
    if bound is None:
        return "-"
    if bound["percentile"] is None:
        return _mean(bound["attainment"], _format.share)
    value = "too many failed" if bound["value_s"] is None else _format.seconds(bound["value_s"]["mean"])
    return value if bound["passed"] else f"{value} > {_format.seconds(bound['limit_s'])}"


def values(names: Sequence[str], point: Info) -> list[str]:
    """The values of a point along the axes."""
    return [clean(point["values"][name]) for name in names]


def _mean(spread: Info | None, shown: Callable[[float | None], str]) -> str:
    return "-" if spread is None else shown(spread["mean"])


def interval(spread: Info | None) -> str:
    """The interval of a share over seeds; - where there is none."""
    if spread is None or spread["low"] is None:
        return "-"
    return f"{_percent(spread['low'])} .. {_percent(spread['high'])}%"


def _range(spread: Info | None) -> str:
    if spread is None or spread["n"] < 2:
        return "-"
    return f"{_percent(spread['least'])} .. {_percent(spread['most'])}%"


def _percent(value: float) -> str:
    return _format.share(value).removesuffix("%")


def _times(point: Info, metrics: Sequence[str]) -> list[str]:
    """Latencies in milliseconds; none where a queue grew, because they would tell how long the run was."""
    found = []
    for name in metrics:
        parts = point["metrics"].get(name) or {}
        found += [_mean(parts.get(part), lambda v: _format.in_unit(v, "ms")) for part in PERCENTILES]
    return found


def _of(point: Info, what: str) -> str:
    """How many runs of the point are so, of how many; '-' for none."""
    return f"{point[what]} of {point['valid'] + point['invalid']}" if point[what] else "-"


def crossings(info: Info) -> Iterator[str]:
    """Sentences where they are few; a table tells of more."""
    for crossing in info["crossings"] if len(info["crossings"]) <= SENTENCES else ():
        where = ", ".join(f"{clean(name)} {clean(value)}" for name, value in crossing["where"].items())
        goal = f"{_goal(crossing)}{f' ({where})' if where else ''}"
        if crossing["at"] is None:
            yield f"{goal} is not crossed: {clean(crossing['why'], None)}."
            continue
        low, high = (_format.option(value) for value in crossing["between"])
        at = _format.number(crossing["at"])
        place = f"{at} req/s" if crossing["along"] == "rate" else f"{axis(crossing['along'])} {at}"
        yield f"{goal} is crossed near {place}: interpolated between {low} and {high}, without an interval."
    if any(crossing["along"] == "rate" and crossing["at"] is not None for crossing in info["crossings"]):
        yield "bench capacity, with the same options and no --rate, finds the capacity with its interval."


def notes(info: Info) -> Iterator[str]:
    """What a reader must know."""
    if info.get("error"):
        yield f"the sweep ended early: {clean(info['error'], None)}"
    yield from (clean(warning, None) for warning in info["warnings"])

"""The page of a capacity search: the rate with its interval, the curve it stands on, and how it was found."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from harness.experiments.capacity.conditions import JOINT
from harness.experiments.capacity.trials import TRIALS_FOLDER as TRIALS
from harness.experiments.capacity.trials import Tried, folder_name
from reports import _format, _page, figures
from reports._format import clean
from reports._page import Part
from reports._sheet import Cell, Section, Sheet, Table
from reports._system import first, flat, part
from reports.answers import _capacity_said as said
from reports.pages import sweep
from reports.study.capacity import folders, of_capacity, share, trials
from reports.study.runs import Study

Info = Mapping[str, Any]

RUNS_NEEDED = "Simulated trials keep attainment alone; this keeps runs, and shows the rest"
MOST = 200
"""Rows of the table of trials; all of them are in trials.parquet."""


def sheet(info: Info, path: Path) -> Sheet:
    """What stands on the page of a search whose capacity.json is `info`, kept in the folder `path`."""
    mark, good = _mark(info)
    study, answers = of_capacity(info, path), info.get("answers") or []
    cost = (("Cost", said.cost(info).removeprefix("cost: ")),) if "cost" in info else ()
    parts = ("run", "traffic", "backend", "versions", "cost")
    rows = [(f"{title}: {name}", value) for title in parts for name, value in flat(part(info, title))]
    return Sheet(
        title=_title(info),
        subtitle=_subtitle(info),
        mark=mark,
        good=good,
        answer=" ".join(_told(info, one) for one in answers) or said.RUNNING,
        state=" ".join(sentence for one in answers[:1] for sentence in said.sentences(info, one)),
        heads=(*sweep.heads({"clock": None, **info, "traffic": _traffic(info)}, study), *cost),
        warnings=tuple(_warnings(info)),
        sections=tuple(s for s in _sections(info, path, study) if s.texts or s.tables or s.parts),
        commands=(said.again(info), *([said.advice(info)[1]] if info.get("answers") else [])),
        facts=(("clock", clean(info.get("clock") or "")), *rows),
    )


def _title(info: Info) -> str:
    backend = first(part(info, "backend"), "backend", "name") or clean(
        part(info, "spec").get("backend") or "a system", 60
    )
    return f"Capacity of {backend} under {clean(info.get('workload') or 'a workload', 100)}"


def _subtitle(info: Info) -> str:
    asked = [one["goal"] for one in info.get("answers") or []] or info.get("goals") or []
    goals = " and ".join(said.percent(goal) for goal in asked)
    of = [f"goal {goals}" if goals else "", f"definition {clean(info.get('definition') or 'joint', 40)}"]
    return ", ".join(text for text in of if text)


def _mark(info: Info) -> tuple[str, bool | None]:
    """The state of the first goal, of the search itself, or that not all goals are resolved."""
    if "answers" not in info or not info["answers"]:
        return "NOT FINISHED", None
    if info.get("state") == "interrupted":
        return "INTERRUPTED", None
    one = info["answers"][0]
    if one["at"]:
        return {"carried": "CARRIED", "not carried": "NOT CARRIED"}.get(one["at"]["verdict"], "NOT DECIDED"), said.good(
            one
        )
    if one["state"] == "resolved" and any(other["state"] != "resolved" for other in info["answers"]):
        return "PARTLY RESOLVED", None
    return str(one["state"]).upper(), said.good(one)


def _told(info: Info, one: Info) -> str:
    line = said.headline(info, one)
    gpus = info.get("gpus") or 0
    per_gpu = f"; {_format.number(one['per_gpu_rps'])} req/s per GPU" if one["per_gpu_rps"] and gpus > 1 else ""
    return f"{line[:1].upper()}{line[1:]}{per_gpu}."


def _traffic(info: Info) -> Info:
    """The traffic as a run tells it; of older searches the name alone."""
    return part(info, "traffic") or {"name": info.get("workload")}


def _warnings(info: Info) -> Iterator[tuple[str, str]]:
    """What keeps an answer from being final, and what would help."""
    if "answers" not in info:
        yield said.RUNNING, f"Go on, with the folder of this page as DIR: {said.again(info)} --out DIR"
    for one in info.get("answers") or []:
        if one["why"]:
            needs = clean(one["needs"] or "", 600)
            yield f"At {said.percent(one['goal'])}: {clean(one['why'], 600)}", needs[:1].upper() + needs[1:]
    grown = [point for point in info.get("curve") or [] if point["overloaded"]]
    if grown:
        rates = f"{_format.option(grown[0]['rate_rps'])} req/s"
        yield (
            f"From {rates} on a queue grew all through some trials: attainment there falls further in longer ones.",
            "",
        )


def _sections(info: Info, path: Path, study: Study) -> Iterator[Section]:
    """The curve, then what only kept runs tell, then how the capacity was found."""
    found = info.get("answers") or []
    yield Section("curve", "The curve", parts=_parts("figures", study), tables=tuple(_curve_tables(info, found)))
    if any(point.folders for point in study.systems[0].points):
        yield from (s for s in sweep.of_figures(study, *(str(f) for f in _kept(study, path))) if s.key != "figures")
    elif found:
        told, command = RUNS_NEEDED, said.around(info)
        yield Section("more", "Latencies, stages and other SLOs", (f"{told}: {command}",) if command else ())
    yield Section("search", "The search", parts=_parts("search", study), tables=tuple(_trial_tables(path)))


def _parts(section: str, study: Study) -> tuple[Part, ...]:
    shown = [row for row in figures.of("study").values() if section == row.section]
    return tuple(_page.part(row.key, row.title, row.draw(study)) for row in shown)


def _kept(study: Study, path: Path) -> Iterator[Path]:
    """The folders of whole trials, as `bench slo` is given them."""
    for point in study.systems[0].points:
        yield from (Path(path.name) / TRIALS / folder.name for folder in point.folders)


def _curve_tables(info: Info, found: Sequence[Info]) -> Iterator[Table]:
    if found:
        yield Table("capacity by goal", _GOAL_HEADS, tuple(_goal_row(one) for one in found))
    for one in found:
        if one["bounds"]:
            rows = tuple(tuple(row) for row in said.bound_rows(one))
            yield Table(said.bounds_title(info, one), said.BOUND_HEADS, rows)
    if info.get("curve"):
        yield Table(said.curve_title(info), said.heads(info), tuple(tuple(row) for row in said.curve_rows(info)))


_GOAL_HEADS = (
    "goal", "state", "capacity (req/s)", "from (req/s)", "to (req/s)", "per GPU (req/s)", "half width (%)", "seeds",
    "met at (req/s)", "missed at (req/s)", "binds",
)  # fmt: skip


def _goal_row(one: Info) -> tuple[str | Cell, ...]:
    rates = (_format.number(one[name], 4) for name in ("capacity_rps", "low_rps", "high_rps", "per_gpu_rps"))
    half = "-" if one["half_width"] is None else _format.number(100 * one["half_width"], 2)
    state = Cell(str(one["state"]), good=said.good({**one, "at": None}))
    tried = (_format.number((one.get("bracket") or {}).get(f"{end}_rate_rps"), 4) for end in ("low", "high"))
    binds = clean(one["binding"] or "-")
    return (said.percent(one["goal"]), state, *rates, half, str(one["seeds"]), *tried, binds)


_TRIAL_HEADS = ("trial", "what", "rate (req/s)", "seed", "requests sent", "attainment", "waiting (s)")


def _trial_tables(path: Path) -> Iterator[Table]:
    made = trials(path)
    if not made:
        return
    kept = folders(path)
    rows = tuple(_trial(number, tried, kept) for number, tried in enumerate(made[:MOST], 1))
    more = f" (the first {MOST:,} of {len(made):,})" if len(made) > MOST else ""
    yield Table(f"trials in the order in which they were made{more}", _TRIAL_HEADS, rows, left=2)


def _trial(number: int, tried: Tried, kept: Mapping[str, Path]) -> tuple[str | Cell, ...]:
    key, name = tried.key, folder_name(tried.key)
    what = "whole trial"
    if key.goal is not None:
        what = f"probe at {said.percent(key.goal)}: {'carried' if tried.passed else 'too much'}"
    met = "-" if key.goal is not None or not tried.by_request else _format.share(share(tried, JOINT))
    return (
        Cell(str(number), link=f"{TRIALS}/{quote(name)}/" if name in kept else None),
        what,
        _format.option(key.rate_rps),
        str(key.seed),
        f"{tried.requests:,}",
        met,
        _format.number(tried.wall_s, 2),
    )

"""The page of a capacity search: the rate with its interval, the curve it stands on, and how it was found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from harness.capacity.conditions import JOINT
from harness.capacity.runs import TRIALS, folder_name
from reports import _numbers, _page, _system, figures
from reports._clean import clean
from reports._facts import Facts, first, flat, part
from reports._sheet import Cell, Section, Sheet, Table
from reports._study_capacity import of_capacity, share, trials
from reports.answers import _capacity_said as said

if TYPE_CHECKING:
    from harness.capacity.trials import Tried

Info = Mapping[str, Any]

FIGURES = ("figures", "search")
"""Sections of the figures of a study that a search can have; latencies and stages need runs that are kept."""
MOST = 200
"""Rows of the table of trials; all of them are in trials.parquet."""


def sheet(info: Info, path: Path) -> Sheet:
    """What stands on the page of a search whose capacity.json is `info`, kept in the folder `path`."""
    found = info.get("answers") or []
    mark, good = _mark(info)
    return Sheet(
        title=_title(info),
        subtitle=_subtitle(info),
        mark=mark,
        good=good,
        answer=_answer(info),
        state=_state(info),
        heads=tuple(_heads(info)),
        warnings=tuple(_warnings(info)),
        sections=tuple(s for s in _sections(info, path, found) if s.texts or s.tables or s.parts),
        commands=(said.again(info), *([said.advice(info)[1]] if found else [])),
        facts=_facts(info),
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
    """The state of the first goal, or of the search itself."""
    if "answers" not in info or not info["answers"]:
        return "NOT FINISHED", None
    if info.get("state") == "interrupted":
        return "INTERRUPTED", None
    one = info["answers"][0]
    if one["at"]:
        return {"carried": "CARRIED", "not carried": "NOT CARRIED"}.get(one["at"]["verdict"], "NOT DECIDED"), said.good(
            one
        )
    return str(one["state"]).upper(), said.good(one)


def _answer(info: Info) -> str:
    """The rates with their intervals, per GPU where that is another rate."""
    if not info.get("answers"):
        return said.RUNNING
    return " ".join(_told(info, one) for one in info["answers"])


def _told(info: Info, one: Info) -> str:
    line = said.headline(info, one)
    gpus = info.get("gpus") or 0
    per_gpu = f"; {_numbers.number(one['per_gpu_rps'])} req/s per GPU" if one["per_gpu_rps"] and gpus > 1 else ""
    return f"{line[:1].upper()}{line[1:]}{per_gpu}."


def _state(info: Info) -> str:
    found = info.get("answers") or []
    return " ".join(sentence for one in found[:1] for sentence in said.sentences(info, one))


def _heads(info: Info) -> Iterator[tuple[str, str]]:
    slo, traffic = clean(part(info, "slo").get("text") or part(info, "spec").get("slo") or "", 400), _traffic(info)
    provenance = part(traffic, "provenance")
    rows = (
        ("SLO", f"{slo} (seconds)" if slo else None),
        ("System", _system.system(info) or clean(part(info, "spec").get("backend") or "", 200)),
        ("Workload", ", ".join(text for text in (first(traffic, "name"), *_system.source(_as_run(info))) if text)),
        ("Preparation", first(provenance, "preparation", "source")),
        ("Tokenizer", first(provenance, "tokenizer")),
        ("Client floor", _floor(info)),
        ("Cost", said.cost(info) if "cost" in info else None),
    )
    yield from ((name, value) for name, value in rows if value)


def _traffic(info: Info) -> Info:
    """The traffic as a run tells it; of older searches the name alone."""
    return part(info, "traffic") or {"name": info.get("workload")}


def _as_run(info: Info) -> dict[str, Any]:
    return {"workload": _traffic(info), "spec": part(info, "spec")}


def _floor(info: Info) -> str:
    if info.get("clock") == "virtual":
        return "none: times are those of a simulator"
    return "that of each trial; see their pages"


def _warnings(info: Info) -> Iterator[tuple[str, str]]:
    """What keeps an answer from being final, and what would help."""
    if "answers" not in info:
        yield said.RUNNING, f"Go on with it: {said.again(info)} --out, with the folder of this page."
    for one in info.get("answers") or []:
        if one["why"]:
            yield f"At {said.percent(one['goal'])}: {clean(one['why'], 600)}", clean(one["needs"] or "", 600)
    grown = [point for point in info.get("curve") or [] if point["overloaded"]]
    if grown:
        rates = f"{_numbers.option(grown[0]['rate_rps'])} req/s"
        yield (
            f"From {rates} on a queue grew all through some trials: attainment there falls further in longer ones.",
            "",
        )


def _sections(info: Info, path: Path, found: Sequence[Info]) -> Iterator[Section]:
    study = of_capacity(info, path)
    modules = figures.modules("study")
    for name, title in zip(FIGURES, ("The curve", "The search"), strict=True):
        shown = {key: module for key, module in modules.items() if name == module.SECTION}
        parts = tuple(_page.part(key, module.TITLE, module.figure(study)) for key, module in shown.items())
        tables = tuple(_curve_tables(info, found) if name == "figures" else _trial_tables(path))
        yield Section("curve" if name == "figures" else name, title, parts=parts, tables=tables)


def _curve_tables(info: Info, found: Sequence[Info]) -> Iterator[Table]:
    if found:
        yield Table("capacity by goal", _GOAL_HEADS, tuple(_goal_row(one) for one in found), left=2)
    for one in found:
        if one["bounds"]:
            rows = tuple(tuple(row) for row in said.bound_rows(one))
            yield Table(said.bounds_title(info, one), said.BOUND_HEADS, rows)
    if info.get("curve"):
        yield Table(said.curve_title(info), said.HEADS, tuple(tuple(row) for row in said.curve_rows(info)))


_GOAL_HEADS = (
    "goal", "state", "capacity (req/s)", "from (req/s)", "to (req/s)", "per GPU (req/s)", "half width (%)", "seeds",
    "binds",
)  # fmt: skip


def _goal_row(one: Info) -> tuple[str | Cell, ...]:
    rates = (_numbers.number(one[name], 4) for name in ("capacity_rps", "low_rps", "high_rps", "per_gpu_rps"))
    half = "-" if one["half_width"] is None else _numbers.number(100 * one["half_width"], 2)
    state = Cell(str(one["state"]), good=said.good({**one, "at": None}))
    return (said.percent(one["goal"]), state, *rates, half, str(one["seeds"]), clean(one["binding"] or "-"))


_TRIAL_HEADS = ("trial", "what", "rate (req/s)", "seed", "requests sent", "attainment", "waiting (s)")


def _trial_tables(path: Path) -> Iterator[Table]:
    made = trials(path)
    if not made:
        return
    folders = _folders(path)
    rows = tuple(_trial(number, tried, folders) for number, tried in enumerate(made[:MOST], 1))
    more = f" (the first {MOST:,} of {len(made):,})" if len(made) > MOST else ""
    yield Table(f"trials in the order in which they were made{more}", _TRIAL_HEADS, rows, left=2)


def _trial(number: int, tried: Tried, folders: set[str]) -> tuple[str | Cell, ...]:
    key, name = tried.key, folder_name(tried.key)
    met = "-" if key.goal is not None else _numbers.share(share(tried, JOINT))
    return (
        Cell(str(number), link=f"{TRIALS}/{quote(name)}/" if name in folders else None),
        _what(tried),
        _numbers.option(key.rate_rps),
        str(key.seed),
        f"{tried.requests:,}",
        met,
        _numbers.number(tried.wall_s, 2),
    )


def _what(tried: Tried) -> str:
    if tried.key.goal is None:
        return "whole trial"
    return f"probe at {said.percent(tried.key.goal)}: {'carried' if tried.passed else 'too much'}"


def _folders(path: Path) -> set[str]:
    """Names of the folders of runs: a search on a real clock keeps each."""
    home = (path if path.is_dir() else path.parent) / TRIALS
    return {folder.name for folder in home.iterdir()} if home.is_dir() else set()


def _facts(info: Info) -> Facts:
    titles = ("run", "traffic", "backend", "versions", "cost")
    rows = [(f"{title}: {name}", value) for title in titles for name, value in flat(part(info, title))]
    return (("clock", clean(info.get("clock") or "")), *rows)

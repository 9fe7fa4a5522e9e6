"""The page of `bench slo`: stored runs under other objectives, with their scales, planes and curves."""

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from reports import _format, _page
from reports._format import clean
from reports._page import Part
from reports._sheet import Section, Sheet, Table
from reports._system import Facts
from reports.answers import _slo_tables as tables
from reports.answers import slo as words
from reports.answers._slo_tables import Rows
from reports.figures import curves, planes, scale
from reports.study.runs import Capacity, Kept, Point, Spread, Study, System

Info = Mapping[str, Any]

SCORES = "objectives with their bounds: requests within, and whether the goals are reached"
MARKS = {0: ("KEPT", True), 1: ("KEPT BY TOO FEW", False), 4: ("NOT VALID", False), 5: ("OPEN", None)}
"""What an exit code means where --fail-under was asked for."""


def sheet(info: Info, path: Path) -> Sheet:
    """What stands on the page of an answer whose slo.json is `info`."""
    runs = info["runs"]
    mark, good = _mark(info)
    if len(runs) == 1:
        title = f"{clean(runs[0]['workload'] or runs[0]['name'], 60)} under other objectives"
        subtitle = words.opening(runs[0])
    else:
        title = f"{_format.count(len(runs), 'stored run')} scored again"
        subtitle = f"{len(runs)} runs, {sum(run['measured'] for run in runs):,} measured requests"
    return Sheet(
        title=title,
        subtitle=subtitle,
        mark=mark,
        good=good,
        answer=_answer(info),
        state="Nothing was run for this: the times of all tokens are stored with a run.",
        heads=_heads(info),
        warnings=tuple((_sentence(text.removeprefix("warning: ")), "") for text in words.warnings(runs)),
        sections=tuple(_sections(info)),
        commands=_commands(info, path),
    )


def _mark(info: Info) -> tuple[str, bool | None]:
    code = info["exit_code"]
    if info["fail_under"] is None and code != 4:
        return "SCORED AGAIN", None
    return MARKS.get(code, ("OPEN", None))


def _answer(info: Info) -> str:
    """Of one run how its first objective fares; of several where the goals are crossed."""
    runs = info["runs"]
    if info["curves"]:
        texts = [f"{_named(curve)}: {text}" for curve in info["curves"] for text in tables.crossed(curve)]
        return _sentence("; ".join(texts))
    told = next((run for run in runs if run["measured"]), None)
    if told is None:
        return "No request is left to score."
    slo, goal = told["slos"][0], told["goals"][0]
    share = _format.share(slo["attainment"], goal)
    kept = "reached" if slo[info["conditions"]][0] else "missed"
    more = "" if len(runs) == 1 and len(told["slos"]) == 1 else " The tables have the others."
    if slo["attainment"] is None:  # every bound is on a percentile of the run
        return f"{clean(slo['text'], 200)} is {'kept' if slo[info['conditions']][0] else 'broken'}.{more}"
    return (
        f"{share} of {_format.count(told['measured'], 'request')} keep {clean(slo['text'], 200)}: goodput is "
        f"{_format.number(slo['goodput_rps'])} req/s, the goal of {goal * 100:g}% is {kept}.{more}"
    )


def _named(curve: Info) -> str:
    """The objective of a curve and, of several curves, what its runs have in common."""
    label = f" ({clean(curve['label'], 60)})" if curve["label"] else ""
    return f"{clean(curve['slo'], 100)}{label}"


def _heads(info: Info) -> Facts:
    runs = info["runs"]
    objectives = dict.fromkeys(clean(slo["text"], 200) for run in runs for slo in run["slos"])
    backends = dict.fromkeys(clean(str((run["spec"] or {}).get("backend") or ""), 60) for run in runs)
    rows = (
        ("Objectives", f"{'; '.join(objectives)} (seconds)"),
        ("Goals", ", ".join(f"{goal * 100:g}%" for goal in (runs[0]["goals"] if runs else ()))),
        ("Conditions", "each bound reaches the goal by itself" if info["conditions"] == "separate" else ""),
        ("System", ", ".join(name for name in backends if name)),
        ("Workload", ", ".join(dict.fromkeys(clean(run["workload"] or "", 60) for run in runs if run["workload"]))),
    )
    return tuple((name, value) for name, value in rows if value)


def _sections(info: Info) -> Iterator[Section]:
    runs = info["runs"]
    if len(runs) <= words.APART:
        for number, run in enumerate(runs):
            yield from _of_run(run, info, number, alone=len(runs) == 1)
    for number, curve in enumerate(info["curves"]):
        yield _of_curve(curve, number)
    if len(runs) > words.APART:
        yield Section("runs", "Runs", tables=(_table(tables.overview(runs, info)),))


def _of_run(run: Info, info: Info, number: int, *, alone: bool) -> Iterator[Section]:
    said = list(words.of_run(run, info))
    texts = tuple(_sentence(one) for one in said[1:] if isinstance(one, str))
    found = tuple(_table(one) for one in said if not isinstance(one, str))
    title = "Scores" if alone else clean(run["path"], 60)
    parts = tuple(_figures(run, number))
    yield Section(f"run-{number}", title, texts, found[:1], parts, tables_first=True)
    if found[1:]:
        more = "Scales, planes, groups" if alone else f"More of {clean(run['path'], 60)}"
        yield Section(f"run-{number}-more", more, tables=found[1:])


def _figures(run: Info, number: int) -> Iterator[Part]:
    """The scales and the plane that were asked for."""
    for place, slo in enumerate(run["slos"]):
        if slo["scale"] is not None and slo["scale"]["factors"]:
            title = f"Attainment against the scale of {clean(slo['text'], 60)}"
            yield _page.part(f"scale-{number}-{place}", title, scale.of_answer(slo, run["goals"]))
    if run["plane"] is not None:
        yield _page.part(f"plane-{number}", "Goodput over two bounds", planes.of_answer(run))


def _of_curve(curve: Info, number: int) -> Section:
    said = list(tables.curve_tables(curve))
    label = f" ({clean(curve['label'], 60)})" if curve["label"] else ""
    figure = curves.attainment_rate(_study(curve))
    part = _page.part(f"curve-{number}", f"Attainment of {clean(curve['slo'], 60)} against rate{label}", figure)
    shown = tuple(_table(one) for one in said if not isinstance(one, str))
    return Section(f"curve-{number}-all", f"Over the rate{label}", tables=shown, parts=(part,))


def _study(curve: Info) -> Study:
    """The curve as figures of curves over the rate take it."""
    points = tuple(_point(point) for point in curve["points"])
    capacities = tuple(
        Capacity(found["goal"], found["at_rps"], None, None, "interpolated",
                 "" if found["side"] is None else f"all rates lie {found['side']} it")
        for found in curve["crossings"]
    )  # fmt: skip
    slo = clean(curve["slo"], 400)
    name = clean(curve["label"] or "the system", 60)
    system = System(name, None, points, capacities, slo)
    return Study(slo, tuple(found["goal"] for found in curve["crossings"]), (system,), ())


def _point(point: Info) -> Point:
    kept = tuple(_kept(text, Spread.of(told)) for text, told in point["bounds"].items())
    return Point(
        rate_rps=float(point["rate_rps"]), seeds=point["runs"], requests=point["requests"],
        overloaded=point["overloaded"], invalid=point["invalid"], attainment=Spread.of(point["attainment"]),
        bounds=kept, goodput_rps=Spread.of(point["goodput_rps"]),
    )  # fmt: skip


def _kept(text: str, attainment: Spread | None) -> Kept:
    """A bound by its text: 'ttft@long=2'."""
    name, _, limit = text.rpartition("=")
    metric, _, tag = name.rpartition(":")[2].partition("@")
    return Kept(text, metric or text, _float(limit), tag or None, None, attainment)


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:  # a rule that is no bound, as fastgen's
        return float("nan")


def _table(rows: Rows) -> Table:
    """A table of the answer; what stands below it in the text is part of its caption."""
    caption = "; ".join(text.strip().rstrip(".") for text in (rows.title, *rows.notes) if text.strip())
    return Table(
        caption or (SCORES if rows.heads[0] == "objective" else "continued"),
        tuple(rows.heads),
        tuple(map(tuple, rows.rows)),
        rows.left,
    )


def _commands(info: Info, path: Path) -> tuple[str, ...]:
    """The scores again (what else was asked for is not stored), and the answer as text."""
    paths = " ".join(shlex.quote(clean(run["path"], None)) for run in info["runs"][: words.APART])
    objectives = dict.fromkeys(slo["text"] for run in info["runs"] for slo in run["slos"])
    options = " ".join(f"--slo {shlex.quote(clean(text, None))}" for text in objectives if text != "no bound")
    again = f"bench slo {paths} {options}".strip()
    told = f"bench report {shlex.quote(clean(path.name, None))} --format text"
    return (again, told) if 0 < len(info["runs"]) <= words.APART else (told,)


def _sentence(text: str) -> str:
    """With a capital, unless it begins with the text of a bound; with a full stop."""
    first = text if "=" in text.split(" ")[0] else text[:1].upper() + text[1:]
    return first.rstrip(".") + "."

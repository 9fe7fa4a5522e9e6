"""The page of a sweep: what is carried, the curves over the rate, other SLOs, every point and every run."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from harness.data.run_json import Workload, encode, from_facts
from harness.metrics.measure import headline
from reports import _format, _page, _sliders, _stored, _sweep_verdict, _system, figures
from reports._format import clean
from reports._sheet import Cell, Section, Sheet, Table
from reports._system import Facts, first, flat, part
from reports.answers import _sweep_said as words
from reports.figures import attainment_over
from reports.study.runs import Info, Study
from reports.study.sweep import of_sweep

SECTIONS = {
    "figures": "Goodput",
    "over": "Over other options",
    "sliders": "Other SLOs",
    "latency": "Latency and throughput",
    "time": "Where the time goes",
}
"""Sections of the figures of a study that a page of sweeps has, with their titles."""

MOST = 200
"""Rows of the table of runs; all are in sweep.json."""


def sheet(info: Info, path: Path, scored: Sequence[str] = ()) -> Sheet:
    """What stands on the page of a sweep whose sweep.json is `info`; its runs are looked for below `path`.

    `scored` is what `bench slo` is given for the same runs: the folder itself, where nothing else is said.
    """
    home = path if path.is_dir() else path.parent
    study = of_sweep(info, home)
    mark, good = _sweep_verdict.mark(info)
    warnings = [f"The sweep ended early: {info['error']}"] if info["error"] else []
    warnings += [text[:1].upper() + text[1:] for text in info["warnings"]]
    return Sheet(
        title=words.title(info),
        subtitle=words.asked(info),
        mark=mark,
        good=good,
        answer=_sweep_verdict.answer(info, study),
        state=_sweep_verdict.state(info),
        heads=heads(info, study),
        warnings=tuple((clean(warning, None), "") for warning in warnings),
        sections=tuple(_sections(info, study, home, scored or [home.name])),
        commands=_sweep_verdict.commands(info, home.name),
        facts=_used(info, study),
    )


def heads(info: Info, study: Study) -> Facts:
    """SLO, system, workload with preparation and tokenizer, client floor."""
    told = {**_told(study), **{name: info[name] for name in ("spec", "traffic", "backend") if name in info}}
    run = {**told, "workload": told.get("traffic") or part(told, "workload")}
    traffic, provenance = part(run, "workload"), part(part(run, "workload"), "provenance")
    # without the rate, which is what a sweep varies
    laws = _system.source(from_facts(Workload, {**traffic, "rate_rps": None}), part(run, "spec"))
    system, slo = _system.system(part(run, "backend"), part(run, "host")), clean(study.slo, 400)
    rows = (
        ("SLO", f"{slo} (seconds)" if slo else ""),
        ("System", system or clean(part(info, "spec").get("backend") or "", 200)),
        ("Workload", ", ".join(text for text in (first(traffic, "name"), *laws) if text)),
        ("Preparation", first(provenance, "preparation", "source")),
        ("Tokenizer", first(provenance, "tokenizer")),
        ("Client floor", _floor(info, study)),
    )
    return tuple((name, value) for name, value in rows if value)


def _told(study: Study) -> dict[str, Any]:
    """What the first run says of itself, for sweeps that do not say it themselves."""
    folders = (folder for system in study.systems for point in system.points for folder in point.folders)
    first_run = next(_stored.infos(folders), None)
    return {} if first_run is None else encode(first_run)


def _floor(info: Info, study: Study) -> str:
    if info["clock"] == "virtual":
        return "none: times are those of a simulator"
    floors = _stored.floor_s(study)
    told = [f"{m.label} {_format.seconds(floors[m.name])}" for m in headline() if m.name in floors]
    return f"{', '.join(told)} (99% of all times are nearer to the truth)" if told else "not measured"


def _sections(info: Info, study: Study, home: Path, scored: Sequence[str]) -> Iterator[Section]:
    yield from of_figures(study, *scored)
    tables = tuple(table(rows) for rows in words.tables(info))
    yield Section("points", "Points", tuple(words.crossings(info)), tables)
    yield Section("runs", "Runs", (), (runs(info, home),))


def of_figures(study: Study, *paths: str) -> Iterator[Section]:
    """The figures of a study in their sections; `paths` is what `bench slo` is given for the same runs."""
    modules = figures.modules("study")
    for key, title in SECTIONS.items():
        if key == "over" and not any(attainment_over.along(source) for source in study.sources if "axes" in source):
            continue
        shown = {name: module for name, module in modules.items() if key == module.SECTION != "sliders"}
        parts = [_page.part(name, module.TITLE, module.figure(study)) for name, module in shown.items()]
        parts += _sliders.of_study(study, *paths) if key == "sliders" else ()
        yield Section(key, title, parts=tuple(parts))


def table(rows: words.Rows) -> Table:
    """A table of the answer in text, for the page."""
    captions = {"attainment": "attainment and goodput over seeds", "TTFT p50 (ms)": "latencies, mean over seeds"}
    caption = next((text for head, text in captions.items() if head in rows.heads), "where the goals are crossed")
    return Table(caption, tuple(rows.heads), tuple(map(tuple, rows.rows)), rows.left)


def runs(info: Info, home: Path, page: Path | None = None) -> Table:
    """Every run with a link to its folder below `home`, where it is still there; `page` is where the page stands."""
    axes = [axis["name"] for axis in info["axes"] if not axis.get("rescored")]
    once = {point["folder"]: point for point in info["points"]}.values()
    rows = [(*words.values(axes, point), *_run(run, home, page or home)) for point in once for run in point["runs"]]
    more = f" (the first {MOST:,} of {len(rows):,}; all are in sweep.json)" if len(rows) > MOST else ""
    heads = (*map(words.axis, axes), "run", "state", "requests", "attainment", "goodput (req/s)",
             *(f"{metric.label} p99 (ms)" for metric in headline()))  # fmt: skip
    return Table(f"runs, scored under their own SLO{more}", heads, tuple(rows[:MOST]), len(axes) + 2)


def _run(run: Info, home: Path, page: Path) -> tuple[str | Cell, ...]:
    state = "not valid" if not run["valid"] else "overloaded" if run["overloaded"] else "valid"
    p99 = [part(part(run, "metrics"), metric.name).get("p99") for metric in headline()]
    timed = [_format.in_unit(value, "ms") if run["valid"] and not run["overloaded"] else "-" for value in p99]
    return (
        Cell(f"seed {clean(run['seed'])}", link=link(home, run["folder"], page)),
        Cell(state, good=None if run["valid"] and not run["overloaded"] else False),
        f"{run['requests']:,}",
        _format.share(run["attainment"]),
        _format.number(run["goodput_rps"]),
        *timed,
    )


def link(home: Path, folder: str, page: Path) -> str | None:
    """The address of a run relative to the page: its own page where it has one, else its folder; None of one gone."""
    place = home / folder
    if not place.is_dir():
        return None
    own = "report.html" if (place / "report.html").is_file() else ""
    return f"./{quote(os.path.relpath(place, page), safe='/=,+')}/{own}"


def _used(info: Info, study: Study) -> Facts:
    told = _told(study)
    rows = [("clock", clean(info["clock"])), ("seeds", clean(", ".join(map(str, info["seeds"])), 300))]
    for title in ("spec", "traffic", "backend", "versions"):
        rows += [(f"{title}: {name}", value) for name, value in flat(part(info, title))]
    for title in ("host", *(name for name in ("workload", "backend") if not part(info, name))):
        rows += [(f"first run, {title}: {name}", value) for name, value in flat(part(told, title))]
    return tuple(rows)

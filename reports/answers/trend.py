"""The report of `bench compare --trend`: an index of the series, then each with its metrics, steps, gaps and runs.

How much of each series there is room for is decided here: the size of a page stays the same for many series.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from harness.experiments.compare.compare_json import RunValue, Step, TrendAnswer, TrendMetric, TrendSeries
from harness.experiments.compare.history import METRICS
from harness.stats.watch import Rule
from reports import figures
from reports._format import clean, in_unit, number, option, unit_of, with_unit
from reports._system import versions
from reports.document import Block, Cell, Command, Document, Figure, Finding, Notice, Section, Table

MOST_DRAWN = 1000
"""Runs of a series that are drawn, the latest."""
SHOWN = "*"
"""Mark of a metric that is never judged."""
MARKS: Mapping[str, tuple[str, bool | None]] = {
    "regressed": ("REGRESSED", False),
    "improved": ("IMPROVED", True),
    "steady": ("STEADY", True),
    "invalid": ("NO VALID RUN", False),
    "few": ("TOO FEW RUNS", None),
    "longer": ("NOT COMPARABLE, ANSWERS ARE LONGER", False),
    "incomparable": ("NOTHING TO COMPARE", None),
    "missing": ("NO VALUE IN THE LAST RUN", False),
}
STATES = {
    "regressed": "REGRESSED",
    "longer": "longer: not comparable",
    "improved": "improved",
    "changed": "changed",
    "suspect": "suspect",
    "steady": "steady",
    "none": "no value in the last run",
}
NEWS = {"regressed": False, "none": False, "improved": True}
"""States of a metric that are bad or good news."""
WORST = ("longer", "regressed", "none", "suspect", "changed", "improved", "few", "steady")
REPORT_OF_LAST = ("see the report of the last run", "bench report RUN")
NOTES: Mapping[str, tuple[str, tuple[str, str] | None]] = {
    "exact": (
        "A virtual clock has no noise, so the change is one of the system.",
        ("find the cause of the change", "bench compare RUN RUN"),
    ),
    "regressed": (
        "The last runs are worse than the reference, until they return to it or --accept RUN accepts their level.",
        ("compare both commits side by side", "bench compare --base SPEC --head SPEC --pairs auto"),
    ),
    "longer": ("Answers became longer, which is more work: no speed is comparable with earlier runs.", None),
    "invalid": ("No run is valid, so no trend can be found.", REPORT_OF_LAST),
    "missing": ("The last run is not valid, or lacks a value.", REPORT_OF_LAST),
    "incomparable": ("Something that must stay equal changed in every run, see what changed.", None),
    "few": ("No trend yet: the first runs give the level that later ones are compared with.", None),
}
"""(state, what it means, what to do next); the others need neither."""
DEFINITIONS = (
    ("night", "the date of a run, a search or a folder of runs; of several runs the mean over them"),
    ("accepted level", "the median of the first runs, or of the first ones since the run that was accepted last"),
    ("reference", f"the accepted level, or the better one since then that has lasted {Rule().long} runs"),
    ("level", f"the median of the last {Rule().window} runs, or of the last {Rule().long}"),
    ("threshold", f"{option(100 * Rule().least)}% and {option(Rule().sds)} standard errors; of a virtual clock 0"),
    ("change", "a level that lasts, further than the threshold from the reference"),
    ("drift", "a change in small steps; 'from' is the run at which half was reached"),
    ("suspect", "the last run is far from the reference; the next runs show a change, or that it was chance"),
    ("scatter", "robust standard deviation from run to run, as a share of the reference"),
    ("not compared across", "a run from which on something differs that must not: schedule, SLO, model, hardware"),
)
MOST_PRINTED, MOST_ROWS = 10, 40
"""Rows of a table in a text and, of few series, on a page."""
DRAWN = 5_000
"""Values that a page draws in all."""
WEEK, MONTH = 7, 31
REPORT = "report.html"


@dataclass(frozen=True, slots=True)
class Room:
    """Runs that are drawn of a series, and rows of each table of runs."""

    runs: int
    rows: int


def document(info: TrendAnswer, path: Path | None = None) -> Document:
    """The report of a trend; reports of its runs are looked for from `path`."""
    series = info.series
    mark, good = MARKS[info.state]
    worse = [
        f"{clean(f'{line.name} {m.name}', 80)}{format_since(m)}: {format_level(m)}"
        for line in series
        for m in line.metrics
        if m.has_regressed
    ]
    which = f" ({'; '.join(worse[:3])}{'; ...' if len(worse) > 3 else ''})" if worse else ""
    exact = info.state == "regressed" and all(
        line.exact for line in series if any(metric.has_regressed for metric in line.metrics)
    )
    note, advice = NOTES.get("exact" if exact else info.state, ("No level is worse than its reference.", None))
    first, last = min(line.first[:10] for line in series), max(line.last[:10] for line in series)
    links = {} if path is None else _links(info, path)
    room = _room(info) if path is not None else Room(0, MOST_PRINTED)
    return Document(
        title=f"Trend of {clean(Path(info.folder).name or info.folder, 80)}",
        subtitle=f"{len(series):,} series, {sum(line.runs for line in series):,} runs from {first} to {last}",
        mark=mark,
        good=good,
        findings=(Finding(f"{mark.capitalize()}{which}.", good, (note,)),),
        key_facts=_key_facts(info),
        warnings=tuple(_warnings(info)),
        sections=(
            Section("index", "All series", (_index(info, links),) if len(series) > 1 else ()),
            *(section for place, line in enumerate(series, 1) for section in _sections(place, line, info, links, room)),
        ),
        next=None if advice is None else Command(*advice),
        commands=(f"bench compare --trend {clean(info.folder, None)}",),
        used=versions(info.versions),
        definitions=DEFINITIONS,
    )


def _key_facts(info: TrendAnswer) -> tuple[tuple[str, str], ...]:
    valid, runs = sum(line.valid for line in info.series), sum(line.runs for line in info.series)
    return (
        ("judged", f"{', '.join(m.name for m in METRICS if m.judged)}; all else is shown and decides nothing"),
        ("valid", f"{valid:,} of {runs:,} runs"),
    )


def _warnings(info: TrendAnswer) -> Iterator[Notice]:
    """What keeps a series from showing anything, with its remedy."""
    for series in info.series:
        name = clean(series.name, 80)
        if series.missing:
            yield Notice(f"{name}: the last run is not valid: {clean(series.gaps[-1].why)}.", "bench report RUN")
        if noisy := [metric for metric in series.judged if metric.noisy]:
            names = ", ".join(f"{clean(metric.name, 60)} {number(metric.sd_pct, 2)}%" for metric in noisy)
            yield Notice(
                f"{name}: more than 3% from run to run ({names}) hides steps.",
                "Run interleaved pairs instead: bench compare --base SPEC --head SPEC --pairs auto",
            )
        if 2 * len(series.breaks) > series.runs:
            yield Notice(
                f"{name}: {len(series.breaks)} of {series.runs} runs cannot be compared with the one before.",
                "Give every run the same options and --seed, and the same machine.",
            )


def _sections(
    place: int, series: TrendSeries, info: TrendAnswer, links: Mapping[str, str], room: Room
) -> Iterator[Section]:
    """What text and page have, with the figures; then the runs one by one."""
    name = clean(series.name, 80)
    without = [(gap.night, clean(gap.why)) for gap in series.gaps]
    gaps = _latest("dates without a valid run", ("night", "why"), without, room, left=2)
    accepted = [(level.night, level.run, level.date, clean(level.reason or "-")) for level in series.accepted]
    levels = _latest("accepted levels", ("from", "run", "accepted on", "reason"), accepted, room, left=4)
    tables = (*_metrics(series), *_steps(series, room))
    further = (*levels, *_changes(series, room), *gaps)
    yield Section(f"series-{place}", name, (*tables, *_figures(place, series, info, room), *further))
    yield Section(f"runs-{place}", f"Runs of {name}", tuple(_runs(series, links, room)), detail=True)


def _figures(place: int, series: TrendSeries, info: TrendAnswer, room: Room) -> Iterator[Block]:
    """The figure of one series; none where no run is valid, because its table says so."""
    for name, row in figures.of("trend").items() if series.metrics and room.runs else ():
        draw = partial(row.draw, info.change(series=[series]), room.runs)
        yield Figure(f"{name}-{place}", row.title, draw, room.rows)


def _metrics(series: TrendSeries) -> Iterator[Block]:
    """Each metric in the last run; the caption alone where no run has a value."""
    first, last = clean(series.first, 40), clean(series.last, 40)
    caption = f"{clean(series.name, 80)}: {series.runs:,} runs, {series.valid:,} valid, {first} to {last}"
    if len(series.judged) < len(series.metrics):
        caption += f"; {SHOWN} shown, never judged: far below capacity it says little, or it scatters much"
    rows = []
    for metric in series.metrics:
        state = Cell(_state(metric), good=False if metric.has_regressed else NEWS.get(metric.state) or None)
        rows.append((
            f"{clean(metric.name, 60)}{'' if metric.judged else f' {SHOWN}'}",
            state,
            format_level(metric),
            _last_value(metric),
            format_reference(metric),
            "-" if metric.sd_pct is None else f"{number(metric.sd_pct, 2)}%",
        ))  # fmt: skip
    heads = ("metric", "state", "change (95 % interval)", "last value", "reference", "scatter")
    yield Table(caption, heads, tuple(rows), left=2) if rows else caption


def _state(metric: TrendMetric) -> str:
    if metric.state == "regressed" and not metric.judged:
        return f"worse{format_since(metric)}"
    if metric.state == "few":
        return f"too few runs, {metric.needed + 1} more needed"
    return f"{STATES[metric.state]}{format_since(metric)}"


def _last_value(metric: TrendMetric) -> str:
    """The value of the last run that has one."""
    runs = [run for run in metric.runs if run.state != "gap"] or metric.runs
    return "overloaded" if runs and runs[-1].overloaded else format_value(metric, metric.last)


def _latest(
    caption: str, heads: tuple[str, ...], rows: Sequence[tuple[str | Cell, ...]], room: Room, left: int, words: int = 0
) -> Iterator[Table]:
    if rows:
        cut = f"; the latest {room.rows} of {len(rows):,}, all: --format json" if len(rows) > room.rows else ""
        yield Table(f"{caption}{cut}", heads, tuple(rows[-room.rows :]), left, words)


def _steps(series: TrendSeries, room: Room) -> Iterator[Table]:
    changes = [(step, metric) for metric in series.metrics for step in metric.steps]
    rows = [
        (clean(metric.name, 60), *format_step(metric, step),
         clean(step.first + (f" to {step.ended}" if step.ended else ""), 80),
         clean(f"{step.commit_before or ''}..{step.commit or ''}", 80),
         clean(", ".join(f"{fact.what} {fact.before} -> {fact.after}" for fact in step.changed[:4]) or "-"))
        for step, metric in sorted(changes, key=lambda each: each[0].first)
    ]  # fmt: skip
    heads = ("metric", "change", "level", "from", "commits", "changed with it")
    yield from _latest("changes", heads, rows, room, left=5, words=1)


def _changes(series: TrendSeries, room: Room) -> Iterator[Table]:
    """What the vertical lines stand for."""
    changed = [(run, "no") for run in series.breaks] + [(run, "yes") for run in series.versions]
    rows = [
        (clean(run.night, 40), clean(fact.what, 60), clean(fact.before, 80), clean(fact.after, 80), compared)
        for run, compared in sorted(changed, key=lambda each: each[0].night)
        for fact in run.changed
    ]
    heads = ("night", "what", "before", "after", "compared across")
    yield from _latest("what changed with the runs", heads, rows, room, left=5)


def _runs(series: TrendSeries, links: Mapping[str, str], room: Room) -> Iterator[Table]:
    """The runs with their judged values and their reports, the latest first."""
    judged = series.judged
    rows = []
    for of_date in zip(*(metric.runs for metric in judged), strict=True):
        link = links.get(of_date[0].path)
        values = (_value(metric, run) for metric, run in zip(judged, of_date, strict=True))
        commit, report = clean(of_date[0].commit or "-", 60), Cell("report", link=link) if link else "-"
        rows.append((of_date[0].night, commit, report, *values))
    heads = ("night", "commit", "report", *(f"{clean(metric.name, 60)} (95 % interval)" for metric in judged))
    for table in _latest("the runs, the latest first", heads, rows, room, left=3):
        yield Table(table.caption, heads, table.rows[::-1], left=3)


def _value(metric: TrendMetric, run: RunValue) -> Cell | str:
    """The value with its interval; suspect ones and those after a step are marked."""
    if run.value is None:
        return "overloaded" if run.overloaded else "-"
    text = format_value(metric, run.value)
    if run.low is not None:
        text += f" ({format_value(metric, run.low)} to {format_value(metric, run.high)})"
    if run.state == "suspect":
        return f"{text}, suspect"
    return Cell(text, good=run.state == "better") if run.state in ("worse", "better") else text


def _index(info: TrendAnswer, links: Mapping[str, str]) -> Table:
    """A row for each series by the metric that stands for it: the first judged one that is worst off."""
    rows: list[tuple[str | Cell, ...]] = []
    for place, series in enumerate(info.series, 1):
        name = Cell(clean(series.name, 80), link=f"#series-{place}")
        metric = min(series.judged or series.metrics, key=lambda each: WORST.index(each.state), default=None)
        if metric is None:
            rows.append((name, "-", Cell("no valid run", good=False), clean(series.last, 40), "-", "-"))
            continue
        night = Cell(clean(series.last, 40), link=links.get(series.metrics[0].runs[-1].path))
        rows.append((
            name, clean(metric.name, 60), Cell(_state(metric), good=NEWS.get(metric.state)), night, _last_value(metric),
            format_level(metric),
        ))  # fmt: skip
    heads = ("series", "metric", "state", "last night", "last value", "change (95 % interval)")
    caption = "All series, each by the first of its judged metrics that is worse, else by the first of all"
    return Table(caption, heads, tuple(rows), left=4)


def _links(info: TrendAnswer, page: Path) -> dict[str, str]:
    """Path of a run -> relative link to its report, of those that have one; of several runs of a date the first.

    `page` is the file or the folder that the page will stand in. Runs are looked for where they were, and, of an
    answer that was moved together with its folder, below that of the page.
    """
    start, root = page if page.is_dir() else page.parent, Path(info.folder)
    links = {}
    for path in sorted({run.path for line in info.series for metric in line.metrics for run in metric.runs}):
        places = [Path(path)]
        if places[0].is_relative_to(root):
            below = places[0].relative_to(root)
            places += [start / below, start / root.name / below]
        reports = [page for place in places for name in (REPORT, f"*/{REPORT}") for page in sorted(place.glob(name))]
        if reports:  # as URLs: slashes, and nothing in them that a browser reads otherwise
            links[path] = quote(Path(os.path.relpath(reports[0], start)).as_posix())
    return links


def _room(info: TrendAnswer) -> Room:
    """What a page has room for. Of many series the last month and a week of rows are always there."""
    panels = sum(len(series.judged) for series in info.series)
    runs = min(MOST_DRAWN, max(MONTH, DRAWN // max(1, panels)))
    return Room(runs, rows=min(MOST_ROWS, max(WEEK, 160 // len(info.series))))


def rows(info: TrendAnswer) -> Iterator[dict[str, Any]]:
    """A row per metric and run, times in seconds and shares from 0 to 1: the form csv."""
    fields = ("night", "commit", "value", "low", "high", "reference", "threshold_pct", "state", "overloaded", "path")
    for series in info.series:
        for metric in series.metrics:
            columns = {
                "series": series.name,
                "metric": metric.name,
                "unit": metric.unit,
                "judged": metric.judged,
            }
            yield from ({**columns, **{name: getattr(run, name) for name in fields}} for run in metric.runs)


def format_value(metric: TrendMetric, value: float | None) -> str:
    """A value of the metric with its unit."""
    return with_unit(value, "req/s" if metric.unit == "1/s" else metric.unit)


def format_step(metric: TrendMetric, step: Step) -> tuple[str, str]:
    """What a step did to a metric: ('10% worse', '100 -> 110 ms')."""
    loss, levels = step.loss_pct, [step.before, step.after]
    by = "overloaded" if step.side == "worse" else "no longer overloaded"
    if loss is not None:
        by = f"{number(abs(loss), 2)}{' points' if metric.unit == 'share' else '%'} {step.side}"
    text = " -> ".join("overloaded" if value is None else format_value(metric, value) for value in levels)
    if metric.unit == "s" and None not in levels:
        unit = unit_of(levels)
        text = f"{in_unit(levels[0], unit)} -> {in_unit(levels[1], unit)} {unit}"
    return by, text


def format_since(metric: TrendMetric) -> str:
    """' since 2026-01-11', the first run of the change that lasts; empty without one."""
    return next((f" since {step.first}" for step in metric.steps if step.open), "")


def format_reference(metric: TrendMetric) -> str:
    """'100 ms' for the accepted level, '90.0 ms since 2026-02-01' for that of a gain."""
    since = "" if metric.gained is None else f" since {clean(metric.gained, 40)}"
    return format_value(metric, metric.reference) + since


def format_level(metric: TrendMetric) -> str:
    """The level beside the reference, with its interval: '+10.0% (9.2% to 10.8%)'; '~' where it is no change."""
    if metric.level_pct is None:
        return "-"
    if metric.state in ("steady", "few", "none", "suspect"):
        return "~"
    unit = " points" if metric.unit == "share" else "%"
    text = f"{metric.level_pct:+.1f}{unit}"
    if metric.level_low_pct is None or metric.level_low_pct == metric.level_high_pct:
        return text
    return f"{text} ({metric.level_low_pct:+.1f} to {metric.level_high_pct:+.1f})"

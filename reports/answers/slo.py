"""The report of `bench slo`: stored runs under other SLOs, scales, groups and definitions of other tools."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from harness.api import alike
from harness.experiments.rescore.slo_json import ScoredRun, SloAnswer
from harness.experiments.sweep.axes import SCALE, SLO
from harness.experiments.sweep.sweep_json import SweepAnswer
from reports._format import clean, number, percent, share
from reports.answers import sweep
from reports.answers._scored_run import binding, met_or_missed, of_run, opening
from reports.answers.sweep import mean
from reports.document import Document, Finding, Notice, Section, Table, figures_of, listed
from reports.study import along, at, of_sweep

COLUMNS = 6
"""Points side by side."""
APART = 3
"""Runs with tables of their own; of more there is one table."""
MOST_ROWS = 60
"""Rows of the table of runs; all are in the JSON and in CSV."""
MARKS = {0: ("MET", True), 1: ("NOT MET", False), 4: ("NOT VALID", False), 5: ("NOT DECIDED", None)}
"""Of an exit code with --fail-under."""


def document(info: SloAnswer, path: Path | None = None) -> Document:
    """The report of scores whose slo.json is `info`; `path` is where it is stored."""
    runs = info.runs
    single = len(runs) == 1
    judged = info.fail_under is not None or info.exit_code == 4
    mark, good = MARKS.get(info.exit_code, MARKS[5]) if judged else ("SCORED AGAIN", None)
    name = clean(runs[0].workload or runs[0].name, 60) if single else f"{len(runs)} runs"
    return Document(
        title=f"SLO attainment of {name}",
        subtitle=opening(runs[0]) if single else f"{sum(run.measured for run in runs):,} measured requests",
        mark=mark,
        good=good,
        findings=tuple(_findings(info)),
        key_facts=tuple(_key_facts(info)),
        warnings=(*_warnings(runs), *(Notice(clean(w, None)) for w in (info.curve.warnings if info.curve else ()))),
        sections=tuple(_sections(info)),
        commands=() if path is None else (f"bench report {shlex.quote(clean(path.name, None))} --format text",),
    )


def _findings(info: SloAnswer) -> Iterator[Finding]:
    """What several runs tell together; of one run its first SLO."""
    if info.curve is not None:
        for name, curve in _by_slo(info.curve):
            text = sweep.answer(curve, of_sweep(curve, Path()))
            yield Finding(f"{clean(name, 200)}: {text}" if name else text, None, tuple(_broken(curve)))
        return
    run = next((run for run in info.runs if run.measured), None)
    if run is None:
        yield Finding("No request is left to score.")
        return
    slo, goal = run.slos[0], run.goals[0]
    met = met_or_missed(slo, info)[0]
    text = f"{clean(slo.text, 200)} is {met}"
    if slo.attainment is not None:  # None: every bound is on a percentile of the run
        broken = [clean(b.text) for b in slo.bounds if b.percentile is not None and b.passed is False]
        missed = f", as {' and '.join(broken)} {'is' if len(broken) == 1 else 'are'} missed" if broken else ""
        single = "the bounds on single requests of " if broken else ""
        text = (
            f"{share(slo.attainment, goal)} of {run.measured:,} requests met {single}{clean(slo.text, 200)}: goodput "
            f"{number(slo.goodput_rps)} req/s, goal {percent(goal)} {met}{missed}"
        )
    yield Finding(f"{text}.", {"met": True, "missed": False}.get(met))


def _by_slo(curve: SweepAnswer) -> Iterator[tuple[str, SweepAnswer]]:
    """The points of each SLO by themselves: SLOs are no systems, of which one could be the best."""
    axis = next((axis for axis in curve.axes if axis.name == SLO), None)
    if axis is None:
        yield "", curve
        return
    for value in axis.values:
        points = [replace(p, values=_without_slo(p.values)) for p in curve.points if p.values[SLO] == value]
        crossings = [
            replace(crossing, where=_without_slo(crossing.where))
            for crossing in curve.crossings if crossing.where.get(SLO) == value
        ]  # fmt: skip
        axes = [other for other in curve.axes if other.name != SLO]
        yield str(value), curve.change(axes=axes, points=points, crossings=crossings, differences=[])


def _broken(curve: SweepAnswer) -> Iterator[str]:
    """Where each bound on a percentile is missed: no part of the shares of requests that a curve shows."""
    for name in dict.fromkeys(b.text for point in curve.points for b in point.bounds if b.percentile is not None):
        missed = [p for p in curve.points if any(b.text == name and b.passed is False for b in p.bounds)]
        places = [at(point.values.items()) or "the one point" for point in missed]
        more = f" and {len(places) - APART} more" if len(places) > APART else ""
        where = f"missed at {'; '.join(places[:APART])}{more}" if places else "met at every point"
        yield f"{clean(name, 100)} is {where}."


def _without_slo(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name != SLO}


def _key_facts(info: SloAnswer) -> Iterator[tuple[str, str]]:
    runs = info.runs
    values: dict[str, list[str | None]] = {
        "SLO": [slo.text for run in runs for slo in run.slos],
        "Goals": [percent(goal) for goal in runs[0].goals],
        "Conditions": ["each bound reaches the goal by itself"] if info.conditions == "separate" else [],
    }
    for name, texts in values.items():
        if text := ("; " if name == "SLO" else ", ").join(dict.fromkeys(clean(part, 200) for part in texts if part)):
            yield name, f"{text} (seconds)" if name == "SLO" else text


def _warnings(runs: Sequence[ScoredRun]) -> Iterator[Notice]:
    bad = [run for run in runs if run.valid is False]
    if bad:
        reason = f": {clean(bad[0].reasons[0], 300)}" if bad[0].reasons else ""
        more = "" if len(bad) == 1 else f" {len(bad) - 1} more are not valid."
        yield Notice(f"{clean(bad[0].path, 100)} is not valid{reason.rstrip('.')}.{more}")
    if growing := sum(run.overloaded for run in runs):
        yield Notice(f"The queue grew throughout ({growing} of {len(runs)} runs): latencies tell how long the run was.")
    if unfinished := sum(run.state not in (None, "finished") for run in runs if not run.source):
        yield Notice(f"Not finished: {unfinished} of {len(runs)} runs; what was stored is scored.")
    if len(runs) == 1 and runs[0].measured:
        remedy = "Near a goal, repeat it with other seeds"
        yield Notice(
            "One run does not tell how its traffic happened to be drawn.",
            f"{remedy}." if runs[0].source else f"{remedy}: bench sweep --seeds 5",
        )


def _sections(info: SloAnswer) -> Iterator[Section]:
    runs = info.runs
    detailed = runs if len(runs) <= APART else []
    for place, run in enumerate(detailed):
        title = "Scores" if len(runs) == 1 else clean(run.path, 60)
        yield Section(f"run-{place}", title, tuple(of_run(run, info)))
    yield from _together(info)
    if not detailed:
        yield Section("runs", "Runs", (*_overview(runs, info), *_left_out(runs)))


def _left_out(runs: Sequence[ScoredRun]) -> Iterator[str]:
    slos = [slo for run in runs for slo in run.slos]
    if any(slo.tokens for slo in slos) or any(r.groups or r.profiles for r in runs):
        yield (
            f"Groups, tokens and profiles of single runs are shown for up to {APART} runs; "
            "--format csv and json have those of all."
        )


def _overview(runs: Sequence[ScoredRun], info: SloAnswer) -> tuple[Table, ...]:
    """A row per run and SLO, with what the paths do not have in common."""
    parts = [run.path.replace("\\", "/").split("/") for run in runs]
    common = min(alike(path[:-1], parts[0][:-1]) for path in parts)
    slos = dict.fromkeys(clean(slo.text, 60) for run in runs for slo in run.slos)
    several = len(slos) > 1
    goals = runs[0].goals
    rows = [
        (clean("/".join(path[common:]), 60), *([clean(slo.text, 60)] if several else []), binding(slo),
         number(run.sent_rps), share(slo.attainment, goals[0]),
         number(slo.goodput_rps), *met_or_missed(slo, info))
        for path, run in zip(parts, runs, strict=True) for slo in run.slos
    ]  # fmt: skip
    heads = ("run", *(["SLO"] if several else []), "binding", "rate (req/s)", "attainment", "goodput (req/s)",
             *(f"goal {percent(goal)}" for goal in goals))  # fmt: skip
    caption = "runs" if several else f"runs under {next(iter(slos), '')}"
    return listed(caption, heads, rows, MOST_ROWS, left=3 if several else 2)


def _together(info: SloAnswer) -> Iterator[Section]:
    """Several runs as the points of a sweep: their curve, the goals that it crosses, and the points."""
    if info.curve is None:
        return
    figures = figures_of("study", of_sweep(info.curve, Path()), section="figures")
    yield Section("figures", "Goodput", (*figures, *sweep.crossings_of(info.curve, Path())))
    tables = [*sweep.tables(info.curve)]
    if info.scaled is not None:
        tables += [sweep.crossed(along(info.scaled, SCALE, Path())), *_scales(info.scaled)]
    yield Section("points", "Points", tuple(tables))


def _scales(scaled: SweepAnswer) -> Iterator[Table]:
    """Attainment at each scale under each SLO, a column for each point."""
    found: dict[str, dict[str, dict[str, str]]] = {}
    for point in scaled.points:
        where = at((name, value) for name, value in point.values.items() if name not in (SLO, SCALE))
        column = found.setdefault(point.slo or "", {}).setdefault(where or "attainment", {})
        column[number(float(str(point.values[SCALE])))] = mean(point.attainment, share)
    for slo, columns in found.items():
        names = list(columns)
        for begin in range(0, len(names), COLUMNS):
            part = names[begin : begin + COLUMNS]
            rows = tuple((scale, *(columns[name].get(scale, "-") for name in part)) for scale in columns[part[0]])
            yield Table(f"{clean(slo, 100)}, every bound times the scale", ("SLO scale", *part), rows)


def rows(info: SloAnswer) -> Iterator[dict[str, Any]]:
    """A row per number with what it is of, times in seconds and shares from 0 to 1: the form csv."""
    heads = ("run", "rate_rps", "seed", "objective", "what", "of", "at", "at_other", "value")
    for run in info.runs:
        first = (run.path, run.sent_rps, run.seed)
        yield from (dict(zip(heads, (*first, *values), strict=True)) for values in _values(run))


def _values(run: ScoredRun) -> Iterator[tuple[Any, ...]]:
    """(SLO, what, of, at, at of a second metric, value)."""
    for slo in run.slos:
        text = slo.text
        yield text, "attainment", "all", None, None, slo.attainment
        for i, goal in enumerate(run.goals):
            yield text, "reached", "joint", goal, None, int(slo.joint[i])
            yield text, "reached", "separate", goal, None, int(slo.separate[i])
        yield text, "goodput_rps", "all", None, None, slo.goodput_rps
        for bound in slo.bounds:
            yield text, "attainment", bound.text, None, None, bound.attainment
        if (scale := slo.scale) is not None:
            for row in zip(scale.factors, scale.attainment, scale.goodput_rps, strict=True):
                yield text, "attainment", "scale", row[0], None, row[1]
                yield text, "goodput_rps", "scale", row[0], None, row[2]
            for goal, least in zip(run.goals, scale.crossings, strict=True):
                yield text, "lowest_scale", "joint", goal, None, least
        if slo.tokens is not None:
            yield text, "token_goodput_tps", "all", None, None, slo.tokens.token_goodput_tps
            yield text, "tokens_in_time", "all", None, None, slo.tokens.share
    for grouping in run.groups:
        for group in grouping.groups:
            label = f"{grouping.by}: {group.name}"
            for text, value in zip(grouping.slos, group.attainment, strict=True):
                yield text, "attainment", label, None, None, value
    for column in run.profiles.columns if run.profiles else ():
        yield from (("", name, column.name, None, None, value) for name, value in column.values.items())

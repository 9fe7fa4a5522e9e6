"""The report of `bench slo`: stored runs under other SLOs, scales, planes, groups and definitions of other tools."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.experiments.capacity.capacity_json import RateBracket
from harness.experiments.rescore.slo_json import (
    CurveCrossing,
    CurvePoint,
    Groups,
    ScoredRun,
    SloAnswer,
    SloCurve,
    SloScore,
)
from harness.experiments.sweep.sweep_json import Spread
from harness.metrics.measure import headline
from reports import _format
from reports._format import clean, number, share
from reports.answers.sweep import percent
from reports.document import Block, Document, Figure, Finding, Notice, Section, Table
from reports.document.curve import Curve

if TYPE_CHECKING:
    import plotly.graph_objects as go

APART = 3
"""Runs with tables of their own; of more there is one table, and curves where they have several rates."""
COLUMNS = 6
"""Limits of a plane, or rates, side by side."""
TOOLS = 5
"""Columns of other tools side by side."""
MOST_ROWS = 60
"""Rows of the table of runs; all are in the JSON and in CSV."""
MARKS = {0: ("MET", True), 1: ("NOT MET", False), 4: ("NOT VALID", False), 5: ("NOT DECIDED", None)}
"""Of an exit code with --fail-under."""
LACKS = {
    "sent_s": "The file has no time of sending, so there are no rates.",
    "scheduled_s": "The file has no time at which a request was due: TTFT and E2E count from sending.",
    "token_n": "The file does not hold how many tokens came in each event, so there is no goodput in tokens.",
}
"""What an answer cannot have of a file of another tool."""
ONE_GROUP = {
    "class": "the traffic has one class",
    "turn": "no request has a second turn",
    "prefix": "no two requests share a prefix, as far as the run records it",
    "replica": "there is one replica, as far as the run records it",
    "cached": "the run does not record how much of a prompt was cached",
}
UNITS = {"prompt": "tokens", "output": "tokens", "time": "s"}
"""Units in the names of groups; a table has them in its head."""
FACTS = {
    "scale": (
        "lowest scale at which a goal is met, every bound times the scale",
        ("SLO", "goal or bound", "from scale"),
        2,
    ),
    "capacity": (
        "capacity by the search in this folder",
        ("SLO", "goal", "capacity (req/s)", "from (req/s)", "to (req/s)", "tried (req/s)"),
        1,
    ),
    "unresolved": ("unresolved within the client's timestamp error", ("SLO", "bounds", "attainment"), 2),
    "tasks": (
        "tasks that met the SLO as a whole; goodput also with a task counted once among single requests",
        ("SLO", "tasks", "attainment", "goodput (tasks/s)", "goodput (tasks and requests/s)"),
        1,
    ),
}
"""Tables of what is found of an SLO besides its score: caption, heads, columns of names."""
QUANTITIES = {
    **{f"{name}_{at}_s": f"{name.upper()} {at}" for name in ("ttft", "tpot") for at in ("mean", "p50", "p99")},
    "itl_p50_s": "ITL p50",
    "itl_p99_s": "ITL p99",
    "e2e_mean_s": "E2E mean",
    "e2e_p99_s": "E2E p99",
    "good": "good",
    "of": "of requests",
    "attainment": "attainment",
    "goodput_rps": "goodput (req/s)",
}
"""Rows of the table of definition profiles."""
SAME = 5e-5
"""Relative differences between definitions below this are shown as 0."""


def document(info: SloAnswer, path: Path | None = None) -> Document:
    """The report of scores whose slo.json is `info`; `path` is where it is stored."""
    runs = info.runs
    alone = len(runs) == 1
    judged = info.fail_under is not None or info.exit_code == 4
    mark, good = MARKS.get(info.exit_code, MARKS[5]) if judged else ("SCORED AGAIN", None)
    name = clean(runs[0].workload or runs[0].name, 60) if alone else f"{len(runs)} runs"
    return Document(
        title=f"SLO attainment of {name}",
        subtitle=_opening(runs[0]) if alone else f"{sum(run.measured for run in runs):,} measured requests",
        mark=mark,
        good=good,
        findings=tuple(_findings(info)),
        key_facts=tuple(_key_facts(info)),
        warnings=tuple(_warnings(runs)),
        sections=tuple(_sections(info)),
        commands=() if path is None else tuple(_commands(info, path)),
    )


def _opening(run: ScoredRun) -> str:
    """What a run is, and of how many requests."""
    what = f"{clean(run.name, 60)} of {clean(run.tool, 30)}"
    if not run.tool:
        names = (clean(run.workload or run.name, 60), clean(run.backend.partition(":")[0], 30))
        what = " on ".join(filter(None, names))
    parts = [what, f"{number(run.sent_rps)} req/s", f"{run.measured:,} measured requests"]
    parts += [f"{run.left_out:,} before the cut"] if run.left_out else []
    parts += [f"seed {clean(run.seed, 20)}"] if run.seed is not None else []
    return f"{', '.join(parts)} ({clean(run.path, 100)})"


def _findings(info: SloAnswer) -> Iterator[Finding]:
    """Where the curves cross the goals; without curves the first SLO of the first run."""
    for curve in info.curves:
        yield Finding(f"{clean(curve.slo, 100)}{_label(curve)}: {'; '.join(map(_crossing, curve.crossings))}")
    if info.curves:
        return
    run = next((run for run in info.runs if run.measured), None)
    if run is None:
        yield Finding("No request is left to score.")
        return
    slo, goal = run.slos[0], run.goals[0]
    met = slo.reached(info.conditions)[0]
    text = f"{clean(slo.text, 200)} is {'met' if met else 'missed'}"
    if slo.attainment is not None:  # None: every bound is on a percentile of the run
        text = (
            f"{share(slo.attainment, goal)} of {run.measured:,} requests met {clean(slo.text, 200)}: goodput "
            f"{number(slo.goodput_rps)} req/s, goal {percent(goal)} {'met' if met else 'missed'}"
        )
    yield Finding(f"{text}.", bool(met))


def _crossing(found: CurveCrossing) -> str:
    if found.between is None:
        return f"{percent(found.goal)}: all rates lie {'above' if found.side == 'above' else 'below'} it"
    low, high = map(number, found.between)
    at = f"{percent(found.goal)} is crossed near {number(found.at_rps)} req/s"
    return f"{at}: interpolated between {low} and {high}, without an interval"


def _label(curve: SloCurve) -> str:
    """What the runs of a curve have in common, of several curves."""
    return f" ({clean(curve.label, 100)})" if curve.label else ""


def _key_facts(info: SloAnswer) -> Iterator[tuple[str, str]]:
    runs = info.runs
    values: dict[str, list[str | None]] = {
        "SLO": [slo.text for run in runs for slo in run.slos],
        "Goals": [percent(goal) for goal in runs[0].goals],
        "Conditions": ["each bound reaches the goal by itself"] if info.conditions == "separate" else [],
        "System": [run.backend for run in runs],
        "Workload": [run.workload for run in runs],
    }
    for name, of in values.items():
        if text := ("; " if name == "SLO" else ", ").join(dict.fromkeys(clean(each, 200) for each in of if each)):
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
    apart = runs if len(runs) <= APART else []
    for place, run in enumerate(apart):
        title = "Scores" if len(runs) == 1 else clean(run.path, 60)
        yield Section(f"run-{place}", title, tuple(_of_run(run, info, place)))
    for place, curve in enumerate(info.curves):
        yield Section(f"curve-{place}-all", f"Over the rate{_label(curve)}", tuple(_of_curve(curve, runs, place)))
    if not apart:
        yield Section("runs", "Runs", (_overview(runs, info), *_left_out(runs, info)))


def _left_out(runs: Sequence[ScoredRun], info: SloAnswer) -> Iterator[str]:
    slos = [slo for run in runs for slo in run.slos]
    scales = not info.curves and any(slo.scale and slo.scale.factors for slo in slos)
    if scales or any(slo.tokens for slo in slos) or any(r.plane or r.groups or r.profiles for r in runs):
        yield (
            f"Scales, planes, groups, tokens and profiles of single runs are shown for up to {APART} runs; "
            "--format csv and json have those of all."
        )


def _of_run(run: ScoredRun, info: SloAnswer, place: int) -> Iterator[Block]:
    """The tables of one run, the first of which names it."""
    yield _measured(run, info)
    if not run.measured:
        return
    yield from (text for name, text in LACKS.items() if name in run.missing)
    yield _scores(run, info)
    for i, slo in enumerate(run.slos):
        if slo.scale is not None and slo.scale.factors:
            title = f"Attainment against the scale of {clean(slo.text, 60)}"
            yield Figure(f"scale-{place}-{i}", title, partial(_figure, "scale", slo.scale, run.goals))
    if run.plane is not None:
        yield Figure(f"plane-{place}", "Goodput over two bounds", partial(_figure, "plane", run.plane, run.goals[0]))
    yield from _facts_of_slos(run)
    for slo in run.slos:
        yield from _scale(slo)
        yield from _tokens(slo, unknown=run.failed if run.source else 0)
    yield from _plane(run)
    yield from map(_groups, run.groups)
    yield from _profiles(run)
    if not info.curves and place == 0:
        found = run.slos[0].scale
        points = (
            []
            if found is None
            else [(x, y) for x, y in zip(found.factors, found.attainment, strict=True) if y is not None]
        )
        yield Curve(points, run.goals, f"{clean(run.slos[0].text)} over the SLO scale", "x", log=True)


def _measured(run: ScoredRun, info: SloAnswer) -> Table:
    never = "never" if info.failed_as_infinite and run.failed else "-"
    timed = {
        f"{metric.label} {at}": value
        for metric in headline()
        if (latency := run.latencies.get(metric.name)) is not None
        for at, value in (("p50", latency.p50), ("p99", latency.p99))
    }
    heads = ("throughput (req/s)", "output (tokens/s)", "failed", *timed)
    values = (number(run.throughput_rps), number(run.output_tps), f"{run.failed:,}")
    times = (never if value is None else _format.seconds(value) for value in timed.values())
    return Table(_opening(run) if len(info.runs) > 1 else "the run", heads, ((*values, *times),), left=0)


def _goals(slo: SloScore, info: SloAnswer) -> list[str]:
    return ["met" if met else "missed" for met in slo.reached(info.conditions)]


def _binding(slo: SloScore) -> str:
    """The bound that binds; none where all have the same share, because only failures may have missed."""
    bounds = slo.bounds
    differ = any(b.percentile is not None for b in bounds[1:]) or len({b.attainment for b in bounds}) > 1
    return clean(slo.binding, 60) if slo.binding is not None and differ else "-"


def _scores(run: ScoredRun, info: SloAnswer) -> Table:
    """Each SLO with its bounds and classes below it."""
    goals = run.goals
    by_gpu = any(slo.goodput_rps_per_gpu not in (None, slo.goodput_rps) for slo in run.slos)
    heads = ("SLO", "binding", "attainment", "goodput (req/s)", *(["per GPU (req/s)"] if by_gpu else []),
             *(f"goal {percent(goal)}" for goal in goals))  # fmt: skip
    rows: list[tuple[str, ...]] = []
    for slo in run.slos:
        per_gpu = [number(slo.goodput_rps_per_gpu)] if by_gpu else []
        values = (share(slo.attainment, goals[0]), number(slo.goodput_rps), *per_gpu)
        rows.append((clean(slo.text), _binding(slo), *values, *_goals(slo, info)))
        for bound in slo.bounds:
            if bound.percentile is not None:
                value = "never" if bound.value_s is None else _format.seconds(bound.value_s)
                text = f"- {clean(bound.text)}: {value}, {'met' if bound.passed else 'missed'}"
                rows.append((text, "", share(bound.attainment, goals[0])))
            elif len(slo.bounds) > 1:
                rows.append((f"- {clean(bound.text)}", "", share(bound.attainment, goals[0])))
        for name, part in slo.classes.items() if len(slo.classes) > 1 else ():
            rows.append((f"- class {clean(name, 40)}", "", share(part, goals[0])))
    full = tuple((*row, *[""] * (len(heads) - len(row))) for row in rows)
    return Table("SLOs and their bounds", heads, full, left=2)


def _facts_of_slos(run: ScoredRun) -> Iterator[Table]:
    """What is found of each SLO besides its score: scales that reach the goals, capacities, doubts, tasks."""
    rows: dict[str, list[tuple[str, ...]]] = {name: [] for name in FACTS}
    for slo in run.slos:
        text = clean(slo.text)
        if slo.scale is not None:
            reached = [(percent(goal), at) for goal, at in zip(run.goals, slo.scale.crossings, strict=True)]
            reached += [(clean(name), at) for name, at in slo.scale.holds_from.items()]
            rows["scale"] += [(text, name, "at no scale" if at is None else number(at)) for name, at in reached]
        for found in slo.capacities:
            bracket = found.bracket or RateBracket()
            ends = [end for end in (bracket.low_rate_rps, bracket.high_rate_rps) if end]
            tried = " .. ".join(f"{end:g}" for end in ends) if len(ends) == 2 else "-"
            rate = "unresolved" if found.capacity_rps is None else number(found.capacity_rps)
            rows["capacity"].append(
                (text, percent(found.goal), rate, number(found.low_rps), number(found.high_rps), tried)
            )
        if slo.resolution is not None and slo.resolution.unresolved:
            between = " to ".join(map(share, slo.resolution.attainment or ())) or "-"
            rows["unresolved"].append((text, clean(", ".join(slo.resolution.unresolved)), between))
        if (task := slo.tasks) is not None:
            rates = (number(task.goodput_tasks_rps), number(task.goodput_users_rps))
            rows["tasks"].append((text, f"{task.tasks:,}", share(task.attainment), *rates))
    for name, (caption, heads, left) in FACTS.items():
        if rows[name]:
            yield Table(caption, heads, tuple(rows[name]), left)


def _overview(runs: Sequence[ScoredRun], info: SloAnswer) -> Table:
    """A row per run and SLO, with what the paths do not have in common."""
    parts = [run.path.replace("\\", "/").split("/") for run in runs]
    common = 0
    while all(len(p) > common + 1 and p[common] == parts[0][common] for p in parts):
        common += 1
    slos = dict.fromkeys(clean(slo.text, 60) for run in runs for slo in run.slos)
    named = len(slos) > 1
    goals = runs[0].goals
    rows = tuple(
        (clean("/".join(path[common:]), 60), *([clean(slo.text, 60)] if named else []), _binding(slo),
         number(run.sent_rps), share(slo.attainment, goals[0]),
         number(slo.goodput_rps), *_goals(slo, info))
        for path, run in zip(parts, runs, strict=True) for slo in run.slos
    )  # fmt: skip
    heads = ("run", *(["SLO"] if named else []), "binding", "rate (req/s)", "attainment", "goodput (req/s)",
             *(f"goal {percent(goal)}" for goal in goals))  # fmt: skip
    more = f"; the first {MOST_ROWS} of {len(rows):,} rows, --format csv and json have all"
    caption = f"runs{'' if named else f' under {next(iter(slos), str())}'}{more if len(rows) > MOST_ROWS else ''}"
    return Table(caption, heads, rows[:MOST_ROWS], left=3 if named else 2)


def _scale(slo: SloScore) -> Iterator[Table]:
    """Attainment at each factor."""
    found = slo.scale
    if found is None or not found.factors:
        return
    names = list(found.bounds) if len(found.bounds) > 1 else []
    rows = tuple(
        (number(factor), share(found.attainment[i]), number(found.goodput_rps[i]),
         *(share(found.bounds[name][i]) for name in names))
        for i, factor in enumerate(found.factors)
    )  # fmt: skip
    heads = ("SLO scale", "attainment", "goodput (req/s)", *(f"{clean(name, 30)} alone" for name in names))
    yield Table(f"{clean(slo.text)}, every bound times the scale", heads, rows)


def _tokens(slo: SloScore, unknown: int) -> Iterator[Block]:
    """Goodput in tokens, per class where there are several; `unknown`: failed requests of unknown output length."""
    found = slo.tokens
    if found is None:
        return
    heads = ("", "tokens in time", "token goodput (tokens/s)", "service 1:8", "service 0:1")
    rows = tuple(
        (clean(name, 40), share(part.share), number(part.token_goodput_tps),
         *(number(part.service[weights]) for weights in ("1:8", "0:1")))
        for name, part in (("all", found), *((f"class {name}", part) for name, part in found.classes.items()))
    )  # fmt: skip
    yield Table(f"{clean(slo.text)}, token by token", heads, rows)
    whole = found.whole_answers_tps
    yield (
        "Token k is due at the bound on TTFT + k times that on TPOT; other bounds hold for all tokens of a request. "
        "Service a:b is a x good prompt tokens + b x good output tokens per second."
        + ("" if whole is None else f" Requests that met every bound have {number(whole)} tokens/s.")
    )
    if unknown:
        yield "The file does not hold how many tokens the failed requests were to have: none are missing."


def _plane(run: ScoredRun) -> Iterator[Table]:
    """Goodput under pairs of bounds, the second metric across."""
    found = run.plane
    if found is None:
        return
    (down, across), (down_s, across_s) = found.metrics, found.limits_s
    shown = sorted({round(i * (len(across_s) - 1) / (COLUMNS - 1)) for i in range(COLUMNS)})
    rows = tuple(
        (_format.limit(limit), *(
            f"{number(found.goodput_rps[i][j])} ({share(found.attainment[i][j], run.goals[0])})" for j in shown
        ))
        for i, limit in enumerate(down_s)
    )  # fmt: skip
    left_out = len(across_s) - len(shown)
    more = f"; {left_out} more columns: --format csv or json" if left_out else ""
    heads = (f"{down} \\ {across}", *(_format.limit(across_s[j]) for j in shown))
    yield Table(f"goodput in req/s (attainment) under both bounds{more}", heads, rows)


def _groups(found: Groups) -> Table:
    """A row per group, a column per SLO."""
    one, unit = len(found.slos) == 1, UNITS.get(found.by)
    names = list(found.groups[0].bounds[0]) if one and found.groups else []
    names = names if len(names) > 1 else []
    rows = tuple(
        (clean(group.name.removesuffix(f" {unit}"), 40), f"{group.requests:,}", *map(share, group.attainment),
         *(share(group.bounds[0][name]) for name in names), number(group.goodput_rps[0]),
         *map(_format.seconds, (ttft.p50, ttft.p99, tpot.p99)))
        for group in found.groups for ttft, tpot in [(group.latencies["ttft"], group.latencies["tpot"])]
    )  # fmt: skip
    head = found.by if unit is None else f"{found.by} ({unit})"
    heads = (head, "requests", *(["attainment"] if one else [clean(slo, 30) for slo in found.slos]),
             *(clean(name, 24) for name in names), "goodput (req/s)", "TTFT p50", "TTFT p99", "TPOT p99")  # fmt: skip
    note = ONE_GROUP.get(found.by) if len(rows) == 1 else None
    return Table(f"by {found.by}; {note or 'goodput is the part of each group in that of the run'}", heads, rows)


def _of_curve(curve: SloCurve, runs: Sequence[ScoredRun], place: int) -> Iterator[Block]:
    """Attainment over the rate: mean of the runs at each, with its interval where there are enough."""
    title = f"Attainment of {clean(curve.slo, 60)} against rate{_label(curve)}"
    yield Figure(f"curve-{place}", title, partial(_figure, "curve", curve))
    names = list(curve.points[0].bounds)
    names = names if len(names) > 1 else []
    rows = tuple(
        (number(point.rate_rps), _runs_at(point), *_spread(point.attainment),
         number(_mean(point.goodput_rps)), *(share(_mean(point.bounds[name])) for name in names))
        for point in curve.points
    )  # fmt: skip
    heads = ("rate (req/s)", "runs", "attainment", "95% of the mean", "range", "goodput (req/s)",
             *(clean(name, 24) for name in names))  # fmt: skip
    yield Table(f"{clean(curve.slo)} over the rate{_label(curve)}", heads, rows)
    scales = [point for point in curve.points if point.scale and point.factors]
    for at in range(0, len(scales), COLUMNS):
        part = scales[at : at + COLUMNS]
        heads = ("SLO scale", *(f"{number(point.rate_rps)} req/s" for point in part))
        rows = tuple(
            (number(factor), *(share(point.scale[i]) for point in part)) for i, factor in enumerate(part[0].factors)
        )
        yield Table(f"{clean(curve.slo)}, every bound times the scale{_label(curve)}", heads, rows)
    if place == 0:
        points = [(p.rate_rps, p.attainment.mean) for p in curve.points if p.attainment]
        yield Curve(points, runs[0].goals, f"{clean(curve.slo)} over the rate", "req/s")


def _runs_at(point: CurvePoint) -> str:
    counts = (("overloaded", point.overloaded), ("invalid", point.invalid))
    marks = [f"{count} {name}" for name, count in counts if count]
    return f"{point.runs} ({', '.join(marks)})" if marks else str(point.runs)


def _mean(found: Spread | None) -> float | None:
    return None if found is None else found.mean


def _spread(found: Spread | None) -> tuple[str, str, str]:
    if found is None:
        return "-", "-", "-"
    interval = "-" if found.low is None else f"{share(found.low)} to {share(found.high)}"
    span = "-" if found.n < 2 else f"{share(found.least)} to {share(found.most)}"
    return share(found.mean), interval, span


def _profiles(run: ScoredRun) -> Iterator[Block]:
    """The same tokens by the definitions of other tools: a row per quantity, a few tools beside ours in each table."""
    found = run.profiles
    if found is None:
        return
    ours, *others = found.columns
    for at in range(0, max(1, len(others)), TOOLS):
        columns, last = [ours, *others[at : at + TOOLS]], at + TOOLS >= len(others)
        heads = ("", *(clean(column.name, 20) for column in columns), *(["apart"] if last else []))
        rows = []
        for key, name in QUANTITIES.items():
            values = [column.values.get(key) for column in columns]
            if any(value is not None for value in values):
                apart = [_relative(found.apart.get(key))] if last else []
                rows.append((name, *(_quantity(key, value, values) for value in values), *apart))
        for name in dict.fromkeys(name for column in columns for name in column.said):
            of = [column.said.get(name) for column in columns]
            cells = ("" if v is None else ("yes" if v else "no") if "within" in name else share(v) for v in of)
            rows.append((name, *cells, *([""] if last else [])))
        yield Table("definitions of other tools, from the same tokens", heads, tuple(rows))
    notes = tuple(
        (clean(column.name, 20), clean(column.tool, 40), "; ".join(column.notes))
        for column in found.columns
        if column.notes
    )
    if notes:
        yield Table("what each definition differs in", ("definition", "tool", "notes"), notes, left=3)
    if found.left_out:
        names = clean(", ".join(found.left_out))
        yield f"These tools know bounds on ttft, tpot and e2e of every request; not used: {names}."
    if not found.limits:
        yield "No bound on ttft, tpot or e2e, so there is no attainment to compare: add --slo ttft=0.25,tpot=0.1"


def _quantity(key: str, value: float | None, row: Sequence[float | None]) -> str:
    if value is None:
        return "-"
    if key.endswith("_s"):
        unit = _format.unit_of(row)
        return f"{_format.in_unit(value, unit)} {unit}"
    if key == "attainment":
        return share(value)
    return f"{value:,.0f}" if key in ("good", "of") else number(value)


def _relative(value: float | None) -> str:
    return "" if value is None else "0" if value < SAME else f"{value * 100:.2g}%"


def _figure(name: str, *of: Any) -> go.Figure | str:
    """The one place that draws: 'scale' and 'plane' of a run, 'curve' over the rate."""
    from reports.figures import curves, planes, scale
    from reports.study import of_curve

    if name == "curve":
        return curves.attainment_rate(of_curve(*of))
    return scale.of_answer(*of) if name == "scale" else planes.of_answer(*of)


def _commands(info: SloAnswer, path: Path) -> Iterator[str]:
    """The scores again (other options are not stored), and the answer as text."""
    slos = dict.fromkeys(slo.text for run in info.runs for slo in run.slos)
    if len(info.runs) <= APART:
        words = [shlex.quote(clean(run.path, None)) for run in info.runs]
        words += [f"--slo {shlex.quote(clean(text, None))}" for text in slos if text != "no bound"]
        yield " ".join(["bench slo", *words])
    yield f"bench report {shlex.quote(clean(path.name, None))} --format text"


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
            yield from ((text, "reached", *of) for of in (
                ("joint", goal, None, int(slo.joint[i])), ("separate", goal, None, int(slo.separate[i])),
            ))  # fmt: skip
        yield text, "goodput_rps", "all", None, None, slo.goodput_rps
        for bound in slo.bounds:
            yield text, "attainment", bound.text, None, None, bound.attainment
        if (scale := slo.scale) is not None:
            for row in zip(scale.factors, scale.attainment, scale.goodput_rps, strict=True):
                yield text, "attainment", "scale", row[0], None, row[1]
                yield text, "goodput_rps", "scale", row[0], None, row[2]
        if slo.tokens is not None:
            yield text, "token_goodput_tps", "all", None, None, slo.tokens.token_goodput_tps
            yield text, "tokens_in_time", "all", None, None, slo.tokens.share
    if (plane := run.plane) is not None:
        of = f"plane: {', '.join(plane.metrics)}"
        for i, limit in enumerate(plane.limits_s[0]):
            for j, other in enumerate(plane.limits_s[1]):
                yield "", "attainment", of, limit, other, plane.attainment[i][j]
                yield "", "goodput_rps", of, limit, other, plane.goodput_rps[i][j]
    for found in run.groups:
        for group in found.groups:
            of = f"{found.by}: {group.name}"
            for text, value in zip(found.slos, group.attainment, strict=True):
                yield text, "attainment", of, None, None, value
    for column in run.profiles.columns if run.profiles else ():
        yield from (("", name, column.name, None, None, value) for name, value in column.values.items())

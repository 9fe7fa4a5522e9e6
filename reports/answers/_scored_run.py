"""The tables and figures of one run in the report of `bench slo`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.experiments.rescore.slo_json import Groups, ScoredRun, SloAnswer, SloScore
from harness.metrics.measure import headline
from harness.validity.remote import undecided
from reports import _format
from reports._format import clean, number, percent, share
from reports.document import Block, Table

TOOLS = 5
"""Columns of other tools side by side."""
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


def of_run(run: ScoredRun, info: SloAnswer) -> Iterator[Block]:
    """The tables of one run, the first of which names it."""
    yield _measured(run, info)
    if not run.measured:
        return
    yield from (text for name, text in LACKS.items() if name in run.missing)
    yield _scores(run, info)
    reached = [
        (clean(slo.text), name, "at no scale" if at is None else number(at))
        for slo in run.slos if slo.scale is not None
        for name, at in (*zip(map(percent, run.goals), slo.scale.crossings, strict=True), *slo.scale.holds_from.items())
    ]  # fmt: skip
    if reached:
        caption = "lowest scale at which a goal is met, every bound times the scale"
        yield Table(caption, ("SLO", "goal or bound", "from scale"), tuple(reached), 2)
    for slo in run.slos:
        yield from _scale(slo)
        yield from _tokens(slo, unknown=run.failed if run.source else 0)
    yield from map(_groups, run.groups)
    yield from _profiles(run)


def opening(run: ScoredRun) -> str:
    """What a run is, and of how many requests."""
    what = f"{clean(run.name, 60)} of {clean(run.tool, 30)}"
    if not run.tool:
        names = (clean(run.workload or run.name, 60), clean(run.backend.partition(":")[0], 30))
        what = " on ".join(filter(None, names))
    parts = [what, f"{number(run.sent_rps)} req/s", f"{run.measured:,} measured requests"]
    parts += [f"{run.left_out:,} before the cut"] if run.left_out else []
    parts += [f"seed {clean(run.seed, 20)}"] if run.seed is not None else []
    return f"{', '.join(parts)} ({clean(run.path, 100)})"


def _measured(run: ScoredRun, info: SloAnswer) -> Table:
    timed = {
        f"{metric.label} {statistic}": value
        for metric in headline()
        if (latency := run.latencies.get(metric.name)) is not None
        for statistic, value in (("p50", latency.p50), ("p99", latency.p99))
    }
    heads = ("throughput (req/s)", "output (tokens/s)", "failed", *timed)
    values = (number(run.throughput_rps), number(run.output_tps), f"{run.failed:,}")
    times = ("-" if value is None else _format.seconds(value) for value in timed.values())
    return Table(opening(run) if len(info.runs) > 1 else "the run", heads, ((*values, *times),), left=0)


def met_or_missed(slo: SloScore, info: SloAnswer) -> list[str]:
    """For each goal; "unresolved" where the client's error, or answers that were held back, decide."""
    goals = zip(slo.reached(info.conditions), info.runs[0].goals, strict=True)
    return ["unresolved" if undecided(slo.resolution, goal) else "met" if met else "missed" for met, goal in goals]


def binding(slo: SloScore) -> str:
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
        rows.append((clean(slo.text), binding(slo), *values, *met_or_missed(slo, info)))
        for bound in slo.bounds:
            if bound.percentile is not None:
                value = "never" if bound.value_s is None else _format.seconds(bound.value_s)
                text = f"- {clean(bound.text)}: {value}, {'met' if bound.passed else 'missed'}"
                rows.append((text, "", share(bound.attainment, goals[0])))
            elif len(slo.bounds) > 1:
                rows.append((f"- {clean(bound.text)}", "", share(bound.attainment, goals[0])))
        for name, part in slo.classes.items() if len(slo.classes) > 1 else ():
            rows.append((f"- class {clean(name, 40)}", "", share(part, goals[0])))
        if (task := slo.tasks) is not None:
            goodput = f"{number(task.goodput_tasks_rps)} tasks/s"
            rows.append((f"- {task.tasks:,} tasks, as a whole", "", share(task.attainment), goodput))
        if slo.resolution is not None and slo.resolution.unresolved:
            ends = " to ".join(map(share, slo.resolution.attainment or ())) or "-"
            rows.append((f"- unresolved: {clean(', '.join(slo.resolution.unresolved))}", "", ends))
    full = tuple((*row, *[""] * (len(heads) - len(row))) for row in rows)
    return Table("SLOs and their bounds", heads, full, left=2)


def _scale(slo: SloScore) -> Iterator[Table]:
    """Attainment at each factor."""
    curve = slo.scale
    if curve is None or not curve.factors:
        return
    names = list(curve.bounds) if len(curve.bounds) > 1 else []
    rows = tuple(
        (number(factor), share(curve.attainment[i]), number(curve.goodput_rps[i]),
         *(share(curve.bounds[name][i]) for name in names))
        for i, factor in enumerate(curve.factors)
    )  # fmt: skip
    heads = ("SLO scale", "attainment", "goodput (req/s)", *(f"{clean(name, 30)} alone" for name in names))
    yield Table(f"{clean(slo.text)}, every bound times the scale", heads, rows)


def _tokens(slo: SloScore, unknown: int) -> Iterator[Block]:
    """Goodput in tokens, per class where there are several; `unknown`: failed requests of unknown output length."""
    score = slo.tokens
    if score is None:
        return
    heads = ("", "tokens in time", "token goodput (tokens/s)", "service 1:8", "service 0:1")
    rows = tuple(
        (clean(name, 40), share(part.share), number(part.token_goodput_tps),
         *(number(part.service[weights]) for weights in ("1:8", "0:1")))
        for name, part in (("all", score), *((f"class {name}", part) for name, part in score.classes.items()))
    )  # fmt: skip
    yield Table(f"{clean(slo.text)}, token by token", heads, rows)
    whole_tps = score.whole_answers_tps
    yield (
        "Token k is due at the bound on TTFT + k times that on TPOT; other bounds hold for all tokens of a request. "
        "Service a:b is a x good prompt tokens + b x good output tokens per second."
        + ("" if whole_tps is None else f" Requests that met every bound have {number(whole_tps)} tokens/s.")
    )
    if unknown:
        yield "The file does not hold how many tokens the failed requests were to have: none are missing."


def _groups(found: Groups) -> Table:
    """A row per group, a column per SLO."""
    single, unit = len(found.slos) == 1, UNITS.get(found.by)
    names = list(found.groups[0].bounds[0]) if single and found.groups else []
    names = names if len(names) > 1 else []
    rows = tuple(
        (clean(group.name.removesuffix(f" {unit}"), 40), f"{group.requests:,}", *map(share, group.attainment),
         *(share(group.bounds[0][name]) for name in names), number(group.goodput_rps[0]),
         *map(_format.seconds, (ttft.p50, ttft.p99, tpot.p99)))
        for group in found.groups for ttft, tpot in [(group.latencies["ttft"], group.latencies["tpot"])]
    )  # fmt: skip
    head = found.by if unit is None else f"{found.by} ({unit})"
    heads = (head, "requests", *(["attainment"] if single else [clean(slo, 30) for slo in found.slos]),
             *(clean(name, 24) for name in names), "goodput (req/s)", "TTFT p50", "TTFT p99", "TPOT p99")  # fmt: skip
    note = ONE_GROUP.get(found.by) if len(rows) == 1 else None
    caption = f"by {found.by}; {note or 'goodput is the part of each group in that of the run'}"
    return Table(caption, heads, rows, left=1 if unit is None else 0)  # ranges of numbers do not break


def _profiles(run: ScoredRun) -> Iterator[Block]:
    """The same tokens by the definitions of other tools: a row per quantity, a few tools beside ours in each table."""
    compared = run.profiles
    if compared is None:
        return
    bench_column, *others = compared.columns
    for begin in range(0, max(1, len(others)), TOOLS):
        columns, last = [bench_column, *others[begin : begin + TOOLS]], begin + TOOLS >= len(others)
        heads = ("", *(clean(column.name, 20) for column in columns), *(["apart"] if last else []))
        rows = []
        for key, name in QUANTITIES.items():
            values = [column.values.get(key) for column in columns]
            if any(value is not None for value in values):
                gap = [_relative(compared.apart.get(key))] if last else []
                rows.append((name, *(_quantity(key, value, values) for value in values), *gap))
        for name in dict.fromkeys(name for column in columns for name in column.more):
            extras = [column.more.get(name) for column in columns]
            cells = ("" if v is None else ("yes" if v else "no") if "within" in name else share(v) for v in extras)
            rows.append((name, *cells, *([""] if last else [])))
        yield Table("definitions of other tools, from the same tokens", heads, tuple(rows))
    notes = tuple(
        (clean(column.name, 20), clean(column.tool, 40), "; ".join(column.notes))
        for column in compared.columns
        if column.notes
    )
    if notes:
        yield Table("what each definition differs in", ("definition", "tool", "notes"), notes, left=3)
    if compared.left_out:
        names = clean(", ".join(compared.left_out))
        yield f"These tools know bounds on ttft, tpot and e2e of every request; not used: {names}."
    if not compared.limits:
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

"""The report of a run: verdict, key figures, latencies with their bounds, and what shows how reliable they are."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from harness.data.folder import Run
from harness.data.run_json import RunInfo
from harness.metrics.measure import run_metrics
from harness.metrics.resources import resources
from harness.metrics.summary import percentiles_of
from harness.validity.remote import is_remote
from reports import _cluster, _data, _format, _rows, _sending, _system, _verdict, figures
from reports._format import clean, sentence
from reports._rows import Result, Row
from reports._system import first
from reports.document import Block, Cell, Document, Figure, Finding, Markup, Notice, Section, Table

KEY_FIGURES = ("slo_scale", "latency_cdf", "timeline")
"""Figures that stand open on the page; the others are folded."""
FLOOR = "client floor p50 / p99"
SHOWN_WITHOUT_STEPS = frozenset({"ttft_answer", "response_hits", "cache_found", "cache_best", "cache_prompts"})
OF_CACHE = frozenset({"cache_found", "cache_best", "cache_prompts"})
"""Already beside the throughput, where the backend is a built-in one with a prefix cache."""
NARROW = ("max", "mean", FLOOR, "p90", "p50")
"""Columns that a narrow window does without, first choice first."""
GROWN = (
    "<strong>The queue grew throughout the run:</strong> latencies and goodput in these figures depend on the length "
    "of the run, not only on the system."
)

GOAL_OF_P90 = 0.94
"""Up to this goal the p90 of a latency is nearest to what decides, beyond it the p99."""


def document(run: Run) -> Document:
    """The report of a run, a killed one too; figures are drawn by the page alone."""
    run = _data.summarized(run)
    result = _rows.result(_data.measured(run))
    word, state = _verdict.state(run)
    mark = _verdict.mark(run, result)
    workload = clean(run.info.source.name or run.info.workload.name or "", 600) or "workload"
    day = clean(run.info.started or "")[:10]
    by = "by" if run.info.source else "on"
    # Where times and lengths come from, how many requests were recorded, the seed and the time they took.
    requests = _format.count(run.requests.num_rows, "request")
    if run.info.source and not run.info.source.per_request:
        requests = f"aggregates of {_format.count(run.info.summary.requests or 0, 'request')}"
    seed = "" if run.info.seed is None else f"seed {clean(run.info.seed)}"
    texts = [*_system.source(run.info.workload, run.info.spec), requests, seed, _rows.span(run.info)]
    return Document(
        title=f"{workload} {by} {_backend_name(run.info)}" + (f", {day}" if day else ""),
        subtitle=", ".join(text for text in texts if text),
        mark=mark.text,
        good=mark.good,
        findings=(Finding(_verdict.answer(run, result), mark.good, (state,)),),
        numbers=tuple(_numbers(run.info, result)),
        key_facts=tuple(_key_facts(run, result)),
        warnings=tuple(_warnings(run.info, word)),
        sections=tuple(_sections(run, result)),
        next=_verdict.advice(run, result),
        commands=_system.commands(run),
        used=_system.used(run),
    )


def _backend_name(info: RunInfo) -> str:
    spec = clean(info.spec.get("backend") or "", 60)
    return first(info.backend, "backend", "name") or spec.partition(":")[0] or "backend"


def _numbers(info: RunInfo, result: Result) -> Iterator[tuple[str, str]]:
    """Attainment and goodput, and TTFT and TPOT at the percentile that the goal is near."""
    if result.attainment is not None:
        yield "within the SLO", _format.share(result.attainment, result.goal)
    if (goodput_rps := info.summary.goodput_rps) is not None and not result.overloaded:
        yield "goodput", f"{_format.number(goodput_rps)} req/s"
    target = 99.0 if result.goal > GOAL_OF_P90 else 90.0
    percentile = min(percentiles_of(info.spec), key=lambda shown: abs(shown - target))
    for row in result.rows:
        if row.name in ("TTFT", "TPOT") and row.values["mean"]:
            yield f"{row.name} p{percentile:g}", f"{row.values[f'p{percentile:g}']} {row.unit}"


def _key_facts(run: Run, result: Result) -> Iterator[tuple[str, str]]:
    info = run.info
    yield "SLO", result.slo_text
    yield "System", _system.system(info.backend, info.host) or _backend_name(info)
    yield "Step times", _system.step_times(info.step_times, info.backend)
    yield "Rate", _sending.rate(info)
    yield "Trace", _trace(info.workload.provenance)
    yield "Warm-up", _verdict.warmup(run)
    yield "Interval", "" if result.total == 0 else _verdict.interval(info)
    yield "Throughput", ", ".join(_rows.flow(_data.measured(run), result))
    yield "Deployment", "" if result.overloaded else ", ".join(_per_unit(info))
    yield "Router", _cluster.line(run)
    if not result.overloaded and (_data.has_steps(run) or not SHOWN_WITHOUT_STEPS.isdisjoint(info.summary.run_metrics)):
        yield "Variation", ", ".join(_variation(info))
    yield "Requests", _rows.counts(info)
    yield "In flight", _sending.in_flight(run)
    if is_remote(run):
        yield "Misses", _data.missed(_data.measured(run))
        yield "Prompts", _sending.prompts(run)
    yield "Sending", _sending.fidelity(info)
    if info.virtual:
        yield "Client floor", "none: time is simulated"
    elif is_remote(run):
        yield "Client floor", _sending.floor_text(info)


def _per_unit(info: RunInfo) -> Iterator[str]:
    """Output per GPU, kW and dollar, where the facts of the deployment are given."""
    output = info.summary.output_tps
    if output is None or not (info.backend.keys() & {"watts", "usd_per_hour"} or info.backend.get("url")):
        return
    takes = resources(info.backend)
    if takes.gpus:
        yield f"{_format.number(output / takes.gpus)} output tokens/s per GPU ({_format.count(takes.gpus, 'GPU')})"
    if takes.kw:
        yield f"{_format.number(output / takes.kw)} per kW"
    if takes.usd_per_hour and output:
        yield f"{_format.number(takes.usd_per_hour / (3600 * output) * 1e6)} USD per million output tokens"


def _trace(facts: Mapping[str, object]) -> str:
    """The rows of a replayed trace, or the clients of a pool, where some were left out, added or changed."""
    if gone := facts.get("clients_without_tokens"):
        return clean(f"{facts.get('clients')} clients of the pool; left out, without token counts: {gone}", 600)
    losses = [f"{name} {text}" for name, text in _system.losses(facts)]
    if not losses and not any(facts.get(name) for name in ("dropped", "left_out", "added")):
        return ""
    return "; ".join([f"rows {_system.account(facts)}", *losses])


def _variation(info: RunInfo) -> Iterator[str]:
    """The metrics of the run as a whole: the mean where there are several values, and the largest."""
    metrics, own_cache = info.summary.run_metrics, info.backend.get("prefix_cache") is True
    for name, metric in run_metrics().items():
        if (values := metrics.get(name)) is not None and not (own_cache and name in OF_CACHE):
            unit = metric.unit if metric.unit in ("s", "share", "tokens") else ""
            mean, most = (_format.with_unit(value, unit) for value in (values.mean, values.max))
            yield f"{metric.label} {mean}" + (f" (max {most})" if (values.n or 0) > 1 else "")


def _warnings(info: RunInfo, word: str) -> Iterator[Notice]:
    """One for each cause and remedy; what the verdict says already is left out."""
    in_verdict = {_verdict.OVERLOADED: "overload", _verdict.FAILED: "max-failed"}.get(word)
    causes: dict[tuple[str | None, str], list[str]] = {}
    for warning in info.warnings or ():
        if in_verdict is None or warning.code != in_verdict:
            texts = causes.setdefault((warning.code, sentence(warning.remedy, 400)), [])
            texts.append(sentence(warning.message, 600))
    for (_, remedy), messages in causes.items():
        yield Notice(" ".join(dict.fromkeys(messages)), remedy)


def _sections(run: Run, result: Result) -> Iterator[Section]:
    aggregates = run.info.source.per_request is False  # of another tool, which can never show them
    drawn = {} if aggregates else {figure.key: (figure, section) for figure, section in figures_of(run)}
    fidelity = [figure for figure, section in drawn.values() if section == figures.FIDELITY]
    key = [drawn.pop(name)[0] for name in KEY_FIGURES if name in drawn]
    others = [figure for figure, section in drawn.values() if section != figures.FIDELITY]
    classes = tuple(_rows_table(note, rows) for note, rows in _rows.classes(_data.measured(run), result))
    latency = [_latencies(run, result)]
    if errors := tuple(_rows.errors(_data.measured(run).requests)):
        latency.append(Table("errors of the backend, the most frequent first (N: numbers that differ)",
                             ("status", "error", "requests"), errors, left=2))  # fmt: skip
    yield Section("percentiles", "Latency", tuple(latency))
    yield Section("figures", "Figures", (*_notes(run, result), *key))
    yield Section("cluster", "What the router did", (_cluster.table(run),) if _cluster.done(run) else ())
    yield Section("classes", "By class of traffic", classes, detail=True)
    yield Section("more", "More figures", tuple(others), detail=True)
    yield Section(figures.FIDELITY, "Was the workload sent as declared?", (*_checks(run.info), *fidelity), detail=True)
    facts = _sending.client(run)
    client = (Table("The client that measured", ("", ""), facts, left=2, words=1),) if facts else ()
    yield Section("client", "The client", client, detail=True)
    yield Section("server", "The server's own metrics", tuple(_server(run)), detail=True)


def _latencies(run: Run, result: Result) -> Table:
    note = f"Latencies of {_format.count(result.ok, 'request')} that ended well"
    if result.overloaded:
        note = "No latencies: the queue grew throughout the run, so they would depend on its length"
    if not result.bounded:
        return _rows_table(note, result.rows)
    undecided = run.info.resolution.undecided
    goal = "" if result.attainment is None else f"goal {result.goal * 100:g}%"
    met = _format.share(result.attainment, result.goal)
    if result.broken:
        met = "missed" if result.attainment is None else f"missed ({met})"
    elif result.passed and result.attainment is None:  # all bounds are on percentiles of the run
        met = "met"
    met += " unresolved" if undecided else ""
    return _rows_table(note, result.rows, goal, Cell(met, good=None if undecided else result.passed))


def _rows_table(note: str, rows: Sequence[Row], goal: str = "", within: Cell | None = None) -> Table:
    """A row for each metric and bound, and one of all bounds where `within` has their share."""
    heads: tuple[str, ...] = ("metric", "unit", *rows[0].values, "bound", "within")
    cells: list[tuple[str | Cell, ...]] = [
        (row.name, row.unit, *row.values.values(), row.bound, Cell(row.met, good=False if row.missed else None))
        for row in rows
    ]
    floors = [row.floor for row in rows]
    if within is not None:
        cells.append(("all bounds", *[""] * (len(heads) - 3), goal, within))
        floors.append("")
    if any(floors):
        heads, cells = (*heads, FLOOR), [(*row, floor) for row, floor in zip(cells, floors, strict=True)]
    return Table(note, heads, tuple(cells), left=2, narrow=NARROW)


def _notes(run: Run, result: Result) -> Iterator[Markup]:
    """What a reader of the figures must know; like them, it is on the page alone."""
    if run.info.source.per_request is False:
        yield Markup(f"<p>{_data.AGGREGATES}</p>")
    elif result.overloaded:
        yield Markup(f"<p>{GROWN}</p>")


def figures_of(run: Run) -> Iterator[tuple[Figure, str]]:
    """Give the figures of a run, each with its section."""
    measured = _data.measured(run)
    for row in figures.of("run").values():
        if not row.part or run.info.backend.get(row.part):
            yield Figure(row.key, row.title, partial(row.draw, run if row.over_time else measured)), row.section


def _checks(info: RunInfo) -> Iterator[Block]:
    rows = []
    for check in info.checks or ():
        name, state, finding, remedy = (
            clean(text or "", 600) for text in (check.check, check.state, check.text, check.remedy)
        )
        cell = Cell("not checked" if state == "unknown" else state, good=False if state == "failed" else None)
        rows.append((name, cell, finding, remedy))
    if rows:
        caption, heads = "checks of the run; one that fails makes it not valid", ("check", "state", "found", "remedy")
        yield Table(caption, heads, tuple(rows), left=2, words=2)


def _server(run: Run) -> Iterator[Block]:
    note, rows = _sending.server_note(run), tuple(map(_sending.side, run.info.server.compared or ()))
    if not rows:
        if note:
            yield f"{note}."
        return
    yield Table(note, ("quantity", "unit", "client", "server", "difference", ""), rows, left=2, words=1)
    yield "Both sides count from when a request was sent; a difference above 5% or the client's floor is marked."

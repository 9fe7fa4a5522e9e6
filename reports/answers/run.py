"""The report of a run: verdict, latencies with bounds, key figures, and what says how far to trust them."""

from collections.abc import Iterator, Sequence
from functools import partial

from harness.data.folder import Run
from harness.metrics.measure import headline
from reports import _data, _format, _scaled, _sending, _sliders, _verdict, _view, figures
from reports._rows import Row
from reports._system import Facts
from reports._view import View
from reports.document import Block, Cell, Command, Document, Figure, Finding, Markup, Notice, Section, Table

KEY_FIGURES = ("slo_scale", "latency_cdf", "timeline")
"""Figures that stand open on the page; the others are folded."""
NARROW = ("max", "mean", "p90", "p50", "client floor p50 / p99")
"""Columns that a narrow window does without, first choice first."""
GROWN = (
    "<strong>The queue grew all through the run:</strong> latencies and goodput in these figures tell how long the run "
    "was, not how fast the system is."
)
EVERY_VALUE = "The tables of figures hold at most some of the points; every value is in the Parquet files of the run."


def document(run: Run) -> Document:
    """The report of a run, a killed one too; figures are drawn by the page alone."""
    view = _view.view(run)
    state = f"{view.word}, {view.qualified}." if view.qualified else f"{view.word}: {view.verdict}"
    notes = () if view.word == view.mark.text and not view.verdict else (state,)
    return Document(
        title=view.title,
        subtitle=view.traffic,
        mark=view.mark.text,
        good=view.mark.good,
        findings=(Finding(view.answer, view.mark.good, notes),),
        key_facts=tuple(_key_facts(run, view)),
        warnings=tuple(Notice(warning.message, warning.remedy) for warning in view.warnings),
        sections=tuple(section for section in _sections(run, view) if section.blocks),
        next=Command(view.next.text, view.next.command),
        commands=view.commands,
        used=view.facts,
        definitions=view.definitions,
    )


def _key_facts(run: Run, view: View) -> Iterator[tuple[str, str]]:
    yield from view.heads
    if view.interval:
        yield "Interval", view.interval
    yield "Throughput", view.flow
    yield "Requests", ", ".join(f"{count} {status} ({share})" for status, count, share in view.counts)
    yield "Sending", view.fidelity
    if run.info.virtual:
        yield "Client floor", "none: time is simulated"
    elif view.client:
        floors = _sending.floors(run.info)
        known = [(metric.label, floors[metric.name]) for metric in headline() if metric.name in floors]
        shown = (f"{name} {_format.seconds(f.p50_s)} (p50), {_format.seconds(f.p99_s)} (p99)" for name, f in known)
        if known:
            yield "Client floor", "; ".join(shown)
        yield "Client", view.client_line
        yield "Server", view.server_line


def _sections(run: Run, view: View) -> Iterator[Section]:
    drawn = dict(_figures(run))
    fidelity = [figure for figure, section in drawn.values() if section == figures.FIDELITY]
    key = [drawn.pop(name)[0] for name in KEY_FIGURES if name in drawn]
    others = [figure for figure, section in drawn.values() if section != figures.FIDELITY]
    sliders = _sliders.of_run(_data.measured(run))
    classes = tuple(_rows(group.note, group.rows, view) for group in view.classes)
    advice = tuple(Command(one.text, one.command) for one in _verdict.several_rates(run))
    yield Section("percentiles", "Latency", (*_latencies(view), *_errors(view)))
    yield Section("figures", "Figures", (*_curve(run), *_caution(run, view), *key))
    yield Section("classes", "By class of traffic", classes, detail=True)
    yield Section("more", "More figures", (*([sliders] if sliders else []), *others), detail=True)
    yield Section("rates", "Other rates", advice, detail=True)
    yield Section(figures.FIDELITY, "Was the workload sent as declared?", (*_checks(view), *fidelity), detail=True)
    yield Section("client", "The client", _facts("The client that measured", view.client), detail=True)
    yield Section("server", "The server's own metrics", tuple(_server(view)), detail=True)
    yield Section("ran", "What was run", _facts("What was run", view.ran), detail=True)


def _caution(run: Run, view: View) -> Iterator[Markup]:
    """What a reader of the figures must know; it stands on the page alone, as they do."""
    if run.info.source.per_request is False:
        yield Markup(f"<p>{_data.AGGREGATES}</p>")
        return
    if view.overloaded:
        yield Markup(f"<p>{GROWN}</p>")
    yield Markup(f"<p>{EVERY_VALUE}</p>")


def _figures(run: Run) -> Iterator[tuple[str, tuple[Figure, str]]]:
    """Key -> figure and its section; what another tool's aggregates can never show is left out."""
    measured = _data.measured(run)
    for row in () if run.info.source.per_request is False else figures.of("run").values():
        shown = run if row.over_time else measured
        yield row.key, (Figure(row.key, row.title, partial(row.draw, shown)), row.section)


def _latencies(view: View) -> Iterator[Block]:
    together: tuple[str | Cell, ...] = ("all bounds", *[""] * 6, view.goal, Cell(view.met, good=view.kept))
    yield _rows(view.rows_note, view.rows, view, [together] if view.bounded else [])


def _rows(note: str, rows: Sequence[Row], view: View, more: Sequence[tuple[str | Cell, ...]] = ()) -> Table:
    heads = ("metric", "unit", "mean", "p50", "p90", "p99", "max", "bound", "within")
    found: list[tuple[str | Cell, ...]] = []
    for row in rows:
        within = Cell(row.met, good=False if row.missed else None)
        found.append((row.name, row.unit, row.mean, row.p50, row.p90, row.p99, row.max, row.bound, within))
    found += more
    if not view.floors:
        return Table(note, heads, tuple(found), left=2, narrow=NARROW)
    floors = [*(row.floor for row in rows), *("" for _ in more)]
    table = tuple((*row, floor) for row, floor in zip(found, floors, strict=True))
    return Table(note, (*heads, "client floor p50 / p99"), table, left=2, narrow=NARROW)


def _errors(view: View) -> Iterator[Table]:
    if view.errors:
        rows = tuple((error.status, error.text, error.count) for error in view.errors)
        yield Table("errors of the backend, the most frequent first (N: numbers that differ)",
                    ("status", "error", "requests"), rows, left=2)  # fmt: skip


def _curve(run: Run) -> Iterator[Block]:
    if (curve := _scaled.curve(run)) is not None:
        yield curve


def _checks(view: View) -> Iterator[Block]:
    yield f"Sending: {view.fidelity}"
    if view.checks:
        rows = tuple(
            (check.name, Cell(check.state, good=False if check.failed else None), check.said, check.remedy)
            for check in view.checks
        )
        yield Table("checks of the run; one that fails makes it not valid", ("check", "state", "found", "remedy"), rows,
                    left=2, words=2)  # fmt: skip


def _server(view: View) -> Iterator[Block]:
    if not view.server:
        if view.server_note:
            yield f"{view.server_note}."
        return
    rows = tuple(
        (side.name, side.unit, side.client, side.server, Cell(side.difference, good=False if side.apart else None),
         side.said) for side in view.server
    )  # fmt: skip
    heads = ("quantity", "unit", "client", "server", "difference", "")
    yield Table(view.server_note, heads, rows, left=2, words=1)
    yield "Both sides count from when a request left; a difference above 5% or the client's floor is marked."


def _facts(caption: str, facts: Facts) -> tuple[Block, ...]:
    return (Table(caption, ("", ""), facts, left=2, words=1),) if facts else ()

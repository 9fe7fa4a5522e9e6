"""The composition root: the only module of harness that imports workloads, backends and reports.

The commands and the Python API call it; each function imports what it needs when it is called, so that `bench --help`
stays light. Plug-ins are found by `harness.registry`, and everything else in harness knows nothing of the other three.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from harness import registry, termination
from harness.api import Omits
from harness.data import codec, files
from harness.errors import BenchError, NotReady, UsageError
from harness.experiments import answers
from harness.experiments.answers import Answer

if TYPE_CHECKING:
    import pyarrow as pa

    from backends.client.discover import Found
    from backends.server.run import Options, Running
    from harness.api import Loaded
    from harness.data.folder import Run
    from reports.document import Document
    from workloads.fit.command import Mode
    from workloads.fit.model import Model
    from workloads.trace_tools.download import Fetched, KnownTrace
    from workloads.traces import Trace

Content = str | bytes | Iterator[str] | Mapping[str, bytes | Iterator[str]]
"""A report in one form: text, a binary file, or several of them by name."""
EXPORTS = ("github-smaller", "github-bigger", "bencher", "pytorch")
"""Forms of a comparison that other tools read."""
_STANDS_FOR_FOLDER = ("sweep.json", "capacity.json")
"""Files that stand for the folder they are in, as run.json does."""


# Workloads and traces


def presets() -> list[str]:
    """Sorted names of the presets."""
    from workloads import catalog

    return catalog.presets()


def preset_text(name: str) -> str:
    """The TOML of a preset. Raises UsageError with the nearest known name."""
    from workloads import catalog

    return catalog.preset_text(name)


def explain_workload(name: str) -> str:
    """A readable text about a workload: what it is, classes, lengths, sessions, arrivals, SLO, where it is from."""
    from workloads import catalog

    return catalog.explain(name)


def load_workload(name: str, **parts: Any) -> Loaded:
    """The workload of a preset or of a lengths spec; `parts` are those of `workloads.catalog.load`."""
    from workloads import catalog

    return catalog.load(name, **parts)


def read_trace(file: str, **options: Any) -> Trace:
    """The slice of a trace that the options of `workloads.replay.read` choose."""
    from workloads import replay

    return replay.read(file, **options)


def trace_facts(trace: Trace, caches: Sequence[str]) -> dict[str, Any]:
    """Everything that `bench trace info` tells. Raises UsageError for a wrong spec of a cache."""
    from workloads.trace_tools import info

    return info.of(trace, caches)


def trace_picture(trace: Trace, facts: Mapping[str, Any]) -> dict[str, Any]:
    """What `traffic_page` draws a trace from."""
    from workloads.trace_tools import info

    return info.picture(trace, facts)


def trace_report(name: str, *about: Any, facts: object) -> Report:
    """The document of that name in `reports.answers.trace`, with its facts for json and csv."""
    from reports.answers import trace

    return Report(getattr(trace, name)(*about), facts, tuple(trace.rows(facts)))


def check_trace(file: str, **options: str | None) -> dict[str, Any]:
    """What is odd about a trace; see `workloads.trace_tools.check.of`."""
    from workloads.trace_tools import check

    return check.of(file, **options)


def convert_trace(file: str, target: str, *, sort: bool, force: bool, **options: str | None) -> tuple[int, Any]:
    """Write a trace in another form; the number of rows, and what is known of them."""
    from workloads.trace_tools import convert

    return convert.convert(file, target, sort=sort, force=force, **options)


def cut_trace(file: str, target: str, *, force: bool, **options: Any) -> Trace:
    """Write a slice of a trace."""
    from workloads.trace_tools import convert

    return convert.cut(file, target, force=force, **options)


def scale_trace(file: str, target: str, spec: str, *, seed: int, force: bool, **options: Any) -> Trace:
    """Write a trace under another load."""
    from workloads.trace_tools import convert

    return convert.scale(file, target, spec, seed=seed, force=force, **options)


def write_trace(
    target: str,
    tables: Iterable[pa.Table],
    about: Mapping[str, object],
    *,
    force: bool,
    block_tokens: int | None = None,
) -> int:
    """Write the rows of a trace, and where they come from; returns how many there are."""
    from workloads.trace_tools import write

    return write.write(target, tables, lambda: {"source": about}, block_tokens=block_tokens, force=force)


def schedule_as_trace(schedule: pa.Table) -> tuple[pa.Table, int]:
    """The columns of a trace from those of a schedule, and the tokens of the blocks that it names."""
    from workloads.trace_tools import write

    return write.trace_table(schedule), write.block_tokens(schedule)


def public_traces() -> dict[str, KnownTrace]:
    """The public traces that can be fetched, by name."""
    from workloads.trace_tools import download

    return download.sources()


def public_trace(name_or_url: str) -> KnownTrace:
    """One of them, or what is at a URL. Raises UsageError with the nearest known name."""
    from workloads.trace_tools import download

    return download.find(name_or_url)


def download_trace(
    name: str,
    folder: Path,
    *,
    force: bool,
    timeout_s: float | None,
    note: Callable[[str], None],
    progress: Callable[[int, int | None], None],
) -> Fetched:
    """Fetch a public trace, and check its hash; `timeout_s` None or 0: as long as is usual."""
    from workloads.trace_tools import download
    from workloads.trace_tools.download import Watch

    watch = Watch(note=note, progress=progress)
    return download.download(name, folder, force=force, watch=watch, timeout_s=timeout_s or download.TIMEOUT_S)


def fit_trace(trace: Trace, *, mode: str | None, window_s: float | None) -> Model:
    """A model of a trace, with its quality; no mode: the one that fits. Raises UsageError for an unknown mode."""
    from workloads.fit import command

    return command.fit_trace(trace, mode=cast("Mode | None", mode), window_s=window_s)


def load_model(path: str) -> Model:
    """A model that `fit_trace` made. Raises UsageError for a file that holds none."""
    from workloads.fit.model import Model

    return Model.load(path)


def draw_model(model: Model, **options: Any) -> Iterable[pa.Table]:
    """Rows of a trace drawn from a model; the options are those of `workloads.fit.command.tables`."""
    from workloads.fit import command

    return command.tables(model, **options)


def draw_sessions(model: Model, **options: Any) -> Trace:
    """Whole sessions drawn from a model that has them; the options are those of `workloads.fit.command.sessions`."""
    from workloads.fit import command

    return command.sessions(model, **options)


def dropped_by_model(model: Model, name: str, *, whole: bool = False) -> list[str]:
    """What a model does not draw of the trace it was fitted to, in single requests or whole sessions, as sentences."""
    from workloads.fit import command

    return command.left_out(model.source) if whole else command.dropped(model.services, model.source, name)


# Backends


def serve(options: Mapping[str, Any], note: Callable[[str], None], ready: Callable[[Running], None]) -> None:
    """Serve OpenAI's API until it is stopped; `options` are the fields of `backends.server.run.Options`."""
    from backends.server import run

    made: Options = run.Options(**options)
    run.serve(made, note, ready)


def find_server(url: str | None, model: str | None, needed: str | None = None) -> Found | None:
    """A server with OpenAI's API that answers; see `backends.client.discover.find`.

    Raises NotReady, with the sentence `needed`, where there is none and that is given.
    """
    from backends.client import discover

    server = termination.run(discover.find(url, model))
    if server is None and needed is not None:
        raise NotReady(needed)
    return server


def hidden_in_command(words: Sequence[str]) -> Callable[[str], str]:
    """What hides the secrets that a command line and the environment hold."""
    from backends.client import secrets

    return secrets.of_command(words, os.environ).text


def core_is_compiled() -> bool:
    """Whether the serving core runs as a C extension."""
    from backends.serving import replica

    return not replica.__file__.endswith(".py")


def has_kernel_stamps() -> bool:
    """Whether the kernel tells when bytes arrive."""
    from backends.client import stamps

    return stamps.kernel_stamps()


# Reports of runs


def render_run(form: str, run: Run, **given: object) -> Any:
    """A report of a run in the form of that name (`html`, `text`, `json`, ...)."""
    return registry.make("reports", form, **given).render(run)


def omitted(form: str) -> str | None:
    """What a format of another tool cannot hold of a run, in one line; None of our own formats."""
    name = form.partition(":")[0]
    made = registry.make("reports", form) if name in registry.names("reports") else None
    return made.omits if isinstance(made, Omits) else None


def run_document(run: Run) -> Document:
    """The report of a run, for a page."""
    from reports.answers import run as reported

    return reported.document(run)


def run_figures(run: Run) -> dict[str, Callable[[], Any]]:
    """The figures of a run by name: each a plotly figure when called, or the sentence that says what is missing."""
    from reports import figures

    measured, rows = figures.measured(run), {**figures.of("run"), **figures.of("cluster")}
    whole = {name: row.section == figures.FIDELITY or row.over_time for name, row in rows.items()}
    return {name: partial(row.draw, run if whole[name] else measured) for name, row in rows.items()}


def report_path(run: Run, ending: str = "html") -> Path:
    """Where the report of a run stands: in its folder, or beside the file that it was read from."""
    from harness.experiments import imports

    if imports.is_foreign(run):
        name = "-".join(re.findall(r"[^\s()]+", run.info.source.name or ""))  # of several in a file: "all.json-1-of-2"
        return run.path.with_name(f"{name}.report.{ending}")
    return run.path / f"report.{ending}"


def write_run_page(run: Run, say: Callable[[str], None]) -> Path | None:
    """Write report.html into the folder of a run, FILE.report.html beside the file of another tool.

    A failure is reported by `say`; it never costs the data.
    """
    return _write_kept(report_path(run), lambda: str(render_run("html", run)), say, run.path)


# Results of commands


@dataclass(frozen=True, slots=True)
class Report:
    """A result that is neither a run nor an answer that is stored: its document, facts for json and rows for csv."""

    document: Document
    facts: object
    rows: Sequence[Mapping[str, object]]


def table_report(title: str, rows: Sequence[Mapping[str, str]]) -> Report:
    """The report of rows of texts that have the same columns."""
    from reports.document import Document, Section, Table

    heads = tuple(rows[0]) if rows else ()
    table = Table("", heads, tuple(tuple(row.values()) for row in rows), words=len(heads) - 1)
    document = Document(title, "", "", None, (), sections=(Section("rows", title, (table,)),), definitions=())
    return Report(document, rows, rows)


def render(
    result: Run | Answer | Report, form: str, *, color: bool = False, blocks: bool = True, columns: int | None = None
) -> str:
    """What a command found, as text, markdown, json or csv; the options are those of `render_answer`."""
    if isinstance(result, Mapping | codec.Document):
        return render_answer(result, form, color=color, blocks=blocks, columns=columns)
    if not isinstance(result, Report):
        content = render_run(form, result, color=color, curve=columns is not None, ascii=not blocks)
        return content if isinstance(content, str) else "".join(content)
    if form == "json":
        return json.dumps(result.facts, indent=2, default=str) + "\n"
    from reports.document import csv, markdown, text

    if form == "csv":
        return csv.render(result.rows)
    if form == "markdown":
        return markdown.render(result.document)
    return text.render(result.document, text.Look(color=color, blocks=blocks))


# Reports of answers


def render_answer(
    info: Answer, form: str, *, color: bool = False, blocks: bool = True, columns: int | None = None
) -> str:
    """An answer as text, markdown, csv (a row for each of its values) or json.

    For a terminal of that many `columns` the text has a curve, where they suffice; without `blocks` it has only
    characters that every encoding has.
    """
    if form == "json":
        return json.dumps(codec.encode(info), indent=2, allow_nan=False) + "\n"
    if form not in answers.FORMS:
        raise UsageError(f"An answer of {answers.command(info)} has no form '{form}'; take {', '.join(answers.FORMS)}.")
    from reports import answers as reported
    from reports.document import csv, markdown, text

    if form == "csv":
        return csv.render(reported.rows(info))
    if form == "markdown":
        return markdown.render(reported.document(info))
    curve = columns is not None and columns >= text.CURVE_COLUMNS
    return text.render(reported.document(info), text.Look(color=color, blocks=blocks, curve=curve))


def answer_rows(info: Answer) -> list[dict[str, Any]]:
    """The values of an answer, a row each; what csv holds."""
    from reports import answers as reported

    return list(reported.rows(info))


def answer_figures(info: Answer, path: Path) -> dict[str, Callable[[], Any]]:
    """The figures of an answer by name: each a plotly figure when called, or the sentence that says what is missing."""
    from reports.document import Figure

    sections = answer_document(info, path).sections
    return {block.key: block.draw for section in sections for block in section.blocks if isinstance(block, Figure)}


def export_comparison(info: Answer, form: str) -> str:
    """The answer of `bench compare` as junit, or in one of the forms that other tools read (`EXPORTS`)."""
    from reports.answers import exports

    return str(getattr(exports, form.replace("-", "_"))(info))


def outcome_line(info: Answer) -> str:
    """What an answer found, a line for each finding."""
    from reports import answers as reported

    return "\n".join(finding.text for finding in reported.document(info).findings)


def answer_document(info: Answer, path: Path) -> Document:
    """The report of a stored answer, for a page. Raises UsageError for a damaged one."""
    from reports import answers as reported

    return reported.document(info, path)


def answer_page(info: Answer, path: Path) -> str:
    """The page of an answer, with links relative to its folder (or file) `path`."""
    from reports import answers as reported

    return reported.page(info, path)


def write_answer_page(info: Answer, folder: Path, say: Callable[[str], None]) -> Path | None:
    """Write report.html of an answer into its folder, at the end of the command that gave it; never raises."""
    return _write_kept(beside(folder), lambda: answer_page(info, folder), say, folder)


def several_document(found: Sequence[tuple[Answer, Path]], runs: Iterable[Run], home: Path) -> Document:
    """The report of several sweeps, searches and runs, for a page in the folder `home`."""
    from reports import answers as reported

    return reported.together(found, runs, home)


def draw_document(
    document: Document,
    form: str,
    home: Path,
    folder: Path | None,
    *,
    bundle: str | None = None,
    plain: bool = False,
    sections: Sequence[str] = (),
    figures: Sequence[str] = (),
) -> Content:
    """A page as html, or its figures as png, svg or pdf; links of the page in `home` are adjusted to `folder`.

    With `figures` only these are drawn. Raises UsageError for an unknown one, and for one without data.
    """
    from reports import _pictures
    from reports.document import html

    if form != "html":
        return _pictures.drawn(html.figures(document, sections, figures), form=form, bundle=bundle)
    document = document if folder is None else html.moved(document, home, folder)
    return html.render(document, bundle=bundle, plain=plain, sections=sections)


def traffic_page(facts: Mapping[str, object], title: str) -> str:
    """A page of pictures of traffic; see `reports.traffic.page`."""
    from reports import traffic

    return traffic.page(facts, title)


def find_browser() -> str:
    """The browser that draws pictures. Raises BenchError where there is none."""
    from reports import _pictures

    return _pictures.find()


def beside(path: str | Path, ending: str = "html") -> Path:
    """Where the report of what is stored at `path` goes: into its folder, or beside its file as FILE.report.html."""
    given = Path(path)
    if given.is_dir():
        return given / f"report.{ending}"
    return given.with_name(f"report.{ending}" if given.name in _STANDS_FOR_FOLDER else f"{given.name}.report.{ending}")


def put(path: Path, content: str | bytes | Iterator[str]) -> None:
    """Write the file whole or not at all. Raises UsageError where it cannot be written, BenchError on a full disk."""
    pieces = [content] if isinstance(content, str | bytes) else content
    try:
        files.put(path, (piece.encode() if isinstance(piece, str) else piece for piece in pieces))
    except OSError as error:
        raise files.refused(path, error) from None


def _write_kept(path: Path, make: Callable[[], str], say: Callable[[str], None], where: str | Path) -> Path | None:
    """Write what `make` returns; None where that fails, which is reported by `say`."""
    try:
        put(path, make())
    except Exception as error:  # noqa: BLE001  # the measurement is stored; a failed report must not end it
        text = str(error).rstrip(".") if isinstance(error, BenchError) else f"{type(error).__name__}: {error}"
        say(f"{path.name} could not be written ({text}); see '{where}'.")
        return None
    return path

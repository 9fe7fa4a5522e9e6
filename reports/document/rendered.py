"""A result in any form: text for a terminal, a page, pictures of its figures, the file of another tool.

A result is a run, the answer of a command that stores one, or a `Report`, which is printed and not stored.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import registry
from harness.api import Omits
from harness.data import codec, files
from harness.data.folder import Run
from harness.errors import BenchError, UsageError
from harness.experiments import answers
from reports._format import clean

if TYPE_CHECKING:
    from harness.experiments.answers import Answer
    from reports.document import Document

Content = str | bytes | Iterator[str]
"""A result in one form: text, or a binary file."""
_STANDS_FOR_FOLDER = ("sweep.json", "capacity.json")
"""Files that stand for the folder they are in, as run.json does."""


@dataclass(frozen=True, slots=True)
class Report:
    """A result that is not stored: its document, facts for json and rows for csv."""

    document: Document
    facts: object
    rows: Sequence[Mapping[str, object]]


def table_report(title: str, rows: Sequence[Mapping[str, str]]) -> Report:
    """Return the report of rows of texts that have the same columns."""
    from reports.document import Document, Section, Table

    heads = tuple(rows[0]) if rows else ()
    table = Table("", heads, tuple(tuple(row.values()) for row in rows), words=len(heads) - 1)
    document = Document(title, "", "", None, (), sections=(Section("rows", title, (table,)),), definitions=())
    return Report(document, rows, rows)


def render(
    result: Run | Answer | Report, form: str, *, path: Path | None = None, color: bool = False, blocks: bool = True
) -> str:
    """Return a result as text, markdown, csv (a row for each of its values) or json; as html where it has a `path`.

    The links of the page of an answer are relative to that. Without `blocks` the text has only characters that every
    encoding has. Raises UsageError for a form that the result does not have.
    """
    if not isinstance(result, Report | Mapping | codec.Document):
        content = render_run(form, result, color=color, ascii=not blocks)
        return content if isinstance(content, str) else "".join(content)
    if form == "json":
        if isinstance(result, Report):
            return json.dumps(result.facts, indent=2, default=str) + "\n"
        return json.dumps(codec.encode(result), indent=2, allow_nan=False) + "\n"
    from reports import answers as reported
    from reports.document import markdown, text

    if form == "html" and path is not None and not isinstance(result, Report):
        return reported.page(result, path)
    if form not in answers.FORMS:
        kind = "report" if isinstance(result, Report) else answers.command(result)
        raise UsageError(f"An answer of {kind} has no form '{form}'; take {', '.join(answers.FORMS)}.")
    if form == "csv":
        return csv_of(result.rows if isinstance(result, Report) else reported.rows(result))
    document = result.document if isinstance(result, Report) else reported.document(result)
    if form == "markdown":
        return markdown.render(document)
    return text.render(document, text.Look(color=color, blocks=blocks))


def csv_of(rows: Iterable[Mapping[str, object]]) -> str:
    """Return the rows of an answer as CSV, with a line of heads; times in seconds, shares from 0 to 1.

    A row may lack some of the columns; it is empty there.
    """
    records = [dict(row) for row in rows]
    heads = [*dict.fromkeys(name for record in records for name in record)]
    file = io.StringIO()
    writer = csv.DictWriter(file, heads, lineterminator="\n")
    writer.writerow({head: clean(head) for head in heads})
    writer.writerows({key: clean(v) if isinstance(v, str) else v for key, v in record.items()} for record in records)
    return file.getvalue()


def render_run(form: str, run: Run, **options: object) -> Any:
    """Return a run in the form of that name (`html`, `text`, `vllm`, ...)."""
    return registry.make("reports", form, **options).render(run)


def omitted(form: str) -> str | None:
    """Return what a format of another tool cannot hold of a run, in one line; None for our own formats."""
    name = form.partition(":")[0]
    report = registry.make("reports", form) if name in registry.names("reports") else None
    return report.omits if isinstance(report, Omits) else None


def figures(result: Run | Answer, path: Path) -> dict[str, Callable[[], Any]]:
    """Return the figures of what is stored at `path` by name: each a plotly figure when called, or what is missing."""
    from reports import answers as reported
    from reports.answers import run
    from reports.document import Figure

    if isinstance(result, Run):
        return {figure.key: figure.draw for figure, _ in run.figures_of(result)}
    blocks = (block for section in reported.document(result, path).sections for block in section.blocks)
    return {block.key: block.draw for block in blocks if isinstance(block, Figure)}


def picture(document: Document, form: str, figure: str) -> bytes:
    """Return a figure of a page as png, svg or pdf. Raises UsageError for an unknown one, and for one without data."""
    from reports import _pictures
    from reports.document import html

    return _pictures.drawn(html.figure(document, figure), form)


def run_path(run: Run, ending: str = "html") -> Path:
    """Return where the report of a run stands: in its folder, or beside the file that it was read from."""
    if run.info.source:  # it was read from a file of another tool
        name = "-".join(re.findall(r"[^\s()]+", run.info.source.name or ""))  # of several in a file: "all.json-1-of-2"
        return run.path.with_name(f"{name}.report.{ending}")
    return run.path / f"report.{ending}"


def answer_path(path: str | Path, ending: str = "html") -> Path:
    """Return where the report of what is stored at `path` stands: in its folder, or beside it as FILE.report.html."""
    stored = Path(path)
    if stored.is_dir():
        return stored / f"report.{ending}"
    name = f"report.{ending}" if stored.name in _STANDS_FOR_FOLDER else f"{stored.name}.report.{ending}"
    return stored.with_name(name)


def write_page(result: Run | Answer, say: Callable[[str], None], folder: Path = Path()) -> Path | None:
    """Write the page of a run to `run_path`, that of an answer into its folder.

    A failure is reported by `say`; it never costs the data.
    """
    stored = result.path if isinstance(result, Run) else folder
    path = run_path(result) if isinstance(result, Run) else answer_path(folder)
    try:
        files.write(path, render(result, "html", path=stored))
    except Exception as error:  # noqa: BLE001  # the measurement is stored; a failed report must not end it
        text = str(error).rstrip(".") if isinstance(error, BenchError) else f"{type(error).__name__}: {error}"
        say(f"{path.name} could not be written ({text}); see '{stored}'.")
        return None
    return path

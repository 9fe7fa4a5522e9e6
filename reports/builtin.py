"""The forms of a run that are short: for people text and markdown, for programs JSON and tables of numbers."""

import io
import json
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow.parquet as pq

from harness.data.codec import encode
from harness.data.folder import Run
from reports import _data, _tables
from reports._format import clean
from reports.answers.run import document
from reports.document import Command, Document, Section, markdown, text
from reports.document.rendered import csv_of

FORMULA = ("=", "+", "-", "@")
"""How a text begins that a spreadsheet takes for a formula (OWASP, CSV injection)."""


def _summary(run: Run, *unfolded: str) -> Document:
    """Return the report with those sections in it that the page folds."""
    report = document(run)
    sections = tuple(replace(part, detail=part.detail and part.key not in unfolded) for part in report.sections)
    return replace(report, sections=sections)


@dataclass(frozen=True, slots=True)
class Text:
    """The result for the terminal: percentiles with bounds, key facts, warnings, verdict, what next.

    The summary; with `color` for a terminal, without it plain text that a file or a pipe can take.

    With `ascii` in ASCII alone. Texts are broken at `width` columns: by default those of the terminal (or COLUMNS), at
    most 100. Paths and commands can be copied whole.
    """

    color: bool = False
    width: int | None = None
    ascii: bool = False

    def render(self, run: Run) -> str:
        """The text, ending with a newline; the last lines are the verdict and what to do next."""
        width = shutil.get_terminal_size((text.WIDTH, 24)).columns if self.width is None else self.width
        page = run.path / "report.html"
        pointer = clean(page, None) if page.exists() else f"bench report {shlex.quote(clean(run.path, None))}"
        report = _summary(run, "server")
        report = replace(report, sections=(*report.sections, Section("report", "", (Command("report", pointer),))))
        return text.render(report, text.Look(self.color, not self.ascii, width))


@dataclass(frozen=True, slots=True)
class Markdown:
    """The result as markdown: verdict, percentile table, key facts and warnings, for a pull request or a wiki.

    The summary of a run; text from outside is escaped and never becomes markup or a link.
    """

    def render(self, run: Run) -> str:
        """The text, ending with a newline."""
        report = _summary(run, "client", "server")
        findings = tuple(replace(finding, text=f"{report.mark}. {finding.text}") for finding in report.findings)
        return markdown.render(replace(report, findings=findings))


@dataclass(frozen=True, slots=True)
class Html:
    """One offline HTML file: verdict, tables and figures of a run, with plotly.js inside and no request to any host.

    The page of a run; the same run gives the same bytes.
    """

    def render(self, run: Run) -> str:
        """The whole file as text."""
        from reports.document import html  # heavy

        return html.render(document(run))


@dataclass(frozen=True, slots=True)
class Json:
    """The run as JSON: what `run.json` holds, for other programs.

    `run.json`; a run that was killed gets the summary of what it recorded.
    """

    def render(self, run: Run) -> str:
        """The text, ending with a newline; control characters are escaped as JSON does."""
        info = encode(_data.summarized(run).info) | {"complete": run.complete}
        return json.dumps(info, indent=2, ensure_ascii=True, allow_nan=False) + "\n"


@dataclass(frozen=True, slots=True)
class Csv:
    """The numbers of a run as a CSV table, tidy: run, class, metric, unit, statistic, value, low, high.

    A row for each number, with its unit and, where the run tells one, its 95 % interval; times in seconds.
    """

    def render(self, run: Run) -> str:
        """The text, its heads in the first line."""
        return self.render_all([run])

    def render_all(self, runs: Sequence[Run]) -> str:
        """The same of several runs in one table."""
        return csv_of(dict(zip(_tables.HEADS, map(_cell, row), strict=True)) for row in _tables.rows(runs))


def _cell(value: str | float | None) -> str | float | None:
    """The value; of a text one that no spreadsheet takes for a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


@dataclass(frozen=True, slots=True)
class Parquet:
    """The numbers of a run as a Parquet table, tidy: run, class, metric, unit, statistic, value, low, high.

    The table of `csv` for programs: nulls where there is no class, no value or no interval; times in seconds.
    """

    def render(self, run: Run) -> bytes:
        return self.render_all([run])

    def render_all(self, runs: Sequence[Run]) -> bytes:
        """The same of several runs in one table."""
        file = io.BytesIO()
        pq.write_table(_tables.table(runs), file, compression="zstd")
        return file.getvalue()

"""The numbers of a run as a CSV table, tidy: run, class, metric, unit, statistic, value, low, high."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

from harness.data.folder import Run
from reports import _tables

_FORMULA = ("=", "+", "-", "@")
"""How a text begins that a spreadsheet takes for a formula (OWASP, CSV injection)."""


@dataclass(frozen=True, slots=True)
class Csv:
    """A row for each number, with its unit and, where the run tells one, its 95 % interval; times in seconds."""

    def render(self, run: Run) -> str:
        """The text, its heads in the first line."""
        return self.render_all([run])

    def render_all(self, runs: Sequence[Run]) -> str:
        """The same of several runs in one table."""
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_tables.HEADS)
        writer.writerows([_cell(value) for value in row] for row in _tables.rows(runs))
        return file.getvalue()


def _cell(value: str | float | None) -> str:
    """A number with all its digits; a text that no spreadsheet takes for a formula."""
    if value is None:
        return ""
    if isinstance(value, str):
        return f"'{value}" if value.startswith(_FORMULA) else value
    return repr(int(value)) if value.is_integer() else repr(value)

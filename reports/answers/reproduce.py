"""The report of `bench reproduce`: published results of serving systems beside those obtained, and a page of them."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from harness.experiments.reproduce import ReproduceAnswer, RowResult
from reports import _format
from reports._format import clean, in_markdown, number
from reports._system import versions
from reports.document import Cell, Document, Finding, Section, Table
from reports.document.markdown import table as markdown_table

HEADS = ("id", "system", "published", "obtained", "band", "verdict", "time")
CELL_CHARACTERS = 80
_PYTEST = "python -m pytest -m ''"  # tests of the night, too
_GOOD = {"holds": True, "misses": False, "cannot run": False}
_PAGE_HEAD = """# Serving systems: published and obtained

Results that papers, repositories and measurements publish about serving systems, beside those of bench.
`bench reproduce ID` repeats a row, and `bench reproduce --help` explains the verdicts. *Obtained* is the median over
seeds, with the least and the largest value; *band* holds the values that agree with the source. A row that misses its
band stays as a miss.

| badge | what is compared | what a match means |
| --- | --- | --- |
| exact | what the core decides, or a golden number of another program | equality, or the tolerance of the row |
| real | public measurements of real GPUs and engines, or real traces | the error on measurements that no fit has used |
| simulated | shapes, orders and ratios that a simulation must show | a number inside a band, never "reproduced" |
| formula | arithmetic, or a closed form | that the formula is coded right; it says nothing of a system |
"""


def document(info: ReproduceAnswer, path: Path | None = None) -> Document:  # noqa: ARG001  # it has no figures
    """The report of rows: a table, then what their notes say and why some cannot run."""
    ids: dict[str, list[str]] = {}  # rows of one download or one test have a note in common
    for row in info.rows:
        for text in (row.check and f"In a clone: {_PYTEST} {row.check}", row.reason, row.note):
            if text:
                ids.setdefault(text, []).append(row.id)
    notes = (clean(f"{', '.join(of_rows)}: {text}", None) for text, of_rows in ids.items())
    return Document(
        title="Published results of serving systems",
        subtitle="one seed for each row; with all seeds verdicts may differ" if info.quick else "",
        mark="",
        good=not info.exit_code,
        findings=(Finding(_counted(info.rows), not info.exit_code),),
        sections=(Section("rows", "Rows", (_table(info.rows, ""), *notes)),),
        used=versions(info.versions),
        definitions=(),
    )


def _table(rows: Sequence[RowResult], caption: str) -> Table:
    cells = tuple(
        (
            clean(row.id),
            clean(row.system),
            clean(row.published, CELL_CHARACTERS),
            _obtained(row),
            "-" if row.band is None else " to ".join(map(number, row.band)),
            Cell(row.verdict, good=_GOOD.get(row.verdict)),
            _format.seconds(row.seconds) if row.seconds else "-",
        )
        for row in rows
    )
    return Table(caption, HEADS, cells, left=3, narrow=("system", "time"))


def _obtained(row: RowResult) -> str:
    spread = f" ({number(row.least)} to {number(row.most)})" if row.seeds > 1 else ""
    factor = "within " if (row.expression or "").startswith("largest_factor(") else ""  # of several published values
    return f"{factor}{number(row.value)}{spread}"


def _counted(rows: Sequence[RowResult]) -> str:
    """How many rows hold, those of formulas apart, and which do not; the others are counted."""
    parts = []
    for name, of_kind in (("rows", False), ("formulas", True)):
        verdicts = Counter(row.verdict for row in rows if (row.badge == "formula") == of_kind)
        if judged := verdicts["holds"] + verdicts["misses"]:
            parts.append(f"{verdicts['holds']} of {judged} {name} hold")
    for verdict, text in (("misses", "missed"), ("cannot run", "cannot run"), ("needs a clone", "need a clone"),
                          ("informs", "without a band"), ("unavailable", "unavailable")):  # fmt: skip
        if ids := [clean(row.id) for row in rows if row.verdict == verdict]:
            parts.append(f"{text}: {', '.join(ids) if verdict in _GOOD else len(ids)}")
    return f"{'; '.join(parts)}."


def rows(info: ReproduceAnswer) -> Iterator[dict[str, Any]]:
    """A row per row: value, least and most over seeds, band, verdict and seconds."""
    for row in info.rows:
        low, high = row.band or (None, None)
        yield {
            "id": row.id, "system": row.system, "badge": row.badge, "published": row.published, "value": row.value,
            "least": row.least, "most": row.most, "seeds": row.seeds, "band_low": low, "band_high": high,
            "verdict": row.verdict, "seconds": row.seconds,
        }  # fmt: skip


def page(info: ReproduceAnswer) -> str:
    """A markdown page: a table for each subject, and below it sources, notes and commands, folded."""
    parts = [_PAGE_HEAD, f"**{in_markdown(_counted(info.rows), None)}**\n"]
    by_subject = sorted(info.rows, key=lambda row: row.subject)
    for subject, group in groupby(by_subject, key=lambda row: row.subject):
        subject_rows = [*group]
        parts += [f"## {subject}\n", f"{markdown_table(_table(subject_rows, ''))}\n", *map(_folded, subject_rows)]
    return "\n".join(parts)


def _folded(row: RowResult) -> str:
    """Where a row is from and how it is obtained; what a test proves names the test."""
    lines = [f"<details><summary>{in_markdown(row.id)}: {row.badge}, {in_markdown(row.source, None)}</summary>\n"]
    lines += [f"{in_markdown(text, None)}\n" for text in (row.reason, row.note) if text]
    commands = [*row.commands, *([f"# {row.expression}"] if row.expression else [])]
    if row.check is not None:
        commands = [f"{_PYTEST} {row.check}"]
    block = ["```sh", *commands, "```"] if commands else []
    return "\n".join([*lines, *block, "</details>\n"])

"""A report as data: a verdict, key facts, and sections of texts, tables, figures and commands.

`text`, `markdown` and `html` beside this file render any `Document`; escaping is theirs alone. What comes from outside
(names, error texts, options) is cleaned when a document is built (`reports._format.clean`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import quote

from reports import figures
from reports._format import sentence
from reports._system import in_use

if TYPE_CHECKING:
    from harness.api import RunWarning
    from harness.data.run_json import Warned
    from reports._system import Facts
    from reports.document.html import Part
    from reports.figures import Subject
    from reports.figures.drawing import Drawing

Block: TypeAlias = "str | Table | Figure | Part | Markup | Command"
"""What a section is made of; a string is a paragraph. Text and markdown leave out figures and markup."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell that is more than text: a relative `link`, or marked good (True) or bad (False) news."""

    text: str
    link: str | None = None
    good: bool | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """Column heads with units and rows of printed values; the first `left` columns are names, the others numbers.

    The last `words` columns hold text again, up to whole sentences. A narrow window does without the columns of the
    heads in `narrow`, in this order.
    """

    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str | Cell, ...], ...]
    left: int = 1
    words: int = 0
    narrow: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a page; `draw` gives it, or the sentence that says what would bring its data. `key` is its anchor.

    `rows` are the most of the table that stands for it.
    """

    key: str
    title: str
    draw: Callable[[], Drawing | str]
    rows: int = 40


@dataclass(frozen=True, slots=True)
class Markup:
    """Trusted HTML, put on a page as it is."""

    html: str


@dataclass(frozen=True, slots=True)
class Command:
    """A command to copy, and what it is for."""

    text: str
    command: str


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the report under a heading; `key` is its anchor. What is `detail` stands on the page alone."""

    key: str
    title: str
    blocks: tuple[Block, ...]
    detail: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """One result in a sentence, good (True) or bad (False) news, and `notes` on what it rests on."""

    text: str
    good: bool | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Notice:
    """A warning and its remedy."""

    message: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Document:
    """A report of one answer. `mark` is its state in capitals, `good` whether that is good or bad news (None: neither).

    Facts without a value and sections without a block are left out. `numbers` stand large on a page. `key_facts` are
    SLO, system, workload and the like; `used` everything that repeats the measurement.
    """

    title: str
    subtitle: str
    mark: str
    good: bool | None
    findings: tuple[Finding, ...]
    key_facts: Facts = ()
    warnings: tuple[Notice, ...] = ()
    sections: tuple[Section, ...] = ()
    next: Command | None = None
    commands: tuple[str, ...] = ()
    used: Facts = ()
    definitions: Facts = field(default_factory=in_use)
    numbers: Facts = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "key_facts", tuple((name, text) for name, text in self.key_facts if text))
        object.__setattr__(self, "sections", tuple(section for section in self.sections if section.blocks))


def figures_of(subject: Subject, *of: object, section: str | None = None, place: int | None = None) -> list[Figure]:
    """The figures of a subject, those of a section where it is named; `place` tells several of one page apart."""
    rows = [row for row in figures.of(subject).values() if section in (None, row.section)]
    end = "" if place is None else f"-{place}"
    return [Figure(f"{row.key}{end}", row.title, partial(row.draw, *of)) for row in rows]


def notices(warnings: Iterable[RunWarning | Warned]) -> tuple[Notice, ...]:
    """Stored warnings as sentences."""
    return tuple(Notice(sentence(warning.message, 600), sentence(warning.remedy, 600)) for warning in warnings)


def listed(
    caption: str, heads: Sequence[str], rows: Sequence[tuple[str | Cell, ...]], most: int, left: int = 1, words: int = 0
) -> tuple[Table, ...]:
    """The first rows of a table, and of how many in its caption; none without rows."""
    cut = f" (the first {most:,} of {len(rows):,}; all are in the JSON)" if len(rows) > most else ""
    return (Table(f"{caption}{cut}", tuple(heads), tuple(rows[:most]), left, words),) if rows else ()


def page_of(folder: Path, home: Path) -> str | None:
    """The link from a page in `home` to that of a run, or to its folder; None where it is gone."""
    page = "report.html" if (folder / "report.html").is_file() else ""
    return f"./{quote(os.path.relpath(folder, home), safe='/=,+')}/{page}" if folder.is_dir() else None

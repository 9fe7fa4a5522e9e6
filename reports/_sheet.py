"""A page of an answer: verdict, figures and tables in sections, laid out by `templates/sheet.html.j2`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from reports import _page
from reports._page import Part
from reports._system import in_use

if TYPE_CHECKING:
    from reports._system import Facts


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell that is more than text: a `link` (relative, of our own making), or marked good (True) or bad (False).

    `picture` is SVG of our own making, put before the text as it is.
    """

    text: str
    link: str | None = None
    good: bool | None = None
    picture: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """Column heads with units and rows of printed text; the first `left` columns are names, the others numbers.

    The last `said` columns are words again, which may be whole sentences.
    """

    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str | Cell, ...], ...]
    left: int = 1
    said: int = 0


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page under a heading; `key` is its anchor. `html` is markup of our own making, put in as it is."""

    key: str
    title: str
    texts: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    parts: tuple[Part, ...] = ()
    tables_first: bool = False
    html: str = ""


@dataclass(frozen=True, slots=True)
class Sheet:
    """The texts of a page, cleaned but not escaped (the template does that).

    `mark` is the state in capitals, `good` whether it is good or bad news (None: neither). `answer` is the one sentence
    that a manager reads; `state` how far it can be trusted; `heads` SLO, system, workload with preparation and
    tokenizer, client floor, cost. `warnings` are (message, remedy).
    """

    title: str
    subtitle: str
    mark: str
    good: bool | None
    answer: str
    state: str
    heads: Facts
    warnings: tuple[tuple[str, str], ...]
    sections: tuple[Section, ...]
    commands: tuple[str, ...] = ()
    facts: Facts = ()
    definitions: Facts = field(default_factory=in_use)


def render(sheet: Sheet, *, bundle: str | None = None, plain: bool = False, sections: Sequence[str] = ()) -> str:
    """The whole file as text; of its sections only those named, where any are.

    Equal sheets give equal bytes. Raises UsageError when the plotly bundle cannot be read.
    """
    shown = tuple(s for s in sheet.sections if not sections or s.key in sections)
    parts = [part for section in shown for part in section.parts]
    return _page.render("sheet.html.j2", parts, bundle=bundle, plain=plain, sheet=sheet, sections=shown)

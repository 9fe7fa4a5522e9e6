"""The answer of a closed form, as bench theory stores it: sentences, tables whose columns have units, and notes."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from msgspec import field

from harness.data.codec import Document, Facts, Number, Part

Unit = Literal["text", "number", "count", "s", "bytes", "bytes_per_s", "tokens_per_s", "rps", "share", "ratio", "yes"]
Cell = str | Number | bool | None


class Column(Part, frozen=True):
    """The head of a column and the unit of its cells; a cell of None has no value."""

    head: str
    unit: Unit = "number"


class Table(Part, frozen=True):
    """Rows under their columns; `title` says what they show."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]


class Line(Part, frozen=True):
    """Points of one curve; `simulated` ones are drawn as marks over the lines of the formulas."""

    name: str
    points: tuple[tuple[Number, Number], ...]
    simulated: bool = False


class Picture(Part, frozen=True):
    """Lines over one axis for the page; `y_log` spreads a value over decades."""

    title: str
    x: str
    y: str
    lines: tuple[Line, ...]
    y_log: bool = False


class TheoryAnswer(Document, frozen=True, kw_only=True):
    """The results of `bench theory FORM`, or of `bench policy`, for the options `given`."""

    schema: int = 1
    kind: Literal["theory", "policy"] = "theory"
    versions: Facts = field(default_factory=dict)
    exit_code: int = 0
    form: str
    given: Facts
    sentences: list[str]
    tables: list[Table]
    notes: list[str]
    pictures: list[Picture]


def table(title: str, columns: Iterable[tuple[str, Unit]], rows: Iterable[Sequence[Cell]]) -> Table:
    """A table of (head, unit) columns."""
    return Table(title, tuple(Column(*one) for one in columns), tuple(tuple(row) for row in rows))


def answer(
    form: str, given: Mapping[str, object], sentences: Sequence[str], tables: Sequence[Table],
    notes: Sequence[str] = (), pictures: Sequence[Picture] = (),
) -> TheoryAnswer:  # fmt: skip
    """The results, with the versions that made them."""
    from harness.data.host import versions

    return TheoryAnswer(
        versions=dict(versions()), form=form, given=dict(given), sentences=list(sentences), tables=list(tables),
        notes=list(notes), pictures=list(pictures),
    )  # fmt: skip

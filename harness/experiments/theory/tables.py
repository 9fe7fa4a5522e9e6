"""The answer of a closed form: sentences, tables whose columns have units, and notes, for text, markdown and JSON."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Unit = Literal["text", "number", "count", "s", "bytes", "bytes_per_s", "tokens_per_s", "rps", "share", "ratio", "yes"]
Cell = str | float | bool | None


@dataclass(frozen=True, slots=True)
class Column:
    """The head of a column and the unit of its cells; a cell of None has no value."""

    head: str
    unit: Unit = "number"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under their columns; `title` says what they show."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, slots=True)
class Line:
    """Points of one curve; `simulated` ones are drawn as marks over the lines of the formulas."""

    name: str
    points: tuple[tuple[float, float], ...]
    simulated: bool = False


@dataclass(frozen=True, slots=True)
class Picture:
    """Lines over one axis for the page; `y_log` spreads a value over decades."""

    title: str
    x: str
    y: str
    lines: tuple[Line, ...]
    y_log: bool = False


def table(title: str, columns: Iterable[tuple[str, Unit]], rows: Iterable[Sequence[Cell]]) -> Table:
    """A table of (head, unit) columns."""
    return Table(title, tuple(Column(*one) for one in columns), tuple(tuple(row) for row in rows))


def answer(
    form: str, given: Mapping[str, Any], sentences: Sequence[str], tables: Sequence[Table], notes: Sequence[str] = (),
    pictures: Sequence[Picture] = (),
) -> dict[str, Any]:  # fmt: skip
    """The results of `bench theory FORM` for the options `given`, shown by `reports.answers.theory`."""
    from harness.data.host import versions

    return {
        "schema": 1,
        "kind": "theory",
        "versions": versions(),
        "exit_code": 0,
        "form": form,
        "given": dict(given),
        "sentences": list(sentences),
        "tables": [
            {
                "title": one.title,
                "columns": [{"head": column.head, "unit": column.unit} for column in one.columns],
                "rows": [list(row) for row in one.rows],
            }
            for one in tables
        ],
        "notes": list(notes),
        "pictures": [asdict(one) for one in pictures],
    }

"""The answer of a closed form, as bench theory stores it: sentences, tables whose columns have units, and notes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite
from typing import Any, Literal

from msgspec import field

from harness import registry
from harness.api import Row
from harness.data.codec import Document, Facts, Number, Part
from harness.data.host import versions
from harness.errors import UsageError
from harness.experiments.sweep.axes import Axis, named, points, values
from harness.spec import Spec, arguments, defaults, parse

Unit = Literal[
    "text", "number", "count", "s", "bytes", "bytes_per_s", "tokens_per_s", "rps", "flops", "share", "ratio", "yes"
]
Cell = str | Number | bool | None
UNITS: tuple[Unit, ...] = ("bytes_per_s", "tokens_per_s", "rps", "flops", "bytes", "share", "ratio", "s")
"""Units that end the name of a column, the longer ones first."""
NO_RESULT = "these values have no finite result; change one of them."


class Column(Part, frozen=True):
    """The head of a column and the unit of its cells; a cell of None has no value."""

    head: str
    unit: Unit = "number"


class Table(Part, frozen=True):
    """Rows under their columns; `title` says what they show."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]


class TheoryAnswer(Document, frozen=True, kw_only=True):
    """The results of `bench theory FORM`, for the options `given`."""

    schema: int = 1
    kind: Literal["theory"] = "theory"
    versions: Facts = field(default_factory=dict)
    exit_code: int = 0
    form: str
    given: Facts
    sentences: list[str]
    tables: list[Table]
    notes: list[str]


def evaluate(text: str, over: Sequence[str] = ()) -> TheoryAnswer:
    """Evaluate the form of a spec at every point of the lists `over` (NAME=VALUES). Raises UsageError.

    Columns begin with the parameters that vary.
    """
    spec = parse(text)
    form = registry.find("theory", spec.name)
    usual = defaults(form)
    calls: list[dict[str, Any]] = []
    results: list[list[Row]] = []
    for point in points([Axis(name, values(texts, f"--over {name}")) for name, texts in map(named, over)]):
        case = replace(spec, args={**spec.args, **dict(point)})
        calls.append(usual | arguments(form, case))
        _check(case, calls[-1], usual)
        try:
            results.append(form(**calls[-1]))
        except (ValueError, ArithmeticError) as error:
            raise UsageError(f"'{case}': {error if isinstance(error, ValueError) else NO_RESULT}") from None
        if any(isinstance(value, float) and not isfinite(value) for row in results[-1] for value in row.values()):
            raise UsageError(f"'{case}': {NO_RESULT}")
    varied = [name for name in usual if any(case[name] != calls[0][name] for case in calls)]
    rows = [
        {name: case[name] for name in varied} | row for case, part in zip(calls, results, strict=True) for row in part
    ]
    columns = {name: [row.get(name) for row in rows] for row in rows for name in row}
    first, *notes = (" ".join(paragraph.split()) for paragraph in registry.about(form).split("\n\n"))
    fixed = {name: value for name, value in calls[0].items() if name not in varied}
    heads = tuple(Column(name, _unit(name, cells)) for name, cells in columns.items())
    table = Table(spec.name, heads, tuple(zip(*columns.values(), strict=True)))
    return TheoryAnswer(
        versions=dict(versions()), form=spec.name, given=fixed, sentences=[first], tables=[table], notes=notes
    )


def _check(spec: Spec, given: Mapping[str, Any], usual: Mapping[str, Any]) -> None:
    """Raise UsageError for a number below 0, and for a count of 0 where that is not the default."""
    for name, value in given.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        least = 1 if isinstance(value, int) and usual[name] != 0 else 0
        if number and value < least:
            raise UsageError(f"'{spec}': {name} must be at least {least}, got {value}.")


def _unit(name: str, cells: Sequence[Cell]) -> Unit:
    """Return the unit that ends the name of a column, else that of the type of its cells."""
    types = {type(cell) for cell in cells if cell is not None}
    of_type: dict[type, Unit] = {str: "text", bool: "yes", int: "count"}
    of_name: Unit = next((unit for unit in UNITS if name.endswith(f"_{unit}")), "number")
    return of_type.get(next(iter(types)), of_name) if len(types) == 1 and of_name == "number" else of_name

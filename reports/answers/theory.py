"""The report of `bench theory`: the table of a closed form, and what its columns mean."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from harness.experiments import theory
from harness.experiments.theory import TheoryAnswer
from reports import _format
from reports._format import clean
from reports._system import plain, versions
from reports.document import Document, Section, Table

_ACRONYMS = ("gpu", "itl", "kv", "slo", "ttft")
_UNITS = {"_s": "s", "_rps": "req/s", "_tokens": "tokens", "_bytes": "bytes", "_flops": "FLOP/s"}


def document(info: TheoryAnswer, path: Path | None = None) -> Document:  # noqa: ARG001  # it has no figures
    """The report of a form."""
    heads = [column.head for table in info.tables for column in table.columns]
    simulated = any(head.startswith("simulated") for head in heads)
    return Document(
        title=f"bench theory {clean(info.form, 40)}",
        subtitle=" ".join(clean(sentence, None) for sentence in info.sentences),
        mark="BY FORMULA AND SIMULATION" if simulated else "BY FORMULA",
        good=None,
        findings=(),
        key_facts=tuple((_name(k), clean(plain(v, 12), 200)) for k, v in info.given.items() if v is not None),
        sections=(
            Section("tables", "Numbers", (*map(_table, info.tables), *(clean(note, None) for note in info.notes))),
        ),
        used=versions(info.versions),
        definitions=(),
    )


def _name(option: str) -> str:
    """A parameter with its unit: 'rate (req/s)' of 'rate_rps'."""
    end, unit = next(((end, unit) for end, unit in _UNITS.items() if option.endswith(end)), ("", ""))
    return clean(option.removesuffix(end).replace("_", " ") + (f" ({unit})" if unit else ""), 40)


def _table(one: theory.Table) -> Table:
    units = [column.unit for column in one.columns]
    name_columns = next((number for number, unit in enumerate(units) if unit != "text"), len(units))  # columns of names
    rows = tuple(
        tuple(clean(_cell(value, unit), 200) for value, unit in zip(row, units, strict=True)) for row in one.rows
    )
    return Table(clean(one.title, 100), tuple(map(_head, one.columns)), rows, name_columns)


def _head(column: theory.Column) -> str:
    """The name of a column without its unit, which stands with each cell."""
    words = column.head.removesuffix(f"_{column.unit}").split("_")
    return clean(" ".join(word.upper() if word in _ACRONYMS else word for word in words), 60)


def _cell(value: Any, unit: str) -> str:
    """A value with its unit; '-' for none."""
    return value or "-" if value is None or isinstance(value, str) else _CELLS[unit](value)


def _bytes(value: float) -> str:
    """In binary units from a MiB on, else plain."""
    for unit, size in (("GiB", 2.0**30), ("MiB", 2.0**20)):
        if value >= size:
            return f"{_format.number(value / size, 4)} {unit}"
    return f"{value:,.0f} B"


_CELLS: Mapping[str, Callable[[Any], str]] = {
    "text": str,
    "number": partial(_format.number, digits=4),
    "count": lambda value: f"{value:,.0f}",
    "s": lambda value: f"{_format.number(value * 1e6)} us" if 0 < abs(value) < 1e-3 else _format.seconds(value),
    "bytes": _bytes,
    "bytes_per_s": lambda value: f"{_format.number(value / 1e9)} GB/s",
    "tokens_per_s": lambda value: f"{_format.number(value) if value < 100 else f'{value:,.0f}'} tok/s",
    "flops": lambda value: f"{_format.number(value / 1e12)} TFLOP/s",
    "rps": lambda value: f"{_format.number(value)} req/s",
    "share": _format.share,
    "ratio": lambda value: f"{_format.number(value)}x",
    "yes": lambda value: "yes" if value else "no",
}


def rows(info: TheoryAnswer) -> Iterator[dict[str, Any]]:
    """A row per row of the table; times in seconds, shares from 0 to 1."""
    for table in info.tables:
        yield from (dict(zip([column.head for column in table.columns], row, strict=True)) for row in table.rows)

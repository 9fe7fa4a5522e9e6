"""What a closed form gives, with what a simulation gives beside it where one was asked for."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from reports import _format
from reports._format import in_markdown
from reports.answers import _curve
from reports.answers._curve import PLAIN, Look

_Table = Callable[..., str]


def text(info: Mapping[str, Any], look: Look = PLAIN) -> str:
    """Sentences, tables and notes."""
    return "\n".join(_parts(info, partial(_curve.text, look=look), _curve.wrapped))


def markdown(info: Mapping[str, Any]) -> str:
    """The same as markdown."""
    return "\n".join(_parts(info, _curve.markdown, partial(in_markdown, limit=None)))


def _parts(info: Mapping[str, Any], table: _Table, told: Callable[[str], str]) -> Iterator[str]:
    yield from (f"{told(sentence)}\n" for sentence in info["sentences"])
    for one in info["tables"]:
        yield f"{told(one['title'])}\n"
        units = [column["unit"] for column in one["columns"]]
        left = next((number for number, unit in enumerate(units) if unit != "text"), len(units))  # columns of names
        rows = [[cell(value, unit) for value, unit in zip(row, units, strict=True)] for row in one["rows"]]
        yield table([column["head"] for column in one["columns"]], rows, left=left)
    yield from (f"{told(note)}\n" for note in info["notes"])


def cell(value: Any, unit: str) -> str:
    """A value with its unit, as people read it; '-' for none."""
    if value is None or isinstance(value, str):
        return value or "-"
    return _WAYS[unit](value)


def _bytes(value: float) -> str:
    """In binary units from a MiB on, else plain."""
    for unit, size in (("GiB", 2.0**30), ("MiB", 2.0**20)):
        if value >= size:
            return f"{_format.number(value / size, 4)} {unit}"
    return f"{value:,.0f} B"


_WAYS: Mapping[str, Callable[[Any], str]] = {
    "text": str,
    "number": partial(_format.number, digits=4),
    "count": lambda value: f"{value:,.0f}",
    "s": lambda value: f"{_format.number(value * 1e6)} us" if 0 < abs(value) < 1e-3 else _format.seconds(value),
    "bytes": _bytes,
    "bytes_per_s": lambda value: f"{_format.number(value / 1e9)} GB/s",
    "tokens_per_s": lambda value: f"{_format.number(value) if value < 100 else f'{value:,.0f}'} tok/s",
    "rps": lambda value: f"{_format.number(value)} req/s",
    "share": _format.share,
    "ratio": lambda value: f"{_format.number(value)}x",
    "yes": lambda value: "yes" if value else "no",
}

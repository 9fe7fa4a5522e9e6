"""The errors of a run, told in a few lines: texts that differ only in numbers are one."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from reports._clean import clean

if TYPE_CHECKING:
    import pyarrow as pa

MOST = 3
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")

Counted = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Error:
    """An error text of the backend and how often it came; without a status, the line that says what is not shown."""

    status: str
    text: str
    count: str


def errors(table: pa.Table) -> tuple[Error, ...]:
    """The most frequent kinds of error, each cut to 300 characters, and how many kinds there are besides."""
    failed = table.select(["status", "error"]).filter(pc.is_valid(table.column("error")))
    kinds: dict[tuple[str, str], list[Counted]] = defaultdict(list)
    for row in failed.group_by(["status", "error"]).aggregate([([], "count_all")]).to_pylist():
        text = clean(row["error"], 300)
        kinds[clean(row["status"]), _NUMBER.sub("N", text)].append((text, row["count_all"]))
    counted = [(sum(n for _, n in texts), key) for key, texts in kinds.items()]
    found = sorted(counted, key=lambda kind: (-kind[0], kind[1]))
    listed = tuple(Error(key[0], _common(text for text, _ in kinds[key]), f"{n:,}") for n, key in found[:MOST])
    if len(found) == len(listed):
        return listed
    more = f"and {len(found) - MOST:,} more (see the column error of requests.parquet)"
    return (*listed, Error("", more, f"{sum(n for n, _ in found[MOST:]):,}"))


def _common(texts: Iterable[str]) -> str:
    """One text for texts that differ only in numbers: those that differ become N."""
    first, *others = dict.fromkeys(texts)
    columns = zip(*(_NUMBER.findall(text) for text in (first, *others)), strict=True)
    shown = iter([numbers[0] if len(set(numbers)) == 1 else "N" for numbers in columns])
    return _NUMBER.sub(lambda _: next(shown), first)

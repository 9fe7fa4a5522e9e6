"""Azure LLM inference traces of 2023 and 2024 (CSV: TIMESTAMP, ContextTokens, GeneratedTokens)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from typing import ClassVar

from workloads.readers._table import Extra, Form, Row, Table, shown

_STAMP = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[ T]([01]\d|2[0-3]):([0-5]\d):([0-5]\d)(?:\.(\d{1,9}))?(Z|[+-][01]\d:?[0-5]\d)?", re.ASCII
)
_SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Azure:
    """Stamps are dates to 100 ns (2023, no time zone) or to 1 us with an offset (2024); counts are tokens.

    Source: Azure/AzurePublicDataset, CC-BY-4.0 (Patel et al., Splitwise, ISCA 2024). Line ends may be CRLF and
    the last one may be missing. The tokenizer is not published.
    """

    form: ClassVar[Form] = "csv"
    needs: ClassVar[tuple[str, ...]] = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
    stamp: ClassVar[str] = "TIMESTAMP"
    extras: ClassVar[tuple[Extra, ...]] = ()
    facts: ClassVar[Mapping[str, str]] = {"tokenizer": "not published", "stamps": "100 ns (2023) or 1 us (2024)"}

    def rows(self, table: Table) -> Iterator[Row]:
        """Every row; a row without prompt or output tokens is told as dropped."""
        stamp, prompt, output = self.needs
        first_ns: int | None = None
        zoned: bool | None = None
        for line, cells in table.cells():
            at_ns, has_zone = _nanoseconds(table, line, stamp, cells[stamp])
            if zoned is None:
                zoned, first_ns = has_zone, at_ns
            if has_zone != zoned or first_ns is None:
                table.fail(line, stamp, f"{shown(cells[stamp])} and the first row differ in having a time zone")
            prompt_tokens = table.tokens(line, prompt, cells[prompt])
            output_tokens = table.tokens(line, output, cells[output])
            dropped = None
            if prompt_tokens == 0 or output_tokens == 0:
                dropped = f"{prompt if prompt_tokens == 0 else output} is 0"
            yield Row(line, (at_ns - first_ns) / _SECOND_NS, prompt_tokens, output_tokens, dropped=dropped)


def _nanoseconds(table: Table, line: int, column: str, cell: str) -> tuple[int, bool]:
    """Nanoseconds since year 1 (UTC where the stamp has an offset), and whether it has one."""
    match = _STAMP.fullmatch(cell.strip())
    if not match:
        table.fail(line, column, f"a stamp such as 2023-11-16 18:15:46.6805900 expected, got {shown(cell)}")
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    try:
        days = date(int(year), int(month), int(day)).toordinal()
    except ValueError:
        table.fail(line, column, f"there is no such date as {shown(cell)}")
    seconds = ((days * 24 + int(hour)) * 60 + int(minute)) * 60 + int(second)
    if zone and zone != "Z":
        offset = int(zone[1:3]) * 3600 + int(zone[-2:]) * 60
        seconds -= offset if zone[0] == "+" else -offset
    return seconds * _SECOND_NS + int((fraction or "0").ljust(9, "0")), zone is not None

"""Mooncake traces (JSON lines: timestamp in ms, input_length, output_length, hash_ids of 512-token blocks)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from workloads.readers._table import Extra, Form, Row, Table, shown

BLOCK_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Mooncake:
    """Stamps in milliseconds, counts in tokens; `hash_ids` become the prefix ids, one per 512-token block.

    Source: kvcache-ai/Mooncake, FAST'25 release (repository Apache-2.0; the trace folder names no licence of its
    own). Every row has ceil(input_length / 512) ids. The recorded stamps sit on a 3-second grid, about ten
    requests at each, and are replayed as they are. The tokenizer is not published.
    """

    form: ClassVar[Form] = "json"
    needs: ClassVar[tuple[str, ...]] = ("timestamp", "input_length", "output_length", "hash_ids")
    stamp: ClassVar[str] = "timestamp"
    extras: ClassVar[tuple[Extra, ...]] = ("prefix_ids",)
    facts: ClassVar[Mapping[str, str]] = {
        "tokenizer": "not published",
        "stamps": "on a grid of about 3 s in the recorded traces, replayed as they are: several requests share one",
        "prefixes": f"ids of {BLOCK_TOKENS}-token blocks kept",
    }

    def rows(self, table: Table) -> Iterator[Row]:
        """Every row; a row without prompt or output tokens is told as dropped."""
        first_ms: float | None = None
        for line, cells in table.objects():
            missing = [n for n in self.needs if n not in cells]
            if missing:
                table.fail(line, missing[0], "missing")
            at_ms = table.number(line, "timestamp", cells["timestamp"])
            if first_ms is None:
                first_ms = at_ms
            prompt_tokens = table.tokens(line, "input_length", cells["input_length"])
            output_tokens = table.tokens(line, "output_length", cells["output_length"])
            ids = _ids(table, line, cells["hash_ids"], prompt_tokens)
            dropped = None
            if prompt_tokens == 0 or output_tokens == 0:
                dropped = f"{'input_length' if prompt_tokens == 0 else 'output_length'} is 0"
            yield Row(line, (at_ms - first_ms) / 1000, prompt_tokens, output_tokens, ids, dropped=dropped)


def _ids(table: Table, line: int, cell: object, prompt_tokens: int) -> tuple[int, ...]:
    if not isinstance(cell, list):
        table.fail(line, "hash_ids", f"a list of ids expected, got {shown(cell)}")
    for value in cell:
        if type(value) is not int or not 0 <= value < 1 << 63:
            table.fail(line, "hash_ids", f"an id must be a whole number from 0 to 2**63 - 1, got {shown(value)}")
    expected = -(-prompt_tokens // BLOCK_TOKENS)
    if len(cell) != expected:
        what = f"{expected} ids expected for {prompt_tokens} tokens in blocks of {BLOCK_TOKENS}"
        table.fail(line, "hash_ids", f"{what}, got {len(cell)}")
    return tuple(cell)

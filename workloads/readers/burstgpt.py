"""BurstGPT traces, parts 1 to 3 (CSV with the column names of either release)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from workloads.readers._table import Extra, Form, Row, Table, shown

_TAGS = {"Conversation log": "conversation", "API log": "api"}


@dataclass(frozen=True, slots=True)
class Burstgpt:
    """Stamps in whole seconds since day 0 of the collection, counts in tokens.

    Source: HPMLL/BurstGPT, data CC-BY-4.0 (Wang et al., KDD 2025). Part 3 inserts `Session ID` and `Elapsed
    time`, so columns go by name. `Response tokens` 0 marks a failure: such rows are told as dropped. Equal rows
    are kept: whole-second stamps make them legitimate. The log type becomes the tag, `conversation` or `api`.
    """

    form: ClassVar[Form] = "csv"
    needs: ClassVar[tuple[str, ...]] = ("Timestamp", "Request tokens", "Response tokens")
    stamp: ClassVar[str] = "Timestamp"
    extras: ClassVar[tuple[Extra, ...]] = ("sessions", "tags")
    facts: ClassVar[Mapping[str, str]] = {
        "tokenizer": "OpenAI's, of ChatGPT and GPT-4",
        "stamps": "whole seconds: several requests may share one",
    }

    def rows(self, table: Table) -> Iterator[Row]:
        """Every row, failures included (with the reason in `dropped`)."""
        stamp, prompt, output = self.needs
        first_s: float | None = None
        for line, cells in table.cells():
            at_s = table.number(line, stamp, cells[stamp])
            if first_s is None:
                first_s = at_s
            prompt_tokens = table.tokens(line, prompt, cells[prompt])
            output_tokens = table.tokens(line, output, cells[output])
            _check_total(table, line, cells.get("Total tokens", ""), prompt_tokens + output_tokens)
            log = cells.get("Log Type", "")
            yield Row(
                line,
                at_s - first_s,
                prompt_tokens,
                output_tokens,
                session=cells.get("Session ID", "").strip() or None,
                tag=_TAGS.get(log, log) or None,
                dropped=_dropped(prompt_tokens, output_tokens),
            )


def _dropped(prompt_tokens: int, output_tokens: int) -> str | None:
    if output_tokens == 0:
        return "failed (Response tokens is 0)"
    return "Request tokens is 0" if prompt_tokens == 0 else None


def _check_total(table: Table, line: int, cell: str, expected: int) -> None:
    """In every published row the total is the sum of both counts; another total means a damaged row."""
    if cell and table.tokens(line, "Total tokens", cell) != expected:
        table.fail(line, "Total tokens", f"{expected} expected (request + response), got {shown(cell)}")

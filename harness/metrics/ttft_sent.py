"""Time to first token, counted from sending (seconds per request).

Source: the start of clock of vLLM, SGLang and most load generators; it is reported
beside `ttft`, which a late client cannot flatter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from harness.metrics._lists import Assume, Better, Floats, first, lists, number

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class TtftSent:
    """First token minus `sent_s`; NaN for a request without a token."""

    name: ClassVar[str] = "ttft_sent"
    unit: ClassVar[str] = "s"
    better: ClassVar[Better] = "lower"
    assume: Assume = "nothing"

    def of(self, table: pa.Table) -> Floats:
        """(requests,) float64 seconds."""
        return first(lists(table, "token_s")) - number(table, "sent_s")

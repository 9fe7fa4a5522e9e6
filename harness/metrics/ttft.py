"""Time to first token, counted from the scheduled time (seconds per request).

Source: the start of clock of MLPerf's Server scenario (mlcommons/inference, loadgen). A late client is part
of it, as it is for a user.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from harness.metrics._lists import Assume, Better, Floats, first, lists, number

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Ttft:
    """First token minus `scheduled_s`; NaN for a request without a token."""

    name: ClassVar[str] = "ttft"
    unit: ClassVar[str] = "s"
    better: ClassVar[Better] = "lower"
    assume: Assume = "nothing"

    def of(self, table: pa.Table) -> Floats:
        """(requests,) float64 seconds."""
        return first(lists(table, "token_s")) - number(table, "scheduled_s")

"""End-to-end latency, from the scheduled time to the last token (seconds per request).

Source: "end-to-end latency" of MLPerf's Server scenario (mlcommons/inference, loadgen).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from harness.metrics._lists import Assume, Better, Floats, last, lists, number

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class E2e:
    """Last token minus `scheduled_s`; NaN for a request without a token."""

    name: ClassVar[str] = "e2e"
    unit: ClassVar[str] = "s"
    better: ClassVar[Better] = "lower"
    assume: Assume = "nothing"

    def of(self, table: pa.Table) -> Floats:
        """(requests,) float64 seconds."""
        return last(lists(table, "token_s")) - number(table, "scheduled_s")

"""How late the client sent (seconds per request); zero in a simulation.

Source: the schedule delay of open-loop load generators (Tene, "How NOT to measure latency", wrk2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from harness.metrics._lists import Assume, Better, Floats, number

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Lateness:
    """`sent_s` minus `scheduled_s`; NaN for a request that never left."""

    name: ClassVar[str] = "lateness"
    unit: ClassVar[str] = "s"
    better: ClassVar[Better] = "lower"
    assume: Assume = "nothing"

    def of(self, table: pa.Table) -> Floats:
        """(requests,) float64 seconds."""
        return number(table, "sent_s") - number(table, "scheduled_s")

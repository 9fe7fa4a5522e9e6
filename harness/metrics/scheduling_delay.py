"""How long a request waited before its prompt was first worked on (seconds per request).

Source: Agrawal et al., Sarathi-Serve, OSDI 2024: a median of at most 2 s is part of its capacity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from harness.metrics._lists import Assume, Better, Floats, number

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class SchedulingDelay:
    """`prefill_start_s` minus `scheduled_s`; NaN where the backend does not see it."""

    name: ClassVar[str] = "scheduling_delay"
    unit: ClassVar[str] = "s"
    better: ClassVar[Better] = "lower"
    assume: Assume = "nothing"

    def of(self, table: pa.Table) -> Floats:
        """(requests,) float64 seconds."""
        return number(table, "prefill_start_s") - number(table, "scheduled_s")

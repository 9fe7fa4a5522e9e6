"""End-to-end latency divided by output tokens (seconds per token, per request).

Source: Kwon et al., Efficient Memory Management for LLM Serving with PagedAttention, SOSP 2023, section 6.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from harness.metrics._lists import Assume, Better, Floats, last, lists, number, ratio

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class NormalizedLatency:
    """E2E / output tokens; NaN for a request without a token."""

    name: ClassVar[str] = "normalized_latency"
    unit: ClassVar[str] = "s"
    better: ClassVar[Better] = "lower"
    assume: Assume = "nothing"

    def of(self, table: pa.Table) -> Floats:
        """(requests,) float64 seconds."""
        e2e_s = last(lists(table, "token_s")) - number(table, "scheduled_s")
        return ratio(e2e_s, number(table, "output_tokens"))

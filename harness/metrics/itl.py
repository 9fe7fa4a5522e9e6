"""Inter-token latency: every single gap between token events, pooled over all requests (seconds).

Source: the ITL of vLLM and SGLang. One value per gap; tokens of one event make no gap among
themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from harness.metrics._lists import Assume, Better, Floats, gap_lists, lists, row_max

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Itl:
    """All gaps of all requests; a bound on it asks it of the largest gap of each request."""

    name: ClassVar[str] = "itl"
    unit: ClassVar[str] = "s"
    better: ClassVar[Better] = "lower"
    gaps: ClassVar[bool] = True  # first and last token do not tell it
    pooled: ClassVar[bool] = True
    assume: Assume = "nothing"

    def of(self, table: pa.Table) -> Floats:
        """(gaps,) float64 seconds, request by request."""
        return gap_lists(lists(table, "token_s")).values

    def worst(self, table: pa.Table) -> Floats:
        """Largest gap of each request, (requests,) float64 seconds; NaN for fewer than two token events."""
        return row_max(gap_lists(lists(table, "token_s")))

"""The 99th percentile of the gaps between token events of one request (seconds per request).

Source: numpy.quantile with linear interpolation, as everywhere here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from harness.metrics._lists import Assume, Better, Floats, gap_lists, lists, row_quantile

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class ItlP99:
    """p99 of a request's own gaps; NaN for fewer than two token events."""

    name: ClassVar[str] = "itl_p99"
    unit: ClassVar[str] = "s"
    better: ClassVar[Better] = "lower"
    gaps: ClassVar[bool] = True  # first and last token do not tell it
    on_request: ClassVar[bool] = True  # a sort per request
    assume: Assume = "nothing"

    def of(self, table: pa.Table) -> Floats:
        """(requests,) float64 seconds."""
        return row_quantile(gap_lists(lists(table, "token_s")), 0.99)

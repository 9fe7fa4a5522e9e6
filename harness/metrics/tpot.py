"""Time per output token after the first (seconds per request).

Source: equal to the TPOT of vLLM, SGLang and inference-perf.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from harness.metrics._lists import Assume, Better, Floats, first, last, lists, number, ratio

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Tpot:
    """(last - first) / (n - 1) for n output tokens; NaN for n < 2, which meets every bound.

    NaN too where all tokens came in one event, so that nobody knows the time between them.
    """

    name: ClassVar[str] = "tpot"
    unit: ClassVar[str] = "s"
    better: ClassVar[Better] = "lower"
    assume: Assume = "nothing"

    def of(self, table: pa.Table) -> Floats:
        """(requests,) float64 seconds."""
        stamps = lists(table, "token_s")
        more = number(table, "output_tokens") - 1
        more[np.diff(stamps.offsets) < 2] = 0  # one event: no time has passed that could be shared out
        return ratio(last(stamps) - first(stamps), more)

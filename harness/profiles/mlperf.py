"""MLPerf's LoadGen, Server scenario: from the scheduled time, two bounds at a percentile, no joint rule.

Source: mlcommons/inference, loadgen/results.cc.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from harness.profiles._base import Events, Floats, Gaps, Judged, Limits, Times, listed, per_later_token

TARGET = 0.99
"""The percentile of the Server scenario."""


@dataclass(frozen=True, slots=True)
class Mlperf:
    """p99 of TTFT and p99 of TPOT against their bounds; a percentile is element floor(N p) of the sorted list."""

    name: ClassVar[str] = "mlperf"
    tool: ClassVar[str] = "MLPerf LoadGen, Server"
    notes: ClassVar[tuple[str, ...]] = (
        "has two bounds at p99 and no joint attainment; failures cannot occur in it, here they are left out",
    )

    def times(self, events: Events) -> Times:
        """Of the requests that ended well."""
        return Times(
            listed(events.first_s - events.due_s, events.ok),
            listed(per_later_token(events.last_s - events.first_s, events.tokens - 1), events.ok),
            listed(events.last_s - events.due_s, events.ok),
        )

    def itl(self, gaps: Gaps) -> Floats | None:  # noqa: ARG002  # it has none
        """None: it sees the first and the last token."""
        return None

    def percentile(self, values: Floats, q: float) -> float:
        """The element floor(N q) of the sorted values, counted from 0."""
        place = min(math.floor(len(values) * q), len(values) - 1)
        return float(np.partition(values, place)[place])

    def judge(self, events: Events, times: Times, limits: Limits) -> Judged:  # noqa: ARG002  # the profile's signature
        """1 for each bound that holds at the percentile, 0 for one that does not."""
        said = []
        for metric in ("ttft", "tpot"):
            values = times.of(metric)
            values = values[~np.isnan(values)]
            if metric in limits and len(values):
                said.append(
                    (f"{metric} p99 within the bound", float(self.percentile(values, TARGET) <= limits[metric]))
                )
        return Judged(None, None, None, tuple(said))

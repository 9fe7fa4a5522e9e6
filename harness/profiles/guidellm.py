"""guidellm 0.8.1: from the first write; an answer without a value for a bound is left out of the attainment.

Source: vllm-project/guidellm, its benchmark and SLO metrics.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from harness.profiles._base import (
    Events,
    Floats,
    Gaps,
    Judged,
    Limits,
    Times,
    count,
    kept,
    listed,
    per_later_token,
    span_s,
    step_quantile,
)


@dataclass(frozen=True, slots=True)
class Guidellm:
    """TPOT (last - first)/(N - 1), which it calls ITL; null for one token, which makes a bound undetermined."""

    name: ClassVar[str] = "guidellm"
    tool: ClassVar[str] = "guidellm 0.8.1"
    notes: ClassVar[tuple[str, ...]] = (
        "calls this TPOT its inter-token latency and counts it once per later token, so that long answers weigh more",
        "its own 'time per output token' is (last - sent)/N, TTFT included",
        "keeps no gap between the first and the last token",
        "its E2E ends with the stream, which is not stored: the last token stands for it",
    )

    def times(self, events: Events) -> Times:
        """Of the requests that ended well."""
        return Times(
            listed(events.first_s - events.sent_s, events.ok),
            listed(per_later_token(events.last_s - events.first_s, events.tokens - 1), events.ok),
            listed(events.end_s - events.sent_s, events.ok),
            tpot_weight=np.maximum(events.tokens - 1, 0.0),
        )

    def itl(self, gaps: Gaps) -> Floats | None:  # noqa: ARG002  # it has none
        """None: it stores none."""
        return None

    def percentile(self, values: Floats, q: float) -> float:
        """An element of the list: guidellm does not interpolate."""
        return step_quantile(values, q)

    def judge(self, events: Events, times: Times, limits: Limits) -> Judged:
        """Good of the determined ones; errors are bad, what was cut off or has no value for a bound is left out."""
        good, unknown = kept(times, limits, "out")
        determined = ~events.cut_off & (~events.ok | ~unknown)
        window_s = span_s(events.sent_s, events.end_s, events.ok)
        return Judged(count(good & events.ok & determined), count(determined), window_s)

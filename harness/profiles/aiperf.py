"""aiperf 0.13.0: from the request call; a missing value is bad, so one-token answers miss a bound on TPOT.

Source: ai-dynamo/aiperf, its metric types and good_request_count.
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
)
from harness.quantiles import quantile


@dataclass(frozen=True, slots=True)
class Aiperf:
    """TPOT (E2E - TTFT)/(N - tokens of the first chunk), which it calls ITL; none for N < 2."""

    name: ClassVar[str] = "aiperf"
    tool: ClassVar[str] = "aiperf 0.13.0"
    notes: ClassVar[tuple[str, ...]] = (
        "needs a tokenizer: by default it counts tokens itself; here they are the server's (--use-server-token-count)",
        "calls this TPOT inter_token_latency; its inter_chunk_latency are the gaps",
        "its goodput is per second of its whole phase, a little longer than from the first start to the last end",
    )

    def times(self, events: Events) -> Times:
        """Of the requests that ended well."""
        before = np.where(np.isnan(events.first_tokens), 1.0, events.first_tokens)
        tpot = per_later_token(events.last_s - events.first_s, np.where(events.tokens < 2, 0, events.tokens - before))
        return Times(
            listed(events.first_s - events.sent_s, events.ok),
            listed(tpot, events.ok),
            listed(events.last_s - events.sent_s, events.ok),
        )

    def itl(self, gaps: Gaps) -> Floats | None:
        """Its inter-chunk latency: every gap between token events."""
        return gaps.values_s

    def percentile(self, values: Floats, q: float) -> float:
        """Linear interpolation."""
        return quantile(values, q)

    def judge(self, events: Events, times: Times, limits: Limits) -> Judged:
        """Good of the valid and the failed ones, per second from the first start to the last end."""
        good, _ = kept(times, limits, "bad")
        ended = events.ok | np.isfinite(events.end_s)
        return Judged(count(good & events.ok), len(events.ok), span_s(events.sent_s, events.end_s, ended))

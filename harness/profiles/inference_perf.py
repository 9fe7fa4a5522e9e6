"""inference-perf 0.7.0: from sending, attainment over successful requests only; a missing value is bad.

Source: kubernetes-sigs/inference-perf, its request lifecycle metrics and goodput.
"""

from dataclasses import dataclass
from typing import ClassVar

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
class InferencePerf:
    """TPOT (last - first)/(N - 1), null for one token; TTFT is null too where there is only one token."""

    name: ClassVar[str] = "inference-perf"
    tool: ClassVar[str] = "inference-perf 0.7.0"
    notes: ClassVar[tuple[str, ...]] = (
        "needs a tokenizer: by default it counts tokens itself; here they are the server's (use_server_output_tokens)",
        "repeats the time of a chunk for each of its tokens: gaps of zero inside chunks are part of its ITL",
        "its E2E ends after its own work on the answer, which nobody stores: the last token stands for it",
    )

    def times(self, events: Events) -> Times:
        """Of the requests that ended well."""
        several = events.ok & (events.tokens > 1)
        return Times(
            listed(events.first_s - events.sent_s, several),
            listed(per_later_token(events.last_s - events.first_s, events.tokens - 1), events.ok),
            listed(events.end_s - events.sent_s, events.ok),
        )

    def itl(self, gaps: Gaps) -> Floats | None:
        """The gaps, and a zero for every token after the first of an event."""
        return gaps.with_zeros()

    def percentile(self, values: Floats, q: float) -> float:
        """numpy.percentile, linear."""
        return quantile(values, q)

    def judge(self, events: Events, times: Times, limits: Limits) -> Judged:
        """Good of the successful ones, per second from the first start to the last end."""
        good, _ = kept(times, limits, "bad")
        return Judged(count(good & events.ok), count(events.ok), span_s(events.sent_s, events.end_s, events.ok))

"""SGLang's bench 0.5.23: from sending, E2E and TPOT to the last line of the stream, attainment over all that was sent.

Source: sgl-project/sglang, sglang/benchmark/serving.py and goodput.py.
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
class Sglang:
    """TPOT (E2E - TTFT)/(N - 1), 0 in goodput for one token; every failure is bad."""

    name: ClassVar[str] = "sglang"
    tool: ClassVar[str] = "sglang bench 0.5.23"
    notes: ClassVar[tuple[str, ...]] = (
        "its E2E and TPOT end with the last line of the stream, which is not stored: the last token stands for it",
    )

    def times(self, events: Events) -> Times:
        """Of the requests that ended well."""
        return Times(
            listed(events.first_s - events.sent_s, events.ok),
            listed(per_later_token(events.end_s - events.first_s, events.tokens - 1), events.ok),
            listed(events.end_s - events.sent_s, events.ok),
        )

    def itl(self, gaps: Gaps) -> Floats | None:
        """Every gap between token events, pooled."""
        return gaps.values_s

    def percentile(self, values: Floats, q: float) -> float:
        """numpy.percentile, linear."""
        return quantile(values, q)

    def judge(self, events: Events, times: Times, limits: Limits) -> Judged:
        """Good requests of all that were sent, per second of the whole duration."""
        good, _ = kept(times, limits, "good")
        return Judged(count(good & events.ok), len(events.ok), span_s(events.start_s, events.end_s))

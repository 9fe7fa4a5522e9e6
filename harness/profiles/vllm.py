"""`vllm bench serve` 0.33.0: from sending, over the requests that completed, in the whole duration.

Source: vllm-project/vllm, vllm/benchmarks/serve.py and lib/endpoint_request_func.py.
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
class Vllm:
    """TTFT and E2E from sending, TPOT (E2E - TTFT)/(N - 1), left out for one token, which counts as 0 in goodput."""

    name: ClassVar[str] = "vllm"
    tool: ClassVar[str] = "vllm bench serve 0.33.0"
    notes: ClassVar[tuple[str, ...]] = (
        "prints no attainment: its goodput divides by the whole duration, drain included",
        "an empty finish chunk with a content field moves its E2E; such chunks are not stored",
    )

    def times(self, events: Events) -> Times:
        """Of the requests that completed."""
        return from_sending(events, events.first_s)

    def itl(self, gaps: Gaps) -> Floats | None:
        """Every gap between token events, pooled."""
        return gaps.values_s

    def percentile(self, values: Floats, q: float) -> float:
        """numpy.percentile, linear."""
        return quantile(values, q)

    def judge(self, events: Events, times: Times, limits: Limits) -> Judged:
        """Completed requests within every bound, per second of the duration."""
        good, _ = kept(times, limits, "good")
        return Judged(count(good & events.ok), None, span_s(events.start_s, events.last_s))


def from_sending(events: Events, first_s: Floats) -> Times:
    """Times from sending with a first event at `first_s`; TPOT is what is left after it, over the later tokens."""
    tpot = per_later_token(events.last_s - first_s, events.tokens - 1)
    return Times(
        listed(first_s - events.sent_s, events.ok),
        listed(tpot, events.ok),
        listed(events.last_s - events.sent_s, events.ok),
    )

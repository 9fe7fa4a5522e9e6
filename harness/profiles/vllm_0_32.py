"""`vllm bench serve` 0.32: as 0.33, but in chat a chunk with nothing but a role is the first token.

Source: vllm-project/vllm, vllm/benchmarks/lib/endpoint_request_func.py of 0.32.
"""

from dataclasses import dataclass
from typing import ClassVar

from harness.profiles._base import Events, Floats, Gaps, Judged, Limits, Times, count, kept, span_s
from harness.profiles.vllm import from_sending
from harness.quantiles import quantile


@dataclass(frozen=True, slots=True)
class Vllm032:
    """TTFT to the first event of any kind, which a server may send before it has computed anything."""

    name: ClassVar[str] = "vllm-0.32"
    tool: ClassVar[str] = "vllm bench serve 0.32"
    notes: ClassVar[tuple[str, ...]] = (
        "its first token is the first event of the stream, which only a run against a remote server holds",
        "its E2E ends with the finish chunk, which is not stored: the last token stands for it",
    )

    def times(self, events: Events) -> Times:
        """Of the requests that completed."""
        return from_sending(events, events.opened_s)

    def itl(self, gaps: Gaps) -> Floats | None:
        """Every gap between token events, pooled; the gap after the role is missing."""
        return gaps.values_s

    def percentile(self, values: Floats, q: float) -> float:
        """numpy.percentile, linear."""
        return quantile(values, q)

    def judge(self, events: Events, times: Times, limits: Limits) -> Judged:
        """Completed requests within every bound, per second of the duration."""
        good, _ = kept(times, limits, "good")
        return Judged(count(good & events.ok), None, span_s(events.start_s, events.last_s))

"""DistServe's simulator: the time of decoding is shared by all n tokens, and percentiles are met one by one.

Source: LLMServe/DistServe, simdistserve/base/organize_data.py and request.py.
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
    listed,
    per_later_token,
    sending_s,
)
from harness.quantiles import quantile


@dataclass(frozen=True, slots=True)
class DistserveSim:
    """TPOT (last - first)/n; each bound is counted apart, as its placement search does."""

    name: ClassVar[str] = "distserve-sim"
    tool: ClassVar[str] = "simdistserve"
    notes: ClassVar[tuple[str, ...]] = (
        "runs n decode steps after the first token and divides by n; here there are n - 1 steps",
        "its search asks each bound apart, never of the same request: the lowest share is shown",
    )

    def times(self, events: Events) -> Times:
        """Of the requests that ended well."""
        return Times(
            listed(events.first_s - events.due_s, events.ok),
            listed(per_later_token(events.last_s - events.first_s, events.tokens), events.ok),
            listed(events.last_s - events.due_s, events.ok),
        )

    def itl(self, gaps: Gaps) -> Floats | None:  # noqa: ARG002  # it has none
        """None: it looks at whole answers."""
        return None

    def percentile(self, values: Floats, q: float) -> float:
        """Linear interpolation."""
        return quantile(values, q)

    def judge(self, events: Events, times: Times, limits: Limits) -> Judged:
        """The share of the bound that fewest requests keep."""
        kept = [count(events.ok & ~(times.of(metric) > limit_s)) for metric, limit_s in limits.items()]
        good = min(kept, default=count(events.ok))
        return Judged(good, len(events.ok), sending_s(events.due_s))

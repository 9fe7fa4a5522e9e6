"""This program: from the scheduled time, joint over all requests, every failure misses.

Source: the definitions that every report of `bench` prints.
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
    sending_s,
)
from harness.quantiles import quantile


@dataclass(frozen=True, slots=True)
class Bench:
    """TTFT and E2E from `scheduled_s`, TPOT (last - first)/(n - 1); one token has no TPOT and meets its bound."""

    name: ClassVar[str] = "bench"
    tool: ClassVar[str] = "bench"
    notes: ClassVar[tuple[str, ...]] = ()

    def times(self, events: Events) -> Times:
        """Of the requests that ended well."""
        tpot = per_later_token(events.last_s - events.first_s, events.tokens - 1)
        tpot[events.events < 2] = float("nan")  # one event: nobody knows the time between its tokens
        return Times(
            listed(events.first_s - events.due_s, events.ok),
            listed(tpot, events.ok),
            listed(events.last_s - events.due_s, events.ok),
        )

    def itl(self, gaps: Gaps) -> Floats | None:
        """Every gap between token events, pooled."""
        return gaps.values_s

    def percentile(self, values: Floats, q: float) -> float:
        """Linear interpolation."""
        return quantile(values, q)

    def judge(self, events: Events, times: Times, limits: Limits) -> Judged:
        """Of all requests; the window is that of sending, not that of the drain."""
        good, _ = kept(times, limits, "good")
        return Judged(count(good & events.ok), len(events.ok), sending_s(events.due_s))

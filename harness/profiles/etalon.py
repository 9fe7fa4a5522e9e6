"""Etalon: a token has a deadline of its own, and early tokens bank slack for later ones (fluidity index).

Source: project-etalon/etalon, metrics/metric_utils.py (get_service_level_deadline_miss_rate).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from harness.profiles._base import Events, Floats, Gaps, Judged, Limits, Times, count, listed, per_later_token
from harness.quantiles import quantile
from harness.rescore.walk import deadlines

LEAST = 0.9
"""Fluidity index of a request that counts as served: at most a tenth of its deadlines missed (its own target)."""


@dataclass(frozen=True, slots=True)
class Etalon:
    """TTFT from sending, TPOT the mean gap after the first token; share of deadlines that were kept."""

    name: ClassVar[str] = "etalon"
    tool: ClassVar[str] = "Etalon d5f18de"
    notes: ClassVar[tuple[str, ...]] = (
        "needs a tokenizer: it counts tokens itself; here they are the server's",
        "a late token misses every deadline that passed meanwhile, then deadlines start anew; good: at most 10% missed",
    )

    def times(self, events: Events) -> Times:
        """Of the requests that ended well; E2E is the sum of the gaps and the TTFT."""
        return Times(
            listed(events.first_s - events.sent_s, events.ok),
            listed(per_later_token(events.last_s - events.first_s, events.tokens - 1), events.ok),
            listed(events.last_s - events.sent_s, events.ok),
        )

    def itl(self, gaps: Gaps) -> Floats | None:
        """The gaps, and a zero for every token after the first of an event."""
        return np.concatenate([gaps.values_s, np.zeros(gaps.inside)])

    def percentile(self, values: Floats, q: float) -> float:
        """Linear interpolation."""
        return quantile(values, q)

    def judge(self, events: Events, times: Times, limits: Limits) -> Judged:
        """Requests that keep nine tenths of their deadlines, and the share of all deadlines that is kept."""
        if not {"ttft", "tpot"} <= limits.keys() or events.gaps is None:
            return Judged(None, None, None)
        found = deadlines(times.ttft[events.ok], events.gaps, limits["ttft"], limits["tpot"])
        missed, total = int(found.missed.sum()), int(found.total.sum())
        fluid = found.missed <= (1 - LEAST) * found.total
        said = (("fluidity index", 1 - missed / total),) if total else ()
        return Judged(count(fluid), count(events.ok), None, said)

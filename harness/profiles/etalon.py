"""Etalon: a token has a deadline of its own, and early tokens bank slack for later ones (fluidity index).

Source: project-etalon/etalon, metrics/metric_utils.py (get_service_level_deadline_miss_rate).
"""

from dataclasses import dataclass
from typing import ClassVar

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
        return gaps.with_zeros()

    def percentile(self, values: Floats, q: float) -> float:
        """Linear interpolation."""
        return quantile(values, q)

    def judge(self, events: Events, times: Times, limits: Limits) -> Judged:
        """Requests that keep nine tenths of their deadlines, and the share of all deadlines that is kept."""
        if not {"ttft", "tpot"} <= limits.keys() or events.gaps is None:
            return Judged(None, None, None)
        good = missed = total = at = 0
        first_s = times.ttft[events.ok]
        for gaps in events.gaps():
            rows = len(gaps.offsets) - 1
            found = deadlines(first_s[at : at + rows], gaps, limits["ttft"], limits["tpot"])
            good += count(found.missed <= (1 - LEAST) * found.total)
            missed, total, at = missed + int(found.missed.sum()), total + int(found.total.sum()), at + rows
        said = (("fluidity index", 1 - missed / total),) if total else ()
        return Judged(good, count(events.ok), None, said)

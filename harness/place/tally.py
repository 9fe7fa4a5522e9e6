"""Whether a trial keeps its conditions: counted record by record, and ended as soon as that is certain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from harness.capacity.conditions import JOINT, Condition, Share, kept_all, shares
from harness.records import to_table
from harness.slo import bound_text

if TYPE_CHECKING:
    from harness.api import Bound, RequestRecord, Slo

COUNTED = ("ttft", "tpot", "e2e")
"""Metrics of a bound that is looked at as records come; with another the whole trial is scored as a table."""


def missed(records: Iterable[RequestRecord], slo: Slo, wanted: Sequence[Condition], planned: int) -> str | None:
    """The condition with the least room of those that a trial of `planned` requests does not keep; None: it keeps all.

    Records are taken only until it is certain. `wanted` are conditions of that SLO.
    """
    if any(bound.metric not in COUNTED or bound.tag is not None for bound in slo.bounds):
        return _scored(records, slo, wanted)
    kept: list[RequestRecord] = []
    tally = _Tally(slo, wanted, planned)
    for record in records:
        if record.slo_ttft_s is not None or record.slo_tpot_s is not None:  # its own bounds take the place of ours
            return _scored([*kept, record, *records], slo, wanted)
        kept.append(record)
        if (found := tally.take(record)) is not None:
            return found
        if tally.sure:
            return None
    return tally.worst()


def _scored(records: Iterable[RequestRecord], slo: Slo, wanted: Sequence[Condition]) -> str | None:
    found = shares(to_table(list(records)), slo)
    if kept_all(found, wanted):
        return None
    by_text: dict[str, Share] = {share.text: share for share in found}
    return min(wanted, key=lambda c: by_text[c.text].met / max(1, by_text[c.text].of) - c.goal).text


class _Tally:
    """Misses of each condition so far, against those that are allowed."""

    def __init__(self, slo: Slo, wanted: Sequence[Condition], planned: int) -> None:
        self._planned = planned
        each = [bound for bound in slo.bounds if bound.percentile is None]
        named = {bound_text(bound): [bound] for bound in slo.bounds} | {JOINT: each}
        self._watched = [(condition.text, named[condition.text]) for condition in wanted]
        self._allowed = {c.text: planned - c.goal * planned + 1e-9 for c in wanted}
        self._misses = dict.fromkeys(self._allowed, 0)
        self._seen = 0

    def take(self, record: RequestRecord) -> str | None:
        """Count a record; the condition that is certainly missed now, where one is."""
        self._seen += 1
        values = _values(record)
        for text, bounds in self._watched:
            if not all(_kept(values, bound) for bound in bounds):
                self._misses[text] += 1
                if self._misses[text] > self._allowed[text]:
                    return text
        return None

    @property
    def sure(self) -> bool:
        """Whether all conditions are kept whatever is still to come."""
        left = self._planned - self._seen
        return all(self._misses[text] + left <= allowed for text, allowed in self._allowed.items())

    def worst(self) -> str | None:
        """The condition that is missed most when all is over; fewer records than planned may have come."""
        over = {
            text: self._misses[text] - allowed * self._seen / self._planned for text, allowed in self._allowed.items()
        }
        text = max(over, key=lambda name: over[name])
        return text if over[text] > 1e-6 else None


def _values(record: RequestRecord) -> dict[str, float] | None:
    """Seconds of each counted metric; None for a request that failed. What is undefined meets its bound."""
    if record.status != "ok":
        return None
    times = record.token_s
    first_s, last_s, later = times[0], times[-1], len(times) - 1
    tpot_s = (last_s - first_s) / later if later else 0.0
    return {"ttft": first_s - record.scheduled_s, "tpot": tpot_s, "e2e": last_s - record.scheduled_s}


def _kept(values: dict[str, float] | None, bound: Bound) -> bool:
    return values is not None and values[bound.metric] <= bound.limit

"""Whether a trial keeps its conditions: counted record by record, and ended as soon as that is certain."""

from collections.abc import Iterable, Mapping, Sequence

from harness.api import RequestRecord, Slo
from harness.capacity.conditions import JOINT, Condition, Share, kept_all, shares
from harness.records import to_table
from harness.slo import bound_text

COUNTED = ("ttft", "tpot", "e2e")
"""Metrics of a bound that is looked at as records come; with another the whole trial is scored as a table."""


def missed(records: Iterable[RequestRecord], slo: Slo, wanted: Sequence[Condition], planned: int) -> str | None:
    """What a trial of `planned` requests does not keep, the condition with the least room; None: it keeps all.

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
    text = min(wanted, key=lambda c: by_text[c.text].met / max(1, by_text[c.text].of) - c.goal).text
    return _named(text, slo, {text: share.of - share.met for text, share in by_text.items()})


def _named(text: str, slo: Slo, misses: Mapping[str, int]) -> str:
    """The name of a condition; of all bounds at once, that of the bound which is missed most."""
    each = [bound_text(bound) for bound in slo.bounds if bound.percentile is None]
    return max(each, key=lambda name: misses.get(name, 0)) if text == JOINT and each else text


class _Tally:
    """Misses of each condition so far, against those that are allowed, and of each bound."""

    def __init__(self, slo: Slo, wanted: Sequence[Condition], planned: int) -> None:
        self._planned = planned
        self._slo = slo
        self._bounds = [(bound_text(bound), bound) for bound in slo.bounds]
        every = tuple(bound_text(bound) for bound in slo.bounds if bound.percentile is None)
        self._watched = [(c.text, every if c.text == JOINT else (c.text,)) for c in wanted]
        self._allowed = {c.text: planned - c.goal * planned + 1e-9 for c in wanted}
        self._misses = dict.fromkeys([*self._allowed, *(text for text, _ in self._bounds)], 0)
        self._seen = 0

    def take(self, record: RequestRecord) -> str | None:
        """Count a record; what is certainly missed now, where anything is."""
        self._seen += 1
        values = _values(record)
        broken = {text for text, bound in self._bounds if values is None or values[bound.metric] > bound.limit}
        if not broken:
            return None
        counted = broken | {text for text, bounds in self._watched if not broken.isdisjoint(bounds)}
        for text in counted:
            self._misses[text] += 1
        over = [text for text, allowed in self._allowed.items() if self._misses[text] > allowed]
        return _named(over[0], self._slo, self._misses) if over else None

    @property
    def sure(self) -> bool:
        """Whether all conditions are kept whatever is still to come."""
        left = self._planned - self._seen
        return all(self._misses[text] + left <= allowed for text, allowed in self._allowed.items())

    def worst(self) -> str | None:
        """What is missed most when all is over, where anything is; fewer records than planned may have come."""
        share = self._seen / self._planned
        over = {text: self._misses[text] - allowed * share for text, allowed in self._allowed.items()}
        text = max(over, key=lambda name: over[name])
        return _named(text, self._slo, self._misses) if over[text] > 1e-6 else None


def _values(record: RequestRecord) -> dict[str, float] | None:
    """Seconds of each counted metric; None for a request that failed. What is undefined meets its bound."""
    if record.status != "ok":
        return None
    times = record.token_s
    first_s, last_s, later = times[0], times[-1], len(times) - 1
    tpot_s = (last_s - first_s) / later if later else 0.0
    return {"ttft": first_s - record.scheduled_s, "tpot": tpot_s, "e2e": last_s - record.scheduled_s}

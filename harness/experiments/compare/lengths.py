"""Whether the head answered as much as the base: output tokens per request, compared before any speed.

A head whose answers are shorter does less work, and one whose answers are longer does more: neither is faster or slower
for it. The same requests are compared one by one, because where the server ends an answer is chance.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec import structs

from harness.data.lists import number
from harness.data.records import since
from harness.experiments.compare import refusals, verdict
from harness.experiments.compare.compare_json import Difference, GateRow, LengthChange, LengthRow, RowVerdict
from harness.experiments.compare.gates import OUTPUT_TOKENS
from harness.experiments.compare.pairing import Pair, Searched
from harness.metrics.measure import succeeded
from harness.stats.paired import Decision, Limits, decide

Floats: TypeAlias = npt.NDArray[np.float64]

SHORTER, LONGER = 0.99, 1.01
"""Output tokens per request of the head over those of the base, between which both did the same work."""

SUSPECT = 0.1
"""A fall that may be chance leaves every speed open from here on: in few requests even a quarter of the work may."""

UNSEEN = 0.05
"""A fall that would not be found is warned of from here on: that of a speed that must be found (`gates`)."""


@dataclass(frozen=True, slots=True)
class Answered:
    """Output tokens at one point of a sweep, of requests that ended well on both sides.

    `base` and `head` are tokens summed over each group of requests that are not independent of one another (a session,
    else a single request), `requests` how many there are. `exact` where neither side has noise.
    """

    base: Floats
    head: Floats
    requests: int
    series: verdict.Series
    exact: bool

    def decided(self, alpha: float) -> tuple[LengthChange, Decision]:
        """Whether the mean fell or rose by more than 1 %, and surely at all: paired t on the differences.

        Where the lengths are chance and neither side is shorter, either call has a probability below `alpha`. In the
        unit of losses, which is -ln of the ratio.
        """
        fall, mean = self.base - self.head, float(self.base.mean())
        test = decide(fall.tolist(), Limits(0.0, math.inf), alpha)
        ratio, low, high = (1 - loss / mean for loss in (test.mean, test.high, test.low))
        sure = self.exact or (test.sd == 0 and len(fall) > 1)
        change: LengthChange = "same"
        if ratio < SHORTER and (sure or high < 1):
            change = "shorter"
        elif ratio > LONGER and (sure or low > 1):
            change = "longer"
        unseen = None if test.mde is None else _loss(1 - test.mde / mean)
        return change, replace(test, mean=_loss(ratio), low=_loss(high), high=_loss(low), p_sign_flip=None, mde=unseen)


def _loss(ratio: float) -> float:
    return 0.0 - math.log(ratio) if ratio > 0 else math.inf


def compared(pairs: Sequence[Pair], cuts_s: Sequence[float], alpha: float) -> list[LengthRow]:
    """A row for each point where the tokens of both sides are known.

    Several points share alpha equally, so that many of them do not make a false alarm likelier.
    """
    answered = [*_answered(pairs, cuts_s)]
    rows = []
    for at_point in answered:
        change, decision = at_point.decided(alpha / len(answered))
        row = structs.asdict(verdict.row(at_point.series, decision))
        rows.append(LengthRow(**row, change=change, requests=at_point.requests))
    return rows


def gated(row: LengthRow) -> GateRow | None:
    """A row as one of those that decide: fewer output tokens are a loss, and many fewer may be one.

    None for a row that decides nothing.
    """
    many_fewer = row.change_pct is not None and row.change_pct < -100 * SUSPECT
    if row.change != "shorter" and not (row.change == "same" and many_fewer):
        return None
    state: RowVerdict = "regressed" if row.change == "shorter" else "inconclusive"
    return GateRow(**structs.asdict(row), min_effect_pct=1.0, must_detect_pct=1.0, pairs_needed=None, verdict=state)


def different(row: LengthRow) -> Difference:
    """The difference of a row, as it is refused or allowed."""
    assert row.base is not None and row.head is not None and row.change_pct is not None  # both sides have tokens
    place = ", ".join(f"{name} {value}" for name, value in row.point.items())
    base = f"{row.base:.4g} tokens a request{f' at {place}' if place else ''}"
    change = f"{abs(row.change_pct):.3g}% {'fewer' if row.change == 'shorter' else 'more'}"
    return Difference(refusals.OUTPUT_LENGTHS, base, f"{row.head:.4g} ({change})")


def warning(row: LengthRow) -> str | None:
    """What must be known where lengths differ by chance, and a fall that matters would not be found."""
    least_pct = 100.0 if row.mde_pct is None else row.mde_pct
    if row.change != "same" or not any(row.losses) or least_pct <= 100 * UNSEEN:
        return None
    unseen = "no fall" if (least := f"{least_pct:.3g}") == "100" else f"only a fall by {least}% or more"
    return (
        f"answers end where the server likes: {unseen} of the output tokens per request would have been found by "
        f"these {row.requests:,} requests"
    )


def _answered(pairs: Sequence[Pair], cuts_s: Sequence[float]) -> Iterable[Answered]:
    for point in dict.fromkeys(tuple(pair.point.items()) for pair in pairs):
        at_point = [(p, cut) for p, cut in zip(pairs, cuts_s, strict=True) if tuple(p.point.items()) == point]
        parts = [part for pair, cut_s in at_point if (part := _tokens(pair, cut_s)) is not None]
        base, head = (np.concatenate([part[side] for part in parts]) if parts else np.zeros(0) for side in (0, 1))
        if not base.sum():
            continue
        series = verdict.Series(
            OUTPUT_TOKENS,
            dict(point),
            tuple(float(part[0].sum()) / part[2] for part in parts),
            tuple(float(part[1].sum()) / part[2] for part in parts),
        )
        exact = all(refusals.is_virtual(pair) for pair, _ in at_point)
        yield Answered(base, head, sum(part[2] for part in parts), series, exact)


def _tokens(pair: Pair, cut_s: float) -> tuple[Floats, Floats, int] | None:
    """(groups,) output tokens of base and head, and of how many requests; None where a side has none."""
    if isinstance(pair.base, Searched) or isinstance(pair.head, Searched):
        means = [side.output_tokens if isinstance(side, Searched) else None for side in (pair.base, pair.head)]
        return None if None in means else (np.array(means[:1], float), np.array(means[1:], float), 1)
    base, head = (since(run.requests, cut_s) for run in (pair.base, pair.head))
    base, head = base.filter(succeeded(base)), head.filter(succeeded(head))
    _, base_rows, head_rows = np.intersect1d(base["request_id"], head["request_id"], return_indices=True)
    if not len(base_rows):
        return None
    base_tokens, head_tokens = (number(t, "output_tokens")[rows] for t, rows in ((base, base_rows), (head, head_rows)))
    if not (pair.base.info.source or pair.head.info.source):  # other tools do not say what was requested
        requested, requested_of_head = (
            number(t, "output_tokens_asked")[rows].sum() for t, rows in ((base, base_rows), (head, head_rows))
        )
        head_tokens = head_tokens * (requested / requested_of_head)  # 1, but where other requests were allowed
    session = number(base, "session")[base_rows]
    sessionless = np.isnan(session)
    session[sessionless] = -1 - np.arange(sessionless.sum())
    group = np.unique(session, return_inverse=True)[1]
    return np.bincount(group, base_tokens).astype(float), np.bincount(group, head_tokens).astype(float), len(base_rows)

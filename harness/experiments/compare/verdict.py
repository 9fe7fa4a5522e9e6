"""A row of the comparison for each quantity: both values, the change, its bounds, and what follows from them.

Where two runs of a simulator part: it has no noise, so the first difference is where the cause shows.

How many interim analyses there may be before the verdict: each is another chance to be wrong.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import structs

from harness.data.folder import Run
from harness.data.lists import lists
from harness.experiments.compare.compare_json import FirstDifference, GateRow, Parting, Row, SideValues, SteadyRow
from harness.experiments.compare.gates import Gate, Quantity
from harness.stats.paired import (
    ALPHA,
    LEAST_PAIRS,
    Decision,
    Limits,
    Verdict,
    decide,
    decide_all,
    outliers,
    uneven,
)

Value = float | None


Mask: TypeAlias = npt.NDArray[np.bool_]
INTERIM = (3, 5, 7, 10)
"""Numbers of pairs after which `--pairs auto` makes an interim analysis, and stops where the answer is clear."""
ALPHA_INTERIM = 0.003
"""Alpha at each of up to four analyses with 1 % in all: 0.99 % in 200,000 draws (tests/perf)."""


@dataclass(frozen=True, slots=True)
class Series:
    """A quantity at one point of a sweep: its value in the base and in the head of every pair.

    `steady` has the loss of the median group of requests of each pair, and the scatter of the groups; empty where it is
    not known of all pairs.
    """

    quantity: Quantity
    point: Mapping[str, str]
    base: tuple[Value, ...]
    head: tuple[Value, ...]
    steady: tuple[tuple[float, float], ...] = ()

    @property
    def every(self) -> list[Value]:
        """The loss of each pair: None where neither side can be measured, infinite where one cannot."""
        return [self.quantity.loss(a, b) for a, b in zip(self.base, self.head, strict=True)]

    @property
    def losses(self) -> list[float]:
        """The losses that are numbers."""
        return [loss for loss in self.every if loss is not None and math.isfinite(loss)]

    @property
    def endless(self) -> list[float]:
        """The losses that are infinite: what cannot be measured any more is worse than anything that can."""
        return [loss for loss in self.every if loss is not None and math.isinf(loss)]

    @property
    def is_there(self) -> bool:
        """Whether any run has a value."""
        return any(value is not None for value in (*self.base, *self.head))


def paired(gated: Sequence[tuple[Gate, Series]], alpha: float) -> list[GateRow]:
    """The rows of the gates, each with its p adjusted for all of them."""
    cases = {
        place: (series.losses, gate.limits, [loss for loss, _ in series.steady])
        for place, (gate, series) in enumerate(gated)
        if series.losses
    }
    decisions = decide_all(cases, alpha)
    return [
        _gate_row(gate, series, decision := decisions.get(place), _paired_verdict(series, decision))
        for place, (gate, series) in enumerate(gated)
    ]


def exact(gated: Sequence[tuple[Gate, Series]], alpha: float) -> list[GateRow]:
    """The rows of the gates on simulators: what is worse at all is worse, where no seed says otherwise."""
    return [
        _gate_row(gate, series, _over_seeds(series, alpha), _exact_verdict(gate, series, alpha))
        for gate, series in gated
    ]


def shown(series: Sequence[Series], alpha: float) -> list[Row]:
    """The rows of what is shown and decides nothing."""
    return [row(measured, _over_seeds(measured, alpha)) for measured in series if measured.is_there]


def _over_seeds(series: Series, alpha: float) -> Decision | None:
    """Mean and bounds of the losses; no verdict is taken from it."""
    return decide(series.losses, Limits(0.0, math.inf), alpha) if series.losses else None


def _exact_verdict(gate: Gate, series: Series, alpha: float) -> Verdict:
    """The verdict where nothing is noise; seeds that contradict one another are decided as pairs are."""
    losses, limits = series.losses + series.endless, gate.limits
    if all(abs(loss) <= limits.min_effect for loss in losses):
        return "equivalent"
    if min(losses) >= 0 or max(losses) <= 0:
        return "regressed" if max(losses) > limits.min_effect else "improved"
    return "inconclusive" if series.endless else decide(losses, limits, alpha).verdict


def _paired_verdict(series: Series, decision: Decision | None) -> Verdict:
    """That of the test; too few losses decide nothing, and infinite ones only where all others say the same."""
    if len(series.losses) + len(series.endless) < min(LEAST_PAIRS, len(series.base)):
        return "inconclusive"
    if not series.endless:
        return "inconclusive" if decision is None else decision.verdict
    if min(series.endless) != max(series.endless):
        return "inconclusive"
    side: Verdict = "regressed" if series.endless[0] > 0 else "improved"
    return side if decision is None or decision.verdict == side else "inconclusive"


def unusual(rows: Sequence[GateRow]) -> list[int]:
    """Places of the pairs that are to be made again: far from the others in a gate, or slowed down in some part."""
    places: set[int] = set()
    for row in rows:
        losses = [loss for loss in row.losses if loss is not None]
        if row.scale == "ratio" and len(losses) == len(row.losses):
            limit = math.log1p(row.must_detect_pct / 100)
            places |= {*outliers(losses, limit), *uneven(row.steady.scatter if row.steady else (), limit)}
    return sorted(places)


def _gate_row(gate: Gate, series: Series, decision: Decision | None, verdict: Verdict) -> GateRow:
    return GateRow(
        steady=_steady_row(series, decision),
        **structs.asdict(row(series, decision)),
        min_effect_pct=100 * gate.min_effect,
        must_detect_pct=100 * gate.must_detect,
        pairs_needed=None if decision is None else decision.pairs_needed,
        verdict=verdict,
    )


def _steady_row(series: Series, decision: Decision | None) -> SteadyRow | None:
    if decision is None or decision.steady is None:
        return None
    test, change_pct = decision.steady, series.quantity.change_pct
    low_pct, high_pct = sorted(map(change_pct, (test.low, test.high)))
    losses, scatter = ([*column] for column in zip(*series.steady, strict=True))
    return SteadyRow(
        change_pct=change_pct(test.mean), low_pct=low_pct, high_pct=high_pct, p=test.p, losses=losses, scatter=scatter
    )


def row(series: Series, decision: Decision | None) -> Row:
    """Values, change, bounds and losses of a quantity, without a verdict."""
    quantity = series.quantity
    low, high = (None, None) if decision is None else (decision.low, decision.high)
    ends = sorted(quantity.change_pct(end) for end in (low, high) if end is not None and math.isfinite(end))
    losses = [loss if loss is not None and math.isfinite(loss) else None for loss in series.every]
    return Row(
        point=dict(series.point),
        metric=quantity.name,
        label=quantity.label,
        unit=quantity.unit,
        better=quantity.better,
        scale=quantity.scale,
        base=_middle(series.base, quantity),
        head=_middle(series.head, quantity),
        change_pct=None if decision is None else quantity.change_pct(decision.mean),
        low_pct=ends[0] if len(ends) == 2 else None,
        high_pct=ends[1] if len(ends) == 2 else None,
        p=None if decision is None else decision.p,
        p_mean=None if decision is None else decision.p_mean,
        p_signflip=None if decision is None else decision.p_sign_flip,
        mde_pct=None if decision is None or decision.mde is None else quantity.loss_pct(decision.mde),
        pairs=len(series.losses),
        endless=len(series.endless),
        changes_pct=[None if loss is None else quantity.change_pct(loss) for loss in losses],
        losses=losses,
        values=SideValues(list(series.base), list(series.head)),
    )


def _middle(values: Sequence[Value], quantity: Quantity) -> Value:
    """The mean of what is known; of ratios the geometric one, so that the two means have the printed ratio."""
    present = [value for value in values if value is not None]
    if not present:
        return None
    if quantity.scale == "difference" or min(present) <= 0:
        return math.fsum(present) / len(present)
    return math.exp(math.fsum(map(math.log, present)) / len(present)) if len(present) > 1 else present[0]


def compared(base: Run, head: Run) -> Parting:
    """Whether all rows are equal to the last bit, how many requests are not, and the first request and step."""
    base_table, head_table = base.requests.sort_by("request_id"), head.requests.sort_by("request_id")
    differ = _differ(base_table, head_table)
    step = _first_step(base.steps, head.steps)
    return Parting(
        identical=not differ.any() and step is None,
        requests=max(len(base_table), len(head_table)),
        requests_differ=int(differ.sum()),
        first_request=_first_request(base_table, head_table, differ),
        steps=None if base.steps is None or head.steps is None else max(len(base.steps), len(head.steps)),
        first_step=step,
    )


def _differ(base: pa.Table, head: pa.Table) -> Mask:
    """(rows of the longer,) whether a row is not the same in both, in any column."""
    shared = min(len(base), len(head))
    differ = np.ones(max(len(base), len(head)), bool)
    differ[:shared] = False
    for name in dict.fromkeys([*base.column_names, *head.column_names]):
        in_both = name in base.column_names and name in head.column_names
        differ[:shared] |= _column_differs(base[:shared], head[:shared], name) if in_both else True
    return differ


def _column_differs(base: pa.Table, head: pa.Table, name: str) -> Mask:
    """(rows,) whether the values of a column differ; null equals null."""
    base_column, head_column = base[name], head[name]
    if base_column.equals(head_column):
        return np.zeros(len(base), bool)
    if pa.types.is_list(base_column.type):
        return _lists_differ(base, head, name)
    other = pc.fill_null(pc.not_equal(base_column, head_column), False).to_numpy()
    differ: Mask = other | (base_column.is_null().to_numpy() != head_column.is_null().to_numpy())
    return differ


def _lists_differ(base: pa.Table, head: pa.Table, name: str) -> Mask:
    """(rows,) whether a row has another length, or another item."""
    base_lists, head_lists = lists(base, name), lists(head, name)
    rows = zip(*(np.split(side.values, side.offsets[1:-1]) for side in (base_lists, head_lists)), strict=True)
    return np.array([not np.array_equal(*row) for row in rows])


def _first_request(base: pa.Table, head: pa.Table, differ: Mask) -> FirstDifference | None:
    """Of the requests that differ the one that is due first, and the first of its columns that differs."""
    shared = min(len(base), len(head))
    if not differ.any():
        return None
    if not differ[:shared].any():
        longer = base if len(base) > len(head) else head
        request_id = longer["request_id"][shared].as_py()
        return FirstDifference(request_id=request_id, column="request_id", base=None, head=None)
    rows = np.flatnonzero(differ[:shared])
    row = int(rows[np.argmin(base["scheduled_s"].to_numpy()[rows])])
    request_id, scheduled_s = (base[name][row].as_py() for name in ("request_id", "scheduled_s"))
    return structs.replace(_first_column(base, head, row), request_id=request_id, scheduled_s=scheduled_s)


def _first_step(base: pa.Table | None, head: pa.Table | None) -> FirstDifference | None:
    """The first step that is not the same in both, which is the first decision of the schedulers that differs."""
    if base is None or head is None:
        return None
    differ = _differ(base, head)
    if not differ.any():
        return None
    row = int(np.argmax(differ))
    if row >= min(len(base), len(head)):
        return FirstDifference(step=row, column="steps", base=len(base), head=len(head))
    return structs.replace(_first_column(base, head, row), step=row, start_s=base["start_s"][row].as_py())


def _first_column(base: pa.Table, head: pa.Table, row: int) -> FirstDifference:
    """Name and both values of the first column in which two rows differ; of a list, the first item that differs."""
    for name in dict.fromkeys([*base.column_names, *head.column_names]):
        lhs, rhs = (table[name][row].as_py() if name in table.column_names else None for table in (base, head))
        if lhs == rhs:
            continue
        if not (isinstance(lhs, list) and isinstance(rhs, list)):
            return FirstDifference(column=name, base=lhs, head=rhs)
        place = next((i for i, (a, b) in enumerate(zip(lhs, rhs, strict=False)) if a != b), min(len(lhs), len(rhs)))
        return FirstDifference(column=name, item=place, base=_item(lhs, place), head=_item(rhs, place))
    raise AssertionError("the row was found to differ")


def _item(values: list[object], place: int) -> object:
    return values[place] if place < len(values) else None


def alpha(analyses: Sequence[int], total: float = ALPHA) -> float:
    """One-sided alpha at each of these analyses (numbers of pairs), so that all of them together have `total`.

    Up to four with 1 % in all have the alpha of `--pairs auto`; all others share theirs evenly (Bonferroni).
    """
    count = len(set(analyses))
    if 1 < count <= len(INTERIM):
        return ALPHA_INTERIM if total == ALPHA else total / len(INTERIM)
    return total / max(count, 1)

"""A row of the comparison for each quantity: both values, the change, its bounds, and what follows from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.stats.paired import LEAST_PAIRS, Decision, Limits, Verdict, decide, decide_all

if TYPE_CHECKING:
    from harness.compare.gates import Gate, Quantity

Value = float | None


@dataclass(frozen=True, slots=True)
class Series:
    """A quantity at one point of a sweep: its value in the base and in the head of every pair."""

    quantity: Quantity
    point: Mapping[str, str]
    base: tuple[Value, ...]
    head: tuple[Value, ...]

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
        """The losses that are infinite: who cannot be measured any more is worse than anybody who can."""
        return [loss for loss in self.every if loss is not None and math.isinf(loss)]

    @property
    def is_there(self) -> bool:
        """Whether any run has a value."""
        return any(value is not None for value in (*self.base, *self.head))


def paired(gated: Sequence[tuple[Gate, Series]], alpha: float) -> list[dict[str, Any]]:
    """The rows of the gates: the paired t decides, with Holm's correction over all of them."""
    found = {i: (gate, series, series.losses) for i, (gate, series) in enumerate(gated)}
    enough = {str(i): losses for i, (_, _, losses) in found.items() if losses}
    decisions = decide_all(enough, {name: found[int(name)][0].limits for name in enough}, alpha)
    return [
        _gate_row(gate, series, decision := decisions.get(str(i)), _paired_verdict(series, decision))
        for i, (gate, series, _) in found.items()
    ]


def exact(gated: Sequence[tuple[Gate, Series]], alpha: float) -> list[dict[str, Any]]:
    """The rows of the gates on simulators: what is worse at all is worse, where no seed says otherwise."""
    return [
        _gate_row(gate, series, _over_seeds(series, alpha), _exact_verdict(gate, series, alpha))
        for gate, series in gated
    ]


def shown(series: Sequence[Series], alpha: float) -> list[dict[str, Any]]:
    """The rows of what is shown and decides nothing."""
    return [row(each, _over_seeds(each, alpha)) for each in series if each.is_there]


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


def _gate_row(gate: Gate, series: Series, decision: Decision | None, verdict: Verdict) -> dict[str, Any]:
    return row(series, decision) | {
        "min_effect_pct": 100 * gate.min_effect,
        "must_detect_pct": 100 * gate.must_detect,
        "pairs_needed": None if decision is None else decision.pairs_needed,
        "verdict": verdict,
    }


def row(series: Series, decision: Decision | None) -> dict[str, Any]:
    """Values, change, bounds and losses of a quantity, as JSON; no verdict is in it."""
    quantity = series.quantity
    low, high = (None, None) if decision is None else (decision.low, decision.high)
    ends = sorted(quantity.change_pct(end) for end in (low, high) if end is not None and math.isfinite(end))
    return {
        "point": dict(series.point),
        "metric": quantity.name,
        "label": quantity.label,
        "unit": quantity.unit,
        "better": quantity.better,
        "scale": quantity.scale,
        "base": _middle(series.base, quantity),
        "head": _middle(series.head, quantity),
        "change_pct": None if decision is None else quantity.change_pct(decision.mean),
        "low_pct": ends[0] if len(ends) == 2 else None,
        "high_pct": ends[1] if len(ends) == 2 else None,
        "p": None if decision is None else decision.p,
        "p_signflip": None if decision is None else decision.p_sign_flip,
        "mde_pct": None if decision is None or decision.mde is None else quantity.loss_pct(decision.mde),
        "pairs": len(series.losses),
        "endless": len(series.endless),
        "changes_pct": [
            quantity.change_pct(loss) if loss is not None and math.isfinite(loss) else None for loss in series.every
        ],
        "losses": [loss if loss is not None and math.isfinite(loss) else None for loss in series.every],
        "values": {"base": list(series.base), "head": list(series.head)},
    }


def _middle(values: Sequence[Value], quantity: Quantity) -> Value:
    """The mean of what is known; of ratios the geometric one, so that the two means have the ratio that is told."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    if quantity.scale == "difference" or min(known) <= 0:
        return math.fsum(known) / len(known)
    return math.exp(math.fsum(map(math.log, known)) / len(known)) if len(known) > 1 else known[0]

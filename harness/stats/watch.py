"""Finds steps in a series of runs, such as nightly ones, and ignores single outliers.

A value is suspect when it is worse than the median of the last 7 by more than 5 % and by more than 3 robust standard
deviations of the last 14; 2 suspect values in a row are a step. While one is suspected the reference is frozen.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal

ROBUST = 1.4826
"""Standard deviation of a normal law per median absolute deviation."""

Side = Literal["worse", "better"]
State = Literal["few", "steady", "suspect", "worse", "better"]


@dataclass(frozen=True, slots=True)
class Rule:
    """When a value is a step: `least` as a share of the reference (or as it is), in `in_a_row` successive runs.

    `reference` values give the reference, `spread` values the scatter, of which `sds` robust standard deviations
    are allowed. After `settled` values at a new level, that is the reference.
    """

    least: float = 0.05
    in_a_row: int = 2
    sds: float = 3.0
    reference: int = 7
    spread: int = 14
    settled: int = 7
    relative: bool = True

    @property
    def stored(self) -> dict[str, float]:
        """The rule as trend.json holds it."""
        return {"nights" if name == "in_a_row" else name: value for name, value in asdict(self).items()}


EXACT = Rule(least=1e-9, in_a_row=1, reference=1, settled=1)
"""For a virtual clock: any other value is a step."""


@dataclass(frozen=True, slots=True)
class Judged:
    """State of one value, with the `reference` and the `threshold` (a loss) that it was compared with."""

    state: State
    reference: float | None
    threshold: float | None


@dataclass(slots=True)
class Found:
    """A step: suspected at value `first`, called at `called`; `ended` where the level went back, else None.

    `open` until the new level has become the reference.
    """

    side: Side
    first: int
    called: int
    reference: float
    open: bool = True
    ended: int | None = None


@dataclass(slots=True)
class Watch:
    """The rule at work on one series, in which `higher` values are better or not."""

    rule: Rule
    higher: bool
    judged: list[Judged] = field(default_factory=list)
    steps: list[Found] = field(default_factory=list)
    _level: list[float] = field(default_factory=list)
    _apart: list[float] = field(default_factory=list)
    _back: list[float] = field(default_factory=list)
    _side: Side | None = None

    def see(self, value: float) -> None:
        """Judge the next value."""
        if len(self._level) < self.rule.reference:
            self._level.append(value)
            self.judged.append(Judged("few", None, None))
            return
        reference = statistics.median(self._level[-self.rule.reference :])
        threshold = self._threshold(reference)
        side = _side(self.loss(value, reference), threshold)
        state = self._open(value, side) if self._is_open else self._closed(value, side, reference)
        self.judged.append(Judged(state, reference, threshold))

    def loss(self, value: float, reference: float) -> float:
        """How much worse a value is than the reference, as the rule counts it; 0 between two infinite ones."""
        if value == reference:
            return 0.0
        worse = reference - value if self.higher else value - reference
        if not self.rule.relative or math.isinf(worse):
            return worse
        return worse / abs(reference) if reference else math.copysign(math.inf, worse)

    @property
    def _is_open(self) -> bool:
        return bool(self.steps) and self.steps[-1].open

    def _threshold(self, reference: float) -> float:
        recent = self._level[-self.rule.spread :]
        middle = statistics.median(recent)
        mad = statistics.median(0.0 if v == middle else abs(v - middle) for v in recent)
        scatter = self.rule.sds * ROBUST * mad
        if self.rule.relative:
            scatter = scatter / abs(reference) if reference and math.isfinite(scatter) else 0.0
        return max(self.rule.least, scatter)

    def _closed(self, value: float, side: Side | None, reference: float) -> State:
        """No step is open: the value is steady, suspect, or confirms a step."""
        if self._apart and side != self._side:  # a single outlier belongs to the old level
            self._level += self._apart
            self._apart = []
        if side is None:
            self._level.append(value)
            return "steady"
        self._side = side
        self._apart.append(value)
        if len(self._apart) < self.rule.in_a_row:
            return "suspect"
        self.steps.append(Found(side, len(self.judged) + 1 - len(self._apart), len(self.judged), reference))
        self._settle()
        return side

    def _open(self, value: float, side: Side | None) -> State:
        """A step is open: the value stays at the new level, or returns to the old one."""
        step = self.steps[-1]
        if side == step.side:
            self._apart += [*self._back, value]
            self._back = []
            self._settle()
            return step.side
        if side is None:
            self._back.append(value)
        if side is None and len(self._back) < self.rule.in_a_row:
            return step.side
        step.open, step.ended = False, len(self.judged) - len(self._back) + (side is None)
        self._level += self._back
        self._apart, self._back = [], []
        return "steady" if side is None else self._closed(value, side, step.reference)

    def _settle(self) -> None:
        """Make the new level the reference after enough values."""
        if len(self._apart) >= self.rule.settled:
            self.steps[-1].open = False
            self._level, self._apart = self._apart, []


def watch(values: Sequence[float], rule: Rule, *, higher: bool) -> Watch:
    """The rule over a whole series."""
    found = Watch(rule, higher)
    for value in values:
        found.see(value)
    return found


def _side(loss: float, threshold: float) -> Side | None:
    if loss > threshold:
        return "worse"
    return "better" if -loss > threshold else None

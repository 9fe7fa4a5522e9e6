"""A rule for nightly series: a level that lasts, beside a reference that noise and slow loss do not move.

The reference is the accepted level, the median of the first values. A series has changed when the median of its last
week, or of its last three, is away from the reference by more than is allowed. It is back when that of the week is
within half of that, and has fallen by more than that or that of three weeks is as near: noise does not end a change.
A change needs most values of a week, so single bad runs are none.

A gain that has lasted three weeks becomes the reference, so that it cannot hide a later loss. A loss never does.

What is allowed counts standard errors of both medians. The scatter is that of differences from run to run, which steps
and drift hardly move; where runs far apart differ by more than neighbours, the values are correlated and medians less
certain: a first-order autoregression, its coefficient taken from both differences.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

_ROBUST = 1.4826
"""Standard deviation of a normal law per median absolute deviation."""

_MEDIAN = math.sqrt(math.pi / 2)
"""Standard error of a median per that of a mean, normal law."""
_FAR = (6, 7, 8)
"""Lags at which correlation has faded; about a week, so that weekends fall on weekends as often as at lag 1."""
_FEWEST_FOR_CORRELATION = 16
_LARGEST_CORRELATION = 0.9
_SCATTER_OF = 90
"""Last values that the scatter is taken from."""
_NORMAL_95 = 1.96

Side = Literal["worse", "better"]
State = Literal["few", "steady", "suspect", "worse", "better"]


@dataclass(frozen=True, slots=True)
class Rule:
    """When a level has changed: `least` as a share of the reference (or as it is), and `sds` standard errors.

    `reference` values give the accepted level at first, `spread` at most; the medians of the last `window` and of the
    last `long` are compared with it. Of n values, `sds` is larger by `early` / n: their scatter is not known well.
    A gain that lasts `long` values is the reference from then on, unless not `ratchet`.
    """

    least: float = 0.03
    sds: float = 3.5
    early: float = 10.0
    reference: int = 7
    spread: int = 14
    window: int = 7
    long: int = 21
    relative: bool = True
    ratchet: bool = True


EXACT = Rule(least=1e-9, sds=0, reference=1, spread=1, window=1)
"""For a virtual clock: any other value is a change."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What the rule says after one value: the reference, and the loss of the window that was allowed."""

    state: State
    reference: float | None
    threshold: float | None


@dataclass(slots=True)
class Change:
    """A level away from the reference: from value `first` on, called at `called`, back from `ended` on, or None.

    Of a drift, `first` is where half of it was reached. `size` is that of the loss or gain when it was called.
    """

    side: Side
    reference: float
    size: float
    first: int
    called: int
    ended: int | None = None


@dataclass(frozen=True, slots=True)
class Scatter:
    """Standard deviation of one value, and correlation of one with the next."""

    sd: float = 0.0
    correlation: float = 0.0

    def variance(self, count: int) -> float:
        """That of the median of `count` values in a row."""
        rho = self.correlation
        inflation = 1 + 2 * sum((1 - lag / count) * rho**lag for lag in range(1, count))
        return (_MEDIAN * self.sd) ** 2 * inflation / count


@dataclass(slots=True)
class Watch:
    """The rule at work on one series, in which `higher` values are better or not."""

    rule: Rule
    higher: bool
    values: list[float] = field(default_factory=list)
    judged: list[Judged] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    open: Change | None = None
    """The last of the changes, unless the level went back or became the reference."""
    gained: Change | None = None
    """The gain that gave the reference; None where that is the accepted level."""
    level: float = math.nan
    """The reference."""
    scatter: Scatter = field(default_factory=Scatter)
    _of_level: int = 0
    _start: int = 1
    """The first value that the next change can begin with."""

    def see(self, value: float) -> None:
        """Judge the series up to the next value."""
        rule = self.rule
        self.values.append(value)
        if self.open is None and self.gained is None:  # a change that is called no longer moves the accepted level
            self._of_level = min(rule.spread, max(rule.reference, len(self.values) - rule.window))
            self.level = statistics.median(self.values[: self._of_level])
        if len(self.values) <= rule.reference:
            self.judged.append(Judged("few", None, None))
            return
        if rule.sds:
            self.scatter = scatter(self.values)
        sds = rule.sds * (1 + rule.early / len(self.values))
        week, threshold = self._window(rule.window, sds)
        weeks, allowed = self._window(rule.long, sds)
        self._end(week, threshold, weeks, allowed)
        last = len(self.values) - 1
        if self.open is None and last >= rule.reference + rule.window // 2:  # fewer than half cannot move the median
            lasting = abs(weeks) > allowed and abs(week) > threshold / 2 and (weeks > 0) is (week > 0)
            if lasting or abs(week) > threshold:
                side: Side = "worse" if week > 0 else "better"
                first = self._split(side, abs(week), self._start, beyond=True)
                self.open = Change(side, self.level, abs(week), first, last)
                self.changes.append(self.open)
        single_limit = max(rule.least, sds * self._share(self.scatter.sd))
        state: State = "suspect" if abs(self.loss(value, self.level)) > single_limit else "steady"
        self.judged.append(Judged(state if self.open is None else self.open.side, self.level, threshold))
        if -weeks > allowed:
            self._ratchet()

    def loss(self, value: float, reference: float) -> float:
        """How much worse a value is than the reference, as the rule counts it; 0 between two infinite ones."""
        if value == reference:
            return 0.0
        worse = reference - value if self.higher else value - reference
        if not self.rule.relative or math.isinf(worse):
            return worse
        return worse / abs(reference) if reference else math.copysign(math.inf, worse)

    def margin(self, count: int) -> float:
        """Half the 95 % interval of the loss of the median of the last `count` values, as the rule counts it."""
        return _NORMAL_95 * self._share(self._error(count))

    def _end(self, week: float, threshold: float, weeks: float, allowed: float) -> None:
        """End the open change where the level has returned; of exact values each other one is a change of its own."""
        change = self.open
        if change is None:
            return
        sign = 1 if change.side == "worse" else -1
        fallen = change.size - sign * week > threshold or sign * weeks <= allowed / 2
        if fallen and sign * week <= threshold / 2:
            change.ended = self._start = self._split(change.side, change.size, change.first + 1, beyond=False)
            self.open = None
        elif not self.rule.sds and self.values[-1] != self.values[-2]:
            self.open, self._start = None, len(self.values) - 1

    def _ratchet(self) -> None:
        """Make a gain that has lasted the reference.

        The reference moves only after a change was called, so it is no extreme of many windows and needs no allowance
        for a selection: flat and correlated series have no more false losses with it than without.
        """
        gain = self.open
        if gain is None or gain.side == "worse" or not self.rule.ratchet:
            return
        if len(self.values) - gain.first >= self.rule.long:
            self.level, self._of_level = statistics.median(self.values[-self.rule.long :]), self.rule.long
            self.open, self.gained, self._start = None, gain, gain.called

    def _window(self, count: int, sds: float) -> tuple[float, float]:
        """The loss of the median of the last values, and what is allowed of it."""
        loss = self.loss(statistics.median(self.values[-count:]), self.level)
        return loss, max(self.rule.least, sds * self._share(self._error(count)))

    def _error(self, count: int) -> float:
        """Standard error of the median of the last `count` values less the reference."""
        return math.sqrt(self.scatter.variance(self._of_level) + self.scatter.variance(count))

    def _share(self, amount: float) -> float:
        if not self.rule.relative:
            return amount
        return amount / abs(self.level) if self.level and math.isfinite(self.level) else 0.0

    def _split(self, side: Side, size: float, start: int, *, beyond: bool) -> int:
        """The place from `start` on after which values are beyond half of a change, or not, with fewest exceptions."""
        sign = 1 if side == "worse" else -1
        matches = [(sign * self.loss(value, self.level) >= size / 2) is beyond for value in self.values[start:]]
        best, after, balance = 0, 0, 0
        for place, match in enumerate(matches):  # the balance of what is wanted falls before the best place, then rises
            balance += -1 if match else 1
            if balance >= best:
                best, after = balance, place + 1
        return start + min(after, len(matches) - 1)


def watch(values: Sequence[float], rule: Rule, *, higher: bool) -> Watch:
    """Return the rule after a whole series."""
    series = Watch(rule, higher)
    for value in values:
        series.see(value)
    return series


def scatter(values: Sequence[float]) -> Scatter:
    """Return the noise of a series, whatever steps and drift it has."""
    recent = values[-_SCATTER_OF:]
    near_var = _difference_variance(recent, 1)
    if not near_var or len(recent) < _FEWEST_FOR_CORRELATION:
        return Scatter(math.sqrt(near_var / 2))
    far_var = statistics.fmean(_difference_variance(recent, lag) for lag in _FAR)
    rho = 1 - near_var / far_var - 1 / math.sqrt(len(recent)) if far_var else 0.0  # less what chance alone may give
    rho = min(max(rho, 0.0), _LARGEST_CORRELATION)
    return Scatter(math.sqrt(near_var / 2 / (1 - rho)), rho)


def _difference_variance(values: Sequence[float], lag: int) -> float:
    """Robust, about the median difference: drift is none."""
    pairs = zip(values, values[lag:], strict=False)
    differences = [after - before for before, after in pairs if math.isfinite(before) and math.isfinite(after)]
    if not differences:
        return 0.0
    middle = statistics.median(differences)
    return (_ROBUST * statistics.median(abs(difference - middle) for difference in differences)) ** 2

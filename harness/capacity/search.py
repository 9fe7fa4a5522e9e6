"""The search itself: which trials to make next, given those that were made. It makes none and reads no clock."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from harness import slo as slos
from harness.capacity.conditions import Condition, Definition, Share, bounds_of, conditions, kept_all
from harness.capacity.estimate import Estimate, Shares, curve_of, estimate, mean_interval, nearby
from harness.capacity.trials import Key, Tried

if TYPE_CHECKING:
    from harness.api import Slo
    from harness.capacity.curve import Curve

WIDE = 1.1
"""The bracket of the first seed is narrowed to this: its own knee is off by about half as much."""

PROBE_SHARE = 0.25
"""Length of a probe, as a share of a trial."""

APART, NEAREST, FARTHEST = 0.4, 1.05, 1.2
"""Two rates around a guess differ by this in logit(attainment), but by these factors at least and at most."""

SAME = 0.01
"""Rates closer than this, in log rate, are as good as one another for a trial."""

FEWEST_IN_PROBE = 200
DOUBLINGS = 24
"""Most doublings or halvings of the rate."""

FIRST_SEEDS, FIRST_SEEDS_ON_THE_CLOCK = 12, 8
"""Seeds before the first decision to stop, of a simulator and in real time, where each costs minutes. Looking early
costs coverage: of nominal 95%, 92% of 60 searches after 8 seeds, 97% of 77 after 12 (chatbot)."""

IDLE = 0.05
"""Requests in the system on average below which they hardly ever meet: less load makes nothing faster."""

FEW = 300
"""Requests of the first look without load, which decides all but the edge."""

SURE = 3.29
"""Standard deviations that tell a share without load, where requests are independent, from the goal (99.9%)."""

Trials = Generator["list[Wanted]", "list[Tried]", "Found"]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A trial that the search needs next; a probe is decided by its conditions."""

    key: Key
    conditions: tuple[Condition, ...] = ()


class Measures(Protocol):
    """How attainment is taken from trials: as found, or adjusted for the traffic that was drawn."""

    def fit(self, trials: Sequence[Tried], condition: Condition) -> None:
        """Learn from all trials so far."""
        ...

    def __call__(self, trials: Sequence[Tried], condition: Condition) -> Shares:
        """The attainment of each trial."""
        ...


@dataclass(frozen=True, slots=True)
class Aim:
    """What a search is after: one goal, to a tolerance (half of the interval as a share of the capacity).

    `one_traffic`: every seed sends the same, as with a recording; then one trial a rate is all there is.
    """

    slo: Slo
    goal: float
    definition: Definition
    planned: int
    first_seed: int = 0
    tolerance: float = 0.03
    max_seeds: int = 20
    at_rps: float | None = None
    from_rps: float | None = None
    own_rps: float = 1.0
    virtual: bool = True
    one_traffic: bool = False

    @property
    def first_seeds(self) -> int:
        """Seeds before the first decision to stop."""
        return min(FIRST_SEEDS if self.virtual else FIRST_SEEDS_ON_THE_CLOCK, self.max_seeds)

    @property
    def wanted(self) -> tuple[Condition, ...]:
        """The conditions that must hold."""
        return conditions(self.slo, self.goal, self.definition)

    @property
    def bounds(self) -> tuple[Condition, ...]:
        """Each bound by itself."""
        return tuple(bounds_of(self.slo, self.goal))


@dataclass(frozen=True, slots=True)
class Found:
    """What came of a search: an estimate, or why there is none. `unreachable`: the goal is missed without load."""

    estimate: Estimate | None
    resolved: bool
    unreachable: bool = False
    why: str | None = None
    bounds: dict[str, Curve] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Bracket:
    """The highest rate that a probe carried and the lowest that one did not; None where there is none yet."""

    low_rps: float | None = None
    high_rps: float | None = None

    def with_side(self, rate_rps: float, passed: bool) -> Bracket:
        """Narrowed by a probe."""
        if passed:
            return Bracket(max(rate_rps, self.low_rps or 0.0), self.high_rps)
        return Bracket(self.low_rps, min(rate_rps, self.high_rps or math.inf))

    @property
    def ratio(self) -> float:
        """How far its ends are apart; infinite while one is missing."""
        if self.low_rps is None or self.high_rps is None:
            return math.inf
        return self.high_rps / self.low_rps

    def next_rps(self, from_rps: float) -> float:
        """The rate to probe next."""
        if self.low_rps is None and self.high_rps is None:
            return from_rps
        if self.high_rps is None:
            return 2 * (self.low_rps or from_rps)
        if self.low_rps is None:
            return self.high_rps / 2
        return math.sqrt(self.low_rps * self.high_rps)


def search(aim: Aim, measure: Measures, known: Sequence[Tried] = ()) -> Trials:
    """Yields the trials to make, takes them as they were made; an empty answer means that no more can be made.

    `known` are whole trials of the same search for other goals: they have a say where they are near.
    """
    unloaded = yield from _without_load(aim, measure) if aim.virtual else _nothing()
    if isinstance(unloaded, Found):
        return unloaded
    bracket = yield from _bracketed(aim, unloaded)
    if isinstance(bracket, Found):
        return bracket
    if aim.one_traffic:
        return (yield from _on_one_traffic(aim, bracket, measure))
    return (yield from _estimated(aim, bracket, measure, known))


def _nothing() -> Generator[list[Wanted], list[Tried], float | None]:
    return None
    yield  # pragma: no cover


def _without_load(aim: Aim, measure: Measures) -> Generator[list[Wanted], list[Tried], Found | float | None]:
    """The time that a request takes by itself, in seconds; Found where the goal is missed even then."""
    rate_rps = _plain(aim.own_rps / 1000)
    few = yield [Wanted(Key(aim.first_seed, rate_rps, min(aim.planned, FEW)))]
    if not few:
        return Found(None, resolved=False, why="the budget was spent before the first trial was over.")
    side = _side_without_load(few, aim.wanted)
    if side is True:
        return few[0].e2e_s
    if side is False:
        return Found(None, resolved=True, unreachable=True, why=_unreachable(few, aim))
    seeds = 1 if aim.one_traffic else aim.first_seeds
    trials = yield [Wanted(Key(aim.first_seed + number, rate_rps, aim.planned)) for number in range(seeds)]
    if len(trials) < seeds:
        return Found(None, resolved=False, why="the budget was spent before it was known whether any rate is carried.")
    side = kept_all(_pooled(trials), aim.wanted) if aim.one_traffic else _side_of(trials, aim.wanted, measure)
    if side is None:
        return Found(None, resolved=False, why=_at_the_edge(trials, aim))
    return few[0].e2e_s if side else Found(None, resolved=True, unreachable=True, why=_unreachable(trials, aim))


def _side_of(trials: Sequence[Tried], wanted: Sequence[Condition], measure: Measures) -> bool | None:
    """Whether the mean over seeds keeps every goal, or misses one; None where an interval holds a goal."""
    sides: list[bool | None] = []
    for condition in wanted:
        measure.fit(trials, condition)
        low, high = mean_interval(measure(trials, condition))
        sides.append(True if low > condition.goal else False if high < condition.goal else None)
    return False if False in sides else None if None in sides else True


def _side_without_load(trials: Sequence[Tried], wanted: Sequence[Condition]) -> bool | None:
    """Whether the goals are surely kept, or one is surely missed: requests that never meet are independent."""
    shares = {share.text: share for share in _pooled(trials)}
    away = []
    for condition in wanted:
        share = shares[condition.text]
        found = share.met / max(1, share.of)
        error = math.sqrt(max(condition.goal * (1 - condition.goal), 1e-4) / max(1, share.of))
        away.append((found - condition.goal) / error)
    return False if min(away) < -SURE else True if min(away) > SURE else None


def _pooled(trials: Sequence[Tried]) -> list[Share]:
    """The shares of all trials together."""
    texts = [share.text for share in trials[0].shares]
    return [
        Share(text, sum(t.share(text).met for t in trials), sum(t.share(text).of for t in trials)) for text in texts
    ]


def _at_the_edge(trials: Sequence[Tried], aim: Aim) -> str:
    shares = {share.text: share for share in _pooled(trials)}
    told = ", ".join(f"{shares[c.text].met / max(1, shares[c.text].of):.1%} of {c.text}" for c in aim.wanted)
    return (
        f"even without load the requests keep hardly what is asked ({told}; asked: "
        f"{100 * aim.goal:.4g}%), so whether any rate is low enough is not decided; "
        "ask for a little more or a little less."
    )


def _unreachable(trials: Sequence[Tried], aim: Aim) -> str:
    shares = {share.text: share for share in _pooled(trials)}
    worst = min(aim.wanted, key=lambda c: shares[c.text].met / max(1, shares[c.text].of) - c.goal)
    bounds = sorted(aim.bounds, key=lambda c: shares[c.text].met / max(1, shares[c.text].of) - c.goal)
    binding = bounds[0] if bounds else worst
    share = shares[binding.text]
    return (
        f"even without load only {share.met / max(1, share.of):.1%} of the requests keep {binding.text} "
        f"({100 * binding.goal:.4g}% have to), so no rate is low enough."
    )


def _bracketed(aim: Aim, unloaded_s: float | None) -> Generator[list[Wanted], list[Tried], Bracket | Found]:
    """Two rates near to one another, of which the first seed's probes carried the one and not the other."""
    bracket = Bracket()
    from_rps = aim.from_rps or (8 / unloaded_s if unloaded_s else aim.own_rps)
    planned = aim.planned if aim.one_traffic else max(FEWEST_IN_PROBE, round(aim.planned * PROBE_SHARE))
    planned = min(planned, aim.planned)
    for _ in range(DOUBLINGS):
        if bracket.ratio <= WIDE:
            break
        rate_rps = _plain(bracket.next_rps(from_rps))
        made = yield [Wanted(Key(aim.first_seed, rate_rps, planned, aim.goal), aim.wanted)]
        if not made:
            return Found(None, resolved=False, why=_spent(aim, planned, rate_rps))
        bracket = bracket.with_side(rate_rps, bool(made[0].passed))
        if made[0].passed and planned / rate_rps < (made[0].e2e_s or 0.0):
            return Found(None, resolved=False, why=_too_short(planned, rate_rps))
        if bracket.low_rps is None and made[0].e2e_s and rate_rps * made[0].e2e_s < IDLE:
            return Found(None, resolved=True, unreachable=True, why=_never_carried(made[0], aim))
    if bracket.ratio == math.inf:
        return Found(None, resolved=False, why=_no_side(bracket))
    return bracket


def _never_carried(probe: Tried, aim: Aim) -> str:
    """A probe that was ended tells a side and no share."""
    return (
        f"even at {probe.key.rate_rps:.4g} req/s, where requests hardly meet, the goal of {100 * aim.goal:.4g}% under "
        f"{slos.text(aim.slo)} is missed, so no rate is low enough."
    )


def _too_short(planned: int, rate_rps: float) -> str:
    return (
        f"with --requests {planned} a trial is sent within {planned / rate_rps:.2g} s, less than one request takes, "
        "and is carried: such short trials find no limit; give a larger --requests."
    )


def _spent(aim: Aim, planned: int, rate_rps: float) -> str:
    if aim.virtual:
        return "the budget was spent."
    span_s = planned / rate_rps
    return f"the budget does not hold the next trial: {planned:,} requests at {rate_rps:.4g} req/s take {span_s:.0f} s."


def _no_side(bracket: Bracket) -> str:
    if bracket.high_rps is None:
        return f"no rate up to {bracket.low_rps:.4g} requests per second was too high."
    return f"every rate down to {bracket.high_rps:.4g} requests per second was too high."


def _on_one_traffic(aim: Aim, bracket: Bracket, measure: Measures) -> Trials:
    """The crossing of the one curve that a recording has; nothing is random, so there is no interval."""
    trials: list[Tried] = []
    found: Estimate | None = None
    rates = [bracket.low_rps, bracket.high_rps]
    for _ in range(6):
        keys = [Key(aim.first_seed, _plain(rate), aim.planned) for rate in rates if rate is not None]
        made = yield [Wanted(key) for key in keys if key not in [t.key for t in trials]]
        if not made:
            break
        trials += made
        found = _local(trials, aim, measure)
        if found is None:
            break
        if any(abs(math.log(t.key.rate_rps / found.rate_rps)) < 0.005 for t in trials):
            return _found(trials, aim, measure, found, resolved=True)
        rates = [found.rate_rps]
    return _found(trials, aim, measure, found, resolved=False, why="no falling curve was found near the bracket.")


def _local(trials: Sequence[Tried], aim: Aim, measure: Measures) -> Estimate | None:
    """From the two trials that are closest to the crossing."""
    rough = estimate(trials, aim.wanted, measure)
    if rough is None or len(trials) < 3:
        return rough
    near = sorted(trials, key=lambda t: abs(math.log(t.key.rate_rps / rough.rate_rps)))
    return estimate(near[:2], aim.wanted, measure) or rough


def _estimated(aim: Aim, bracket: Bracket, measure: Measures, known: Sequence[Tried]) -> Trials:
    """Whole trials of ever more seeds at the best guess so far, until the interval is narrow enough."""
    trials: list[Tried] = []
    known = [t for t in known if t.key.planned == aim.planned]
    found: Estimate | None = None
    while True:
        batch = _next_batch(aim, bracket, trials, found)
        made = yield [Wanted(key) for key in batch]
        if not made:
            why = _spent(aim, aim.planned, batch[0].rate_rps)
            break
        trials += made
        every = _together(trials, known)
        for condition in aim.wanted:
            measure.fit(every, condition)
        found = estimate(every, aim.wanted, measure)
        seeds = len({t.key.seed for t in trials})
        if found is not None and _is_enough(found, aim):
            return _found(every, aim, measure, found, resolved=True)
        if seeds >= aim.max_seeds:
            why = f"{aim.max_seeds} seeds were not enough."
            break
    return _found(_together(trials, known), aim, measure, found, resolved=False, why=why)


def _together(trials: Sequence[Tried], known: Sequence[Tried]) -> list[Tried]:
    """The trials of this search, and those of others that are not among them, of the seeds that it has."""
    keys, seeds = {t.key for t in trials}, {t.key.seed for t in trials}
    return [*trials, *(t for t in known if t.key not in keys and t.key.seed in seeds)]


def _is_enough(found: Estimate, aim: Aim) -> bool:
    """Whether the interval is narrow enough, or leaves out the one rate that is asked about, by seeds enough nearby."""
    if found.low_rps is None or found.high_rps is None or len(found.knees) < aim.first_seeds:
        return False
    if aim.at_rps is not None and not found.low_rps < aim.at_rps < found.high_rps:
        return True
    return found.half_width <= aim.tolerance


def _next_batch(aim: Aim, bracket: Bracket, trials: Sequence[Tried], found: Estimate | None) -> list[Key]:
    """Two seeds at both ends of the bracket and one at each; then new seeds, by turns below and above the best guess.

    By turns, because an error of the slope then cancels; one trial a seed, because another of the same seed tells
    little that is new.
    """
    assert bracket.low_rps is not None
    assert bracket.high_rps is not None
    seeds = len({t.key.seed for t in trials})
    first = aim.first_seed + seeds
    if not trials:
        low, high = _plain(bracket.low_rps), _plain(bracket.high_rps)
        pairs = [(first, low), (first, high), (first + 1, low), (first + 1, high), (first + 2, low), (first + 3, high)]
        return [Key(seed, rate, aim.planned) for seed, rate in pairs]
    low, high = _around(found, [t.key.rate_rps for t in trials])
    more = _more_seeds(aim, found, seeds)
    return [Key(first + i, high if i % 2 else low, aim.planned) for i in range(more)]


def _more_seeds(aim: Aim, found: Estimate | None, seeds: int) -> int:
    """How many seeds to add: to the first look, then as many as the width so far says are missing.

    Note: a look after every two seeds would stop at a width that is small by luck, and cost coverage.
    """
    if seeds < aim.first_seeds or found is None:
        more = max(2, aim.first_seeds - seeds)
    else:
        near = len(found.knees)
        wanted = math.ceil(near * (found.half_width / aim.tolerance) ** 2) if math.isfinite(found.half_width) else near
        more = max(2, aim.first_seeds - near, wanted - near)
    return min(more, aim.max_seeds - seeds)


def _around(found: Estimate | None, rates: Sequence[float]) -> tuple[float, float]:
    """Two rates around the best guess, so far apart that attainment differs, not far beyond all that were tried."""
    if found is None:  # nothing crosses yet: look on both sides
        return _plain(min(rates) / FARTHEST), _plain(max(rates) * FARTHEST)
    guess = min(max(found.rate_rps, min(rates) / FARTHEST), max(rates) * FARTHEST)
    slope = found.curves[found.binding].slope
    half = min(max(APART / slope, math.log(NEAREST)), math.log(FARTHEST)) / 2
    return _tried_or_new(guess * math.exp(-half), rates), _tried_or_new(guess * math.exp(half), rates)


def _tried_or_new(rate_rps: float, rates: Sequence[float]) -> float:
    """A rate that was tried where that is as good."""
    nearest = min(rates, key=lambda rate: abs(math.log(rate / rate_rps)))
    return nearest if abs(math.log(nearest / rate_rps)) < SAME else _plain(rate_rps)


def _found(
    trials: Sequence[Tried],
    aim: Aim,
    measure: Measures,
    found: Estimate | None,
    *,
    resolved: bool,
    why: str | None = None,
) -> Found:
    bounds: dict[str, Curve] = {}
    near = [] if found is None else nearby(trials, found.rate_rps, found.curves) or trials
    for condition in aim.bounds if found is not None else ():
        measure.fit(trials, condition)
        if (curve := curve_of(near, condition, measure) or curve_of(trials, condition, measure)) is not None:
            bounds[condition.text] = curve
    return Found(found, resolved and found is not None, why=None if resolved else why, bounds=bounds)


def _plain(rate_rps: float) -> float:
    """Four digits: enough for any interval, and a name that a person can read."""
    return float(f"{rate_rps:.4g}")

"""Where a capacity lies, roughly: whether requests keep the SLO without load, and two rates on both sides of it."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from harness import slo as slos
from harness.capacity.aim import Aim, Found, Measures, Wanted, plain
from harness.capacity.conditions import Condition, Share, kept_all
from harness.capacity.estimate import mean_interval
from harness.capacity.trials import Key, Tried

WIDE = 1.1
"""The bracket of the first seed is narrowed to this: its own knee is off by about half as much."""

PROBE_SHARE = 0.25
"""Length of a probe, as a share of a trial."""

FEWEST_IN_PROBE = 200
DOUBLINGS = 24
"""Most doublings or halvings of the rate."""

IDLE = 0.05
"""Requests in the system on average below which they hardly ever meet: less load makes nothing faster."""

FEW = 300
"""Requests of the first look without load, which decides all but the edge."""

SURE = 3.29
"""Standard deviations that tell a share without load, where requests are independent, from the goal (99.9%)."""


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


def without_load(aim: Aim, measure: Measures) -> Generator[list[Wanted], list[Tried], Found | float | None]:
    """The time that a request takes by itself, in seconds; Found where the goal is missed even then."""
    rate_rps = plain(aim.own_rps / 1000)
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


def bracketed(aim: Aim, unloaded_s: float | None) -> Generator[list[Wanted], list[Tried], Bracket | Found]:
    """Two rates near to one another, of which the first seed's probes carried the one and not the other."""
    bracket = Bracket()
    from_rps = aim.from_rps or (8 / unloaded_s if unloaded_s else aim.own_rps)
    planned = aim.planned if aim.one_traffic else max(FEWEST_IN_PROBE, round(aim.planned * PROBE_SHARE))
    planned = min(planned, aim.planned)
    for _ in range(DOUBLINGS):
        if bracket.ratio <= WIDE:
            break
        rate_rps = plain(bracket.next_rps(from_rps))
        made = yield [Wanted(Key(aim.first_seed, rate_rps, planned, aim.goal), aim.wanted)]
        if not made:
            return Found(None, resolved=False, why=spent(aim, planned, rate_rps))
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


def spent(aim: Aim, planned: int, rate_rps: float) -> str:
    """Why no more trials were made: the next one would have been of so many requests at that rate."""
    if aim.virtual:
        return "the budget was spent."
    span_s = planned / rate_rps
    return f"the budget does not hold the next trial: {planned:,} requests at {rate_rps:.4g} req/s take {span_s:.0f} s."


def _no_side(bracket: Bracket) -> str:
    if bracket.high_rps is None:
        return f"no rate up to {bracket.low_rps:.4g} requests per second was too high."
    return f"every rate down to {bracket.high_rps:.4g} requests per second was too high."

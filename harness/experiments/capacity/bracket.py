"""Where a capacity lies, roughly: whether requests meet the SLO without load, and two rates on both sides of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import numpy as np

from harness.experiments.capacity.conditions import Condition, Share, kept_all
from harness.experiments.capacity.estimate import Shares, mean_interval
from harness.experiments.capacity.search_spec import (
    AttainmentMeasure,
    Bracket,
    SearchResult,
    SearchSpec,
    Side,
    TrialRequest,
    plain,
)
from harness.experiments.capacity.trials import Key, Trial
from harness.metrics import slo as slos

WIDE = 1.1
"""The bracket of the first seed is narrowed to this: its own knee is off by about half as much."""

PROBE_SHARE = 0.25
"""Length of a probe, as a share of a trial."""

FEWEST_IN_PROBE = 200
DOUBLINGS = 32
"""Most probes: doublings or halvings of the rate, and longer ones at the same rate."""

SHORTEST = 5
"""Times the requests in flight that a trial must send to meet a goal: a shorter one is over before a queue has grown.
Chosen on one system, code on two prefill replicas and one decode replica (H100, steps with 7.8 ms of overhead): there
1.2 times pass at twice the capacity, 2.3 times at 1.5 times of it, and of 5 times none passes at 1.15 times of it."""

LONG = 20
"""The same of a whole trial in simulated time, where requests cost little: as the chat traffic of the examples has."""

IDLE = 0.05
"""Requests in the system on average below which they hardly ever meet: less load makes nothing faster."""

FEW = 300
"""Requests of the first look without load, which decides all but the edge."""

SURE = 3.29
"""Standard deviations that tell a share without load, where requests are independent, from the goal (99.9%)."""


def sides(
    trials: Sequence[Trial], wanted: Sequence[Condition], measure: Callable[[Sequence[Trial], Condition], Shares]
) -> Bracket:
    """The rates on both sides of the goals, of whole trials: every rate below the one met them, and none above the
    other did.

    A rate is judged by the mean over its seeds. One at which the queue grew all through most trials missed: a longer
    trial would not have met the goal.
    """
    by_rate: dict[float, list[int]] = {}
    for index, tried in enumerate(trials):
        by_rate.setdefault(tried.key.rate_rps, []).append(index)
    values = [(np.asarray(measure(trials, condition).values), condition.goal) for condition in wanted]
    met: list[Side] = []
    missed: list[Side] = []
    for rate_rps, here in sorted(by_rate.items()):
        made = [trials[index] for index in here]
        grew = 2 * sum(t.overloaded for t in made) > len(made)
        good = not grew and all(float(found[here].mean()) >= goal for found, goal in values)
        side = Side(rate_rps, len({t.key.seed for t in made}), sum(t.kept for t in made), grew)
        (met if good else missed).append(side)
    low = [side for side in met if not missed or side.rate_rps < missed[0].rate_rps]
    high = [side for side in missed if not met or side.rate_rps > met[-1].rate_rps]
    return Bracket(
        low[-1] if low else None,
        high[0] if high else None,
        met[0].rate_rps if met else None,
        missed[-1].rate_rps if missed else None,
    )


def combined(whole: Bracket, probed: Probed) -> Bracket:
    """The sides of whole trials; a side that they lack is that of the probes which they do not contradict."""
    low, high = whole.low, whole.high
    if low is None:
        rates = [rate for rate in (whole.least_rps, whole.most_rps, high and high.rate_rps) if rate]
        low = max(
            (side for side in probed.met if side.rate_rps < min(rates, default=math.inf)), default=None, key=_rate
        )
    if high is None:
        rates = [rate for rate in (whole.least_rps, whole.most_rps, low and low.rate_rps) if rate]
        high = min((side for side in probed.missed if side.rate_rps > max(rates, default=0)), default=None, key=_rate)
    return Bracket(low, high, whole.least_rps, whole.most_rps)


def _rate(side: Side) -> float:
    return side.rate_rps


def unloaded_baseline(
    spec: SearchSpec, measure: AttainmentMeasure
) -> Generator[list[TrialRequest], list[Trial], SearchResult | Trial]:
    """A trial of requests one by one; Found where the goal is missed even then."""
    rate_rps = plain(spec.own_rps / 1000)
    few = yield [TrialRequest(Key(spec.first_seed, rate_rps, min(spec.planned, FEW)))]
    if not few:
        return SearchResult(None, resolved=False, why="the budget was spent before the first trial was over.")
    side = _unloaded_side(few, spec.wanted)
    if side is True:
        return few[0]
    if side is False:
        return SearchResult(None, resolved=True, unreachable=True, why=_unreachable(few, spec))
    seeds = 1 if spec.one_traffic else spec.first_seeds
    trials = yield [TrialRequest(Key(spec.first_seed + number, rate_rps, spec.planned)) for number in range(seeds)]
    if len(trials) < seeds:
        return SearchResult(
            None, resolved=False, why="the budget was spent before it was known whether any rate is sustained."
        )
    side = kept_all(_pooled(trials), spec.wanted) if spec.one_traffic else _side_of(trials, spec.wanted, measure)
    if side is None:
        return SearchResult(None, resolved=False, why=_at_the_edge(trials, spec))
    return few[0] if side else SearchResult(None, resolved=True, unreachable=True, why=_unreachable(trials, spec))


def _side_of(trials: Sequence[Trial], wanted: Sequence[Condition], measure: AttainmentMeasure) -> bool | None:
    """Whether the mean over seeds meets every goal, or misses one; None where an interval holds a goal."""
    sides: list[bool | None] = []
    for condition in wanted:
        measure.fit(trials, condition)
        low, high = mean_interval(measure(trials, condition))
        sides.append(True if low > condition.goal else False if high < condition.goal else None)
    return False if False in sides else None if None in sides else True


def _unloaded_side(trials: Sequence[Trial], wanted: Sequence[Condition]) -> bool | None:
    """Whether the goals are surely met, or one is surely missed: requests that never meet are independent."""
    shares = {share.text: share for share in _pooled(trials)}
    away = []
    for condition in wanted:
        share = shares[condition.text]
        found = share.met / max(1, share.of)
        error = math.sqrt(max(condition.goal * (1 - condition.goal), 1e-4) / max(1, share.of))
        away.append((found - condition.goal) / error)
    return False if min(away) < -SURE else True if min(away) > SURE else None


def _pooled(trials: Sequence[Trial]) -> list[Share]:
    """The shares of all trials together."""
    texts = [share.text for share in trials[0].shares]
    return [
        Share(text, sum(t.share(text).met for t in trials), sum(t.share(text).of for t in trials)) for text in texts
    ]


def _at_the_edge(trials: Sequence[Trial], spec: SearchSpec) -> str:
    shares = {share.text: share for share in _pooled(trials)}
    attained = ", ".join(f"{shares[c.text].met / max(1, shares[c.text].of):.1%} of {c.text}" for c in spec.wanted)
    return (
        f"even without load attainment is hardly the goal ({attained}; goal: "
        f"{100 * spec.goal:.4g}%), so whether any rate is low enough is not decided; "
        "set a slightly higher or lower goal."
    )


def _unreachable(trials: Sequence[Trial], spec: SearchSpec) -> str:
    shares = {share.text: share for share in _pooled(trials)}
    worst = min(spec.wanted, key=lambda c: shares[c.text].met / max(1, shares[c.text].of) - c.goal)
    bounds = sorted(spec.bounds, key=lambda c: shares[c.text].met / max(1, shares[c.text].of) - c.goal)
    binding = bounds[0] if bounds else worst
    share = shares[binding.text]
    return (
        f"even without load only {share.met / max(1, share.of):.1%} of the requests meet {binding.text} "
        f"({100 * binding.goal:.4g}% have to), so no rate is low enough."
    )


@dataclass(frozen=True, slots=True)
class Probed:
    """What the probes of the first seed found: rates that were sustained and rates that were not, two of them near to
    one another (the bracket), and how many requests a whole trial takes there."""

    bracket: Bracket
    planned: int
    met: Sequence[Side]
    missed: Sequence[Side]


def bracketed(
    spec: SearchSpec, alone: Trial | None
) -> Generator[list[TrialRequest], list[Trial], Probed | SearchResult]:
    """Two rates near to one another, of which the first seed's probes met the goal at one. `alone`: without load."""
    bracket = Bracket()
    passed: Trial | None = None
    met = [] if alone is None else [Side(alone.key.rate_rps, 1, alone.requests)]
    missed: list[Side] = []
    from_rps = spec.from_rps or (8 / alone.e2e_s if alone and alone.e2e_s else spec.own_rps)
    fewest = (
        spec.planned if spec.one_traffic else min(spec.planned, max(FEWEST_IN_PROBE, round(spec.planned * PROBE_SHARE)))
    )
    planned, rate_rps = fewest, plain(from_rps)
    for _ in range(DOUBLINGS):
        made = yield [TrialRequest(Key(spec.first_seed, rate_rps, planned, spec.goal), spec.wanted)]
        if not made:
            return SearchResult(
                None, resolved=False, why=spent(spec, planned, rate_rps), bracket=_or_alone(bracket, alone)
            )
        probe = made[0]
        # A pass proves nothing while fewer requests are sent than a full system holds: no queue had time to grow.
        if probe.passed and (needed := _in_flight(probe) * SHORTEST) > planned:
            if planned >= spec.most_planned:
                why = _too_short(spec, planned, rate_rps, needed)
                return SearchResult(None, resolved=False, why=why, bracket=_or_alone(bracket, alone))
            planned = min(spec.most_planned, max(2 * planned, math.ceil(needed)))
            continue
        passed = probe if probe.passed else passed
        side = Side(rate_rps, 1, probe.requests, probe.overloaded)
        (met if probe.passed else missed).append(side)
        bracket = bracket.with_side(side, met=bool(probe.passed))
        if bracket.low is None and probe.e2e_s and _in_flight(probe) < IDLE:
            return SearchResult(None, resolved=True, unreachable=True, why=_never_sustained(probe, spec))
        if bracket.ratio <= WIDE:
            break
        low, high = bracket.low, bracket.high
        if low is not None and high is not None:
            next_rps = math.sqrt(low.rate_rps * high.rate_rps)
        else:
            next_rps = high.rate_rps / 2 if high else 2 * low.rate_rps if low else from_rps
        planned, rate_rps = fewest, plain(next_rps)
    if bracket.low is None or bracket.high is None or passed is None:
        return SearchResult(None, resolved=False, why=_no_side(bracket), bracket=_or_alone(bracket, alone))
    return Probed(bracket, _of_whole(spec, _in_flight(passed)), met, missed)


def _in_flight(tried: Trial) -> float:
    """Requests in the system on average, by Little's law."""
    return tried.key.rate_rps * (tried.e2e_s or 0.0)


def _of_whole(spec: SearchSpec, in_flight: float) -> int:
    """Requests of a whole trial, so many that a queue has time to grow."""
    planned = spec.planned
    while planned < (LONG if spec.virtual else SHORTEST) * in_flight and 2 * planned <= spec.most_planned:
        planned *= 2
    return planned


def _or_alone(bracket: Bracket, alone: Trial | None) -> Bracket:
    """With the rate of requests one by one, where no other is known to meet the goal."""
    if bracket.low is not None or alone is None:
        return bracket
    return bracket.with_side(Side(alone.key.rate_rps, 1, alone.requests), met=True)


def _never_sustained(probe: Trial, spec: SearchSpec) -> str:
    """A probe that was ended early gives a side and no share."""
    return (
        f"even at {probe.key.rate_rps:.4g} req/s, where requests hardly meet, the goal of {100 * spec.goal:.4g}% under "
        f"{slos.text(spec.slo)} is missed, so no rate is low enough."
    )


def _too_short(spec: SearchSpec, planned: int, rate_rps: float, needed: float) -> str:
    more = "replay a longer part" if spec.one_traffic else f"give --requests {math.ceil(needed):,}".replace(",", "")
    return (
        f"{planned:,} requests at {rate_rps:.4g} req/s are sent within {planned / rate_rps:.2g} s, too short against "
        f"the {needed / SHORTEST / rate_rps:.2g} s that one takes to show whether a queue grows; {more} or more."
    )


def spent(spec: SearchSpec, planned: int, rate_rps: float) -> str:
    """Why no more trials were made: the next one would have been of so many requests at that rate."""
    if spec.virtual:
        return "the budget was spent."
    span_s = planned / rate_rps
    return f"the budget does not hold the next trial: {planned:,} requests at {rate_rps:.4g} req/s take {span_s:.0f} s."


def _no_side(bracket: Bracket) -> str:
    if bracket.high is None and bracket.low is not None:
        return f"no rate up to {bracket.low.rate_rps:.4g} requests per second was too high."
    if bracket.low is None and bracket.high is not None:
        return f"every rate down to {bracket.high.rate_rps:.4g} requests per second was too high."
    return "the probes were too few to bring both sides together."

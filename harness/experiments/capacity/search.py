"""The search itself: which trials to make next, given those that were made. It makes none and reads no clock."""

import math
from collections.abc import Sequence
from dataclasses import replace

from harness.experiments.capacity.aim import Aim, Bracket, Found, Measures, Stopped, Trials, Wanted, plain, sustained
from harness.experiments.capacity.bracket import WIDE, Probed, bracketed, combined, sides, spent, without_load
from harness.experiments.capacity.estimate import Estimate, as_found, curve_of, estimate, nearby
from harness.experiments.capacity.trials import Key, Tried
from harness.stats.curves import Curve

APART, NEAREST, FARTHEST = 0.4, 1.05, 1.2
"""Two rates around a guess differ by this in logit(attainment), but by these factors at least and at most."""

AGAIN = (1.2, 1.5, 2.0, 2.0, 2.0, 2.0)
"""Factors by which the rates tried are left, one after the other, while whole trials lie on one side of the goal."""

BEYOND, MOST_BEYOND = 0.01, 4
"""Whole trials are made this far beyond an interval that leaves the rates tried, so many times at most."""

OUT_OF_HAND = 0.25
"""An interval wider than this, half of it as a share of the capacity, is not worth trials beyond its ends."""

LASTS = 8
"""Times the length of a whole trial, of those that check an answer: a system may keep up for minutes and then not."""

CHECKS, CHECKS_OF_SIDES = 2, 4
"""Seeds of such a check, and of the trials as long that look for another answer where it failed."""

SAME = 0.01
"""Rates closer than this, in log rate, are as good as one another for a trial."""


def search(aim: Aim, measure: Measures, known: Sequence[Tried] = ()) -> Trials:
    """Yields the trials to make, takes them as they were made; an empty answer means that no more can be made.

    `known` are whole trials of the same search for other goals: they have a say where they are near.
    """
    alone = (yield from without_load(aim, measure)) if aim.virtual else None
    if isinstance(alone, Found):
        return alone
    probed = yield from bracketed(aim, alone)
    if isinstance(probed, Found):
        return probed
    if aim.one_traffic:
        return (yield from _on_one_traffic(aim, probed, measure))
    found = yield from _estimated(aim, probed, measure, known)
    return (yield from _checked(aim, found)) if aim.virtual and not aim.fixed else found


def _on_one_traffic(aim: Aim, probed: Probed, measure: Measures) -> Trials:
    """The crossing of the one curve that a recording has; nothing is random, so there is no interval."""
    trials: list[Tried] = []
    found: Estimate | None = None
    low, high = _ends(probed.bracket)
    rates = [low, high]
    for _ in range(6):
        keys = [Key(aim.first_seed, plain(rate), aim.planned) for rate in rates]
        made = yield [Wanted(key) for key in keys if key not in [t.key for t in trials]]
        if not made:
            break
        trials += made
        found = _local(trials, aim, measure)
        if found is None:
            break
        if any(abs(math.log(t.key.rate_rps / found.rate_rps)) < 0.005 for t in trials):
            return _found(trials, aim, measure, found, probed, resolved=True)
        rates = [found.rate_rps]
    why = "no falling curve was found near the bracket."
    return _found(trials, aim, measure, found, probed, resolved=False, why=why)


def _ends(bracket: Bracket) -> tuple[float, float]:
    """The rates of both sides, which are there."""
    assert bracket.low is not None
    assert bracket.high is not None
    return bracket.low.rate_rps, bracket.high.rate_rps


def _local(trials: Sequence[Tried], aim: Aim, measure: Measures) -> Estimate | None:
    """From the two trials that are closest to the crossing."""
    rough = estimate(trials, aim.wanted, measure)
    if rough is None or len(trials) < 3:
        return rough
    near = sorted(trials, key=lambda t: abs(math.log(t.key.rate_rps / rough.rate_rps)))
    return estimate(near[:2], aim.wanted, measure) or rough


def _estimated(aim: Aim, probed: Probed, measure: Measures, known: Sequence[Tried]) -> Trials:
    """Whole trials of ever more seeds at the best guess so far, until the interval is narrow enough.

    While all of them lie on one side of the goal, the first seeds look for the other side; and they go beyond an
    interval that is about to be the answer and leaves the rates that were tried.
    """
    trials: list[Tried] = []
    known = [t for t in known if t.key.planned == probed.planned]
    found: Estimate | None = None
    low, high = _ends(probed.bracket)
    pairs = [(0, low), (0, high), (1, low), (1, high), (2, low), (3, high)]  # two seeds at both ends and one at each
    batch = [Key(aim.first_seed + seed, rate_rps, probed.planned) for seed, rate_rps in pairs]
    again = beyond = 0
    stopped: Stopped | None = None
    while True:
        made = yield [Wanted(key) for key in batch]
        if not made:
            why, stopped = spent(aim, probed.planned, batch[0].rate_rps), "budget"
            break
        trials += made
        every = _together(trials, known)
        for condition in aim.wanted:
            measure.fit(every, condition)
        found = estimate(every, aim.wanted, measure)
        bracket = sides(every, aim.wanted, measure)
        seeds = len({t.key.seed for t in trials})
        if bracket.low is None or bracket.high is None:
            if again >= len(AGAIN):
                why = "all whole trials lie on one side of the goal."
                break
            rates = [t.key.rate_rps for t in every]
            rate_rps = min(rates) / AGAIN[again] if bracket.low is None else max(rates) * AGAIN[again]
            again += 1
            batch = _of_first_seeds(aim, probed.planned, rate_rps)
            continue
        near = found if found is not None and len(found.knees) >= aim.first_seeds else None  # seeds enough nearby
        if near is not None and aim.at_rps is not None and sustained(aim.at_rps, near, bracket) is not None:
            return _found(every, aim, measure, found, probed, resolved=True)
        narrow, full = near is not None and near.half_width <= aim.tolerance, seeds >= aim.max_seeds
        if (narrow or full) and (missing_rps := _missing_rps(found, bracket)) is not None:
            if beyond < MOST_BEYOND:
                beyond += 1
                batch = _of_first_seeds(aim, probed.planned, missing_rps)
                continue
            why = "the interval leaves the rates that were tried."
            break
        if narrow and not _contradicted(found, bracket):
            return _found(every, aim, measure, found, probed, resolved=True)
        if full and _contradicted(found, bracket):
            why = "a queue grows all through the trials before the goal is missed, so no curve tells where."
            break
        if full:
            why = f"{aim.max_seeds} seeds were not enough."
            break
        batch = _next_batch(aim, probed, trials, found, bracket)
    return _found(_together(trials, known), aim, measure, found, probed, resolved=False, why=why, stopped=stopped)


def _checked(aim: Aim, found: Found) -> Trials:
    """The same, if trials `LASTS` times as long sustain the highest rate that it calls sustained; else the rates on
    both sides of the goal that those find."""
    rate_rps = _highest_sustained(aim, found)
    if rate_rps is None or found.planned is None:
        return found
    planned = LASTS * found.planned
    trials = yield [Wanted(key) for key in _of_first_seeds(aim, planned, rate_rps, CHECKS)]
    if len(trials) < CHECKS:
        return replace(found, resolved=False, why=found.why or spent(aim, planned, rate_rps), stopped="budget")
    if not _contradict(trials, found, aim):
        return found
    why = (
        f"trials of {found.planned:,} requests sustain {rate_rps:.4g} req/s, but trials of {planned:,} do not: this "
        f"system keeps up for a while only. --requests {planned} searches with trials of that length."
    )
    bracket = sides(trials, aim.wanted, as_found)
    for factor in AGAIN:
        decided = aim.at_rps is not None and bracket.side_of(aim.at_rps) is not None
        if bracket.ratio <= WIDE or (decided and bracket.low is not None):
            break
        if bracket.low is None:
            rate_rps = min(t.key.rate_rps for t in trials) / factor
        else:
            rate_rps = math.sqrt(math.prod(_ends(bracket)))
        made = yield [Wanted(key) for key in _of_first_seeds(aim, planned, rate_rps, CHECKS_OF_SIDES)]
        if len(made) < CHECKS_OF_SIDES:
            break
        trials = [*trials, *made]
        bracket = sides(trials, aim.wanted, as_found)
    return Found(None, resolved=False, why=why, bracket=bracket, planned=planned, stopped="check")


def _highest_sustained(aim: Aim, found: Found) -> float | None:
    """The highest rate that an answer calls sustained; None where it calls none so."""
    if found.answered is not None:
        return found.answered.low_rps
    if aim.at_rps is not None and found.estimate and sustained(aim.at_rps, found.estimate, found.bracket):
        return aim.at_rps
    return None if found.bracket.low is None else found.bracket.low.rate_rps


def _contradict(trials: Sequence[Tried], found: Found, aim: Aim) -> bool:
    """Whether the queues of most trials grow, or attainment is below what the curve gives for the upper end.

    Note: at the lower end that is below the goal by as much again as chance is expected to bring it there. Of a bracket
    there is no curve, and attainment must not be below the goal.
    """
    if found.answered is None or 2 * sum(t.overloaded for t in trials) > len(trials):
        return sides(trials, aim.wanted, as_found).low is None
    worst_rps = found.answered.high_rps or found.answered.rate_rps
    means = {c.text: sum(as_found(trials, c).values) / len(trials) for c in aim.wanted}
    return any(means[text] < curve.at(worst_rps) for text, curve in found.answered.curves.items() if text in means)


def _missing_rps(found: Estimate | None, bracket: Bracket) -> float | None:
    """A rate beyond that end of the interval which leaves the rates tried; None where none does."""
    if found is None or found.low_rps is None or found.high_rps is None or found.half_width > OUT_OF_HAND:
        return None
    if _contradicted(found, bracket):
        return None
    if not bracket.holds(found.low_rps, math.inf if bracket.most_rps is None else bracket.most_rps):
        return plain(found.low_rps * (1 - BEYOND))
    return None if bracket.holds(found.low_rps, found.high_rps) else plain(found.high_rps * (1 + BEYOND))


def _contradicted(found: Estimate | None, bracket: Bracket) -> bool:
    """Whether the trials themselves lie on other sides of the goal than the curve through them says."""
    if found is None or found.low_rps is None or found.high_rps is None:
        return False
    return bracket.contradicts(found.low_rps, found.high_rps)


def _together(trials: Sequence[Tried], known: Sequence[Tried]) -> list[Tried]:
    """The trials of this search, and those of others that are not among them, of the seeds that it has."""
    keys, seeds = {t.key for t in trials}, {t.key.seed for t in trials}
    return [*trials, *(t for t in known if t.key not in keys and t.key.seed in seeds)]


def _of_first_seeds(aim: Aim, planned: int, rate_rps: float, seeds: int = 2) -> list[Key]:
    """Trials that tell on which side of the goal a rate lies: of seeds that are there, so that no new one is spent."""
    return [Key(aim.first_seed + seed, plain(rate_rps), planned) for seed in range(seeds)]


def _next_batch(
    aim: Aim, probed: Probed, trials: Sequence[Tried], found: Estimate | None, bracket: Bracket
) -> list[Key]:
    """New seeds, by turns below and above the best guess.

    By turns, because an error of the slope then cancels; one trial a seed, because another of the same seed tells
    little that is new.
    """
    seeds = len({t.key.seed for t in trials})
    first = aim.first_seed + seeds
    low, high = _around(found, [t.key.rate_rps for t in trials], bracket)
    more = _more_seeds(aim, found, seeds)
    return [Key(first + i, high if i % 2 else low, probed.planned) for i in range(more)]


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


def _around(found: Estimate | None, rates: Sequence[float], bracket: Bracket) -> tuple[float, float]:
    """Two rates around the best guess, so far apart that attainment differs.

    A guess beyond the rates on both sides of the goal is none: the curve is not straight so far away. Then the rates
    between them are tried.
    """
    low, high = _ends(bracket)
    half = min(math.log(FARTHEST), math.log(high / low) / 2) / 2
    guess = math.sqrt(low * high)
    if found is not None and low / FARTHEST < found.rate_rps < high * FARTHEST and not _contradicted(found, bracket):
        guess = found.rate_rps
        slope = found.curves[found.binding].slope
        half = min(max(APART / slope, math.log(NEAREST)), math.log(FARTHEST)) / 2
    return _tried_or_new(guess * math.exp(-half), rates), _tried_or_new(guess * math.exp(half), rates)


def _tried_or_new(rate_rps: float, rates: Sequence[float]) -> float:
    """A rate that was tried where that is as good."""
    nearest = min(rates, key=lambda rate: abs(math.log(rate / rate_rps)))
    return nearest if abs(math.log(nearest / rate_rps)) < SAME else plain(rate_rps)


def _found(
    trials: Sequence[Tried],
    aim: Aim,
    measure: Measures,
    found: Estimate | None,
    probed: Probed,
    *,
    resolved: bool,
    why: str | None = None,
    stopped: Stopped | None = None,
) -> Found:
    bounds: dict[str, Curve] = {}
    each: dict[str, Bracket] = {}
    near = [] if found is None else nearby(trials, found.rate_rps, found.curves) or trials
    for condition in aim.bounds if found is not None else ():
        measure.fit(trials, condition)
        if (curve := curve_of(near, condition, measure) or curve_of(trials, condition, measure)) is not None:
            bounds[condition.text] = curve
            each[condition.text] = sides(trials, [condition], measure)
    for condition in aim.wanted if trials else ():
        measure.fit(trials, condition)
    bracket = combined(sides(trials, aim.wanted, measure), probed)
    return Found(
        found, resolved and found is not None, why=None if resolved else why, bounds=bounds, bracket=bracket,
        each=each, planned=probed.planned, stopped=stopped,
    )  # fmt: skip

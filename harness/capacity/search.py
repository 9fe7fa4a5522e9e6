"""The search itself: which trials to make next, given those that were made. It makes none and reads no clock."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

from harness.capacity.aim import Aim, Found, Measures, Trials, Wanted, plain
from harness.capacity.bracket import Bracket, bracketed, spent, without_load
from harness.capacity.estimate import Estimate, curve_of, estimate, nearby
from harness.capacity.trials import Key, Tried

if TYPE_CHECKING:
    from harness.capacity.curve import Curve

APART, NEAREST, FARTHEST = 0.4, 1.05, 1.2
"""Two rates around a guess differ by this in logit(attainment), but by these factors at least and at most."""

SAME = 0.01
"""Rates closer than this, in log rate, are as good as one another for a trial."""


def search(aim: Aim, measure: Measures, known: Sequence[Tried] = ()) -> Trials:
    """Yields the trials to make, takes them as they were made; an empty answer means that no more can be made.

    `known` are whole trials of the same search for other goals: they have a say where they are near.
    """
    unloaded = yield from without_load(aim, measure) if aim.virtual else _nothing()
    if isinstance(unloaded, Found):
        return unloaded
    bracket = yield from bracketed(aim, unloaded)
    if isinstance(bracket, Found):
        return bracket
    if aim.one_traffic:
        return (yield from _on_one_traffic(aim, bracket, measure))
    return (yield from _estimated(aim, bracket, measure, known))


def _nothing() -> Generator[list[Wanted], list[Tried], float | None]:
    return None
    yield  # pragma: no cover


def _on_one_traffic(aim: Aim, bracket: Bracket, measure: Measures) -> Trials:
    """The crossing of the one curve that a recording has; nothing is random, so there is no interval."""
    trials: list[Tried] = []
    found: Estimate | None = None
    rates = [bracket.low_rps, bracket.high_rps]
    for _ in range(6):
        keys = [Key(aim.first_seed, plain(rate), aim.planned) for rate in rates if rate is not None]
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
            why = spent(aim, aim.planned, batch[0].rate_rps)
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
        low, high = plain(bracket.low_rps), plain(bracket.high_rps)
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
        return plain(min(rates) / FARTHEST), plain(max(rates) * FARTHEST)
    guess = min(max(found.rate_rps, min(rates) / FARTHEST), max(rates) * FARTHEST)
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

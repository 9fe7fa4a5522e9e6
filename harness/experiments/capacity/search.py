"""The search itself: which trials to make next, given those that were made. It makes none and reads no clock."""

import math
from collections.abc import Sequence

from harness.experiments.capacity.bracket import Probed, bracketed, combined, sides, spent, unloaded_baseline
from harness.experiments.capacity.estimate import Estimate, curve_of, estimate, nearby
from harness.experiments.capacity.search_spec import (
    AttainmentMeasure,
    Bracket,
    SearchResult,
    SearchSpec,
    SearchSteps,
    Stopped,
    TrialRequest,
    plain,
    sustained,
)
from harness.experiments.capacity.trials import Key, Trial
from harness.stats.curves import Curve

APART, NEAREST, FARTHEST = 0.4, 1.05, 1.2
"""Two rates around a guess differ by this in logit(attainment), but by these factors at least and at most."""

AGAIN = (1.2, 1.5, 2.0, 2.0, 2.0, 2.0)
"""Factors by which the rates tried are left, one after the other, while whole trials lie on one side of the goal."""

BEYOND, MOST_BEYOND = 0.01, 4
"""Whole trials are made this far beyond an interval that leaves the rates tried, so many times at most."""

OUT_OF_HAND = 0.25
"""An interval wider than this, half of it as a share of the capacity, does not justify trials beyond its ends."""

SAME = 0.01
"""Rates closer than this, in log rate, are as good as one another for a trial."""


def search(spec: SearchSpec, measure: AttainmentMeasure, known: Sequence[Trial] = ()) -> SearchSteps:
    """Yields the trials to run and receives their results; an empty list means that no more can be run.

    `known` are whole trials of the same search for other goals: they have a say where they are near.
    """
    alone = (yield from unloaded_baseline(spec, measure)) if spec.virtual else None
    if isinstance(alone, SearchResult):
        return alone
    probed = yield from bracketed(spec, alone)
    if isinstance(probed, SearchResult):
        return probed
    if spec.one_traffic:
        return (yield from _on_one_traffic(spec, probed, measure))
    return (yield from _estimated(spec, probed, measure, known))


def _on_one_traffic(spec: SearchSpec, probed: Probed, measure: AttainmentMeasure) -> SearchSteps:
    """The crossing of the one curve that a recording has; nothing is random, so there is no interval."""
    trials: list[Trial] = []
    found: Estimate | None = None
    low, high = _ends(probed.bracket)
    rates = [low, high]
    for _ in range(6):
        keys = [Key(spec.first_seed, plain(rate), spec.planned) for rate in rates]
        made = yield [TrialRequest(key) for key in keys if key not in [t.key for t in trials]]
        if not made:
            break
        trials += made
        found = _local(trials, spec, measure)
        if found is None:
            break
        if any(abs(math.log(t.key.rate_rps / found.rate_rps)) < 0.005 for t in trials):
            return _found(trials, spec, measure, found, probed, resolved=True)
        rates = [found.rate_rps]
    why = "no falling curve was found near the bracket."
    return _found(trials, spec, measure, found, probed, resolved=False, why=why)


def _ends(bracket: Bracket) -> tuple[float, float]:
    """The rates of both sides, which are there."""
    assert bracket.low is not None
    assert bracket.high is not None
    return bracket.low.rate_rps, bracket.high.rate_rps


def _local(trials: Sequence[Trial], spec: SearchSpec, measure: AttainmentMeasure) -> Estimate | None:
    """From the two trials that are closest to the crossing."""
    rough = estimate(trials, spec.wanted, measure)
    if rough is None or len(trials) < 3:
        return rough
    near = sorted(trials, key=lambda t: abs(math.log(t.key.rate_rps / rough.rate_rps)))
    return estimate(near[:2], spec.wanted, measure) or rough


def _estimated(spec: SearchSpec, probed: Probed, measure: AttainmentMeasure, known: Sequence[Trial]) -> SearchSteps:
    """Whole trials of ever more seeds at the best guess so far, until the interval is narrow enough.

    While all of them lie on one side of the goal, the first seeds look for the other side; and they go beyond an
    interval that is about to be the answer and leaves the rates that were tried.
    """
    trials: list[Trial] = []
    known = [t for t in known if t.key.planned == probed.planned]
    found: Estimate | None = None
    low, high = _ends(probed.bracket)
    pairs = [(0, low), (0, high), (1, low), (1, high), (2, low), (3, high)]  # two seeds at both ends and one at each
    batch = [Key(spec.first_seed + seed, rate_rps, probed.planned) for seed, rate_rps in pairs]
    again = beyond = 0
    stopped: Stopped | None = None
    while True:
        made = yield [TrialRequest(key) for key in batch]
        if not made:
            why, stopped = spent(spec, probed.planned, batch[0].rate_rps), "budget"
            break
        trials += made
        every = _together(trials, known)
        for condition in spec.wanted:
            measure.fit(every, condition)
        found = estimate(every, spec.wanted, measure)
        bracket = sides(every, spec.wanted, measure)
        seeds = len({t.key.seed for t in trials})
        if bracket.low is None or bracket.high is None:
            if again >= len(AGAIN):
                why = "all whole trials lie on one side of the goal."
                break
            rates = [t.key.rate_rps for t in every]
            rate_rps = min(rates) / AGAIN[again] if bracket.low is None else max(rates) * AGAIN[again]
            again += 1
            batch = _of_first_seeds(spec, probed.planned, rate_rps)
            continue
        near = (
            found if found is not None and len(found.capacity_by_seed) >= spec.first_seeds else None
        )  # seeds enough nearby
        if near is not None and spec.at_rps is not None and sustained(spec.at_rps, near, bracket) is not None:
            return _found(every, spec, measure, found, probed, resolved=True)
        narrow, full = near is not None and near.half_width <= spec.tolerance, seeds >= spec.max_seeds
        if (narrow or full) and (missing_rps := _missing_rps(found, bracket)) is not None:
            if beyond < MOST_BEYOND:
                beyond += 1
                batch = _of_first_seeds(spec, probed.planned, missing_rps)
                continue
            why = "the interval leaves the rates that were tried."
            break
        if narrow and not _contradicted(found, bracket):
            return _found(every, spec, measure, found, probed, resolved=True)
        if full and _contradicted(found, bracket):
            why = "a queue grows all through the trials before the goal is missed, so no curve tells where."
            break
        if full:
            why = f"{spec.max_seeds} seeds were not enough."
            break
        batch = _next_batch(spec, probed, trials, found, bracket)
    return _found(_together(trials, known), spec, measure, found, probed, resolved=False, why=why, stopped=stopped)


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


def _together(trials: Sequence[Trial], known: Sequence[Trial]) -> list[Trial]:
    """The trials of this search, and those of others that are not among them, of the seeds that it has."""
    keys, seeds = {t.key for t in trials}, {t.key.seed for t in trials}
    return [*trials, *(t for t in known if t.key not in keys and t.key.seed in seeds)]


def _of_first_seeds(spec: SearchSpec, planned: int, rate_rps: float, seeds: int = 2) -> list[Key]:
    """Trials that tell on which side of the goal a rate lies: of seeds that are there, so that no new one is spent."""
    return [Key(spec.first_seed + seed, plain(rate_rps), planned) for seed in range(seeds)]


def _next_batch(
    spec: SearchSpec, probed: Probed, trials: Sequence[Trial], found: Estimate | None, bracket: Bracket
) -> list[Key]:
    """New seeds, by turns below and above the best guess.

    By turns, because an error of the slope then cancels; one trial a seed, because another of the same seed tells
    little that is new.
    """
    seeds = len({t.key.seed for t in trials})
    first = spec.first_seed + seeds
    low, high = _around(found, [t.key.rate_rps for t in trials], bracket)
    more = _more_seeds(spec, found, seeds)
    return [Key(first + i, high if i % 2 else low, probed.planned) for i in range(more)]


def _more_seeds(spec: SearchSpec, found: Estimate | None, seeds: int) -> int:
    """How many seeds to add: to the first look, then as many as the width so far says are missing.

    Note: a look after every two seeds would stop at a width that is small by luck, and cost coverage.
    """
    if seeds < spec.first_seeds or found is None:
        more = max(2, spec.first_seeds - seeds)
    else:
        near = len(found.capacity_by_seed)
        wanted = math.ceil(near * (found.half_width / spec.tolerance) ** 2) if math.isfinite(found.half_width) else near
        more = max(2, spec.first_seeds - near, wanted - near)
    return min(more, spec.max_seeds - seeds)


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
    trials: Sequence[Trial],
    spec: SearchSpec,
    measure: AttainmentMeasure,
    found: Estimate | None,
    probed: Probed,
    *,
    resolved: bool,
    why: str | None = None,
    stopped: Stopped | None = None,
) -> SearchResult:
    bounds: dict[str, Curve] = {}
    each: dict[str, Bracket] = {}
    near = [] if found is None else nearby(trials, found.rate_rps, found.curves) or trials
    for condition in spec.bounds if found is not None else ():
        measure.fit(trials, condition)
        if (curve := curve_of(near, condition, measure) or curve_of(trials, condition, measure)) is not None:
            bounds[condition.text] = curve
            each[condition.text] = sides(trials, [condition], measure)
    for condition in spec.wanted if trials else ():
        measure.fit(trials, condition)
    bracket = combined(sides(trials, spec.wanted, measure), probed)
    return SearchResult(
        found, resolved and found is not None, why=None if resolved else why, bounds=bounds, bracket=bracket,
        each=each, planned=probed.planned, stopped=stopped,
    )  # fmt: skip

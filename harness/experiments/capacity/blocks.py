"""The search where trials are runs: which to make next, given those before. It makes none and reads no clock.

On a wall clock a trial is a block of traffic at one rate, and the budget is a promise:

1. alone: a few requests one after the other tell whether the SLO is met without load, and how long an answer takes;
2. ramp: from a low rate on, twice the rate until a block misses. Such a rate is hardly more than the server's capacity,
   so what queues up is soon done;
3. blocks by turns below and above the best guess, as long as answers and the budget ask for, until the time is over or
   the interval narrow.

The interval is that of `harness.stats.knee`. A recording is one traffic, so its two sides are the answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from harness.experiments.capacity.conditions import SURE, kept_all, missed, missed_unloaded, tells
from harness.experiments.capacity.search_spec import (
    Bracket,
    Estimate,
    SearchResult,
    SearchSpec,
    SearchSteps,
    Side,
    TrialRequest,
    plain,
    sustained,
)
from harness.experiments.capacity.trials import SETTLE, Key, Trial
from harness.stats.knee import WORK, Block, Knee, Most, knee

if TYPE_CHECKING:
    from harness.experiments.capacity.conditions import Condition

ALONE = 8
"""Requests one after the other, of which three misses show that the SLO cannot be met (for a goal of 90 %)."""
RAMP_REQUESTS, RAMP_ANSWERS = 12, 3.0
"""A step of the ramp sends so many requests, and lasts so many times an answer."""
DOUBLINGS = 40
NEXT, MARGIN = 0.7, 1.02
"""A step down is at least so far, where the budget does not hold the usual one, and takes less than is left."""
MOST_RPS = 3000.0
"""No rate above this is tried: a client that sends more measures itself."""
SPENT = "the budget was spent."
OPEN_AGAIN = 3
"""A step of the ramp that met less than the goal, but not surely, is drawn so many times: all its requests decide."""
LATE_AGAIN, LATE_RATES = 3, 2
"""A step of the ramp whose requests left too late is drawn so many times, at so many rates at most."""
MEET = 0.3
"""Requests under way, on average, below which they hardly meet."""
BLOCK_REQUESTS, BLOCK_ANSWERS, BLOCK_SHARE = 50, 8.0, 0.06
"""A first block lasts so many answers, as long as so many requests take, and this share of the budget."""
BEHIND = 0.07, 2.5
"""A server is behind that answers this much less than arrives, and so many times what an answer adds by chance."""
FULL = 24
"""Requests that show it."""
MORE, FILLING = 0.02, 0.5
"""Standard deviation of how much more a server sustains than it answers when it is behind, in ln(rate), and of what a
trial adds that lasts a single answer."""
BEYOND = 0.1, 2.0
"""Rates lie this much above what the server answers, at most, in ln(rate), and so many of its standard deviations."""
FILLED = 5.0
"""Times the time in which a queue fills that a block must last to count in full."""
ROUGH, FIRST, LONG = 0.15, 2, 2
"""So many first blocks at least, until the guess is better than this; what is left is shared by so many long blocks,
because a queue near its limit takes long to fill."""
FILLS = 0.2
"""Of a long block, what is not counted at its start."""
APART, NEAREST, FARTHEST = 0.7, 0.03, 0.3
"""Rates lie so many standard deviations below and above the guess, within these distances in ln(rate)."""
BELOW = 0.26
"""A rate so far below all that missed, two steps of the ramp, is on the other side, and so is one that missed so far
above all that met."""
LIKELY = 0.3
"""Requests that met are that unlikely at the goal itself where a rate that is not sure is named as sustained: on
servers 7000 to 7059 of tests/perf/capacity_blocks.py eight of nine such rates were too high without it."""
FEWEST_BLOCKS, FIRST_LOOK = 2, 6
"""Fewer give no interval; the first decision to stop comes after so many."""
SHORTEST = 5
"""Times the requests in flight that a recording must have to show whether a queue grows."""
PARTS = 8
"""Parts of a block whose scatter tells how many requests miss together."""
MOST_MORE_S = 60.0
"""What a trial takes beyond its traffic is allowed for up to here."""
BEGUN = 0.3
"""A step of the ramp that did not miss counts for so much of its requests: it began empty."""


def search(
    spec: SearchSpec, left_s: Callable[[], float] = lambda: math.inf, known: Sequence[Trial] = ()
) -> SearchSteps:
    """Yields the trials to run and receives their results; an empty list means that no more can be run.

    `left_s` tells how much of the budget is left, in seconds. `known` are blocks that were made before,
    for another goal or in a search that is resumed: they count, and their seeds are not used again.
    """
    if spec.one_traffic:
        return (yield from _on_one_traffic(spec))
    return (yield from Blocks(spec, left_s, known).steps())


class Blocks:
    """A search by blocks of traffic; `known` are those that were made before."""

    def __init__(self, spec: SearchSpec, left_s: Callable[[], float], known: Sequence[Trial]) -> None:
        self._spec = spec
        self._left_s = left_s
        self._known = [t for t in known if not t.late]
        self._late = [t for t in known if t.late]
        """Blocks that have a side and no share: they bound, and no curve goes through them."""
        self._made: list[Trial] = []
        self._ramp: list[Trial] = []
        self._e2e_s = self._alone_s = 0.0
        self._more_s = 0.0  # that a trial takes beyond its traffic
        self._seed = spec.first_seed
        self._long = 0

    def steps(self) -> SearchSteps:
        """Yield the trials to run and receive their results."""
        spec = self._spec
        unloaded = yield [TrialRequest(self._key(spec.alone_rps, ALONE), spec.wanted)]
        if not unloaded:
            return SearchResult(None, resolved=False, why="the budget was spent before the first trial was over.")
        self._alone_s = self._e2e_s = unloaded[0].e2e_s or 0.0
        self._more_s = min(MOST_MORE_S, unloaded[0].more_s)
        if not self._e2e_s:
            return SearchResult(None, resolved=False, why="no request was answered in time.")
        few = unloaded[0].key.rate_rps * self._e2e_s < MEET and not unloaded[0].late
        if few and (binding := missed_alone(unloaded[0], spec)) is not None:
            return SearchResult(None, resolved=True, unreachable=True, why=binding)
        if (why := (yield from self._climb())) is not None:
            return self._found(why)
        for tried in self._known:
            self._learn(tried)
            self._seed = max(self._seed, tried.key.seed + 1)
        self._made += self._known
        return (yield from self._narrow())

    def _narrow(self) -> SearchSteps:
        """Blocks by turns below and above the best guess."""
        spec = self._spec
        while True:
            knee = self._knee()
            guess, bracket = self._estimate(knee), self._bracket(knee)
            if guess is not None and spec.at_rps is not None and sustained(spec.at_rps, guess, bracket) is not None:
                return self._found(None)
            if len(self._made) >= FIRST_LOOK and guess is not None and guess.half_width <= spec.tolerance:
                return self._found(None)
            step = min(FARTHEST, max(NEAREST, APART * knee.sd))
            least_rps, most_rps = self._sides()
            middle_rps = max(knee.rate_rps, least_rps * math.exp(step - FARTHEST))
            rate_rps = middle_rps * math.exp(step if len(self._made) % 2 else -step)
            most = self._most()
            answered_rps = most.rate_rps * math.exp(BEYOND[0] + BEYOND[1] * most.sd)
            rate_rps = plain(min(rate_rps, most_rps * math.exp(FARTHEST), answered_rps, MOST_RPS))
            request = self._block(rate_rps, knee.sd)
            trials = [] if request is None else (yield [request])
            if not trials:
                return self._found(SPENT)
            if trials[0].late:
                self._late += [t for t in trials if not t.undecided]
                continue
            self._learn(trials[0])
            self._made += trials
            if rate_rps >= MOST_RPS and kept_all(trials[0].shares, spec.wanted):
                return self._found(_never(rate_rps))

    def _climb(self) -> Generator[list[TrialRequest], list[Trial], str | None]:
        """Twice the rate until a step misses, or half of it until one meets; why there are no two sides, or None."""
        spec = self._spec
        rate_rps = plain(spec.from_rps or 2 / max(self._e2e_s, 1e-3))
        low = high = None
        late: list[float] = []
        for _ in range(DOUBLINGS):
            room_s = self._left_s() - self._e2e_s - self._more_s
            if low is None and 0 < room_s < RAMP_REQUESTS / rate_rps:  # as far down as the budget holds
                rate_rps = plain(min(NEXT * high if high else math.inf, MARGIN * RAMP_REQUESTS / room_s))
            requests = max(RAMP_REQUESTS, math.ceil(RAMP_ANSWERS * self._e2e_s * rate_rps))
            if rate_rps > MOST_RPS:
                break
            if requests / rate_rps > room_s:
                return f"the budget does not hold {requests:,} requests at {rate_rps:g} req/s."
            trials = yield [TrialRequest(self._key(rate_rps, requests, spec.goal), spec.wanted)]
            if not trials:
                return SPENT
            if trials[0].undecided:
                late.append(rate_rps)
                if len(set(late)) == LATE_RATES and late.count(rate_rps) == LATE_AGAIN:
                    return too_late(rate_rps)
                if late.count(rate_rps) == LATE_AGAIN:  # farther from the goal being late decides less
                    rate_rps = plain(rate_rps / 4 if low is None else 2 * rate_rps)
                continue
            self._ramp += trials
            self._more_s = max(self._more_s, min(MOST_MORE_S, trials[0].wall_s - requests / rate_rps))
            open_again = trials[0].passed and not self._good(trials[0])
            if open_again and sum(t.key.rate_rps == rate_rps for t in self._ramp) < OPEN_AGAIN:
                continue
            if self._good(trials[0]):
                low = rate_rps
            else:
                high = rate_rps
            if low is not None and high is not None:
                return None
            if low is None and rate_rps * self._e2e_s < 0.02:
                return f"even {rate_rps:g} req/s, where requests hardly meet, is too much."
            rate_rps = plain(2 * low if low is not None else rate_rps / 4)
        return _never(low or rate_rps)

    def _behind(self, tried: Trial) -> bool:
        """Whether requests came faster than they were answered: then all miss sooner or later."""
        if tried.answered_rps is None or tried.arrived_rps is None or tried.requests < FULL:
            return False
        least = 1 - max(BEHIND[0], BEHIND[1] / math.sqrt(tried.requests), self._filling(tried))
        return tried.answered_rps < least * tried.arrived_rps

    def _filling(self, tried: Trial) -> float:
        """The time of an answer as a share of the time in which requests came."""
        return self._alone_s * _rate_rps(tried) / tried.requests

    def _block(self, rate_rps: float, sd: float) -> TrialRequest | None:
        """A block at a rate, shorter than it should be where the budget is about to end; None where it is over."""
        spec, e2e_s = self._spec, self._e2e_s
        if spec.fixed:
            return TrialRequest(self._key(rate_rps, spec.planned))
        room_s = self._left_s() - e2e_s - self._more_s
        settle_s = SETTLE * e2e_s
        span_s = max(BLOCK_ANSWERS * e2e_s, BLOCK_REQUESTS / rate_rps, BLOCK_SHARE * (spec.budget_s or 0.0))
        if len(self._made) >= FIRST and (sd < ROUGH or self._long) and spec.budget_s is not None:
            self._long += 1
            span_s = max(span_s, room_s / max(1, LONG + 1 - self._long))
            settle_s = max(settle_s, FILLS * span_s)
        edges_s = settle_s + e2e_s
        least_s, over = edges_s + max(3 * e2e_s, 10 / rate_rps), max(1.0, rate_rps / self._most().rate_rps)
        half_s = (self._left_s() / FIRST - e2e_s - self._more_s) / over  # an interval takes two blocks
        if not self._made and half_s >= least_s:
            room_s = half_s * over
        span_s = min(span_s + edges_s, room_s / over)
        if span_s < least_s:
            return None
        return TrialRequest(self._key(rate_rps, math.ceil(rate_rps * span_s)), spec.wanted, settle_s=settle_s)

    def _key(self, rate_rps: float, requests: int, goal: float | None = None) -> Key:
        self._seed += 1
        return Key(self._seed - 1, rate_rps, requests, goal)

    def _learn(self, tried: Trial) -> None:
        """How long an answer takes near the goal: not that of a server with too much to do."""
        condition = self._spec.wanted[0]
        share = tried.share(condition.key)
        if tried.e2e_s and share.met >= 0.5 * share.of:
            self._e2e_s = tried.e2e_s

    def _good(self, tried: Trial) -> bool:
        """Whether a server was not behind and met the goals: in a step of the ramp, in all that were drawn of it."""
        if tried.late:
            return bool(tried.passed)
        if tried.key.goal is None:
            return kept_all(tried.shares, self._spec.wanted) and not self._behind(tried)
        step = [t for t in self._ramp if t.key.rate_rps == tried.key.rate_rps]
        if not all(t.passed and not self._behind(t) for t in step):
            return False
        shares = [[t.share(c.key) for t in step] for c in self._spec.wanted]
        return all(
            sum(share.met for share in step_shares) >= c.goal * sum(share.of for share in step_shares)
            for c, step_shares in zip(self._spec.wanted, shares, strict=True)
        )

    def _sides(self) -> tuple[float, float]:
        """The highest rate that did not miss, and the lowest that did; a step of the ramp counts less than a block."""
        tried = [(t.key.rate_rps, self._good(t)) for t in (*self._ramp, *self._made)]
        met_rps = max((t.key.rate_rps for t in self._made if self._good(t)), default=0.0)
        high_rps = min((rate_rps for rate_rps, good in tried if not good and rate_rps > met_rps), default=max(tried)[0])
        return max((rate_rps for rate_rps, good in tried if good and rate_rps <= high_rps), default=0.0), high_rps

    def _most(self) -> Most:
        """What the server answers when it is behind. Where a queue takes longer to fill than a trial lasts, this alone
        tells that a rate is too high."""
        behind = [t for t in (*self._ramp, *self._made) if self._behind(t)]
        if not behind:
            return Most()
        variances = [MORE**2 + 2 * WORK / t.requests + (FILLING * self._filling(t)) ** 2 for t in behind]
        weight = sum(1 / variance for variance in variances)
        mean = sum(math.log(t.answered_rps or 1.0) / variance for t, variance in zip(behind, variances, strict=True))
        return Most(math.exp(mean / weight), max(MORE, 1 / math.sqrt(weight)))

    def _knee(self) -> Knee:
        """The crossing of the condition that crosses first."""
        most = self._most()
        knees = {c: knee(self._blocks_of(c, self._made, most), c.goal, most=most) for c in self._spec.wanted}
        self._binding = min(knees, key=lambda c: knees[c].rate_rps)
        return knees[self._binding]

    def _blocks_of(self, condition: Condition, made: Sequence[Trial], most: Most) -> list[Block]:
        """What trials tell of a condition. A server that is behind misses in the end, however short the trial. One that
        met the goal while its queue grew tells nothing, and of one that missed the second half counts. One at nearly
        all that the server can answer tells little: a queue fills there as slowly as a random walk leaves 0, in
        noise / (most (1 - load)^2) seconds."""
        counts = [(t.dispersion, t.requests) for t in (*self._ramp, *self._made) if t.dispersion is not None]
        # the variance of how many requests come, over their mean: 1 for Poisson arrivals
        varies = sum(value * count for value, count in counts) / sum(count for _, count in counts) if counts else 1.0
        blocks, noise = [], varies + WORK
        for tried in (*self._ramp, *made):
            share, rate_rps = tried.share(condition.key), _rate_rps(tried)
            met, total, requests = float(share.met), max(1, share.of), max(1, tried.kept)
            mask = share.mask
            splits = () if mask is None or len(mask) < PARTS else np.array_split(mask, PARTS)
            parts = tuple(float(part.mean()) for part in splits)
            weight = 1.0
            if self._behind(tried):
                met = 0.0
            elif met >= condition.goal * total:
                weight = 1 / total if tried.overloaded else BEGUN if tried.key.goal is not None else 1.0
                if not math.isinf(most.rate_rps):
                    room = math.sqrt(FILLED * noise * rate_rps / (most.rate_rps * requests))
                    rate_rps = min(rate_rps, most.rate_rps * max(0.05, 1 - room))
            elif tried.overloaded and parts:
                met, weight = total * sum(parts[PARTS // 2 :]) / (PARTS - PARTS // 2), 0.5
            blocks.append(Block(rate_rps, weight * met, weight * total, weight * requests, parts))
        return blocks

    def _estimate(self, found: Knee) -> Estimate | None:
        if len(self._made) < FEWEST_BLOCKS:
            return None
        rates = [t.key.rate_rps for t in (*self._made, *self._ramp)]
        low, high = max(found.low_rps, min(rates)), min(found.high_rps, max(rates))
        if not low <= found.rate_rps <= high:
            return None
        return Estimate(found.rate_rps, low, high, {}, self._binding.key)

    def _by_seed(self, found: Knee) -> dict[int, float]:
        """Pseudo-values of ln(rate), one for each block: what a comparison with another search goes by."""
        count, x, most = len(self._made), math.log(found.rate_rps), self._most()
        values = {}
        for left_out in self._made:
            rest = self._blocks_of(self._binding, [t for t in self._made if t is not left_out], most)
            without = knee(rest, self._binding.goal, most=most, scatter=found.scatter)
            values[left_out.key.seed] = count * x - (count - 1) * math.log(without.rate_rps)
        return values

    def _bracket(self, found: Knee) -> Bracket:
        """The highest rate tried that surely meets the goals, and the lowest above it that surely misses one; where
        none is sure, the closest that meets or misses. Beyond the interval they are sure, and without one where they
        are far from the other side. A rate whose own requests tell that it misses is sure as well."""
        trials = [*self._ramp, *self._made, *self._late]
        good = [t for t in trials if self._good(t)]
        bad = [t for t in trials if not self._good(t)]
        rates = [t.key.rate_rps for t in trials]
        fitted = self._estimate(found) is not None
        low_rps, high_rps = found.low_rps, found.high_rps
        most_good_rps = max((t.key.rate_rps for t in good), default=0.0)
        if not fitted:
            low_rps = max(low_rps, BELOW * min((t.key.rate_rps for t in bad), default=0.0))
            high_rps = min(high_rps, (most_good_rps or math.inf) / BELOW)
        # Note: a step begins empty, so its requests miss less than later ones: misses tell, a rate that meets does not
        far = [
            t for t in bad
            if t.key.rate_rps >= high_rps or (not fitted and t.key.rate_rps > most_good_rps and self._misses(t, bad))
        ]  # fmt: skip
        highs = [self._side(t, bad, sure=fitted or t in far) for t in far or ([] if fitted else bad)]
        high = min(highs, key=lambda side: (not side.sure, side.rate_rps), default=None)
        below = [t for t in good if high is None or t.key.rate_rps < high.rate_rps]
        safe = [t for t in below if t.key.rate_rps <= low_rps]
        lows = [self._side(t, below, sure=fitted or t in safe) for t in safe or ([] if fitted else below)]
        # of few requests hardly one misses a goal of 99 %, at any rate: such a side is none
        lows = [side for side in lows if side.sure or self._likely(side.rate_rps, below)]
        low = max(lows, key=lambda side: (side.sure, side.rate_rps), default=None)
        return Bracket(low, high, min(rates), max(rates))

    def _counts(self, trials: Sequence[Trial]) -> tuple[int, int]:
        """How many requests of trials met the binding condition, and of how many."""
        shares = [t.share(self._binding.key) for t in trials]
        return sum(share.met for share in shares), sum(share.of for share in shares)

    def _misses(self, tried: Trial, bad: Sequence[Trial]) -> bool:
        """Whether the requests at a rate tell by themselves that it misses the goal."""
        met, total = self._counts([t for t in bad if t.key.rate_rps == tried.key.rate_rps])
        return tells(met, total, self._binding.goal, good=False)

    def _likely(self, rate_rps: float, good: Sequence[Trial]) -> bool:
        """Whether the requests that met at a rate and above it would have missed more, were it at the goal."""
        counts = self._counts([t for t in good if t.key.rate_rps >= rate_rps])
        return tells(*counts, self._binding.goal, good=True, level=LIKELY)

    def _side(self, tried: Trial, others: Sequence[Trial], *, sure: bool) -> Side:
        """The side of a rate, with the requests at it. Where these are too few, those that met at higher rates count
        too, and those that missed at lower ones: at this one more requests would meet, or miss."""
        good, rate_rps = self._good(tried), tried.key.rate_rps
        grew = not good and (tried.overloaded or self._behind(tried))
        at_rate = [t for t in others if t.key.rate_rps == rate_rps]
        farther = [t for t in others if (t.key.rate_rps >= rate_rps if good else t.key.rate_rps <= rate_rps)]
        goal = self._binding.goal
        enough, counted = grew or tells(*self._counts(at_rate), goal, good=good), at_rate
        if not enough and tells(*self._counts(farther), goal, good=good):
            enough, counted = True, farther
        met, total = self._counts(counted)
        seeds, rates = ({getattr(t.key, name) for t in counted} for name in ("seed", "rate_rps"))
        return Side(rate_rps, len(seeds), total, grew, met, sure and enough, len(rates))

    def _found(self, why: str | None) -> SearchResult:
        if not (self._ramp or self._made):
            return SearchResult(None, resolved=False, why=why)
        knee = self._knee()
        estimate = self._estimate(knee)
        if estimate is not None:
            estimate = replace(estimate, capacity_by_seed=self._by_seed(knee))
        away = sorted((abs(math.log(t.key.rate_rps / knee.rate_rps)), i) for i, t in enumerate(self._made))
        close = [self._made[i] for far, i in away if far <= max(FARTHEST, away[0][0])]  # the nearest where none is near
        bounds = {
            bound.key: sum(share.met for share in shares) / total
            for bound in self._spec.bounds
            for shares in [[tried.share(bound.key) for tried in close]]
            if (total := sum(share.of for share in shares))
        }
        return SearchResult(
            estimate, resolved=why is None and estimate is not None, why=why, bounds=bounds,
            bracket=self._bracket(knee),
        )  # fmt: skip


def _rate_rps(tried: Trial) -> float:
    """The rate at which requests came; that of the traffic is its mean."""
    return tried.arrived_rps or tried.key.rate_rps


def too_late(rate_rps: float) -> str:
    """Why nothing is known of a rate whose trials all left late."""
    return (
        f"at {rate_rps:g} req/s the client sent requests so late that they tell no side: from when they were due the "
        "goal is missed, from when they were sent it is met; quiet the machine, or send from another one."
    )


def _never(rate_rps: float) -> str:
    return f"no rate up to {rate_rps:g} requests per second was too high."


def missed_alone(tried: Trial, spec: SearchSpec) -> str | None:
    """Why no rate is low enough, where requests one after the other surely miss the goal; None where they may meet."""
    shares = {share.key: share for share in tried.shares}
    unlikely = missed(tried.shares, spec.wanted, SURE)
    if not unlikely:
        return None
    worst = min(spec.bounds or unlikely, key=lambda c: shares[c.key].met / max(1, shares[c.key].of) - c.goal)
    return missed_unloaded(shares[worst.key], worst.goal)


def _on_one_traffic(spec: SearchSpec) -> SearchSteps:
    """The crossing of the one curve that a recording has; nothing is random, so there is no interval: two rates within
    the tolerance, of which one meets the goal."""
    low: Trial | None = None
    high: Trial | None = None
    rate_rps = plain(spec.from_rps or spec.own_rps)
    for _ in range(DOUBLINGS):
        trials = yield [TrialRequest(Key(spec.first_seed, rate_rps, spec.planned), spec.wanted)]
        if not trials:
            return _between(low, high, spec, SPENT)
        tried = trials[0]
        if tried.undecided:
            return _between(low, high, spec, too_late(rate_rps))
        if tried.passed if tried.late else kept_all(tried.shares, spec.wanted) and not tried.overloaded:
            if (needed := rate_rps * (tried.e2e_s or 0.0) * SHORTEST) > spec.planned:
                return _between(low, high, spec, _too_short(spec, rate_rps, needed))
            low = tried
        else:
            high = tried
        if low is None and tried.e2e_s and rate_rps * tried.e2e_s < 0.05:
            why = (
                f"even at {rate_rps:.4g} req/s, where requests hardly meet, the goal of {100 * spec.goal:.4g}% under "
                f"{spec.slo!s} is missed, so no rate is low enough."
            )
            return SearchResult(None, resolved=True, unreachable=True, why=why)
        ends = [None if side is None else side.key.rate_rps for side in (low, high)]
        if ends[0] and ends[1]:
            if math.log(ends[1] / ends[0]) <= spec.tolerance / 2:
                return _between(low, high, spec, None)
            rate_rps = plain(math.sqrt(ends[0] * ends[1]))
        else:
            rate_rps = plain(2 * rate_rps if high is None else rate_rps / 2)
    return _between(low, high, spec, "no two rates on both sides of the goal were found.")


def _between(low: Trial | None, high: Trial | None, spec: SearchSpec, why: str | None) -> SearchResult:
    ends = [t.key.rate_rps for t in (low, high) if t is not None]
    below, above = (None if t is None else Side(t.key.rate_rps, 1, t.kept, t.overloaded) for t in (low, high))
    bracket = Bracket(below, above, min(ends, default=None), max(ends, default=None))
    if low is None or high is None:
        return SearchResult(None, resolved=False, why=why, bracket=bracket)
    binding = min(spec.wanted, key=lambda c: high.share(c.key).met / max(1, high.share(c.key).of) - c.goal)
    estimate = Estimate(math.sqrt(math.prod(ends)), None, None, {}, binding.key)
    return SearchResult(estimate, resolved=why is None, why=why, bracket=bracket)


def _too_short(spec: SearchSpec, rate_rps: float, needed: float) -> str:
    return (
        f"{spec.planned:,} requests at {rate_rps:.4g} req/s are sent within {spec.planned / rate_rps:.2g} s, too short "
        f"against the {needed / SHORTEST / rate_rps:.2g} s that one takes to show whether a queue grows; replay a "
        "longer part."
    )

"""The search under a virtual clock: which runs to make next, given those before. It makes none and reads no clock.

Capacity over a horizon T is the highest rate at which runs of T, which begin idle, meet the goal on average; each run
has one vote. With x = ln(rate):

1. alone: requests one by one tell how long one takes, and whether the SLO is met without load;
2. bracket: short runs of fresh seeds, twice or half the rate until one meets the goal and one misses it; then T is set;
3. pilot: the same few seeds at all rates, until their mean share crosses the goal between two near rates and the slope
   is known; more seeds where it is not;
4. final: fresh seeds by turns a little below and above the crossing, in a number that the pilot says. The answer is
   where these alone cross the goal, on the slope of all runs. So stopping does not select narrow intervals.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from harness.api import Bound, Slo
from harness.experiments.capacity.conditions import Condition, conditions, missed_unloaded
from harness.experiments.capacity.search_spec import (
    Bracket,
    Estimate,
    Horizon,
    SearchResult,
    SearchSpec,
    SearchSteps,
    Side,
    TrialRequest,
    plain,
)
from harness.experiments.capacity.trials import Key, Trial
from harness.metrics.objective import JOINT, ShareKey
from harness.stats.crossing import Line, Root, Shares, near, root, runs_needed
from harness.stats.curves import Curve, logit
from harness.stats.curves import fit as fitted_curve

Steps: TypeAlias = Generator[list[TrialRequest], list[Trial], None]

HORIZON_S = 600.0
"""T, where nothing says how long."""
ANSWERS, WAITS = 30.0, 33.0
"""T is at least so many times what a request takes by itself, and so many times the longest bound on waiting over the
goal: a growing queue takes time to reach a bound of L seconds, so with goal g a run of T reads up to L / (g T) high."""
SHORTEST_S, ENOUGH = 60.0, 6_000
"""A run of a fast system is cut to about so many requests, and never below so many seconds."""
NOT_BEGUN = 50.0
"""A request that has not begun after T over this has missed, where no bound is on waiting: else a bound on TPOT calls
an endless queue good."""
WAITING = ("ttft", "e2e", "scheduling_delay")
"""Metrics whose bounds limit how long a request waits."""
ALONE = 200
"""Requests one by one."""
SURE = 3.3
"""Standard errors of independent requests that show that the goal is missed without load."""
FIRST = 2.0
"""Requests under way at the first rate."""
PROBE_PART, FEW, PROBE_SEEDS = 0.25, 60, 16
"""A run of the bracket lasts this part of T; one with few requests lasts all of it, with more seeds."""
CLOSE = 1.45
"""The bracket ends at this ratio of its ends."""
ALMOST_NONE, HARDLY = 0.3, 0.004
"""Requests under way below which the rate falls faster, and below which attainment has no scale: the search ends."""
SEEDS, MORE = 2, 2
"""Seeds of the pilot at first, and how many come next."""
MIDDLE = 0.3, 0.7
"""The next rate lies in this part of two that are on both sides of the goal."""
NEAR, SAME_LINE, LOGITS = 0.03, 0.25, 1.0
"""Two rates on both sides are near enough within the first in x, or the second and so many logits of the goal."""
STEP, GROWS, LONGEST = 0.05, 1.6, 0.5
"""Where both lie on one side, the step in x to the next one: at least, by how much it grows, and at most."""
STEPS = 24
PILOT_SEEDS, SLOPE_KNOWN, SLOPE_VAGUE, CLUMPS = 10, 0.35, 0.45, 3.0
"""The pilot ends with so many seeds, its slope known to this share of itself, and its misses in so many of them; of a
slope that is vaguer than the third it needs more of the same seeds."""
APART, FARTHEST, OF_SLOPE = 0.35, 0.07, 0.8
"""Rates of the final lie so many logits from the crossing, between the tolerance and the second in x, and at most the
third in logits."""
FINAL = 16
"""Fewest runs of the final."""
MOVED = 2.5
"""Where the answer lies so many distances from the rates of the final, the final counts as a pilot."""
MOST_RUNS = 800


class SearchEnded(Exception):
    """No more runs can be made: the limit of requests or the budget is spent."""


@dataclass(slots=True)
class _Best:
    """What the search would answer now."""

    rate: Root
    low: float
    high: float
    line: Line
    key: ShareKey

    @property
    def half(self) -> float:
        return (self.high - self.low) / 2


@dataclass(slots=True)
class HorizonSearch:
    """One search for one goal. `waits_s` is the implied bound on TTFT, where the SLO has none on waiting."""

    spec: SearchSpec
    horizon_s: float = 0.0
    settle_s: float = 0.0
    waits_s: float | None = None
    alone_s: float = 0.0
    _least_s: float = 0.0
    _runs: dict[tuple[int, float], Trial] = field(default_factory=dict)
    _sides: dict[float, bool] = field(default_factory=dict)
    _seed: int = 0
    _spent: int = 0
    _best: _Best | None = None

    def steps(self) -> SearchSteps:
        """Yields the runs to make and receives their results, fewer where no more can be made."""
        self._seed = self.spec.first_seed
        try:
            why = yield from self._search()
        except SearchEnded:
            why = "the search stopped at its limit."
        return why if isinstance(why, SearchResult) else self._result(why)

    # ---- the four parts

    def _search(self) -> Generator[list[TrialRequest], list[Trial], SearchResult | str | None]:
        if (edge := (yield from self._alone())) is not None:
            return edge
        low, high = yield from self._bracket()
        if low is None or high is None:
            return "attainment hardly depends on the rate here." if high else "no rate tried is too high."
        self.horizon_s = self._horizon_at(math.sqrt(low * high))
        seeds, ends = self._fresh(SEEDS), (math.log(low), math.log(high))
        for more in (0, MORE):  # the same seeds at all rates: the slope is known early
            seeds += self._fresh(more)
            ends = yield from self._pair(*ends, seeds)
        while True:
            line = yield from self._pilot(ends, seeds)
            if line is None or self._decided:
                return None
            again = yield from self._final(line)
            if again is None:
                return None
            ends, seeds = again, self._fresh(SEEDS)

    def _alone(self) -> Generator[list[TrialRequest], list[Trial], SearchResult | None]:
        spec = self.spec
        made = yield [TrialRequest(Key(spec.first_seed, 0.0, ALONE), spec.wanted)]
        if not made:
            raise SearchEnded
        alone = made[0]
        self._spent += alone.requests
        if not alone.e2e_s:
            return SearchResult(None, resolved=False, why="no request was answered.")
        self.alone_s, self.settle_s = alone.e2e_s, spec.filling.seconds(alone.e2e_s)
        self._least_s = max(SHORTEST_S, ANSWERS * alone.e2e_s, WAITS * longest_wait_s(spec.wanted, spec.slo))
        self.horizon_s = spec.horizon_s or max(HORIZON_S, self._least_s)
        shares = {share.key: share for share in alone.shares}
        for condition in spec.bounds:
            share, goal = shares[condition.key], condition.goal
            if share.met < goal * share.of - SURE * math.sqrt(goal * (1 - goal) * share.of):
                return SearchResult(None, resolved=True, unreachable=True, why=missed_unloaded(share, goal))
        return None

    def _bracket(self) -> Generator[list[TrialRequest], list[Trial], tuple[float | None, float | None]]:
        rate_rps = self.spec.from_rps or FIRST / self.alone_s
        low: float | None = None
        high: float | None = None
        while True:
            rate_rps = plain(rate_rps)
            good = yield from self._probe(rate_rps)
            self._sides[rate_rps] = good
            low, high = (rate_rps, high) if good else (low, rate_rps)
            under_way = rate_rps * self.alone_s
            if low and high:
                if high / low <= CLOSE:
                    return low, high
                rate_rps = math.sqrt(low * high)
            elif good:
                rate_rps *= 2
            elif under_way < HARDLY:
                return None, high
            else:
                rate_rps /= 2 if under_way > ALMOST_NONE else 4

    def _probe(self, rate_rps: float) -> Generator[list[TrialRequest], list[Trial], bool]:
        horizon_s = self._horizon_at(rate_rps)
        span_s = min(horizon_s, max(PROBE_PART * horizon_s, ANSWERS / 3 * self.alone_s))
        if rate_rps * span_s < FEW:
            span_s = horizon_s
        seeds = min(PROBE_SEEDS, max(1, math.ceil(FEW / (rate_rps * span_s))))
        wanted, slo = self._objective(horizon_s)
        made = yield from self._made(
            [self._request(seed, rate_rps, span_s, wanted, slo, self.spec.goal) for seed in self._fresh(seeds)]
        )
        if any(trial.passed is False for trial in made):
            return False
        sums = {c: [sum(getattr(t.share(c.key), n) for t in made) for n in ("met", "of")] for c in wanted}
        return all(met >= c.goal * of for c, (met, of) in sums.items())

    def _pilot(
        self, ends: tuple[float, float], seeds: list[int]
    ) -> Generator[list[TrialRequest], list[Trial], Line | None]:
        """More seeds until the slope is known; None where the search has ended."""
        while True:
            lines = self._lines(sum(ends) / 2, max(0.25, ends[1] - ends[0]))
            line = min(lines.values(), key=lambda each: each.crossing, default=None)
            inside = line is not None and self._inside(line)
            if line is not None and inside and line.seeds >= 6:
                self._keep(lines, line)
                if self._decided:
                    return line
            if len(self._runs) > MOST_RUNS:
                raise SearchEnded
            if line is None or not inside or line.slope_error > SLOPE_VAGUE * line.slope:
                seeds += self._fresh(max(2, len(seeds) // 2))
                ends = yield from self._pair(*ends, seeds)
                continue
            known = line.slope_error < SLOPE_KNOWN * line.slope and line.clumps >= CLUMPS
            if line.seeds >= PILOT_SEEDS and known:
                return line
            yield from self._by_turns(line.crossing, self._apart(line), max(4, len(seeds) // 3))

    def _final(self, line: Line) -> Generator[list[TrialRequest], list[Trial], tuple[float, float] | None]:
        """Fresh runs; None where they are the answer, else between which rates the search goes on."""
        tolerance, center, apart = self.spec.tolerance, line.crossing, self._apart(line)
        seeds: list[int] = []
        count = runs_needed(line, line.scatter, tolerance, FINAL)
        while True:
            left = (self.spec.limit - self._spent) / (math.exp(center) * (self.horizon_s + self.settle_s))
            cut = count - len(seeds) > left + 2
            if cut and left < 2:
                raise SearchEnded
            seeds += yield from self._by_turns(center, apart, max(2, min(count - len(seeds), int(left))))
            lines = self._lines(center, max(0.25, 3 * apart))
            if not lines:
                return center - apart, center + apart
            line = min(lines.values(), key=lambda each: each.crossing)
            roots = {
                c.key: self._root(each, c, seeds) for c, each in lines.items() if each.crossing < line.crossing + 0.1
            }
            key = min(roots, key=lambda k: roots[k].x)
            best = roots[key]
            lowest, highest = (min(r.x + sign * r.half for r in roots.values()) for sign in (-1, 1))
            self._best = _Best(best, lowest, highest, line, key)
            if self._decided or (self._best.half <= tolerance and not cut):
                return None
            if len(self._runs) > MOST_RUNS:
                raise SearchEnded
            if abs(best.x - center) > MOVED * apart:
                return best.x - apart, best.x + apart
            count = max(int(1.25 * len(seeds)) + 1, runs_needed(line, best.scatter, tolerance, len(seeds)))

    # ---- rates and seeds

    def _pair(
        self, low: float, high: float, seeds: Sequence[int]
    ) -> Generator[list[TrialRequest], list[Trial], tuple[float, float]]:
        """Two rates on both sides of where the mean share of these seeds, common at all rates, crosses the goal."""
        above, below, step = (yield from self._away(low, seeds)), (yield from self._away(high, seeds)), STEP
        step = max(step, high - low)
        for _ in range(STEPS):
            if above < 0:
                high, below, low = low, above, low - step
                step = min(LONGEST, GROWS * step)
                above = yield from self._away(low, seeds)
            elif below >= 0:
                low, above, high = high, below, high + step
                step = min(LONGEST, GROWS * step)
                below = yield from self._away(high, seeds)
            elif high - low <= NEAR or (high - low <= SAME_LINE and max(above, -below) <= LOGITS):
                break
            else:
                x = low + min(max(above / (above - below), MIDDLE[0]), MIDDLE[1]) * (high - low)
                away = yield from self._away(x, seeds)
                if away >= 0:
                    low, above = x, away
                else:
                    high, below = x, away
        return low, high

    def _away(self, x: float, seeds: Sequence[int]) -> Generator[list[TrialRequest], list[Trial], float]:
        """The least distance of a mean share from its goal in logits, of runs of these seeds; each is made once."""
        yield from self._runs_at([(seed, x) for seed in seeds])
        rate_rps = plain(math.exp(x))
        distances = []
        for condition in self._objective(self.horizon_s)[0]:
            shares = [self._runs[seed, rate_rps].share(condition.key) for seed in seeds]
            of = sum(s.of for s in shares)
            each = [s.met / s.of for s in shares if s.of]
            half = 0.3 / max(1, of)
            mean = min(max(math.fsum(each) / len(each), half), 1 - half) if each else 1 - half
            distances.append(logit(mean) - logit(condition.goal))
        return min(distances)

    def _by_turns(self, x: float, apart: float, count: int) -> Generator[list[TrialRequest], list[Trial], list[int]]:
        """So many fresh seeds, by turns below and above a rate."""
        seeds = self._fresh(count + count % 2)
        yield from self._runs_at([(seed, x + (apart if i % 2 else -apart)) for i, seed in enumerate(seeds)])
        return seeds

    def _runs_at(self, wanted: Sequence[tuple[int, float]]) -> Steps:
        missing = [(seed, rate_rps) for seed, x in wanted if (seed, rate_rps := plain(math.exp(x))) not in self._runs]
        goals, slo = self._objective(self.horizon_s)
        made = yield from self._made([self._request(s, r, self.horizon_s, goals, slo, None) for s, r in missing])
        self._runs.update(((trial.key.seed, trial.key.rate_rps), trial) for trial in made)

    def _made(self, requests: list[TrialRequest]) -> Generator[list[TrialRequest], list[Trial], list[Trial]]:
        if not requests:
            return []
        if self._spent > self.spec.limit:
            raise SearchEnded
        made = yield requests
        self._spent += sum(trial.requests for trial in made)
        if len(made) < len(requests):
            self._runs.update(((t.key.seed, t.key.rate_rps), t) for t in made if t.key.goal is None)
            raise SearchEnded
        return made

    def _request(
        self, seed: int, rate_rps: float, span_s: float, wanted: tuple[Condition, ...], slo: Slo, goal: float | None
    ) -> TrialRequest:
        planned = math.ceil(rate_rps * (self.settle_s + span_s))
        return TrialRequest(Key(seed, rate_rps, planned, goal), wanted, self.settle_s, span_s, slo)

    def _fresh(self, count: int) -> list[int]:
        self._seed += count
        return list(range(self._seed - count, self._seed))

    def _apart(self, line: Line) -> float:
        return min(max(APART / line.slope, min(self.spec.tolerance, NEAR)), FARTHEST, OF_SLOPE / line.slope)

    # ---- what is asked

    def _horizon_at(self, rate_rps: float) -> float:
        """T, which is cut where the rate is high; rounded, because people are to repeat such runs."""
        if self.spec.horizon_s is not None:
            return self.spec.horizon_s
        return float(math.ceil(max(min(self.horizon_s, ENOUGH / rate_rps), self._least_s)))

    def _objective(self, horizon_s: float) -> tuple[tuple[Condition, ...], Slo]:
        """What must hold, with the implied bound on waiting."""
        spec = self.spec
        if longest_wait_s(spec.wanted, spec.slo):
            return spec.wanted, spec.slo
        self.waits_s = float(f"{max(horizon_s / NOT_BEGUN, self.alone_s):.3g}")
        slo = replace(spec.slo, bounds=(*spec.slo.bounds, Bound("ttft", self.waits_s)))
        return conditions(slo, spec.goal, spec.definition), slo

    # ---- what the runs say

    def _shares(self, key: ShareKey) -> tuple[Shares, list[Trial]]:
        trials = [trial for trial in self._runs.values() if trial.share(key).of]
        of = sum(trial.share(key).of for trial in trials)
        drawn = self._drawn(trials)
        return Shares(
            seed=np.array([t.key.seed for t in trials]),
            x=np.log([t.key.rate_rps for t in trials]),
            share=np.array([t.share(key).met / t.share(key).of for t in trials]),
            controls=drawn - self._mean_drawn(),
            half_a_miss=0.3 / max(1, of),
        ), trials

    def _drawn(self, trials: Sequence[Trial]) -> np.ndarray:
        """(trials, 2) prompt and output tokens that each run drew, against the rate: the load by chance."""
        seconds = np.array([t.key.rate_rps * (self.horizon_s + self.settle_s) for t in trials])
        drawn = [t.quarters.drawn for t in trials if t.quarters is not None]
        return np.array(drawn, float).reshape(-1, 2) / seconds[:, None]

    def _of_seeds(self) -> np.ndarray:
        """(seeds, 2) what each seed drew."""
        return self._drawn(list({trial.key.seed: trial for trial in self._runs.values()}.values()))

    def _mean_drawn(self) -> np.ndarray:
        return np.asarray(self._of_seeds().mean(axis=0), float)

    def _lines(self, center: float, width: float) -> dict[Condition, Line]:
        """The line of each condition that has one."""
        lines = {}
        for condition in self._objective(self.horizon_s)[0]:
            shares, _ = self._shares(condition.key)
            if len(shares) > 3 and (line := near(shares, condition.goal, center, width)) is not None:
                lines[condition] = line
        return lines

    def _inside(self, line: Line) -> bool:
        rates = [math.log(trial.key.rate_rps) for trial in self._runs.values()]
        return min(rates) - 0.02 <= line.crossing <= max(rates) + 0.02

    def _root(self, line: Line, condition: Condition, seeds: Sequence[int]) -> Root:
        shares, trials = self._shares(condition.key)
        final = set(seeds)
        drawn = self._of_seeds()
        variance = np.cov(drawn.T) / len(drawn)
        return root(line, shares.part(np.array([t.key.seed in final for t in trials])), variance)

    def _keep(self, lines: dict[Condition, Line], line: Line) -> None:
        """Take what the pilot says, where it says more than nothing."""
        ends = [each.interval(1.3) for each in lines.values() if each.crossing < line.crossing + 0.1]
        low, high = (min(end) for end in zip(*ends, strict=True))
        if math.isfinite(low) and math.isfinite(high):
            key = next(c.key for c, each in lines.items() if each is line)
            self._best = _Best(Root(line.crossing, (high - low) / 2, line.scatter, line.seeds), low, high, line, key)

    @property
    def _decided(self) -> bool:
        """Whether the interval tells the side of the rate of --at."""
        at_rps = self.spec.at_rps
        if at_rps is None or self._best is None:
            return False
        return not self._best.low < math.log(at_rps) < self._best.high

    def _result(self, why: str | None) -> SearchResult:
        best, by_rate = self._best, self._by_rate()
        bracket = self._tried(by_rate)
        lasting_s, runs = max(HORIZON_S, self._least_s), 0 if best is None else best.rate.runs
        over = Horizon(self.horizon_s, self.settle_s, lasting_s, self.waits_s, runs)
        if best is None:
            return SearchResult(None, resolved=False, why=why, bracket=bracket, horizon=over)
        resolved = best.half <= self.spec.tolerance
        rate_rps = math.exp(best.rate.x)
        bounds: dict[ShareKey, Curve] = {}
        each: dict[ShareKey, Bracket] = {}
        for condition in self.spec.bounds:
            shares, trials = self._shares(condition.key)
            close = np.abs(shares.x - best.rate.x) < SAME_LINE
            rates, sizes = np.exp(shares.x), np.array([trial.share(condition.key).of for trial in trials])
            curve = fitted_curve(*(part[close].tolist() for part in (rates, shares.share, sizes)))
            if curve is not None:
                bounds[condition.key] = curve
                each[condition.key] = Bracket(None, None, float(rates[close].min()), float(rates[close].max()))
        knees = {trial.key.seed: best.rate.x for trial in self._runs.values()}
        estimate = Estimate(rate_rps, math.exp(best.low), math.exp(best.high), knees, best.key, bounds)
        return SearchResult(
            estimate, resolved, why=None if resolved else why, bounds=bounds, bracket=bracket, each=each, horizon=over
        )  # fmt: skip

    def _by_rate(self) -> dict[float, list[Trial]]:
        by_rate: dict[float, list[Trial]] = {}
        for trial in self._runs.values():
            by_rate.setdefault(trial.key.rate_rps, []).append(trial)
        return dict(sorted(by_rate.items()))

    def _tried(self, by_rate: dict[float, list[Trial]]) -> Bracket:
        """The highest rate that met the goal and the lowest above it that missed, of runs where there are any."""
        sides = dict(self._sides)
        for rate_rps, trials in by_rate.items():
            sides[rate_rps] = all(
                math.fsum(t.share(c.key).met / max(1, t.share(c.key).of) for t in trials) >= c.goal * len(trials)
                for c in self._objective(self.horizon_s)[0]
            )
        rates = sorted(sides)
        low = max((rate for rate in rates if sides[rate]), default=None)
        high = min((rate for rate in rates if not sides[rate] and (low is None or rate > low)), default=None)

        def side(rate_rps: float | None) -> Side | None:
            if rate_rps is None:
                return None
            trials = by_rate.get(rate_rps, [])
            return Side(rate_rps, len(trials), sum(t.kept for t in trials), sure=False)

        return Bracket(side(low), side(high), rates[0] if rates else None, rates[-1] if rates else None)


def longest_wait_s(wanted: Sequence[Condition], slo: Slo) -> float:
    """The longest bound on waiting over its goal, in seconds; 0 where no bound is on waiting."""
    goals = {condition.key: condition.goal for condition in wanted}
    joint = goals.get(JOINT, 1.0)
    waits = [bound.limit / goals.get(bound, joint) for bound in slo.bounds if bound.metric in WAITING]
    return max(waits, default=0.0)


def usual_s(wanted: Sequence[Condition], slo: Slo, rate_rps: float) -> float:
    """T of systems that are to be compared at a rate, where nothing says how long."""
    shortest_s = max(SHORTEST_S, WAITS * longest_wait_s(wanted, slo))
    return float(math.ceil(max(min(HORIZON_S, ENOUGH / rate_rps), shortest_s)))

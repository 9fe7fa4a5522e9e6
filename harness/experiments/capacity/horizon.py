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
from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from harness.api import Bound, Slo
from harness.experiments.capacity.capacity_json import HorizonRuns, RunsNear
from harness.experiments.capacity.conditions import Condition, conditions, hardly_met, kept_all, missed_unloaded
from harness.experiments.capacity.search_spec import (
    Bracket,
    Estimate,
    SearchResult,
    SearchSpec,
    SearchSteps,
    Side,
    TrialRequest,
    plain,
)
from harness.experiments.capacity.trials import Key, Trial
from harness.metrics.objective import JOINT, ShareKey
from harness.stats.crossing import FEWEST_SEEDS, Line, Root, Shares, logit, near, root, runs_needed
from harness.stats.tails import student

Steps: TypeAlias = Generator[list[TrialRequest], list[Trial], None]

# Where a constant names an experiment it is tests/perf/capacity_queues.py, on queues 0 to 79 (the numbers that are
# reported are those of others); constants without one are not critical.

HORIZON_S = 600.0
"""T, where nothing says how long: on eight of nine queues an hour has at most 2 % less."""
ANSWERS, WAITS = 30.0, 33.0
"""T is at least so many times what a request takes by itself, and so many times the longest bound on waiting over the
goal: a growing queue takes time to reach a bound of L seconds, so with goal g a run of T reads up to L / (g T) high."""
SHORTEST_S, ENOUGH = 60.0, 5_000
"""A run of a fast system is cut to about so many requests, and never below so many seconds: runs of 60 s read up to 29
% above those of 10 minutes, runs of 150 s up to 10 %. Cost is that of `FINAL`."""
FEWEST = 30.0, 2.0
"""A run of a slow system lasts until about so many requests came, where nothing says T. Where T is given, rates at
which a run has fewer than the second are not tried: the mean share of almost empty runs says nothing, and a search
went down to 1e-25 req/s."""
LENGTHS_S = 60.0, 90.0, 120.0, 180.0, 240.0, 300.0, 450.0, 600.0
"""Where nothing says T it is the next of these, or of whole minutes: people repeat such runs, and two searches of
one system mean the same."""
NOT_BEGUN = 50.0
"""A request that has not begun after T over this has missed, where no bound is on waiting: else a bound on TPOT calls
an endless queue good."""
WAITING = ("ttft", "e2e", "scheduling_delay")
"""Metrics whose bounds limit how long a request waits."""
ALONE = 200, 3000
"""Requests one by one; the second number where the first does not tell whether the goal can be met at all. The first
shows a goal of 99 % missed from 4 % of misses on."""
SURE = 3.3
"""Standard errors of independent requests that show that the goal is missed without load: once in 2,000 searches."""
FIRST = 2.0
"""Requests under way at the first rate; it is doubled or halved from there."""
PROBE_PART, FEW, PROBE_SEEDS = 0.25, 60, 16
"""A run of the bracket lasts this part of T, because it has to tell a factor and no more; one with few requests lasts
all of it, with more seeds. Brackets take 1 % of the requests of a search."""
CLOSE = 1.45
"""The bracket ends at this ratio of its ends: short runs of one seed tell no smaller one."""
HARDLY = 0.004
"""Requests under way below which attainment has no scale, as with bursts that come at once: it creeps to the goal over
decades of the rate, and the search ends."""
SEEDS, MANY, MORE = 2, 3_000, 2
"""Seeds of the pilot at first, where a run has fewer requests than the second; else one. So many come next."""
MIDDLE = 0.3, 0.7
"""The next rate lies in this part of two that are on both sides of the goal: so the two close in from both."""
NEAR, SAME_LINE, LOGITS = 0.08, 0.25, 1.5
"""Two rates on both sides are near enough within the first in x, or the second and so many logits of the goal.
Crossings of single seeds differ by as much: at 0.03 and one logit the pilot took a third more requests."""
STEP = 0.1
"""Where both lie on one side, the first step in x to the next one; each is twice the one before."""
STEPS = 24
PILOT_SEEDS, SLOPE_KNOWN, SLOPE_VAGUE, CLUMPS = 6, 0.35, 0.45, 3.0
"""The pilot ends with so many seeds (cost is that of `FINAL`), its slope known to this share of itself, and its misses
in so many of them. While the slope is vaguer than the third its rates lie farther apart."""
STEEP, PATIENCE, SLOPE_STEEP = 1.0, 0.4, 0.7
"""Where the tolerance is so many logits, two rates that far apart lie on both sides of the goal for sure; there, and
when this part of the limit is spent, the slope may be as vague as the last: the interval allows for it. Without it a
search for agents took 135 trials instead of 114 (tests/perf/agents_intervals.py --first 700 --systems 12)."""
APART, NEAREST, FARTHEST, OF_SLOPE = 0.35, 0.03, 0.07, 0.8
"""Rates of the final lie so many logits from the crossing, between the second (or the tolerance) and the third in x,
and at most the fourth in logits: at 0.6 logits the line is bent enough for answers that are 1 % too low."""
FINAL = 10
"""Fewest runs of the final: 16, with 10 seeds of a pilot and 6,000 requests a run, took a sixth more requests in all,
for intervals that were narrower than the tolerance."""
WIDE = 0.15
"""While the slope is vague, fresh seeds lie one logit from the crossing, and at most so far in x: with common seeds
alone under wandering traffic the limit was spent on pilots."""
PLANNED_FROM = 10_000
"""The seeds of finals begin so far from the first: those of two systems are the same, so that they can be paired."""
MOVED = 2.5
"""Where the answer lies so many distances from the rates of the final, the final counts as a pilot. From one distance
on the next runs follow the answer: else the error of the slope keeps the interval wide (a factor of two in
requests)."""
MARGIN, MOST_MORE = 1.05, 3
"""A final that was too short is planned with this margin, and grows at most so many times: its width is not known."""
MOST_RUNS = 1_500
"""Runs of few requests cost time too."""
TELLING, FLAT, FLAT_TIMES = 20, 5, 2
"""A pilot of so many seeds ends the search where the final would take so many times `MOST_RUNS`, so many times in a
row. On 439 queues, most of which miss a part at any load, none of 354 that were resolved is lost (with four times two,
with two times five), and eight of the 85 others end after 640 to 1,250 runs instead of 1,600 to 19,000."""
LOOKED = 1.3
"""An interval of runs that were not planned beforehand is widened by this: without it 85 to 90 % held."""
OTHERS = 0.1
"""Conditions that cross their goals within this in x of the first may bind."""
POINTS, OF_MISSES = 0.005, 0.05
"""A flat curve is resolved too: where attainment at the answer is known to half a point, and to this share of the
misses."""
HALF_A_MISS = 0.3
"""Of all votes, as which none counts: the logit of none and of all is finite."""
GROWS_SURELY, TOO_HIGH = 0.05, (1.5, 3.0)
"""A queue that keeps this share of what arrives grows (one run tells twice as much), and one of a rate that is so many
times too high should."""
SERVED = 2_000
"""Requests of a run that tells how many are served: of 120 the rate was 8 % below one that was sustained."""


class SearchEnded(Exception):
    """No more runs can be made: the limit of requests or the budget is spent, or it says why."""


@dataclass(frozen=True, slots=True)
class _Best:
    """What the search would answer now: x and its interval, what binds, the fall of its share per unit of x, and x by
    seed, where runs were planned for it."""

    x: float
    low: float
    high: float
    key: ShareKey
    goal: float
    sharpness: float
    by_seed: dict[int, float] = field(default_factory=dict)

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
    pace_rps: float = 1.0
    """Requests per second of a unit of load: 1 where the load is their rate."""
    _least_s: float = 0.0
    _runs: dict[tuple[int, float], Trial] = field(default_factory=dict)
    _overloaded: list[Trial] = field(default_factory=list)
    _sides: dict[float, bool] = field(default_factory=dict)
    _seed: int = 0
    _planned_seed: int = 0
    _spent: int = 0
    _best: _Best | None = None
    _needs: int | None = None
    _final_seeds: list[int] = field(default_factory=list)

    def steps(self) -> SearchSteps:
        """Yields the runs to make and receives their results, fewer where no more can be made."""
        self._seed = self.spec.first_seed
        self._planned_seed = self.spec.first_seed + PLANNED_FROM
        try:
            why = yield from self._search()
            if isinstance(why, SearchResult):
                return why
            yield from self._overload()
        except SearchEnded as end:
            self._best = self._so_far()
            why = str(end) or "the search stopped at its limit."
        return self._result(why)

    # ---- the four parts

    def _search(self) -> Generator[list[TrialRequest], list[Trial], SearchResult | str | None]:
        if (edge := (yield from self._alone())) is not None:
            return edge
        low, high = yield from self._bracket()
        if high is None:
            return "no rate tried is too high."
        if low is None:
            return self._below_all(high)
        self.horizon_s = self._horizon_at(math.sqrt(low * high))
        few = 1 if math.sqrt(low * high) * self.pace_rps * self.horizon_s >= MANY else SEEDS
        if self.spec.windows is not None:  # fewer runs cannot show that so many meet the goal
            few = math.ceil(1 / (2 - 2 * self.spec.windows))
        seeds, ends = self._fresh(few), (math.log(low), math.log(high))
        for more in (0, MORE):  # the same seeds at all rates: the slope is known early
            seeds += self._fresh(more)
            ends = yield from self._pair(*ends, seeds)
        while True:
            line = yield from self._pilot(ends, seeds)
            if line is None:
                return None
            next_ends = yield from self._final(line)
            if next_ends is None:
                return None
            ends, seeds = next_ends, self._fresh(SEEDS)

    @property
    def _hardly(self) -> float:
        """The fewest requests under way for which a rate is tried."""
        return HARDLY

    def _below_all(self, rate_rps: float) -> SearchResult | str:
        """Say that no rate met the goal, down to this one."""
        return f"attainment hardly depends on the rate: at {rate_rps:g} req/s it is below the goal too."

    def _alone(self) -> Generator[list[TrialRequest], list[Trial], SearchResult | None]:
        spec = self.spec
        for count in ALONE:
            trials = yield [TrialRequest(Key(spec.first_seed, 0.0, count), spec.wanted)]
            if not trials:
                raise SearchEnded
            unloaded = trials[0]
            self._spent += unloaded.requests
            if not unloaded.e2e_s:
                return SearchResult(None, resolved=False, why="no request was answered.")
            self.alone_s, self.settle_s = unloaded.e2e_s, spec.filling.seconds(unloaded.e2e_s)
            self._least_s = max(SHORTEST_S, ANSWERS * unloaded.e2e_s, WAITS * longest_wait_s(spec.wanted, spec.slo))
            self.horizon_s = spec.horizon_s or max(HORIZON_S, self._least_s)
            away = min(_errors_above(unloaded, condition) for condition in spec.wanted)
            if away > 1:
                return None
            if away < -SURE:
                missed = min(spec.bounds, key=lambda bound: _errors_above(unloaded, bound))
                return SearchResult(
                    None, resolved=True, unreachable=True, why=missed_unloaded(unloaded.share(missed.key), missed.goal)
                )
        return SearchResult(None, resolved=False, why=hardly_met(unloaded.shares[0], spec.goal))

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
            elif under_way < self._hardly:
                return None, high
            else:
                rate_rps /= 2

    def _probe(self, rate_rps: float) -> Generator[list[TrialRequest], list[Trial], bool]:
        horizon_s = self._horizon_at(rate_rps)
        span_s = min(horizon_s, max(PROBE_PART * horizon_s, ANSWERS / 3 * self.alone_s))
        if self.pace_rps * rate_rps * span_s < FEW:
            span_s = horizon_s
        seeds = min(PROBE_SEEDS, max(1, math.ceil(FEW / (self.pace_rps * rate_rps * span_s))))
        goals, slo = self._objective(horizon_s)
        trials = yield from self._made(
            [self._request(seed, rate_rps, span_s, goals, slo, self.spec.goal) for seed in self._fresh(seeds)]
        )
        if any(trial.passed is False for trial in trials):
            return False
        sums = {c: [sum(getattr(t.share(c.key), n) for t in trials) for n in ("met", "of")] for c in goals}
        return all(met >= c.goal * total for c, (met, total) in sums.items())

    def _pilot(
        self, ends: tuple[float, float], seeds: list[int]
    ) -> Generator[list[TrialRequest], list[Trial], Line | None]:
        """More seeds until the slope is known; None where the rate of --at is decided."""
        flat_times = 0
        while True:
            lines = self._lines(sum(ends) / 2, max(SAME_LINE, ends[1] - ends[0]))
            line = min(lines.values(), key=lambda each: each.crossing, default=None)
            inside = line is not None and self._inside(line)
            if line is not None and inside and line.seeds >= PILOT_SEEDS:
                self._best = self._by_lines(lines)
                if self._decided:
                    return None
            flat_times = flat_times + 1 if line is not None and self._is_flat(line) else 0
            if len(self._runs) > MOST_RUNS or flat_times == FLAT_TIMES:
                raise self._too_flat(line)
            vague = math.inf if line is None else line.slope_error / line.slope
            steep = line is not None and line.slope * self.spec.tolerance > STEEP
            enough = SLOPE_STEEP if steep or self._spent > PATIENCE * self.spec.limit else SLOPE_KNOWN
            if line is None or (line.seeds < PILOT_SEEDS and (not inside or vague > SLOPE_VAGUE)):
                seeds += self._fresh(max(2, len(seeds) // 2))
                ends = yield from self._pair(*ends, seeds)
                continue
            if not inside or vague > max(enough, SLOPE_VAGUE):
                # more common seeds at old and new rates would cost more than fresh ones, which have controls
                wide = min(max(1 / line.slope, NEAREST), WIDE)
                x = min(max(line.crossing, ends[0] - wide), ends[1] + wide)
                yield from self._by_turns(x, wide, self._fresh(max(4, line.seeds // 2)))
                ends = min(ends[0], x - wide), max(ends[1], x + wide)
                continue
            self._needs = self._spent + self._cost(line, runs_needed(line, line.scatter, self.spec.tolerance, FINAL))
            if line.seeds >= PILOT_SEEDS and vague < enough and line.clumps >= CLUMPS:
                return line
            yield from self._by_turns(line.crossing, self._apart(line), self._fresh(max(4, len(seeds) // 3)))

    def _final(self, line: Line) -> Generator[list[TrialRequest], list[Trial], tuple[float, float] | None]:
        """Fresh runs; None where they are the answer, else between which rates the search goes on."""
        tolerance, center, offset, before = self.spec.tolerance, line.crossing, self._apart(line), self._spent
        self._final_seeds = []
        count = runs_needed(line, line.scatter, tolerance, FINAL)
        while True:
            runs_left = int((self.spec.limit - self._spent) / self._cost(line, 1))
            missing = count - len(self._final_seeds)
            cut = missing > runs_left + 2
            if cut and runs_left < 2:
                raise SearchEnded
            more = max(2, min(missing, runs_left))
            more += more % 2
            fresh = [self._planned_seed + i for i in range(more)]
            self._planned_seed += more
            self._final_seeds += fresh
            yield from self._by_turns(center, offset, fresh)
            lines = self._lines(center, max(SAME_LINE, 3 * offset))
            if not lines:
                return center - offset, center + offset
            line = min(lines.values(), key=lambda each: each.crossing)
            roots = self._roots(lines)
            best = self._best = self._by_roots(lines, roots)
            if self._decided or (self._enough and not cut):
                return None
            if len(self._runs) > MOST_RUNS:
                raise SearchEnded
            moved = abs(best.x - center) / offset
            if moved > MOVED:
                return best.x - offset, best.x + offset
            if moved > 1:  # an error of the slope counts by how far away the runs are
                center = best.x
            done = len(self._final_seeds)
            needed = math.ceil(MARGIN * done * (best.half / tolerance) ** 2)
            self._needs = before + self._cost(line, needed)
            count = min(max(int(1.25 * done) + 1, needed), MOST_MORE * done)

    def _overload(self) -> Steps:
        """Where no queue grew, a run or two at rates that are too high tell how many requests are served."""
        for times in TOO_HIGH:
            if self._best is None or self._stable[0] is not None:
                return
            rate_rps = plain(math.exp(self._best.x) * times)
            span_s = max(PROBE_PART * self.horizon_s, ANSWERS / 3 * self.alone_s, SERVED / rate_rps)
            goals, slo = self._objective(self.horizon_s)
            try:
                trials = yield from self._made([self._request(self._fresh(1)[0], rate_rps, span_s, goals, slo, None)])
            except SearchEnded:  # it is beside the answer
                return
            self._overloaded += trials

    def _is_flat(self, line: Line) -> bool:
        """Whether the final would take too many runs if attainment fell as fast as it may within the error."""
        steepest = replace(line, slope=line.slope + 2 * line.slope_error)
        runs = runs_needed(steepest, line.scatter, self.spec.tolerance, FINAL)
        return line.seeds >= TELLING and runs > FLAT * MOST_RUNS

    def _too_flat(self, line: Line | None) -> SearchEnded:
        """The end of a search whose pilot cannot tell how attainment falls; more requests alone would not help."""
        self._needs, count = None, MOST_RUNS
        if line is not None:
            count = max(count, runs_needed(line, line.scatter, self.spec.tolerance, FINAL))
        return SearchEnded(
            f"near the goal attainment hardly depends on the rate: to tell it to {self.spec.tolerance:.0%} takes about "
            f"{count:,} runs or more; another goal or objective, or a wider tolerance, takes fewer."
        )

    def _cost(self, line: Line, runs: int) -> int:
        """Requests of so many runs near the crossing."""
        return math.ceil(runs * self.pace_rps * math.exp(line.crossing) * (self.horizon_s + self.settle_s))

    # ---- rates and seeds

    def _pair(
        self, low: float, high: float, seeds: Sequence[int]
    ) -> Generator[list[TrialRequest], list[Trial], tuple[float, float]]:
        """Two rates on both sides of where the mean share of these seeds, common at all rates, crosses the goal."""
        above, below, step = (yield from self._away(low, seeds)), (yield from self._away(high, seeds)), STEP
        for _ in range(STEPS):
            if above < 0:
                high, below, low = low, above, low - step
                step *= 2
                above = yield from self._away(low, seeds)
            elif below >= 0:
                low, above, high = high, below, high + step
                step *= 2
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
        if len(self._runs) > MOST_RUNS:
            raise self._too_flat(None)
        yield from self._runs_at([(seed, x) for seed in seeds])
        trials = [self._runs[seed, plain(math.exp(x))] for seed in seeds]
        distances = []
        for condition in self._conditions:
            shares, half = self._votes(condition, trials)
            mean = min(max(math.fsum(shares) / len(shares), half), 1 - half) if shares else 1 - half
            distances.append(logit(mean) - logit(condition.goal))
        return min(distances)

    def _by_turns(self, x: float, apart: float, fresh: Sequence[int]) -> Steps:
        """Fresh seeds by turns below and above a rate."""
        yield from self._runs_at([(seed, x + (apart if i % 2 else -apart)) for i, seed in enumerate(fresh)])

    def _runs_at(self, wanted: Sequence[tuple[int, float]]) -> Steps:
        missing = [(seed, rate_rps) for seed, x in wanted if (seed, rate_rps := plain(math.exp(x))) not in self._runs]
        goals, slo = self._objective(self.horizon_s)
        requests = [self._request(s, r, self.horizon_s, goals, slo, None) for s, r in missing]
        requests_left = self.spec.limit - self._spent - np.cumsum([request.key.planned for request in requests])
        trials = yield from self._made(requests[: int((requests_left >= 0).sum())])
        self._runs.update(((trial.key.seed, trial.key.rate_rps), trial) for trial in trials)
        if len(trials) < len(requests):
            raise SearchEnded

    def _made(self, requests: list[TrialRequest]) -> Generator[list[TrialRequest], list[Trial], list[Trial]]:
        if not requests:
            return []
        if self._spent > self.spec.limit:
            raise SearchEnded
        trials = yield requests
        self._spent += sum(trial.requests for trial in trials)
        if len(trials) < len(requests):
            self._runs.update(((t.key.seed, t.key.rate_rps), t) for t in trials if t.key.goal is None)
            raise SearchEnded
        return trials

    def _request(
        self, seed: int, rate_rps: float, span_s: float, wanted: tuple[Condition, ...], slo: Slo, goal: float | None
    ) -> TrialRequest:
        if self.pace_rps * rate_rps * span_s < FEWEST[1]:
            raise SearchEnded(
                f"at {rate_rps:g} req/s a run of {span_s:g} s has fewer than {FEWEST[1]:.0f} requests; a longer "
                "--horizon tries lower rates."
            )
        planned = math.ceil(self.pace_rps * rate_rps * (self.settle_s + span_s))
        return TrialRequest(Key(seed, rate_rps, planned, goal), wanted, self.settle_s, span_s, slo)

    def _fresh(self, count: int) -> list[int]:
        self._seed += count
        return list(range(self._seed - count, self._seed))

    def _apart(self, line: Line) -> float:
        return min(max(APART / line.slope, min(self.spec.tolerance, NEAREST)), FARTHEST, OF_SLOPE / line.slope)

    # ---- the objective

    def _horizon_at(self, rate_rps: float) -> float:
        """T, which is cut where the rate is high."""
        return self.spec.horizon_s or _cut_s(self.horizon_s, rate_rps, self._least_s)

    def _objective(self, horizon_s: float) -> tuple[tuple[Condition, ...], Slo]:
        """What must hold, with the implied bound on waiting."""
        spec = self.spec
        if longest_wait_s(spec.wanted, spec.slo):
            return spec.wanted, spec.slo
        self.waits_s = float(f"{max(horizon_s / NOT_BEGUN, self.alone_s):.3g}")
        slo = replace(spec.slo, bounds=(*spec.slo.bounds, Bound("ttft", self.waits_s)))
        return conditions(slo, spec.goal, spec.definition), slo

    # ---- what the runs say

    @property
    def _conditions(self) -> tuple[Condition, ...]:
        """What the mean of the shares must reach; of windows, how many runs meet all of it by themselves."""
        if self.spec.windows is not None:
            return (Condition(JOINT, self.spec.windows),)
        return self._objective(self.horizon_s)[0]

    def _votes(self, condition: Condition, trials: Iterable[Trial]) -> tuple[list[float], float]:
        """The share of each run that has one, and half a miss, beyond which no share counts."""
        some = [(trial, share) for trial in trials if (share := trial.share(condition.key)).of]
        if self.spec.windows is not None:
            goals = self._objective(self.horizon_s)[0]
            return [float(kept_all(trial.shares, goals)) for trial, _ in some], HALF_A_MISS / max(1, len(some))
        return [s.met / s.of for _, s in some], HALF_A_MISS / max(1, sum(s.of for _, s in some))

    def _shares(self, condition: Condition) -> Shares:
        trials = [trial for trial in self._runs.values() if trial.share(condition.key).of]
        shares, half = self._votes(condition, trials)
        return Shares(
            seed=np.array([t.key.seed for t in trials], int),
            x=np.log([t.key.rate_rps for t in trials]),
            share=np.array(shares),
            controls=self._drawn(trials) - self._average()[0],
            half_a_miss=half,
        )

    def _drawn(self, trials: Sequence[Trial]) -> np.ndarray:
        """(trials, 4) the load of each run by chance: its requests against the rate, the prompt and output tokens of a
        request, and the square of the first, because waiting grows faster than the load."""
        seconds = np.array([t.key.rate_rps * self.horizon_s for t in trials])
        quarters = [t.quarters for t in trials if t.quarters is not None]
        came = np.array([q.of[JOINT].sum() for q in quarters])
        tokens = np.array([q.drawn for q in quarters], float).reshape(-1, 2)
        more = came / seconds - 1
        return np.column_stack([more, tokens / np.maximum(1, came)[:, None], more**2])

    def _average(self) -> tuple[np.ndarray, np.ndarray]:
        """(4,) what runs draw on average, and its variance (4, 4): over the seeds, except for what is known."""
        drawn = self._drawn(list({trial.key.seed: trial for trial in self._runs.values()}.values()))
        mean, k = drawn.mean(axis=0), drawn.shape[1]
        variance = np.cov(drawn.T) / len(drawn) if len(drawn) > 1 else np.zeros((k, k))
        if self.spec.mean_known:
            mean[0], variance[0], variance[:, 0] = 0, 0, 0
        return mean, variance

    def _lines(self, center: float, width: float) -> dict[Condition, Line]:
        """The line of each condition that has one."""
        lines = {}
        for condition in self._conditions:
            shares = self._shares(condition)
            if len(shares) > 3 and (line := near(shares, condition.goal, center, width)) is not None:
                lines[condition] = line
        return lines

    def _inside(self, line: Line) -> bool:
        rates = [math.log(trial.key.rate_rps) for trial in self._runs.values()]
        return min(rates) - 0.02 <= line.crossing <= max(rates) + 0.02

    def _by_lines(self, lines: dict[Condition, Line]) -> _Best | None:
        """What all runs say; None where their slope is not known."""
        binding = min(lines, key=lambda c: lines[c].crossing)
        line = lines[binding]
        ends = [other.interval(LOOKED) for other in lines.values() if other.crossing < line.crossing + OTHERS]
        low, high = (min(end) for end in zip(*ends, strict=True))
        if not (math.isfinite(low) and math.isfinite(high)):
            return None
        return _Best(line.crossing, low, high, binding.key, binding.goal, line.sharpness)

    def _roots(self, lines: dict[Condition, Line]) -> dict[Condition, Root]:
        """Where the final runs cross the goals, of each condition that may bind."""
        first = min(line.crossing for line in lines.values())
        variance, roots = self._average()[1], {}
        for condition, line in lines.items():
            if line.crossing < first + OTHERS:
                shares = self._shares(condition)
                final = shares.part(np.isin(shares.seed, self._final_seeds))
                roots[condition] = root(line, final, variance)
        return roots

    def _by_roots(self, lines: dict[Condition, Line], roots: dict[Condition, Root]) -> _Best:
        binding = min(roots, key=lambda c: roots[c].x)
        low, high = (min(root.x + sign * root.half for root in roots.values()) for sign in (-1, 1))
        best = roots[binding]
        return _Best(best.x, low, high, binding.key, binding.goal, lines[binding].sharpness, best.by_seed)

    def _so_far(self) -> _Best | None:
        """What the runs say where the search is ended: the final ones where there are enough, else all on one line,
        else the rates that surely met and missed the goal."""
        by_rate = self._by_rate()
        if not by_rate:
            return None
        low, high = (math.log(rate_rps) for rate_rps in (min(by_rate), max(by_rate)))
        lines = self._lines((low + high) / 2, max(SAME_LINE, high - low))
        final = {seed for seed, _ in self._runs}.intersection(self._final_seeds)
        self._final_seeds = sorted(final)
        if lines and len(final) >= FINAL // 2:
            return self._by_roots(lines, self._roots(lines))
        best = self._by_lines(lines) if lines else None
        tried = [*by_rate, *self._sides]
        if best is not None and math.log(min(tried)) <= best.low <= best.high <= math.log(max(tried)):
            return best
        return self._between(by_rate)

    def _between(self, by_rate: dict[float, list[Trial]]) -> _Best | None:
        """The middle of the rates that surely met and missed the goal; None where either is missing."""
        low, high = self._sure_sides(by_rate)
        if low is None or high is None:
            return None
        x, condition = (math.log(low), math.log(high)), self._conditions[0]
        return _Best(sum(x) / 2, *x, condition.key, condition.goal, math.inf)

    def _sure_sides(self, by_rate: dict[float, list[Trial]]) -> tuple[float | None, float | None]:
        """The highest rate that surely met the goal below those that surely missed it, and the lowest of these."""
        sides = {rate_rps: self._surely(trials) for rate_rps, trials in by_rate.items()}
        high = min((rate for rate, side in sides.items() if side < 0), default=None)
        low = max((rate for rate, side in sides.items() if side > 0 and rate < (high or math.inf)), default=None)
        return low, high

    def _surely(self, trials: Sequence[Trial]) -> float:
        """1 where runs at one rate surely met the goal, -1 where they surely missed it, else 0."""
        sides: list[float] = []
        for condition in self._conditions:
            shares, half = self._votes(condition, trials)
            if shares:
                goal, n = condition.goal, len(shares)
                alike = goal * (1 - goal) * half / HALF_A_MISS
                spread = max(float(np.var(shares, ddof=1)) / n, alike) if n >= FEWEST_SEEDS else math.inf
                away = float(np.mean(shares)) - goal
                sides.append(math.copysign(1, away) if abs(away) > student(max(2, n)) * math.sqrt(spread) else 0)
        return min(sides, default=0.0)

    @property
    def _enough(self) -> bool:
        """Whether the interval is narrow enough, or attainment is known where it hardly depends on the rate."""
        best = self._best
        if best is None:
            return False
        max_error = min(POINTS, OF_MISSES * (1 - best.goal))
        return best.half <= self.spec.tolerance or best.half * best.sharpness <= max_error

    @property
    def _decided(self) -> bool:
        """Whether the interval tells the side of the rate of --at."""
        at_rps = self.spec.at_rps
        if at_rps is None or self._best is None:
            return False
        return not self._best.low < math.log(at_rps) < self._best.high

    @property
    def _stable(self) -> tuple[float | None, str | None]:
        """The most that is served per second at any rate at which requests under way surely grew in the second half of
        the runs, and what was full in most of these; None where they grew at no rate."""
        # until the first answers are over more are under way at any rate: of short runs only those made for it tell
        by_rate = self._by_rate() if self.horizon_s >= ANSWERS * self.alone_s else {}
        for trial in self._overloaded:
            by_rate.setdefault(trial.key.rate_rps, []).append(trial)
        served, full = [], Counter[str]()
        for rate_rps, trials in by_rate.items():
            quarters = [trial.quarters for trial in trials if trial.quarters is not None]
            half_s = (trials[0].system_s - self.settle_s) / 2
            grew = np.array([q.under_way[3] - q.under_way[1] for q in quarters]) / half_s
            came = np.array([q.of[JOINT][2:].sum() for q in quarters]) / half_s
            error = student(len(grew)) * float(grew.std(ddof=1)) / math.sqrt(len(grew)) if len(grew) > 1 else 0.0
            least = GROWS_SURELY * rate_rps * (1 if len(grew) > 1 else 2)
            if len(grew) and float(grew.mean()) > max(least, error):
                served.append(float((came - grew).mean()))
                full.update(q.full for q in quarters if q.full)
        return max(served, default=None), next((what for what, _ in full.most_common(1)), None)

    def _near(self, best: _Best) -> list[Trial]:
        """The runs at the answer: of both sides of it, or their mean would not be the goal."""
        trials: list[Trial] = []
        above = {t.key: math.log(t.key.rate_rps) - best.x for t in self._runs.values()}
        reach = max(min((abs(x) for x in above.values() if x * side >= 0), default=0.0) for side in (-1, 1))
        for width in (FARTHEST, SAME_LINE):
            if len(trials) < FINAL // 2:
                width = max(width, reach if reach <= 2 * FARTHEST else 0.0)
                trials = [t for t in self._runs.values() if abs(above[t.key]) <= width]
        return [t for t in trials if t.share(best.key).of and t.quarters is not None]

    def _near_runs(self, best: _Best, trials: Sequence[Trial]) -> RunsNear | None:
        """What the runs at the answer looked like."""
        if not trials:
            return None
        condition = next(c for c in self._objective(self.horizon_s)[0] if c.key == best.key)
        shares = np.array([t.share(best.key).met / t.share(best.key).of for t in trials])
        met, total = (np.array([part[best.key] for t in trials if (q := t.quarters) for part in (getattr(q, name),)])
                   for name in ("met", "of"))  # fmt: skip
        quarters = np.nanmean(np.where(total > 0, met / np.maximum(1, total), math.nan), axis=0)
        return RunsNear(
            runs=len(trials), quarters=quarters.tolist(), worst=float(shares.min()),
            met=float((shares >= condition.goal).mean()), collapsed=float((shares < condition.goal / 2).mean()),
        )  # fmt: skip

    def _result(self, why: str | None) -> SearchResult:
        best, by_rate = self._best, self._by_rate()
        bracket, lasting_s = self._tried(by_rate), max(HORIZON_S, self._least_s)
        runs = len(self._final_seeds) or len(self._runs)
        over = HorizonRuns(
            horizon_s=self.horizon_s, settle_s=self.settle_s, lasting_s=lasting_s, waits_s=self.waits_s, runs=runs
        )  # fmt: skip
        if best is None:
            return SearchResult(None, resolved=False, why=why, bracket=bracket, horizon=over)
        trials, bounds = self._near(best), {}
        implied = [] if self.waits_s is None else [Condition(Bound("ttft", self.waits_s), self.spec.goal)]
        for key in (condition.key for condition in (*self.spec.bounds, *implied)):
            if shares := [share.met / share.of for share in (trial.share(key) for trial in trials) if share.of]:
                bounds[key] = math.fsum(shares) / len(shares)
        rate_rps, low_rps, high_rps = (math.exp(x) for x in (best.x, best.low, best.high))
        estimate = Estimate(rate_rps, low_rps, high_rps, best.by_seed, best.key)
        resolved, near_runs = self._enough, self._near_runs(best, trials)
        stable_rps, full = self._stable
        return SearchResult(
            estimate, resolved, why=None if resolved else why, bounds=bounds, bracket=bracket, horizon=over,
            needs=None if resolved else self._needs, near=near_runs, stable_rps=stable_rps, full=full,
        )  # fmt: skip

    def _by_rate(self) -> dict[float, list[Trial]]:
        by_rate: dict[float, list[Trial]] = {}
        for trial in self._runs.values():
            by_rate.setdefault(trial.key.rate_rps, []).append(trial)
        return dict(sorted(by_rate.items()))

    def _tried(self, by_rate: dict[float, list[Trial]]) -> Bracket:
        """The rates that surely met and missed the goal; where there is none, the highest below all that missed it, and
        the lowest above all that met it."""
        sides = dict(self._sides)
        for rate_rps, trials in by_rate.items():
            sides[rate_rps] = all(
                math.fsum(shares) >= c.goal * len(shares)
                for c in self._conditions
                for shares, _ in [self._votes(c, trials)]
            )
        rates = sorted(sides)
        met, missed = ([rate for rate in rates if sides[rate] is good] for good in (True, False))
        sure_low, sure_high = self._sure_sides(by_rate)
        low = sure_low or max((rate for rate in met if rate < min(missed, default=math.inf)), default=None)
        high = sure_high or min((rate for rate in missed if rate > max(met, default=0.0)), default=None)

        def side(rate_rps: float | None) -> Side | None:
            if rate_rps is None:
                return None
            trials = by_rate.get(rate_rps, [])
            sure = self._best is None and rate_rps in (sure_low, sure_high)  # an interval stands for itself
            return Side(rate_rps, len(trials), sum(t.kept for t in trials), sure=sure)

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
    return _cut_s(HORIZON_S, rate_rps, shortest_s)


def _cut_s(usual_s: float, rate_rps: float, shortest_s: float) -> float:
    """T at a rate: cut where many requests come, longer where few do."""
    needed_s = max(min(usual_s, ENOUGH / rate_rps), FEWEST[0] / rate_rps, shortest_s)
    return next((length_s for length_s in LENGTHS_S if length_s >= needed_s), 60.0 * math.ceil(needed_s / 60))


def _errors_above(alone: Trial, condition: Condition) -> float:
    """By how many standard errors of independent requests the share is above its goal."""
    share, goal = alone.share(condition.key), condition.goal
    error = math.sqrt(max(goal * (1 - goal), 1e-4) / max(1, share.of))
    return (share.met / max(1, share.of) - goal) / error

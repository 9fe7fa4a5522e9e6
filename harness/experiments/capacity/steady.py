"""The search on a virtual clock: which chains to observe next, given what those before have shown. It simulates none.

Capacity is the rate at which attainment in the steady state crosses the goal. In x = ln(rate) and z = logit(attainment):

1. bracket: one chain a rate, twice or half the rate until one meets the goal and one misses it;
2. pilot: eight seeds at each of two rates a little below and above, made longer until the two rates are on both sides,
   the slope dz/dx is known, and a chain is long against what its queue remembers;
3. final: sixteen new seeds at the one rate that the pilot found, as long as its variance says; the answer is that rate,
   moved by what is left of z over the slope. An interval that is too wide makes the same chains longer: the number of
   chains is fixed, so that stopping does not select narrow intervals.

Where attainment falls so steeply that two rates within the tolerance lie surely on both sides, they are the answer.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from harness.experiments.capacity.chain import ChainRequest, Observed, Unloaded

if TYPE_CHECKING:
    from harness.experiments.capacity.conditions import Condition

Floats: TypeAlias = npt.NDArray[np.float64]
Steps: TypeAlias = Generator[list[ChainRequest], list[Observed], "Found"]

SKIPPED, BATCHES = 2, 16
"""Of 18 equal parts of a chain the first two are not counted: the queue still fills; the others are its batches."""
PARTS = SKIPPED + BATCHES
BLOCKS = 4 * PARTS
"""Blocks of a chain before it is extended, by a multiple of its parts."""
FIRST_REQUESTS = 600
"""Requests of the shortest chain, and 30 misses at the goal."""
SURE = 3.0
"""Standard errors that tell a side of the goal."""
RATIO = 1.25
"""The bracket of single chains ends here; the pilot corrects it."""
FEWEST, CHAINS = 8, 16
"""Chains at a rate of the pilot and of the final estimate."""
APART = 0.05
"""Half the distance of the two rates of the pilot, in x."""
STEEP = 1.5
"""Rates farther than this from the goal, in z, tell a side and no slope."""
MEMORIES = 20.0
"""Times that a chain must be as long as its dependent requests; of fewer its mean is skewed."""
PLATEAU = 1.7
"""Variance of a sum over a quarter against that of four sums over a sixteenth: above it, the queue remembers longer."""
SLOPE_ERROR = 0.25
MOVES = 10
AIM = 0.8
"""The final chains are planned for this share of the tolerance."""


class OutOfRequests(Exception):
    """What is needed next goes beyond the limit, or the budget in seconds is spent."""


@dataclass(frozen=True, slots=True)
class SteadySpec:
    """One goal of a search; `memory_s` is how long the arrivals remember their rate, `limit` the most requests."""

    wanted: tuple[Condition, ...]
    goal: float
    tolerance: float
    limit: int
    first_seed: int = 0
    chains: int = CHAINS
    memory_s: float = 0.0
    patience_s: float = 0.0
    cut_s: float | None = None
    from_rps: float | None = None
    at_rps: float | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """What the chains at one rate say of a condition; `errors` (chains,) are the residuals of their shares."""

    share: float
    errors: Floats
    clump: float
    plateau: float
    drift: float
    requests: float

    @property
    def error(self) -> float:
        """Standard error of the share, at least that of independent requests."""
        independent = math.sqrt(self.inside * (1 - self.inside) / max(1.0, self.requests * len(self.errors)))
        if len(self.errors) < 2:
            return independent
        return max(float(np.std(self.errors, ddof=1)) / math.sqrt(len(self.errors)), independent)

    @property
    def inside(self) -> float:
        """The share, half a request away from none and all."""
        half = 0.5 / max(1.0, self.requests * len(self.errors))
        return min(max(self.share, half), 1 - half)

    @property
    def z(self) -> float:
        """logit of the share."""
        return logit(self.inside)

    @property
    def scale(self) -> float:
        """What turns an error of the share into one of z."""
        return 1 / (self.inside * (1 - self.inside))


def logit(share: float) -> float:
    """ln(share / (1 - share))."""
    return math.log(share / (1 - share))


def sample(chains: Sequence[Observed], condition: Condition) -> Sample:
    """The chains of one rate, all equally long."""
    met, of = (np.array([_batches(part[condition.text]) for part in parts]) for parts in zip(*((c.met, c.of) for c in chains), strict=True))  # (chains, BATCHES)
    total = max(1.0, float(of.sum()))
    share = float(met.sum()) / total
    residual = met - share * of
    each = total / len(chains)
    spread = max(share * (1 - share), 1e-12)
    v1 = float((residual**2).mean())
    v4 = float((residual.reshape(len(chains), 4, -1).sum(axis=2) ** 2).mean())
    halves = residual.reshape(len(chains), 2, -1).sum(axis=2)
    change = (halves[:, 1] - halves[:, 0]) / each
    by_chain = residual.sum(axis=1)
    quarters = v4 * 4 / (each * spread)
    clump = max(1.0, quarters, float(by_chain.var(ddof=1)) / (each * spread) if len(chains) > 3 else 0.0)
    noise = float(change.std(ddof=1)) / math.sqrt(len(chains)) if len(chains) > 1 else math.sqrt(BATCHES * v1) / each
    return Sample(share, by_chain / each, clump, v4 / (4 * v1) if v1 else 1.0, float(change.mean()) / max(noise, 1e-9), each)


def _batches(counts: npt.NDArray[np.int64]) -> Floats:
    kept = counts[len(counts) * SKIPPED // (SKIPPED + BATCHES) :]
    return kept.reshape(BATCHES, -1).sum(axis=1).astype(float)


@dataclass(slots=True)
class Tried:
    """A rate with its chains, all equally long."""

    rate_rps: float
    chains: list[Observed]

    def samples(self, wanted: Sequence[Condition]) -> dict[str, Sample]:
        """What they say of each condition."""
        return {condition.text: sample(self.chains, condition) for condition in wanted}

    def side(self, wanted: Sequence[Condition], sure: float = SURE) -> bool | None:
        """Whether the rate meets every goal, or misses one; None where that is not sure, or still falling."""
        return side_of(self, wanted, sure)


def side_of(tried: Tried, wanted: Sequence[Condition], sure: float = SURE) -> bool | None:
    sides: list[bool | None] = []
    for condition in wanted:
        found = sample(tried.chains, condition)
        away = (found.share - condition.goal) / _error(found, tried, condition)
        sides.append(None if abs(away) < sure or (away > 0 and found.drift < -4) else away > 0)
    return False if False in sides else None if None in sides else True


def _error(found: Sample, tried: Tried, condition: Condition) -> float:
    """Of one chain the error is taken from its batches; near 0 and 1 a goal's own scatter is the least that is believed."""
    independent = math.sqrt(condition.goal * (1 - condition.goal) / max(1.0, found.requests * len(tried.chains)))
    if len(tried.chains) > 1:
        return max(found.error, independent)
    spread = found.inside * (1 - found.inside)
    return max(math.sqrt(spread * found.clump / max(1.0, found.requests)), independent)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A capacity with its 95% interval, in requests per second; `by_seed` ln(capacity) by chain."""

    rate_rps: float
    low_rps: float
    high_rps: float
    binding: str
    slope: float
    by_seed: dict[int, float] = field(default_factory=dict)

    @property
    def half_width(self) -> float:
        """Half of the interval as a share of the capacity."""
        return (self.high_rps - self.low_rps) / (2 * self.rate_rps)


@dataclass(slots=True)
class Found:
    """The result: an estimate, and the rates tried. `needs` are the requests that the tolerance would take in all."""

    estimate: Estimate | None = None
    resolved: bool = False
    short: bool = False
    why: str | None = None
    needs: int | None = None
    tried: dict[float, Tried] = field(default_factory=dict)
    sides: dict[float, bool] = field(default_factory=dict)
    requests: int = 0

    @property
    def bracket(self) -> tuple[float | None, float | None]:
        """The highest rate that surely meets the goal below all that miss it, and the lowest that misses above it."""
        missed = [rate for rate, good in self.sides.items() if not good]
        low = max((rate for rate, good in self.sides.items() if good and rate < min(missed, default=math.inf)), default=None)
        high = min((rate for rate in missed if low is None or rate > low), default=None)
        return low, high


class SteadySearch:
    """One search; `steps` yields the chains that it needs and takes what they observed."""

    def __init__(self, spec: SteadySpec, alone: Unloaded) -> None:
        self.spec = spec
        self._alone = alone
        self._memory_s = max(spec.memory_s, alone.longest_s / 3)
        self._seed = spec.first_seed
        self._sent: dict[tuple[int, float, float], int] = {}
        self.found = Found()

    def steps(self) -> Steps:
        """The whole search."""
        found = self.found
        try:
            yield from self._search()
        except OutOfRequests as why:
            found.why = str(why)
        found.requests = self._spent
        return found

    @property
    def _spent(self) -> int:
        return sum(self._sent.values())

    def _search(self) -> Generator[list[ChainRequest], list[Observed], None]:
        rate_rps = yield from self._bracket()
        if rate_rps is None or self._decided():
            return
        for _ in range(3):
            piloted = yield from self._pilot(rate_rps)
            if piloted is None or self._decided():
                return
            rate_rps, planned = piloted
            again_rps = yield from self._final(rate_rps, planned)
            if again_rps is None:
                return
            rate_rps = again_rps

    def _decided(self) -> bool:
        """Whether the rates tried tell the side of the rate of --at."""
        low, high = self.found.bracket
        at_rps = self.spec.at_rps
        return at_rps is not None and ((low is not None and at_rps <= low) or (high is not None and at_rps >= high))

    def _request(self, seed: int, rate_rps: float, span_s: float, blocks: int = BLOCKS) -> ChainRequest:
        cut_s = max(3 * self._alone.p99_s, self._alone.longest_s) if self.spec.cut_s is None else self.spec.cut_s
        return ChainRequest(seed, rate_rps, cut_s, span_s / BLOCKS, blocks, self.spec.patience_s + 5 * self._alone.p99_s)

    def _observe(self, tried: Tried | None, requests: list[ChainRequest]) -> Generator[list[ChainRequest], list[Observed], Tried]:
        before = {key: self._sent.get(key, 0) for key in map(_key, requests)}
        cost = sum(max(0, math.ceil(r.rate_rps * r.until_s) - before[_key(r)]) for r in requests)
        if self._spent + cost > self.spec.limit:
            self.found.needs = max(self.found.needs or 0, self._spent + cost)
            raise OutOfRequests(f"the limit of {self.spec.limit:,} requests was reached.")
        made = yield requests
        if len(made) < len(requests):
            raise OutOfRequests("the budget was spent.")
        for one in made:
            self._sent[_key(one.request)] = max(one.sent, before[_key(one.request)])
        rate_rps = requests[0].rate_rps
        done = Tried(rate_rps, made)
        self.found.tried[rate_rps] = done
        return done

    def _seeds(self, count: int) -> range:
        """New seeds."""
        self._seed += count
        return range(self._seed - count, self._seed)

    # Bracket

    def _bracket(self) -> Generator[list[ChainRequest], list[Observed], float | None]:
        """A rate near the knee, from single chains; None where there is none."""
        spec = self.spec
        mean_s = max(self._alone.mean_s, 1e-6)
        (seed,) = self._seeds(1)
        rate_rps = plain(spec.at_rps or spec.from_rps or 4 / mean_s)
        low: float | None = None
        high: float | None = None
        for _ in range(60):
            span_s = max(
                max(FIRST_REQUESTS, 30 / (1 - spec.goal)) / rate_rps, 5 * self._alone.p99_s, 2 * self._memory_s
            )
            request = self._request(seed, rate_rps, span_s)
            side = None
            for longer in (1, 2, 4):
                tried = yield from self._observe(None, [replace(request, blocks=longer * request.blocks)])
                side = tried.side(spec.wanted)
                if side is not None:
                    break
            if side is None:
                return rate_rps
            self.found.sides[rate_rps] = side
            if self._decided():
                return None
            if side:
                low = rate_rps
            else:
                high = rate_rps
            if low is None and high is not None and high * mean_s < 0.005:
                self.found.why = f"even {high:g} req/s, where requests hardly meet, is too much: bursts do not thin out."
                return None
            if low is not None and high is not None and high / low <= RATIO:
                return math.sqrt(low * high)
            rate_rps = plain(math.sqrt(low * high) if low and high else 2 * low if low else (high or 1.0) / 2)
        return None

    # Pilot

    def _pilot(self, rate_rps: float) -> Generator[list[ChainRequest], list[Observed], tuple[float, "_Plan"] | None]:
        """The rate of the crossing and a plan of the final chains; None where the two rates are the answer, or where
        the chains cannot be made long enough."""
        spec, half = self.spec, APART
        centre = math.log(rate_rps)
        for _ in range(MOVES):
            rates = [plain(math.exp(centre - half)), plain(math.exp(centre + half))]
            below, above, good = yield from self._pair(rates)
            dz = {c.text: [sample(t.chains, c).z - logit(c.goal) for t in (below, above)] for c in spec.wanted}
            for tried in (below, above):
                if (side := tried.side(spec.wanted, SURE + 1)) is not None:
                    self.found.sides[tried.rate_rps] = side
                else:
                    self.found.sides.pop(tried.rate_rps, None)
            step = math.log(rates[1] / rates[0])
            worst = min(spec.wanted, key=lambda c: _crossing(dz[c.text], step))
            first, second = dz[worst.text]
            steep = max(abs(first), abs(second)) > STEEP
            if first > 0 > second:
                at = math.log(rates[0]) + step * first / (first - second)
                if steep and 2 * half <= 2 * spec.tolerance and self._both_sure(rates):
                    self._by_sides(rates, worst.text)
                    return None
                if not steep or half <= 0.011:
                    if not good:
                        self.found.short = True
                    return math.exp(at), _Plan(worst, below, above, step)
                centre, half = at, max(0.01, min(half / 2, step / (first - second)))
                continue
            slope = max((first - second) / step, 3.0)
            away = (first if second > 0 else second) if first * second > 0 else first
            nearest = second if second > 0 else first
            move = max(-0.3, min(0.3, nearest / slope + math.copysign(half, nearest)))
            if abs(nearest) < 1.0 and abs(move) <= 2 * half and slope > 3:
                if not good:
                    self.found.short = True
                return math.exp(centre + move), _Plan(worst, below, above, step)
            del away
            centre += move
        self.found.why = "the rates tried do not settle on both sides of the goal."
        return None

    def _both_sure(self, rates: Sequence[float]) -> bool:
        return self.found.sides.get(rates[0]) is True and self.found.sides.get(rates[1]) is False

    def _by_sides(self, rates: Sequence[float], binding: str) -> None:
        low, high = rates
        self.found.estimate = Estimate(math.sqrt(low * high), low, high, binding, math.inf)
        self.found.resolved = True

    def _pair(self, rates: Sequence[float]) -> Generator[list[ChainRequest], list[Observed], tuple[Tried, Tried, bool]]:
        """Both rates with as many seeds, longer and longer until they say enough; whether they did."""
        spec = self.spec
        seeds = self._seeds(FEWEST)
        span_s = max(
            max(FIRST_REQUESTS, 30 / (1 - spec.goal)) / rates[0], 10 * self._alone.p99_s, 5 * self._memory_s
        )
        longer = 1
        while True:
            both = []
            for rate_rps in rates:
                requests = [self._request(seed, rate_rps, span_s) for seed in seeds]
                both.append((yield from self._observe(None, [replace(r, blocks=longer * r.blocks) for r in requests])))
            below, above = both
            if self._enough(below, above):
                return below, above, True
            if self._spent > 0.45 * spec.limit:
                return below, above, False
            longer *= 2

    def _enough(self, below: Tried, above: Tried) -> bool:
        step = math.log(above.rate_rps / below.rate_rps)
        for condition in self.spec.wanted:
            low, high = (sample(t.chains, condition) for t in (below, above))
            dz = [s.z - logit(condition.goal) for s in (low, high)]
            far = min(map(abs, dz)) > 1.0 or max(map(abs, dz)) > STEEP
            if far and all(t.side([condition], SURE + 1) is not None for t in (below, above)):
                continue
            for one in (low, high):
                if one.requests < MEMORIES * one.clump or one.plateau > PLATEAU or abs(one.drift) > 4:
                    return False
            slope, error = _slope(low, high, step)
            if error > SLOPE_ERROR * slope:
                return False
        return True

    # Final

    def _final(self, rate_rps: float, plan: _Plan) -> Generator[list[ChainRequest], list[Observed], float | None]:
        """Sixteen chains at one rate; another rate where they show that it was off, None where there is an answer."""
        from scipy.special import stdtrit  # heavy

        spec = self.spec
        rate_rps = plain(rate_rps)
        condition = plan.condition
        low, high = (sample(t.chains, condition) for t in (plan.below, plan.above))
        slope, slope_error = _slope(low, high, plan.step)
        student = float(stdtrit(spec.chains - 1, 0.975))
        clump = max(low.clump, high.clump)
        spread = condition.goal * (1 - condition.goal)
        requests = clump / spread * (student / (AIM * spec.tolerance * slope)) ** 2 / spec.chains
        per_s = low.requests / (plan.below.chains[0].request.block_s * plan.below.chains[0].request.blocks * BATCHES / PARTS)
        requests = max(requests, 10 * clump / (1 - condition.goal))
        span_s = max(requests / per_s, plan.below.chains[0].request.block_s * plan.below.chains[0].request.blocks) * (1 + SKIPPED / BATCHES)
        seeds = self._seeds(spec.chains)
        blocks = BLOCKS
        self.found.needs = round(self._spent + spec.chains * span_s * rate_rps)
        wanted = [self._request(seed, rate_rps, span_s) for seed in seeds]
        left = (spec.limit - self._spent) / spec.chains / rate_rps
        if left < wanted[0].until_s:  # as long as the limit allows, where that is not too short
            span_s = left - wanted[0].cut_s
            self.found.why = f"the limit of {spec.limit:,} requests was reached."
            if span_s * per_s < MEMORIES * clump:
                return None
            wanted = [self._request(seed, rate_rps, 0.999 * span_s) for seed in seeds]
        for again in range(3):
            tried = yield from self._observe(None, [replace(r, blocks=blocks) for r in wanted])
            estimate = self._estimate(tried, condition, slope, slope_error, student)
            self.found.estimate = estimate
            self._note_sides(tried)
            if spec.at_rps is not None and not estimate.low_rps < spec.at_rps < estimate.high_rps:
                break
            if abs(math.log(estimate.rate_rps / rate_rps)) > max(2 * spec.tolerance, 0.05):
                return estimate.rate_rps
            if estimate.half_width <= spec.tolerance or again == 2:
                break
            factor = min(4.0, max(1.3, 1.1 * (estimate.half_width / (0.95 * spec.tolerance)) ** 2))
            longer = math.ceil(blocks * factor / PARTS) * PARTS
            cost = (longer - blocks) * wanted[0].block_s * rate_rps * spec.chains
            self.found.needs = round(self._spent + cost)
            if self._spent + cost > spec.limit:
                break
            blocks = longer
        self.found.resolved = estimate.half_width <= spec.tolerance and not self.found.short
        if not self.found.resolved and self.found.why is None:
            self.found.why = "chains are shorter than what the queue remembers." if self.found.short else f"the limit of {spec.limit:,} requests was reached."
        return None

    def _note_sides(self, tried: Tried) -> None:
        side = tried.side(self.spec.wanted, SURE + 1)
        if side is not None:
            self.found.sides[tried.rate_rps] = side

    def _estimate(self, tried: Tried, condition: Condition, slope: float, slope_error: float, student: float) -> Estimate:
        found = sample(tried.chains, condition)
        away = (found.z - logit(condition.goal)) / slope
        half = student * found.error * found.scale / slope + abs(away) * 2 * slope_error / slope
        centre = math.log(tried.rate_rps) + away
        by_seed = {c.request.seed: centre + float(e) * found.scale / slope for c, e in zip(tried.chains, found.errors, strict=True)}
        return Estimate(math.exp(centre), math.exp(centre - half), math.exp(centre + half), condition.text, slope, by_seed)


@dataclass(frozen=True, slots=True)
class _Plan:
    condition: Condition
    below: Tried
    above: Tried
    step: float


def _key(request: ChainRequest) -> tuple[int, float, float]:
    return request.seed, request.rate_rps, request.block_s


def _slope(low: Sample, high: Sample, step: float) -> tuple[float, float]:
    """-dz/dx between two rates and its standard error, by pairs of equal seeds."""
    pairs = low.errors * low.scale - high.errors * high.scale
    return (low.z - high.z) / step, float(np.std(pairs, ddof=1)) / math.sqrt(len(pairs)) / step


def _crossing(dz: Sequence[float], step: float) -> float:
    """Where a line through both crosses the goal, from the first rate on; of one that does not fall far away."""
    first, second = dz
    if first <= 0:
        return first
    return math.inf if first <= second else step * first / (first - second)


def plain(rate_rps: float) -> float:
    """Four digits: enough for any interval, and a name that a person can read."""
    return float(f"{rate_rps:.4g}")

"""The search on a virtual clock: which chains to observe next, given what those before have shown. It simulates none.

Capacity is the rate at which attainment in the steady state crosses the goal. With x = ln(rate), z = logit(attainment):

1. bracket: one chain a rate, twice or half the rate until one meets the goal and one misses it;
2. pilot: eight seeds at each of two rates a little below and above, made longer until the two rates are on both sides,
   the slope dz/dx is known, and a chain is long against what its queue remembers;
3. final: sixteen seeds at the one rate that the pilot found, as long as its variance says; the answer is that rate,
   moved by what is left of z over the slope. An interval that is too wide makes the same chains longer: the number of
   chains is fixed, so that stopping does not select narrow intervals.

Where attainment falls so steeply that two rates within the tolerance lie surely on both sides, they are the answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from harness.experiments.capacity.chain import ChainRequest, Observed, Unloaded
from harness.experiments.capacity.search_spec import Estimate, plain
from harness.metrics.objective import JOINT
from harness.stats.curves import Curve, logit
from harness.stats.seeds import student

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
START = 0.35
"""Where in it the pilot begins: below the middle, because chains beyond the capacity are the longest and cost most."""
FEWEST, CHAINS = 8, 16
"""Chains at a rate of the pilot, and of the final estimate."""
ROUNDS, AGAIN = 60, 4
"""Most steps of a pilot, and most pilots: the final chains may show that one was off."""
SATURATED = 4
"""Times the first length of the chains that show how much an overloaded system answers."""
CLOSE, FAR = 1.0, 2.5
"""Rates within the first from the goal, in z, take chains that are long against what the queue remembers; rates beyond
the second tell a side and no slope."""
USUAL_SLOPE, NEAREST, FARTHEST = 12.0, 0.03, 0.25
"""The slope -dz/dx that is assumed before it is known; the least and the longest step in x to the other side."""
FLAT, WIDEST = 0.5, 0.6
"""The rates of the pilot are set farther apart while they differ by less than this in z, up to this distance in x."""
MEMORIES = 15.0
"""Times that a chain must be as long as its dependent requests; of fewer its mean is skewed."""
CLUMPS = 4.0
"""Clumps of misses that a final chain must have on average, for the same reason."""
PLATEAU = 1.7
"""Variance of a sum over a quarter against that of four sums over a sixteenth: above it, the queue remembers longer."""
SLOPE_ERROR = 0.2
"""The slope is known to this."""
GROWS, UNSTABLE = 3.0, 12.0
"""Standard errors by which the requests under way grow where chains are too short to tell a side, and where the rate is
surely too high for the system, whatever the attainment so far: such a queue has no steady state."""
PILOT_SHARE = 0.15
"""Of the limit, what chains at a rate of the pilot may cost before they are made longer again."""
UNDECIDED = 0.25
"""Of the limit, what the final chains may cost where the tolerance takes more than all of it."""
HOLDS = 4
"""Times the first length of a chain that the lower of two sides must hold: a system may keep up for minutes only."""
OUTWARD = 1.06
"""The bracket is left by this factor where a side of it does not hold."""
AIM = 0.8
"""The final chains are planned for this share of the tolerance."""


class OutOfRequests(Exception):
    """What is needed next goes beyond the limit, or the budget in seconds is spent."""


@dataclass(frozen=True, slots=True)
class SteadySpec:
    """One goal of a search; `memory_s` is how long the arrivals remember their rate, `limit` the most requests.

    The first `cut_s` seconds of a chain are not counted; None: what sessions and requests take without load, and at
    least `settles_s`, after which a system has its size.
    """

    wanted: tuple[Condition, ...]
    goal: float
    tolerance: float
    limit: int
    first_seed: int = 0
    chains: int = CHAINS
    memory_s: float = 0.0
    patience_s: float = 0.0
    cut_s: float | None = None
    settles_s: float = 0.0
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


def sample(chains: Sequence[Observed], condition: Condition) -> Sample:
    """The chains of one rate, all equally long."""
    met = np.array([_batches(chain.met[condition.key]) for chain in chains])  # (chains, BATCHES)
    of = np.array([_batches(chain.of[condition.key]) for chain in chains])
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
    return Sample(
        share, by_chain / each, clump, v4 / (4 * v1) if v1 else 1.0, float(change.mean()) / max(noise, 1e-9), each
    )


def _batches(counts: npt.NDArray[np.int64]) -> Floats:
    kept = counts[len(counts) * SKIPPED // (SKIPPED + BATCHES) :]
    return np.asarray(kept.reshape(BATCHES, -1).sum(axis=1), float)


@dataclass(slots=True)
class Tried:
    """A rate with its chains, all equally long."""

    rate_rps: float
    chains: list[Observed]


def side_of(tried: Tried, wanted: Sequence[Condition], sure: float, most_rps: float) -> bool | None:
    """Whether a rate meets every goal, or misses one; None where that is not sure, or where the queue still grows."""
    sides: list[bool | None] = []
    for condition in wanted:
        found = sample(tried.chains, condition)
        away = (found.share - condition.goal) / _error(found, tried, condition)
        sides.append(None if abs(away) < sure or (away > 0 and found.drift < -4) else away > 0)
    if False in sides:
        return False
    if is_unstable(tried.chains, most_rps):
        return False
    return None if None in sides or growth(tried.chains) > GROWS or tried.rate_rps > most_rps else True


def is_unstable(chains: Sequence[Observed], most_rps: float = math.inf) -> bool:
    """Whether the queue grows without end: surely, or at a rate above all that the system was seen to answer."""
    return growth(chains) > (GROWS if chains[0].request.rate_rps > most_rps else UNSTABLE)


def growth(chains: Sequence[Observed]) -> float:
    """By how many standard errors more requests are under way in the last third than in the first."""
    thirds = [np.array_split(chain.open[len(chain.open) * SKIPPED // PARTS :], 3) for chain in chains]
    more = np.array([last.mean() - first.mean() for first, _, last in thirds])
    if len(chains) < 2:
        came = chains[0].of[JOINT].reshape(BATCHES + SKIPPED, -1).sum(axis=1)
        dispersion = max(1.0, float(came.var(ddof=1)) / max(1.0, float(came.mean())))  # 1 of Poisson arrivals
        return 2 * float(more[0]) / math.sqrt(dispersion * max(1, int(came.sum())))
    return float(more.mean()) / max(float(more.std(ddof=1)) / math.sqrt(len(more)), 1.0)


def away_of(tried: Tried, wanted: Sequence[Condition], most_rps: float = math.inf) -> tuple[float, Condition]:
    """How far a rate is from the goals in z, and the condition that is the farthest below its goal."""
    found = [(sample(tried.chains, c).z - logit(c.goal), c) for c in wanted]
    away, binding = min(found, key=lambda pair: pair[0])
    return (min(away, -2 * FAR) if is_unstable(tried.chains, most_rps) else away), binding


def is_short(tried: Tried, wanted: Sequence[Condition], most_rps: float = math.inf) -> bool:
    """Whether chains near the goal are too short against what their queue remembers."""
    away, binding = away_of(tried, wanted, most_rps)
    one = sample(tried.chains, binding)
    grows = growth(tried.chains) > 2 * GROWS and away > -FAR
    return one.requests < MEMORIES * one.clump or one.plateau > PLATEAU or abs(one.drift) > 4 or grows


def _requests(chains: Sequence[Observed]) -> int:
    return sum(int(chain.of[JOINT].sum()) for chain in chains)


def answered_rps(chain: Observed) -> float:
    """Requests per second that were answered in the second half: all that an overloaded system can."""
    half = len(chain.open) // 2
    came = int(chain.of[JOINT][half:].sum())
    return (came - int(chain.open[-1] - chain.open[half - 1])) / ((len(chain.open) - half) * chain.request.block_s)


def _error(found: Sample, tried: Tried, condition: Condition) -> float:
    """That of the share: of one chain by its batches, and never less than independent requests have at the goal."""
    independent = math.sqrt(condition.goal * (1 - condition.goal) / max(1.0, found.requests * len(tried.chains)))
    if len(tried.chains) > 1:
        return max(found.error, independent)
    spread = found.inside * (1 - found.inside)
    return max(math.sqrt(spread * found.clump / max(1.0, found.requests)), independent)


@dataclass(slots=True)
class Found:
    """The result: an estimate, and the rates tried. `needs` are the requests that the tolerance would take in all,
    where the pilot knows them."""

    estimate: Estimate | None = None
    resolved: bool = False
    why: str | None = None
    needs: int | None = None
    tried: dict[float, Tried] = field(default_factory=dict)
    sides: dict[float, bool] = field(default_factory=dict)
    requests: int = 0

    @property
    def bracket(self) -> tuple[float | None, float | None]:
        """The highest rate that surely meets the goal below all that miss it, and the lowest that misses above it."""
        missed = [rate for rate, good in self.sides.items() if not good]
        low = max(
            (rate for rate, good in self.sides.items() if good and rate < min(missed, default=math.inf)), default=None
        )
        high = min((rate for rate in missed if low is None or rate > low), default=None)
        return low, high


class SteadySearch:
    """One search; `steps` yields the chains that it needs and takes what they observed."""

    def __init__(self, spec: SteadySpec, alone: Unloaded) -> None:
        self.spec = spec
        self.alone = alone
        self.memory_s = max(spec.memory_s, alone.filled_s / 3)
        self._most_rps = math.inf
        self._sent: dict[tuple[int, float, float, float], int] = {}
        self.found = Found()

    def steps(self) -> Steps:
        """The whole search."""
        found = self.found
        try:
            yield from self._search()
        except OutOfRequests as why:
            found.why = str(why)
        found.requests = self.spent
        return found

    @property
    def spent(self) -> int:
        """Requests that were sent so far."""
        return sum(self._sent.values())

    def _search(self) -> Generator[list[ChainRequest], list[Observed], None]:
        rate_rps = yield from self.near()
        if rate_rps is None or self._decided():
            return
        rate_rps = yield from self._saturated(rate_rps)
        for tried_rps in [*self.found.sides]:  # one chain is sure of its side only far from the goal
            if abs(self._away(self.found.tried[tried_rps])[0]) < CLOSE:
                del self.found.sides[tried_rps]
        span_s = 0.0
        for _ in range(AGAIN):
            piloted = yield from self._pilot(rate_rps, span_s)
            if piloted is None or self._decided():
                return
            again = yield from self._final(*piloted)
            if again is None:
                return
            rate_rps, span_s = again
        self.found.why = "the answer still moves as the chains become longer."

    def _decided(self) -> bool:
        """Whether the rates tried tell the side of the rate of --at."""
        low, high = self.found.bracket
        at_rps = self.spec.at_rps
        return at_rps is not None and ((low is not None and at_rps <= low) or (high is not None and at_rps >= high))

    def request(self, seed: int, rate_rps: float, span_s: float, blocks: int = BLOCKS) -> ChainRequest:
        """A chain of which `span_s` are counted after the cut."""
        cut_s = self.spec.cut_s
        if cut_s is None:
            cut_s = max(3 * self.alone.p99_s, self.alone.filled_s, self.spec.settles_s)
        return ChainRequest(seed, rate_rps, cut_s, span_s / BLOCKS, blocks, self.spec.patience_s + 5 * self.alone.p99_s)

    def _observe(self, requests: list[ChainRequest]) -> Generator[list[ChainRequest], list[Observed], Tried]:
        costs = {r.chain: r.requests for r in requests}
        cost = sum(max(0, planned - self._sent.get(key, 0)) for key, planned in costs.items())
        if self.spent + cost > self.spec.limit:
            raise OutOfRequests(self._limit_reached)
        made = yield requests
        if len(made) < len(requests):
            raise OutOfRequests("the budget was spent.")
        self._sent.update((key, max(planned, self._sent.get(key, 0))) for key, planned in costs.items())
        tried = self.found.tried[requests[0].rate_rps] = Tried(requests[0].rate_rps, made)
        return tried

    # Bracket

    def near(self) -> Generator[list[ChainRequest], list[Observed], float | None]:
        """A rate near the knee, from single chains; None where there is none."""
        spec = self.spec
        mean_s = max(self.alone.mean_s, 1e-6)
        seed = spec.first_seed + CHAINS
        rate_rps = plain(spec.at_rps or spec.from_rps or 4 / mean_s)
        low: float | None = None
        high: float | None = None
        for _ in range(60):
            span_s = max(max(FIRST_REQUESTS, 30 / (1 - spec.goal)) / rate_rps, 5 * self.alone.p99_s, 2 * self.memory_s)
            request = self.request(seed, rate_rps, span_s)
            side = None
            for longer in (1, 2, 4):
                tried = yield from self._observe([replace(request, blocks=longer * request.blocks)])
                side = side_of(tried, spec.wanted, SURE, self._most_rps)
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
                self.found.why = (
                    f"even {high:g} req/s, where requests hardly meet, is too much: bursts do not thin out."
                )
                return None
            if low is not None and high is not None and high / low <= RATIO:
                return low * math.exp(START * math.log(high / low))
            rate_rps = plain(math.sqrt(low * high) if low and high else 2 * low if low else (high or 1.0) / 2)
        return None

    def _saturated(self, rate_rps: float) -> Generator[list[ChainRequest], list[Observed], float]:
        """The rate, or what the system answers under a load that it cannot keep up with, where that is less."""
        over = min((rate for rate, tried in self.found.tried.items() if growth(tried.chains) > GROWS), default=None)
        if over is None:
            return rate_rps
        like = replace(self.found.tried[over].chains[0].request, blocks=SATURATED * BLOCKS)
        seeds = range(self.spec.first_seed, self.spec.first_seed + FEWEST)
        tried = yield from self._observe([replace(like, seed=seed) for seed in seeds])
        if not is_unstable(tried.chains):
            return rate_rps
        each = [answered_rps(chain) for chain in tried.chains]
        found_rps = float(np.mean(each))
        self._most_rps = found_rps + 2 * float(np.std(each, ddof=1)) / math.sqrt(len(each))
        return min(rate_rps, found_rps * math.exp(-self.spec.tolerance))

    # Pilot

    def _pilot(
        self, rate_rps: float, shortest_s: float
    ) -> Generator[list[ChainRequest], list[Observed], tuple[float, _Plan] | None]:
        """The rate of the crossing and a plan of the final chains, from eight seeds at one rate after the other; None
        where two rates on both sides are the answer, or where the chains cannot be made long enough."""
        spec = self.spec
        seeds = range(spec.first_seed, spec.first_seed + FEWEST)  # of the final chains: what two searches share
        span_s = max(
            max(FIRST_REQUESTS, 30 / (1 - spec.goal)) / rate_rps, 10 * self.alone.p99_s, 5 * self.memory_s, shortest_s
        )
        levels: dict[float, Tried] = {}
        longest, pending = 1, [plain(rate_rps)]
        for _ in range(ROUNDS):
            short = None
            for rate_rps in pending:
                known = levels.get(rate_rps)
                longer = max(1, longest // 4) if known is None else 2 * known.chains[0].request.blocks // BLOCKS
                longest = max(longest, longer)
                wanted = [self.request(seed, rate_rps, span_s) for seed in seeds]
                tried = yield from self._observe([replace(r, blocks=longer * r.blocks) for r in wanted])
                side = self._note_side(tried)
                levels[rate_rps] = tried
                if (side is None or abs(self._away(tried)[0]) < CLOSE) and self._is_short(tried):
                    short = tried
            if short is not None:
                if not self._affordable(short):
                    break
                pending = [short.rate_rps]
                continue
            away = {rate: self._away(t)[0] for rate, t in sorted(levels.items())}
            low = max((rate for rate, z in away.items() if z >= 0), default=None)
            high = min((rate for rate, z in away.items() if z < 0), default=None)
            if low is None or high is None:
                end = rate_rps if rate_rps in (min(away), max(away)) else min(away) if low is None else max(away)
                next_rps = end * math.exp(_move(away, end))
                if high is None and end < self._most_rps < next_rps:
                    next_rps = self._most_rps * math.exp(0.5 * spec.tolerance)
                elif high is None and self._most_rps < end:
                    if self._affordable(levels[end]):
                        next_rps = end  # made longer, until the queue is seen to grow
                    else:
                        self._most_rps = math.inf  # it answers more than it did under too much load
                pending = [plain(next_rps)]
                continue
            if low < high and math.log(high / low) <= 2 * spec.tolerance and self._between(low, high):
                break
            near = [rate for rate, z in away.items() if abs(z) <= FAR]
            if low < high and (len(near) < 2 or not away[near[0]] > 0 > away[near[-1]]):
                step = math.log(high / low)
                if step <= 2 * spec.tolerance:
                    break
                first, second = min(away[low], FAR), max(away[high], -FAR)
                pending = [plain(low * math.exp(step * min(0.7, max(0.3, first / (first - second)))))]
                continue
            ends = near if len(near) > 1 else [min(low, high), max(low, high)]
            above = [rate for rate in near if away[rate] > 0]
            pairs = [(a, b) for a in above for b in near if a < b and away[b] < 0 and away[a] - away[b] >= FLAT]
            # The nearest: attainment may be flat far below the goal and steep at it.
            left, right = min(pairs, key=lambda pair: pair[1] / pair[0], default=(ends[0], ends[-1]))
            nearest = min(near, key=lambda rate: abs(away[rate]), default=left)
            binding = self._away(levels[nearest])[1]
            step = math.log(right / left)
            slope, error = _slope(sample(levels[left].chains, binding), sample(levels[right].chains, binding), step)
            long = not any(self._is_short(levels[rate]) for rate in (left, right))
            if long and slope > 0 and error <= SLOPE_ERROR * slope:
                at_rps = nearest * math.exp(away[nearest] / slope)
                return at_rps, self._planned(binding, levels[left], levels[right], levels[nearest])
            if away[left] - away[right] < FLAT and step < WIDEST:
                outward = max(step, 2 * NEAREST)
                pending = [plain(right * math.exp(outward) if away[right] > -CLOSE else left * math.exp(-outward))]
                continue
            if not self._affordable(levels[right]):
                break
            pending = [left, right]
        low, high = self.found.bracket
        if low is not None and high is not None:
            yield from self._bisect(low, high, tried, seeds)
        if not self.found.resolved:
            self.found.why = "chains within the limit are shorter than what the queue remembers."
        return None

    def _between(self, low: float, high: float) -> bool:
        """Whether the crossing surely lies between two rates."""
        return self.found.sides.get(low) is True and self.found.sides.get(high) is False

    def _away(self, tried: Tried) -> tuple[float, Condition]:
        """How far a rate is from the goal in z, and the condition that is the farthest below it."""
        return away_of(tried, self.spec.wanted, self._most_rps)

    def _is_short(self, tried: Tried) -> bool:
        return is_short(tried, self.spec.wanted, self._most_rps)

    def _affordable(self, tried: Tried) -> bool:
        """Whether its chains can be made twice as long."""
        cost = sum(chain.request.requests for chain in tried.chains)
        return cost <= PILOT_SHARE * self.spec.limit and self.spent + cost <= 0.5 * self.spec.limit

    def _bisect(
        self, low: float, high: float, like: Tried, seeds: Sequence[int]
    ) -> Generator[list[ChainRequest], list[Observed], None]:
        """Two rates within the tolerance that are surely on both sides of the goal: the answer where attainment falls
        too steeply, or the queue remembers too long, to take a slope. Rates whose side is not sure lie between them.

        A system may keep up for minutes and then collapse, so a rate that is met counts only as long as the longest
        chains that showed a miss.
        """
        one = like.chains[0].request
        blocks = max(one.blocks, *(self.found.tried[rate].chains[0].request.blocks for rate in (low, high)))
        sides: dict[float, tuple[bool | None, int]] = {}  # with the blocks that showed it
        rate_rps = low
        while True:
            for longer in (1, 2):
                longest = longer * max(one.blocks, blocks)
                request = replace(one, rate_rps=rate_rps, blocks=longest)
                tried = yield from self._observe([replace(request, seed=seed) for seed in seeds])
                side = self._note_side(tried)
                if side is not None:
                    break
            sides[rate_rps] = side, longest
            if side is False:
                blocks = max(blocks, longest)
            missed = [rate for rate, (good, _) in sides.items() if good is False]
            met = [rate for rate, (good, _) in sides.items() if good and rate < min(missed, default=math.inf)]
            if not met or not missed:
                ends = [rate for rate, _ in sides.items()] + ([high] if high not in sides else [])
                rate_rps = (
                    plain(min(sides) / OUTWARD)
                    if not met
                    else (high if high not in sides else plain(max(ends) * OUTWARD))
                )
                continue
            low, high = max(met), min(missed)
            if sides[low][1] < max(blocks, HOLDS * BLOCKS):
                blocks = max(blocks, HOLDS * BLOCKS)
                rate_rps = low  # the same chains, made longer
                continue
            if math.log(high / low) <= 2 * self.spec.tolerance:
                break
            ends = [low, *sorted(rate for rate, (good, _) in sides.items() if good is None and low < rate < high), high]
            gap, left, right = max((ends[1] / ends[0], *ends[:2]), (ends[-1] / ends[-2], *ends[-2:]))
            if math.log(gap) < 0.3 * self.spec.tolerance:
                self.found.why = "between these rates it depends on the length of the chains which side they are on."
                return
            rate_rps = plain(math.sqrt(left * right))
        below, above = self.found.tried[low], self.found.tried[high]
        _, binding = self._away(above)
        by_seed = _by_seed(below, above, binding)
        self.found.estimate = Estimate(math.sqrt(low * high), low, high, by_seed, binding.key, {})
        self.found.resolved = True

    def _note_side(self, tried: Tried) -> bool | None:
        """The side of a rate as many chains show it; what one chain showed counts no more."""
        side = side_of(tried, self.spec.wanted, SURE + 1, self._most_rps)
        self.found.sides.pop(tried.rate_rps, None)
        if side is not None:
            if side:
                self._drop(lambda rate: rate < tried.rate_rps, good=False)
            else:
                self._drop(lambda rate: rate > tried.rate_rps, good=True)
            self.found.sides[tried.rate_rps] = side
        return side

    def _outweigh(self, tried: Tried, estimate: Estimate) -> None:
        """Forget sides beyond the interval that fewer requests showed than those behind it: a lucky or unlucky chain.
        A queue that grows without end stays one.
        """

        def lighter(rate_rps: float) -> bool:
            chains = self.found.tried[rate_rps].chains
            return _requests(chains) < _requests(tried.chains) and not is_unstable(chains, self._most_rps)

        if estimate.low_rps is not None and estimate.high_rps is not None:
            low_rps, high_rps = estimate.low_rps, estimate.high_rps
            self._drop(lambda rate: rate > high_rps and lighter(rate), good=True)
            self._drop(lambda rate: rate < low_rps and lighter(rate), good=False)

    def _drop(self, where: Callable[[float], bool], *, good: bool) -> None:
        """Forget sides that the side of another rate contradicts."""
        self.found.sides = {r: side for r, side in self.found.sides.items() if side is not good or not where(r)}

    # Final

    def _planned(self, condition: Condition, left: Tried, right: Tried, nearest: Tried) -> _Plan:
        """What the pilot says of the final chains."""
        ends = [sample(tried.chains, condition) for tried in (left, right)]
        slope, error = _slope(ends[0], ends[1], math.log(right.rate_rps / left.rate_rps))
        here, request = sample(nearest.chains, condition), nearest.chains[0].request
        counted_s = request.blocks * request.block_s * BATCHES / PARTS
        return _Plan(condition, slope, error, here.clump, here.requests / counted_s, counted_s)

    def _final(
        self, rate_rps: float, plan: _Plan
    ) -> Generator[list[ChainRequest], list[Observed], tuple[float, float] | None]:
        """Chains at one rate, made longer until the interval is narrow; where they show that the rate was off, a better
        one and the length of a chain that it takes, None where there is an answer."""
        spec, found, rate_rps = self.spec, self.found, plain(rate_rps)
        goal, tolerance, clump = plan.condition.goal, spec.tolerance, plan.clump
        seeds = range(spec.first_seed, spec.first_seed + spec.chains)
        values = (
            clump / (goal * (1 - goal)) * (student(spec.chains) / (AIM * tolerance * plan.slope)) ** 2 / spec.chains
        )
        values = max(values, CLUMPS * clump / (1 - goal))
        span_s = max(values / plan.per_s, plan.counted_s) * PARTS / BATCHES
        wanted = [self.request(seed, rate_rps, span_s) for seed in seeds]
        found.needs = self.spent + math.ceil(spec.chains * wanted[0].until_s * rate_rps)
        if found.needs > spec.limit:  # a wide interval for a part of the price
            paid = min(spec.limit - self.spent, UNDECIDED * spec.limit)
            span_s = paid / spec.chains / rate_rps - wanted[0].cut_s
            if span_s * plan.per_s * BATCHES / PARTS < MEMORIES * clump:
                raise OutOfRequests(self._limit_reached)
            wanted = [self.request(seed, rate_rps, 0.999 * span_s) for seed in seeds]
        blocks = BLOCKS
        while True:
            tried = yield from self._observe([replace(r, blocks=blocks) for r in wanted])
            estimate = found.estimate = self._estimate(tried, plan)
            self._outweigh(tried, estimate)
            if spec.at_rps is not None and abs(math.log(spec.at_rps / estimate.rate_rps)) > estimate.half_width:
                found.resolved = True
                return None
            if abs(math.log(estimate.rate_rps / rate_rps)) > tolerance:  # no straight line reaches farther
                return estimate.rate_rps, blocks * wanted[0].block_s
            short = self._is_short(tried)
            if estimate.half_width <= tolerance and not short:
                break
            factor = min(4.0, max(2.0 if short else 1.25, 1.1 * (estimate.half_width / (0.95 * tolerance)) ** 2))
            longer = math.ceil(blocks * factor / PARTS) * PARTS
            cost = math.ceil((longer - blocks) * wanted[0].block_s * rate_rps * spec.chains)
            found.needs = self.spent + cost
            if found.needs > spec.limit:
                found.why = self._limit_reached
                return None
            blocks = longer
        found.resolved = True
        return None

    @property
    def _limit_reached(self) -> str:
        return f"the tolerance takes more than the limit of {self.spec.limit:,} requests."

    def _estimate(self, tried: Tried, plan: _Plan) -> Estimate:
        goal, key = plan.condition.goal, plan.condition.key
        here = sample(tried.chains, plan.condition)
        slope, off = plan.slope, min(0.5, plan.slope_error / plan.slope)
        away = (here.z - logit(goal)) / slope
        half = (student(len(tried.chains)) * here.error * here.scale / slope + 2 * abs(away) * off) / (1 - off)
        centre = math.log(tried.rate_rps) + away
        by_seed = {
            chain.request.seed: centre + float(away_) * here.scale / slope
            for chain, away_ in zip(tried.chains, here.errors, strict=True)
        }
        rate_rps = math.exp(centre)
        ends = rate_rps * math.exp(-half), rate_rps * math.exp(half)
        return Estimate(rate_rps, *ends, by_seed, key, {key: Curve(rate_rps, logit(goal), slope)})


@dataclass(frozen=True, slots=True)
class _Plan:
    """What the pilot knows: the slope -dz/dx, dependent values per independent one, values per second of a chain."""

    condition: Condition
    slope: float
    slope_error: float
    clump: float
    per_s: float
    counted_s: float


def _slope(low: Sample, high: Sample, step: float) -> tuple[float, float]:
    """-dz/dx between two rates and its standard error, by pairs of equal seeds."""
    pairs = low.errors * low.scale - high.errors * high.scale
    return (low.z - high.z) / step, float(np.std(pairs, ddof=1)) / math.sqrt(len(pairs)) / step


def _by_seed(below: Tried, above: Tried, condition: Condition) -> dict[int, float]:
    """ln(rate) at which each seed crosses the goal between two rates, on a straight line in z."""
    found, step = {}, math.log(above.rate_rps / below.rate_rps)
    for chains in zip(below.chains, above.chains, strict=True):
        first, second = (sample([chain], condition).z - logit(condition.goal) for chain in chains)
        share = first / (first - second) if first > 0 > second else 0.0 if first <= 0 else 1.0
        found[chains[0].request.seed] = math.log(below.rate_rps) + share * step
    return found


def _move(away: Mapping[float, float], end: float) -> float:
    """How far in x from the rate `end` the other side of the goal may be; `away` is z above the goal by rate."""
    near = sorted((rate for rate in away if abs(away[rate]) < 3), key=lambda rate: abs(away[rate]))[:2]
    slope = USUAL_SLOPE
    if len(near) == 2:
        slope = max(1.0, -(away[near[0]] - away[near[1]]) / math.log(near[0] / near[1]))
    return math.copysign(min(FARTHEST, abs(away[end]) / slope + NEAREST), away[end])

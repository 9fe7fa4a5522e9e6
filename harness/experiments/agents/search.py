"""How many agents meet a tier: which trials to make next, and what those that were made say. It makes none.

The number of agents is whole and small, and sessions last long, so a trial is a number of agents watched for a time:

1. bracket: one trial each of twice as many agents, until one misses the tier;
2. pilot: trials of eight seeds at two numbers around the crossing, and at others where it lies outside of both;
3. final: new seeds at two numbers around the crossing of the pilot, as many as its scatter says, and the closer the
   faster shares fall there: the line is straight only near the goal. They alone are the answer: the numbers were not
   chosen by them.

Logit(share of requests within a bound) falls on a line over ln(agents), fitted to the final trials. Requests of a
session are alike, so the unit is the seed: estimate and interval are mean and Student's t of jackknife values by seed,
each of a line of its own. Eight seeds may lack the rare one in which all goes wrong, so the scatter is the larger one
of pilot and final trials. On a wall clock, where a trial costs minutes, single trials follow each other below and above
the best guess, and the interval is that of `harness.stats.knee`, with as many requests as the scatter of sessions
leaves independent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from msgspec.structs import replace

from harness.experiments.agents.agents_json import AgentTrial, TierAgents, TrialShare
from harness.experiments.capacity.conditions import Condition, conditions
from harness.metrics.objective import JOINT, ShareKey, parse_slo
from harness.stats import curves
from harness.stats.knee import Block, knee
from harness.stats.seeds import student

SEEDS = 8
"""Trials at a number of the pilot, and at least of the final ones."""
APART, CLOSE = 0.15, (0.01, 0.1)
"""The two numbers of the pilot lie this far below and above the crossing, in ln(agents); the final two so far that
logit(share) changes by 1, within these limits."""
NEAR = 1.6
"""Numbers that are farther from the crossing than by this factor say nothing of the line there."""
NUMBERS = 5
"""Numbers of a pilot at most."""
AIM = 0.9
"""The final trials are planned for this share of the tolerance."""
WALL_TRIALS = 8
"""Trials on a wall clock share the budget: the bracket takes some, those around the crossing the others."""
STEP, WALL_STEP = 2, 4
"""Times as many agents in the next trial of a bracket."""
MOST_AGENTS = 4096
"""No more are tried."""


class Key(NamedTuple):
    """A trial to make."""

    users: int
    seed: int


@dataclass(frozen=True, slots=True)
class Tier:
    """An SLO as it was written, and what must hold under it."""

    text: str
    wanted: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """`first` agents are tried first; `virtual`: trials are simulated, several at a time, and cost no waiting."""

    first: int = 1
    first_seed: int = 0
    tolerance: float = 0.1
    max_seeds: int = 32
    virtual: bool = True


class Pooled(NamedTuple):
    """A share over all trials of a number of agents."""

    met: int
    of: int

    @property
    def share(self) -> float:
        """The share; 1 where nothing was counted."""
        return self.met / self.of if self.of else 1.0


def conditions_of(tier: str, goal: float) -> tuple[Condition, ...]:
    """What must hold at a tier: each bound on a percentile, and the goal for all others together."""
    objective = parse_slo(tier)
    found = conditions(objective, goal, "joint")
    single = any(bound.percentile is None for bound in objective.bounds)
    return found if single else tuple(condition for condition in found if condition.key != JOINT)


def share_of(trial: AgentTrial, key: ShareKey | str) -> TrialShare:
    """The share of that condition."""
    return next(share for share in trial.shares if share.text == str(key))


def _pooled(trials: Sequence[AgentTrial], users: int, key: ShareKey) -> Pooled:
    found = [share_of(trial, key) for trial in trials if trial.users == users]
    return Pooled(sum(share.met for share in found), sum(share.of for share in found))


def sides(tier: Tier, trials: Sequence[AgentTrial]) -> tuple[int | None, int | None]:
    """The largest number of agents below all that missed the tier, and the least that missed it."""
    numbers = sorted({trial.users for trial in trials})
    missed = [n for n in numbers if any(_pooled(trials, n, c.key).share < c.goal for c in tier.wanted)]
    high = min(missed, default=None)
    return max((n for n in numbers if high is None or n < high), default=None), high


def next_keys(tiers: Sequence[Tier], trials: Sequence[AgentTrial], given: SearchOptions) -> list[Key]:
    """The trials to make next; none when all tiers are decided. Depends on the trials alone, so a search resumes."""
    if not trials:
        return [Key(given.first, given.first_seed)]
    for tier in tiers:
        if keys := _bracket(tier, trials, given) or _around(tier, trials, given):
            return keys
    return []


def _bracket(tier: Tier, trials: Sequence[AgentTrial], given: SearchOptions) -> list[Key]:
    """Several times as many agents, or so many times fewer, until two numbers are on both sides of the tier."""
    low, high = sides(tier, trials)
    step = STEP if given.virtual else WALL_STEP
    if low is not None and high is not None:
        return []
    if low is None:
        assert high is not None
        users = high // step
    else:
        users = step * low
    if users < 1 or users > MOST_AGENTS:
        return []
    return [Key(users, _seed(trials, users, given))]


def _seed(trials: Sequence[AgentTrial], users: int, given: SearchOptions) -> int:
    """Simulated trials of all numbers share their seeds. A server remembers what it was sent, so there each is new."""
    taken = {trial.seed for trial in trials if trial.users == users or not given.virtual}
    return next(seed for seed in range(given.first_seed, 1 << 31) if seed not in taken)


def _around(tier: Tier, trials: Sequence[AgentTrial], given: SearchOptions) -> list[Key]:
    low, high = sides(tier, trials)
    if low is None or high is None:
        return []
    if not given.virtual:
        return _alternate(tier, trials, given)
    pilot = _pilot(tier, trials, given)
    numbers = sorted({trial.users for trial in pilot})
    if len(numbers) < 2:
        return _missing(_pair(_crossing(tier, _of_bracket(trials, given)), APART), range(SEEDS), trials, given)
    if len(numbers) < NUMBERS and (more := _beyond(numbers, _fitted(tier, pilot))) is not None:
        return _missing((more,), range(SEEDS), trials, given)
    plan = _plan(tier, pilot, given)
    return [] if plan is None else _missing(*plan, trials=trials, given=given)


def _pair(here: float, apart: float) -> tuple[int, int]:
    """Two whole numbers about so far from a crossing, on both sides of it."""
    below = max(1, min(math.floor(here), round(here * math.exp(-apart))))
    return below, max(below + 1, round(here * math.exp(apart)))


def _pilot(tier: Tier, trials: Sequence[AgentTrial], given: SearchOptions) -> list[AgentTrial]:
    """The trials of the pilot: the first seeds, at numbers near the crossing that have all of them."""
    first = [trial for trial in trials if trial.seed - given.first_seed < SEEDS]
    seeds = {trial.users: {one.seed for one in first if one.users == trial.users} for trial in first}
    whole = [trial for trial in first if len(seeds[trial.users]) == SEEDS]
    here = _crossing(tier, [*_of_bracket(trials, given), *whole])
    return [trial for trial in whole if here / NEAR - 1 <= trial.users <= here * NEAR + 1]


def _of_bracket(trials: Sequence[AgentTrial], given: SearchOptions) -> list[AgentTrial]:
    """The trials of the bracket: they do not depend on how far the others got."""
    numbers = {given.first * STEP**power for power in range(32)} | {given.first // STEP**power for power in range(32)}
    return [trial for trial in trials if trial.users in numbers and trial.seed == given.first_seed]


class Jackknife(NamedTuple):
    """ln(agents) at the crossing: mean of the values by seed, its standard error, and how many seeds."""

    mean: float
    error: float
    seeds: int

    def half(self, seeds: int) -> float:
        """Half of the 95 % interval, with so many seeds of the same scatter."""
        return student(seeds) * self.error * math.sqrt(self.seeds / seeds)


def _jackknife(tier: Tier, trials: Sequence[AgentTrial]) -> Jackknife | None:
    """None where a line does not fall, or crosses far from all of these trials."""
    seeds = sorted({trial.seed for trial in trials})
    every = [trials, *([trial for trial in trials if trial.seed != seed] for seed in seeds)]
    found = [math.log(here) for part in every if (here := _fitted(tier, part)) is not None]
    if len(found) <= len(seeds) or len(seeds) < 2:
        return None
    numbers, count = [trial.users for trial in trials], len(seeds)
    if not math.log(min(numbers) / NEAR) < found[0] < math.log(max(numbers) * NEAR):
        return None
    values = [count * found[0] - (count - 1) * value for value in found[1:]]
    mean = math.fsum(values) / count
    return Jackknife(mean, math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (count - 1) / count), count)


def _plan(
    tier: Tier, pilot: Sequence[AgentTrial], given: SearchOptions
) -> tuple[tuple[int, int], range] | None:  # fmt: skip
    """The final numbers and seeds, by the pilot alone; None where it tells no crossing."""
    found = _jackknife(tier, pilot)
    if found is None:
        return None
    seeds = SEEDS
    while seeds < given.max_seeds and found.half(seeds) > AIM * given.tolerance:
        seeds += 1
    apart = min(max(1 / _lines(tier, pilot)[0].slope, CLOSE[0]), CLOSE[1])
    return _pair(math.exp(found.mean), apart), range(SEEDS, SEEDS + seeds)


def _beyond(final: Sequence[int], here: float | None) -> int | None:
    """The number to try next where the line crosses outside of those that were tried: a whole one beside them."""
    if here is None:  # it hardly falls
        return final[-1] + max(1, round(final[-1] * APART))
    if here > final[-1]:
        return min(math.ceil(here * 1.02), math.ceil(final[-1] * NEAR))
    if here < final[0]:
        below = max(math.floor(here * 0.98), math.floor(final[0] / NEAR))
        return below if below >= 1 else None
    return None


def _missing(
    numbers: Sequence[int], seeds: range, trials: Sequence[AgentTrial], given: SearchOptions
) -> list[Key]:  # fmt: skip
    """These trials, without those that were made."""
    made = {Key(trial.users, trial.seed) for trial in trials}
    return [key for users in numbers for seed in seeds if (key := Key(users, given.first_seed + seed)) not in made]


class Line(NamedTuple):
    """Where the line of a condition crosses its goal, and how fast it falls there: in logit(share) by ln(agents)."""

    agents: float
    slope: float
    condition: Condition


def _lines(tier: Tier, trials: Sequence[AgentTrial]) -> list[Line]:
    """The lines that fall, that of the first condition to cross its goal first."""
    found = []
    for condition in tier.wanted:
        shares = [(trial.users, share_of(trial, condition.key)) for trial in trials]
        counted = [(users, share.met / share.of, share.of) for users, share in shares if share.of]
        curve = curves.fit(*zip(*counted, strict=True)) if counted else None
        here = None if curve is None else curve.crossing(condition.goal)
        if curve is not None and here is not None:
            found.append(Line(here, curve.slope, condition))
    return sorted(found)


def _fitted(tier: Tier, trials: Sequence[AgentTrial]) -> float | None:
    """Where the first line crosses its goal; None where none falls."""
    lines = _lines(tier, trials)
    return lines[0].agents if lines else None


def _alternate(tier: Tier, trials: Sequence[AgentTrial], given: SearchOptions) -> list[Key]:
    """On a wall clock: one more trial below or above the best guess, by turns, until the interval is narrow."""
    if estimate(tier, trials, given).narrower_than(given.tolerance):
        return []
    low, high = sides(tier, trials)
    assert low is not None
    assert high is not None
    pair = _pair(min(max(_crossing(tier, trials), low), high), APART / 2)
    users = min(pair, key=lambda number: sum(trial.users == number for trial in trials))
    return [Key(users, _seed(trials, users, given))]


def _crossing(tier: Tier, trials: Sequence[AgentTrial]) -> float:
    """Where the first of the conditions crosses its goal; beyond all trials where none does."""
    return min((_crosses(condition, trials) for condition in tier.wanted), default=math.inf)


def _crosses(condition: Condition, trials: Sequence[AgentTrial]) -> float:
    """The number of agents at which the share crosses the goal: between the two numbers on both sides of it."""
    numbers = sorted({trial.users for trial in trials})
    shares = [_pooled(trials, n, condition.key) for n in numbers]
    missed = next((place for place, one in enumerate(shares) if one.share < condition.goal), None)
    if missed is None:
        return math.inf
    if not missed:
        return float(numbers[0])
    ends = (missed - 1, missed)
    x = [math.log(numbers[place]) for place in ends]
    z = [_z(shares[place]) - curves.logit(condition.goal) for place in ends]
    part = z[0] / (z[0] - z[1]) if z[0] > z[1] else 0.5
    return math.exp(x[0] + min(1.0, max(0.0, part)) * (x[1] - x[0]))


def estimate(tier: Tier, trials: Sequence[AgentTrial], given: SearchOptions) -> TierAgents:
    """What the trials say of a tier."""
    low, high = sides(tier, trials)
    known = TierAgents(tier=tier.text, state="unresolved", met=low, missed=high)
    if low is None:
        few = high is not None and high <= 1
        why = "even one agent alone misses it." if few else "too few agents were tried."
        return replace(known, state="unreachable" if few else "unresolved", why=why)
    if high is None:
        return replace(known, why=f"{low:,} agents still met it, and no more were tried.")
    return _by_seeds(tier, trials, known, given) if given.virtual else _by_knee(tier, trials, known)


def _by_seeds(tier: Tier, trials: Sequence[AgentTrial], known: TierAgents, given: SearchOptions) -> TierAgents:
    """Student's t over the jackknife values of the final seeds."""
    if _around(tier, trials, given):
        return replace(known, why="the search ended before its last trials.")
    flat = replace(known, why="the share of requests within the bounds hardly falls with more agents.")
    pilot = _pilot(tier, trials, given)
    before = _jackknife(tier, pilot) if len({trial.users for trial in pilot}) > 1 else None
    plan = _plan(tier, pilot, given)
    if before is None or plan is None:
        return flat
    numbers, seeds = plan
    final = [trial for trial in trials if trial.users in numbers and trial.seed - given.first_seed in seeds]
    found = _jackknife(tier, final)
    if found is None:  # between two close numbers shares may rise by chance
        final = [*pilot, *final]
        found = _jackknife(tier, final)
    if found is None:
        return flat
    half = max(found.half(len(seeds)), before.half(len(seeds)))
    low, agents, high = (math.exp(found.mean + side * half) for side in (-1, 0, 1))
    if numbers[1] - numbers[0] == 1:  # where between two whole numbers, no trial can tell
        low, high = min(low, numbers[0]), max(high, numbers[1])
    return replace(known, state="resolved", agents=agents, low=low, high=high,
                   binding=str(_lines(tier, final)[0].condition.key), requests_rps=_rate_at(agents, final))  # fmt: skip


def _z(found: Pooled) -> float:
    """logit of a share, half a request away from none and all."""
    return curves.logit((found.met + 0.5) / (found.of + 1))


def _by_knee(tier: Tier, trials: Sequence[AgentTrial], known: TierAgents) -> TierAgents:
    """The posterior of the crossing, of as many independent requests as the scatter of the sessions leaves."""
    found = {condition: knee(_blocks(condition, trials), condition.goal) for condition in tier.wanted}
    binding = min(found, key=lambda condition: found[condition].rate_rps)
    one = found[binding]
    numbers = [trial.users for trial in trials]
    if one.low_rps < min(numbers) or one.high_rps > max(numbers):
        return replace(known, binding=str(binding.key), why="the time was too short for an interval.")
    return replace(
        known, state="resolved", agents=one.rate_rps, low=one.low_rps, high=one.high_rps, binding=str(binding.key),
        requests_rps=_rate_at(one.rate_rps, trials),
    )  # fmt: skip


def _blocks(condition: Condition, trials: Sequence[AgentTrial]) -> list[Block]:
    found = []
    for trial in trials:
        share = share_of(trial, condition.key)
        if not share.of:
            continue
        p = (share.met + 0.5) / (share.of + 1)
        alone = math.sqrt(p * (1 - p) / share.of)
        weight = 1.0 if share.sd is None else min(1.0, (alone / max(share.sd, alone)) ** 2)
        found.append(Block(trial.users, weight * share.met, weight * share.of, max(1.0, weight * share.of)))
    return found


def _rate_at(agents: float, trials: Sequence[AgentTrial]) -> float:
    """Requests per second at a number of agents: between the nearest numbers tried, each as its trials are."""
    numbers = sorted({trial.users for trial in trials})
    rates = {n: [t.requests_rps for t in trials if t.users == n] for n in numbers}
    means = [math.fsum(rates[n]) / len(rates[n]) for n in numbers]
    low = max((place for place, n in enumerate(numbers) if n <= agents), default=0)
    high = min(low + 1, len(numbers) - 1)
    if low == high or numbers[low] >= agents:
        return means[low]
    part = (agents - numbers[low]) / (numbers[high] - numbers[low])
    return means[low] + min(1.0, part) * (means[high] - means[low])

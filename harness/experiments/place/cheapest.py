"""The cheapest deployment that meets the goals at a requested rate, and what to take instead of it, at any time.

What replicas serve at most (`bound`) says how loaded a deployment would be, and that how likely it is to meet. The next
to be run is the one that is expected to save most: what it takes less than the cheapest that meets so far, times how
likely it is. So the first is a safe one, the next ones are cheaper, hopeless shapes come last or never, and what takes
more than the cheapest is run only where its kind of GPU has no answer yet.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

from harness.experiments.place.bound import served_rps
from harness.experiments.place.systems import Deployment, Group, Role

if TYPE_CHECKING:
    from harness.experiments.place.questions import Judged
    from harness.experiments.place.settings import PlaceOptions

CHOICES = 3
"""The recommendation and what comes next."""
LOADS = (1.2, 1.1, 1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)
"""Loads, as shares of what is served at most, that numbers of replicas are taken for; both sides are loaded alike."""
HALF, SCALE = 0.8, 0.1
"""At the first load half of the deployments meet, and at one that is so much lower 73 %."""
UNLIKELY, SMALL = 0.03, 0.002
"""What is less likely to meet is not run, nor what is expected to save so small a share of what the cheapest takes."""
OTHER_GPUS = 0.1
"""Weight of what is saved by an alternative: on another kind of GPU, or with the error of the step times."""
NONE_MEETS = 1.25
"""What the cheapest takes while none meets, as a share of what the dearest does."""
LONGER, FAR = 1.3, 3.0
"""With the error of the step times a load counts as so much higher, and what holds is looked for up to so many times
what the cheapest takes."""
AGAIN = 0.1
"""How likely it is to meet where a few runs did not decide, for what the many cost that do."""
OTHER_SIDE = 0.15
"""How likely it is to meet where a deployment that missed was loaded less, on its weaker side, but has no more of
both."""
DOUBT = 0.3
"""What the chance is multiplied with of what has no more of the weaker side of a deployment that missed."""
SHAPES = 8
"""Shapes of each role and kind of GPU that are paired with those of the other role: the cheapest by their bounds."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A deployment that may be run: its `kind` is that of all numbers of its replicas, `load` the rate as a share of
    what it serves at most."""

    deployment: Deployment
    kind: str
    taken: float
    load: float


class Cheapest:
    """What was run so far, and what is to be run next."""

    def __init__(self, options: PlaceOptions, rates: Mapping[Group, float]) -> None:
        self._options, self._rates = options, rates
        self._candidates = {candidate.deployment: candidate for candidate in _candidates(options, rates)}
        self._most = NONE_MEETS * max((candidate.taken for candidate in self._candidates.values()), default=0.0)
        self._begun: set[Deployment] = set()
        self._undecided: set[Deployment] = set()
        self._of_kind: dict[str, set[Deployment]] = {}
        self._doubt: dict[Deployment, float] = {}
        self.run: dict[Deployment, Judged] = {}

    def __repr__(self) -> str:
        return f"<Cheapest {len(self.run)} of {len(self._candidates)} run>"

    def next(self) -> tuple[Deployment, bool] | None:
        """The deployment to run now, and whether again, with as many runs as decide; None: no other one is expected to
        save anything."""
        on_gpu = dict.fromkeys(self._options.hardware, self._most)
        on_gpu |= {unit.hardware: self._candidates[unit].taken for unit in reversed(self.met)}
        least, best = min(on_gpu.values(), default=0.0), None
        saves, sure = SMALL * least, self._sure(least)
        for candidate in self._candidates.values():
            if candidate.deployment in self._begun and candidate.deployment not in self._undecided:
                continue
            gpu_saving = on_gpu.get(candidate.deployment.hardware, 0.0) - candidate.taken
            saved = max(0.0, least - candidate.taken) + OTHER_GPUS * max(0.0, gpu_saving)
            expected = saved * self._chance(candidate) if saved > saves else 0.0
            if (saved := OTHER_GPUS * (sure - candidate.taken)) > saves:
                expected = max(expected, saved * self._chance(candidate, LONGER))
            if expected > saves:
                best, saves = candidate.deployment, expected
        if best is None:
            return None
        rerun = best in self._undecided
        self._undecided.discard(best)
        self._begun.add(best)
        return best, rerun

    def learn(self, deployment: Deployment, judged: Judged, *, again: bool) -> None:
        """Take in what the runs of a deployment tell."""
        self.run[deployment] = judged
        self._of_kind.setdefault(self._candidates[deployment].kind, set()).add(deployment)
        if judged.meets is None and not again:
            self._undecided.add(deployment)
        if judged.meets is False:
            weaker = min(deployment.groups, key=lambda group: served_rps(Deployment((group,)), self._rates))
            fewer = {replace(weaker, count=count) for count in range(1, weaker.count + 1)}
            for other in self._candidates:
                if not fewer.isdisjoint(other.groups):
                    self._doubt[other] = DOUBT * self._doubt.get(other, 1.0)
        if judged.meets and deployment.kind == "pair" and "high" in self._options.algorithms:
            for less in ((1, 0), (0, 1)):  # the sides need not be loaded alike
                self._add([count - n for count, n in zip(deployment.counts, less, strict=True)], deployment)

    @property
    def under_way(self) -> list[Deployment]:
        """Those that are being run."""
        return [unit for unit in self._candidates if unit in self._begun and unit not in self.run]

    @property
    def met(self) -> list[Deployment]:
        """Those that meet, the cheapest first."""
        meeting = (deployment for deployment, judged in self.run.items() if judged.meets)
        return sorted(meeting, key=lambda one: (self._candidates[one].taken, -self.run[one].share, one.key))

    @property
    def best(self) -> list[Deployment]:
        """The cheapest; the cheapest that meets with the error of the step times too; the cheapest of other kinds of
        GPU, and of other shapes, where these are no dearer or more requests meet."""
        met = self.met
        sure = [unit for unit in met if self.run[unit].holds]
        of_gpu = {unit.hardware: unit for unit in reversed(met)}
        of_shape = {self._candidates[unit].kind: unit for unit in reversed(met) if not self._worse(unit, met[0])}
        others = (unit for some in (of_gpu, of_shape) for unit in sorted(some.values(), key=met.index))
        return sorted([*dict.fromkeys([*met[:1], *sure[:1], *others])][:CHOICES], key=met.index)

    def _worse(self, one: Deployment, than: Deployment) -> bool:
        """Whether a deployment on the same GPUs is dearer than another for no more requests that meet."""
        dearer = self._candidates[one].taken > self._candidates[than].taken
        return dearer and one.hardware == than.hardware and self.run[one].share <= self.run[than].share

    @property
    def left(self) -> int:
        """Cheaper deployments that may meet, and were not run or not decided."""
        least = self._candidates[self.met[0]].taken if self.met else math.inf
        return sum(candidate.taken < least and self._chance(candidate) > 0 for candidate in self._candidates.values())

    def _sure(self, least: float) -> float:
        """What the cheapest takes that meets with the error of the step times too, where the cheapest of all does not;
        0 where that is of no interest."""
        met = self.met
        if not met or self.run[met[0]].holds is not False:
            return 0.0
        return next((self._candidates[unit].taken for unit in met if self.run[unit].holds), FAR * least)

    def _chance(self, candidate: Candidate, longer: float = 1.0) -> float:
        """How likely it is to meet, or with steps that are `longer`, as far as its load and what was run of its kind
        tell."""
        if candidate.deployment in self._undecided:
            return AGAIN
        if candidate.deployment in self.run:
            return 0.0
        low, high = 0.0, math.inf  # loads at which its kind met and missed
        counts = candidate.deployment.counts
        for deployment in self._of_kind.get(candidate.kind, ()):
            judged, its_load = self.run[deployment], self._candidates[deployment].load
            if judged.meets if longer == 1 else judged.holds:
                low = max(low, its_load)
            elif judged.unloaded or all(n <= other for n, other in zip(counts, deployment.counts, strict=True)):
                return 0.0
            else:
                high = min(high, its_load)
        low, high, load = longer * low, longer * high, longer * candidate.load
        if (load := max(low, load)) < high:
            chance = (_meets(load) - _meets(high)) / (_meets(low) - _meets(high))
        else:  # with more on the side that is loaded less: that side may be the one that misses
            chance = OTHER_SIDE
        chance *= self._doubt.get(candidate.deployment, 1.0)
        return chance if chance >= UNLIKELY else 0.0

    def _add(self, counts: list[int], deployment: Deployment) -> None:
        if min(counts) > 0 and (unit := deployment.counted(*counts)) not in self._candidates:
            self._candidates |= {held.deployment: held for held in _held(self._options, self._rates, [unit])}


def algorithm_of(options: PlaceOptions, deployment: Deployment) -> str:
    """The algorithm that considers it."""
    if deployment.kind == "colocated":
        return "vllm++"
    return "low" if deployment.in_pairs(options.cluster) else "high"


def _meets(load: float) -> float:
    """The share of deployments that meet the goals at a load."""
    return 0.0 if math.isinf(load) else 1 / (1 + math.exp((load - HALF) / SCALE))


def _candidates(options: PlaceOptions, rates: Mapping[Group, float]) -> Iterator[Candidate]:
    """Replicas alike in every number that may do, and pairs whose sides are loaded about alike."""
    assert options.rate_rps is not None
    by_role: dict[Role, list[tuple[Group, list[int]]]] = {"mixed": [], "prefill": [], "decode": []}
    for group, rate_rps in rates.items():
        by_role[group.role].append((group, [math.ceil(options.rate_rps / (rate_rps * load) - 1e-9) for load in LOADS]))
    for group, counts in by_role["mixed"]:
        alike = (Deployment((group,)).counted(n) for n in range(counts[0], counts[-1] + 1))
        yield from _held(options, rates, alike)
    prefills, decodes = (_cheapest_shapes(options, by_role[role]) for role in ("prefill", "decode"))
    for (prefill, prefill_counts), (decode, decode_counts) in product(prefills, decodes):
        pair = Deployment((prefill, decode))
        count_pairs = dict.fromkeys(zip(prefill_counts, decode_counts, strict=True))
        if "high" not in options.algorithms:
            count_pairs = dict.fromkeys((max(counts),) * 2 for counts in count_pairs)
        yield from _held(options, rates, (pair.counted(*counts) for counts in count_pairs))


def _cheapest_shapes(options: PlaceOptions, sides: list[tuple[Group, list[int]]]) -> Iterator[tuple[Group, list[int]]]:
    half = min(range(len(LOADS)), key=lambda place: abs(LOADS[place] - HALF))
    for hardware in options.hardware:
        on_gpu = [side for side in sides if side[0].hardware == hardware]
        amounts = {group: options.objective.taken(Deployment((group,)).counted(n[half])) for group, n in on_gpu}
        yield from sorted(on_gpu, key=lambda side: amounts[side[0]])[:SHAPES]


def _held(
    options: PlaceOptions, rates: Mapping[Group, float], deployments: Iterator[Deployment] | list[Deployment]
) -> Iterator[Candidate]:
    """Those that the cluster holds; without algorithm `high` pairs share their nodes."""
    assert options.rate_rps is not None
    for deployment in deployments:
        if deployment.gpus > options.cluster.gpus or not options.cluster.holds(deployment):
            continue
        if deployment.kind == "pair" and "high" not in options.algorithms and not deployment.in_pairs(options.cluster):
            continue
        kind = deployment.counted(*[1] * len(deployment.groups)).key
        load = options.rate_rps / served_rps(deployment, rates)
        yield Candidate(deployment, kind, options.objective.taken(deployment), load)

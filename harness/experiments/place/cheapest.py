"""The cheapest deployment that meets the goals at a requested rate, and the two that come next.

Each side alone tells the fewest replicas that may do, because both sides together meet no more than either. From there
the deployments are run as a whole at the requested rate, the cheapest first, and one that misses is followed by those
with one replica more; so what is found is the cheapest, not copies of what is best per GPU.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TYPE_CHECKING, Protocol, TypeVar

from harness.catalog import Shape
from harness.experiments.place.questions import Question, fewest, judged
from harness.experiments.place.systems import Deployment, Group, Skipped

if TYPE_CHECKING:
    from harness.experiments.capacity.at_rate import Attained
    from harness.experiments.place.settings import PlaceOptions
    from harness.experiments.place.systems import Algorithm, Role

Answer = TypeVar("Answer")

CHOICES = 3
"""The recommendation and its runners-up."""
AT_ONCE = 4
"""Deployments that are run before the next are chosen: a number of its own, so that every pool finds the same."""
MOST_RUN = 300
"""Deployments that are run at most."""
TOO_DEAR = 1.5
"""Sides of which one replica takes this many times what some deployment may take are left out."""


class Ask(Protocol):
    """Answers a question about each of several deployments, in their order."""

    def __call__(
        self, call: Callable[[Question], Answer], deployments: Sequence[Deployment], most: Sequence[int] = ()
    ) -> list[Answer]:
        """The answers; KeyboardInterrupt ends it."""
        ...


@dataclass(slots=True)
class Cheapest:
    """What was found so far: all deployments that were run, those that meet with one of each kind, the cheapest first,
    and the fewest replicas of each side."""

    sides: dict[Deployment, int | None] = field(default_factory=dict)
    run: dict[Deployment, Attained] = field(default_factory=dict)
    met: list[Deployment] = field(default_factory=list)
    left: int = 0


def cheapest(
    options: PlaceOptions, sides: Sequence[Deployment], ask: Ask, found: Cheapest, skipped: list[Skipped]
) -> None:
    """Search, and keep what is found in `found`. `sides` are replicas of each role, shape and kind of GPU."""
    _count(options, sides, ask, found, skipped)
    heap = [(*_price(options, one), one) for one in _starts(options, found.sides)]
    heapq.heapify(heap)
    seen = {one for *_, one in heap}
    while heap and len(found.run) < MOST_RUN:
        if found.met and heap[0][0] >= _enough(options, found.met):  # then kinds of GPU that met nowhere
            met = {one.hardware for one in found.met}
            heap = [one for one in heap if one[-1].hardware not in met and " + " not in one[-1].hardware]
            heapq.heapify(heap)
            if not heap:
                break
        batch = [heapq.heappop(heap)[-1] for _ in range(min(AT_ONCE, len(heap)))]
        cheap = {_kind(met): options.objective.taken(met) for met in found.met}
        batch = [one for one in batch if options.objective.taken(one) < cheap.get(_kind(one), float("inf"))]
        for one, answer in zip(batch, ask(judged, batch), strict=True):
            found.run[one] = answer
            if answer.meets:
                found.met = [met for met in found.met if _kind(met) != _kind(one)] + [one]
                found.met.sort(key=lambda met: _price(options, met))
            for near in _near(options, one, meets=answer.meets is True):
                if near not in seen:
                    seen.add(near)
                    heapq.heappush(heap, (*_price(options, near), near))
    found.met.sort(key=lambda one: (options.objective.taken(one), -found.run[one].share, one.key))
    found.left = len(heap) if len(found.run) >= MOST_RUN else 0


def algorithm_of(options: PlaceOptions, deployment: Deployment) -> Algorithm:
    """The algorithm that considers it."""
    if deployment.kind == "colocated":
        return "mii" if deployment.groups[0].policy else "vllm++"
    return "low" if deployment.in_pairs(options.cluster) else "high"


def _count(
    options: PlaceOptions, sides: Sequence[Deployment], ask: Ask, found: Cheapest, skipped: list[Skipped]
) -> None:
    """The fewest replicas of each side, those without pipelines first: they show soon what a deployment may take."""
    left = sorted(sides, key=lambda one: (one.groups[0].shape.pp > 1, _price(options, one)))
    while left:
        batch, left = left[: 2 * AT_ONCE], left[2 * AT_ONCE :]
        most = [_most(options, found.sides, one) for one in batch]
        skipped += [
            Skipped(one.hardware, one.name, "one replica takes far more than other deployments")
            for one, count in zip(batch, most, strict=True) if count < 1
        ]  # fmt: skip
        known = [(one, count) for one, count in zip(batch, most, strict=True) if count >= 1]
        answers = ask(fewest, [one for one, _ in known], [count for _, count in known])
        for (one, _), answer in zip(known, answers, strict=True):
            found.sides[one] = answer.count


def _most(options: PlaceOptions, known: dict[Deployment, int | None], side: Deployment) -> int:
    """Replicas of a side that the cluster holds and that do not take far more than other deployments."""
    dearest = TOO_DEAR * _bound(options, {one: n for one, n in known.items() if one.hardware == side.hardware})
    count = options.cluster.gpus // side.gpus
    return count if math.isinf(dearest) else min(count, int(dearest / options.objective.taken(side) + 1e-9))


def _bound(options: PlaceOptions, sides: dict[Deployment, int | None]) -> float:
    """What the cheapest deployment takes at least, by the fewest replicas so far."""
    least = dict.fromkeys(("colocated", "prefill", "decode"), float("inf"))
    for one, count in sides.items():
        if count is not None:
            least[one.kind] = min(least[one.kind], options.objective.taken(one.counted(count)))
    return min(least["colocated"], least["prefill"] + least["decode"])


def _starts(options: PlaceOptions, sides: dict[Deployment, int | None]) -> Iterator[Deployment]:
    """The smallest deployment of each kind that may do."""
    known: dict[Role, list[Group]] = {"mixed": [], "prefill": [], "decode": []}
    for one, count in sides.items():
        if count is not None:
            known[one.groups[0].role].append(replace(one.groups[0], count=count))
    both = ((prefill, decode) for prefill, decode in product(known["prefill"], known["decode"]))
    for groups in (*((group,) for group in known["mixed"]), *both):
        one = Deployment(groups)
        if one.kind == "pair" and "high" not in options.algorithms:
            one = one.counted(*[max(one.counts)] * 2)
            if not one.in_pairs(options.cluster):
                continue
        if options.cluster.holds(one):
            yield one


def _enough(options: PlaceOptions, met: Sequence[Deployment]) -> float:
    """What a deployment must not take to be of interest beside these."""
    if len(met) >= CHOICES:
        return options.objective.taken(met[CHOICES - 1])
    return TOO_DEAR * options.objective.taken(met[0])


def _near(options: PlaceOptions, deployment: Deployment, *, meets: bool) -> Iterator[Deployment]:
    """Those with a replica more; of one that meets, with a decode replica less: prefill evens out what decode is sent,
    so that fewer may do than alone."""
    pair, free = deployment.kind == "pair", "high" in options.algorithms
    steps: Iterable[tuple[int, ...]] = [(1, 0), (0, 1)] if pair and free else [(1, 1) if pair else (1,)]
    if meets:
        steps = [(0, -1)] if pair and free else []
    for change in steps:
        counts = [count + by for count, by in zip(deployment.counts, change, strict=True)]
        if min(counts) > 0 and options.cluster.holds(near := deployment.counted(*counts)):
            yield near


def _price(options: PlaceOptions, deployment: Deployment) -> tuple[float, int, str]:
    return options.objective.taken(deployment), deployment.gpus, deployment.key


def _kind(deployment: Deployment) -> tuple[tuple[str, str, Shape, str], ...]:
    """What deployments that differ in their numbers of replicas have in common."""
    return tuple((group.role, group.hardware, group.shape, group.policy) for group in deployment.groups)

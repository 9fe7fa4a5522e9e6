"""What is built of the candidates: the best unit of each algorithm, and ratios of both sides."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

from harness.experiments.place.search import Rate, rate
from harness.experiments.place.systems import Deployment

if TYPE_CHECKING:
    from harness.experiments.place.systems import Algorithm, Cluster, Objective


MOST_RATIOS = 5
"""Ratios of both sides that are reported for each kind of GPU."""


@dataclass(frozen=True, slots=True)
class Scored:
    """A candidate with its rate per GPU and its value of the objective. `binding` is what it misses above."""

    algorithm: Algorithm
    system: Deployment
    per_gpu: Rate
    value: float
    binding: str | None

    @property
    def total_rps(self) -> float:
        """Requests per second of the unit."""
        return self.per_gpu.value * self.system.gpus


@dataclass(frozen=True, slots=True)
class Unit:
    """Replicas that belong together: counts of systems, their GPUs, the rate of all, and its value of the objective."""

    algorithm: Algorithm
    members: tuple[tuple[int, Scored], ...]
    per_gpu: Rate
    value: float

    @property
    def deployment(self) -> Deployment:
        """All its replicas."""
        each = [(n, group) for n, one in self.members for group in one.system.groups]
        return Deployment(tuple(replace(group, count=n * group.count) for n, group in each))

    @property
    def gpus(self) -> int:
        return self.deployment.gpus

    @property
    def total_rps(self) -> float:
        """Requests per second of the unit."""
        return self.per_gpu.value * self.gpus

    @property
    def name(self) -> str:
        """`P(2,1) D(1,1)`, or `2 x P(1,1) + 1 x D(1,1)`."""
        return self.deployment.name


def ordered(units: Sequence[Unit]) -> list[Unit]:
    """By value, then fewer GPUs, as DistServe breaks ties."""
    return sorted(units, key=lambda unit: (-unit.value, unit.gpus, unit.name))


def units(
    algorithm: Algorithm, scored: Sequence[Scored], objective: Objective, cluster: Cluster,
    ratio: tuple[int, int] | None = None,
) -> list[Unit]:  # fmt: skip
    """The units of an algorithm by value, best first; those that sustain no rate are left out.

    With `ratio` both sides are in this one only.
    """
    sustained = [one for one in scored if one.algorithm == algorithm and one.per_gpu.value > 0]
    if algorithm != "high":
        return ordered([Unit(algorithm, ((1, one),), one.per_gpu, one.value) for one in sustained])
    found = _apart(sustained, objective, cluster, ratio)
    return ordered([*found])


def _apart(
    sustained: Sequence[Scored], objective: Objective, cluster: Cluster, ratio: tuple[int, int] | None
) -> Iterator[Unit]:
    """Algorithm 1: the best of each side on each kind of GPU, in every ratio that the cluster holds."""
    ordered = sorted(sustained, key=lambda one: (-one.value, one.system.gpus, one.system.name))
    kinds = dict.fromkeys(one.system.hardware for one in sustained)
    for ours, theirs in product(kinds, kinds):
        prefill = [one for one in ordered if one.system.kind == "prefill" and one.system.hardware == ours]
        decode = [one for one in ordered if one.system.kind == "decode" and one.system.hardware == theirs]
        found = [*_of_sides(prefill[:1], decode[:1], objective, cluster, ratio)]
        found = found or [
            *_of_sides(prefill, decode, objective, cluster, ratio)
        ]  # the cluster is too small for the best of both
        yield from sorted(found, key=lambda unit: (-unit.value, unit.gpus))[:MOST_RATIOS]


def _of_sides(
    prefills: Sequence[Scored],
    decodes: Sequence[Scored],
    objective: Objective,
    cluster: Cluster,
    ratio: tuple[int, int] | None,
) -> Iterator[Unit]:
    for prefill in prefills:
        for decode in decodes:
            yield from _ratios(prefill, decode, objective, cluster, ratio)


def _ratios(
    prefill: Scored, decode: Scored, objective: Objective, cluster: Cluster, ratio: tuple[int, int] | None
) -> Iterator[Unit]:
    for n in range(1, cluster.gpus // prefill.system.gpus + 1):
        for m in range(1, (cluster.gpus - n * prefill.system.gpus) // decode.system.gpus + 1):
            unit = together("high", ((n, prefill), (m, decode)), objective)
            if ratio in (None, (n, m)) and math.gcd(n, m) == 1 and cluster.holds(unit.deployment):
                yield unit


def together(algorithm: Algorithm, members: tuple[tuple[int, Scored], ...], objective: Objective) -> Unit:
    """A unit of both sides: with each seed it sustains the rate of the weaker one."""
    gpus = sum(count * one.system.gpus for count, one in members)
    seeds = members[0][1].per_gpu.by_seed
    weakest = {
        seed: min(n * one.system.gpus * one.per_gpu.by_seed[seed] for n, one in members) / gpus for seed in seeds
    }
    per_gpu = rate(weakest, max(one.per_gpu.width for _, one in members))
    if any(one.per_gpu.low is None for _, one in members):
        per_gpu = replace(per_gpu, low=None, high=None)
    total_rps = per_gpu.value * gpus
    unit = Unit(algorithm, members, per_gpu, 0.0)
    return replace(unit, value=objective.of(unit.deployment, total_rps))

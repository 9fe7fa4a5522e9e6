"""Units that stand for whole clusters: a replica, a pair on shared nodes, or both sides in a ratio."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import product
from typing import TYPE_CHECKING

from harness.experiments.place.bound import served_rps
from harness.experiments.place.systems import Deployment, Group

if TYPE_CHECKING:
    from harness.experiments.place.settings import PlaceOptions


def units(options: PlaceOptions, rates: Mapping[Group, float]) -> list[Deployment]:
    """The units of the algorithms by what they serve at most per GPU, money or power, the best first; of equal ones
    that with fewer GPUs, as DistServe breaks ties."""

    def value(unit: Deployment) -> tuple[float, int, str]:
        return -options.objective.of(unit, served_rps(unit, rates)), unit.gpus, unit.key

    prefills, decodes = ([group for group in rates if group.role == role] for role in ("prefill", "decode"))
    found = [Deployment((group,)) for group in rates if group.role == "mixed"]
    for prefill, decode in product(prefills, decodes):
        alike = prefill.hardware == decode.hardware and options.cluster.share_nodes(prefill.shape, decode.shape)
        if "low" in options.algorithms and alike:
            found.append(Deployment((prefill, decode)))
        if "high" in options.algorithms and (ratios := [*_ratios(options, prefill, decode, rates)]):
            found.append(min(ratios, key=value))
    return sorted(dict.fromkeys(found), key=value)


def _ratios(options: PlaceOptions, prefill: Group, decode: Group, rates: Mapping[Group, float]) -> Iterator[Deployment]:
    """Numbers of both sides of which neither waits long for the other (DistServe, algorithm 1)."""
    pair, cluster = Deployment((prefill, decode)), options.cluster
    for n in range(1, cluster.gpus // prefill.gpus + 1):
        even = n * rates[prefill] / rates[decode]
        counts = {(n, max(1, math.floor(even))), (n, math.ceil(even))}
        for ratio in sorted(counts):
            if math.gcd(*ratio) == 1 and cluster.holds(unit := pair.counted(*ratio)):
                yield unit

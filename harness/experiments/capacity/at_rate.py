"""Whether a simulated system meets its goals at one rate, in the steady state: the share of its requests, with an
interval over the seeds of chains.

One chain tells what fails beyond doubt. Else several seeds, whose chains are made longer until the side of the goal is
sure, and until they are long against what the queue remembers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.experiments.capacity.steady import (
    BLOCKS,
    FEWEST,
    FIRST_REQUESTS,
    PARTS,
    SURE,
    SteadySearch,
    Tried,
    away_of,
    is_short,
    sample,
    side_of,
)
from harness.stats.seeds import student

if TYPE_CHECKING:
    from harness.experiments.capacity.chains import Here
    from harness.experiments.capacity.conditions import Condition

LIMIT = 400_000
"""Requests that may be spent on the question."""
INTERIM = ((PARTS, 2 * SURE), (2 * PARTS, 2 * SURE), (BLOCKS, SURE))
"""Blocks of a single chain that is looked at before it is over, and standard errors that then tell a side."""
SPANS = 10
"""Times the longest E2E that a chain lasts at first."""


@dataclass(frozen=True, slots=True)
class Attained:
    """The share of the condition that is the farthest below its goal, with its 95% interval (None: no interval).

    `meets` is False where the goal is surely missed, None where seeds or chains do not tell. `by_seed` are the shares
    by seed: on equal seeds two systems have the same traffic.
    """

    meets: bool | None
    share: float
    low: float | None
    high: float | None
    binding: str
    requests: int
    by_seed: dict[int, float] = field(default_factory=dict)


def attained(observe: Here, search: SteadySearch, seeds: int = FEWEST, *, rough: bool = False) -> Attained:
    """Observe chains at the rate of `search.spec.at_rps` until its side of the goals is known, or the limit is spent.

    With `rough` one chain decides, if it can.
    """
    spec, alone = search.spec, search.alone
    rate_rps, wanted = spec.at_rps, spec.wanted
    assert rate_rps is not None
    span_s = max(max(FIRST_REQUESTS, 30 / (1 - spec.goal)) / rate_rps, SPANS * alone.p99_s, 5 * search.memory_s)
    sent: dict[int, int] = {}

    def made(seeds: int, blocks: int) -> Tried:
        first = spec.first_seed
        requests = [search.request(seed, rate_rps, span_s, blocks) for seed in range(first, first + seeds)]
        chains = list(observe(requests, lambda _: None))
        sent.update((chain.request.seed, chain.sent) for chain in chains)
        return Tried(rate_rps, chains)

    for blocks, sure in INTERIM:
        tried = made(1, blocks)
        side = side_of(tried, wanted, sure, math.inf)
        if side is False or (rough and side):
            break
    if side is False or rough:
        return _answer(tried, wanted, side, sum(sent.values()))
    longer = 1
    while True:
        tried = made(seeds, longer * BLOCKS)
        side = side_of(tried, wanted, SURE, math.inf)
        if side is False:
            break
        if not is_short(tried, wanted):
            if side:
                break
            low = _answer(tried, wanted, None, 0).low
            condition = away_of(tried, wanted)[1]
            if longer >= 4 and low is not None and low >= condition.goal:
                side = True
                break
        if sum(sent.values()) * 2 > spec.limit:
            side = None
            break
        longer *= 2
    return _answer(tried, wanted, side, sum(sent.values()))


def _answer(tried: Tried, wanted: Sequence[Condition], meets: bool | None, requests: int) -> Attained:
    condition = away_of(tried, wanted)[1]
    found = sample(tried.chains, condition)
    by_seed = {c.request.seed: found.share + float(e) for c, e in zip(tried.chains, found.errors, strict=True)}
    if len(tried.chains) < 2:
        return Attained(meets, found.share, None, None, str(condition.key), requests, by_seed)
    half = student(len(tried.chains)) * found.error * found.scale
    low, high = (1 / (1 + math.exp(-(found.z + sign * half))) for sign in (-1, 1))
    low, high = min(low, found.share), max(high, found.share)  # of shares beyond half a request from none and all
    return Attained(meets, found.share, low, high, str(condition.key), requests, by_seed)

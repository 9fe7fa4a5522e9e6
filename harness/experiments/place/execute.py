"""Carries a placement out: every candidate is one call to a pool; those that are known are not searched again."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from harness.errors import Interrupted, UsageError
from harness.experiments.place.answer import answer
from harness.experiments.place.combine import Scored
from harness.experiments.place.search import Rate, rate
from harness.experiments.place.settings import PlaceOptions
from harness.experiments.place.store import Store
from harness.experiments.place.systems import Algorithm, Kind, Skipped, System, space
from harness.experiments.place.task import TOO_SHORT, Found, Task, Traffic, searched, traffic

if TYPE_CHECKING:
    from harness.experiments import pool

KINDS: dict[Algorithm, tuple[Kind, ...]] = {"vllm++": ("colocated",), "low": ("pair",), "high": ("prefill", "decode")}


@dataclass(frozen=True, slots=True)
class Candidate:
    """A system that an algorithm looks at."""

    algorithm: Algorithm
    system: System

    @property
    def key(self) -> str:
        """What tells it from the others, in the folder of a search."""
        return f"{self.algorithm} {self.system.hardware} {self.system.name} x{self.system.cross}"


def candidates(asked: PlaceOptions) -> tuple[list[Candidate], list[Skipped]]:
    """All systems to search, the largest first, so that no core waits for the last one; and what is left out."""
    found: dict[str, Candidate] = {}
    skipped: dict[Skipped, None] = {}
    for algorithm in asked.algorithms:
        for hardware in asked.hardware:
            kind = KINDS[algorithm][0]
            here = space(asked.spec.model or "opt-13b", hardware, asked.cluster, partial(asked.refused, kind, hardware))
            skipped.update(dict.fromkeys(here.skipped))
            each = (Candidate(algorithm, system) for system in here.of(algorithm, asked.cluster))
            found.update((candidate.key, candidate) for candidate in each)
    return sorted(found.values(), key=lambda c: -c.system.gpus), [*skipped]


def conduct(
    asked: PlaceOptions, store: Store, processes: pool.Pool, tell: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Search every candidate and give what place.json holds. Ctrl-C ends it with what there is by then.

    Raises Interrupted where no candidate was over, UsageError where there is none.
    """
    begun_s = time.monotonic()
    every, skipped = candidates(asked)
    if not every:
        reasons = (skip.reason for skip in reversed(skipped) if "divide" not in skip.reason)
        raise UsageError(
            f"There is nothing to place: {next(reasons, 'no shape fits the cluster')}. "
            "Give more GPUs, another --model or --hardware, or a --latency for it."
        )
    sent = traffic(asked.spec, asked.seeds, released=asked.released)
    with store.opened(asked):
        by_key = {candidate.key: candidate for candidate in every}
        missing = [_task(asked, sent, candidate) for key, candidate in by_key.items() if key not in store.found]
        try:
            for task, found in processes.map(searched, missing):
                store.add(task.key, found)
                tell(told(by_key[task.key], found, len(every) - len(store.found)))
        except KeyboardInterrupt:
            pass  # the answer tells what is left
        known = [(candidate, store.found[candidate.key]) for candidate in every if candidate.key in store.found]
        if not known:
            raise Interrupted("interrupted before the first candidate was over; the same command starts again.")
        info = answer(
            asked, [scored(asked, candidate, found) for candidate, found in known], skipped,
            [found for _, found in known], time.monotonic() - begun_s, left=len(every) - len(known),
        )  # fmt: skip
        store.finish(info)
    return info


def _task(asked: PlaceOptions, sent: Traffic, candidate: Candidate) -> Task:
    kind = candidate.system.kind
    return Task(
        candidate.key, candidate.system, asked.of(candidate.system), asked.bounds(kind), asked.wanted(kind),
        sent, asked.seeds, asked.top_rps, asked.width_rps, asked.most_requests,
    )  # fmt: skip


def scored(asked: PlaceOptions, candidate: Candidate, found: Found) -> Scored:
    """A candidate with its rate and worth."""
    by_seed = {seed: ends.low_rps for seed, ends in found.ends.items()}
    width = max(ends.high_rps - ends.low_rps for ends in found.ends.values())
    per_gpu = rate(by_seed, width, first=asked.released)
    unlimited = (None,) if asked.released else (None, TOO_SHORT)  # the released planner takes its rate as it is
    at_least = any(ends.binding in unlimited for ends in found.ends.values())
    if at_least or not _is_tried(per_gpu, [ends.tried_rps for ends in found.ends.values()]):
        per_gpu = replace(per_gpu, low=None, high=None)
    total_rps = per_gpu.value * candidate.system.gpus
    binding = next((ends.binding for ends in found.ends.values() if ends.binding is not None), None)
    value = asked.worth.of(candidate.system, total_rps)
    return Scored(candidate.algorithm, candidate.system, per_gpu, value, binding, at_least)


def _is_tried(found: Rate, tried_rps: Sequence[tuple[float | None, float | None]]) -> bool:
    """Whether an interval is inside of the rates that were tried: one at or below it was carried, and one at or above
    it was not."""
    if found.low is None or found.high is None:
        return True
    carried = [low for low, _ in tried_rps if low is not None]
    missed = [high for _, high in tried_rps if high is not None]
    return min(carried, default=0.0) <= found.low and found.high <= max(missed, default=0.0)


def told(candidate: Candidate, found: Found, left: int) -> str:
    """One line about a candidate."""
    rates = ", ".join(f"{ends.low_rps:.4g}" for ends in found.ends.values())
    return f"{candidate.algorithm} {candidate.system.name}: {rates} req/s per GPU ({left} more)"

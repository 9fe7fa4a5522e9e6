"""Runs a placement search: every candidate is one call to a pool; those already stored are not searched again."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from harness.errors import Interrupted, UsageError
from harness.experiments.place.answer import answer
from harness.experiments.place.combine import Scored
from harness.experiments.place.place_json import PlaceAnswer
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
    """A system that an algorithm considers."""

    algorithm: Algorithm
    system: System

    @property
    def key(self) -> str:
        """Its name in the folder of a search, unique there."""
        return f"{self.algorithm} {self.system.hardware} {self.system.name} x{self.system.cross}"


def candidates(options: PlaceOptions) -> tuple[list[Candidate], list[Skipped]]:
    """All systems to search, the largest first, so that no core waits for the last one; and what is left out."""
    found: dict[str, Candidate] = {}
    skipped: dict[Skipped, None] = {}
    for algorithm in options.algorithms:
        for hardware in options.hardware:
            kind = KINDS[algorithm][0]
            here = space(
                options.spec.model or "opt-13b", hardware, options.cluster, partial(options.refused, kind, hardware)
            )
            skipped.update(dict.fromkeys(here.skipped))
            each = (Candidate(algorithm, system) for system in here.of(algorithm, options.cluster))
            found.update((candidate.key, candidate) for candidate in each)
    return sorted(found.values(), key=lambda c: -c.system.gpus), [*skipped]


def run_placement(
    options: PlaceOptions, store: Store, processes: pool.Pool, tell: Callable[[str], None] = lambda _: None
) -> PlaceAnswer:
    """Search every candidate and return the content of place.json. Ctrl-C ends it with the results so far.

    Raises Interrupted where no candidate was finished, UsageError where there is none.
    """
    begun_s = time.monotonic()
    every, skipped = candidates(options)
    if not every:
        reasons = (skip.reason for skip in reversed(skipped) if "divide" not in skip.reason)
        raise UsageError(
            f"There is nothing to place: {next(reasons, 'no shape fits the cluster')}. "
            "Give more GPUs, another --model or --hardware, or a --latency for it."
        )
    sent = traffic(options.spec, options.seeds, released=options.released)
    with store.opened(options):
        by_key = {candidate.key: candidate for candidate in every}
        missing = [_task(options, sent, candidate) for key, candidate in by_key.items() if key not in store.found]
        try:
            for task, found in processes.map(searched, missing):
                store.add(task.key, found)
                tell(format_candidate(by_key[task.key], found, len(every) - len(store.found)))
        except KeyboardInterrupt:
            pass  # the answer reports what is left
        known = [(candidate, store.found[candidate.key]) for candidate in every if candidate.key in store.found]
        if not known:
            raise Interrupted("interrupted before the first candidate was finished; rerun the command to start again.")
        info = answer(
            options, [scored(options, candidate, found) for candidate, found in known], skipped,
            [found for _, found in known], time.monotonic() - begun_s, left=len(every) - len(known),
        )  # fmt: skip
        store.finish(info)
    return info


def _task(options: PlaceOptions, sent: Traffic, candidate: Candidate) -> Task:
    kind = candidate.system.kind
    return Task(
        candidate.key, candidate.system, options.of(candidate.system), options.bounds(kind), options.wanted(kind),
        sent, options.seeds, options.top_rps, options.width_rps, options.most_requests,
    )  # fmt: skip


def scored(options: PlaceOptions, candidate: Candidate, found: Found) -> Scored:
    """A candidate with its rate and its value of the objective."""
    by_seed = {seed: ends.low_rps for seed, ends in found.ends.items()}
    width = max(ends.high_rps - ends.low_rps for ends in found.ends.values())
    per_gpu = rate(by_seed, width, first=options.released)
    unlimited = (None,) if options.released else (None, TOO_SHORT)  # the released planner takes its rate as it is
    at_least = any(ends.binding in unlimited for ends in found.ends.values())
    if at_least or not _is_tried(per_gpu, [ends.tried_rps for ends in found.ends.values()]):
        per_gpu = replace(per_gpu, low=None, high=None)
    total_rps = per_gpu.value * candidate.system.gpus
    binding = next((ends.binding for ends in found.ends.values() if ends.binding is not None), None)
    value = options.objective.of(candidate.system, total_rps)
    return Scored(candidate.algorithm, candidate.system, per_gpu, value, binding, at_least)


def _is_tried(found: Rate, tried_rps: Sequence[tuple[float | None, float | None]]) -> bool:
    """Whether an interval is inside of the rates that were tried: one at or below it was sustained, and one at or above
    it was not."""
    if found.low is None or found.high is None:
        return True
    sustained = [low for low, _ in tried_rps if low is not None]
    missed = [high for _, high in tried_rps if high is not None]
    return min(sustained, default=0.0) <= found.low and found.high <= max(missed, default=0.0)


def format_candidate(candidate: Candidate, found: Found, left: int) -> str:
    """One line of progress about a candidate."""
    rates = ", ".join(f"{ends.low_rps:.4g}" for ends in found.ends.values())
    return f"{candidate.algorithm} {candidate.system.name}: {rates} req/s per GPU ({left} more)"

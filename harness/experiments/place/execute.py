"""Runs a placement search: every question is one call to a pool, and those already answered are not requested again."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from harness.errors import Interrupted, UsageError
from harness.experiments.capacity.at_rate import Attained
from harness.experiments.place.answer import answer
from harness.experiments.place.cheapest import CHOICES, Cheapest, cheapest
from harness.experiments.place.combine import Scored, Unit, ordered, units
from harness.experiments.place.place_json import PlaceAnswer
from harness.experiments.place.questions import Capacity, Fewest, Question, Timed, capacity, rough, timed
from harness.experiments.place.search import rate
from harness.experiments.place.settings import PlaceOptions
from harness.experiments.place.store import Store
from harness.experiments.place.systems import Algorithm, Deployment, Role, Skipped, space

if TYPE_CHECKING:
    from harness.experiments import pool

ROLES: dict[Algorithm, Role] = {"vllm++": "mixed", "mii": "mixed", "low": "prefill", "high": "prefill"}
SEARCHED = 2 * CHOICES
"""Units whose capacity is searched: the best by the rough rates of their parts."""

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A system that an algorithm considers."""

    algorithm: Algorithm
    system: Deployment

    @property
    def key(self) -> str:
        """Its name in the folder of a search, unique there."""
        return f"{self.algorithm} {self.system.key}"


@dataclass(slots=True)
class PlaceResult:
    """What was found so far. `scored` are candidates with rates per GPU, `units` what was built of them; `sustained`
    are the capacities of the best units, the best first; `cheapest` is what a search for a requested rate found, and
    `timed` what one for the lowest latency did, the fastest first."""

    skipped: list[Skipped]
    scored: list[Scored] = field(default_factory=list)
    units: dict[Algorithm, list[Unit]] = field(default_factory=dict)
    sustained: list[tuple[Deployment, Capacity]] = field(default_factory=list)
    cheapest: Cheapest = field(default_factory=Cheapest)
    timed: list[tuple[Deployment, Timed]] = field(default_factory=list)
    interrupted: bool = False


def candidates(options: PlaceOptions) -> tuple[list[Candidate], list[Skipped]]:
    """All systems to search, the largest first, so that no core waits for the last one; and what is left out."""
    found: dict[str, Candidate] = {}
    skipped: dict[Skipped, None] = {}
    for algorithm in options.algorithms:
        for hardware in options.hardware:
            refused = partial(options.refused, ROLES[algorithm], hardware)
            here = space(options.spec.model or "opt-13b", hardware, options.cluster, refused)
            skipped.update(dict.fromkeys(here.skipped))
            each = (Candidate(algorithm, system) for system in here.of(algorithm, options.cluster))
            found.update((candidate.key, candidate) for candidate in each)
    return sorted(found.values(), key=lambda c: -c.system.gpus), [*skipped]


def run_placement(
    options: PlaceOptions, store: Store, processes: pool.Pool, tell: Callable[[str], None] = lambda _: None
) -> PlaceAnswer:
    """Search, and return the content of place.json. Ctrl-C ends it with the results so far.

    Raises Interrupted where nothing was found, UsageError where there is nothing to search.
    """
    begun_s = time.monotonic()
    every, skipped = candidates(options)
    if not every:
        reasons = (skip.reason for skip in reversed(skipped) if "divide" not in skip.reason)
        raise UsageError(
            f"There is nothing to place: {next(reasons, 'no shape fits the cluster')}. "
            "Give more GPUs, another --model or --hardware, or a --latency for it."
        )
    result = PlaceResult(skipped)
    search = _per_gpu if options.rate_rps is None else _at_rate
    search = _fastest if options.objective.name == "latency" else search
    with store.opened(options):
        try:
            search(_Asker(options, store, processes, tell), every, result)
        except KeyboardInterrupt:
            result.interrupted = True
        if result.interrupted and not store.known:
            raise Interrupted("interrupted before the first candidate was finished; rerun the command to start again.")
        info = answer(options, result, store.known.values(), time.monotonic() - begun_s)
        store.finish(info)
    return info


@dataclass(frozen=True, slots=True)
class _Asker:
    """Asks in the processes of a pool, and stores what they answer."""

    options: PlaceOptions
    store: Store
    processes: pool.Pool
    tell: Callable[[str], None]

    def __call__(
        self, call: Callable[[Question], Answer], deployments: Sequence[Deployment], most: Sequence[int] = ()
    ) -> list[Answer]:
        keys = [f"{call.__name__} {one.key}" for one in deployments]
        missing = [
            Question(key, self.options, one, count)
            for key, one, count in zip(keys, deployments, most or [1] * len(keys), strict=True)
            if key not in self.store.known
        ]
        for question, found in self.processes.map(call, missing):
            self.store.add(question.key, found)
            self.tell(f"{question.deployment.name} on {question.deployment.hardware}: {_text(self.options, found)}")
        return [self.store.known[key] for key in keys]


def _text(options: PlaceOptions, found: object) -> str:
    """What a question has found, for a line of progress."""
    if isinstance(found, Fewest):
        return "too many would be needed" if found.count is None else f"{found.count} or more of them"
    if isinstance(found, Attained):
        side = {True: "meets the goal", False: "misses the goal", None: "undecided"}[found.meets]
        return f"{found.share:.1%} at {options.rate_rps:g} req/s ({side}; {found.requests:,} requests)"
    if isinstance(found, Timed):
        return f"TPOT {found.tpot_s * 1e3:.3g} ms, {found.share:.1%} meet the SLO ({found.requests:,} requests)"
    assert isinstance(found, Capacity)
    return f"{found.rate_rps:.3g} req/s ({found.requests:,} requests)"


def _at_rate(ask: _Asker, every: Sequence[Candidate], result: PlaceResult) -> None:
    """The cheapest deployment for the requested rate."""
    groups = {Deployment((group,)): None for candidate in every for group in candidate.system.groups}
    cheapest(ask.options, [*groups], ask, result.cheapest, result.skipped)


def _fastest(ask: _Asker, every: Sequence[Candidate], result: PlaceResult) -> None:
    """The colocated deployment with the lowest TPOT at the requested rate: each on all GPUs of the cluster."""
    gpus = ask.options.cluster.gpus
    whole = [one.system.counted(gpus // one.system.gpus) for one in every if gpus % one.system.gpus == 0]
    held = [one for one in dict.fromkeys(whole) if ask.options.cluster.holds(one)]
    result.timed = [*zip(held, ask(timed, held), strict=True)]
    result.timed.sort(key=lambda one: (not one[1].meets, one[1].tpot_s, one[0].key))


def _per_gpu(ask: _Asker, every: Sequence[Candidate], result: PlaceResult) -> None:
    """The units that carry most per GPU, money or power: what one replica sustains roughly, then whole units."""
    options, seed = ask.options, ask.options.seeds[0]
    for candidate, found in zip(every, ask(rough, [candidate.system for candidate in every]), strict=True):
        per_gpu = rate({seed: found.rate_rps / candidate.system.gpus}, 0.0)
        value = options.objective.of(candidate.system, found.rate_rps)
        result.scored.append(Scored(candidate.algorithm, candidate.system, per_gpu, value, found.binding))
    result.units = _units(options, result.scored)
    best = ordered([unit for some in result.units.values() for unit in some])
    chosen = [*dict.fromkeys(unit.deployment for unit in best)][:SEARCHED]
    for deployment, found in zip(chosen, ask(capacity, chosen), strict=True):
        result.sustained.append((deployment, found))
    result.sustained.sort(key=lambda one: (-options.objective.of(one[0], one[1].rate_rps), one[0].gpus, one[0].key))


def _units(options: PlaceOptions, found: Sequence[Scored]) -> dict[Algorithm, list[Unit]]:
    return {name: units(name, found, options.objective, options.cluster, options.ratio) for name in options.algorithms}

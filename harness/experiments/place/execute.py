"""Runs a placement search: every question is one call to a pool, and those already answered are not requested again."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from harness.catalog import Shape
from harness.errors import Interrupted, UsageError
from harness.experiments.place.answer import answer
from harness.experiments.place.bound import replica_rps, tokens_of, units
from harness.experiments.place.cheapest import Cheapest
from harness.experiments.place.place_json import PlaceAnswer, PlaceSkipped
from harness.experiments.place.questions import Capacity, Judged, Question, capacity, judged, rough
from harness.experiments.place.settings import PlaceOptions
from harness.experiments.place.store import Store
from harness.experiments.place.systems import ROLES_OF, Deployment, Group, shapes_in

if TYPE_CHECKING:
    from harness.experiments import pool
    from harness.experiments.place.bound import Tokens

ROUGHLY, SEARCHED = 40, 6
"""Units whose rate is estimated by short runs, and those of them whose capacity is searched: the best by their bounds,
and the best by these rates."""

Answer = TypeVar("Answer")


@dataclass(slots=True)
class PlaceResult:
    """What was found so far: `rates` bound what single replicas serve. `cheapest` is the search for a requested rate;
    `rates_of_units` and `sustained` are rough rates and capacities of units, the best first."""

    tokens: Tokens
    rates: dict[Group, float]
    skipped: list[PlaceSkipped]
    cheapest: Cheapest | None = None
    rates_of_units: list[tuple[Deployment, Capacity]] = field(default_factory=list)
    sustained: list[tuple[Deployment, Capacity]] = field(default_factory=list)
    interrupted: bool = False
    out_of_time: bool = False


def run_placement(
    options: PlaceOptions, store: Store, processes: pool.Pool, tell: Callable[[str], None] = lambda _: None
) -> PlaceAnswer:
    """Search, and return the content of place.json. Ctrl-C, or the end of the budget, ends it with the results so far.

    Raises Interrupted where nothing was found, UsageError where there is nothing to search.
    """
    begun_s = time.monotonic()
    tokens = tokens_of(options.spec, options.slo.goal)
    result = PlaceResult(tokens, *_replicas(options, tokens))
    search = _per_gpu if options.rate_rps is None else _at_rate
    with store.opened(options):
        asker = _Asker(options, store, processes, tell, begun_s + options.budget_s)
        try:
            search(asker, result)
        except KeyboardInterrupt:
            result.interrupted = True
            asker.ends_s = -math.inf
            if result.cheapest is None:
                search(asker, result)  # of what is stored
        if result.interrupted and not store.known:
            raise Interrupted("interrupted before the first candidate was finished; rerun the command to start again.")
        result.out_of_time = asker.out_of_time
        info = answer(options, result, store.known.values(), time.monotonic() - begun_s)
        store.finish(info)
    return info


def _replicas(options: PlaceOptions, tokens: Tokens) -> tuple[dict[Group, float], list[PlaceSkipped]]:
    """What one replica of each role, shape and kind of GPU serves at most, and the shapes that are left out.

    Raises UsageError where none is left.
    """
    roles = [*dict.fromkeys(role for algorithm in options.algorithms for role in ROLES_OF[algorithm])]
    rates: dict[Group, float] = {}
    skipped: list[PlaceSkipped] = []
    fits = False
    for hardware in options.hardware:
        kv_tokens, unfit = shapes_in(
            options.cluster, options.spec.model or "opt-13b", Group(roles[0], hardware, Shape()), options.kv_tokens
        )
        skipped += unfit
        fits = fits or bool(kv_tokens)
        for shape, tokens_of_kv in kv_tokens.items():
            model = options.step_times(hardware, shape)
            for role in roles:
                group = Group(role, hardware, shape)
                rate_rps = replica_rps(options, group, model, tokens_of_kv, tokens)
                if rate_rps > 0:
                    rates[group] = rate_rps
                else:
                    skipped.append(PlaceSkipped(hardware, group.name, "its steps are longer than the SLO allows"))
    if not fits:
        reasons = (skip.reason for skip in reversed(skipped) if "divide" not in skip.reason)
        raise UsageError(
            f"There is nothing to place: {next(reasons, 'no shape fits the cluster')}. "
            "Give more GPUs, another --model or --hardware, or a --latency for it."
        )
    return rates, skipped


@dataclass(slots=True)
class _Asker:
    """Asks in the processes of a pool, and stores what they answer; what has not ended at `ends_s` is cut."""

    options: PlaceOptions
    store: Store
    processes: pool.Pool
    tell: Callable[[str], None]
    ends_s: float
    out_of_time: bool = False

    def stream(
        self, call: Callable[[Question], Answer], questions: Iterator[Question]
    ) -> Iterator[tuple[Question, Answer]]:
        """Each question with its answer, as they come."""
        if time.monotonic() > self.ends_s:
            self.out_of_time = True
            return
        for question, reply in self.processes.map(call, self._in_time(questions), self.ends_s):
            self.store.add(question.key, reply)
            yield question, reply
        self.out_of_time = self.out_of_time or time.monotonic() > self.ends_s

    def all(self, call: Callable[[Question], Capacity], units: Sequence[Deployment]) -> dict[Deployment, Capacity]:
        """The answers of several units, in their order, as many as there is time for."""
        questions = [Question(f"{call.__name__} {one.key}", self.options, one) for one in units]
        for question, unit_capacity in self.stream(call, (one for one in questions if one.key not in self.store.known)):
            rate = f"{unit_capacity.rate_rps:.3g} req/s ({unit_capacity.requests:,} requests)"
            self.tell(f"{question.deployment.name} on {question.deployment.hardware}: {rate}")
        answers = self.store.known
        return {question.deployment: answers[question.key] for question in questions if question.key in answers}

    def _in_time(self, questions: Iterator[Question]) -> Iterator[Question]:
        for question in questions:
            if time.monotonic() > self.ends_s:
                self.out_of_time = True
                return
            yield question


def _at_rate(ask: _Asker, result: PlaceResult) -> None:
    """The cheapest deployment for the requested rate."""
    search, answers = Cheapest(ask.options, result.rates), ask.store.known
    result.cheapest = search

    def questions() -> Iterator[Question]:
        while (chosen := search.next()) is not None:
            deployment, rerun = chosen
            key = f"{'again' if rerun else 'judged'} {deployment.key}"
            if key in answers:
                search.learn(deployment, answers[key], again=rerun)
            else:
                yield Question(key, ask.options, deployment, rerun)

    more = True
    while more:  # what is left while others are being run may be more once they are over
        more = False
        for question, outcome in ask.stream(judged, questions()):
            more = True
            search.learn(question.deployment, outcome, again=question.again)
            ask.tell(_progress(search, question.deployment, outcome))


def _progress(search: Cheapest, deployment: Deployment, found: Judged) -> str:
    """What was run, and what is known now: the cheapest that meets, and what is being tried."""
    side = {True: "meets", False: "misses", None: "not decided"}[found.meets]
    met, trying = search.met, [f"{unit.gpus} x {unit.hardware}" for unit in search.under_way]
    best = f"{met[0].gpus} x {met[0].hardware} meets ({search.run[met[0]].share:.1%})" if met else "none meets yet"
    tried = f"; trying {', '.join(trying)}" if trying else ""
    return f"{deployment.name} on {deployment.gpus} x {deployment.hardware}: {found.share:.1%}, {side} | {best}{tried}"


def _per_gpu(ask: _Asker, result: PlaceResult) -> None:
    """The units that carry most per GPU, money or power, by their bounds: short runs, and the capacity of the best."""

    def value(unit: tuple[Deployment, Capacity]) -> tuple[float, int, str]:
        return -ask.options.objective.of(unit[0], unit[1].rate_rps), unit[0].gpus, unit[0].key

    best = units(ask.options, result.rates)[:ROUGHLY]
    result.rates_of_units = sorted(ask.all(rough, best).items(), key=value)
    chosen = [unit for unit, _ in result.rates_of_units[:SEARCHED]]
    result.sustained = sorted(ask.all(capacity, chosen).items(), key=value)

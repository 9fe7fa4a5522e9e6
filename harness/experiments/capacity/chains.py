"""Runs the chains of a search, in this process or in several, and turns what was found into its result."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Protocol

from harness.api import Elastic
from harness.errors import Crashed, UsageError
from harness.experiments import pool
from harness.experiments.capacity.chain import Chain, ChainRequest, Observed, unloaded
from harness.experiments.capacity.conditions import MAX_REQUESTS, Condition, missed_unloaded
from harness.experiments.capacity.search_spec import Bracket, SearchResult, SearchSpec, Side
from harness.experiments.capacity.steady import CHAINS, UNSTABLE, Found, SteadySearch, SteadySpec, growth, sample
from harness.experiments.capacity.trials import of_chain
from harness.metrics.objective import JOINT, ShareKey
from harness.options import RunSpec
from harness.spec import seconds
from harness.stats.curves import Curve, fit

if TYPE_CHECKING:
    from harness.api import Slo
    from harness.experiments.capacity.chain import Unloaded
    from harness.experiments.capacity.conditions import Share
    from harness.experiments.capacity.execute import Setup, TrialRunner

KEPT_ALIVE = 48
"""Chains that stay in memory to be made longer: those of a pair of rates and of the final estimate."""
ALONE = (300, 3000)
"""Requests one by one; the second number where the first does not tell whether the goal can be met at all."""
SURE = 3.3
SETTLES = 20
"""`Loaded.settles_s` is so many times what the rate of the arrivals remembers."""
NEAR = math.log(1.25)
"""Rates within this of the capacity, in log rate, have a say in the curves of single bounds."""


class Observers(Protocol):
    """Observes chains."""

    def __call__(self, requests: Sequence[ChainRequest], tell: Callable[[str], None]) -> Iterator[Observed]:
        """Each as soon as it is done, in any order."""
        ...


@dataclass(slots=True)
class Here:
    """Chains in this process."""

    spec: RunSpec
    own_rps: float
    slo: Slo
    _alive: OrderedDict[tuple[int, float, float, float], Chain] = field(default_factory=OrderedDict)

    def __call__(self, requests: Sequence[ChainRequest], tell: Callable[[str], None]) -> Iterator[Observed]:
        """One after the other."""
        for request in requests:
            chain = self._alive.pop(request.chain, None) or Chain(self.spec, self.own_rps, self.slo, request)
            self._alive[request.chain] = chain
            while len(self._alive) > KEPT_ALIVE:
                self._alive.popitem(last=False)
            yield chain.observe(request, tell)


class Elsewhere:
    """Chains in several processes; a seed stays with its process, where the chain is alive."""

    def __init__(self, here: Here, workers: int) -> None:
        context = pool.forks()
        self._pipes: list[Connection] = []
        self._held, self._lifeline = context.Pipe(duplex=False)
        with pool.without_main():
            for _ in range(workers):
                ours, theirs = context.Pipe()
                context.Process(
                    target=serve, args=(self._held, theirs, Here(here.spec, here.own_rps, here.slo)), daemon=True
                ).start()
                theirs.close()
                self._pipes.append(ours)

    def __call__(self, requests: Sequence[ChainRequest], tell: Callable[[str], None]) -> Iterator[Observed]:
        """As they come."""
        for request in requests:
            self._pipes[request.seed % len(self._pipes)].send(request)
        left = len(requests)
        while left:
            for pipe in wait(self._pipes):
                assert isinstance(pipe, Connection)
                try:
                    found = pipe.recv()
                except EOFError:
                    raise Crashed(
                        "a worker process was killed, most likely for want of memory; take fewer --workers."
                    ) from None
                if isinstance(found, Observed):
                    left -= 1
                    yield found
                elif isinstance(found, str):
                    tell(found)
                else:
                    raise found

    def close(self) -> None:
        """The processes end with their lifeline, whatever chain they are in."""
        for pipe in (self._lifeline, self._held, *self._pipes):
            pipe.close()


def serve(lifeline: Connection, pipe: Connection, here: Here) -> None:
    """What a process does: observes the chains that it is sent, until the other end of a pipe is gone."""
    pool.begin(lifeline)
    try:
        while True:
            for found in here([pipe.recv()], pipe.send):
                pipe.send(found)
    except (EOFError, OSError):
        return
    except Exception as error:  # noqa: BLE001  # raised again where the chain was wanted
        pipe.send(error)


@contextmanager
def observers(here: Here, workers: int | None) -> Iterator[Observers]:
    """As many processes as are wanted, or as there are cores; this one alone where that is one."""
    count = workers or pool.cores()
    if count == 1:
        yield here
        return
    there = Elsewhere(here, count)
    try:
        yield there
    finally:
        there.close()


def search_chains(setup: Setup, goal: float, runner: TrialRunner, observe: Observers) -> SearchResult:
    """The search for one goal; Ctrl-C, a spent budget and the limit of requests end it with the results so far."""
    wanted = setup.search_spec(goal).wanted
    try:
        alone = unloaded(setup.spec, setup.slo, ALONE[0])
        if (side := unloaded_side(alone, wanted)) is None:
            alone = unloaded(setup.spec, setup.slo, ALONE[1])
            side = unloaded_side(alone, wanted)
    except KeyboardInterrupt:
        runner.budget.interrupted = True
        return SearchResult(None, resolved=False)
    if side is not True:
        return at_the_edge(alone, setup.search_spec(goal), unreachable=side is False)
    search = SteadySearch(steady_spec(setup, goal), alone)
    steps, made = search.steps(), None
    while True:
        try:
            requests = steps.send(made)  # type: ignore[arg-type]  # the first word to a generator is None
        except StopIteration as end:
            return result(setup, goal, end.value)
        made = _observed(requests, runner, observe)


def steady_spec(setup: Setup, goal: float) -> SteadySpec:
    """The search for one goal."""
    settings, backend = setup.settings, setup.planned.backend
    return SteadySpec(
        wanted=setup.search_spec(goal).wanted,
        goal=goal,
        tolerance=settings.tolerance_of(setup.clock),
        limit=setup.settings.max_requests or MAX_REQUESTS,
        first_seed=setup.spec.seed,
        chains=min(CHAINS, settings.max_seeds),
        memory_s=setup.planned.loaded.settles_s / SETTLES,
        patience_s=patience_s(setup.slo),
        cut_s=None if setup.spec.warmup in (None, "mser5") else _cut_s(setup.spec.warmup),
        settles_s=backend.settles_s if isinstance(backend, Elastic) else 0.0,
        from_rps=settings.from_rps,
        at_rps=settings.at_rps,
    )


def patience_s(slo: Slo) -> float:
    """How long an open request is waited for beyond what it takes without load: it has missed then."""
    return sum(
        b.limit * (2 if b.metric == "ttft" else 1) for b in slo.bounds if b.metric not in ("tpot", "itl", "itl_p99")
    )


def _cut_s(warmup: str) -> float:
    if warmup == "none":
        return 0.0
    if warmup.isdecimal():
        raise UsageError("Chains have no fixed number of requests; give --warmup as a time, such as 30s, or none.")
    return seconds(warmup, "--warmup")


def _observed(requests: list[ChainRequest], runner: TrialRunner, observe: Observers) -> list[Observed]:
    """The chains in the order in which they are wanted; fewer where the budget ends."""
    ledger, budget = runner.ledger, runner.budget
    found = {request.chain: known for request in requests if (known := ledger.chain(request)) is not None}
    missing = [request for request in requests if request.chain not in found]
    begun_s, new = time.monotonic(), []
    try:
        if missing and budget.allows:
            for one in observe(missing, runner.tell):
                new.append(of_chain(one, (time.monotonic() - begun_s) / len(missing)))
                found[one.request.chain] = one
                if not budget.allows:
                    break
    except KeyboardInterrupt:
        budget.interrupted = True
    ledger.add(*new)
    made = [found[request.chain] for request in requests if request.chain in found]
    if new and len(made) == len(requests):
        met, of = (
            sum(int(each[JOINT].sum()) for each in part) for part in zip(*((m.met, m.of) for m in made), strict=True)
        )
        runner.tell(
            f"{requests[0].rate_rps:g} req/s, {len(made)} {'chain' if len(made) == 1 else 'chains'} of "
            f"{requests[0].until_s:,.0f} s: {met / max(1, of):.2%} met the SLO ({ledger.requests:,} requests so far)"
        )
    return made


def unloaded_side(alone: Unloaded, wanted: Sequence[Condition]) -> bool | None:
    """Whether the goals are surely met without load, or one is surely missed: such requests are independent."""
    away = []
    for condition, share in _shares(alone, wanted):
        error = math.sqrt(max(condition.goal * (1 - condition.goal), 1e-4) / max(1, share.of))
        away.append((share.met / max(1, share.of) - condition.goal) / error)
    return False if min(away) < -SURE else True if min(away) > 1 else None


def at_the_edge(alone: Unloaded, spec: SearchSpec, *, unreachable: bool) -> SearchResult:
    """The result where requests miss the SLO without load, or where it is not sure whether they do."""
    if not unreachable:
        attained = ", ".join(f"{s.met / max(1, s.of):.1%} of {s.key}" for _, s in _shares(alone, spec.wanted))
        why = (
            f"even without load attainment is hardly the goal ({attained}; goal: {100 * spec.goal:.4g}%), so whether "
            "any rate is low enough is not decided; set a slightly higher or lower goal."
        )
        return SearchResult(None, resolved=False, why=why)
    binding, share = min(_shares(alone, spec.bounds), key=lambda pair: pair[1].met / max(1, pair[1].of) - pair[0].goal)
    return SearchResult(None, resolved=True, unreachable=True, why=missed_unloaded(share, binding.goal))


def _shares(alone: Unloaded, wanted: Sequence[Condition]) -> list[tuple[Condition, Share]]:
    found = {share.key: share for share in alone.shares}
    return [(condition, found[condition.key]) for condition in wanted]


def result(setup: Setup, goal: float, found: Found) -> SearchResult:
    """What a search found, with the curve of each bound by itself."""
    tried = found.tried
    low, high = (_side(found, rate_rps) for rate_rps in found.bracket)
    rates = sorted(tried)
    bracket = Bracket(low, high, rates[0] if rates else None, rates[-1] if rates else None)
    bounds: dict[ShareKey, Curve] = {}
    each: dict[ShareKey, Bracket] = {}
    if found.estimate is not None:
        for condition in setup.search_spec(goal).bounds:
            near = [r for r in rates if abs(math.log(r / found.estimate.rate_rps)) < NEAR]
            samples = [sample(tried[rate_rps].chains, condition) for rate_rps in near]
            sizes = [one.requests * len(tried[r].chains) for one, r in zip(samples, near, strict=True)]
            curve = fit(near, [one.share for one in samples], sizes)
            if curve is not None:
                bounds[condition.key] = curve
                each[condition.key] = Bracket(None, None, min(near), max(near))
    return SearchResult(
        found.estimate, found.resolved, why=None if found.resolved else found.why, bounds=bounds, bracket=bracket,
        each=each, needs=None if found.resolved else found.needs,
    )  # fmt: skip


def _side(found: Found, rate_rps: float | None) -> Side | None:
    if rate_rps is None:
        return None
    chains = found.tried[rate_rps].chains
    return Side(rate_rps, len(chains), sum(int(c.of[JOINT].sum()) for c in chains), growth(chains) > UNSTABLE)

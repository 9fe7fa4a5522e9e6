"""What a search found: the content of capacity.json."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from itertools import groupby
from typing import TYPE_CHECKING

from harness.api import RunWarning, Slo
from harness.data import codec
from harness.errors import BackendError, NotValid
from harness.experiments.capacity.capacity_json import (
    BoundCapacity,
    CapacityAnswer,
    GoalCapacity,
    RateBracket,
    RatePoint,
    RateVerdict,
    SearchCost,
)
from harness.experiments.capacity.conditions import MAX_REQUESTS, exit_code
from harness.experiments.capacity.search_spec import CONFIDENCE, Bracket, Estimate, SearchResult, SearchSpec, sustained
from harness.metrics.objective import JOINT, ShareKey
from harness.stats.crossing import falling
from harness.validity import step_times

if TYPE_CHECKING:
    from harness.experiments.capacity.execute import Setup
    from harness.experiments.capacity.trials import Ledger, Trial


INTERRUPTED = "the search was interrupted; rerun the command with the same --out to resume."
UNTRIED = "the curve through the trials crosses the goal outside of the rates that were tried."
MOST_NEEDED = 50
"""Times what was spent, beyond which more of it is no advice."""


def answer(
    setup: Setup,
    found: Sequence[tuple[float, SearchResult]],
    ledger: Ledger,
    wall_s: float,
    *,
    interrupted: bool = False,
    failed: BackendError | NotValid | None = None,
    invalid: Sequence[str] = (),
    warnings: Sequence[RunWarning] = (),
) -> CapacityAnswer:
    """The whole answer; no number in it is infinite or NaN. `invalid`: why trials were thrown away, `failed`: the one
    that ended the search."""
    from harness.experiments.capacity.store import search_options

    if interrupted or failed is not None:
        why = INTERRUPTED if failed is None else str(failed)
        found = [
            (goal, search if search.resolved else replace(search, why=why, ended_early=True)) for goal, search in found
        ]
    backend = setup.planned.backend.describe()
    gpus = backend.get("gpus")
    key = _shown(setup.slo, found)
    answers = [_goal(setup, goal, search, gpus, ledger) for goal, search in found]
    states, verdicts = [a.state for a in answers], [a.at.verdict for a in answers if a.at is not None]
    return codec.of(CapacityAnswer, {
        **search_options(setup),
        "state": "interrupted" if interrupted else "finished",
        "exit_code": exit_code(states, verdicts) if failed is None else failed.exit_code,
        "gpus": gpus,
        "step_times": step_times.of_backend(backend),
        "confidence": CONFIDENCE,
        "tolerance": setup.settings.tolerance_of(setup.clock),
        "one_traffic": setup.recorded,
        "answers": answers,
        "invalid": list(invalid),
        "warnings": [asdict(warning) for warning in warnings],
        "curve_of": str(key),
        "curve": curve(ledger.whole, key),
        "cost": _cost(ledger, wall_s),
        **({} if setup.planned.virtual else {"output_tokens": _output_tokens(ledger.whole)}),
    })  # fmt: skip


def _output_tokens(trials: Sequence[Trial]) -> dict[str, float]:
    """Seed -> output tokens per request over its whole trials; a simulator always answers what is requested."""
    by_seed: dict[int, list[float]] = {}
    for tried in trials:
        if tried.output_tokens is not None:
            by_seed.setdefault(tried.key.seed, []).append(tried.output_tokens)
    return {str(seed): math.fsum(values) / len(values) for seed, values in sorted(by_seed.items())}


def _goal(setup: Setup, goal: float, found: SearchResult, gpus: object, ledger: Ledger) -> GoalCapacity:
    estimate = found.answered
    state = "unreachable" if found.unreachable else "resolved" if found.resolved and estimate else "unresolved"
    rate_rps = 0.0 if found.unreachable else None if estimate is None else estimate.rate_rps
    per_gpu = rate_rps / gpus if rate_rps is not None and isinstance(gpus, int) and gpus > 0 else None
    half = None if estimate is None or math.isinf(estimate.half_width) else estimate.half_width
    at = None if setup.settings.at_rps is None else _at(setup.settings.at_rps, found, over_horizon=setup.over_horizon)
    untried = found.resolved and state == "unresolved"  # the rates tried may have decided --at all the same
    decided = at is not None and at.verdict != "unresolved"
    binding = None if estimate is None else binding_of(estimate, found)
    if estimate is None and not setup.over_horizon and found.bracket.high is not None:
        binding = _missed_most(setup.search_spec(goal), ledger, found.bracket.high.rate_rps)
    alike = not setup.over_horizon and (setup.fixed or setup.recorded or setup.planned.virtual)  # all trials
    return GoalCapacity(
        goal=goal,
        state=state,
        capacity_rps=rate_rps,
        low_rps=None if estimate is None else estimate.low_rps,
        high_rps=None if estimate is None else estimate.high_rps,
        half_width=half,
        bracket=None if found.unreachable else _bracket(found.bracket),
        requests=setup.requests if alike else None,
        seeds=0 if estimate is None else len(estimate.capacity_by_seed),
        per_gpu_rps=per_gpu,
        binding=None if binding is None else str(binding),
        bounds=[] if estimate is None else list(_bounds(setup, goal, found)),
        why=(None if decided else UNTRIED) if untried else found.why,
        needs=_needs(setup, found, half),
        knees={} if estimate is None else {str(seed): knee for seed, knee in estimate.capacity_by_seed.items()},
        at=at,
        horizon=found.horizon,
        near=found.near,
        stable_rps=found.stable_rps,
        full=found.full,
    )


def binding_of(estimate: Estimate, found: SearchResult) -> ShareKey | None:
    """The condition that binds: of a joint one the bound that fewest requests keep there, None where none is known."""
    if estimate.binding != JOINT:
        return estimate.binding
    return min(found.bounds, key=found.bounds.__getitem__, default=None)


def _missed_most(spec: SearchSpec, ledger: Ledger, rate_rps: float) -> ShareKey | None:
    """The bound that fewest requests met, against its goal, at a rate not sustained; None where all were met."""
    margins = {
        bound.key: share.met / max(1, share.of) - bound.goal
        for tried in ledger
        if tried.key.rate_rps == rate_rps
        for bound in spec.bounds
        for share in (tried.share(bound.key),)
    }
    worst = min(margins, key=margins.__getitem__, default=None)
    return worst if worst is not None and margins[worst] < 0 else None


def _bracket(bracket: Bracket) -> RateBracket | None:
    """The highest rate that was sustained and the lowest that was not, each None where no trial lies there."""
    low, high = ({} if side is None else asdict(side) for side in (bracket.low, bracket.high))
    if not low and not high:
        return None
    return RateBracket(**{f"low_{key}": value for key, value in low.items()},
                       **{f"high_{key}": value for key, value in high.items()})  # fmt: skip


def _bounds(setup: Setup, goal: float, found: SearchResult) -> Iterable[BoundCapacity]:
    for condition, bound in zip(setup.search_spec(goal).bounds, setup.slo.bounds, strict=True):
        met = found.bounds.get(condition.key) if bound.percentile is None else None  # of gaps, not of requests
        yield BoundCapacity(text=str(condition.key), goal=condition.goal, attainment=met)


def _at(rate_rps: float, found: SearchResult, *, over_horizon: bool) -> RateVerdict:
    """Whether the system sustains one rate: only an interval that leaves it out decides, with trials on that side."""
    estimate = found.estimate
    good = False if found.unreachable else None if estimate is None else sustained(rate_rps, estimate, found.bracket)
    if over_horizon and estimate is None and not found.unreachable:
        good = found.bracket.side_of(rate_rps)
    elif over_horizon and estimate is not None and estimate.low_rps is not None and estimate.high_rps is not None:
        good = True if rate_rps <= estimate.low_rps else False if rate_rps >= estimate.high_rps else None
    if found.answered is not None and found.answered.low_rps is None:  # one recorded traffic: nothing is random
        good = rate_rps <= found.answered.rate_rps
    return RateVerdict(
        rate_rps=rate_rps, verdict="unresolved" if good is None else "carried" if good else "not carried"
    )


def _needs(setup: Setup, found: SearchResult, half: float | None) -> str | None:
    """What it would take to decide what is open, after the words 'it would take'."""
    if setup.over_horizon:
        if found.needs is None:
            return None
        most = setup.settings.max_requests or MAX_REQUESTS
        unit = int(10 ** max(0, len(str(found.needs)) - 2))
        needs = -(-found.needs // unit) * unit
        return f"about {needs:,} requests (--max-requests {needs})." if needs > most else None
    if found.resolved or found.estimate is None or found.ended_early or setup.recorded:
        return None
    if found.answered is None and not math.isinf(found.estimate.half_width):
        return None
    tolerance = setup.settings.tolerance_of(setup.clock)
    if half is None:
        return "more trials: allow more time with --budget."
    if half <= tolerance:
        return None
    factor = (half / tolerance) ** 2
    if factor > MOST_NEEDED:
        return "another SLO or goal: near this one attainment hardly depends on the rate."
    aim = f"for +-{100 * tolerance:.3g}%"
    assert setup.budget_s is not None  # under a wall clock it has a default
    return f"about {setup.budget_s * factor / 60:.0f} minutes {aim} (--budget); a wider --tolerance takes less."


def _shown(objective: Slo, found: Sequence[tuple[float, SearchResult]]) -> ShareKey:
    """The condition whose curve is shown: the one that decides the first goal that has an answer."""
    single = not all(bound.percentile for bound in objective.bounds)
    default: ShareKey = JOINT if single else objective.bounds[0]
    return next((search.estimate.binding for _, search in found if search.estimate is not None), default)


def curve(trials: Sequence[Trial], key: ShareKey = JOINT) -> list[RatePoint]:
    """Attainment in a condition by rate over whole trials: mean, range of the seeds, and the means made to fall."""
    groups = [list(group) for _, group in groupby((t for t in trials if t.key.rate_rps), key=lambda t: t.key.rate_rps)]
    shares = [[tried.share(key) for tried in group] for group in groups]
    requests = [sum(s.of for s in row) for row in shares]
    attained = [sum(s.met for s in row) / max(1, total) for row, total in zip(shares, requests, strict=True)]
    smooth = falling(attained, requests) if groups else []
    return [
        RatePoint(
            rate_rps=group[0].key.rate_rps,
            seeds=len(group),
            requests=requests[i],
            attainment=attained[i],
            least=min(s.met / s.of if s.of else 1.0 for s in shares[i]),
            most=max(s.met / s.of if s.of else 1.0 for s in shares[i]),
            overloaded=sum(t.overloaded for t in group),
            falling=smooth[i],
        )
        for i, group in enumerate(groups)
    ]


def _cost(ledger: Ledger, wall_s: float) -> SearchCost:
    trials = [*ledger.whole, *ledger.probes]
    return SearchCost(
        requests=ledger.requests,
        trials=len(ledger.whole),
        probes=len(ledger.probes),
        system_s=sum(t.system_s for t in trials),
        trials_s=sum(t.wall_s for t in trials),
        wall_s=wall_s,
    )

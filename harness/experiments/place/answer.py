"""What a placement found: the content of place.json."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from harness.data import codec
from harness.data.codec import Facts
from harness.data.host import versions
from harness.data.run_json import Warned
from harness.experiments.place.bound import served_rps
from harness.experiments.place.cheapest import CHOICES, algorithm_of
from harness.experiments.place.place_json import (
    BestUnit,
    PlaceAnswer,
    PlaceCost,
    PlacedUnit,
    PlaceGroup,
    PlaceObjective,
)
from harness.experiments.place.questions import Capacity, Judged
from harness.experiments.place.settings import PlaceOptions
from harness.experiments.place.systems import NETWORK, UNITS, Deployment
from harness.spec import parse
from harness.stats.seeds import half_width

if TYPE_CHECKING:
    from harness.experiments.place.execute import PlaceResult

SCHEMA = 1
CONFIRMED_BY, UNSEEN = 20_000, 8
"""Requests of the run that confirms an answer, and how far its seed is from the first: no other run has it."""
U = TypeVar("U", bound=PlacedUnit)


def stored_options(options: PlaceOptions) -> Facts:
    """The options of a search: the part of place.json that is known beforehand."""
    return {
        "schema": SCHEMA,
        "kind": "place",
        "versions": versions(),
        "asked": {
            **options.spec.options(),
            "nodes": options.cluster.nodes,
            "gpus_per_node": options.cluster.per_node,
            "hardware": list(options.hardware),
            "algorithms": list(options.algorithms),
            "slo": str(options.slo),
            "goal": options.slo.goal,
            "conditions": options.definition,
            **({} if options.max_requests is None else {"max_requests": options.max_requests}),
            "rate": options.rate_rps,
        },
    }


def answer(options: PlaceOptions, result: PlaceResult, answers: Iterable[Any], wall_s: float) -> PlaceAnswer:
    """The whole answer; no number in it is infinite or NaN."""
    answers = list(answers)
    if result.cheapest is None:
        best = [*_sustained(options, result)]
        candidates = [_capacity(options, PlacedUnit, *unit_rates) for unit_rates in result.rates_of_units]
    else:
        best, candidates = [*_cheapest(options, result)], [*_run(options, result)]
    undecided = result.cheapest is not None and any(one.meets is None for one in result.cheapest.run.values())
    unsure = best[0].at_least if best else undecided or result.out_of_time
    empty: Facts = {"best": [], "candidates": [], "skipped": [], "warnings": []}  # these stand there in any case
    return codec.of(PlaceAnswer, {**stored_options(options), **empty}).change(
        state="interrupted" if result.interrupted else "finished",
        exit_code=5 if result.interrupted or unsure else 0 if best else 1,
        objective=PlaceObjective(options.objective.name, UNITS[options.objective.name],
                                 {name: dict(row) for name, row in options.objective.table.items()}),
        target_rps=options.rate_rps,
        step_times=[options.compared(gpu) for gpu in (best[0].hardware.split(" + ") if best else options.hardware)],
        best=best,
        candidates=candidates,
        skipped=result.skipped,
        cost=PlaceCost(
            candidates=len(answers), left=0 if result.cheapest is None else result.cheapest.left,
            requests=sum(one.requests for one in answers), wall_s=wall_s,
        ),
        warnings=[Warned(code=code, message=text) for code, text in _warnings(options, result, best)],
    )  # fmt: skip


def _sustained(options: PlaceOptions, result: PlaceResult) -> Iterator[BestUnit]:
    """Units with their capacities; those beside the first that its seeds do not separate from it stand there."""
    sustained = [(unit, capacity) for unit, capacity in result.sustained if capacity.rate_rps > 0]
    for unit, capacity in sustained[:CHOICES]:
        # logarithms of values per GPU are as far apart as those of the rates, but for what the units take
        by_seed, takes = capacity.by_seed, options.objective.taken
        ties = [
            other.name for other, other_capacity in sustained
            if other != unit and apart(by_seed, other_capacity.by_seed, math.log(takes(other) / takes(unit))) is False
        ]  # fmt: skip
        yield _capacity(
            options, BestUnit, unit, capacity, not_apart=ties, command=_command(options, unit, "capacity"),
            **_money(options, result, unit, capacity.rate_rps),
        )  # fmt: skip


def _cheapest(options: PlaceOptions, result: PlaceResult) -> Iterator[BestUnit]:
    assert result.cheapest is not None
    assert options.rate_rps is not None
    for deployment in result.cheapest.best:
        judged, errors = result.cheapest.run[deployment], options.errors(deployment)
        yield _judged(
            options, result, BestUnit, deployment, judged, ttft_error=errors.get("ttft"),
            tpot_error=errors.get("tpot"),
            command=_command(options, deployment, "run"), **_money(options, result, deployment, options.rate_rps),
        )  # fmt: skip


def _run(options: PlaceOptions, result: PlaceResult) -> Iterator[PlacedUnit]:
    """Deployments that were run at the requested rate, the cheapest first."""
    assert result.cheapest is not None
    run = result.cheapest.run
    for deployment in sorted(run, key=lambda one: (options.objective.taken(one), one.key)):
        yield _judged(options, result, PlacedUnit, deployment, run[deployment])


def _unit(options: PlaceOptions, kind: type[U], deployment: Deployment, rate_rps: float, **facts: Any) -> U:
    groups = [
        PlaceGroup(role=g.role, count=g.count, hardware=g.hardware, tp=g.shape.tp, pp=g.shape.pp, dp=g.shape.dp,
                   ep=g.shape.ep) for g in deployment.groups
    ]  # fmt: skip
    return kind(
        kind=deployment.kind, name=deployment.name, hardware=deployment.hardware, gpus=deployment.gpus, groups=groups,
        algorithm=algorithm_of(options, deployment), rate_rps=rate_rps, rate_per_gpu_rps=rate_rps / deployment.gpus,
        **{"value": options.objective.of(deployment, rate_rps), **facts},
    )  # fmt: skip


def _capacity(options: PlaceOptions, kind: type[U], unit: Deployment, capacity: Capacity, **facts: Any) -> U:
    low, high = (rate if rate is None else rate / unit.gpus for rate in (capacity.low_rps, capacity.high_rps))
    by_seed = {str(seed): math.exp(rate) / unit.gpus for seed, rate in capacity.by_seed.items()}
    return _unit(
        options, kind, unit, capacity.rate_rps, low_per_gpu_rps=low, high_per_gpu_rps=high, by_seed=by_seed,
        binding=capacity.binding, at_least=capacity.at_least, **facts,
    )  # fmt: skip


def _judged(
    options: PlaceOptions, result: PlaceResult, kind: type[U], deployment: Deployment, judged: Judged, **facts: Any
) -> U:
    assert options.rate_rps is not None
    return _unit(
        options, kind, deployment, options.rate_rps, binding=judged.binding, attainment=judged.share,
        attainment_low=judged.low, attainment_high=judged.high, meets=judged.meets, holds=judged.holds,
        with_error=judged.with_error, load=options.rate_rps / served_rps(deployment, result.rates),
        by_seed={str(seed): share for seed, share in judged.by_seed.items()}, **facts,
    )  # fmt: skip


def _money(options: PlaceOptions, result: PlaceResult, deployment: Deployment, rate_rps: float) -> dict[str, float]:
    """What it takes, and where that is money, how much a million input and output tokens cost."""
    amount = options.objective.taken(deployment)
    if options.objective.name != "cost":
        return {"taken": amount}
    a_request = amount / (3600 * rate_rps) * 1e6
    return {
        "taken": amount, "per_million_tokens": a_request / result.tokens.output,
        "per_million_input_tokens": a_request / result.tokens.prompt,
    }  # fmt: skip


def apart(one: Mapping[int, float], other: Mapping[int, float], step: float = 0.0) -> bool | None:
    """Whether the values of two systems on equal seeds differ, but for `step`, by more than their seeds do; None where
    one seed tells nothing."""
    gaps = [one[seed] - other[seed] + step for seed in sorted(set(one) & set(other))]
    return None if len(gaps) < 2 else abs(math.fsum(gaps) / len(gaps)) > (half_width(gaps, 2) or 0.0)


def _command(options: PlaceOptions, one: Deployment, name: str) -> str:
    """The run (at the requested rate), or the search of the capacity, that confirms an answer."""
    flags = options.of(one).options()
    for flag in ("requests", "seed", "rate"):
        flags.pop(flag, None)
    backend = parse(options.spec.backend)
    flags["backend"] = str(replace(backend, args={n: v for n, v in backend.args.items() if n != "log_steps"}))
    if name == "run":
        assert options.rate_rps is not None
        if options.spec.trace is None:
            flags |= {"rate": f"{options.rate_rps:g}", "requests": CONFIRMED_BY, "seed": options.spec.seed + UNSEEN}
        else:
            flags |= {"scale": f"compress:{options.rate_rps / options.own_rps:g}"}
    elif options.recorded_requests is None:
        flags["horizon"] = f"{options.horizon_s:g}s"  # of a fast system it would be another
    if flags.get("goal") == 0.9:
        del flags["goal"]
    return f"bench {name} " + " ".join(f"--{option} {shlex.quote(str(value))}" for option, value in flags.items())


def _warnings(options: PlaceOptions, result: PlaceResult, best: Sequence[BestUnit]) -> Iterator[tuple[str, str]]:
    if result.interrupted:
        yield "interrupted", "interrupted: not every question was answered"
    elif result.out_of_time:
        yield (
            "out_of_time",
            f"the budget of {options.budget_s:g} s ended; rerun with the same --out, or give a longer --budget",
        )
    if options.objective.name == "gpu":
        kinds = "; a GPU of any kind counts alike" if len(options.hardware) > 1 else ""
        yield "no_prices", f"ranked by GPUs, because no prices are known: give --prices{kinds}"
    for deployment, judged in () if result.cheapest is None else result.cheapest.run.items():
        if judged.meets is None and (not best or options.objective.taken(deployment) < (best[0].taken or 0.0)):
            yield (
                "undecided",
                (
                    f"{deployment.name} on {deployment.gpus} x {deployment.hardware} takes less and may meet the goal "
                    f"too ({judged.low or judged.share:.1%} to {judged.high or judged.share:.1%}): the runs do not tell"
                ),
            )
    if any(NETWORK in str(unit.command) for unit in best) and options.link is None:
        yield "network", f"KV between nodes takes a link of {NETWORK}; --backend sim:link=RATE names another"
    if not best and not result.interrupted and not result.out_of_time:
        what = "at any rate" if options.rate_rps is None else f"at {options.rate_rps:g} req/s in this cluster"
        yield "nothing_sustained", f"no deployment meets the SLO {what}; relax --slo, or take other or more GPUs"

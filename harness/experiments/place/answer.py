"""What a placement found: the content of place.json."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from harness import catalog
from harness.data import codec
from harness.data.codec import Facts
from harness.data.host import versions
from harness.data.schedule import Schedule
from harness.experiments.capacity.at_rate import Attained
from harness.experiments.place.cheapest import CHOICES, algorithm_of
from harness.experiments.place.place_json import PlaceAnswer
from harness.experiments.place.questions import Capacity, Timed
from harness.experiments.place.search import Rate, apart
from harness.experiments.place.settings import PlaceOptions
from harness.experiments.place.systems import NETWORK, UNITS, Deployment
from harness.runner.plan import load_workload
from harness.spec import parse

if TYPE_CHECKING:
    from harness.experiments.place.execute import PlaceResult

SCHEMA = 1
SHOWN = 3
"""Units of an algorithm that are compared with the best."""
TOKENS_OF = 10_000
"""Requests whose mean output length turns money per hour into money per token."""
CONFIRMED_BY = 20_000
"""Requests of the run that confirms an answer."""


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
            **({} if options.ratio is None else {"ratio": ":".join(map(str, options.ratio))}),
            "seeds": list(options.seeds),
            **({} if options.max_requests is None else {"max_requests": options.max_requests}),
            "rate": options.rate_rps,
            "planner": "bench",
        },
    }


def answer(options: PlaceOptions, result: PlaceResult, answers: Iterable[Any], wall_s: float) -> PlaceAnswer:
    """The whole answer; no number in it is infinite or NaN."""
    answers = list(answers)
    if options.objective.name == "latency":
        best = [*_fastest(options, result)]
    elif options.rate_rps is None:
        best = [*_sustained(options, result)]
    else:
        best = [*_at_rate(options, result)]
    undecided = any(found.meets is None for found in result.cheapest.run.values())
    unsure = bool(best and best[0]["at_least"]) or (not best and undecided)
    return codec.of(PlaceAnswer, {
        **stored_options(options),
        "state": "interrupted" if result.interrupted else "finished",
        "exit_code": 5 if result.interrupted or unsure else 0 if best else 1,
        "objective": {"name": options.objective.name, "unit": UNITS[options.objective.name],
                      "table": {name: dict(row) for name, row in options.objective.table.items()}},
        "target_rps": options.rate_rps,
        "trust": _trust(options, str(best[0]["hardware"]) if best else " + ".join(options.hardware)),
        "best": best,
        "sides": [{**one.describe(), "fewest": count} for one, count in sorted(result.cheapest.sides.items())],
        "candidates": [*_candidates(options, result)],
        "skipped": [{"hardware": one.hardware, "name": one.name, "reason": one.reason} for one in result.skipped],
        "cost": {"candidates": len(answers), "requests": sum(one.requests for one in answers), "wall_s": wall_s},
        "warnings": [{"code": code, "message": text} for code, text in _warnings(options, result, best)],
    })  # fmt: skip


def _sustained(options: PlaceOptions, result: PlaceResult) -> Iterator[Facts]:
    """Units with their capacities; those beside the first that its seeds do not separate from it stand there."""
    tokens = _tokens(options)
    sustained = [(one, found) for one, found in result.sustained if found.rate_rps > 0]
    for one, found in sustained[:CHOICES]:
        near = [other.name for other, theirs in sustained if other != one and _near(options, one, found, other, theirs)]
        yield {
            **_capacity(options, one, found),
            **_money(options, one, found.rate_rps, tokens),
            "command": _command(options, one, "capacity"),
            "not_apart": near,
        }


def _near(options: PlaceOptions, one: Deployment, found: Capacity, other: Deployment, theirs: Capacity) -> bool:
    """Whether seeds do not separate the values of two units; their logarithms are as far apart as those of the rates,
    but for what the units take."""
    step = math.log(options.objective.taken(other) / options.objective.taken(one))
    return apart(found.by_seed, {seed: rate - step for seed, rate in theirs.by_seed.items()}) is False


def _at_rate(options: PlaceOptions, result: PlaceResult) -> Iterator[Facts]:
    met, tokens = result.cheapest.met[:CHOICES], _tokens(options)
    taken = options.objective.taken
    for one in met:
        found = result.cheapest.run[one]
        assert options.rate_rps is not None
        yield {
            **_attained(options, one, found),
            **_money(options, one, options.rate_rps, tokens),
            "command": _command(options, one, "run"),
            "ties": [other.name for other in met if other != one and taken(other) == taken(one)],
            "not_apart": [
                other.name for other in met if other != one and taken(other) == taken(one)
                and apart(found.by_seed, result.cheapest.run[other].by_seed) is False
            ],
        }  # fmt: skip


def _fastest(options: PlaceOptions, result: PlaceResult) -> Iterator[Facts]:
    """Deployments that meet the goal, by their TPOT; those beside one that its seeds do not separate from it."""
    met = [(one, found) for one, found in result.timed if found.meets][:CHOICES]
    for one, found in met:
        yield {
            **_timed(options, one, found),
            "taken": options.objective.taken(one),
            "command": _command(options, one, "run"),
            "not_apart": [
                other.name for other, theirs in met
                if other != one and apart(found.by_seed, theirs.by_seed) is False
            ],
        }  # fmt: skip


def _timed(options: PlaceOptions, one: Deployment, found: Timed) -> Facts:
    rate_rps, tpot_s = options.rate_rps, found.tpot_s if math.isfinite(found.tpot_s) else None
    assert rate_rps is not None
    return {
        "algorithm": algorithm_of(options, one), **one.describe(), "rate_rps": rate_rps,
        "rate_per_gpu_rps": rate_rps / one.gpus, "value": 0.0 if tpot_s is None else 1 / tpot_s, "binding": None,
        "at_least": False, "attainment": found.share, "meets": found.meets, "tpot_s": tpot_s,
        "tpot_low_s": found.low_s, "tpot_high_s": found.high_s,
        "by_seed": {str(seed): value for seed, value in found.by_seed.items() if math.isfinite(value)},
    }  # fmt: skip


def _candidates(options: PlaceOptions, result: PlaceResult) -> Iterator[Facts]:
    """Deployments that were run at the requested rate, the cheapest first; or systems by their rates."""
    for one, found in result.timed:
        yield _timed(options, one, found)
    for one in sorted(result.cheapest.run, key=lambda one: (options.objective.taken(one), one.key)):
        yield _attained(options, one, result.cheapest.run[one])
    for each in sorted(
        result.scored, key=lambda one: (one.algorithm, one.system.kind, -one.value, one.system.gpus, one.system.name)
    ):
        yield _unit(each.algorithm, each.system, each.per_gpu, each.value, each.binding, at_least=False)


def _unit(
    algorithm: str, deployment: Deployment, per_gpu: Rate, value: float, binding: str | None, *, at_least: bool
) -> Facts:
    return {
        "algorithm": algorithm,
        **deployment.describe(),
        "rate_rps": per_gpu.value * deployment.gpus,
        "rate_per_gpu_rps": per_gpu.value,
        "mean_per_gpu_rps": per_gpu.mean,
        "low_per_gpu_rps": per_gpu.low,
        "high_per_gpu_rps": per_gpu.high,
        "by_seed": {str(seed): value for seed, value in per_gpu.by_seed.items()},
        "value": value,
        "binding": binding,
        "at_least": at_least,
    }


def _capacity(options: PlaceOptions, one: Deployment, found: Capacity) -> Facts:
    rates = (found.rate_rps, found.rate_rps, found.low_rps, found.high_rps)
    value, mean, low, high = (rate if rate is None else rate / one.gpus for rate in rates)
    by_seed = {seed: math.exp(rate) / one.gpus for seed, rate in found.by_seed.items()}
    per_gpu = Rate(value or 0.0, mean or 0.0, low, high, by_seed, 0.0)
    value = options.objective.of(one, found.rate_rps)
    return _unit(algorithm_of(options, one), one, per_gpu, value, found.binding, at_least=found.at_least)


def _attained(options: PlaceOptions, one: Deployment, found: Attained) -> Facts:
    assert options.rate_rps is not None
    per_gpu = options.rate_rps / one.gpus
    return {
        "algorithm": algorithm_of(options, one), **one.describe(), "rate_rps": options.rate_rps,
        "rate_per_gpu_rps": per_gpu, "value": options.objective.of(one, options.rate_rps), "binding": found.binding,
        "at_least": False, "attainment": found.share, "attainment_low": found.low, "attainment_high": found.high,
        "meets": found.meets, "by_seed": {str(seed): share for seed, share in found.by_seed.items()},
    }  # fmt: skip


def _money(options: PlaceOptions, one: Deployment, rate_rps: float, tokens: float | None) -> Facts:
    """What it takes, and where that is money, how much a million output tokens cost."""
    taken = options.objective.taken(one)
    if tokens is None:
        return {"taken": taken}
    return {"taken": taken, "per_million_tokens": taken / (3600 * rate_rps * tokens) * 1e6}


def _tokens(options: PlaceOptions) -> float | None:
    """Output tokens of a request on average, where they turn money per hour into money per token."""
    if options.objective.name != "cost":
        return None
    spec = replace(options.spec, requests=None)
    drawn = Schedule.draw(
        load_workload(spec).workload, seed=spec.seed, requests=None if spec.trace is not None else TOKENS_OF
    )
    return float(pc.mean(drawn.table["output_tokens"]).as_py())


def _command(options: PlaceOptions, one: Deployment, name: str) -> str:
    """The run (at the requested rate), or the search of the capacity, that confirms an answer."""
    given = options.of(one).options()
    for own in ("requests", "seed", "rate"):
        given.pop(own, None)
    backend = parse(options.spec.backend)
    given["backend"] = str(replace(backend, args={n: v for n, v in backend.args.items() if n != "log_steps"}))
    if name == "run":
        assert options.rate_rps is not None
        if options.spec.trace is None:
            given |= {"rate": f"{options.rate_rps:g}", "requests": CONFIRMED_BY, "seed": options.seeds[-1] + 1}
        else:
            given |= {"scale": f"compress:{options.rate_rps / options.own_rps:g}"}
    elif options.recorded_requests is None:
        given["horizon"] = f"{options.horizon_s:g}s"  # of a fast system it would be another
    if given.get("goal") == 0.9:
        del given["goal"]
    return f"bench {name} " + " ".join(f"--{option} {shlex.quote(str(value))}" for option, value in given.items())


def _trust(options: PlaceOptions, hardware: str) -> str:
    """How far the latency model was from measurements of the model on these GPUs."""
    model = options.spec.model or ""
    latency = parse(options.spec.latency or parse(options.spec.backend).args.get("latency", "")
                    or "operators").name  # fmt: skip
    return "; ".join(
        f"{latency} for {model} on {gpu}: {catalog.compared(latency, model, gpu)}" for gpu in hardware.split(" + ")
    )


def _warnings(options: PlaceOptions, result: PlaceResult, best: Sequence[Facts]) -> Iterator[tuple[str, str]]:
    if result.interrupted:
        yield "interrupted", "interrupted: not every question was answered"
    if options.objective.name == "gpu":
        kinds = "; a GPU of any kind counts alike" if len(options.hardware) > 1 else ""
        yield "no_prices", f"ranked by GPUs, because no prices are known: give --prices{kinds}"
    if result.cheapest.left:
        yield "not_all_run", f"{result.cheapest.left} more deployments were not run"
    for one, found in result.cheapest.run.items():
        if found.meets is None and (not best or options.objective.taken(one) < float(str(best[0]["taken"]))):
            yield (
                "undecided",
                (
                    f"{one.name} on {one.gpus} x {one.hardware} takes less and may meet the goal too "
                    f"({found.low or found.share:.1%} to {found.high or found.share:.1%}): the runs do not tell"
                ),
            )
    if any(NETWORK in str(one.get("command")) for one in best) and options.link is None:
        yield "network", f"KV between nodes takes a link of {NETWORK}; --backend sim:link=RATE names another"
    if not best and not result.interrupted:
        what = "at any rate" if options.rate_rps is None else f"at {options.rate_rps:g} req/s in this cluster"
        yield "nothing_sustained", f"no deployment meets the SLO {what}; relax --slo, or take other or more GPUs"

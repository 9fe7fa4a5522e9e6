"""What a placement found: the content of place.json."""

from collections.abc import Mapping, Sequence

from harness.data import codec
from harness.data.codec import Facts
from harness.data.host import versions
from harness.experiments.place.combine import Scored, Unit, by_algorithm, replicated, tied, units
from harness.experiments.place.place_json import PlaceAnswer
from harness.experiments.place.search import Rate
from harness.experiments.place.settings import COMPAT, PlaceOptions
from harness.experiments.place.systems import UNITS, Algorithm, Skipped
from harness.experiments.place.task import TOO_SHORT, Found
from harness.metrics import slo

SCHEMA = 1
SHOWN = 3
"""Units of an algorithm that are compared with the best."""


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
            "slo": slo.text(options.slo),
            "goal": options.slo.goal,
            "conditions": options.definition,
            "seeds": list(options.seeds),
            "max_rate": options.top_rps,
            "width": options.width_rps,
            "planner": COMPAT if options.released else "bench",
        },
    }


def answer(
    options: PlaceOptions,
    scored: Sequence[Scored],
    skipped: Sequence[Skipped],
    found: Sequence[Found],
    wall_s: float,
    *,
    left: int,
) -> PlaceAnswer:
    """The whole answer, with `left` candidates not searched; no number in it is infinite or NaN."""
    each = {name: units(name, scored, options.objective, options.cluster) for name in options.algorithms}
    best = by_algorithm(each)
    in_order = sorted(
        scored, key=lambda one: (one.algorithm, one.system.kind, -one.value, one.system.gpus, one.system.name)
    )
    return codec.of(PlaceAnswer, {
        **stored_options(options),
        "state": "interrupted" if left else "finished",
        "exit_code": 5 if left or (best and best[0].at_least) else 0 if best else 1,
        "objective": {"name": options.objective.name, "unit": UNITS[options.objective.name],
                      "table": {name: dict(row) for name, row in options.objective.table.items()}},
        "target_rps": options.target_rps,
        "best": [_best(options, unit, each[unit.algorithm], best) for unit in best],
        "candidates": [
            {"algorithm": one.algorithm, **one.system.describe(), "rate_rps": one.total_rps, **_rate(one.per_gpu),
             "value": one.value, "binding": one.binding, "at_least": one.at_least}
            for one in in_order
        ],
        "skipped": [{"hardware": one.hardware, "name": one.name, "reason": one.reason} for one in skipped],
        "cost": {"candidates": len(scored), "left": left, "trials": sum(one.trials for one in found),
                 "requests": sum(one.requests for one in found), "wall_s": wall_s},
        "warnings": [{"code": code, "message": text} for code, text in _warnings(options, best, each, scored, left)],
    })  # fmt: skip


def _best(options: PlaceOptions, unit: Unit, here: Sequence[Unit], best: Sequence[Unit]) -> Facts:
    equal, near = tied(unit, here)
    fields = _unit(unit)
    if options.target_rps is not None:
        whole = replicated(unit, options.target_rps, options.objective)
        fits = whole.gpus <= options.cluster.gpus
        fields["replicated"] = {**_unit(whole), "target_rps": options.target_rps, "fits": fits}
    return {**fields, "ties": [_short(one) for one in equal], "not_apart": [_short(one) for one in near[:SHOWN]],
            "times_the_worst": unit.value / best[-1].value}  # fmt: skip


def _unit(unit: Unit) -> Facts:
    return {
        "algorithm": unit.algorithm,
        "name": unit.name,
        "hardware": unit.hardware,
        "gpus": unit.gpus,
        "rate_rps": unit.total_rps,
        **_rate(unit.per_gpu),
        "at_least": unit.at_least,
        "value": unit.value,
        "members": [{"count": count, **one.system.describe()} for count, one in unit.members],
        "binding": next((one.binding for _, one in unit.members if one.binding), None),
    }


def _short(unit: Unit) -> Facts:
    return {"name": unit.name, "hardware": unit.hardware, "gpus": unit.gpus, "rate_per_gpu_rps": unit.per_gpu.value}


def _rate(rate: Rate) -> Facts:
    return {
        "rate_per_gpu_rps": rate.value,
        "mean_per_gpu_rps": rate.mean,
        "low_per_gpu_rps": rate.low,
        "high_per_gpu_rps": rate.high,
        "by_seed": {str(seed): value for seed, value in rate.by_seed.items()},
    }


_RELEASED = (
    "searched as the planner that DistServe released: its scheduler, constants and arrivals, no time for handing KV "
    "over, memory that never limits admission, and the first seed decides (the interval is of all); for ours give "
    "--latency abc:distserve"
)
_TWO_ENGINES = (
    "the released constants of vLLM are slower than those of DistServe, so a part of what disaggregation gains here is "
    "the engine; with --latency abc:vllm both have the same"
)
_APART = "high searches each side with the other one unlimited, so both may miss their share of requests at once"
_SHORT = (
    "where --requests binds, a trial is too short against the time that one request takes to show whether a queue "
    "grows, so the rate is the highest that was shown and not a limit; give more --requests until it stays"
)
_SHORT_RELEASED = (
    "where --requests binds, all requests of a trial are sent within the time that one takes: too few to let a queue "
    "grow, so the rate may be far too high; give more --requests until it stays"
)
_NEVER = "where nothing is missed above a rate, every rate that was tried was sustained; give a higher --max-rate"


def _warnings(
    options: PlaceOptions,
    best: Sequence[Unit],
    each: Mapping[Algorithm, Sequence[Unit]],
    scored: Sequence[Scored],
    left: int,
) -> list[tuple[str, str]]:
    found = []
    if left:
        found.append(("interrupted", f"interrupted: {left} of {left + len(scored)} candidates were not searched"))
    if options.released:
        found.append(("released_planner", _RELEASED))
        if options.spec.latency is None and "vllm++" in options.algorithms and len(options.algorithms) > 1:
            found.append(("two_engines", _TWO_ENGINES))
    if "high" in each:
        found.append(("sides_apart", _APART))
    if any(one.binding == TOO_SHORT for one in scored):
        found.append(("too_short", _SHORT_RELEASED if options.released else _SHORT))
    if any(one.at_least and one.binding is None for one in scored):
        found.append(("never_missed", _NEVER))
    if len(options.seeds) == 1:
        found.append(("one_seed", "one seed gives no interval; --seeds 5 would"))
    if not best and not left:
        found.append(("nothing_carried", "no candidate meets the SLO at any rate; relax --slo, or take other GPUs"))
    return found

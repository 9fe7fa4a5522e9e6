"""Policies, or routers under one policy, under both clocks: the same traffic on the built-in engine and the simulator,
side by side; and on vLLM, where a server is there for each policy (`backends.vllm.scheduler`).

The simulator takes the step times of the engine: a line fitted to a run of other traffic under the first policy. So
what differs between the two is what a simulation cannot know, not another machine. Rates follow from the lowest
capacity among the policies, which the simulator tells.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from harness.data.folder import load, read_info
from harness.errors import BackendError, Interrupted, UsageError
from harness.experiments.capacity.conditions import Settings
from harness.experiments.capacity.execute import run_search, set_up
from harness.experiments.capacity.store import Store
from harness.experiments.fit.answer import FitOptions, from_steps
from harness.experiments.sweep.axes import RATE, Axis
from harness.experiments.sweep.execute import run_sweep
from harness.experiments.sweep.plan import Sweep, plan_sweep
from harness.experiments.sweep.sweep_json import SweepAnswer, SweepPoint
from harness.experiments.theory import tables
from harness.options import Given, RunSpec, run_spec
from harness.runner.run import execute
from harness.stats.seeds import half_width

CALIBRATION = {"workload": "uniform:prompt_max_tokens=256,output_max_tokens=64", "requests": "150"}
CALIBRATION_RPS = (25, 250)
"""Traffic that step times are fitted to: many lengths, alone and in batches as large as an overloaded engine has."""

SENDING = "4s"
"""How long a run sends, unless its requests are given: some ten times as long as a request takes, so that the queue of
an overloaded system can grow."""

OF_LOWEST, SHARES = (0.5, 0.9, 1.2), "0.5, 0.9 and 1.2"
"""Rates as shares of the lowest capacity: with room, near it, and beyond it."""

TOLERANCE = 0.1
"""Half-width of the intervals of those capacities: they only choose rates."""

APART = 0.1
"""Difference of attainment from which engine and simulator disagree: as much as the usual goal lets miss."""

ENGINE, SIMULATOR, VLLM = "engine", "simulator", "vllm"
HEADS: list[tuple[str, tables.Unit]] = [
    ("on", "text"), ("within SLO", "share"), ("from", "share"), ("to", "share"),
    ("ttft p50", "s"), ("ttft p90", "s"), ("tpot p50", "s"), ("itl p99", "s"), ("preemptions", "count"),
]  # fmt: skip
METRICS = (("ttft", "p50"), ("ttft", "p90"), ("tpot", "p50"), ("itl", "p99"))
DIFFERENCES: list[tuple[str, tables.Unit]] = [
    ("on", "text"), ("difference", "share"), ("from", "share"), ("to", "share"),
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Traffic:
    """What every policy gets; `options` are those of `bench run` beside it. Rates None: by the lowest capacity.

    `servers` are addresses of vLLM, none or one for each policy, in their order. `cluster` are the options of
    replicas (`replicas`, `prefill`, `decode`, `router` or `policy`); `over` is which of the two is compared.
    """

    options: Mapping[str, object] = field(default_factory=dict)
    seed: int = 0
    seeds: int = 5
    rates: tuple[str, ...] | None = None
    servers: tuple[str, ...] = ()
    cluster: Mapping[str, object] = field(default_factory=dict)
    over: Literal["policy", "router"] = "policy"

    @property
    def remote(self) -> tuple[str, ...]:
        """The backend of each server."""
        return tuple(f"openai:url={server}" for server in self.servers)


def check(policies: Sequence[str], traffic: Traffic) -> None:
    """Raise UsageError for a policy that does not exist, or traffic that cannot be, before anything runs."""
    if len(set(traffic.servers)) not in (0, len(policies)):
        raise UsageError(
            f"--vllm names a server of its own for each policy, in their order; {len(set(traffic.servers))} given for "
            f"{len(policies)} policies."
        )
    planned = _planned(policies, traffic.rates or ("1",), traffic, {"backend": "sim", **traffic.cluster})
    if all(bound.percentile is not None for bound in planned.first.slo.bounds):
        raise UsageError("Policies are compared by the requests that meet the SLO; bound them, as in --slo ttft=0.1.")


def measured(
    policies: Sequence[str], traffic: Traffic, folder: Path, say: Callable[[str], None] = lambda _: None
) -> tables.TheoryAnswer:
    """The answer: a row for each rate, policy and clock; runs stay in `folder`.

    Raises BackendError and Interrupted where not all of them could be made.
    """
    latency, calibration = folder / "latency.toml", folder / "calibration"
    first = policies[0] if traffic.over == "policy" else str(traffic.cluster["policy"])
    for rate_rps in CALIBRATION_RPS:
        say(f"calibration under {first}, {rate_rps} req/s")
        options = {**CALIBRATION, "rate": str(rate_rps)}
        result = execute(
            _spec({**options, "backend": "engine", "policy": first}, traffic.seed), out=calibration / f"{rate_rps}rps"
        )
        result.outcome.check(whole=True)
    from_steps([str(calibration)], FitOptions("linear"), latency)
    facts = result.run.info.backend
    simulated = {
        "backend": f"sim:kv_blocks={facts['kv_blocks']},max_model_len={facts['max_tokens']}",
        "latency": f"file:{latency}",
        **traffic.cluster,
        **({"link": "none"} if traffic.cluster else {}),  # as in the engine
    }
    notes = [f"Step times of the simulator: a line fitted to {calibration}, other traffic under {first}."]
    if traffic.cluster:
        notes.append(
            "KV that moves between replicas takes no time on the simulator, and a copy in memory on the engine."
        )
    rates = traffic.rates
    if rates is None:
        found = {policy: _capacity_rps(policy, traffic, simulated, say) for policy in policies}
        rates = tuple(f"{share * min(found.values()):.3g}" for share in OF_LOWEST)
        capacities = ", ".join(f"{policy} {rps:.3g}" for policy, rps in found.items())
        notes.append(f"Capacities on the simulator, in req/s: {capacities}. Rates are {SHARES} of the lowest.")
    ran = {
        where: _whole(run_sweep(_planned(policies, rates, traffic, system), folder / where, say=say), folder / where)
        for where, system in ((ENGINE, {"backend": "engine", **traffic.cluster}), (SIMULATOR, simulated))
    }
    if traffic.servers:
        planned = _planned(policies, rates, traffic, {}, Axis("backend", traffic.remote))
        served = _whole(run_sweep(planned, folder / VLLM, say=say), folder / VLLM)
        ran[VLLM] = by_policy(served, dict(zip(traffic.remote, policies, strict=True)))
        notes.append("A server of vLLM has the policy that it was started with, which it does not say.")
    title = f"{traffic.options.get('workload')}, {traffic.options.get('slo')}"
    left: list[tuple[str, tables.Unit]] = [("rate", "rps"), (traffic.over, "text")]
    shown = [tables.table(title, left + HEADS, _rows(ran, folder))]
    if len(policies) > 1:
        differences = (
            (float(str(one.at[RATE])), _name(one.head), where, one.difference, one.low, one.high)
            for where, info in ran.items()
            for one in info.differences
        )
        shown.append(tables.table(f"Within SLO less that of {policies[0]}", left + DIFFERENCES, differences))
    return tables.answer(
        "policy",
        {
            "policies" if traffic.over == "policy" else "routers": [*policies],
            **traffic.cluster,
            **traffic.options,
            "rates_rps": [*map(float, rates)],
            "seeds": traffic.seeds,
        },
        [*_not_valid(ran), *disagreements(ran), *alike(policies, ran[SIMULATOR], folder / SIMULATOR)],
        shown,
        [*notes, "Intervals are of 95%, over seeds; differences are taken seed by seed.", f"Runs: {folder}."],
    ).change(kind="policy", exit_code=max(info.exit_code for info in ran.values()))


def _spec(options: Mapping[str, object], seed: int) -> RunSpec:
    return run_spec(Given({**options, "seed": seed}))


def _capacity_rps(policy: str, traffic: Traffic, system: Mapping[str, object], say: Callable[[str], None]) -> float:
    """The highest rate that meets the SLO on the simulator. Raises UsageError where there is none."""
    say(f"capacity of {policy} on the simulator")
    options = {name: value for name, value in traffic.options.items() if name not in ("requests", "duration")}
    spec = _spec({**options, **system, traffic.over: policy}, traffic.seed)
    (found,) = run_search(set_up(spec, Settings(tolerance=TOLERANCE)), Store(None)).answers
    rate_rps = found.capacity_rps or found.bracket_rps[0]
    if rate_rps is None:
        raise UsageError(f"No rate at which {policy} meets {traffic.options.get('slo')} was found; give --rate.")
    return rate_rps


def _planned(
    policies: Sequence[str],
    rates: Sequence[str],
    traffic: Traffic,
    system: Mapping[str, object],
    systems: Axis | None = None,
) -> Sweep:
    """The sweep over rates and policies, or over `systems` that have one each."""
    given = Given({**traffic.options, **system, "seed": traffic.seed, "warmup": "none"})
    axes = [Axis(RATE, tuple(rates)), systems or Axis(traffic.over, tuple(policies))]
    return plan_sweep(given, None, axes, seeds=str(traffic.seeds), refine="none")


def by_policy(info: SweepAnswer, policies: Mapping[str, str]) -> SweepAnswer:
    """The sweep over backends as one over the policies that they have."""

    def named(values: Mapping[str, object]) -> dict[str, object]:
        kept = {name: value for name, value in values.items() if name != "backend"}
        return {**kept, **({"policy": policies[str(values["backend"])]} if "backend" in values else {})}

    return info.change(
        points=[replace(point, values=named(point.values)) for point in info.points],
        differences=[
            replace(one, at=named(one.at), base=named(one.base), head=named(one.head)) for one in info.differences
        ],
    )


def _whole(info: SweepAnswer, out: Path) -> SweepAnswer:
    if info.state == "failed":
        raise BackendError(info.error or "the backend failed.")
    if info.state != "finished":
        raise Interrupted(f"interrupted; the runs so far are in '{out}'.")
    return info


def _rows(ran: Mapping[str, SweepAnswer], folder: Path) -> Iterator[tuple[tables.Cell, ...]]:
    for points in zip(*(info.points for info in ran.values()), strict=True):
        for where, point in zip(ran, points, strict=True):
            share = point.attainment
            preemptions = [
                read_info(folder / where / run.folder).summary.preemptions for run in point.runs if run.valid
            ]
            yield (
                *_named(point), where,
                *((None, None, None) if share is None else (share.mean, share.low, share.high)),
                *(_mean(point, *metric) for metric in METRICS),
                sum(known) if (known := [count for count in preemptions if count is not None]) else None,
            )  # fmt: skip


def _named(point: SweepPoint) -> tuple[float, str]:
    return float(str(point.values[RATE])), _name(point.values)


def _name(values: Mapping[str, object]) -> str:
    """The policy or router among the values of a point."""
    return str(values["router"] if "router" in values else values["policy"])


def _mean(point: SweepPoint, metric: str, part: str) -> float | None:
    found = point.metrics.get(metric, {}).get(part)
    return None if found is None else found.mean


def _not_valid(ran: Mapping[str, SweepAnswer]) -> Iterator[str]:
    for where, info in ran.items():
        runs = [run for point in info.points for run in point.runs]
        if bad := [run for run in runs if not run.valid]:
            yield (
                f"Warning: {len(bad)} of {len(runs)} runs on the {where} are not valid and do not count, first "
                f"{bad[0].folder}: {' '.join(bad[0].reasons)}"
            )


def disagreements(ran: Mapping[str, SweepAnswer]) -> Iterator[str]:
    """A warning for each point whose attainment on the simulator is surely another than on the engine."""
    for engine, simulator in zip(ran[ENGINE].points, ran[SIMULATOR].points, strict=True):
        shares = [{run.seed: run.attainment for run in point.runs if run.valid} for point in (engine, simulator)]
        apart = [
            predicted - real
            for seed, real in shares[0].items()
            if real is not None and (predicted := shares[1].get(seed)) is not None
        ]
        if not apart or engine.attainment is None or simulator.attainment is None:
            continue
        mean, half = math.fsum(apart) / len(apart), half_width(apart)
        if abs(mean) > max(APART, half or 0.0):
            rate_rps, policy = _named(engine)
            interval = "" if half is None else f", {100 * (mean - half):+.0f} .. {100 * (mean + half):+.0f}"
            yield (
                f"Warning: engine and simulator disagree about {policy} at {rate_rps:g} req/s: "
                f"{engine.attainment.mean:.0%} and {simulator.attainment.mean:.0%} within the SLO "
                f"({100 * mean:+.0f} points{interval}); go by the engine there."
            )


def alike(policies: Sequence[str], info: SweepAnswer, folder: Path) -> Iterator[str]:
    """A sentence for each two policies that formed the same batches on the simulator, at some rates or all."""
    batches = {
        _named(point): [
            (run.steps, run.requests.select(["request_id", "token_s", "token_n"]))
            for run in (load(folder / one.folder) for one in point.runs)
        ]
        for point in info.points
    }
    rates = list(dict.fromkeys(rate_rps for rate_rps, _ in batches))
    for one, other in combinations(policies, 2):
        same = [rate_rps for rate_rps in rates if batches[rate_rps, one] == batches[rate_rps, other]]
        if same:
            where = "every rate" if same == rates else " and ".join(f"{rate_rps:g} req/s" for rate_rps in same)
            yield f"{one} and {other} form the same batches on the simulator at {where}."

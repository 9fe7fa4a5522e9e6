"""A policy under both clocks: the same traffic on the built-in engine and on the simulator, side by side.

The simulator takes the step times of the engine: a line fitted to a run of other traffic under the first policy. So
what differs between the two is what a simulation cannot know, not another machine.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.experiments.fit.answer import FitOptions, from_steps
from harness.experiments.theory import tables
from harness.options import Given, RunSpec, run_spec
from harness.runner.plan import plan
from harness.runner.run import Result, execute
from harness.spec import parse

CALIBRATION = {
    "workload": "uniform:prompt_max_tokens=256,output_max_tokens=64", "rate": "25", "requests": "100",
}  # fmt: skip
"""Traffic that step times are fitted to: many lengths, alone and in batches."""

HEADS: list[tuple[str, tables.Unit]] = [
    ("policy", "text"), ("on", "text"), ("within SLO", "share"), ("ttft p50", "s"), ("ttft p90", "s"),
    ("tpot p50", "s"), ("itl p99", "s"), ("preemptions", "count"),
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Traffic:
    """What every policy gets; `options` are those of `bench run` beside it."""

    options: Mapping[str, object] = field(default_factory=dict)
    seed: int = 0


def check(policies: Sequence[str], traffic: Traffic) -> None:
    """Raise UsageError for a policy that does not exist, or traffic that cannot be, before anything runs."""
    for policy in policies:
        plan(_spec(policy, traffic.options, traffic.seed, "sim"))


def measured(
    policies: Sequence[str], traffic: Traffic, folder: Path, say: Callable[[str], None] = lambda _: None
) -> tables.TheoryAnswer:
    """The answer: a row for each policy on each of the two; runs stay in `folder`."""
    latency = folder / "latency.toml"
    rows = list(_rows(policies, traffic, folder, latency, say))
    title = f"{traffic.options.get('workload')}, {traffic.options.get('slo')}"
    notes = [
        f"Step times of the simulator: a line fitted to {folder / 'calibration'}, other traffic under {policies[0]}.",
        f"Runs: {folder}.",
    ]
    return tables.answer(
        "policy", {"policies": [*policies], **traffic.options}, [], [tables.table(title, HEADS, rows)], notes
    ).change(kind="policy")


def _rows(
    policies: Sequence[str], traffic: Traffic, folder: Path, latency: Path, say: Callable[[str], None]
) -> Iterator[tuple[tables.Cell, ...]]:
    say(f"calibration under {policies[0]}")
    first = _run(policies[0], CALIBRATION, traffic.seed, "engine", folder / "calibration")
    blocks = first.run.info.backend["kv_blocks"]
    from_steps([str(folder / "calibration")], FitOptions("linear"), latency)
    for number, policy in enumerate(policies, 1):
        place = folder / f"{number}-{parse(policy).name}"
        say(f"{policy} on the engine")
        yield _row(policy, "engine", _run(policy, traffic.options, traffic.seed, "engine", place / "engine"))
        options, backend = {**traffic.options, "latency": f"file:{latency}"}, f"sim:kv_blocks={blocks}"
        yield _row(policy, "simulator", _run(policy, options, traffic.seed, backend, place / "simulator"))


def _spec(policy: str, options: Mapping[str, object], seed: int, backend: str) -> RunSpec:
    return run_spec(Given({**options, "backend": backend, "policy": policy, "seed": seed}))


def _run(policy: str, options: Mapping[str, object], seed: int, backend: str, out: Path) -> Result:
    result = execute(_spec(policy, options, seed, backend), out=out)
    result.outcome.check(whole=True)
    return result


def _row(policy: str, where: str, result: Result) -> tuple[tables.Cell, ...]:
    summary = result.run.info.summary
    ttft, tpot, itl = (summary.metrics[name] for name in ("ttft", "tpot", "itl"))
    return policy, where, summary.attainment, ttft.p50, ttft.p90, tpot.p50, itl.p99, summary.preemptions

"""Placement beside what DistServe's planner finds and its paper prints (K10.2)."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from acceptance.rows import Place, Row
from backends.latency.abc import Abc
from backends.systems import distserve
from harness import catalog
from harness.data.schedule import Schedule
from harness.errors import UsageError
from harness.experiments import pool
from harness.experiments.place.combine import Scored, Unit, units
from harness.experiments.place.execute import run_placement as search
from harness.experiments.place.questions import Question, capacity
from harness.experiments.place.search import rate
from harness.experiments.place.settings import PlaceOptions, place_options
from harness.experiments.place.store import Store
from harness.experiments.place.systems import (
    Algorithm,
    Cluster,
    Deployment,
    Group,
    Objective,
    Shape,
    Skipped,
    space,
)
from harness.metrics.objective import parse_slo
from harness.options import Given, RunSpec
from harness.runner.plan import load_workload

SYSTEM = "DistServe, placement"
OWN: Mapping[str, Any] = {
    "nodes": 1, "gpus": 4, "hardware": "a100-80g", "algorithm": "low,vllm++", "goal": None,
    "conditions": "separate", "rate": None, "objective": "gpu", "prices": None, "power": None, "requests": None,
    "seeds": 1, "seed": None,
}  # fmt: skip
A100 = "a100-80g"
COMMAND = "python tests/acceptance/run.py --only {}"
REQUESTS = 300
"""Requests of a trial, as in the search of DistServe's planner."""
UTILISATION = 0.95
"""Share of the memory that the planner gives to weights and KV."""
WIDTH = 0.0625
"""The width of the published search, req/s per GPU."""

README = 1.56
"""Per-GPU rate that the released planner's README promises."""


def rows(place: Place) -> Iterator[Row]:
    """S22.e, S23 and S24: what the README of the planner promises, the published placements, and 32 GPUs."""
    del place
    yield from _readme()
    yield from _large()


def options_of(run: Mapping[str, object], **own: Any) -> PlaceOptions:
    """The options of a search, those of DistServe's planner by default."""
    return place_options(Given(run), None, {**OWN, **own})


NODE = Cluster(1, 4)


@dataclass(frozen=True, slots=True)
class Planner:
    """DistServe's planner for a model and a workload, on its own simulator."""

    model: str = "opt-13b"
    workload: str = "distserve-fig1"
    slo: str | None = None
    cluster: Cluster = NODE
    fitted: bool = False
    joint: bool = False
    skipped: list[Skipped] = field(default_factory=list)
    tried: list[Scored] = field(default_factory=list)

    def rate_per_gpu(self, system: Deployment, engine: str | None = None, seed: int = 0) -> float:
        """The highest rate per GPU that its search finds for a system."""
        loaded = load_workload(RunSpec(workload=self.workload, backend="sim"))
        table = Schedule.draw(loaded.workload, seed=seed, requests=REQUESTS).table
        lengths = [*zip(*(table[f"{of}_tokens"].to_pylist() for of in ("prompt", "output")), strict=True)]
        limits = {bound.metric: bound.limit for bound in parse_slo(self.slo or loaded.slo_text).bounds}
        sides = {group.role: distserve.Side(group.count, group.shape.tp, group.shape.pp) for group in system.groups}
        return distserve.rate_per_gpu(
            lengths, (limits["ttft"], limits["tpot"]), sides, self.model, engine,
            fitted=self.fitted, joint=self.joint, seed=seed,
        )  # fmt: skip

    def best(self, algorithm: Algorithm, seed: int = 0) -> list[Unit]:
        """The units of an algorithm, best first."""

        def refused(shape: Shape) -> str | None:
            try:
                Abc("vllm" if algorithm == "vllm++" else "distserve", self.model, shape.tp, shape.pp)
                catalog.kv_capacity_blocks(self.model, A100, shape, utilisation=UTILISATION)
            except UsageError as error:
                return str(error)
            return None

        here = space(self.model, A100, self.cluster, refused)
        self.skipped.extend(here.skipped)
        scored = []
        for system in here.of(algorithm, self.cluster):
            per_gpu = self.rate_per_gpu(system, seed=seed)
            scored.append(Scored(algorithm, system, rate({seed: per_gpu}, WIDTH), per_gpu, None))
        self.tried.extend(scored)
        return units(algorithm, scored, Objective(), self.cluster)


def sustained(options: PlaceOptions, system: Deployment) -> float:
    """The capacity per GPU of one system under bench's scheduler, in the steady state."""
    return capacity(Question("", options, system)).rate_rps / system.gpus


def pair(prefill: Shape, decode: Shape) -> Deployment:
    """A prefill and a decode replica on A100."""
    return Deployment((Group("prefill", A100, prefill), Group("decode", A100, decode)))


def _readme() -> Iterator[Row]:
    """The README of the released planner, whose ShareGPT lengths are the user's; ours are those of a real run."""
    planner = Planner(workload="distserve-13b-chat", slo="ttft=0.2,tpot=0.1")
    best = planner.best("low")[0]
    mean = fmean(planner.rate_per_gpu(best.deployment, seed=seed) for seed in range(3))
    yield Row(
        "S22.e", SYSTEM, "simulated", f"P(2,1) D(1,1), {README} req/s per GPU (README, ShareGPT)",
        f"{best.name}, mean {mean:.3g} req/s per GPU (seed 0: {best.value:.3g})",
        "the same placement, +-0.25", best.name == "P(2,1) D(1,1)" and abs(mean - README) <= 0.25,
        COMMAND.format("S22"), "lengths of 1,600 requests of a real run, not the user's own; 3 seeds of 300 requests",
    )  # fmt: skip


LARGE = {"slo": "ttft=0.4,tpot=0.1", "model": "opt-66b", "workload": "distserve-66b-chat-ae"}


def _large() -> Iterator[Row]:
    began_s = time.monotonic()
    planner = Planner("opt-66b", "distserve-66b-chat-ae", LARGE["slo"], Cluster(4, 8))
    names: tuple[Algorithm, ...] = ("high", "low", "vllm++")
    best = {name: planner.best(name)[0] for name in names}
    spent_s = time.monotonic() - began_s
    text = ", ".join(f"{name} {unit.name} {unit.value:.3g}" for name, unit in best.items())
    yield Row(
        "S23.a", SYSTEM, "simulated", "High >= Low >= vLLM++", f"{text} req/s per GPU", "order exact",
        best["high"].value >= best["low"].value >= best["vllm++"].value, COMMAND.format("S23"),
    )  # fmt: skip
    published = planner.rate_per_gpu(pair(Shape(4, 1), Shape(2, 2)))
    yield Row(
        "S23.b", SYSTEM, "simulated", "P(4,1) D(2,2) is placed (66B, paper's table 3)",
        f"it sustains {published:.3g}, the best of low {best['low'].value:.3g} req/s per GPU",
        "within 10 % of the best", published >= 0.9 * best["low"].value, COMMAND.format("S23"),
    )  # fmt: skip
    yield _with_memory()
    yield _small_chat()
    yield Row(
        "S24", SYSTEM, "exact", "1.3 min on 96 cores (32 GPUs)",
        f"{spent_s:.0f} s on one core, {len(planner.tried)} candidates, {len({*planner.skipped})} left out",
        "< 10 min on 2 cores, skipped ones listed", spent_s < 600 and bool(planner.skipped), COMMAND.format("S24"),
    )  # fmt: skip


def _with_memory() -> Row:
    """The same where KV memory limits what decodes: our scheduler, the constants of DistServe's engine."""
    options = options_of({**LARGE, "latency": "abc:distserve"}, gpus=8, algorithm="low", seeds=None)
    best = search(options, Store(None), pool.Here()).best[0]
    published = sustained(options, pair(Shape(4, 1), Shape(2, 2)))
    return Row(
        "S23.d", SYSTEM, "simulated", "P(4,1) D(2,2) is placed (66B, paper's table 3)",
        f"it sustains {published:.3g}, the best on a node {best.name} {best.rate_per_gpu_rps:.3g} req/s per GPU",
        "within 10 % of the best",
        published >= 0.9 * best.rate_per_gpu_rps,
        "bench place --gpus 8 --model opt-66b --workload distserve-66b-chat-ae --conditions separate --algorithm low "
        "--latency abc:distserve",
        f"bench's scheduler, with memory and hand-off, in the steady state; {len(options.seeds)} seeds",
    )  # fmt: skip


def _small_chat() -> Row:
    planner = Planner(workload="distserve-13b-chat")
    best, published = planner.best("low")[0], planner.rate_per_gpu(pair(Shape(2, 1), Shape(1, 1)))
    return Row(
        "S23.c", SYSTEM, "simulated", "P(2,1) D(1,1) is placed (13B, paper's table 3)",
        f"it sustains {published:.3g}, the best of low {best.name} {best.value:.3g} req/s per GPU",
        "within 10 % of the best", published >= 0.9 * best.value, COMMAND.format("S23"),
    )  # fmt: skip

"""Placement beside what DistServe's planner finds and its paper prints (K10.2)."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any

from acceptance.rows import Place, Row
from harness.experiments import pool
from harness.experiments.place.execute import Candidate, scored
from harness.experiments.place.execute import run_placement as search
from harness.experiments.place.place_json import BestUnit, PlaceAnswer
from harness.experiments.place.questions import Question, capacity
from harness.experiments.place.settings import REQUESTS, PlaceOptions, place_options
from harness.experiments.place.store import Store
from harness.experiments.place.systems import Deployment, Group, Shape
from harness.experiments.place.task import Task, searched, traffic
from harness.options import Given

SYSTEM = "DistServe, placement"
OWN: Mapping[str, Any] = {
    "nodes": 1, "gpus": 4, "hardware": "a100-80g", "algorithm": "low,vllm++", "goal": None,
    "conditions": "separate", "rate": None, "objective": "gpu", "prices": None, "power": None, "requests": None,
    "seeds": 1, "seed": None, "max_rate": 8, "width": 0.0625,
}  # fmt: skip
A100 = "a100-80g"
COMMAND = "bench place --nodes 1 --gpus 4 --model opt-13b --algorithm low,vllm++ --conditions separate --slo "
WIDTH = 0.0625
"""The width of the published search, req/s per GPU."""

README, PUBLISHED_GAIN = 1.56, {"chat": (2.0, 4.6), "code": (3.2, 5.7), "summ": (4.3, 4.5)}
"""Per-GPU rate that the released planner's README promises; gains over vLLM of both versions of the paper."""


def rows(place: Place) -> Iterator[Row]:
    """S22 to S25: the released planner on one node, the published placements, 32 GPUs, and what is gained."""
    del place
    yield from _released()
    yield from _readme()
    yield from _large()
    yield from _gains()


def options_of(run: Mapping[str, object], **own: Any) -> PlaceOptions:
    """The options of a search, those of DistServe's planner by default."""
    return place_options(Given(run), None, {**OWN, **own})


def _found(run: Mapping[str, object], **own: Any) -> PlaceAnswer:
    return search(options_of(run, **own), Store(None), pool.Here())


def rate_per_gpu(options: PlaceOptions, system: Deployment) -> float:
    """The highest rate per GPU of one system in trials as those of DistServe's planner, mean over the seeds."""
    options = replace(options, spec=replace(options.spec, requests=options.spec.requests or REQUESTS))
    kind = system.kind
    task = Task(
        "", system, options.of(system), options.bounds(kind), options.wanted(kind),
        traffic(options.spec, options.seeds), options.seeds, 8.0, WIDTH,
    )  # fmt: skip
    return fmean(scored(options, Candidate("low", system), searched(task)).per_gpu.by_seed.values())


def sustained(options: PlaceOptions, system: Deployment) -> float:
    """The capacity per GPU of one system under bench's scheduler, in the steady state."""
    return capacity(Question("", options, system)).rate_rps / system.gpus


def pair(prefill: Shape, decode: Shape) -> Deployment:
    """A prefill and a decode replica on A100."""
    return Deployment((Group("prefill", A100, prefill), Group("decode", A100, decode)))


def colocated(shape: Shape, policy: str = "") -> Deployment:
    """A colocated replica on A100."""
    return Deployment((Group("mixed", A100, shape, policy=policy),))


def _released() -> Iterator[Row]:
    for letters, slo, best, published, plain, plain_published in (
        ("ab", "ttft=0.2,tpot=0.1", "P(2,1) D(1,1)", 4.75, "(1,2)", 3.625),
        ("cd", "ttft=0.4,tpot=0.04", "P(1,2) D(2,1)", 6.25, "(1,1)", 1.5625),
    ):
        info = _found({"slo": slo})
        by = {one.algorithm: one for one in info.best}
        yield _best(f"S22.{letters[0]}", by["low"], best, published, slo)
        yield _best(f"S22.{letters[1]}", by["vllm++"], plain, plain_published, slo)


def _best(name: str, found: BestUnit, best: str, published: float, slo: str) -> Row:
    ties = [found.name, *found.ties]
    rate = found.rate_per_gpu_rps
    return Row(
        name, SYSTEM, "exact", f"{best}, {published:g} req/s per GPU", f"{found.name}, {rate:g} req/s per GPU",
        "the same placement (or a tie), +-0.0625", best in ties and abs(rate - published) <= WIDTH, COMMAND + slo,
        f"as good: {', '.join(ties[1:])}" if len(ties) > 1 else "",
    )  # fmt: skip


def _readme() -> Iterator[Row]:
    """The README of the released planner, whose ShareGPT lengths are the user's; ours are those of a real run."""
    run = {"slo": "ttft=0.2,tpot=0.1", "workload": "distserve-13b-chat"}
    info = _found(run, algorithm="low", seeds=3)
    best = info.best[0]
    ties = [best.name, *best.ties, *best.not_apart]
    mean = best.mean_per_gpu_rps or 0.0
    tied = f"not distinguishable: {', '.join(ties[1:])}; " if len(ties) > 1 else ""
    yield Row(
        "S22.e", SYSTEM, "simulated", f"P(2,1) D(1,1), {README} req/s per GPU (README, ShareGPT)",
        f"{best.name}, mean {mean:.3g} req/s per GPU (seed 0: {best.rate_per_gpu_rps:.3g})",
        "the same placement (or not distinguishable), +-0.25", "P(2,1) D(1,1)" in ties and abs(mean - README) <= 0.25,
        "bench place --gpus 4 --algorithm low --conditions separate --slo ttft=0.2,tpot=0.1 "
        "--workload distserve-13b-chat --seeds 3",
        f"{tied}lengths of 1,600 requests of a real run, not the user's own; 3 seeds of 300 requests",
    )  # fmt: skip


LARGE = {"slo": "ttft=0.4,tpot=0.1", "model": "opt-66b", "workload": "distserve-66b-chat-ae"}
ASK_LARGE = (
    "bench place --nodes 4 --gpus 8 --model opt-66b --workload distserve-66b-chat-ae --conditions separate "
    "--slo ttft=0.4,tpot=0.1"
)


def _large() -> Iterator[Row]:
    large = options_of(LARGE, nodes=4, gpus=8, algorithm="all")
    info = search(large, Store(None), pool.Here())
    best = {one.algorithm: one for one in info.best}
    rates = {name: one.rate_per_gpu_rps for name, one in best.items()}
    rates_text = ", ".join(f"{name} {best[name].name} {rates[name]:.3g}" for name in ("high", "low", "vllm++"))
    yield Row(
        "S23.a", SYSTEM, "simulated", "High >= Low >= vLLM++", f"{rates_text} req/s per GPU", "order exact",
        rates["high"] >= rates["low"] >= rates["vllm++"], ASK_LARGE,
    )  # fmt: skip
    published = rate_per_gpu(large, pair(Shape(4, 1), Shape(2, 2)))
    yield Row(
        "S23.b", SYSTEM, "simulated", "P(4,1) D(2,2) is placed (66B, paper's table 3)",
        f"it sustains {published:.3g}, the best of low {rates['low']:.3g} req/s per GPU", "within 10 % of the best",
        published >= 0.9 * rates["low"], ASK_LARGE,
    )  # fmt: skip
    yield _with_memory()
    yield _small_chat()
    cost = info.cost
    assert cost is not None
    yield Row(
        "S24", SYSTEM, "exact", "1.3 min on 96 cores (32 GPUs)",
        f"{cost.wall_s:.0f} s on one core, {cost.candidates} candidates, {len(info.skipped)} left out",
        "< 10 min on 2 cores, skipped ones listed", cost.wall_s < 600 and bool(info.skipped), ASK_LARGE,
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
    run = {"workload": "distserve-13b-chat"}
    here = options_of(run, algorithm="low")
    best = search(here, Store(None), pool.Here()).best[0]
    published = rate_per_gpu(here, pair(Shape(2, 1), Shape(1, 1)))
    return Row(
        "S23.c", SYSTEM, "simulated", "P(2,1) D(1,1) is placed (13B, paper's table 3)",
        f"it sustains {published:.3g}, the best of low {best.name} {best.rate_per_gpu_rps:.3g} req/s per GPU",
        "within 10 % of the best", published >= 0.9 * best.rate_per_gpu_rps,
        "bench place --gpus 4 --algorithm low --conditions separate --workload distserve-13b-chat",
    )  # fmt: skip


ENGINES: Mapping[str, tuple[str, str]] = {
    "plain fits": ("abc:vllm,fitted=true", "abc:distserve,fitted=true"),
    "released": ("abc:vllm", "abc:distserve"),
    "same engine": ("abc:distserve", "abc:distserve"),
}
"""Constants of vLLM and of DistServe: as fitted to measurements, as the released planner has them, and equal."""


def _gains() -> Iterator[Row]:
    small, large = pair(Shape(2, 1), Shape(1, 1)), pair(Shape(4, 1), Shape(2, 2))
    yield _gain("S25.a", "chat", {"model": "opt-13b", "workload": "distserve-13b-chat"}, Shape(1, 1), small)
    yield _gain("S25.b", "chat", {"model": "opt-66b", "workload": "distserve-66b-chat-ae"}, Shape(4, 1), large)
    yield _gain("S25.c", "code", {"model": "opt-66b", "workload": "distserve-66b-code"}, Shape(4, 1), large)
    yield _gain("S25.d", "summ", {"model": "opt-66b", "workload": "distserve-66b-summ"}, Shape(4, 1), large)
    yield _largest()


def _gain(name: str, kind: str, run: Mapping[str, object], plain: Shape, placed: Deployment) -> Row:
    found = {which: _rates(run, plain, placed, engines) for which, engines in ENGINES.items()}
    ratios = {which: _times(*both) for which, both in found.items()}
    ours, theirs = found["plain fits"]
    ask = f"bench place --backend sim:compat=distserve_sim --model {run['model']} --gpus 8 --workload {run['workload']}"
    low, high = PUBLISHED_GAIN[kind]
    within = {which: bool(vllm) and low / 1.6 <= mine / vllm <= high * 1.6 for which, (mine, vllm) in found.items()}
    sensitive = (
        "" if len({*within.values()}) == 1 else "; sensitive: the verdict depends on the constants of the engines"
    )
    return Row(
        name, SYSTEM, "simulated", f"{run['workload']}: {low:g} to {high:g} times vLLM's rate per GPU",
        f"{placed.name} {ours:.3g}, vLLM {theirs:.3g} req/s per GPU: {ratios['plain fits']}; released constants "
        f"{ratios['released']}, same engine {ratios['same engine']}",
        "plain fits within a factor 1.6 of either version", within["plain fits"],
        f"{ask} --algorithm low --latency abc:distserve,fitted=true && "
        f"{ask} --algorithm vllm++ --latency abc:vllm,fitted=true",
        "published placements, 90 % of requests within both bounds; constants as fitted to each engine, as released "
        f"(prefill x1.1 and x1.4, decode x1 and x1.2), and DistServe's for both{sensitive}",
    )  # fmt: skip


def _largest() -> Row:
    """OPT-175B, of which no constants were published: our scheduler and one roofline for both sides."""
    run = {"model": "opt-175b", "workload": "distserve-175b-chat", "latency": "roofline"}
    found = options_of(run, nodes=4, gpus=8, algorithm="high,vllm++", conditions="joint", seeds=None)
    placed = pair(Shape(3, 3), Shape(4, 3))
    ours, theirs = sustained(found, placed), sustained(found, colocated(Shape(8, 1), "vllm-v0"))
    low, high = PUBLISHED_GAIN["chat"]
    return Row(
        "S25.e", SYSTEM, "simulated", f"{run['workload']}: {low:g} to {high:g} times vLLM's rate per GPU",
        f"{placed.name} {ours:.3g}, vLLM (8,1) {theirs:.3g} req/s per GPU: {_times(ours, theirs)}",
        "factor 1.6 of either version",
        bool(theirs) and low / 1.6 <= ours / theirs <= high * 1.6,
        "bench place --nodes 4 --gpus 8 --algorithm high,vllm++ --policy vllm-v0 "
        + " ".join(f"--{name} {value}" for name, value in run.items()),
        "published placement; one roofline for both engines; no constants of OPT-175B are published",
    )  # fmt: skip


def _times(ours: float, theirs: float) -> str:
    return f"{ours / theirs:.2f} times" if theirs else "vLLM meets the SLO at no rate"


def _rates(
    run: Mapping[str, object], plain: Shape, placed: Deployment, engines: tuple[str, str]
) -> tuple[float, float]:
    """Rates per GPU of the placed pair and of vLLM, with these constants."""
    theirs, ours = (
        options_of({**run, "backend": "sim:compat=distserve_sim", "latency": latency}, conditions="joint")
        for latency in engines
    )
    return rate_per_gpu(ours, placed), rate_per_gpu(theirs, colocated(plain))

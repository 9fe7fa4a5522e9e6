"""Experts spread over many GPUs (DeepSeek-V3), and attention and experts on different GPUs (MegaScale-Infer)."""

from collections.abc import Iterator
from dataclasses import replace
from statistics import fmean

import numpy as np

from acceptance.rows import Place, Row
from backends.sim import Sim
from harness.api import Request
from harness.catalog import Shape, hardware, model
from harness.errors import UsageError
from harness.experiments.theory.afd import Decode, colocated, deployments
from harness.experiments.theory.expert_load import ExpertUnit, failure, imbalance
from harness.experiments.validate.simulated import sent_again

DEEPSEEK = model("deepseek-v3-fp8")
PREFILL, DECODE = Shape(4, dp=8, ep=32), Shape(4, dp=80, ep=320)
SEEDS = range(5)
_UNITS = "DeepSeek-V3 cluster"
_APART = "MegaScale-Infer"
_SERVICE = "Expert-as-a-Service"


def rows(place: Place) -> Iterator[Row]:
    """The published units and their balance (S36), attention apart from experts (S38), and failures (S39)."""
    del place
    yield _configuration()
    yield from _balance()
    yield from _apart()
    yield _simulated()
    yield from _failures()


def _configuration() -> Row:
    units = {"prefill": ExpertUnit(DEEPSEEK, PREFILL, 32), "decode": ExpertUnit(DEEPSEEK, DECODE, 63, shared=True)}
    found = {name: (one.shape.gpus, one.per_gpu) for name, one in units.items()}
    wrong = (
        ExpertUnit(DEEPSEEK, PREFILL, 31), ExpertUnit(DEEPSEEK, DECODE, 64, shared=True), ExpertUnit(DEEPSEEK, DECODE),
        ExpertUnit(DEEPSEEK, Shape(3, dp=8, ep=24), 8), ExpertUnit(DEEPSEEK, Shape(4, dp=8, ep=16)),
        ExpertUnit(model("llama3-70b"), PREFILL),
    )  # fmt: skip
    refused = sum(_is_refused(one) for one in wrong)
    return Row(
        "S36.a", _UNITS, "formula", "prefill TP4 DP8 EP32: 32 GPUs, 8 experts and a redundant one each; decode TP4 "
        "DP80 EP320: 320 GPUs, an expert each, 64 of them redundant or shared",
        "; ".join(f"{name}: {gpus} GPUs with {held}" for name, (gpus, held) in found.items())
        + f"; {refused} of {len(wrong)} wrong units are refused", "exact",
        found == {"prefill": (32, 9), "decode": (320, 1)} and refused == len(wrong),
        "bench theory experts:dp=80,redundant=63,shared=true,tokens=30",
        "63 redundant experts and the shared one on 64 GPUs.",
    )  # fmt: skip


def _is_refused(unit: ExpertUnit) -> bool:
    try:
        return unit.per_gpu < 0
    except UsageError:
        return True


def _balance() -> Iterator[Row]:
    """Tokens of the most loaded GPU over the mean, by redundant experts."""
    cases = (
        ("b", "prefill", [ExpertUnit(DEEPSEEK, PREFILL, n) for n in (0, 32, 64)], 1024,
         " --over redundant=0,32,64"),
        ("c", "decode", [ExpertUnit(DEEPSEEK, DECODE, n, shared=True) for n in (63, 383)], 30,
         ":dp=80,shared=true,tokens=30 --over redundant=63,383"),
    )  # fmt: skip
    for letter, name, units, tokens, options in cases:
        found = [[imbalance(unit, tokens * unit.shape.gpus, 1.01, seed) for seed in SEEDS] for unit in units]
        order = fmean(one.in_order for one in found[0])
        means = [fmean(one.placed for one in some) for some in found]
        texts = [
            f"{mean:.2f} with {unit.redundant} redundant ({min(o.placed for o in some):.2f} to "
            f"{max(o.placed for o in some):.2f})"
            for unit, mean, some in zip(units, means, found, strict=True)
        ]
        steps = [order, *means]
        yield Row(
            f"S36.{letter}", _UNITS, "simulated", f"{name}: max / mean expert load falls with redundant experts",
            f"{order:.2f} in order; placed by load {', '.join(texts)}; {found[0][0].tokens:,.0f} tokens an expert",
            "falls", all(a > b for a, b in zip(steps, steps[1:], strict=False)), f"bench theory experts{options}",
            f"{tokens:,} tokens per GPU and step, 5 seeds, popularity by a power law of exponent 1.01 (a model)."
            + (" The paper has within 256 tokens an expert in decode." if name == "decode" else ""),
        )  # fmt: skip


def _apart() -> Iterator[Row]:
    """Mixtral-8x22B with 8 experts and more, 571 tokens in and 159 out, ITL within 150 ms."""
    mixtral, ratios, best, near = model("mixtral-8x22b"), {}, {}, {}
    assert mixtral.experts is not None
    for routed in (8, 16, 32):
        shape = replace(mixtral, experts=replace(mixtral.experts, routed=routed))
        decode = Decode(shape, hardware("a100-80g"), context=571 + 159 // 2, itl_s=0.15, network_bytes_per_s=25e9)
        together, apart = colocated(decode), [*deployments(decode)]
        assert together is not None
        best[routed] = max(apart, key=lambda one: one.rate)
        ratios[routed] = best[routed].rate / together.rate
        near[routed] = sum(abs(one.nodes - one.rule) <= 1 for one in apart), len(apart)
    texts = ", ".join(f"{ratio:.2f} times with {routed}" for routed, ratio in ratios.items())
    command = "bench theory afd --over experts=8,16,32"
    yield Row(
        "S38.a", _APART, "formula", "decode rate per GPU beside colocated: up to 2.56 times vLLM, 1.28 TensorRT-LLM",
        f"Mixtral-8x22B: {texts} experts", "1.2 and more with 8", ratios[8] >= 1.2, command,
        "A100, constants of the peaks for both; the colocated replica is the best of tp 1 to 8 and pp 1 to 8, which "
        "the published baselines are not.",
    )  # fmt: skip
    yield Row(
        "S38.b", _APART, "formula", "the gain grows with the number of experts (7.11 and 1.90 times with 32)", texts,
        "grows", ratios[8] < ratios[16] < ratios[32], command, "more experts of the same size, two per token",
    )  # fmt: skip
    yield Row(
        "S38.c", _APART, "formula", "n_a = k1 E / (k3 K) attention nodes are near the optimum",
        "; ".join(f"{n} experts: best {one.nodes}, rule {one.rule:.1f}" for n, one in best.items()), "within 1",
        all(abs(one.nodes - one.rule) <= 1 for one in best.values()), command,
        "The rule leaves out the constant parts of both times. Within 1 by division of both sides: "
        + ", ".join(f"{close} of {every} with {n} experts" for n, (close, every) in near.items()) + ".",
    )  # fmt: skip


def _simulated() -> Row:
    """The same in the simulator: the best of a few divisions, decoding alone with the most users within the bound."""
    together = {of: _decoded("roofline", of) for of in ("tp=8", "tp=8,pp=2")}
    parts = _decoded("roofline", "tp=2,dp=4,ep=8")
    latency = "af:experts=8,network_bytes_per_s=25e9"
    apart = {of: _decoded(latency, of) for of in ("tp=2", "tp=4", "tp=8")}
    (near, least), (of, best) = (max(found.items(), key=lambda pair: pair[1]) for found in (together, apart))
    return Row(
        "S38.d", _APART, "simulated", "decode rate per GPU beside colocated: up to 2.56 times vLLM, 1.28 TensorRT-LLM",
        f"{best / least:.2f} times ({of} and 8 GPUs of experts: {best:,.0f} tokens/s per GPU; colocated {near}: "
        f"{least:,.0f}); {best / parts:.2f} times attention DP with EP 8 ({parts:,.0f})", "1.2 and more",
        best / least >= 1.2,
        f"bench run --backend sim:decode=1:tp=4 --model mixtral-8x22b --latency {latency} "
        "--workload fixed:prompt=571,output=159 --arrivals closed:users=1536,think=0 --requests 6144",
        "A100, prompts computed elsewhere, p90 of TPOT within 150 ms, up to 4,096 users; roofline on both sides. KV of "
        "the whole batch is on the GPUs of attention alone, which bounds it.",
    )  # fmt: skip


def _decoded(latency: str, of: str) -> float:
    """Tokens per second and GPU of one replica that decodes, the best number of users."""
    best = 0.0
    for users in (512, 1024, 1536, 2048, 3072, 4096):
        side = f"1:{of},policy=distserve-decode:max_seqs=4096"
        simulator = Sim("mixtral-8x22b", "a100-80g", latency, decode=side, log_steps=False)
        waiting = [Request(i, 0.0, 571, 159) for i in range(4 * users)]
        tokens = [record.token_s for record in sent_again(simulator, waiting, users) if record.status == "ok"]
        end_s = max(stamps[-1] for stamps in tokens)
        if np.quantile([(stamps[-1] - stamps[0]) / (len(stamps) - 1) for stamps in tokens], 0.9) > 0.15:
            break
        inside = sum(end_s / 4 < at_s < 3 * end_s / 4 for stamps in tokens for at_s in stamps)
        best = max(best, inside / (end_s / 2) / int(str(simulator.describe()["gpus"])))
    return best


def _failures() -> Iterator[Row]:
    """One of the GPUs that serve experts fails: two copies of each expert and more, and plain expert parallelism."""
    losses, texts, stops = [], [], []
    for gpus in (32, 64):
        shape = Shape(4, dp=gpus // 4, ep=gpus)
        for skew, name in ((0.0, "experts alike"), (1.01, "skewed")):
            unit = ExpertUnit(DEEPSEEK, shape, 256, copies=2)
            found = [failure(unit, 64 * gpus, skew, seed) for seed in SEEDS]
            losses += [1.0 if one.loss is None else one.loss for one in found]
            texts.append(f"{fmean(losses[-len(SEEDS) :]):.1%} ({gpus} GPUs, {name})")
            stops += [failure(ExpertUnit(DEEPSEEK, shape), 64 * gpus, skew, seed).stops for seed in SEEDS]
    command = "bench theory experts:copies=2,redundant=256,fail=true,tokens=64 --over dp=8,16 --over skew=0,1.01"
    yield Row(
        "S39.a", _SERVICE, "formula", "less than 2 % of throughput lost under failures (abstract)", "; ".join(texts),
        "at most 3 % in each", max(losses) <= 0.03, command,
        "Two copies of each of DeepSeek-V3's experts, tokens to the least loaded live copy, experts bound the "
        "throughput: N GPUs then lose 1 / N at least, more where a hot expert has one copy left. The number of "
        "GPUs behind the published figure is not in the abstract; in the simulator no expert server can fail.",
    )  # fmt: skip
    yield Row(
        "S39.b", _SERVICE, "formula", "a failure halts plain expert parallelism",
        f"the failure of {fmean(stops):.0%} of the GPUs leaves experts without a copy", "exact", set(stops) == {1.0},
        "bench theory experts:redundant=0,fail=true", "one copy of each expert",
    )  # fmt: skip

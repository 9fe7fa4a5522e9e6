"""Clusters: prefill and decode apart, the hand-off between them, pipelines, and what goodput means (K04, K10)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from acceptance.rows import Place, Row
from acceptance.topics._trials import VLLM, quantile, trial
from backends.systems import distserve
from backends.systems.distserve import Side

DISTSERVE, SIMDISTSERVE, SARATHI = "DistServe", "DistServe's simulator", "Sarathi-Serve"
HOST = "roofline:seq_s=0.000351"
"""With the host's work per sequence as fitted to vLLM on H100, to show how far a verdict depends on it."""
SEEDS = 5
SHAPES: Mapping[str, distserve.Cluster] = {
    "colocated": {"mixed": Side()}, "prefill": {"prefill": Side()}, "decode": {"decode": Side()},
    "2P1D": {"prefill": Side(2), "decode": Side()},
}  # fmt: skip
CHECK = "python -m pytest tests/theory/test_distserve_simulator.py"
FALCON: Mapping[str, object] = {
    "backend": "sim:max_model_len=8192", "model": "falcon-180b", "tp": 4, "pp": 2,
    "workload": "sharegpt-8k", "requests": 200,
}  # fmt: skip
POLICIES: Mapping[str, Mapping[str, str]] = {
    "orca": {"policy": "orca:max_batch=8", "kv": "reserve-max:max_tokens=8192"},
    "vllm": {"policy": VLLM},
    "sarathi": {"policy": "sarathi:budget=512"},
    "sarathi-2048": {"policy": "sarathi:budget=2048"},
}


def rows(place: Place) -> Iterator[Row]:
    """S11, S19, S20, S21, S32 and S33."""
    del place
    yield from _bubbles()
    yield from _goodput_example()
    yield _goodput_metric()
    yield from _golden()
    yield from _stages()
    yield _burst()


def times(rate_rps: float, requests: int, seed: int, shape: distserve.Cluster) -> tuple[np.ndarray, np.ndarray]:
    """(requests,) TTFT and TPOT in seconds of 512 tokens in and 64 out, by DistServe's simulator, vLLM's constants."""
    sent = [(at_s, 512, 64) for at_s in distserve.arrivals_s(rate_rps, requests, seed).tolist()]
    return distserve.simulated(sent, shape, engine="vllm")


def _goodput_example() -> Iterator[Row]:
    """S19: capacities of 512 tokens in and 64 out at P90 TTFT 0.4 s and P90 TPOT 0.04 s."""
    gpus = {"2P1D": 3}
    found = {name: [_capacity(shape, gpus.get(name, 1), seed) for seed in range(5)] for name, shape in SHAPES.items()}
    mean = {name: sum(rates) / len(rates) for name, rates in found.items()}
    golden = {"colocated": 1.72, "prefill": 7.56, "decode": 10.94, "2P1D": 3.65}
    spread = ", ".join(f"{name} {min(rates):.2f}-{max(rates):.2f}" for name, rates in found.items())
    ratio = mean["2P1D"] / mean["colocated"]
    same = {name: rates[0] for name, rates in found.items()}
    same_ratio = same["2P1D"] / same["colocated"]
    yield Row(
        "S19.a", DISTSERVE, "simulated", "its simulator: 1.72, 7.56, 10.94, 3.65 req/s a GPU, ratio 2.12",
        ", ".join(f"{same[name]:.2f}" for name in SHAPES) + f" req/s a GPU, ratio {same_ratio:.2f}", "+-3 %",
        all(abs(same[name] / rate - 1) <= 0.03 for name, rate in golden.items()) and abs(same_ratio / 2.12 - 1) <= 0.03,
        CHECK,
        "colocated, prefill, decode, 2P1D; 2,000 requests of seed 0, for which the published ones were found too; "
        f"5 seeds span {spread}",
    )  # fmt: skip
    paper = {"colocated": 1.6, "decode": 10.0, "2P1D": 3.3}
    yield Row(
        "S19.b", DISTSERVE, "simulated", "paper: 1.6, 5.6, 10, 3.3 req/s a GPU, ratio 2.1",
        ", ".join(f"{mean[name]:.2f}" for name in SHAPES) + f" req/s a GPU, ratio {ratio:.2f}",
        "colocated, decode, 2P1D within 12 %, ratio 2.1 +-0.15; prefill for information",
        all(abs(mean[name] / rate - 1) <= 0.12 for name, rate in paper.items()) and abs(ratio - 2.1) <= 0.15,
        CHECK,
        f"mean of 5 seeds; min-rule: min(2 x {mean['prefill']:.2f}, {mean['decode']:.2f})/3 = "
        f"{min(2 * mean['prefill'], mean['decode']) / 3:.2f}",
    )  # fmt: skip


def _capacity(shape: distserve.Cluster, gpus: int, seed: int) -> float:
    """Highest rate per GPU, in requests per second, that meets both bounds; bisected to 0.5 %."""
    import numpy as np

    low, high = 0.25, 16.0
    while high / low > 1.005:
        middle = (low * high) ** 0.5
        ttft, tpot = times(middle * gpus, 2000, seed, shape)
        if np.percentile(ttft, 90) < 0.4 and np.percentile(tpot, 90) < 0.04:
            low = middle
        else:
            high = middle
    return float(low)


def _goodput_metric() -> Row:
    """S20: ten requests a second of which three meet the bounds."""
    from harness.data.records import to_table
    from harness.metrics.objective import parse_slo
    from harness.metrics.summary import summarize

    summary = summarize(to_table(_ten_a_second()), parse_slo("ttft=0.2,tpot=0.05"))
    throughput, goodput, share = summary.throughput_rps or 0.0, summary.goodput_rps or 0.0, summary.attainment or 0.0
    return Row(
        "S20", "goodput", "exact", "throughput 10 req/s, goodput 3 req/s",
        f"throughput {throughput:.6g} req/s, goodput {goodput:.6g} req/s, attainment {share:.0%}", "exact",
        abs(throughput - 10) < 1e-9 and abs(goodput - 3) < 1e-9,
        "bench run --backend sim --latency roofline --slo ttft=0.2,tpot=0.05",
        "a hand-written table of 100 requests; seven of ten miss a bound",
    )  # fmt: skip


def _ten_a_second() -> list[Any]:
    from harness.api import RequestRecord

    records = []
    for i in range(100):
        at_s, gap_s = i * 0.1, 0.04 if i % 10 < 3 else 0.09
        stamps = [at_s + 0.1 - gap_s, at_s + 0.1]  # the last token of the last request comes at 10 s
        records.append(RequestRecord(i, at_s, at_s, stamps, None, 10, 2, 2, "ok"))
    return records


def _golden() -> Iterator[Row]:
    """S21: GN1 and GN2."""
    import numpy as np

    cases: dict[str, tuple[float, str, tuple[float, ...], tuple[float, ...]]] = {
        "S21.a": (1.0, "colocated", (111.73, 125.52, 196.13), (29.760, 33.814, 40.187)),
        "S21.b": (3.0, "colocated", (119.91, 194.55, 330.49), (41.859, 52.903, 65.791)),
        "S21.c": (5.6, "2P1D", (99.16, 116.55, 195.39), (30.931, 32.786, 34.747)),
    }
    for row_id, (rate_rps, name, *published) in cases.items():
        values = [(1e3 * np.quantile(of, (0.5, 0.9, 0.99))).tolist() for of in times(rate_rps, 1000, 0, SHAPES[name])]
        worst = max(
            float(np.max(np.abs(got / np.array(stated) - 1))) for got, stated in zip(values, published, strict=True)
        )
        yield Row(
            row_id, SIMDISTSERVE, "exact", f"{name}, {rate_rps:g} req/s: {_six(published)}", _six(values),
            "0.1 % (same arrivals)", worst <= 1e-3,
            CHECK,
            f"P50/P90/P99 of TTFT and of TPOT; largest deviation {worst:.1e}",
        )  # fmt: skip


def _six(values: Any) -> str:
    first, second = values
    return f"{'/'.join(f'{v:.2f}' for v in first)}, {'/'.join(f'{v:.3f}' for v in second)} ms"


def _bubbles() -> Iterator[Row]:
    """S11: Falcon-180B on two stages of four GPUs."""
    found = [
        {name: _bubble_share({**FALCON, **how, "rate": 1.0, "seed": seed}) for name, how in POLICIES.items()}
        for seed in range(SEEDS)
    ]
    shares = {name: sum(one[name] for one in found) / SEEDS for name in POLICIES}
    below = sum(one["sarathi"] < min(one["orca"], one["vllm"]) for one in found)
    heavy = {name: _bubble_share({**FALCON, **POLICIES[name], "rate": 1.0, "latency": HOST}) for name in POLICIES}
    equal = _bubble_share({
        "backend": "sim", "pp": 2, "latency": "linear", "policy": "vllm-v0:max_seqs=1", "rate": 1000,
        "workload": "fixed:prompt=64,output=8", "requests": 100,
    })  # fmt: skip
    ask = "bench run --backend sim:max_model_len=8192 --latency roofline --model falcon-180b --tp 4 --pp 2 "
    ask += "--workload sharegpt-8k --rate 1 --policy "
    yield Row(
        "S11.a", SARATHI, "simulated", "bubbles shrink with chunks; none between equal batches",
        f"idle share of busy stages: sarathi-512 {shares['sarathi']:.1%}, orca {shares['orca']:.1%}, vllm-v0 "
        f"{shares['vllm']:.1%}, sarathi-512 lowest in {below}/{SEEDS} seeds; equal batches {equal:.1%}",
        "sarathi below both in every seed; equal batches 0", below == SEEDS and equal < 1e-9,
        ask + "sarathi:budget=512 --requests 200",
        f"budget 2048: {shares['sarathi-2048']:.1%}; 200 requests at 1 req/s, roofline. With {HOST}, seed 0: "
        + ", ".join(f"{name} {share:.1%}" for name, share in heavy.items()) + ".",
    )  # fmt: skip
    strict, relaxed = (_falcon_capacity(name, bound_s) / _falcon_capacity("vllm", bound_s)
                       for name, bound_s in (("sarathi", 1.0), ("sarathi-2048", 5.0)))  # fmt: skip
    yield Row(
        "S11.b", SARATHI, "simulated", "capacity gain over vLLM TP4-PP2: 3.6x strict, 1.48x relaxed",
        f"{strict:.1f}x strict (P99 ITL 1 s, budget 512), {relaxed:.2f}x relaxed (5 s, budget 2048)",
        "larger under the strict bound", strict > relaxed > 1,
        ask.replace("bench run", "bench capacity").replace(" --rate 1", "")
        + f"{VLLM} --slo p99:itl=1 --definition sarathi",
        "200 requests, one seed, median scheduling delay at most 2 s; hops between nodes take no time",
    )  # fmt: skip


def _bubble_share(options: Mapping[str, object]) -> float:
    share = trial(None, **options).plan.backend.describe()["bubble_share"]
    assert isinstance(share, float)
    return share


def _falcon_capacity(name: str, itl_p99_s: float) -> float:
    low, high = 0.02, 6.0
    while high / low > 1.04:
        middle = (low * high) ** 0.5
        table = trial(None, **FALCON, **POLICIES[name], rate=middle).table
        if quantile(table, "itl", 0.99) <= itl_p99_s and quantile(table, "scheduling-delay", 0.5) <= 2.0:
            low = middle
        else:
            high = middle
    return low


def _stages() -> Iterator[Row]:
    """S32: the hand-off of OPT-66B and OPT-175B with the placements of DistServe's table 3."""
    cases = {
        "S32.a": ("distserve-66b-chat", {"model": "opt-66b", "prefill": "1:tp=4", "decode": "1:tp=2,pp=2"}, 8),
        "S32.b": ("distserve-175b-chat", {"model": "opt-175b", "prefill": "1:tp=3,pp=3", "decode": "1:tp=4,pp=3"}, 21),
    }
    for row_id, (workload, system, gpus) in cases.items():
        options = {"backend": "sim", "workload": workload, "rate": 0.125 * gpus, "requests": 300, **system}
        fast, slow = (_worst(link, options) for link in ("nvlink", "25Gbps"))
        ask = " ".join(f"--{name} {value}" for name, value in options.items())
        yield Row(
            row_id, DISTSERVE, "simulated", "hand-off < 0.1 % of all time, > 95 % of them < 30 ms (OPT-175B, NVLink)",
            f"NVLink at most {fast[0]:.3%}, P95 {fast[1] * 1e3:.1f} ms; 25 Gbps {slow[0]:.1%}, P95 "
            f"{slow[1] * 1e3:.0f} ms, at least {slow[2]:.0%} of it waiting for the link or for room",
            "NVLink < 0.1 % and P95 < 30 ms; at 25 Gbps mostly queueing for OPT-175B",
            fast[0] < 1e-3 and fast[1] < 0.03 and (row_id == "S32.a" or slow[2] > 0.5),
            f"bench run {ask}",
            f"the five stages sum to E2E within {max(fast[3], slow[3]):.0e} s; 0.125 req/s a GPU, roofline; "
            f"the worst of {SEEDS} seeds",
        )  # fmt: skip


def _worst(link: str, options: Mapping[str, object]) -> tuple[float, float, float, float]:
    """The worst of several seeds in each number of `_handoffs`."""
    found = [_handoffs(trial(None, link=link, seed=seed, **options).table) for seed in range(SEEDS)]
    share, p95_s, waiting, gap_s = zip(*found, strict=True)
    return max(share), max(p95_s), min(waiting), max(gap_s)


def _handoffs(table: pa.Table) -> tuple[float, float, float, float]:
    """Of the hand-offs: share of all time, P95 in seconds, share that is waiting; largest gap of the five stages."""
    import numpy as np

    kept = table.filter(np.isfinite(_column(table, "handoff_end_s")))
    due, begun, done, start, end, decode = (_column(kept, f"{name}_s") for name in (
        "scheduled", "prefill_start", "prefill_end", "handoff_start", "handoff_end", "decode_start"))  # fmt: skip
    last = np.array([stamps[-1] for stamps in kept["token_s"].to_pylist()])
    handoff, to_pull = end - start, start - done
    alone = np.min(handoff / kept["prompt_tokens"].to_numpy()) * kept["prompt_tokens"].to_numpy()
    waiting = float(np.sum(handoff - alone + to_pull) / np.sum(handoff + to_pull))
    five = (begun - due) + (done - begun) + handoff + (to_pull + (decode - end)) + (last - decode)
    return (
        float(handoff.sum() / (last - due).sum()), float(np.percentile(handoff, 95)), waiting,
        float(np.max(np.abs(five - (last - due)))),
    )  # fmt: skip


def _column(table: pa.Table, name: str) -> np.ndarray:
    import numpy as np

    found: np.ndarray = table[name].to_numpy().astype(np.float64)
    return found


def _overflows(how: str, seed: int, latency: str = "abc:distserve") -> tuple[int, int]:
    """(hand-offs that found no room, preemptions) of bursts of arrivals."""
    run = trial(
        None, backend="sim", model="opt-13b", latency=latency, workload="distserve-13b-chat", requests=1000,
        arrivals="gamma:cv=4", rate=6, prefill="2", decode="1", handoff=how, seed=seed,
    )  # fmt: skip
    overflows = run.plan.backend.describe()["handoff_overflows"]
    assert isinstance(overflows, int)
    return overflows, sum(p or 0 for p in run.table["preemptions"].to_pylist())


def _span(seen: Sequence[tuple[int, int]], place: int) -> str:
    values = [one[place] for one in seen]
    return f"{min(values)} to {max(values)}"


def _burst() -> Row:
    """S33: bursts of arrivals, pulled and pushed."""
    pulled, pushed = ([_overflows(how, seed) for seed in range(SEEDS)] for how in ("pull", "push"))
    others = [_overflows(how, 0, "roofline")[0] for how in ("pull", "push")]
    return Row(
        "S33", DISTSERVE, "simulated", "pull: decode memory does not overflow; push: it does",
        f"pull {max(one[0] for one in pulled)} overflows, {_span(pulled, 1)} preemptions; push {_span(pushed, 0)} "
        f"overflows, {_span(pushed, 1)} preemptions",
        "pull 0; push > 0, in every seed",
        all(one[0] == 0 for one in pulled) and all(one[0] > 0 for one in pushed),
        "bench run --backend sim:handoff=push --workload distserve-13b-chat --arrivals gamma:cv=4 --rate 6 "
        "--latency abc:distserve --requests 1000 --prefill 2 --decode 1",
        f"1,000 requests, {SEEDS} seeds; an overflow is KV that finds no room and is computed again; pulled answers, "
        f"too, may outgrow memory. By roofline, seed 0: pull {others[0]}, push {others[1]} overflows.",
    )  # fmt: skip

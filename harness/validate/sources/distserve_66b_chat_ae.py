"""OPT-66B chat at rates of 1 to 4 requests per second: attainment of vLLM and of DistServe as its paper prints it.

Source: Zhong et al., DistServe, OSDI 2024, table 2 (real columns), with the SLO of its plots (TTFT 0.4 s, TPOT 0.1 s).
Nothing is calibrated: latency constants, policies and KV capacity are the public ones, lengths are those of 1,600
ShareGPT requests that DistServe ran. Arrivals are not published; they are drawn.
"""

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from harness.validate import Pair, Validation, needed
from harness.validate.scoring import LARGEST, target
from harness.validate.simulated import Ints, Traffic, times

BOUNDS = (0.4, 0.1)
SEEDS = (0, 1, 2)
METRIC = "attainment_400ms_100ms_pct"
SYSTEMS: Mapping[str, Mapping[str, object]] = {
    "vllm": {"policy": "vllm-v0", "latency": "abc:vllm", "tp": 4, "replicas": 2},
    "distserve_low": {"latency": "abc:distserve", "prefill": "1:tp=4", "decode": "1:tp=2,pp=2"},
}
"""Both on eight GPUs; how many the vLLM of the table had is not printed."""


def validate(data: Path) -> Validation:
    """Simulate both systems at every rate of the table."""
    prompts, outputs = _lengths(data / "traces" / "sharegpt" / "distserve_sharegpt_opt_lengths.csv")
    with needed(data / "profiles" / "distserve_paper_sim_vs_real.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    pairs = tuple(pair for row in rows for pair in _pairs(row, prompts, outputs))
    return Validation(
        name="distserve-66b-chat-ae",
        title="OPT-66B chat on A100-80G: the real columns of DistServe's table 2, with public constants alone",
        setting=(
            "vLLM TP4 twice (8 GPUs, policy vllm-v0) and DistServe-Low P(4,1) D(2,2) (8 GPUs); latency model abc.",
            f"Poisson arrivals of {len(SEEDS)} seeds, {len(prompts):,} requests each; TTFT 400 ms and TPOT 100 ms.",
        ),
        pairs=pairs,
        targets=(
            target(pairs, METRIC, LARGEST, 2.0, "DistServe's own simulator on the same rows: at most 1.8 points"),
        ),
    )


def _lengths(path: Path) -> tuple[Ints, Ints]:
    with needed(path).open(encoding="utf-8", newline="") as file:
        rows = [[int(value) for value in list(row.values())[:2]] for row in csv.DictReader(file)]
    prompts, outputs = np.array(rows, dtype=np.int64).T
    return prompts, outputs


def _pairs(row: Mapping[str, str], prompts: Ints, outputs: Ints) -> Iterator[Pair]:
    rate = float(row["rate_rps"])
    for system, options in SYSTEMS.items():
        shares = [_attainment(rate, seed, prompts, outputs, options) for seed in SEEDS]
        name = system.replace("_", "-")
        real = float(row[f"{system}_real_pct"])
        yield Pair(f"{name} at {rate:g} req/s", METRIC, real, float(np.mean(shares)), x=rate, curve=name)


def _attainment(rate_rps: float, seed: int, prompts: Ints, outputs: Ints, options: Mapping[str, object]) -> float:
    at_s = np.cumsum(np.random.default_rng(seed).exponential(1 / rate_rps, len(prompts)))
    common: dict[str, object] = {"model": "opt-66b", "hardware": "a100-80g", "utilisation": 0.95}
    return times(Traffic(at_s, prompts, outputs), common | dict(options)).attainment_pct(*BOUNDS)

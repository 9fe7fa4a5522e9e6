"""OPT-66B chat at rates of 1 to 4 requests per second: attainment of vLLM and of DistServe as its paper prints it.

Source: Zhong et al., DistServe, OSDI 2024, table 2 (real columns), with the SLO of its plots (TTFT 0.4 s, TPOT 0.1 s).
Nothing is calibrated: latency constants are the plain fits of each engine, as DistServe's repository has them, policies
and KV capacity are the public ones. As in the paper a point is 25 prompts a GPU; lengths are drawn from 1,600 ShareGPT
requests that DistServe ran, and arrivals, which are not published, with them.
"""

import csv
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from msgspec.structs import replace

from harness.experiments.validate import measured_runs
from harness.experiments.validate.answer import LARGEST, Validation
from harness.experiments.validate.measurements import Ints, Traffic
from published import form

NAME = "distserve-66b-chat-ae"
SEEDS = range(20)
PROMPTS_PER_GPU = 25
METRIC = "attainment_400ms_100ms_pct"
COMMON = {"model": "opt-66b", "hardware": "a100-80g", "utilisation": 0.95}
SYSTEMS: Mapping[str, Mapping[str, object]] = {
    "vllm": {"policy": "vllm-v0", "latency": "abc:vllm", "tp": 4},
    "distserve-low": {"latency": "abc:distserve", "prefill": "1:tp=4", "decode": "1:tp=2,pp=2"},
}
GPUS = {"vllm": 4, "distserve-low": 8}
"""The rates of the table are of whole systems: vLLM's attainment x rate stays near 1 req/s, as of one full replica."""
LIMITS = {"vllm": 10.0, "distserve-low": 5.0}
PUBLISHED = "DistServe's own simulator on the same rows: at most 1.8 points (for information: the paper's bar is 2)"


def validate(data: Path) -> Validation:
    """Simulate both systems at every rate of the table; beside it with the constants that DistServe released."""
    with tempfile.TemporaryDirectory() as folder:
        fits, released = (measured_runs.validate(_written(data, Path(folder), fitted)) for fitted in ("true", "false"))
    others = " and ".join(f"{target.obtained:.3g}" for target in released.targets)
    return replace(
        fits,
        setting=[*fits.setting, f"With the released constants the largest errors are {others} points."],
        targets=[
            replace(target, how=f"{target.how}, {name}") for target, name in zip(fits.targets, LIMITS, strict=True)
        ],
    )


def convert(data: Path, folder: Path) -> list[Path]:
    """A run for each system and rate, with requests drawn with each seed."""
    return [_written(data, folder, "true")]


def _written(data: Path, folder: Path, fitted: str) -> Path:
    prompts, outputs = _lengths(data / "traces" / "sharegpt" / "distserve_sharegpt_opt_lengths.csv")
    with form.needed(data / "profiles" / "distserve_paper_sim_vs_real.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    traffic: dict[str, list[Traffic]] = {}
    runs: list[dict[str, object]] = []
    for row in rows:
        for name, gpus in GPUS.items():
            rate_rps = float(row["rate_rps"])
            run = f"{name} at {rate_rps:g} req/s"
            traffic[run] = [_drawn(rate_rps, PROMPTS_PER_GPU * gpus, seed, prompts, outputs) for seed in SEEDS]
            runs.append({"run": run, "backend": name, "curve": name, "rate_rps": rate_rps,
                         METRIC: float(row[f"{name.replace('-', '_')}_real_pct"])})  # fmt: skip
    return form.write(
        folder, NAME,
        title="OPT-66B chat on A100-80G: the real columns of DistServe's table 2, with public constants alone",
        setting=(
            "vLLM TP4 (4 GPUs, policy vllm-v0) and DistServe-Low P(4,1) D(2,2) (8 GPUs).",
            f"Latency model abc, {'plain fits of both engines' if fitted == 'true' else 'the released constants'}.",
            f"{PROMPTS_PER_GPU} prompts a GPU and point, Poisson arrivals, means of {len(SEEDS)} seeds.",
            "TTFT 400 ms and TPOT 100 ms.",
        ),
        backends={
            name: {**COMMON, **options, "latency": f"{options['latency']},fitted={fitted}"}
            for name, options in SYSTEMS.items()
        },
        requests=form.requests(traffic),
        runs=pd.DataFrame(runs),
        slo={METRIC: "ttft=0.4,tpot=0.1"},
        targets=[{"metric": METRIC, "how": LARGEST, "limit": limit, "published": PUBLISHED,
                  "runs": [run["run"] for run in runs if run["curve"] == name]} for name, limit in LIMITS.items()],
    )  # fmt: skip


def _lengths(path: Path) -> tuple[Ints, Ints]:
    with form.needed(path).open(encoding="utf-8", newline="") as file:
        rows = [[int(value) for value in list(row.values())[:2]] for row in csv.DictReader(file)]
    prompts, outputs = np.array(rows, dtype=np.int64).T
    return prompts, outputs


def _drawn(rate_rps: float, count: int, seed: int, prompts: Ints, outputs: Ints) -> Traffic:
    rng = np.random.default_rng(seed)
    chosen = rng.choice(len(prompts), count, replace=False)
    return Traffic(np.cumsum(rng.exponential(1 / rate_rps, count)), prompts[chosen], outputs[chosen])

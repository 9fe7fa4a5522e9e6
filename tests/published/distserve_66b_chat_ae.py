"""OPT-66B chat at rates of 1 to 4 requests per second: attainment of vLLM and of DistServe as its paper prints it.

Source: Zhong et al., DistServe, OSDI 2024, table 2 (real columns), with the SLO of its plots (TTFT 0.4 s, TPOT 0.1 s).
Nothing is calibrated: latency constants, policies and KV capacity are the public ones, lengths are those of 1,600
ShareGPT requests that DistServe ran. Arrivals are not published; they are drawn.
"""

import csv
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from harness.experiments.validate import Validation, measured_runs
from harness.experiments.validate.answer import LARGEST
from harness.experiments.validate.simulated import Ints, Traffic
from published import form

NAME = "distserve-66b-chat-ae"
SEEDS = (0, 1, 2)
METRIC = "attainment_400ms_100ms_pct"
COMMON = {"model": "opt-66b", "hardware": "a100-80g", "utilisation": 0.95}
SYSTEMS: Mapping[str, Mapping[str, object]] = {
    "vllm": {"policy": "vllm-v0", "latency": "abc:vllm", "tp": 4, "replicas": 2},
    "distserve-low": {"latency": "abc:distserve", "prefill": "1:tp=4", "decode": "1:tp=2,pp=2"},
}
"""Both on eight GPUs; how many the vLLM of the table had is not printed."""


def validate(data: Path) -> Validation:
    """Simulate both systems at every rate of the table."""
    with tempfile.TemporaryDirectory() as folder:
        (path,) = convert(data, Path(folder))
        return measured_runs.validate(path)


def convert(data: Path, folder: Path) -> list[Path]:
    """A run for each system and rate; the systems share the requests of a rate, drawn with each seed."""
    prompts, outputs = _lengths(data / "traces" / "sharegpt" / "distserve_sharegpt_opt_lengths.csv")
    with form.needed(data / "profiles" / "distserve_paper_sim_vs_real.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    traffic = {f"{float(row['rate_rps']):g}": [_drawn(float(row["rate_rps"]), s, prompts, outputs) for s in SEEDS]
               for row in rows}  # fmt: skip
    runs = [
        {"run": f"{name} at {float(row['rate_rps']):g} req/s", "backend": name, "curve": name,
         "requests": f"{float(row['rate_rps']):g}", "rate_rps": float(row["rate_rps"]),
         METRIC: float(row[f"{name.replace('-', '_')}_real_pct"])}
        for row in rows for name in SYSTEMS
    ]  # fmt: skip
    path = form.write(
        folder, NAME,
        title="OPT-66B chat on A100-80G: the real columns of DistServe's table 2, with public constants alone",
        setting=(
            "vLLM TP4 twice (8 GPUs, policy vllm-v0) and DistServe-Low P(4,1) D(2,2) (8 GPUs); latency model abc.",
            f"Poisson arrivals of {len(SEEDS)} seeds, {len(prompts):,} requests each; TTFT 400 ms and TPOT 100 ms.",
        ),
        backends={name: {**COMMON, **options} for name, options in SYSTEMS.items()},
        requests=form.requests(traffic),
        runs=pd.DataFrame(runs),
        slo={METRIC: "ttft=0.4,tpot=0.1"},
        targets=[{"metric": METRIC, "how": LARGEST, "limit": 2.0,
                  "published": "DistServe's own simulator on the same rows: at most 1.8 points"}],
    )  # fmt: skip
    return [path]


def _lengths(path: Path) -> tuple[Ints, Ints]:
    with form.needed(path).open(encoding="utf-8", newline="") as file:
        rows = [[int(value) for value in list(row.values())[:2]] for row in csv.DictReader(file)]
    prompts, outputs = np.array(rows, dtype=np.int64).T
    return prompts, outputs


def _drawn(rate_rps: float, seed: int, prompts: Ints, outputs: Ints) -> Traffic:
    at_s = np.cumsum(np.random.default_rng(seed).exponential(1 / rate_rps, len(prompts)))
    return Traffic(at_s, prompts, outputs)

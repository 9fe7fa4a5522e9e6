"""Llama-3.1-70B under vLLM 0.6.0 on eight H100: mean TTFT and ITL at several parallel degrees, traces and rates.

Source: microsoft/apex_plus @8769096 (`vllm/results`, `traces/llama`), with the lengths that were served. Steps are
those of `operators` with its own constants, which are of newer engines: nothing is calibrated on these runs.
"""

import csv
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from harness.experiments.validate import measured_runs
from harness.experiments.validate.answer import MEAN, Validation
from harness.experiments.validate.measurements import Traffic
from published import form

MODELS: Mapping[str, str] = {"llama": "llama3-70b"}
"""The models of the runs' names that the simulator knows in the precision that was served."""
_RUN = re.compile(
    r"(?P<model>[a-z]+)_(?P<trace>[a-z]+)_(?P<rate>\d+)_validation_(?:(?P<dp>\d+)DP)?(?P<tp>\d+)TP(?:_(?P<shard>\d+))?"
)
WHOLE = "vllm-v0:max_seqs=256,max_batched_tokens=24272"
CHUNKED = "sarathi:budget=512,max_seqs=256"
"""vLLM 0.6.0 cuts prompts into chunks of 512 tokens where a request may be longer than 32,768 tokens (vllm-project/vllm
pull request 6666). `vllm/*.sh` limits that to 24,272 at TP 2, as memory is short there, and at no other degree."""
APEX = "APEX's own predictions, from operator profiles: 10.7 % on average (other rows)"


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """A measured run: one replica of `tp` GPUs; `shard` is its number among those of a data-parallel setting."""

    name: str
    model: str
    trace: str
    rate: str
    tp: int
    shard: int | None
    ttft_s: float
    itl_s: float
    traffic: Traffic

    @property
    def setting(self) -> str:
        """Its name without what all names share."""
        return self.name.replace("_validation", "")


def validate(data: Path) -> Validation:
    """Simulate all runs."""
    with tempfile.TemporaryDirectory() as folder:
        (path,) = convert(data, Path(folder))
        return measured_runs.validate(path)


def convert(data: Path, folder: Path) -> list[Path]:
    """A row a run with its measured means, and a backend for each model and parallel degree."""
    runs = list(_runs(data / "profiles"))
    rows = [
        {"run": run.setting, "backend": f"{run.model} tp={run.tp}", "itl_mean_s": run.itl_s, "ttft_mean_s": run.ttft_s}
        for run in runs
    ]
    path = form.write(
        folder, "apex-h100",
        title="Llama-3.1-70B under vLLM on H100 SXM, mean TTFT and ITL of each run",
        setting=(
            "Simulated: latency operators; nothing is calibrated.",
            "TP 2: whole prompts; else chunks of 512 tokens, as the version does by default.",
            "Lengths as served; ITL is what vLLM calls TPOT.",
        ),
        backends={f"{run.model} tp={run.tp}": options(run) for run in runs},
        requests=form.requests({run.setting: run.traffic for run in runs}),
        runs=pd.DataFrame(rows),
        targets=(
            {"metric": "itl_mean_s", "how": MEAN, "limit": 3.0, "published": APEX},
            {"metric": "ttft_mean_s", "how": MEAN, "limit": 12.0},
        ),
    )  # fmt: skip
    return [path]


def _runs(folder: Path) -> Iterator[Run]:
    """The runs of models that are known, whose requests and means are both there, by name."""
    table = pq.read_table(form.needed(folder / "apex_h100_requests.parquet"))
    names = np.array(table["run"].to_pylist())
    arrival, prompt, output = (table[c].to_numpy() for c in ("arrival_s", "prompt_tokens", "output_tokens"))
    with form.needed(folder / "apex_h100_measured_means.csv").open(encoding="utf-8", newline="") as file:
        rows = sorted((row for row in csv.DictReader(file) if row["engine"] == "vllm"), key=lambda row: row["run"])
    for row in rows:
        match, which = _RUN.fullmatch(row["run"]), names == row["run"]
        if match is None or match["model"] not in MODELS or not row["mean_ttft_s"] or not which.any():
            continue
        traffic = Traffic(arrival[which], prompt[which].astype(np.int64), output[which].astype(np.int64))
        yield Run(
            row["run"], MODELS[match["model"]], match["trace"], match["rate"], int(match["tp"]),
            None if match["shard"] is None else int(match["shard"]),
            float(row["mean_ttft_s"]), float(row["mean_tpot_s"]), traffic,
        )  # fmt: skip


def options(run: Run) -> dict[str, object]:
    """The simulator of a run."""
    policy = WHOLE if run.tp == 2 else CHUNKED
    return {"model": run.model, "hardware": "h100", "tp": run.tp, "policy": policy, "latency": "operators"}

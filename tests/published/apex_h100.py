"""Llama-3.1-70B under vLLM 0.6.0 on eight H100: mean TTFT and ITL at several parallel degrees, traces and rates.

Source: microsoft/apex_plus @8769096 (`vllm/results`, `traces/llama`), with the lengths that were served. Steps are
those of `operators`; what this old engine adds, seconds of each step and of each request, is chosen for each degree of
tensor parallelism on the runs of the *other* degrees, so that every run is scored.
"""

import csv
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from harness.errors import UsageError
from harness.experiments.validate import measured_runs
from harness.experiments.validate.answer import MEAN, Validation
from harness.experiments.validate.measurements import Times, Traffic
from harness.spec import Spec
from published import form

MODELS: Mapping[str, str] = {"llama": "llama3-70b"}
"""The models of the runs' names that the simulator knows in the precision that was served."""
_RUN = re.compile(
    r"(?P<model>[a-z]+)_(?P<trace>[a-z]+)_(?P<rate>\d+)_validation_(?:(?P<dp>\d+)DP)?(?P<tp>\d+)TP(?:_(?P<shard>\d+))?"
)
ROUNDS = 2
"""Longer steps hold more sequences, so what ITL lacks is looked for again with what was found."""
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
    """Simulate all runs, each with constants from the other parallel degrees."""
    with tempfile.TemporaryDirectory() as folder:
        (path,) = convert(data, Path(folder))
        return measured_runs.validate(path)


def convert(data: Path, folder: Path) -> list[Path]:
    """A row a run with its measured means, and a backend for each model and parallel degree."""
    runs = list(_runs(data / "profiles"))
    constants = left_out(runs)
    rows = [
        {"run": run.setting, "backend": f"{run.model} tp={run.tp}", "itl_mean_s": run.itl_s, "ttft_mean_s": run.ttft_s}
        for run in runs
    ]
    path = form.write(
        folder, "apex-h100",
        title="Llama-3.1-70B under vLLM on H100 SXM, mean TTFT and ITL of each run",
        setting=(
            *(f"TP {tp}, from the other degrees: {_format(found)}." for tp, found in constants.items()),
            "TP 2: whole prompts; else chunks of 512 tokens, as the version does by default.",
            "Lengths as served; ITL is what vLLM calls TPOT.",
        ),
        backends={f"{run.model} tp={run.tp}": options(run, constants[run.tp]) for run in runs},
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


def left_out(runs: Sequence[Run]) -> dict[int, dict[str, float]]:
    """Of each parallel degree the constants that runs of the others give, each degree alike.

    Seconds of a step are what ITL lacks without any, those of a request what TTFT lacks then. Raises UsageError where
    there is one degree alone.
    """
    degrees = sorted({run.tp for run in runs})
    if len(degrees) < 2:
        raise UsageError(f"{len(runs)} runs of apex-h100 have one parallel degree; leaving it out leaves nothing.")
    found = {}
    for tp in degrees:
        seen, overhead_s = [run for run in runs if run.tp != tp], 0.0
        for _ in range(ROUNDS):
            times = [simulate(run, {"overhead_s": overhead_s}) for run in seen]
            slow = [run.itl_s - one.itl_s for run, one in zip(seen, times, strict=True)]
            overhead_s = max(0.0, overhead_s + _typical(seen, slow))
        times = [simulate(run, {"overhead_s": overhead_s}) for run in seen]
        late = [run.ttft_s - float(one.ttft_s.mean()) for run, one in zip(seen, times, strict=True)]
        found[tp] = {"overhead_s": overhead_s, "front_s": max(0.0, _typical(seen, late))}
    return found


def _typical(runs: Sequence[Run], seconds: Sequence[float]) -> float:
    """The mean over degrees of the median of their runs."""
    by: dict[int, list[float]] = {}
    for run, lacking in zip(runs, seconds, strict=True):
        by.setdefault(run.tp, []).append(lacking)
    return float(np.mean([np.median(one) for one in by.values()]))


def options(run: Run, constants: Mapping[str, float]) -> dict[str, object]:
    """The simulator of a run; `overhead_s` stands for all of the host with launches, `front_s` for the tokenizer."""
    none = {"launch_s": "0", "seq_s": "0", "front_token_s": "0"}
    latency = Spec("operators", none | {k: f"{v:.6f}" for k, v in constants.items()})
    policy = WHOLE if run.tp == 2 else CHUNKED
    return {"model": run.model, "hardware": "h100", "tp": run.tp, "policy": policy, "latency": str(latency)}


def simulate(run: Run, constants: Mapping[str, float]) -> Times:
    """The run with these constants, and without a front end unless they name one."""
    return form.times(run.traffic, options(run, {"front_s": 0.0, **constants}))


def _format(constants: Mapping[str, float]) -> str:
    return ", ".join(f"{name}={value:.3g}" for name, value in constants.items())

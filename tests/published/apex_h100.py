"""Llama-3.1-70B under vLLM on eight H100: mean TTFT and ITL of runs at several parallel degrees, traces and rates.

Source: microsoft/apex_plus @8769096 (`vllm/results`, `traces/llama`), with the lengths that were served. The latency
model is `fit6`, calibrated on the fewest runs that tell its constants apart (`calibration`), and scored on the others.
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
from harness.experiments.validate import Validation, measured_runs
from harness.experiments.validate.answer import MEAN, WORST
from harness.experiments.validate.simulated import Times, Traffic
from harness.spec import Spec
from published import form
from published.calibrate import calibrated

MODELS: Mapping[str, str] = {"llama": "llama3-70b"}
"""The models of the runs' names that the simulator knows in the precision that was served."""
START: Mapping[str, float] = {
    "memory_share": 0.85, "flops_share": 0.5, "overhead_s": 8e-3, "seq_s": 2e-4, "token_s": 4e-6, "front_end_s": 1.5e-2,
}  # fmt: skip
"""Where the search for the constants begins: round numbers."""
UPPER: Mapping[str, float] = {"memory_share": 1.0, "flops_share": 1.0}
ITL_WEIGHT = 4.0
"""Weight of an error of ITL beside one of TTFT in the fit: it is the mean of a hundred times as many intervals, and its
target is 3 % where that of TTFT is 12 %."""
_RUN = re.compile(
    r"(?P<model>[a-z]+)_(?P<trace>[a-z]+)_(?P<rate>\d+)_validation_(?:(?P<dp>\d+)DP)?(?P<tp>\d+)TP(?:_(?P<shard>\d+))?"
)
RULE = "at the highest rate, each trace undivided at every parallel degree there is, or one replica of it"
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
    """Calibrate `fit6` on a few runs, and simulate all of them."""
    with tempfile.TemporaryDirectory() as folder:
        (path,) = convert(data, Path(folder))
        return measured_runs.validate(path)


def convert(data: Path, folder: Path) -> list[Path]:
    """A row a run with its measured means, and a calibrated backend for each model and parallel degree."""
    runs = list(_runs(data / "profiles"))
    seen = calibration(runs)
    constants = fitted(seen)
    backends = {f"{run.model} tp={run.tp}": options(run, constants) for run in runs}
    rows = [
        {"run": run.setting, "backend": f"{run.model} tp={run.tp}", "calibrated": "yes" if run in seen else "no",
         "itl_mean_s": run.itl_s, "ttft_mean_s": run.ttft_s}
        for run in runs
    ]  # fmt: skip
    path = form.write(
        folder, "apex-h100",
        title="Llama-3.1-70B under vLLM on H100 SXM, mean TTFT and ITL of each run",
        setting=(
            f"Calibrated on {', '.join(run.setting for run in seen)}: {RULE}.",
            f"fit6 with {_format(constants)}.",
            "Policy vllm-v0 (whole prompts, no chunks), lengths as served; ITL is what vLLM calls TPOT.",
        ),
        backends=backends,
        requests=form.requests({run.setting: run.traffic for run in runs}),
        runs=pd.DataFrame(rows),
        targets=(
            {"metric": "itl_mean_s", "how": MEAN, "limit": 3.0, "published": APEX},
            {"metric": "itl_mean_s", "how": WORST, "limit": 6.0},
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


def calibration(runs: Sequence[Run]) -> list[Run]:
    """Of each trace, at its highest rate, the undivided runs; where there is none, the first replica of the smallest.

    Raises UsageError where nothing would be left to score.
    """
    seen: list[Run] = []
    for trace in sorted({run.trace for run in runs}):
        of = [run for run in runs if run.trace == trace]
        fast = [run for run in of if run.rate == max((r.rate for r in of), key=_rate)]
        whole = [run for run in fast if run.shard is None]
        seen += whole or [min(fast, key=lambda run: (run.tp, run.shard or 0))]
    if not seen or len(seen) == len(runs):
        raise UsageError(f"{len(runs)} runs of apex-h100 leave nothing to score beside the calibration.")
    return seen


def _rate(text: str) -> float:
    """'025' is 0.25 requests per second."""
    return float(f"{text[0]}.{text[1:] or '0'}")


def fitted(runs: Sequence[Run]) -> dict[str, float]:
    """The constants of `fit6` with the least squared relative errors of mean TTFT and (weighted) mean ITL."""
    return calibrated(START, lambda constants: [e for run in runs for e in _errors(run, constants)], UPPER)


def _errors(run: Run, constants: Mapping[str, float]) -> tuple[float, float]:
    simulated = simulate(run, constants)
    ttft_s = float(simulated.ttft_s.mean()) + constants["front_end_s"]
    return float(np.log(ttft_s / run.ttft_s)), ITL_WEIGHT * float(np.log(simulated.itl_s / run.itl_s))


def options(run: Run, constants: Mapping[str, float]) -> dict[str, object]:
    """The simulator of a run under `fit6` with these constants."""
    latency = str(Spec("fit6", {name: repr(value) for name, value in constants.items()}))
    return {"model": run.model, "hardware": "h100", "tp": run.tp, "policy": "vllm-v0", "latency": latency}


def simulate(run: Run, constants: Mapping[str, float]) -> Times:
    """The run under `fit6` with these constants, without its front end, which no step knows."""
    return form.times(run.traffic, options(run, {**constants, "front_end_s": 0.0}))


def _format(constants: Mapping[str, float]) -> str:
    return ", ".join(f"{name}={value:.3g}" for name, value in constants.items())

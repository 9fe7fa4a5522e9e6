"""Llama-3.1-70B under vLLM on eight H100: mean TTFT and TPOT of runs at several parallel degrees, traces and rates.

Source: microsoft/apex_plus @8769096 (`vllm/results`, `traces/llama`), with the lengths that were served. The latency
model is `fit6`, calibrated on the fewest runs that tell its constants apart (`calibration`), and scored on the others.
"""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from harness.errors import UsageError
from harness.spec import Spec
from harness.validate import Pair, Validation, needed
from harness.validate.calibrate import calibrated
from harness.validate.scoring import MEAN, WORST, target
from harness.validate.simulated import Times, Traffic, times

MODELS: Mapping[str, str] = {"llama": "llama3-70b"}
"""The models of the runs' names that the simulator knows in the precision that was served."""
START: Mapping[str, float] = {
    "memory_share": 0.85, "flops_share": 0.5, "overhead_s": 8e-3, "seq_s": 2e-4, "token_s": 4e-6, "front_end_s": 1.5e-2,
}  # fmt: skip
"""Where the search for the constants begins: round numbers."""
UPPER: Mapping[str, float] = {"memory_share": 1.0, "flops_share": 1.0}
TPOT_WEIGHT = 4.0
"""Of an error of TPOT beside one of TTFT, in the fit: it is the mean of a hundred times as many intervals, and is asked
to be within 3 % where TTFT is asked to be within 12 %."""
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
    tpot_s: float
    traffic: Traffic

    @property
    def setting(self) -> str:
        """Its name without what all names share."""
        return self.name.replace("_validation", "")


def validate(data: Path) -> Validation:
    """Calibrate `fit6` on a few runs, and simulate all of them."""
    runs = list(_runs(data / "profiles"))
    seen = calibration(runs)
    constants = fitted(seen)
    pairs = [pair for run in runs for pair in _pairs(run, constants, calibrated=run in seen)]
    return Validation(
        name="apex-h100",
        title="Llama-3.1-70B under vLLM on H100 SXM, mean TTFT and TPOT of each run",
        setting=(
            f"Calibrated on {', '.join(run.setting for run in seen)}: {RULE}.",
            f"fit6 with {_told(constants)}.",
            "Policy vllm-v0 (whole prompts, no chunks), lengths as served; TPOT: the mean of every gap, as in vLLM.",
        ),
        pairs=tuple(pairs),
        targets=(
            target(pairs, "tpot_mean_s", MEAN, 3.0, APEX),
            target(pairs, "tpot_mean_s", WORST, 6.0),
            target(pairs, "ttft_mean_s", MEAN, 12.0),
        ),
    )


def _runs(folder: Path) -> Iterator[Run]:
    """The runs of models that are known, whose requests and means are both there, by name."""
    table = pq.read_table(needed(folder / "apex_h100_requests.parquet"))
    names = np.array(table["run"].to_pylist())
    arrival, prompt, output = (table[c].to_numpy() for c in ("arrival_s", "prompt_tokens", "output_tokens"))
    with needed(folder / "apex_h100_measured_means.csv").open(encoding="utf-8", newline="") as file:
        rows = sorted((row for row in csv.DictReader(file) if row["engine"] == "vllm"), key=lambda row: row["run"])
    for row in rows:
        told, which = _RUN.fullmatch(row["run"]), names == row["run"]
        if told is None or told["model"] not in MODELS or not row["mean_ttft_s"] or not which.any():
            continue
        traffic = Traffic(arrival[which], prompt[which].astype(np.int64), output[which].astype(np.int64))
        yield Run(
            row["run"], MODELS[told["model"]], told["trace"], told["rate"], int(told["tp"]),
            None if told["shard"] is None else int(told["shard"]),
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
    """The constants of `fit6` with the least squared relative errors of mean TTFT and (weighted) mean TPOT."""
    return calibrated(START, lambda constants: [e for run in runs for e in _errors(run, constants)], UPPER)


def _errors(run: Run, constants: Mapping[str, float]) -> tuple[float, float]:
    simulated = simulate(run, constants)
    ttft = float(np.log(_ttft_s(simulated, constants) / run.ttft_s))
    return ttft, TPOT_WEIGHT * float(np.log(simulated.gap_s / run.tpot_s))


def simulate(run: Run, constants: Mapping[str, float]) -> Times:
    """The run under `fit6` with these constants, without its front end, which no step knows."""
    latency = Spec("fit6", {name: repr(value) for name, value in constants.items()} | {"front_end_s": "0"})
    options = {"model": run.model, "hardware": "h100", "tp": run.tp, "policy": "vllm-v0", "latency": str(latency)}
    return times(run.traffic, options)


def _ttft_s(simulated: Times, constants: Mapping[str, float]) -> float:
    return float(simulated.ttft_s.mean()) + constants["front_end_s"]


def _pairs(run: Run, constants: Mapping[str, float], *, calibrated: bool) -> tuple[Pair, Pair]:
    simulated = simulate(run, constants)
    return (
        Pair(run.setting, "tpot_mean_s", run.tpot_s, simulated.gap_s, calibrated),
        Pair(run.setting, "ttft_mean_s", run.ttft_s, _ttft_s(simulated, constants), calibrated),
    )


def _told(constants: Mapping[str, float]) -> str:
    return ", ".join(f"{name}={value:.3g}" for name, value in constants.items())

"""Runs of vLLM 0.19.0 on an RTX 4090 and on RTX PRO 6000, from times of kernels alone: nothing is calibrated.

Source: casys-kaist/LLMServingSim (MIT) @5daddb2: `bench/examples` (300 requests a run, and what each server was started
with, `vllm/meta.json`) and `profiler/perf` (operators of one layer on the RTX 4090). Requests queue in all runs, as few
sequences are admitted or KV memory is short.
"""

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from msgspec.structs import replace

from harness import catalog
from harness.experiments.validate import measured_runs, measurements
from harness.experiments.validate.answer import MEAN, Validation
from published import form

RUN = "profiles/llmservingsim_vllm_requests.parquet"
TABLES = "profiles/llmservingsim_rtx4090_llama31_8b_{}.parquet"
MEASURED_MODEL = "llama3.1-8b"  # of the tables of operators
BLOCK_TOKENS = 16
MOST_DECODES = 128  # of the attention table; its few rows beyond hold no prompt
ONCE = {"embedding": 1, "final_layernorm": 1}  # operators outside of the layers
TWICE = "layernorm"  # before attention and before the feed-forward
EXPERT_KERNELS = "triton"
"""Experts in bf16 ran in Triton's kernels before vLLM took FlashInfer's, which the tables of vLLM 0.24 have."""
STATISTICS = ("mean", "p25", "p50", "p75", "p90", "p99")
_SIMULATED = (
    "Simulated: policy vllm-v1 with 2,048 tokens a step of each group, prefix cache, latency operators; nothing is "
    "calibrated, so all requests are scored."
)


@dataclass(frozen=True, slots=True)
class Run:
    """A server by the names of the table; `kv_tokens` as vLLM reported at its start, those of all groups together."""

    gpu: str
    named: str
    hardware: str
    model: str
    kv_tokens: int
    max_seqs: int
    tp: int = 1
    dp: int = 1

    @property
    def name(self) -> str:
        """What its run is called."""
        return f"{self.model} {self.hardware}"

    def options(self, latency: str) -> dict[str, object]:
        """The simulator of it."""
        policy = f"vllm-v1:budget={2048 * self.dp},max_seqs={self.max_seqs * self.dp},async_scheduling=true"
        return {
            "model": self.model, "hardware": self.hardware, "tp": self.tp, "latency": latency, "policy": policy,
            "kv": "paged:watermark=0", "kv_blocks": self.kv_tokens // BLOCK_TOKENS, "prefix_cache": "on",
        }  # fmt: skip


PROFILED = Run("RTX4090", "Llama-3.1-8B", "rtx-4090", "llama3.1-8b", 41_408, 256)
RUNS = (
    PROFILED,
    Run("RTXPRO6000", "Llama-3.1-8B", "rtx-pro-6000", "llama3.1-8b", 574_608, 128),
    Run("RTXPRO6000", "Qwen3-30B-A3B-Instruct-2507", "rtx-pro-6000", "qwen3-30b-a3b", 1_210_208, 128, dp=2),
    Run("RTXPRO6000", "Qwen3-32B", "rtx-pro-6000", "qwen3-32b", 462_144, 128, tp=2),
)
"""KV memory of RTX PRO 6000 is that of later runs of the same servers; no run there comes near it."""


def validate(data: Path) -> Validation:
    """Replay the requests of all runs. Raises UsageError without their files."""
    with tempfile.TemporaryDirectory() as folder:
        (path,) = convert(data, Path(folder))
        found = measured_runs.validate(path)
        return replace(found, setting=[*found.setting, *one_by_one(path)])


def convert(data: Path, folder: Path) -> list[Path]:
    """The runs that the table holds, and the operator times of the RTX 4090 in a file beside them."""
    table = _read(data, RUN)
    file = folder.resolve() / "llmservingsim-operators.json"
    backends, parts = {}, []
    for run in RUNS:
        rows = table[(table["gpu"].astype(str) == run.gpu) & (table["model"].astype(str) == run.named)]
        if rows.empty:
            continue
        if run is PROFILED:
            file.write_text(json.dumps(operators(data)), encoding="utf-8")
            backends[run.name] = run.options(f"operators:file={file}")
        else:
            apart = f"dp={run.dp},ep={run.dp},data={(data / 'operators').resolve()},expert_kernels={EXPERT_KERNELS}"
            backends[run.name] = run.options("operators" if run.dp == 1 else f"operators:{apart}")
        parts.append(pd.DataFrame({
            "run": run.name, "arrival_s": rows["arrival_s"], "prompt_tokens": rows["prompt_len"],
            "output_tokens": rows["output_len"], "ttft_s": rows["ttft_ms"] / 1e3, "tpot_s": rows["tpot_ms"] / 1e3,
        }).sort_values("arrival_s"))  # fmt: skip
    path = form.write(
        folder, "llmservingsim",
        title="vLLM on RTX 4090 and RTX PRO 6000, from times of kernels alone",
        setting=("Measured: 300 requests a run under vLLM 0.19.0, casys-kaist/LLMServingSim.", _SIMULATED),
        backends=backends,
        requests=pd.concat(parts, ignore_index=True),
        runs=pd.DataFrame({"run": list(backends), "backend": list(backends)}),
        metrics=[f"{name}_{one}_s" for name in ("ttft", "tpot") for one in STATISTICS],
        targets=[{"metric": "tpot_s", "how": MEAN, "limit": 5.0}, {"metric": "ttft_s", "how": MEAN, "limit": 10.0}],
    )  # fmt: skip
    return [path]


def one_by_one(path: Path) -> list[str]:
    """How far single requests are off, a sentence a run."""
    found = []
    for run in measurements.read(path).runs:
        (measured,) = run.repeats
        assert run.backend is not None
        assert measured.times is not None
        ours = measurements.times(measured.traffic, measurements.simulator(run.backend))
        ttft, tpot = (
            np.mean(np.abs(made / seen - 1))
            for made, seen in ((ours.ttft_s, measured.times.ttft_s), (ours.tpot_s, measured.times.tpot_s))
        )
        found.append(f"{run.name}, request by request: mean error {ttft:.1%} of TTFT and {tpot:.1%} of TPOT.")
    return found


def operators(data: Path) -> dict[str, list[Any]]:
    """The tables of the latency model `operators`, in seconds over all layers. Raises UsageError without the files."""
    layers = catalog.model(MEASURED_MODEL).layers
    dense, attention = _read(data, TABLES.format("dense")), _read(data, TABLES.format("attention"))
    kinds, names = dense["kind"].astype(str), dense["layer"].astype(str)
    times = {name: 2 * layers if name == TWICE else ONCE.get(name, layers) for name in names.unique()}
    tokens, dense_s = _summed(dense[kinds == "per_token"], times)
    seqs, head_s = _summed(dense[kinds == "per_sequence"], dict.fromkeys(times, 1))
    keys = ["prefill_chunk", "kv_prefill", "n_decode", "kv_decode"]
    known = attention[attention["n_decode"] <= MOST_DECODES]
    attention = known.groupby(keys)["time_us"].median().reset_index()
    decode = attention[attention["prefill_chunk"] == 0].pivot(index="n_decode", columns="kv_decode", values="time_us")
    prefill = attention[attention["n_decode"] == 0].pivot(index="prefill_chunk", columns="kv_prefill", values="time_us")
    mixed = attention.set_index(keys)["time_us"]
    grid = [[[[mixed[c, k, n, d] for d in decode.columns] for n in decode.index] for k in prefill.columns]
            for c in prefill.index]  # fmt: skip
    scale = layers * 1e-6
    return {
        "tokens": tokens, "dense_s": dense_s, "seqs": seqs, "head_s": head_s,
        "decode_seqs": decode.index.tolist(), "decode_context": decode.columns.tolist(),
        "decode_s": (decode.to_numpy() * scale).tolist(),
        "chunk": prefill.index.tolist(), "stored": prefill.columns.tolist(),
        "prefill_s": (prefill.to_numpy() * scale).tolist(), "mixed_s": (np.array(grid) * scale).tolist(),
    }  # fmt: skip


def _summed(rows: pd.DataFrame, times: dict[str, int]) -> tuple[list[int], list[float]]:
    """(sizes, seconds of all operators at each), each operator as often as `times` says."""
    sizes = np.array(sorted(rows["n"].unique()))
    total = np.zeros(len(sizes))
    for name, one in rows.groupby(rows["layer"].astype(str)):
        one = one.sort_values("n")
        total += times[str(name)] * 1e-6 * np.interp(sizes, one["n"], one["time_us"])
    return sizes.tolist(), total.tolist()


def _read(data: Path, name: str) -> pd.DataFrame:
    return pd.read_parquet(form.needed(data / name))

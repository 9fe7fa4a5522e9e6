"""Public benchmarks of today's engines at fixed lengths and concurrency, in one form, and the simulation of a row.

Sources: SemiAnalysis InferenceMAX (`inferencemax.csv`: median TTFT and TPOT) and ai-dynamo/aiconfigurator
`silicon_sample.csv` (`aic_silicon_e2e.parquet`: mean TTFT). Options of the servers are those of the public scripts of
InferenceMAX (`benchmarks/*.sh`), whose runs most rows of the second source are too.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from harness import catalog
from harness.catalog import Shape
from harness.errors import UsageError
from published.closed_loop import Load, Server, run
from published.form import needed

BLACKWELL = ("b200", "b300", "gb200", "gb300")
ENGINES = {"vllm": "vllm", "sglang": "sglang", "trt": "trtllm", "trtllm": "trtllm", "atom": "atom"}
MODELS = {
    "gptoss": "gpt-oss-120b", "dsr1": "deepseek-r1", "MiniMaxAI/MiniMax-M2.5": "minimax-m2.5",
    "deepseek-ai/DeepSeek-R1": "deepseek-r1", "nvidia/DeepSeek-R1-NVFP4": "deepseek-r1",
    "nvidia/DeepSeek-V3.1-NVFP4": "deepseek-r1", "Qwen/Qwen3-235B-A22B-FP8": "qwen3-235b-a22b-fp8",
    "meta-llama/Llama-3.1-8B-Instruct": "llama3.1-8b", "nvidia/Llama-3.1-8B-Instruct-FP8": "llama3.1-8b",
    "meta-llama/Llama-3.1-70B": "llama3.1-70b", "moonshotai/Kimi-K2.5": "kimi-k2.5",
    "nvidia/Qwen3-32B-NVFP4": "qwen3-32b",
}  # fmt: skip
MEASURED_GPUS = ("h100", "h200", "b200", "gb200", "l40s", "rtx-pro-6000")
"""GPUs of the folder of kernel times, for the engines vllm and sglang."""


@dataclass(frozen=True, slots=True)
class Row:
    """One configuration of one benchmark; `kind` of TTFT is median or mean, times in seconds."""

    source: str
    gpu: str
    engine: str
    model: str
    precision: str
    formats: tuple[tuple[str, str], ...]
    tp: int
    dp: int
    ep: int
    prompt: int
    output: int
    clients: int
    ttft_s: float
    tpot_s: float
    kind: str

    @property
    def has_tables(self) -> bool:
        """Whether kernels of its GPU were measured under its engine."""
        return self.gpu in MEASURED_GPUS and self.engine in ("vllm", "sglang")

    @property
    def setting(self) -> tuple[object, ...]:
        """What repeated rows have in common."""
        return (self.source, self.gpu, self.engine, self.model, self.formats, self.tp, self.dp, self.ep,
                self.prompt, self.output, self.clients)  # fmt: skip

    @property
    def policy(self) -> str:
        """How its engine forms batches."""
        if self.engine == "sglang":
            polls = 1
            if self.gpu in BLACKWELL and self.model == "deepseek-r1":
                polls = 30 if self.clients >= 16 else 10  # dsr1_*_b200: SCHEDULER_RECV_INTERVAL
            return f"sglang:chunk=16384,max_seqs=2048,recv_interval={polls}"
        budget = 8192 if self.engine == "vllm" else 16384
        return f"vllm-v1:budget={budget},max_seqs=2048,async_scheduling=true"

    def latency(self, folder: Path, constants: Mapping[str, float]) -> str:
        """Spec of its latency model, from the tables in `folder`; without constants the roofline."""
        if not constants:
            return f"roofline:dp={self.dp},ep={self.ep}"
        parts = {"data": folder, "dp": self.dp, "ep": self.ep, **dict(self.formats), **constants}
        return "operators:" + ",".join(f"{key}={value}" for key, value in parts.items())


def rows(data: Path) -> tuple[list[Row], Counter[str]]:
    """All rows of replicas alike without speculation that can be expressed; what is left out, counted by reason."""
    out: Counter[str] = Counter()
    found = [*_inferencemax(data, out), *aiconfigurator(data, out)]
    return [row for row in found if _is_possible(row, out)], out


def _is_possible(row: Row, out: Counter[str]) -> bool:
    try:
        Shape(row.tp, 1, row.dp, row.ep).check(catalog.model(row.model))
    except UsageError:
        out[f"{row.source}: tp {row.tp}, dp {row.dp}, ep {row.ep} does not divide {row.model}"] += 1
        return False
    return True


def _inferencemax(data: Path, out: Counter[str]) -> list[Row]:
    table = pd.read_csv(needed(data / "profiles" / "inferencemax.csv"))
    found = []
    for r in table.itertuples():
        if r.disagg or r.spec_decoding != "none":
            out["inferencemax: prefill and decode apart, or speculation"] += 1
            continue
        gpu, engine = r.hw.removesuffix("-trt"), ENGINES[r.framework]
        new = gpu in (*BLACKWELL, "mi355x")
        gpus, groups = int(r.tp), int(r.tp) if str(r.dp_attention).lower() == "true" else 1
        if r.model == "gptoss":  # gptoss_fp4_b200.sh: kv-cache-dtype fp8, VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8=1
            formats = {"experts": "mxfp4-fp8" if new else "mxfp4", "kv": "fp8" if new and engine != "atom" else "bf16"}
        elif r.precision == "fp4":
            formats = {"experts": "nvfp4", "linear": "nvfp4", "attention": "bf16", "kv": "fp8"}
        else:
            formats = {"kv": "fp8" if new else "bf16"}
        found.append(Row(
            "inferencemax", gpu, engine, MODELS[r.model], r.precision, tuple(formats.items()), gpus // groups, groups,
            int(r.ep), r.isl, r.osl, r.conc, r.median_ttft, r.median_tpot, "median",
        ))  # fmt: skip
    return found


def aiconfigurator(data: Path, out: Counter[str]) -> list[Row]:
    """The rows of its table, each in the precision of its own columns; what is left out is counted."""
    table = pd.read_parquet(needed(data / "profiles" / "aic_silicon_e2e.parquet"))
    found = []
    for r in table.itertuples():
        if r.mode != "agg":
            out["aiconfigurator: prefill and decode apart"] += 1
        elif r.model_path not in MODELS:
            out[f"aiconfigurator: {r.model_path} is not in the catalogue"] += 1
        elif not (r.silicon_ttft_ms > 0 and r.silicon_tpot_ms > 0) or pd.isna(r.tp_size):
            out["aiconfigurator: without both times, or without tp"] += 1
        else:
            found.append(_aiconfigurator_row(r))
    return found


def _aiconfigurator_row(r: Any) -> Row:
    gpu, model, precision = r.system.removesuffix("_sxm"), MODELS[r.model_path], str(r.precision)
    routed = catalog.model(model).experts is not None
    if precision == "fp4":
        formats = {"linear": "nvfp4", "attention": "bf16" if routed else "nvfp4", "experts": "nvfp4"}
    elif precision == "int4":
        formats = {"experts": "int4-g32"}
    elif precision == "fp8" or "fp8" in str(r.gemm_quant_mode):
        formats = dict.fromkeys(("linear", "attention", "experts"), "fp8-block" if routed else "fp8")
    else:
        formats = dict.fromkeys(("linear", "attention", "experts"), "bf16")
    formats["kv"] = "fp8" if gpu in BLACKWELL and precision != "bf16" else "bf16"
    dp, ep = (1 if pd.isna(value) else int(value) for value in (r.attention_dp_size, r.moe_ep_size))
    clients = int(r.batch_size) * dp if pd.isna(r.silicon_concurrency) else int(r.silicon_concurrency)
    return Row(
        "aiconfigurator", gpu, ENGINES[r.backend], model, precision, tuple(formats.items()), int(r.tp_size), dp, ep,
        int(r.isl), int(r.osl), clients, r.silicon_ttft_ms / 1e3, r.silicon_tpot_ms / 1e3, "mean",
    )  # fmt: skip


@cache
def _kv_tokens(model: str, gpu: str, formats: tuple[tuple[str, str], ...], tp: int, dp: int, ep: int) -> int:
    """Tokens of KV of a replica, all its groups together; those of one long request where the weights do not fit."""
    m = catalog.model(model)
    stored = replace(m, formats=replace(m.formats, **dict(formats)))
    try:
        return 16 * dp * catalog.kv_capacity_blocks(stored, catalog.hardware(gpu), Shape(tp, 1, dp, ep))
    except UsageError:
        return 32768


def simulated(row: Row, folder: Path, constants: Mapping[str, float]) -> tuple[float, float]:
    """(TTFT, TPOT) in seconds of a row, as its source sums them up."""
    tokens = _kv_tokens(row.model, row.gpu, row.formats, row.tp, row.dp, row.ep)
    server = Server(
        row.latency(folder, constants),
        max(tokens, 2 * (row.prompt + row.output)),
        row.policy,
        row.model,
        row.gpu,
        row.tp,
    )
    times = run(Load(row.prompt, row.output, row.clients), server.simulator())
    of = np.median if row.kind == "median" else np.mean
    return float(of(times.ttft_s)), float(np.median(times.tpot_s))


Task = tuple[int, Row, Path, tuple[tuple[str, float], ...]]


def simulated_task(task: Task) -> tuple[float, float]:
    """`simulated` of a numbered row, for a pool."""
    _, row, folder, constants = task
    return simulated(row, folder, dict(constants))

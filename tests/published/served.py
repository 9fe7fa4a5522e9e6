"""Public benchmarks of today's engines at fixed lengths and concurrency, in one form, and the simulation of a row.

Sources: SemiAnalysis InferenceMAX (`inferencemax.csv`: median TTFT and TPOT) and ai-dynamo/aiconfigurator
`silicon_sample.csv` (`aic_silicon_e2e.parquet`: mean TTFT). Options of the servers are those of the public scripts of
InferenceMAX (`benchmarks/*.sh`), whose runs most rows of the second source are too.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
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
NODE_GPUS = 8


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
    def kv_tokens(self) -> int:
        """Tokens of KV of a replica, all its groups together. Raises UsageError where its weights do not fit."""
        m = catalog.model(self.model)
        stored = replace(m, formats=replace(m.formats, **dict(self.formats)))
        shape, gpu = Shape(self.tp, 1, self.dp, self.ep), catalog.hardware(self.gpu)
        if self.engine == "trtllm":  # kv_cache_config.free_gpu_memory_fraction: of what weights leave
            return int(16 * 0.9 * catalog.kv_capacity_blocks(stored, gpu, shape, utilisation=1.0))
        utilisation = 0.9 if self.engine == "vllm" else 0.95
        return 16 * catalog.kv_capacity_blocks(stored, gpu, shape, utilisation=utilisation)

    @property
    def policy(self) -> str:
        """How its engine forms batches: options of its server in the scripts of InferenceMAX, else the usual ones."""
        if self.engine == "sglang":
            chunk, polls = 8192, 1
            if self.model == "deepseek-r1" and self.gpu in (*BLACKWELL, "h200"):  # dsr1_fp4_b200.sh, dsr1_fp8_*.sh
                chunk = 16384 if self.precision == "fp4" else 8192 if self.tp == 4 else 32768
                if self.gpu in BLACKWELL:
                    polls = 30 if self.clients >= 16 and chunk != 8192 else 10
            return f"sglang:chunk={chunk},max_seqs=2048,recv_interval={polls}"
        budget = 8192 if self.engine == "vllm" else 16384
        if self.engine == "trtllm" and self.model == "deepseek-r1":  # dsr1_*_trt.sh: MAX_NUM_TOKENS
            budget = max(self.clients + self.prompt + 64, 8192 if self.precision == "fp4" else 0)
        budget *= self.dp
        return f"vllm-v1:budget={budget},max_seqs={min(budget, 2048)},async_scheduling=true"

    @property
    def graph_tokens(self) -> int:
        """Tokens of the largest steps with prompts that run in CUDA graphs."""
        if self.engine != "vllm":
            return 0
        return 2048 if self.model == "gpt-oss-120b" else 512  # gptoss_fp4_*.sh: max-cudagraph-capture-size

    @property
    def _narrower(self) -> str:
        """Arguments of the roofline where weights are stored in fewer bits than those of the catalogue's model."""
        m, bits = catalog.model(self.model), {"fp8": 8.0, "fp4": 4.5, "int4": 4.25}.get(self.precision, 16.0)
        stored = catalog.format_named(m.formats.linear if m.experts is None else m.formats.experts)
        return f",dtype_bytes=1,weight_bits={bits}" if bits < round(stored.bits) else ""

    def latency(self, folder: Path, constants: Mapping[str, float]) -> str:
        """Spec of its latency model, from the tables in `folder`; without constants the roofline."""
        if not constants:
            return f"roofline:dp={self.dp},ep={self.ep}{self._narrower}"
        parts = {"data": folder, "dp": self.dp, "ep": self.ep, **dict(self.formats), **constants,
                 "graph_tokens": self.graph_tokens}  # fmt: skip
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
    try:
        return row.kv_tokens > 0
    except UsageError:
        out[f"{row.source}: the weights of {row.model} do not fit {row.tp * row.dp} {row.gpu}"] += 1
        return False


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
    found: list[Row] = []
    seen: set[tuple[object, ...]] = set()
    for r in table.itertuples():
        if r.mode != "agg":
            out["aiconfigurator: prefill and decode apart"] += 1
        elif r.model_path not in MODELS:
            out[f"aiconfigurator: {r.model_path} is not in the catalogue"] += 1
        elif not (r.silicon_ttft_ms > 0 and r.silicon_tpot_ms > 0) or pd.isna(r.tp_size):
            out["aiconfigurator: without both times, or without tp"] += 1
        elif r.tp_size > NODE_GPUS and r.moe_ep_size == 1:
            out["aiconfigurator: called aggregated, with the GPUs of prefill and decode of rows of inferencemax"] += 1
        else:
            row = _aiconfigurator_row(r)
            times = (*row.setting, row.ttft_s, row.tpot_s)
            if times in seen:
                out["aiconfigurator: a run listed again"] += 1
            else:
                found.append(row)
            seen.add(times)
    return found


def _shape(r: Any) -> tuple[int, int, int]:
    """(tp, dp, ep) of a row of aiconfigurator.

    Two of the tables that it is made of have the product of tp and ep where the others have one of them: 64 GPUs of a
    node of eight. The same runs, with equal times, are listed in the other tables with tp and ep as they were.
    """
    tp, dp, moe_tp, ep = (
        1 if pd.isna(value) else int(value) for value in (r.tp_size, r.attention_dp_size, r.moe_tp_size, r.moe_ep_size)
    )
    if tp > 1 and tp == dp and ep == tp * dp:
        return tp, 1, dp
    if tp * dp > NODE_GPUS and moe_tp * ep == tp * dp:
        return (moe_tp, 1, ep) if dp == 1 else (1, moe_tp, ep)
    return tp, dp, ep


def _aiconfigurator_row(r: Any) -> Row:
    gpu, model, precision = r.system.removesuffix("_sxm"), MODELS[r.model_path], str(r.precision)
    routed = catalog.model(model).experts is not None
    own = pd.isna(r.attention_dp_size)  # not a row of InferenceMAX
    if precision == "fp4":
        formats = {"linear": "nvfp4", "attention": "bf16" if routed else "nvfp4", "experts": "nvfp4"}
    elif precision == "int4":
        formats = {"experts": "int4-g32"}
    elif precision == "fp8" or "fp8" in str(r.gemm_quant_mode):
        formats = dict.fromkeys(("linear", "attention", "experts"), "fp8-block" if routed else "fp8")
    else:
        formats = dict.fromkeys(("linear", "attention", "experts"), "bf16")
    # 70b_fp8_*.sh and all scripts of TensorRT-LLM: kv-cache-dtype fp8
    is_kv_fp8 = gpu in BLACKWELL or model == "llama3.1-70b" or (r.backend == "trtllm" and not own)
    formats["kv"] = "fp8" if is_kv_fp8 and precision != "bf16" else "bf16"
    of_replica = r.batch_size * (1 if own else r.attention_dp_size)
    clients = int(of_replica if pd.isna(r.silicon_concurrency) else min(of_replica, r.silicon_concurrency))
    return Row(
        "aiconfigurator", gpu, ENGINES[r.backend], model, precision, tuple(formats.items()), *_shape(r),
        int(r.isl), int(r.osl), clients, r.silicon_ttft_ms / 1e3, r.silicon_tpot_ms / 1e3, "mean",
    )  # fmt: skip


def simulated(row: Row, folder: Path, constants: Mapping[str, float]) -> tuple[float, float]:
    """(TTFT, TPOT) in seconds of a row, as its source sums them up."""
    server = Server(
        row.latency(folder, constants),
        max(row.kv_tokens, 2 * (row.prompt + row.output)),
        row.policy,
        row.model,
        row.gpu,
        row.tp,
        "reserve-oracle" if row.engine == "trtllm" else "paged",  # its default: GUARANTEED_NO_EVICT
    )
    times = run(Load(row.prompt, row.output, row.clients), server.simulator())
    of = np.median if row.kind == "median" else np.mean
    return float(of(times.ttft_s)), float(np.median(times.tpot_s))


Task = tuple[int, Row, Path, tuple[tuple[str, float], ...]]


def simulated_task(task: Task) -> tuple[float, float]:
    """`simulated` of a numbered row, for a pool."""
    _, row, folder, constants = task
    return simulated(row, folder, dict(constants))

"""Print what the roofline says beside what was measured on real GPUs; nothing is fitted here.

Usage: python tests/perf/latency_beside_measurements.py [folder of measured latencies]
"""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table

from backends.latency import roofline
from backends.latency.roofline import Roofline
from harness import catalog
from harness.catalog import Experts

DEFAULT = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "profiles"
GPUS = {"a100-80gb": "a100-80g", "h100-80gb": "h100", "a100": "a100-80g", "h100": "h100"}
MODELS = {
    "meta-llama/Llama-2-7b-hf": "llama2-7b", "meta-llama/Llama-2-70b-hf": "llama2-70b",
    "meta-llama/Meta-Llama-3-8B": "llama3-8b", "meta-llama/Meta-Llama-3-70B": "llama3-70b",
}  # fmt: skip
SERVED = {
    "meta-llama/Llama-3.1-70B": "llama3.1-70b", "meta-llama/Llama-3.1-8B-Instruct": "llama3.1-8b",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "llama3.1-8b", "Qwen/Qwen3-235B-A22B-FP8": "qwen3-235b-a22b",
    "deepseek-ai/DeepSeek-R1": "deepseek-v3",
}  # fmt: skip
GPT_OSS = catalog.Model(
    "gpt-oss-120b", "openai/gpt-oss, gpt_oss/torch/model.py; its sliding window is not modelled", "llama", 36, 2880, 64,
    8, 64, 2880, 201_088, 0, 131_072, gated=True, tied=False, experts=Experts(routed=128, per_token=4, ffn=2880),
)  # fmt: skip
MXFP4_BITS = 4.25
PER_STEP_S = 7.81e-3
"""What every step was charged for the host before it was charged per layer."""


@dataclass(slots=True)
class Comparison:
    """Pairs of measured and obtained milliseconds of one group of rows; `shown` are printed one by one."""

    name: str
    pairs: list[tuple[float, float]] = field(default_factory=list)
    shown: list[tuple[str, float, float]] = field(default_factory=list)

    def add(self, label: str, measured_ms: float, obtained_ms: float, *, show: bool = False) -> None:
        """One row."""
        self.pairs.append((measured_ms, obtained_ms))
        if show:
            self.shown.append((label, measured_ms, obtained_ms))

    def row(self) -> tuple[str, str, str, str]:
        """Name, number of rows, median of obtained over measured, median of the absolute relative error."""
        ratios = [obtained / measured for measured, obtained in self.pairs]
        errors = [abs(r - 1) for r in ratios]
        return self.name, str(len(ratios)), f"{median(ratios):.2f}", f"{median(errors):.0%}"


def iterations(folder: Path) -> list[Comparison]:
    """Whole steps of vLLM with Llama-2-70B: prefill of a batch, and decode at its mean context."""
    data = pd.read_csv(folder / "splitwise_iteration_latency.csv")
    data = data[(data.model == "llama2-70b") & data.hardware.isin(GPUS)]
    data = data[~((data.hardware == "a100-80gb") & (data.tensor_parallel == 2) & (data.batch_size == 64))]
    found: list[Comparison] = []
    for (gpu, tp), rows in data.groupby(["hardware", "tensor_parallel"]):
        model = Roofline("llama2-70b", GPUS[gpu], tp=tp)
        prefill, decode = (
            Comparison(f"prefill step, {gpu} tp {tp}"),
            Comparison(f"decode step, {gpu} tp {tp}"),
        )
        for row in rows[rows.token_size == 128].itertuples():
            show = (row.prompt_size, row.batch_size) in {(512, 1), (512, 16), (4096, 1)}
            label = f"{row.batch_size} x {row.prompt_size}"
            context = row.batch_size * (row.prompt_size + 64)
            prefill_s = model.step_s([(row.prompt_size, 0)] * row.batch_size, 0, 0)
            prefill.add(label, row.prompt_time_ms, prefill_s * 1e3, show=show)
            decode.add(label, row.token_time_ms, model.decode_s(row.batch_size, context) * 1e3, show=show)
        found += [prefill, decode]
    return found


def layers(folder: Path) -> list[Comparison]:
    """The four matrix products of a layer (Vidur), without host and all-reduce."""
    data = pd.read_parquet(folder / "vidur_linear_ops.parquet")
    data = data[data.model.isin(MODELS) & data.gpu.isin(GPUS)]
    products = ["attn_pre_proj_ms", "attn_post_proj_ms", "mlp_up_proj_ms", "mlp_down_proj_ms"]
    found = []
    for (gpu, name), rows in data.groupby(["gpu", "model"]):
        group = Comparison(f"matrix products of a layer, {gpu} {MODELS[name]}")
        for tp, part in rows.groupby("num_tensor_parallel_workers"):
            model = Roofline(MODELS[name], GPUS[gpu], tp=tp)
            for row in part.itertuples():
                layer_s = model.layers_s(row.num_tokens) / catalog.model(MODELS[name]).layers
                obtained_s = layer_s - 2 * model.allreduce_s(row.num_tokens)
                measured_ms = sum(getattr(row, product) for product in products)
                group.add(f"tp {tp}, {row.num_tokens} tokens", measured_ms, obtained_s * 1e3)
        found.append(group)
    return found


def gemms(folder: Path) -> list[Comparison]:
    """Single matrix products in bf16 (AIConfigurator), small and large numbers of rows apart."""
    found = []
    for gpu in ("a100", "h100"):
        data = pd.read_parquet(folder / f"aic_{gpu}_sxm_vllm_gemm.parquet")
        data = data[data.gemm_dtype == "bfloat16"]
        model = Roofline(hardware=GPUS[gpu])
        few = Comparison(f"matrix product, {gpu}, up to 64 rows")
        many = Comparison(f"matrix product, {gpu}, from 1024 rows")
        for row in data.itertuples():
            group = few if row.m <= 64 else many if row.m >= 1024 else None
            if group is not None and row.n * row.k >= 1 << 22:
                group.add("", row.latency, model._product_s(row.m, row.k, row.n, 1, model._parts["linear"]) * 1e3)
        found += [few, many]
    return found


def served(folder: Path) -> list[tuple[str, int, float, float]]:
    """TPOT of benchmarks at fixed lengths and concurrency against a decode step at the mean context.

    Rows of (what, rows, mean error with 7.81 ms a step, mean error with 97.6 us a layer), worst first.
    """
    found: dict[str, list[tuple[float, float]]] = {}

    def add(group: str, model: str, gpu: str, tp: int, users: int, context: float, tpot_s: float, **how: Any) -> None:
        errors = [
            abs(Roofline(model, gpu, tp=tp, **how, **host).decode_s(users, round(users * context)) / tpot_s - 1)
            for host in ({"overhead_s": PER_STEP_S}, {})
        ]
        found.setdefault(group, []).append((errors[0], errors[1]))

    known = roofline.model
    roofline.model = lambda name: GPT_OSS if name == GPT_OSS.name else known(name)
    rows = pd.read_csv(folder / "inferencemax.csv")
    for row in rows[(rows.model == "gptoss") & (rows.framework == "vllm") & rows.hw.isin(catalog.gpus())].itertuples():
        context = 0.9 * (row.isl + row.osl / 2)  # lengths are uniform between 0.8 and 1 times isl and osl
        add(f"gpt-oss-120b, {row.hw}, vllm", GPT_OSS.name, row.hw, int(row.tp), row.conc, context, row.mean_tpot,
            weight_bits=MXFP4_BITS)  # fmt: skip
    data = pd.read_parquet(folder / "aic_silicon_e2e.parquet")
    data = data[(data["mode"] == "agg") & (data.silicon_tpot_ms > 0) & ~(data.attention_dp_size > 1)]
    for row in data[data.model_path.isin(SERVED) & data.system.isin(["h100_sxm", "h200_sxm"])].itertuples():
        eight = "fp8" in f"{row.precision} {row.gemm_quant_mode}"
        add(f"{SERVED[row.model_path]}, {row.system}, {row.backend}, {row.precision}", SERVED[row.model_path],
            row.system.removesuffix("_sxm"), int(row.tp_size), int(row.batch_size), row.isl + row.osl / 2,
            row.silicon_tpot_ms / 1e3, dtype_bytes=1 if eight else 2)  # fmt: skip
    means = [
        (name, len(errors), *(sum(one) / len(errors) for one in zip(*errors, strict=True)))
        for name, errors in found.items()
    ]
    return sorted(means, key=lambda row: -row[3])


def main() -> None:
    """Print all tables."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT
    groups = [*iterations(folder), *layers(folder), *gemms(folder)]
    console = Console(width=110)
    single = Table("steps of vLLM, Llama-2-70B", "batch x prompt", "measured ms", "roofline ms", "ratio")
    for group in groups:
        for label, measured_ms, obtained_ms in group.shown:
            numbers = (f"{measured_ms:.1f}", f"{obtained_ms:.1f}", f"{obtained_ms / measured_ms:.2f}")
            single.add_row(group.name, label, *numbers)
    console.print(single)
    table = Table("what", "rows", "median roofline / measured", "median error")
    for group in groups:
        if group.pairs:
            table.add_row(*group.row())
    console.print(table)
    table = Table("TPOT at fixed concurrency", "rows", "mean error, 7.81 ms a step", "mean error, 97.6 us a layer")
    for name, rows, before, after in served(folder):
        table.add_row(name, str(rows), f"{before:.0%}", f"{after:.0%}")
    console.print(table)


if __name__ == "__main__":
    main()

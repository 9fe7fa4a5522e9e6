"""Computes the times of kernels that `operators` uses by itself (`backends/kernels/measured/*.parquet`).

    python tools/make_kernels.py FOLDER

FOLDER is `systems/data` of aiconfigurator-core. Of each shape the fastest time over all engines is kept, in
milliseconds and in steps of a hundredth, for a part of the shapes: sizes between them are interpolated.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pandas.api.types import is_numeric_dtype

from backends.kernels.tables import GPU_OF, SHIPPED, SKEW, MeasuredKernels, exchange_rows, systems
from harness.catalog import hardware
from harness.errors import UsageError

WIDTHS = (64, 256, 512, 768, 1024, 1536, 2048, 3072, 4096, 5120, 7168, 8192, 10240, 16384, 65536)
ROWS = (1, 48, 96, 192, *(2**i for i in range(2, 18)))
STORED = (1, 31, 127, 511, 1023, 2047, 4095, 8191, 16383, 32767, 131071)
SEQS = (1, 4, 16, 32, 64, 128, 256, 512, 1024, 2048)
TOKENS = tuple(2**i for i in range(15))
HEADS = ("attn_dtype", "kv_cache_dtype", "num_heads", "num_key_value_heads", "head_dim", "window_size", "batch_size")
GROUPS = (1, 2, 4, 5, 8, 16)
STEP = 0.01


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a kind: the columns that name a shape, and the values kept of some of them."""

    kind: str
    shape: Sequence[str]
    kept: Mapping[str, Sequence[object]] = field(default_factory=dict)


STORED_HEADS = (1, 2, 4, 8, 16, 32, 64)
EXPERTS = ("moe_dtype", "hidden_size", "inter_size", "num_experts", "topk", "moe_tp_size", "moe_ep_size")
LATENT = ("kv_cache_dtype", "num_heads", "batch_size")
TABLES = {
    "gemm": Table("gemm", ("gemm_dtype", "m", "n", "k"), {"m": ROWS, "n": WIDTHS, "k": WIDTHS}),
    "context_attention": Table(
        "attention", (*HEADS, "isl", "step"),
        {"attn_dtype": ("bfloat16",), "batch_size": (1,), "step": (0,), "num_key_value_heads": STORED_HEADS},
    ),
    "generation_attention": Table(
        "attention", (*HEADS, "step"),
        {"attn_dtype": ("bfloat16",), "batch_size": SEQS, "step": STORED, "num_key_value_heads": STORED_HEADS},
    ),
    "context_mla": Table("mla", (*LATENT, "isl", "step"), {"batch_size": (1,), "step": (0,)}),
    "generation_mla": Table("mla", (*LATENT, "step"), {"batch_size": SEQS, "step": STORED}),
    "moe": Table("moe", (*EXPERTS, "distribution", "num_tokens"), {"num_tokens": TOKENS}),
    "custom_allreduce": Table("comm", ("op_name", "num_gpus", "message_size")),
    "nccl": Table(
        "comm", ("op_name", "nccl_dtype", "num_gpus", "message_size"),
        {"op_name": ("all_reduce", "all_gather"), "nccl_dtype": ("half",)},
    ),
}  # fmt: skip


def fastest(t: pd.DataFrame, table: Table) -> pd.DataFrame:
    """The fastest time of each shape that is kept."""
    for column, values in table.kept.items():
        t = t[t[column].isin(values)]
    if "num_key_value_heads" in t:
        t = t[(t["num_heads"] / t["num_key_value_heads"]).isin(GROUPS)]
    if "kernel_source" in t and table.kind == "comm":
        t = t[~t["kernel_source"].astype(str).str.endswith("eager")]
    if "distribution" in t:
        usual = t["distribution"] == SKEW
        t = t[usual | ~usual.groupby([t[column] for column in EXPERTS]).transform("any")]
    return t.groupby(list(table.shape), sort=True)["latency"].min().reset_index()


def compact(t: pd.DataFrame) -> pd.DataFrame:
    """With times in steps of a hundredth, and the types that take least space."""
    t["latency"] = np.exp(np.round(np.log(t["latency"].astype(float)) / STEP) * STEP).astype("float32")
    kinds = {c: "int32" if is_numeric_dtype(t[c]) else "category" for c in t if c != "latency"}
    return t.astype(kinds)


def write(rows: pd.DataFrame, file: Path) -> None:
    """Write a row group for each system, so that a command reads that of its GPU alone."""
    table = pa.Table.from_pandas(compact(rows), preserve_index=False)
    with pq.ParquetWriter(file, table.schema, compression="zstd", compression_level=19) as writer:
        for system in rows["system"].unique():
            writer.write_table(table.filter(pc.equal(table["system"], system)))
    print(f"{file.name}: {len(rows)} rows, {file.stat().st_size // 1000} kB")


def main(arguments: Sequence[str]) -> int:
    """Write one file for each table, over all systems."""
    folder = Path(arguments[0])
    SHIPPED.mkdir(exist_ok=True)
    for name, table in TABLES.items():
        parts = []
        for system in systems(folder):
            if system in GPU_OF:
                gpu = hardware(GPU_OF[system])
                try:
                    t = pd.DataFrame(MeasuredKernels(folder, system, gpu, gpu).rows_of(table.kind, name))
                except UsageError as error:
                    print(error)
                    continue
                part = fastest(t, table)
                part.insert(0, "system", system)
                parts.append(part)
        write(pd.concat(parts, ignore_index=True), SHIPPED / f"{name}.parquet")
    found = []
    for system in systems(folder):
        if system in GPU_OF:
            try:
                part = pd.DataFrame(exchange_rows(folder, system))
            except UsageError as error:
                print(error)
                continue
            part.insert(0, "system", system)
            found.append(part)
    write(pd.concat(found, ignore_index=True), SHIPPED / "exchange.parquet")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

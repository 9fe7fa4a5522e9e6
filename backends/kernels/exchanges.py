"""Measured all-to-all exchanges of tokens between GPUs that hold experts, in the shape of DeepSeek-V3.

DeepEP's low-latency kernels over one to eight nodes, and TensorRT-LLM's over NVLink within GB200's domain; the faster
of both is shipped as exchange.parquet: `tokens` of each of `gpus` GPUs to their experts and back.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from backends.kernels.bounds import Array, ExpertLayer
from harness.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd  # heavy

SHAPE = ExpertLayer(hidden=7168, ffn=2048, routed=256, chosen=8, nodes=0)
"""The shape that exchanges were measured with."""
NODE_GPUS = {"gb200": 4, "gb300": 4}
"""GPUs of a node where they are not eight."""
WIDE_TYPES = ("bfloat16", "fp8")
"""What TensorRT-LLM sends; exchanges of fp4 are left out, as not all models have them."""


def rows(folder: Path, system: str) -> dict[str, np.ndarray]:
    """`gpus`, `tokens` of each and `latency` in milliseconds. Raises UsageError where none were measured."""
    try:
        if (shipped := folder / "exchange.parquet").is_file():
            t = pq.read_table(shipped)
            t = t.filter(np.array(t["system"].to_pylist()) == system)
            columns = {name: t[name].to_numpy() for name in ("gpus", "tokens", "latency")}
        else:
            columns = _fastest(folder / system / "comm", system)
    except (OSError, pa.ArrowException, KeyError) as error:
        raise UsageError(f"'{folder}' cannot be read as times of exchanges: {error}.") from None
    if not len(columns["latency"]):
        raise UsageError(f"'{folder}' has no times of exchanges on {system}.")
    return columns


def _fastest(comm: Path, system: str) -> dict[str, np.ndarray]:
    """Of the tables of both, over all of their versions."""
    import pandas as pd  # heavy: only for tables that are not shipped

    parts = [*_deepep(comm, system), *_tensorrt(comm)]
    if not parts:
        return {name: np.zeros(0) for name in ("gpus", "tokens", "latency")}
    t = pd.concat(parts).groupby(["gpus", "tokens"])["latency"].min().reset_index()
    return {name: t[name].to_numpy() for name in ("gpus", "tokens", "latency")}


def _deepep(comm: Path, system: str) -> list[pd.DataFrame]:
    import pandas as pd  # heavy

    frames = []
    for file in sorted(comm.glob("*/*/wideep_deepep_ll_perf.parquet")):
        t = pd.read_parquet(file)
        t = t[(t["hidden_size"] == SHAPE.hidden) & (t["num_topk"] == SHAPE.chosen) & (t["num_experts"] == SHAPE.routed)]
        frames.append(pd.DataFrame({
            "gpus": t["node_num"] * NODE_GPUS.get(system, 8), "tokens": t["num_token"],
            "latency": (t["dispatch_avg_t_us"] + t["combine_avg_t_us"]) / 1e3,
        }))  # fmt: skip
    return frames


def _tensorrt(comm: Path) -> list[pd.DataFrame]:
    import pandas as pd  # heavy

    frames = []
    for file in sorted(comm.glob("*/*/trtllm_alltoall_perf.parquet")):
        t = pd.read_parquet(file)
        wide = t["moe_dtype"].isin(WIDE_TYPES) & (t["op_name"] != "alltoall_combine_low_precision")
        names = ["kernel_source", "moe_dtype", "moe_ep_size", "num_tokens"]
        steps = t[wide].groupby([*names, "op_name"])["latency"].min().groupby(names).sum().reset_index()
        renamed = steps.rename(columns={"moe_ep_size": "gpus", "num_tokens": "tokens"})
        frames.append(renamed[["gpus", "tokens", "latency"]])
    return frames


def measured(t: dict[str, np.ndarray]) -> tuple[list[Array], Array]:
    """Tokens of each GPU and GPUs, and seconds."""
    sizes = [t[name].astype(float) for name in ("tokens", "gpus")]
    return sizes, t["latency"].astype(float) / 1e3

"""Measured all-to-all exchanges of tokens between GPUs that hold experts, in the shape of DeepSeek-V3.

DeepEP's low-latency kernels over one to eight nodes, and TensorRT-LLM's over NVLink within GB200's domain; the faster
of both is shipped as exchange.parquet: `tokens` of each of `gpus` GPUs to their experts and back.
"""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from backends.kernels.bounds import Array, ExpertLayer
from harness.errors import UsageError

SHAPE = ExpertLayer(hidden=7168, ffn=2048, routed=256, chosen=8, nodes=0)
"""The shape that exchanges were measured with."""
NODE_GPUS = {"gb200": 4, "gb300": 4}
"""GPUs of a node where they are not eight."""
WIDE_TYPES = ("bfloat16", "fp8")
"""What TensorRT-LLM sends; exchanges of fp4 are left out, as not all models have them."""


def rows(folder: Path, system: str) -> pd.DataFrame:
    """`gpus`, `tokens` of each and `latency` in milliseconds. Raises UsageError where none were measured."""
    try:
        if (shipped := folder / "exchange.parquet").is_file():
            t = pd.read_parquet(shipped)
            t = t[t["system"] == system]
        else:
            t = pd.concat([_deepep(folder / system / "comm", system), _tensorrt(folder / system / "comm")])
            t = t.groupby(["gpus", "tokens"])["latency"].min().reset_index()
    except (OSError, pa.ArrowException, KeyError) as error:
        raise UsageError(f"'{folder}' cannot be read as times of exchanges: {error}.") from None
    if t.empty:
        raise UsageError(f"'{folder}' has no times of exchanges on {system}.")
    return t


def _deepep(comm: Path, system: str) -> pd.DataFrame:
    found = []
    for file in sorted(comm.glob("*/*/wideep_deepep_ll_perf.parquet")):
        t = pd.read_parquet(file)
        t = t[(t["hidden_size"] == SHAPE.hidden) & (t["num_topk"] == SHAPE.chosen) & (t["num_experts"] == SHAPE.routed)]
        found.append(pd.DataFrame({
            "gpus": t["node_num"] * NODE_GPUS.get(system, 8), "tokens": t["num_token"],
            "latency": (t["dispatch_avg_t_us"] + t["combine_avg_t_us"]) / 1e3,
        }))  # fmt: skip
    return pd.concat([_NONE, *found])


def _tensorrt(comm: Path) -> pd.DataFrame:
    found = []
    for file in sorted(comm.glob("*/*/trtllm_alltoall_perf.parquet")):
        t = pd.read_parquet(file)
        whole = t["moe_dtype"].isin(WIDE_TYPES) & (t["op_name"] != "alltoall_combine_low_precision")
        names = ["kernel_source", "moe_dtype", "moe_ep_size", "num_tokens"]
        steps = t[whole].groupby([*names, "op_name"])["latency"].min().groupby(names).sum().reset_index()
        found.append(steps.rename(columns={"moe_ep_size": "gpus", "num_tokens": "tokens"}))
    return pd.concat([_NONE, *found])[["gpus", "tokens", "latency"]]


_NONE = pd.DataFrame({"gpus": np.zeros(0, int), "tokens": np.zeros(0, int), "latency": np.zeros(0)})


def measured(t: pd.DataFrame) -> tuple[list[Array], Array]:
    """Tokens of each GPU and GPUs, and seconds."""
    sizes = [t[name].to_numpy(float) for name in ("tokens", "gpus")]
    return sizes, t["latency"].to_numpy(float) / 1e3

"""Llama-3.1-8B on vLLM and one RTX 4090, from the times of its operators alone: nothing is calibrated.

Source: casys-kaist/LLMServingSim (MIT): `profiler/perf` (operators of one layer) and `bench/examples` (300 requests
of a real run of vLLM 0.19.0). KV memory runs short in that run, so requests queue and are preempted.
"""

from __future__ import annotations

import importlib
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from harness.api import Request, Simulator
from harness.registry import make
from harness.validate import Pair, Validation, needed
from harness.validate.scoring import MEAN, target

if TYPE_CHECKING:
    import pandas as pd

GPU, MODEL = "RTX4090", "llama3.1-8b"
RUN = "profiles/llmservingsim_vllm_requests.parquet"
TABLES = "profiles/llmservingsim_rtx4090_llama31_8b_{}.parquet"
KV_TOKENS = 41_408  # what vLLM reported at its start
BLOCK_TOKENS = 16
MOST_DECODES = 128  # of the attention table; its few rows beyond hold no prompt
ONCE = {"embedding": 1, "final_layernorm": 1}  # operators outside of the layers
TWICE = "layernorm"  # before attention and before the feed-forward
QUANTILES = (25, 50, 75, 90, 99)
_SIMULATED = (
    "Simulated: policy vllm-v1 with 2,048 tokens and 256 sequences a step, prefix cache, "
    f"{KV_TOKENS:,} tokens of KV, latency operators; nothing is calibrated, so all requests are scored."
)
Floats = npt.NDArray[np.float64]


def validate(data: Path) -> Validation:
    """Replay the run's requests. Raises UsageError without its files."""
    run = _read(data, RUN)
    run = run[run["gpu"].astype(str) == GPU].sort_values("arrival_s")
    ttft_s, tpot_s = _simulated(run, operators(data))
    seen = {"ttft_s": run["ttft_ms"].to_numpy() / 1e3, "tpot_s": run["tpot_ms"].to_numpy() / 1e3}
    simulated = {"ttft_s": ttft_s, "tpot_s": tpot_s}
    pairs = [pair for metric in seen for pair in _pairs(metric, seen[metric], simulated[metric])]
    measured = f"Measured: {len(run)} requests of vLLM 0.19.0 on one {GPU}, casys-kaist/LLMServingSim."
    each = {metric: np.mean(np.abs(simulated[metric] / seen[metric] - 1)) for metric in seen}
    one_by_one = (
        f"Request by request the mean error is {each['ttft_s']:.1%} of TTFT and {each['tpot_s']:.1%} of TPOT: which "
        "request is preempted depends on a few blocks, how many are does not."
    )
    return Validation(
        "llmservingsim-4090",
        "Llama-3.1-8B on vLLM and one RTX 4090, from operator times alone",
        (measured, _SIMULATED, one_by_one),
        tuple(pairs),
        (target(pairs, "tpot_s", MEAN, 3.0), target(pairs, "ttft_s", MEAN, 10.0)),
    )


def _pairs(metric: str, measured: Floats, simulated: Floats) -> list[Pair]:
    points = zip(np.percentile(measured, QUANTILES), np.percentile(simulated, QUANTILES), QUANTILES, strict=True)
    mean = Pair("mean", metric, float(measured.mean()), float(simulated.mean()))
    return [mean, *(Pair(f"p{q}", metric, float(seen), float(made)) for seen, made, q in points)]


def operators(data: Path) -> dict[str, list[Any]]:
    """The tables of the latency model `operators`, in seconds over all layers. Raises UsageError without the files."""
    layers = importlib.import_module("backends._catalog").model(MODEL).layers  # harness may not import it statically
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


def _simulated(run: pd.DataFrame, tables: dict[str, list[Any]]) -> tuple[Floats, Floats]:
    rows = zip(run["arrival_s"], run["prompt_len"], run["output_len"], strict=True)
    requests = [Request(i, float(at_s), int(prompt), int(output)) for i, (at_s, prompt, output) in enumerate(rows)]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "operators.json"
        file.write_text(json.dumps(tables), encoding="utf-8")
        made = make(
            "backends", "sim", model=MODEL, latency=f"operators:file={file}", policy="vllm-v1:budget=2048,max_seqs=256",
            kv="paged:watermark=0", kv_blocks=KV_TOKENS // BLOCK_TOKENS, prefix_cache="on", log_steps=False,
        )  # fmt: skip
    records = sorted(cast("Simulator", made).simulate(requests), key=lambda record: record.request_id)
    first, last = (np.array([record.token_s[i] for record in records]) for i in (0, -1))
    gaps = np.array([record.output_tokens - 1 for record in records])
    return first - np.array([record.scheduled_s for record in records]), (last - first) / gaps


def _read(data: Path, name: str) -> pd.DataFrame:
    import pandas as pd

    return pd.read_parquet(needed(data / name))

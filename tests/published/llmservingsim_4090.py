"""Llama-3.1-8B on vLLM and one RTX 4090, from the times of its operators alone: nothing is calibrated.

Source: casys-kaist/LLMServingSim (MIT): `profiler/perf` (operators of one layer) and `bench/examples` (300 requests
of a real run of vLLM 0.19.0). KV memory runs short in that run, so requests queue and are preempted.
"""

import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from harness import catalog
from harness.experiments.validate import Validation, measured_runs, measurements, simulated
from harness.experiments.validate.answer import MEAN
from published import form

GPU, MODEL = "RTX4090", "llama3.1-8b"
RUN = "profiles/llmservingsim_vllm_requests.parquet"
TABLES = "profiles/llmservingsim_rtx4090_llama31_8b_{}.parquet"
KV_TOKENS = 41_408  # what vLLM reported at its start
BLOCK_TOKENS = 16
MOST_DECODES = 128  # of the attention table; its few rows beyond hold no prompt
ONCE = {"embedding": 1, "final_layernorm": 1}  # operators outside of the layers
TWICE = "layernorm"  # before attention and before the feed-forward
STATISTICS = ("mean", "p25", "p50", "p75", "p90", "p99")
_SIMULATED = (
    "Simulated: policy vllm-v1 with 2,048 tokens and 256 sequences a step, prefix cache, "
    f"{KV_TOKENS:,} tokens of KV, latency operators; nothing is calibrated, so all requests are scored."
)


def validate(data: Path) -> Validation:
    """Replay the run's requests. Raises UsageError without its files."""
    with tempfile.TemporaryDirectory() as folder:
        (path,) = convert(data, Path(folder))
        found = measured_runs.validate(path)
        return dataclasses.replace(found, setting=(*found.setting, one_by_one(path)))


def convert(data: Path, folder: Path) -> list[Path]:
    """One run with the times of its requests, and the operator times of its backend in a file beside it."""
    run = _read(data, RUN)
    run = run[run["gpu"].astype(str) == GPU].sort_values("arrival_s")
    file = folder.resolve() / "llmservingsim-4090-operators.json"
    file.write_text(json.dumps(operators(data)), encoding="utf-8")
    options = {
        "model": MODEL, "latency": f"operators:file={file}", "policy": "vllm-v1:budget=2048,max_seqs=256",
        "kv": "paged:watermark=0", "kv_blocks": KV_TOKENS // BLOCK_TOKENS, "prefix_cache": "on",
    }  # fmt: skip
    requests = pd.DataFrame({
        "run": "vllm", "arrival_s": run["arrival_s"], "prompt_tokens": run["prompt_len"],
        "output_tokens": run["output_len"], "ttft_s": run["ttft_ms"] / 1e3, "tpot_s": run["tpot_ms"] / 1e3,
    })  # fmt: skip
    path = form.write(
        folder, "llmservingsim-4090",
        title="Llama-3.1-8B on vLLM and one RTX 4090, from operator times alone",
        setting=(f"Measured: {len(run)} requests of vLLM 0.19.0 on one {GPU}, casys-kaist/LLMServingSim.", _SIMULATED),
        backends={"vllm": options},
        requests=requests,
        backend="vllm",
        metrics=[f"{name}_{one}_s" for name in ("ttft", "tpot") for one in STATISTICS],
        targets=[{"metric": "tpot_s", "how": MEAN, "limit": 3.0}, {"metric": "ttft_s", "how": MEAN, "limit": 10.0}],
    )  # fmt: skip
    return [path]


def one_by_one(path: Path) -> str:
    """How far single requests are off, in a sentence."""
    (run,) = measurements.read(path).runs
    (measured,) = run.repeats
    assert run.backend is not None
    assert measured.times is not None
    ours = simulated.times(measured.traffic, measurements.simulator(run.backend))
    ttft, tpot = (
        np.mean(np.abs(made / seen - 1))
        for made, seen in ((ours.ttft_s, measured.times.ttft_s), (ours.tpot_s, measured.times.tpot_s))
    )
    return (
        f"Request by request the mean error is {ttft:.1%} of TTFT and {tpot:.1%} of TPOT: which "
        "request is preempted depends on a few blocks, how many are does not."
    )


def operators(data: Path) -> dict[str, list[Any]]:
    """The tables of the latency model `operators`, in seconds over all layers. Raises UsageError without the files."""
    layers = catalog.model(MODEL).layers
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

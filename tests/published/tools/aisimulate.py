"""AISimulate: steps of a scheduler over tables of kernels (`predict`), the successor of aiconfigurator.

Version 0.13.0 of the registry is a stub; the build of the day before is the tool. It is given what is known of the
server: tokens of a step, and that it takes more sequences than there are clients.
"""

import logging

REQUIREMENTS = ("aisimulate==0.13.0.dev202610270000000085",)
RELEASED = "2026-10-27"
MEAN_LENGTH = 0.9
ROUNDS, MOST = 10, 6000


def predict(row):
    """(TTFT, TPOT) in seconds of a closed loop; lengths are those that requests have on average."""
    import _nvidia

    what = _nvidia.described(row)
    if isinstance(what, str):
        return what
    logging.disable(logging.WARNING)
    from aisimulate.config.cli import CorePredictionConfig
    from aisimulate.predict import run_prediction
    from aisimulate.stack import resolve_runner_factory

    parallelism = {"tensor": row["tp"], "attention_data": row["dp"]}
    if what["moe"] is not None:
        parallelism["moe_tensor"], parallelism["moe_expert"] = what["moe"]
    worker = {
        "parallelism": parallelism,
        "scheduler": {"max_batched_tokens": row["step_tokens"] // row["dp"], "max_sequences": 2048},
    }
    worker["timing"] = {"gemm_quant_mode": what["gemm"], "moe_quant_mode": what["experts"]}
    requests = min(ROUNDS * row["clients"], max(MOST, row["clients"]))
    config = {
        "traffic": {
            "source": {"type": "synthetic", "input_tokens": round(MEAN_LENGTH * row["prompt"]),
                       "output_tokens": round(MEAN_LENGTH * row["output"])},
            "load": {"type": "concurrency", "concurrency": row["clients"]},
            "stop": {"requests": requests},
        },
        "engine": {
            "mode": "aggregated", "model": what["model"], "hardware": what["system"], "backend": row["engine"],
            "database_mode": "HYBRID", "kvcache_quant_mode": what["kv"], "workers": {"aggregated": worker},
        },
    }  # fmt: skip
    found = run_prediction(
        CorePredictionConfig.model_validate(config), stack="engine", runner_factory=resolve_runner_factory("engine")
    ).summary
    if found.get("mean_ttft_ms") is None:
        return f"no request completed: {found.get('diagnostic')}"
    return found[f"{row['kind']}_ttft_ms"] / 1e3, found["median_tpot_ms"] / 1e3

"""Benchmarks of vLLM, SGLang and TensorRT-LLM on six GPUs, dense models and mixtures of experts, at fixed concurrency.

Source: ai-dynamo/aiconfigurator `silicon_sample.csv`. The constants of `operators` are those of `zero_shot`, chosen on
rows of other models on other GPUs, so that every row is scored.
"""

from collections import Counter
from pathlib import Path

import numpy as np

from harness.experiments.validate.answer import MEAN, WORSE_HALF, Pair, Validation, target, validation
from published import served, zero_shot
from published.served import Row

PEERS = "aiconfigurator's own predictions: {} % on average (other rows, not like for like)"
FAR = 1.0
"""|ln(simulated / measured)| of a TTFT that no setting of this simulator explains."""


def validate(data: Path) -> Validation:
    """All rows of replicas alike, each with constants from rows of other models on other GPUs."""
    rows, out = served.rows(data)
    rows = [row for row in rows if row.source == "aiconfigurator"]
    sample, grid = zero_shot.tried(rows, data, np.random.default_rng(0))
    scored = zero_shot.simulated(rows, data, zero_shot.left_out_constants(rows, sample, grid))
    pairs = [
        Pair(f"{_setting(row)} #{i}", f"{name}_s", measured_s, measured_s * float(np.exp(ratio)), calibrated=False)
        for i, row in enumerate(rows)
        for name, measured_s, ratio in (("ttft", row.ttft_s, scored.ttft[i]), ("tpot", row.tpot_s, scored.tpot[i]))
    ]
    return validation(
        "aic-e2e",
        "dense models and mixtures of experts at fixed concurrency, three engines",
        (
            f"Measured: ai-dynamo/aiconfigurator, {len(rows)} rows of replicas alike.",
            *(f"Left out: {count} rows, {reason}." for reason, count in out.items() if "aiconfigurator" in reason),
            "Simulated: latency operators, its constants from rows of other models on other GPUs.",
            *_unexplained(rows, scored.ttft),
        ),
        tuple(pairs),
        (
            *(
                target(pairs, metric, how, limit, PEERS.format(theirs))
                for how in (MEAN, f"{MEAN}, {WORSE_HALF}")
                for metric, limit, theirs in (("tpot_s", 10.0, 15), ("ttft_s", 25.0, 55))
            ),
        ),
    )


def _setting(row: Row) -> str:
    shape = f"tp{row.tp}" + (f" dp{row.dp}" if row.dp > 1 else "") + (f" ep{row.ep}" if row.ep > 1 else "")
    where = f"{row.model} {row.precision} on {row.gpu}, {row.engine}"
    return f"{where}, {row.prompt}/{row.output} {shape} x{row.clients}"


def _unexplained(rows: list[Row], ratios: np.ndarray) -> list[str]:
    """How many rows have a TTFT that is off by more than `FAR`, by engine, GPU and model."""
    groups = Counter(
        (row.engine, row.gpu, row.model) for row, ratio in zip(rows, ratios, strict=True) if abs(ratio) > FAR
    )
    total = Counter((row.engine, row.gpu, row.model) for row in rows)
    return [
        f"TTFT off by more than a factor of {np.exp(FAR):.1f}, and scored: {count} of {total[key]} rows of "
        f"{key[2]} on {key[1]}, {key[0]}."
        for key, count in groups.most_common()
    ]

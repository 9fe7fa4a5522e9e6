"""Writes how far a latency model is from public measurements into harness/catalog/compared.toml, which answers print.

    python tests/published/zero_shot.py --compared [--roofline]

Rows of other programs stay as they are.
"""

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from published.served import Row

TABLE = Path(__file__).resolve().parents[2] / "harness" / "catalog" / "compared.toml"
FEWEST = 10
"""Rows of one model, GPU, engine and format that have a median."""
NAMES = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM", "atom": "ATOM"}
HEAD = """\
# How far latency models were from measurements: the medians of |ln(simulated / measured)| of TPOT and TTFT over `rows`
# rows of a model on a GPU. Answers print the row that is most like them (harness/validity/step_times.py). `source` is
# the program that computes a row; tests/published/zero_shot.py writes its own by --compared.
"""


def write(rows: Sequence[Row], tpot: np.ndarray, ttft: np.ndarray, *, latency: str, source: str) -> None:
    """Replace the rows of this latency model and program by those of (rows,) log ratios of simulated to measured."""
    groups: dict[tuple[str, str, str, str], list[int]] = {}
    for i, row in enumerate(rows):
        precision = dict(row.formats)["linear"] if row.precision == "nan" else row.precision
        groups.setdefault((row.model, row.gpu, NAMES[row.engine], precision), []).append(i)
    written: list[Mapping[str, object]] = [
        {
            "latency": latency, **dict(zip(("model", "hardware", "engine", "format"), key, strict=True)),
            "rows": len(where), "tpot": _median(tpot[where]), "ttft": _median(ttft[where]), "source": source,
        }
        for key, where in sorted(groups.items()) if len(where) >= FEWEST
    ]  # fmt: skip
    others = [
        row for row in tomllib.loads(TABLE.read_text(encoding="utf-8"))["compared"]
        if (row["latency"], row["source"]) != (latency, source)
    ]  # fmt: skip
    lines = [", ".join(f"{key} = {json.dumps(value)}" for key, value in row.items()) for row in [*others, *written]]
    text = "\n".join(f"    {{ {line} }}," for line in lines)
    TABLE.write_text(f"{HEAD}\ncompared = [\n{text}\n]\n", encoding="utf-8")


def _median(logs: np.ndarray) -> float:
    return round(float(np.median(np.abs(logs))), 3)

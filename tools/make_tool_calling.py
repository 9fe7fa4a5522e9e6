"""Computes what `workloads/sessions/tool_calling.py` knows of recorded sessions: quantiles, no rows.

python tools/make_tool_calling.py SESSIONS_OF_APPLIED_COMPUTE.jsonl
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from workloads.sessions.tool_calling import COMMON_TOKENS, RANKS

Sessions = list[dict[str, Any]]


def read(file: Path) -> Sessions:
    """The sessions of a file."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def new_and_answer(sessions: Sessions) -> tuple[np.ndarray, np.ndarray]:
    """(N,) tokens that tools returned, (N,) tokens of the answers to them that call another tool."""
    new = [t for s in sessions for t in s["tool_call_output_length"][:-1]]
    answers = [t for s in sessions for t in s["assistant_response_length"][1:]]
    return np.array(new), np.array(answers)


def figures(sessions: Sessions) -> dict[str, Any]:
    """The constants of the module, by name."""
    return {
        "CALLS": _quantiles([s["num_turns"] for s in sessions]),
        "QUESTION_TOKENS": _quantiles([s["input_prompt_length"] - COMMON_TOKENS for s in sessions]),
        "FIRST_ANSWER_TOKENS": _quantiles([s["assistant_response_length"][0] for s in sessions]),
        "LAST_ANSWER_TOKENS": _quantiles([s["final_assistant_response_length"] for s in sessions]),
        "TOOL_S": _quantiles([t for s in sessions for t in s["tool_call_latency"]], 3),
    }


def _quantiles(values: list[float], digits: int = 0) -> tuple[float, ...]:
    found = np.round(np.quantile(values, RANKS), digits)
    return tuple(int(v) if digits == 0 else float(v) for v in found)


if __name__ == "__main__":
    for name, value in figures(read(Path(sys.argv[1]))).items():
        sys.stdout.write(f"{name} = {value}\n")

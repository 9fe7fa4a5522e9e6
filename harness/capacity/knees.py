"""The capacity as each seed tells it, for comparing two systems on the same traffic."""

from collections.abc import Mapping
from typing import Any


def knees(info: Mapping[str, Any], goal: float = 0.9) -> dict[int, float]:
    """ln(capacity in requests per second) by seed, from the content of a capacity.json; empty where there is none.

    They are jackknife pseudo-values: their mean is ln(capacity), and their standard deviation over the root of their
    number is its standard error. On equal seeds two systems see the same traffic, so the differences scatter far less.
    """
    for answer in info.get("answers") or []:
        if abs(float(answer["goal"]) - goal) < 1e-9:
            return {int(seed): float(knee) for seed, knee in (answer.get("knees") or {}).items()}
    return {}

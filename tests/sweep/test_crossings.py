"""What a sweep says of two systems over their common seeds, and of points beyond saturation."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from harness.stats.seeds import half_width, jackknife

Sweep = Callable[..., dict[str, Any]]


def test_systems_are_compared_seed_by_seed(sweep: Sweep) -> None:
    """The noise that both systems share would hide a difference, or a ratio would stand without an interval."""
    info = sweep("--rate", "1,2,8", "--requests", "200", "--over", "policy=vllm-v0,fastgen", "--slo", "ttft=0.4")
    base, head = (
        [point for point in info["points"] if point["values"]["policy"] == policy] for policy in ("vllm-v0", "fastgen")
    )
    (ratio,) = info["ratios"]
    apart = [b["attainment"] - a["attainment"] for a, b in zip(base[1]["runs"], head[1]["runs"], strict=True)]
    found = next(one for one in info["differences"] if one["at"] == {"rate": 2})
    half = half_width(apart)
    ends = {one["where"]["policy"]: (one["at"], one["low"], one["high"]) for one in info["crossings"]}

    assert half is not None
    assert pytest.approx((np.mean(apart), np.mean(apart) - half)) == (found["difference"], found["low"])
    assert ratio["base"] == {"policy": "vllm-v0"}
    assert pytest.approx(ends["fastgen"][0] / ends["vllm-v0"][0]) == ratio["ratio"]
    assert ratio["low"] < ratio["ratio"] < ratio["high"]
    assert math.log(ratio["high"] / ratio["low"]) < math.hypot(*(math.log(e[2] / e[1]) for e in ends.values()))
    assert "paired by seed" in info["printed"]


def test_jackknife_of_a_mean_is_students_t() -> None:
    values = [3.0, 5.0, 4.0, 9.0, 1.0]
    ends = jackknife(lambda without: float(np.mean([v for v in values if v != without])), values)
    half = half_width(values)

    assert half is not None
    assert pytest.approx((np.mean(values) - half, np.mean(values) + half)) == ends


def test_saturated_points_are_named(sweep: Sweep) -> None:
    """Attainment far beyond saturation would be read as a property of the system."""
    info = sweep("--rate", "1,12", "--requests", "600", "--seeds", "2")

    assert "saturated" in info["printed"]
    assert not any("not-stationary" in text for text in info["warnings"])  # it follows from the overload

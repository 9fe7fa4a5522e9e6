"""Rates that a sweep adds where a goal is crossed, and what it says of two systems over their common seeds."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.experiments.sweep.axes import axis
from harness.experiments.sweep.plan import plan_sweep
from harness.options import Given
from harness.stats.seeds import half_width, jackknife

Sweep = Callable[..., dict[str, Any]]
Refused = Callable[..., str]

COARSE = ("--rate", "1,4", "--requests", "150", "--seeds", "2")


def rates(info: dict[str, Any]) -> list[float]:
    return [point["values"]["rate"] for point in info["points"]]


def test_rates_are_added_until_the_crossing_is_near_enough(sweep: Sweep) -> None:
    """The knee would lie somewhere between two points of a coarse sweep."""
    coarse = sweep(*COARSE)
    fine = sweep(*COARSE, "--refine", "20%", out="fine")
    (crossing,) = fine["crossings"]
    low, high = crossing["between"]

    assert [1, 4] == rates(coarse)
    assert coarse["added"] == []
    assert sorted(rates(fine)) == rates(fine)
    assert high / low <= 1.2
    assert low <= crossing["at"] <= high
    assert len(fine["added"]) == len(fine["points"]) - 2 <= 4
    assert fine["runs"]["done"] == 2 * len(fine["points"])


def test_rates_are_added_for_the_system_that_crosses(sweep: Sweep) -> None:
    """A system without a crossing would be run at rates that say nothing of it."""
    info = sweep(*COARSE, "--over", "policy=vllm-v0|sarathi:budget=256", "--over", "slo-scale=0.8,1", "--refine", "40%")

    assert {one["policy"] for one in info["added"]} == {"vllm-v0"}
    assert all({"rate", "policy"} == one.keys() for one in info["added"])
    for one in info["added"]:
        of = [point["values"] for point in info["points"] if point["values"]["rate"] == one["rate"]]
        assert [0.8, 1] == [values["slo-scale"] for values in of]


def test_added_rates_stay_when_a_sweep_goes_on(sweep: Sweep, tmp_path: Path) -> None:
    """A resumed sweep would forget its runs near the knee, or make other ones."""
    first = sweep(*COARSE, "--refine", "40%")
    written = (tmp_path / "sweep" / "sweep.json").read_bytes()
    sweep(*COARSE, "--refine", "40%")
    again = (tmp_path / "sweep" / "sweep.json").read_bytes()
    plain = sweep(*COARSE[:-1], "3")

    assert first["added"]
    assert again == written
    assert plain["added"] == first["added"]
    assert plain["runs"]["done"] == 3 * len(first["points"])


def test_real_time_adds_no_rates_by_itself() -> None:
    """A sweep of a rented server would take twice as long as planned."""
    over = [axis("rate", "50,60")]
    planned = [plan_sweep(Given({"backend": backend}), None, over).refine for backend in ("null", "sim")]
    given = plan_sweep(Given({"backend": "null"}), None, over, refine="10%")

    assert [None, 0.05] == planned
    assert given.refine == 0.1


@pytest.mark.parametrize("text", ["0", "much", "-5%"])
def test_wrong_refine_is_one_sentence(refused: Refused, text: str) -> None:
    assert f"--refine must be a share above 0, such as 5%, or none, got '{text}'." == refused(
        "--rate", "1,2", "--refine", text
    )


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
    assert any("Saturated from 12 req/s on" in text for text in info["warnings"])

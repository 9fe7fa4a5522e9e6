"""The rows of the table of acceptance on the simulator against the engine: S27."""

import json
from pathlib import Path

import pytest

from acceptance.topics import engine_fidelity as fidelity
from acceptance.topics._paced import LATENCY, OBJECTIVE, Point, System, judged


def test_what_was_never_measured_is_not_claimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table made before the engine was ever compared would say that it agrees."""
    monkeypatch.setattr(fidelity, "STORED", tmp_path / "nothing.json")
    row = fidelity._raw()

    assert ("S27.c", "not run", None) == (row.id, row.obtained, row.holds)


def test_the_engine_that_computes_decides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose noise equals its error would be printed as a hit or a miss of the simulator."""
    stored = {
        "when": "a day", "slo": "ttft=1", "rates_rps": [1, 2], "measured_pct": [90.0, 80.0],
        "simulated_pct": [91.0, 70.0], "again_pct": [90.0, 68.0],
    }  # fmt: skip
    (tmp_path / "stored.json").write_text(json.dumps(stored))
    monkeypatch.setattr(fidelity, "STORED", tmp_path / "stored.json")
    row = fidelity._raw()

    assert row.holds is None
    assert row.obtained.startswith("10.0 points at most: 1/s 90.0 91.0")
    assert "run again: at most 12.0 points apart" in row.note


@pytest.mark.parametrize(
    ("points", "late", "holds"),
    [
        ([0.0] * 7, 0.01, True),
        ([4.9, *[1.5] * 6], 0.0, True),
        ([5.1, *[0.0] * 6], 0.0, False),
        ([2.1] * 7, 0.0, False),
        ([0.0] * 7, 0.011, None),
    ],
)
def test_mean_and_worst_rate_decide_where_no_step_was_late(
    points: list[float], late: float, holds: bool | None
) -> None:
    """S27: one rate that is far off would hide behind six that agree, and a busy machine behind either."""
    tried = [Point(float(n), 90.0, 90.0 - apart, late if n == 3 else 0.0) for n, apart in enumerate(points)]
    orca = System("S27.b.orca", "orca", LATENCY, OBJECTIVE, "10s", {"policy": "orca"})
    row = judged(orca, 10.0, tried)

    assert holds is row.holds
    assert ("too busy" in row.note) is (holds is None)

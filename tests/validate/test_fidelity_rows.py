"""The rows of the table of acceptance on real systems: S26, S27 and S58."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.acceptance import Place, measured
from harness.acceptance.topics import fidelity
from harness.validate import Target


def test_without_measurements_nothing_is_claimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table made without the measurements would still say that targets hold."""
    monkeypatch.setattr(measured, "ENGINE", tmp_path / "nothing.json")
    rows = list(fidelity.rows(Place(None, tmp_path)))

    assert {"not run"} == {row.obtained for row in rows}
    assert {None} == {row.holds for row in rows}
    assert {"S26", "S27", "S58"} == {row.id.partition(".")[0] for row in rows}


@pytest.mark.parametrize(("simulated", "holds"), [(91.5, True), (93.0, False)])
def test_the_worst_rate_decides_between_engine_and_simulator(
    simulated: float, holds: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S27: one rate that is far off would hide behind six that agree."""
    monkeypatch.setattr(measured, "engine", lambda: {
        "when": "a day", "slo": "ttft=1", "rates_rps": [1, 2, 3, 4, 5, 6, 7], "measured_pct": [90.0] * 7,
        "simulated_pct": [*[90.0] * 6, simulated],
    })  # fmt: skip
    *_, row = fidelity.rows(Place(None, tmp_path))

    assert holds is row.holds


def test_a_target_becomes_a_row_that_says_its_unit() -> None:
    """Points would be read as percent, and a factor as either."""
    factor = fidelity._row(
        "S26.d", "x", "distserve-a100", Target("ttft_p90_s", "largest factor in saturation", 2.0, 2.5)
    )
    points = fidelity._row("S26.b", "x", "distserve-a100", Target("met_pct", "RMSE in points", 7.0, 2.5, "11 points"))

    assert (False, "at most 2.00 times") == (factor.holds, factor.band)
    assert (True, "at most 7.0 points", "11 points") == (points.holds, points.band, points.published)

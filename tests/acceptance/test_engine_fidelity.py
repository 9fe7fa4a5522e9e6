"""The row of the table of acceptance on the simulator against the engine: S27."""

import json
from pathlib import Path

import pytest

from acceptance.rows import Place
from acceptance.topics import engine_fidelity as fidelity


def test_what_was_never_measured_is_not_claimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table made before the engine was ever compared would say that it agrees."""
    monkeypatch.setattr(fidelity, "STORED", tmp_path / "nothing.json")
    (row,) = fidelity.rows(Place(None, tmp_path))

    assert ("S27", "not run", None) == (row.id, row.obtained, row.holds)


@pytest.mark.parametrize(("simulated", "holds"), [(91.5, True), (93.0, False)])
def test_the_worst_rate_decides_between_engine_and_simulator(
    simulated: float, holds: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S27: one rate that is far off would hide behind six that agree."""
    stored = {
        "when": "a day", "slo": "ttft=1", "rates_rps": [1, 2, 3, 4, 5, 6, 7], "measured_pct": [90.0] * 7,
        "simulated_pct": [*[90.0] * 6, simulated], "again_pct": [90.0] * 7,
    }  # fmt: skip
    (tmp_path / "stored.json").write_text(json.dumps(stored))
    monkeypatch.setattr(fidelity, "STORED", tmp_path / "stored.json")
    (row,) = fidelity.rows(Place(None, tmp_path))

    assert holds is row.holds

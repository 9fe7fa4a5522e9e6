"""The published system of the guide: one file and one TOML file are all that it takes."""

import re
import sys
from pathlib import Path

import pytest

from harness import registry
from harness.cli import main
from harness.experiments import answers, pool

GUIDE = (Path(__file__).parents[2] / "docs" / "guide" / "simulator.md").read_text(encoding="utf-8")


def test_the_system_of_the_guide_is_reproduced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who copies the two files would have a system that is listed and cannot be run."""
    text = GUIDE.partition("## Write a published system")[2]
    code, rows = (re.search(rf"```{kind}\n(.*?)```", text, re.DOTALL)[1] for kind in ("python", "toml"))
    folder = tmp_path / "copied_systems"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "shortest_first.py").write_text(code)
    (folder / "shortest_first.toml").write_text(rows)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "SYSTEMS", "copied_systems")
    monkeypatch.setattr(registry, "KINDS", {**registry.KINDS, "systems": "copied_systems"})
    monkeypatch.setattr(pool, "Processes", lambda _: pool.Here())  # another process would not know the copy
    registry._in_systems.cache_clear()
    try:
        exit_code = main(["reproduce", "shortest-first", "--quick", "--out", str(tmp_path / "out")])
    finally:
        registry._in_systems.cache_clear()
        for name in [name for name in sys.modules if name.partition(".")[0] == "copied_systems"]:
            del sys.modules[name]

    assert exit_code in (0, 1)  # its published numbers are made up
    results = answers.of(tmp_path / "out").rows
    assert ["S99.a", "S99.b"] == [row.id for row in results]
    assert all(row.verdict in ("holds", "misses") for row in results)
    assert results[0].value < 1 < results[1].value
    assert len((code + rows).splitlines()) <= 80

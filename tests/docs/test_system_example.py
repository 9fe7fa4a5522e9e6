"""The published system of the guide: one file and one TOML file are all that it takes."""

import re
import sys
from pathlib import Path

import pytest

from backends.sim import Sim
from harness import registry
from harness.api import Request
from harness.experiments.reproduce import system

GUIDE = (Path(__file__).parents[2] / "docs" / "guide" / "simulator.md").read_text(encoding="utf-8")


def test_the_system_of_the_guide_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    registry._in_systems.cache_clear()
    try:
        published = system("shortest-first")
        sim = Sim(policy="shortest-prompt:max_seqs=1", latency="roofline", kv_blocks=1000)
        records = list(sim.simulate([Request(i, 0.0, prompt, 2) for i, prompt in enumerate((900, 500, 100))]))
    finally:
        registry._in_systems.cache_clear()
        for name in [name for name in sys.modules if name.partition(".")[0] == "copied_systems"]:
            del sys.modules[name]

    assert (("policies", "shortest-prompt"),) == published.plugins
    assert ["S99.a"] == [row.id for row in published.rows]
    assert [2, 1, 0] == [record.request_id for record in records]
    assert len((code + rows).splitlines()) <= 80

"""The published system of the guide: what its blocks hold is all that it takes, in a package beside bench."""

import re
import sys
from pathlib import Path

import pytest

from harness import registry
from harness.cli import main
from harness.experiments import answers, pool

GUIDE = (Path(__file__).parents[2] / "docs" / "guide" / "simulator.md").read_text(encoding="utf-8")


def forget() -> None:
    """What is known of installed packages is read once in a process."""
    registry._all_entry_points.cache_clear()
    registry._in_systems.cache_clear()


def test_the_system_of_the_guide_is_reproduced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who copies the blocks would have a system that is listed and cannot be run, or that needs a change of bench."""
    text = GUIDE.partition("## Write a published system")[2]
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]
    rows, project = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)[:2]
    group, point = re.search(r'\[project\.entry-points\."(.*)"\]\n(.*) = "(?:.*)"', project).groups()
    module = re.search(rf'{point} = "(.*)"', project)[1]
    package, _, stem = module.rpartition(".")
    facts = tmp_path / f"{package}-1.dist-info"
    for folder in (tmp_path / package, facts):
        folder.mkdir()
    (tmp_path / package / "__init__.py").touch()
    (tmp_path / package / f"{stem}.py").write_text(code)
    (tmp_path / package / f"{stem}.toml").write_text(rows)
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\n")
    (facts / "entry_points.txt").write_text(f"[{group}]\n{point} = {module}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(pool, "Processes", lambda _: pool.Here())  # another process would not know the package
    forget()
    try:
        assert 0 == main(["explain", point])
        explained = capsys.readouterr().out
        exit_code = main(["reproduce", point, "--quick", "--out", str(tmp_path / "out")])
        policy = registry.make("policies", "shortest-prompt")
        name = registry.name_of(policy)
    finally:
        forget()
        for imported in [imported for imported in sys.modules if imported.partition(".")[0] == package]:
            del sys.modules[imported]

    results = answers.of(tmp_path / "out").rows
    assert (0, ["S99"], ["holds"]) == (exit_code, [row.id for row in results], [row.verdict for row in results])
    assert "policies shortest-prompt" in explained
    assert "shortest-prompt" == name
    assert len((code + rows).splitlines()) <= 80

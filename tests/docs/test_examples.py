"""The programs of docs/examples do what their pages say."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from harness.cli import main

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
SIM = ["--workload", "chatbot", "--backend", "sim", "--requests", "60", "--quiet"]


@pytest.fixture
def stored(tmp_path: Path) -> tuple[Path, Path]:
    """A run and a sweep over two rates."""
    run, sweep = tmp_path / "run", tmp_path / "curve"
    assert 0 == main(["run", *SIM, "--no-html", "--rate", "1", "--warmup", "10", "--out", str(run)])
    assert 0 == main(
        ["sweep", *SIM, "--rate", "1,2", "--seeds", "1", "--workers", "1", "--no-html", "--out", str(sweep)]
    )
    return run, sweep


def test_the_guide_shows_the_files_of_its_example() -> None:
    """Somebody who copies the file from the guide would be refused."""
    guide = (EXAMPLES.parent / "guide" / "validate.md").read_text(encoding="utf-8")

    assert f"```toml\n{(EXAMPLES / 'measured' / 'server.toml').read_text(encoding='utf-8')}```" in guide
    for name in ("requests.csv", "runs.csv"):
        lines = (EXAMPLES / "measured" / name).read_text(encoding="utf-8").splitlines()
        assert "\n".join(lines[:2]) in guide


@pytest.mark.nightly
def test_figures_are_made_without_a_page(stored: tuple[Path, Path], tmp_path: Path) -> None:
    """A notebook would fail at its first cells."""
    made = tmp_path / "made"
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "report_figures.py"), *map(str, stored), str(made)],
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip

    assert (0, "") == (done.returncode, done.stderr)
    assert "had their first token within 0.25 s" in done.stdout
    assert "at 2 req/s: " in done.stdout
    assert {"attainment.html", "latency.html", "plotly.min.js"} <= {path.name for path in made.iterdir()}
    assert json.loads((made / "latency_cdf.json").read_text())["data"]


def test_every_page_of_the_gallery_is_made_by_its_commands() -> None:
    """The index would lead to a page that is not there. (The commands themselves are run by `make gallery`.)"""
    pages = tomllib.loads((EXAMPLES / "gallery.toml").read_text(encoding="utf-8"))["page"]
    made = {page["file"]: page["commands"] for page in pages}

    assert made
    assert [] == [f for f, commands in made.items() if f.removesuffix("/report.html").partition(".")[0] not in commands]

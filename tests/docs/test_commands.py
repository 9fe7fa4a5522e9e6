"""Every `bench` command in README.md and docs/guide runs as printed."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
PAGES = [TOP / "README.md", *sorted((TOP / "docs" / "guide").glob("*.md"))]
WHOLE_DEMO = "bench run --workload chatbot --slo ttft=0.25,tpot=0.1"


def commands(page: Path) -> list[str]:
    """Lines that begin with `$ bench` in the console blocks of a page."""
    blocks = re.findall(r"^```console\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ bench")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_of_a_page_run_in_order(page: Path, tmp_path: Path) -> None:
    """A newcomer's first command would fail."""
    lines = commands(page)
    assert lines

    for line in lines:
        if line == WHOLE_DEMO:
            line += " --requests 3"  # `make demo` runs the whole minute
        arguments = shlex.split(line)[1:]
        done = subprocess.run(
            [sys.executable, "-m", "harness", *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"


def test_readme_shows_the_two_commands() -> None:
    """A newcomer would not know how to begin."""
    text = (TOP / "README.md").read_text(encoding="utf-8")

    assert "make demo" in text
    assert "make test" in text

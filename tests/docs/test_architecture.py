"""docs/architecture.md names files that are there, and those that a run takes."""

import re
from pathlib import Path

import size

TOP = Path(__file__).resolve().parents[2]
PAGE = (TOP / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_files_of_the_page_are_there() -> None:
    """A reader would not find a part by this page."""
    named = re.findall(r"`((?:harness|workloads|backends|reports|tests|tools)/[\w/.]+)`", PAGE)
    assert len(named) > 50
    assert [] == [name for name in named if not (TOP / name).exists()]


def test_the_reading_path_is_what_the_command_runs(tmp_path: Path) -> None:
    """A reader would miss a file, or read one in vain."""
    section = PAGE.partition("## Reading path\n")[2].partition("\n## ")[0]
    table = re.findall(r"`([\w/]+\.py)`", section.partition("| about |")[2])
    assert sorted(table) == [name for name, _, _ in size.reading_path(tmp_path)]

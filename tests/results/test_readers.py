"""Every reader of another tool's results keeps the same promises."""

from pathlib import Path

import pytest

from harness import registry
from harness.experiments.imports import documents

FILES = Path(__file__).resolve().parents[1] / "golden" / "results"
WRITTEN = sorted(p for p in FILES.rglob("*.json*") if p.suffix in (".json", ".jsonl"))
READERS = registry.names("results")


@pytest.mark.parametrize("name", READERS)
def test_a_reader_says_whose_files_it_reads_and_from_which_source(name):
    """`bench list results` would show a name without a source."""
    reader = registry.find("results", name)
    about = registry.about(reader)

    assert about.startswith("Results of ")
    assert "Source: " in about
    assert registry.make("results", name) == reader()


@pytest.mark.parametrize("path", WRITTEN, ids=lambda p: str(p.relative_to(FILES)))
def test_a_file_is_known_by_exactly_one_reader(path):
    """Which tool a file is of would depend on the order of names."""
    values = documents(path)

    assert 1 == sum(registry.make("results", name).recognizes(values) for name in READERS)


def test_every_reader_is_tried_on_a_file_that_its_tool_wrote():
    """A format would be read from memory, not from its documentation."""
    known = {name for name in READERS for path in WRITTEN
             if registry.make("results", name).recognizes(documents(path))}  # fmt: skip

    assert set(READERS) == known


@pytest.mark.parametrize("values", [[{}], [[]], [1], ["x"], [None], [{"metadata": 3}], [[{"start_time": 1}]]])
def test_other_json_is_nobodys(values):
    """A configuration file would be reported as a run of no requests."""
    assert not any(registry.make("results", name).recognizes(values) for name in READERS)

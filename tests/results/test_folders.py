"""Stored runs are found where they lie."""

import json

import pytest

from harness.api import RequestRecord
from harness.data.folder import RunFolder
from harness.data.run_json import RunInfo
from harness.errors import UsageError
from harness.experiments import imports


@pytest.fixture
def write():
    """Writes a run folder with so many records."""

    def folder(path, rows=1):
        written = RunFolder.create(path, RunInfo.of({"clock": "wall"}))
        written.add_records([RequestRecord(i, i, i, [i + 0.1, i + 0.2], None, 8, 2, 2, "ok") for i in range(rows)])
        written.finish()
        return path

    return folder


def test_a_run_is_named_by_its_folder_or_its_run_json(tmp_path, write):
    """What tab completion offers first would be refused."""
    path = write(tmp_path / "run", rows=3)
    by_folder, by_file = imports.open(path), imports.open(path / "run.json")

    assert [3] == [run.requests.num_rows for run in by_folder]
    assert [3] == [run.requests.num_rows for run in by_file]


def test_the_runs_of_a_sweep_come_in_the_order_of_their_numbers(tmp_path, write):
    """A curve would jump from rate 1 to rate 10 and back to 2."""
    for rate in ("10", "2", "2.5", "1"):
        write(tmp_path / "points" / f"rate={rate}")

    assert ["rate=1", "rate=2", "rate=2.5", "rate=10"] == [run.path.name for run in imports.open(tmp_path)]


def test_nothing_is_looked_for_inside_a_run_or_a_hidden_folder(tmp_path, write):
    """A copy kept inside a run would count as a second one."""
    inner = write(tmp_path / "a")
    (inner / "old").mkdir()
    write(inner / "old" / "copy")
    write(tmp_path / ".trash" / "b")

    assert [tmp_path / "a"] == [run.path for run in imports.open(tmp_path)]


def test_a_run_json_away_from_its_folder_is_not_taken_for_a_file_of_vllm(tmp_path):
    """Our own run.json has vLLM's keys too, and would be reported as a run of vLLM without requests."""
    keys = {"request_throughput": 1.0, "mean_ttft_ms": 2.0, "backend": {"name": "sim"}, "schema": 2}
    (tmp_path / "copy.json").write_text(json.dumps(keys))
    with pytest.raises(UsageError, match="no results that bench knows"):
        imports.open(tmp_path / "copy.json")


def test_a_folder_without_a_run_is_refused_in_words(tmp_path):
    """A mistyped folder would be scored as no requests."""
    with pytest.raises(UsageError, match=r"No run in '.*': neither it nor a folder below it has a run.json; name what"):
        imports.open(tmp_path)

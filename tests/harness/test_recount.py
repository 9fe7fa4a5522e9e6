"""Tokens counted after the run reach the tables, and nothing else changes."""

import dataclasses

import pytest

from harness.api import Exchange
from harness.data.folder import RunFolder, load
from harness.data.run_json import RunInfo


@pytest.fixture
def run(tmp_path, record):
    """A run of three requests, the second counted anew; what `load` gives."""
    folder = RunFolder.create(tmp_path / "run", RunInfo.of({}))
    exchange = Exchange(counted_by="events", address="a")
    rows = [dataclasses.replace(record(i, tokens=[1.0 + i, 2.0 + i]), exchange=exchange) for i in range(3)]
    folder.add_records(rows)
    folder.finish(recounted={1: ("tokenizer", [3, 4])})
    return load(folder.path)


def test_counts_and_their_sum_change_together(run):
    """Token conservation would fail, and with it the run."""
    assert [[1, 1], [3, 4], [1, 1]] == run.requests["token_n"].to_pylist()
    assert [2, 7, 2] == run.requests["output_tokens"].to_pylist()


def test_the_rule_of_counting_changes_too(run):
    """The report would still say that tokens were counted by events."""
    assert ["events", "tokenizer", "events"] == run.http["counted_by"].to_pylist()


def test_stamps_stay(run):
    """A count would move a measured time."""
    assert [[1.0, 2.0], [2.0, 3.0], [3.0, 4.0]] == run.requests["token_s"].to_pylist()

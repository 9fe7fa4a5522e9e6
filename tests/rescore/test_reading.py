"""Runs that are read row group by row group, and those in memory."""

import json
import re
import shutil

import pytest

from harness.data import large
from harness.data.large import thinned
from harness.errors import UsageError
from harness.experiments import imports
from harness.experiments.rescore.answer import RescoreOptions, answer
from harness.experiments.rescore.reading import of_run, sources


def test_a_folder_read_in_pieces_is_the_run(stored, monkeypatch):
    """A large run would lose requests at the edges of its pieces."""
    monkeypatch.setattr("harness.data.storage.ROW_GROUP_BYTES", 5000)
    monkeypatch.setattr(large, "PART", 7)
    path = stored("run")
    (found,) = sources(path)
    (whole,) = imports.open(path)

    assert large.opened(path / "requests.parquet").metadata.num_row_groups > 2
    assert whole.requests["request_id"].to_pylist() == found.table["request_id"].to_pylist()
    assert thinned(whole.requests.drop_columns(["error"])).equals(found.table)
    assert whole.requests["token_s"].to_pylist() == [t for p in found.seen.pieces() for t in p["token_s"].to_pylist()]


def test_requests_before_the_cut_are_left_out(stored):
    """A re-scored run would have another attainment than the run itself under its own SLO."""
    (run,) = imports.open(stored("plain"))
    at_s = run.requests["scheduled_s"][100].as_py()
    path = stored("cut", warmup={"rule": "100", "at_s": at_s, "requests": 100, "stationary": True})
    (found,), (whole,) = list(sources(path)), imports.open(path)

    assert 100 == found.left_out
    assert whole.measured["request_id"].to_pylist() == found.table["request_id"].to_pylist()
    assert 300 == sum(len(piece) for piece in found.seen.pieces())


def test_a_run_that_was_killed_is_scored_with_what_it_had(stored, mixture, put):
    """A run that did not finish could not be scored."""
    path = stored("killed")
    run = imports.open(path)[0]
    put(run, summary=None)
    source = of_run(run)

    assert 400 == len(source.table)
    assert source.info.summary.attainment is not None


def test_a_folder_of_runs_gives_each(stored, tmp_path):
    """A sweep would be scored as one of its runs."""
    for name in ("a/seed-0", "a/seed-1", "b/seed-0"):
        stored(name, 20)

    assert ["a/seed-0", "a/seed-1", "b/seed-0"] == [str(s.path.relative_to(tmp_path)) for s in sources(tmp_path)]


def test_files_of_other_tools_stand_beside_runs(stored, foreign, tmp_path):
    """A folder with both would be scored without theirs, without a word."""
    stored("ours", 20)
    shutil.copy(foreign / "vllm-detailed.json", tmp_path)

    assert ["ours", "vllm-detailed.json"] == [source.path.name for source in sources(tmp_path)]


def test_what_is_no_run_is_reported(tmp_path):
    """A mistyped folder would end in a traceback."""
    with pytest.raises(UsageError, match="does not exist"):
        list(sources(tmp_path / "none"))
    with pytest.raises(UsageError, match="No run in"):
        list(sources(tmp_path))


@pytest.mark.parametrize(
    ("part", "value", "named"),
    [
        ("verdict", "good", "verdict"),
        ("spec", [], "spec"),
        ("workload", {"rate_rps": "x"}, "workload.rate_rps"),
        ("warmup", {"requests": 3}, "warmup.rule"),
        ("slo", {"bounds": [{}]}, "slo.bounds[0].metric"),
        ("slo", {"bounds": 3}, "slo.bounds"),
        ("summary", {"metrics": {"ttft": {"p50": "fast"}}}, "summary.metrics.ttft.p50"),
        ("summary", {"status": {"ok": None}}, "summary.status.ok"),
        ("within", {"attainment": {"low": 0.9, "high": 1e308}}, "within.attainment.high"),
        ("within", {"metrics": {"ttft": {"mean": [0.1]}}}, "within.metrics.ttft.mean"),
        ("warnings", ["late"], "warnings[0]"),
        ("client", {"senders": "x"}, "client.senders"),
        ("client", {"per_sender": [None]}, "client.per_sender[0]"),
    ],
)
def test_a_damaged_run_json_is_reported(stored, part, value, named):
    """A file that was edited by hand would end in a traceback."""
    path = stored("damaged", 20)
    info = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps({**info, part: value}))

    for opened in (sources, imports.open):
        with pytest.raises(UsageError, match=re.escape(f"its run.json is damaged at '{named}'")):
            list(opened(path))


def test_a_bound_on_a_metric_that_is_not_there_is_reported(stored):
    """A run with a metric of a plug-in that is no longer installed would end in a traceback."""
    path = stored("plugin", 20, slo={"bounds": [{"metric": "mine", "limit": 1}]})

    with pytest.raises(UsageError, match="The SLO of the run has a bound on it"):
        answer(sources(path), RescoreOptions())


def test_a_broken_file_is_reported(stored):
    """A damaged run would end in a traceback."""
    path = stored("broken", 20)
    (path / "requests.parquet").write_bytes(b"PAR1 and nothing more")

    with pytest.raises(UsageError, match=r"requests\.parquet' cannot be read"):
        list(sources(path))

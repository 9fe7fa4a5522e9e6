"""A run folder survives whatever happens to the process that writes it."""

import json
import os
import signal
import subprocess
import sys
import textwrap

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.api import Step
from harness.data import storage
from harness.data.codec import encode
from harness.data.folder import RunFolder, load, new_folder, table
from harness.data.records import to_table
from harness.data.run_json import RunInfo, Summary
from harness.data.schedule import Schedule
from harness.errors import UsageError

STEP = Step(0, 0.0, 0.5, 1, 2, 3, 4, 5, 6)


def names(path):
    return sorted(p.name for p in path.iterdir())


def test_a_finished_run_comes_back_whole(tmp_path, record, traffic):
    """What was measured would not be what is reported."""
    rows = [record(i) for i in range(30)]
    schedule = Schedule.draw(traffic(), seed=0, requests=30)
    folder = RunFolder.create(tmp_path / "run", RunInfo.of({"clock": "wall"}), flush_every=7)
    folder.save_schedule(schedule)
    for row in rows:
        folder.add_records([row])
    folder.add_steps([STEP, STEP])
    folder.finish(summary=Summary(attainment=0.5))
    run = load(tmp_path / "run")

    assert to_table(rows).equals(run.requests)
    assert run.steps.num_rows == 2
    assert schedule.table.equals(run.schedule)
    assert run.complete
    assert ("wall", "finished", 0.5) == (run.info.clock, run.info.state, run.info.summary.attainment)
    assert ["requests.parquet", "run.json", "schedule.parquet", "steps.parquet"] == names(tmp_path / "run")


def test_a_run_that_goes_on_can_be_read(tmp_path, record):
    """`bench report` could not look at a long run before it ends."""
    folder = RunFolder.create(tmp_path, RunInfo.of({}), flush_every=1000)
    folder.add_records([record(0)])
    before = load(tmp_path).requests.num_rows
    folder.flush()
    run = load(tmp_path)
    folder.close()

    assert before == 0
    assert run.requests.num_rows == 1
    assert run.steps is None
    assert run.schedule is None
    assert not run.complete
    assert run.info.state == "running"


KILLED = """
    import sys, time
    from harness.api import RequestRecord, Step
    from harness.data.folder import RunFolder
    from harness.data.run_json import RunInfo

    def row(i):
        return RequestRecord(i, float(i), float(i), [i + 0.1, i + 0.2], None, 5, 2, 2, "ok")

    folder = RunFolder.create(sys.argv[1], RunInfo.of({}), flush_every=50)
    i = 0
    while True:
        folder.add_records([row(i)])
        if i % 50 == 49:
            folder.add_steps([Step(0, float(i), float(i) + 0.5, 1, 2, 3, 4, 5, 6)])
            print(i + 1, flush=True)
        i += 1
"""


@pytest.mark.parametrize("batches", [1, 3, 20])
def test_kill_9_loses_nothing_that_was_flushed(tmp_path, batches):
    """An hour of measuring would be lost to the out-of-memory killer."""
    script = textwrap.dedent(KILLED)
    child = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    reported = 0
    for _ in range(batches):
        reported = int(child.stdout.readline())
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()
    run = load(tmp_path)
    ids = run.requests["request_id"].to_pylist()

    assert len(ids) >= reported
    assert list(range(len(ids))) == ids
    assert run.steps.num_rows >= reported // 50
    assert not run.complete


def test_a_stream_cut_anywhere_in_its_last_batch_keeps_the_batches_before(tmp_path, record):
    """A kill in the middle of a write would cost the whole run."""
    folder = RunFolder.create(tmp_path, RunInfo.of({}))
    folder.add_records([record(0), record(1)])
    folder.flush()
    stream = tmp_path / "requests.arrows"
    whole = stream.stat().st_size
    folder.add_records([record(2)])
    folder.flush()
    folder.close()
    data = stream.read_bytes()

    for size in range(whole, len(data), 5):
        stream.write_bytes(data[:size])
        assert load(tmp_path).requests["request_id"].to_pylist() == [0, 1], size
    stream.write_bytes(data)
    assert load(tmp_path).requests.num_rows == 3


def test_a_stream_cut_before_its_first_batch_is_empty(tmp_path, record):
    """A run killed in its first moment would end in a traceback."""
    folder = RunFolder.create(tmp_path, RunInfo.of({}))
    folder.add_records([record(0)])
    folder.flush()
    folder.close()
    stream = tmp_path / "requests.arrows"
    data = stream.read_bytes()

    for size in range(0, len(data), 11):
        stream.write_bytes(data[:size])
        assert load(tmp_path).requests.num_rows == 0, size


def test_a_kill_between_any_two_steps_of_finishing_loses_nothing(tmp_path, record, monkeypatch):
    """The last second of a run would be the one in which it can be lost."""

    class Killed(Exception):
        pass

    steps = ["harness.data.folder.write_json", "harness.data.storage.Stream.close"]
    for n, step in enumerate(steps):
        path = tmp_path / str(n)
        folder = RunFolder.create(path, RunInfo.of({}))
        folder.add_records([record(0)])

        def die(*args, **kwargs):
            raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(step, die)
            with pytest.raises(Killed):
                folder.finish()
        run = load(path)
        folder.close()

        assert run.requests.num_rows == 1


def test_nothing_half_written_stands_in_the_place_of_a_file(tmp_path, record, monkeypatch):
    """A full disk would leave half a Parquet file in place of a result."""
    folder = RunFolder.create(tmp_path, RunInfo.of({}))
    folder.add_records([record(0)])

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq.ParquetWriter, "write_table", full)
    with pytest.raises(OSError, match="No space left"):
        folder.finish()
    run = load(tmp_path)
    folder.close()

    assert not (tmp_path / "requests.parquet").exists()
    assert run.requests.num_rows == 1


def test_conversion_gathers_small_batches_and_bounds_large_ones(tmp_path, record, monkeypatch):
    """A run of a day would become a file of a million groups, or need its whole size in memory."""
    folder = RunFolder.create(tmp_path, RunInfo.of({}), flush_every=1)
    for i in range(40):
        folder.add_records([record(i)])
    one = to_table([record(0)]).nbytes
    monkeypatch.setattr(storage, "ROW_GROUP_BYTES", 10 * one)
    folder.finish()
    file = pq.ParquetFile(tmp_path / "requests.parquet")

    assert 4 <= file.num_row_groups <= 5
    assert list(range(40)) == load(tmp_path).requests["request_id"].to_pylist()


def test_an_interrupt_takes_no_rows_of_a_simulation(tmp_path, record, monkeypatch):
    """Ctrl-C twice would leave rows out of the table, and put others into it twice."""

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(storage, "ROW_GROUP_BYTES", 1)
    folder = RunFolder.create(tmp_path, RunInfo.of({"clock": "virtual"}))
    folder.add_requests(to_table([record(0)]))
    with monkeypatch.context() as patched:
        patched.setattr("pyarrow.parquet.ParquetWriter", interrupted)
        with pytest.raises(KeyboardInterrupt):
            folder.add_requests(to_table([record(1)]))
    folder.finish(state="interrupted")

    assert [0, 1] == load(tmp_path).requests["request_id"].to_pylist()


def test_a_second_writer_is_turned_away(tmp_path, record):
    """Two runs would mix their rows in one file."""
    folder = RunFolder.create(tmp_path, RunInfo.of({}))
    folder.add_records([record(0)])
    folder.flush()
    with pytest.raises(UsageError, match="is being written by another run"):
        RunFolder.create(tmp_path, RunInfo.of({}))
    run = load(tmp_path)
    folder.close()

    assert run.requests.num_rows == 1


def test_an_earlier_run_is_replaced_without_a_trace(tmp_path, record):
    """The steps of last week's run would be drawn beside today's requests."""
    old = RunFolder.create(tmp_path, RunInfo.of({"old": True}))
    old.add_records([record(0), record(1)])
    old.add_steps([STEP])
    old.finish()
    (tmp_path / "report.html").write_text("old")
    new = RunFolder.create(tmp_path, RunInfo.of({}))
    killed = load(tmp_path)
    new.add_records([record(5)])
    new.finish()
    run = load(tmp_path)

    assert killed.requests.num_rows == 0
    assert [5] == run.requests["request_id"].to_pylist()
    assert run.steps is None
    assert "old" not in encode(run.info)
    assert ["requests.parquet", "run.json"] == names(tmp_path)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"thesis.tex": "x"}, "holds 'thesis.tex', which is no part of a run"),
        ({"run.json": '{"schema": 1}', "notes.txt": "x"}, "holds 'notes.txt'"),
        ({"run.json": '{"name": "npm"}'}, "holds something that is no run"),
        ({"run.json": "not json"}, "holds something that is no run"),
        ({"report.html": "x"}, "holds something that is no run"),
    ],
)
def test_folders_of_others_are_left_alone(tmp_path, files, message):
    """`--out ~` would delete what a user keeps there."""
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(UsageError, match=message):
        RunFolder.create(tmp_path, RunInfo.of({}))

    assert files == {p.name: p.read_text() for p in tmp_path.iterdir()}


def test_a_folder_killed_at_its_birth_can_be_used_again(tmp_path):
    """The user would have to delete the folder by hand."""
    (tmp_path / "requests.arrows").write_bytes(b"")
    (tmp_path / "run.json.part").write_text("{")
    RunFolder.create(tmp_path, RunInfo.of({})).finish()

    assert load(tmp_path).complete


def test_out_must_be_a_folder(tmp_path):
    """A path in the way would end in a traceback."""
    (tmp_path / "file").write_text("x")

    with pytest.raises(UsageError, match="is a file"):
        RunFolder.create(tmp_path / "file", RunInfo.of({}))
    with pytest.raises(UsageError, match="cannot be made: Not a directory"):
        RunFolder.create(tmp_path / "file" / "below", RunInfo.of({}))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "it has no run.json"),
        ("{", "its run.json cannot be read"),
        ("[]", "was not written by bench"),
        ('{"name": "npm"}', "was not written by bench"),
        ('{"schema": 3}', "has schema 3, this bench reads up to 2"),
    ],
)
def test_folders_that_hold_no_run_get_one_sentence(tmp_path, content, message):
    """`bench report .` would end in a traceback."""
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    with pytest.raises(UsageError, match=message):
        load(tmp_path)


def test_missing_folders_and_files_get_one_sentence(tmp_path):
    """A mistyped path would end in a traceback."""
    (tmp_path / "file").write_text("x")

    with pytest.raises(UsageError, match="it does not exist"):
        load(tmp_path / "none")
    with pytest.raises(UsageError, match="it is not a folder"):
        load(tmp_path / "file")


def test_the_path_of_run_json_names_the_run_too(tmp_path):
    """A user who completes the path one step too far would be turned away."""
    RunFolder.create(tmp_path, RunInfo.of({"x": 1})).finish()

    assert encode(load(tmp_path / "run.json").info)["x"] == 1


def test_run_json_never_holds_nan(tmp_path):
    """Every reader but Python's would refuse the file."""
    folder = RunFolder.create(tmp_path, RunInfo.of({}))
    with pytest.raises(ValueError, match="not JSON compliant"):
        folder.update(summary=Summary(failed=float("nan")))
    folder.close()

    assert json.loads((tmp_path / "run.json").read_text())["state"] == "running"


def test_steps_may_come_as_a_table(tmp_path):
    """A simulator's step rows would have to go through Python objects, one by one."""
    steps = pa.table({"free_blocks": [1], "replica": [0], "start_s": [0.0], "end_s": [1.0], "prefill_tokens": [2],
                      "decode_seqs": [3], "context_tokens": [4], "waiting": [5], "running": [6]})  # fmt: skip
    folder = RunFolder.create(tmp_path, RunInfo.of({}))
    folder.add_steps(steps)
    folder.add_steps([])
    folder.finish()

    assert steps.to_pylist()[0].items() <= load(tmp_path).steps.to_pylist()[0].items()


def test_the_repr_shows_the_state(tmp_path, record):
    """A failing test would show an address."""
    folder = RunFolder.create(tmp_path, RunInfo.of({}))
    folder.add_records([record(0)])
    text = repr(folder)
    folder.close()

    assert text == f"<RunFolder {tmp_path} running, 1 records not yet on disk>"


def test_a_name_that_is_taken_gets_a_number(tmp_path):
    """Runs that start in the same second would write into one folder."""
    found = [new_folder(tmp_path / "new" / "run").name for _ in range(3)]

    assert ["run", "run-2", "run-3"] == found
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be made"):
        new_folder(tmp_path / "file" / "run")


@pytest.mark.parametrize("state", ["finished", "interrupted"])
def test_a_run_without_its_requests_is_not_reported_from_run_json(tmp_path, record, state):
    """Half a copy of a run would be reported with the numbers of run.json beside empty figures."""
    folder = RunFolder.create(tmp_path, RunInfo.of({}))
    folder.add_records([record(0)])
    folder.finish(state=state, summary=Summary(attainment=1.0))
    (tmp_path / "requests.parquet").unlink()

    with pytest.raises(UsageError, match=r"holds a run that ended, but its requests\.parquet is missing"):
        load(tmp_path)


@pytest.mark.parametrize("content", [b"", b"PAR1 and nothing more", b"x" * 100])
def test_requests_that_cannot_be_read_are_one_sentence(tmp_path, record, content):
    """A file that was cut while it was copied would end in a traceback."""
    folder = RunFolder.create(tmp_path, RunInfo.of({}))
    folder.add_records([record(0)])
    folder.finish()
    (tmp_path / "requests.parquet").write_bytes(content)

    with pytest.raises(UsageError, match=r"requests\.parquet' cannot be read: .*\.$"):
        load(tmp_path)


def test_a_table_of_an_earlier_version_lacks_only_what_was_not_known_then(tmp_path):
    """A run would be lost with the next version, because its table has one column less."""
    then = pa.table({"request_id": pa.array([7], pa.int64())})
    pq.write_table(then, tmp_path / "http.parquet")
    now = pa.schema([pa.field("request_id", pa.int64(), nullable=False), pa.field("new", pa.int64())])

    found = table(tmp_path, "http", now)

    assert [{"request_id": 7, "new": None}] == (found.to_pylist() if found is not None else None)
    with pytest.raises(UsageError, match="cannot be read"):
        table(tmp_path, "http", pa.schema([pa.field("needed", pa.int64(), nullable=False)]))

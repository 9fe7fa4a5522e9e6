"""A disk that fills up costs no answer that is in memory, and never ends in a traceback."""

import errno
import io
import os
import re
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from harness.cli import main
from harness.data.folder import load
from harness.data.storage import Stream, batches

RUN = ("run", "--backend", "null:ttft=0,tpot=0", "--rate", "2000", "--requests", "600", "--quiet", "--no-html")
Fills = Callable[..., None]


@pytest.fixture
def fills(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Fills:
    """Has row files of some folders take so many bytes in all, and temporary files go below the test's folder."""
    (tmp_path / "temp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temp"))
    real = os.write

    def fill(room: int, *folders: Path) -> None:
        left = [room]

        def write(handle: int, data: Any) -> int:
            path = str(Path(f"/proc/self/fd/{handle}").readlink())
            if not path.endswith(".arrows") or not any(path.startswith(str(folder)) for folder in folders):
                return real(handle, data)
            some = bytes(data)[: left[0]]
            if not some:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            left[0] -= len(some)
            return real(handle, some)

        monkeypatch.setattr("harness.data.storage.os.write", write)

    return fill


def complaint(capsys: pytest.CaptureFixture[str]) -> str:
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith("bench: ")
    assert not any("Traceback" in line for line in lines)
    return lines[-1]


def test_answers_in_memory_are_written_elsewhere(
    fills: Fills, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An hour of answers would be thrown away beside the few that fitted."""
    fills(90_000, tmp_path / "out")
    code = main([*RUN, "--out", str(tmp_path / "out")])
    stderr = complaint(capsys)
    found = re.search(r"all (\d+) records are in '(.*?)' now, (\d+) of them only there", stderr)

    assert 3 == code
    assert found is not None, stderr
    moved = load(found[2]).requests
    assert int(found[1]) == len(moved) == len(set(moved["request_id"].to_pylist()))
    assert int(found[1]) - int(found[3]) == load(tmp_path / "out").requests.num_rows
    assert tmp_path / "temp" == Path(found[2]).parent


def test_answers_that_fit_nowhere_are_counted(fills: Fills, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A reader of the folder would take its records for all answers."""
    fills(90_000, tmp_path / "out", tmp_path / "temp")
    code = main([*RUN, "--out", str(tmp_path / "out")])
    found = re.search(r"(\d+) records that were in memory are lost, .* and (\d+) are in that folder", complaint(capsys))

    assert 3 == code
    assert found is not None
    assert int(found[1]) > 0
    assert int(found[2]) == load(tmp_path / "out").requests.num_rows
    assert not [*(tmp_path / "temp").iterdir()]


def fail_to_write_parquet(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pyarrow.parquet.ParquetWriter.write_table", full)
    monkeypatch.setattr("harness.data.schedule.Schedule.save", lambda *_: None)


def test_a_simulated_run_says_that_it_can_be_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its rows are lost, and nothing is with them."""
    fail_to_write_parquet(monkeypatch)
    code = main(["run", "--backend", "sim", "--requests", "50", "--quiet", "--out", str(tmp_path / "out")])

    assert 3 == code
    assert complaint(capsys).endswith("No space left on device; make the run again with another --out or TMPDIR.")
    assert ["run.json"] == [file.name for file in (tmp_path / "out").iterdir()]


def test_a_disk_that_is_full_at_the_end_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every row is on disk by then; only its better form is missing."""
    fail_to_write_parquet(monkeypatch)
    out = tmp_path / "out"
    code = main([*RUN, "--out", str(out)])

    assert 3 == code
    assert f"'bench report {out}' shows the 600 records in it." in complaint(capsys)
    assert 600 == load(out).requests.num_rows
    assert not [*out.glob("*.part")]


def test_a_write_that_fails_leaves_no_torn_rows(fills: Fills, tmp_path: Path) -> None:
    """Behind a torn batch no later one could be read."""
    schema = pa.schema([("a", pa.int64())])
    table = pa.table({"a": [*range(100)]}, schema)
    fills(2_500, tmp_path)
    stream = Stream(tmp_path / "x.arrows", schema)
    stream.start()
    for _ in range(2):
        stream.write(table)
    with pytest.raises(OSError, match="No space"):
        stream.write(table)
    fills(10_000, tmp_path)
    stream.write(table)
    stream.close(remove=False)

    assert 300 == stream.rows == sum(batch.num_rows for batch in batches(tmp_path / "x.arrows"))


@pytest.mark.parametrize(
    "line",
    [
        ["report", "RUN", "--format", "csv", "--out", "x.csv"],
        ["slo", "RUN", "--slo", "ttft=1", "--out", "x.json"],
        ["compare", "RUN", "RUN", "--export", "json=x.json"],
        ["fit", "--steps", "RUN", "--latency", "linear", "--out", "x.toml"],
    ],
    ids=lambda line: line[0],
)
def test_a_file_that_does_not_fit_is_3_and_names_itself(
    line: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A full disk would be wrong usage (2) for one command and a traceback for the next."""
    monkeypatch.chdir(tmp_path)
    main(["run", "--backend", "sim", "--requests", "200", "--quiet", "--no-html", "--out", "RUN"])

    class Full(io.BytesIO):
        def writelines(self, _: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    real = Path.open
    monkeypatch.setattr(
        "pathlib.Path.open", lambda path, mode="r", *a, **more: Full() if mode == "wb" else real(path, mode, *a, **more)
    )
    code = main(line)
    stderr = complaint(capsys)

    assert 3 == code, stderr
    assert line[-1].rpartition("=")[2] in stderr
    assert "No space left on device" in stderr


def test_standard_output_on_a_full_disk_is_3() -> None:
    """The interpreter would complain after the command, and end with 120."""
    with Path("/dev/full").open("w") as full:
        words = [sys.executable, "-m", "harness", "list", "policies"]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)

    assert 3 == done.returncode
    assert "bench: the operating system refused: No space left on device.\n" == done.stderr


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes that the disk says are free: the next one each time, the last one for ever."""
    left = [10**12]
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage(0, 0, left.pop(0) if len(left) > 1 else left[0]))
    return left


def test_a_run_that_does_not_fit_is_refused_before_it_sends(
    free: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An hour of traffic would be sent for a disk that cannot take its rows."""
    free[:] = [100_000]
    code = main([*RUN, "--lengths", "fixed:prompt=9,output=100", "--out", str(tmp_path / "out")])
    text = complaint(capsys)

    assert 3 == code
    assert "600 requests with 60,000 tokens do not fit: about 1.3 MB are needed" in text
    assert "0.1 MB are free" in text
    assert not (tmp_path / "out").exists()


def test_a_run_ends_in_order_when_the_disk_runs_low(
    free: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would go on until a row is refused, and end without a report."""
    free[:] = [10**12, 10**12, 900_000]
    code = main([*RUN, "--requests", "20000", "--out", str(tmp_path / "out")])
    text = complaint(capsys)
    run = load(tmp_path / "out")

    assert 4 == code
    assert "the run was ended because the disk runs low: about" in text
    assert "stopped" == run.info.outcome.ended
    assert run.info.verdict is not None
    assert not run.info.verdict.valid
    assert "interrupted" == run.info.state
    assert 0 < run.info.outcome.sent == run.requests.num_rows < 20_000

"""Tables too large to be held: equal to those in memory, and a run of more requests takes hardly more of it."""

import gc
import tempfile
import tracemalloc
from functools import partial

import numpy as np
import pyarrow as pa
import pytest

from harness.data import folder, large
from harness.data.mapped import Growing, Mapped, stored
from harness.data.records import REQUESTS, listed, schedule_chunk
from harness.data.schedule import Schedule, digest
from harness.data.storage import ParquetFile
from harness.metrics.objective import parse_slo
from harness.options import Given, run_spec
from harness.runner.run import execute
from harness.validity.conclude import conclude
from reports.answers.run import figures_of


def drawn(rng: np.random.Generator, rows: int) -> pa.Table:
    """Columns of all kinds: one is the same throughout, one only at first, one begins with nulls."""
    counts = rng.integers(0, 4, rows)
    late = np.arange(rows) > 40
    return pa.table({
        "same": pa.repeat(7, rows),
        "null": pa.nulls(rows, pa.string()),
        "changes": np.where(late, rng.random(rows), 0.5),
        "from_null": pa.array(rng.random(rows), mask=~late),
        "text": pa.array(rng.choice(["ok", "", "timeout"], rows).tolist()),
        "lists": listed(counts, rng.integers(0, 9, counts.sum())),
    })  # fmt: skip


@pytest.mark.parametrize("seed", range(20))
def test_a_table_in_files_is_the_table(seed, monkeypatch):
    """A large run would have other columns, rows or slices than a small one."""
    monkeypatch.setattr("harness.data.mapped.HELD", 50)
    monkeypatch.setattr("harness.data.mapped.SAME", 16)
    rng = np.random.default_rng(seed)
    table = drawn(rng, rows=int(rng.integers(51, 400)))
    grown, start = Growing(table.schema), 0
    while start < len(table):
        rows = int(rng.integers(1, 80))
        grown.add(table[start : start + rows])
        start += rows
    mapped = grown.table()
    a, b = sorted(rng.integers(0, len(table) + 1, 2).tolist())
    mask = pa.array(rng.random(len(table)) < rng.random())

    assert isinstance(mapped, Mapped)
    assert len(table) == len(mapped)
    assert table.equals(mapped.held())
    assert table[a:b].equals(mapped[a:b].held())
    assert table[a:b][b - a - 3 :].equals(mapped[a:b][b - a - 3 :].held())
    assert table.filter(mask).equals(pa.table({name: mapped.filter(mask)[name] for name in table.column_names}))
    assert table["changes"].to_numpy().tolist() == stored(table["changes"].to_numpy())().tolist()


def test_a_full_folder_of_temporary_files_is_named(tmp_path, monkeypatch):
    """'No space left on device' of a disk that has plenty would be a riddle, and so would 'is not a schedule'."""

    def full():
        raise OSError("65537 requested and 0 written")

    rows = np.arange(60)
    table = schedule_chunk(60, id=rows, scheduled_s=rows, prompt_tokens=rows, output_tokens=rows)
    Schedule(table, digest(table)).save(tmp_path / "schedule.parquet")
    monkeypatch.setattr("harness.data.mapped.HELD", 50)
    monkeypatch.setattr("tempfile.TemporaryFile", full)
    for read in (partial(stored, np.zeros(51)), partial(Schedule.load, tmp_path / "schedule.parquet")):
        with pytest.raises(OSError, match="No space left") as caught:
            read()

        assert tempfile.gettempdir() == caught.value.filename


def requests_of(schedule: pa.Table, rng: np.random.Generator) -> pa.Table:
    """Records of these requests with five tokens each, which end in another order than they are due."""
    rows = len(schedule)
    schedule = schedule.take(np.argsort(schedule["scheduled_s"].to_numpy() + rng.exponential(0.1, rows)))
    due_s, five, none = schedule["scheduled_s"].to_numpy(), np.full(rows, 5), np.zeros(rows, np.int32)
    token_s = due_s[:, None] + 0.1 + np.cumsum(rng.exponential(0.05, (rows, 5)), axis=1)  # (rows, 5)
    columns = {
        "request_id": schedule["id"], "turn": none, "scheduled_s": due_s, "sent_s": due_s, "output_tokens": five,
        "token_s": listed(five, token_s.ravel(), REQUESTS.field("token_s").type), "output_tokens_asked": five,
        "token_n": listed(five, np.ones(5 * rows, np.int32), REQUESTS.field("token_n").type),
        "prompt_tokens": schedule["prompt_tokens"], "status": pa.repeat("ok", rows), "preemptions": none,
        "prefill_start_s": due_s, "prefill_end_s": token_s[:, 0], "decode_start_s": token_s[:, 0],
    }  # fmt: skip
    return pa.table([columns.get(field.name, pa.nulls(rows, field.type)) for field in REQUESTS], schema=REQUESTS)


def peaks(run: folder.Run, rows: int) -> tuple[int, int]:
    """Bytes that a stored run of so many requests holds, and the most while it is concluded and its figures drawn."""
    rng = np.random.default_rng(rows)
    due_s = np.cumsum(rng.exponential(1.0, rows))
    table = schedule_chunk(
        rows, id=np.arange(rows), scheduled_s=due_s, prompt_tokens=rng.integers(1, 900, rows), output_tokens=[5] * rows
    )
    Schedule(table, digest(table)).save(run.path / "schedule.parquet")
    file = ParquetFile(run.path / "requests.parquet", REQUESTS)
    file.write(requests_of(table, rng))
    file.close()
    del table, due_s
    before = pa.total_allocated_bytes()
    loaded = large.load(run.path)
    holds = pa.total_allocated_bytes() - before
    gc.collect()
    gc.freeze()  # else garbage stays for as long as the objects of all tests before suggest
    tracemalloc.start()
    conclude(loaded, parse_slo("ttft=0.2,tpot=0.1"), None, None)
    for figure, _ in figures_of(loaded):
        figure.draw()
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    gc.unfreeze()
    return holds, most


def test_a_run_of_more_requests_takes_hardly_more_memory(tmp_path, monkeypatch):
    """Ten million requests would not fit where one million does."""
    monkeypatch.setattr("harness.stats.within_run.RESAMPLES", 50)  # what takes much memory of any run
    monkeypatch.setattr("harness.metrics.quantiles.DIGITS", (51, 26, 12, 0))
    monkeypatch.setattr("harness.metrics.quantiles.HALF", 1 << (63 - 51))
    monkeypatch.setattr("harness.metrics.stages._ROWS", 8_192)  # both runs have whole pieces
    spec = run_spec(Given({"backend": "sim", "latency": "abc:distserve", "requests": 200, "rate": 2}))
    run = execute(spec, out=tmp_path / "run").run
    peaks(run, 1_000)  # what is made once
    (few_holds, few_most), (many_holds, many_most) = map(partial(peaks, run), (66_000, 110_000))

    assert many_holds - few_holds < 1 * 44_000
    assert many_most - few_most < 30 * 44_000

"""The schedule is drawn once, hashed, stored, and never changes."""

import hashlib
import struct
from dataclasses import FrozenInstanceError, replace
from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.api import DeadlineSlo, Extra, LatencySlo, ProgramSlo, Request
from harness.data import schedule as module
from harness.data.records import SCHEDULE, schedule_chunk, scheduled_table
from harness.data.schedule import Rows, Schedule, digest
from harness.errors import UsageError


def test_a_schedule_yields_what_the_workload_drew(traffic):
    """The run would send other requests than the workload describes."""
    rng = np.random.default_rng(np.random.SeedSequence(3))

    expected = list(islice(traffic().requests_of(rng), 200))

    assert expected == list(Schedule.draw(traffic(), seed=3, requests=200))


def test_equal_seeds_give_equal_schedules_and_others_do_not(traffic):
    """A run could not be repeated, or ten seeds would be one."""
    one, same, other = (Schedule.draw(traffic(), seed=s, requests=50).sha256 for s in (1, 1, 2))

    assert one == same
    assert one != other


def test_a_stored_schedule_gives_equal_requests(traffic, tmp_path):
    """Repeating a stored run would send something else."""
    drawn = Schedule.draw(traffic(), seed=0, requests=300)
    drawn.save(tmp_path / "s.parquet")
    read = Schedule.load(tmp_path / "s.parquet")

    assert list(drawn) == list(read)
    assert drawn.sha256 == read.sha256
    assert ["s.parquet"] == [p.name for p in tmp_path.iterdir()]
    request = next(iter(read))
    assert replace(request, output_tokens=1) != request
    with pytest.raises(FrozenInstanceError):
        request.output_tokens = 1


def test_duration_cuts_before_its_end(traffic):
    """A run of ten seconds would send for longer, and its rate would be wrong."""
    times = [r.scheduled_s for r in Schedule.draw(traffic(), seed=0, duration_s=10)]
    longer = [r.scheduled_s for r in Schedule.draw(traffic(), seed=0, duration_s=20)]

    assert [t for t in longer if t < 10] == times


def test_both_limits_hold(traffic):
    """The looser limit would win over the tighter."""
    assert len(Schedule.draw(traffic(), seed=0, requests=3, duration_s=1000)) == 3
    assert len(Schedule.draw(traffic(), seed=0, requests=1000, duration_s=5)) < 30


def test_a_finite_workload_needs_no_limit(traffic):
    """A whole trace could not be replayed without counting its rows first."""
    assert len(Schedule.draw(traffic(requests=7), seed=0)) == 7


def test_an_endless_workload_without_limit_is_refused(traffic, monkeypatch):
    """`bench` would fill the memory and die without a word."""
    monkeypatch.setattr(module, "ENDLESS", 100)
    with pytest.raises(UsageError, match=r"no end .* give --requests or --duration"):
        Schedule.draw(traffic(), seed=0)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"requests": 0}, "at least 1, got 0"),
        ({"duration_s": 0.0}, "longer than 0 s"),
        ({"duration_s": float("nan")}, "longer than 0 s"),
        ({"duration_s": 1e-9}, "No request is due in the first 1e-09 s"),
    ],
)
def test_limits_that_let_nothing_through_are_refused(traffic, limits, message):
    """An empty run would look like a result."""
    with pytest.raises(UsageError, match=message):
        Schedule.draw(traffic(), seed=0, **limits)


def test_an_empty_workload_is_refused(traffic):
    """An empty trace would look like a run without failures."""
    with pytest.raises(UsageError, match="holds no request"):
        Schedule.draw(traffic(requests=0), seed=0)


@pytest.mark.parametrize("times", [[1.0, 0.5], [-1.0, 0.0], [0.0, float("nan")], [0.0, float("inf")]])
def test_times_that_fall_or_are_none_are_refused(traffic, times):
    """A plug-in that breaks its contract would send at the wrong time, and call it late."""

    class Broken(traffic):
        def start(self, rng):  # noqa: ARG002  # nothing is drawn
            yield scheduled_table([Request(i, t, 1, 1) for i, t in enumerate(times)])

    with pytest.raises(UsageError, match="in order of time"):
        Schedule.draw(Broken(), seed=0)


def test_the_hash_does_not_depend_on_chunks(traffic):
    """The same schedule would get another hash after a round trip through a file."""
    cut = Schedule.draw(traffic(), seed=0, requests=100)
    parts = pa.concat_tables([cut.table[:7], cut.table[7:]])

    assert parts["id"].num_chunks > 1
    assert digest(parts) == digest(cut.table.combine_chunks()) == cut.sha256


def test_the_hash_is_made_of_plain_bytes():
    """A new pyarrow would call every stored schedule changed: this value must never move."""
    requests = [
        Request(0, 0.0, 5, 7),
        Request(1, 0.25, 6, 8, prefix_ids=(3, 4), prefix_block_tokens=16, session=2, turn=1, tag="é",
                slo_ttft_s=0.5, slo_tpot_s=0.1, priority=-1, after=(0,), delay_s=1.5, slo_task_s=9.0),
    ]  # fmt: skip
    table = pa.Table.from_pylist(
        [{name: getattr(r, name) for name in SCHEDULE.names} for r in requests], schema=SCHEDULE
    )

    def sha(data):
        return hashlib.sha256(data).digest()

    expected = hashlib.sha256()
    both, second = b"\x01\x01", b"\x00\x01"
    for name, valid, lengths, items in [
        ("id", both, b"", struct.pack("<2q", 0, 1)),
        ("scheduled_s", both, b"", struct.pack("<2d", 0.0, 0.25)),
        ("prompt_tokens", both, b"", struct.pack("<2q", 5, 6)),
        ("output_tokens", both, b"", struct.pack("<2q", 7, 8)),
        ("prefix_ids", both, struct.pack("<2q", 0, 2), struct.pack("<2q", 3, 4)),
        ("prefix_block_tokens", both, b"", struct.pack("<2q", 512, 16)),
        ("session", second, b"", struct.pack("<2q", 0, 2)),
        ("turn", both, b"", struct.pack("<2q", 0, 1)),
        ("tag", second, struct.pack("<2q", 0, 2), "é".encode()),
        ("slo_ttft_s", second, b"", struct.pack("<2d", 0, 0.5)),
        ("slo_tpot_s", second, b"", struct.pack("<2d", 0, 0.1)),
        ("priority", both, b"", struct.pack("<2q", 0, -1)),
        ("after", both, struct.pack("<2q", 0, 1), struct.pack("<q", 0)),
        ("delay_s", both, b"", struct.pack("<2d", 0, 1.5)),
        ("slo_task_s", second, b"", struct.pack("<2d", 0, 9.0)),
    ]:
        expected.update(f"{name}:2;".encode() + sha(valid) + sha(lengths) + sha(items))

    assert expected.hexdigest() == digest(table)


@pytest.mark.parametrize("column", SCHEDULE.names)
def test_every_column_counts_in_the_hash(traffic, column):
    """Two schedules that differ could be compared as if they were one."""
    table = Schedule.draw(traffic(), seed=0, requests=10).table
    rows = table.to_pylist()
    new = {
        "extra": {"program": 1},
        "prefix_ids": [1],
        "after": [0],
        "tag": "x",
        "scheduled_s": rows[1]["scheduled_s"] + 1e-9,
    }
    rows[1][column] = new.get(column, 12345)
    changed = pa.Table.from_pylist(rows, schema=SCHEDULE)

    assert digest(table) != digest(changed)


def test_what_only_some_systems_need_comes_back_from_disk(tmp_path):
    """An SLO class or a program that is lost on the way would change what a policy decides when a run is repeated."""
    extras = [
        None, Extra(), Extra("t", "code", 3, 7, 2, True, 9, "diffusion", 11, 4, "m", LatencySlo(0.5, 0.1)),
        Extra(slo=DeadlineSlo(20.0)), Extra(program=1, slo=ProgramSlo(60.0)),
    ]  # fmt: skip
    requests = [Request(i, float(i), 5, 6, extra=extra) for i, extra in enumerate(extras)]
    table = scheduled_table(requests)
    Schedule(table, digest(table)).save(tmp_path / "s.parquet")
    loaded = Schedule.load(tmp_path / "s.parquet")

    assert requests == list(loaded)
    assert requests == [Rows(loaded.table).at(row) for row in range(len(requests))]


def test_a_schedule_without_extra_is_stored_as_ever(traffic, tmp_path):
    """Runs of earlier releases would no longer be comparable."""
    drawn = Schedule.draw(traffic(), seed=0, requests=10)
    drawn.save(tmp_path / "s.parquet")

    assert "extra" not in pq.read_schema(tmp_path / "s.parquet").names
    assert drawn.sha256 == Schedule.load(tmp_path / "s.parquet").sha256


def test_a_large_schedule_with_categories_is_read(tmp_path, monkeypatch):
    """It was taken for a file that unpacks without end."""
    monkeypatch.setattr("harness.untrusted.SMALL_BYTES", 1 << 16)
    names = [f"category {i}" for i in range(200)]
    extra = [{"category": names[i % 200]} for i in range(20_000)]
    table = schedule_chunk(20_000, id=range(20_000), scheduled_s=[1.0] * 20_000, prompt_tokens=[5] * 20_000,
                           output_tokens=[5] * 20_000, extra=pa.array(extra, SCHEDULE.field("extra").type))  # fmt: skip
    Schedule(table, digest(table)).save(tmp_path / "s.parquet")

    assert table.equals(Schedule.load(tmp_path / "s.parquet").table)


def test_neighbouring_texts_do_not_run_together_in_the_hash(traffic):
    """Tags 'ab','c' and 'a','bc' would have one hash."""
    rows = Schedule.draw(traffic(), seed=0, requests=2).table.to_pylist()

    def tagged(*tags):
        return digest(pa.Table.from_pylist([{**r, "tag": t} for r, t in zip(rows, tags, strict=True)], schema=SCHEDULE))

    assert tagged("ab", "c") != tagged("a", "bc")
    assert tagged("", None) != tagged(None, "")


def test_files_that_are_no_schedule_get_one_sentence(tmp_path):
    """A wrong path would end in a traceback."""
    (tmp_path / "text").write_text("hello")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")

    for name, message in [("none", "No schedule"), ("text", "is not a schedule"), ("other.parquet", "no column 'id'")]:
        with pytest.raises(UsageError, match=message):
            Schedule.load(tmp_path / name)


def test_a_request_names_the_blocks_of_its_answer_where_a_follow_up_has_them():
    """A simulator would forget what an engine keeps, and compute up to twice the prompts of a chat."""
    first = Request(0, 0.0, 20, 20, prefix_ids=(1, 2), prefix_block_tokens=16, session=0)
    table = scheduled_table([
        first,
        Request(1, 1.0, 50, 3, (1, 2, 3, 4), 16, session=0, after=(0,)),  # 40 tokens are in blocks 1, 2 and 3
        Request(2, 1.0, 50, 3, (1, 9, 8, 7), 16, session=0, after=(0,)),  # shares the whole blocks of the prompt, too
        Request(3, 2.0, 39, 3, (1, 2, 3), 16, session=0, after=(1,)),  # too short for what was before
        Request(4, 2.0, 99, 3, (5, 6), 16, session=1),
        Request(5, 3.0, 120, 3, tuple(range(30, 40)), 16, session=1, after=(4,)),  # shares nothing
        Request(6, 3.0, 60, 3, (1, 2, 3, 4), 16, session=2, after=(1,)),  # of another session
        Request(7, 4.0, 10, 2, (51,), 16, session=3),
        Request(8, 5.0, 30, 2, (51, 52), 16, session=3, after=(7,)),  # the answer ends in the block of the prompt
    ])  # fmt: skip
    named = [tuple(ids) for ids in module.with_answers(table)["prefix_ids"].to_pylist()]

    expected = [(1, 2, 3), (1, 2, 3, 4), (1, 9, 8, 7), (1, 2, 3), (5, 6), tuple(range(30, 40)), (1, 2, 3, 4), (51, 52)]

    assert [*expected, (51, 52)] == named
    assert table.schema == module.with_answers(table).schema


def test_the_repr_shows_what_it_is(traffic):
    """A failing test or a debugger would show an address."""
    assert repr(Schedule.draw(traffic(), seed=0, requests=10)).startswith("<Schedule 10 requests in ")

"""Trace readers on the real files and on their formats."""

import gzip
import hashlib
from pathlib import Path
from typing import Any

import pytest

from harness.api import Ended, Loaded, Request
from harness.data.dependencies import record_of
from harness.data.records import to_table
from harness.data.schedule import Schedule
from harness.errors import UsageError
from harness.metrics import objective
from harness.metrics.objective import parse_slo
from workloads.replay import load as load_trace

AZURE = "azure2023/AzureLLMInferenceTrace_conv.csv"
MOONCAKE = "mooncake/conversation_trace.jsonl"
BURST_1, BURST_3 = "burstgpt/BurstGPT_1.head379.csv", "burstgpt/BurstGPT_3.head100.csv"
V3 = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type"


def requests(loaded: Loaded) -> list[Request]:
    return list(Schedule.draw(loaded.workload, seed=0))


def write(folder: Path, text: str, name: str = "trace.csv") -> str:
    path = folder / name
    path.write_bytes(text.encode())
    return str(path)


@pytest.mark.parametrize(
    ("name", "rows", "kept", "span_s", "digest"),
    [
        (AZURE, 19_366, 19_366, 3501.721937, "2f1e5b666d4e3055fdbba98598ce2ec307767b9064e03e2fa46676dbcc7d0bf8"),
        (MOONCAKE, 12_031, 12_031, 3536.999, "b8cbb061a85206d729d91cdc2981f43c9e0d99209dce588d3af5f7934408b9df"),
        (BURST_1, 379, 364, None, None),
        (BURST_3, 100, 100, None, None),
    ],
)
def test_real_files_have_their_known_rows_span_and_hash(
    shared_data: Path, name: str, rows: int, kept: int, span_s: float | None, digest: str | None
) -> None:
    """Traces A1: if this failed, a replay would lose rows, or keep failures as if they had been served."""
    path = shared_data / "traces" / name
    loaded = load_trace(str(path))
    facts: Any = loaded.provenance

    assert rows == facts["rows"]
    assert kept == loaded.requests == facts["requests"]
    assert rows == kept + sum(facts["dropped"].values())
    assert hashlib.sha256(path.read_bytes()).hexdigest() == facts["sha256"]
    if digest:
        assert digest == facts["sha256"]
        assert "not a file" not in facts["known"]
    if span_s:
        assert span_s == pytest.approx(requests(loaded)[-1].scheduled_s, abs=1e-6)


def test_bounds_and_priorities_of_requests_are_those_of_the_trace(tmp_path: Path) -> None:
    """Every request would be judged by one bound, where users of another tier were promised another."""
    head = "at_s,prompt_tokens,output_tokens,session,tier,priority,ttft_slo_s,deadline_s"
    path = write(tmp_path, f"{head}\n0,9,2,a,gold,-1,0.5,\n1,9,2,b,,,,3\n2,9,2,b,free,2,,3\n")
    for options in ({}, {"sessions": "recorded:count=2"}):
        rows = requests(load_trace(path, **options))

        assert [(0.5, None, -1, "gold"), (None, 3.0, 0, None), (None, 3.0, 2, "free")] == [
            (row.slo_ttft_s, row.slo_e2e_s, row.priority, row.tag) for row in rows
        ]
    records = [record_of(row, Ended(row.id, row.scheduled_s + 9, "ok"), 0.0, [row.scheduled_s + 1]) for row in rows]
    score = objective.score(to_table(records), parse_slo("ttft=2"))

    assert [False, True, True] == score.met.tolist()
    late = [record_of(row, Ended(row.id, 9.0, "ok"), 0.0, [row.scheduled_s + 1, row.scheduled_s + 4]) for row in rows]
    assert [False, False, False] == objective.score(to_table(late), parse_slo("ttft=2")).met.tolist()


@pytest.mark.parametrize("options", [{}, {"sessions": "recorded:count=4"}])
def test_a_column_n_is_the_number_of_answers(tmp_path: Path, options: dict[str, str]) -> None:
    """Requests for several answers would be replayed as if they had one, without a word."""
    path = write(tmp_path, "at_s,prompt_tokens,output_tokens,session,n\n0,9,2,a,4\n1,9,2,b,\n2,9,2,c,0\n3,9,2,d,1\n")
    loaded = load_trace(path, **options)

    assert [4, 1, 1, 1] == [row.answers for row in requests(loaded)]
    assert [True, False, False, False] == [row.extra is not None for row in requests(loaded)]
    assert "several answers (column n), each of the output tokens of the row: 1 row." in loaded.provenance["oddities"]
    mapped = load_trace(
        path, reader="at=at_s,prompt=prompt_tokens,output=output_tokens,session=session,model=session", **options
    )
    assert [("a", 1), ("b", 1), ("c", 1), ("d", 1)] == [(row.model, row.answers) for row in requests(mapped)]
    rows = "".join(f"{i},9,2,{i}\n" for i in range(300))
    with pytest.raises(UsageError, match="line 131, column 'n': 0 to 128 answers expected, got 129"):
        load_trace(write(tmp_path, f"at_s,prompt_tokens,output_tokens,n\n{rows}"))


def test_rows_without_stamps_need_arrivals(tmp_path: Path) -> None:
    """Offline batches would be refused, or all be sent at once without a word."""
    path = write(tmp_path, "prompt_tokens,output_tokens\n9,2\n8,3\n")

    with pytest.raises(UsageError, match="no column of stamps that is known: give --arrivals"):
        load_trace(path)
    rows = requests(load_trace(path, arrivals="constant", rate_rps=2.0, sessions="recorded:order=file"))
    assert [(0.0, 9), (0.5, 8)] == [(row.scheduled_s, row.prompt_tokens) for row in rows]


def test_turns_of_a_session_are_counted_without_its_failures(tmp_path: Path) -> None:
    """If this failed, the second question of a user would count as the third because one attempt failed."""
    lines = [V3, "5.0,a,1,X,3,4,7,Conversation log", "6.0,a,1,X,3,0,3,Conversation log"]
    lines += ["7.0,,1,X,2,2,4,API log", "8.0,b,1,X,2,2,4,Conversation log", "9.0,a,1,X,9,4,13,Conversation log"]
    replayed = requests(load_trace(write(tmp_path, "\n".join(lines))))

    assert [(0, 0), (None, 0), (1, 0), (0, 1)] == [(r.session, r.turn) for r in replayed]
    assert ["conversation", "api", "conversation", "conversation"] == [r.tag for r in replayed]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("2023-11-16 18:15:46.6805900", "2023-11-16 18:15:47.9305900"),
        ("2024-05-12 00:00:00.001163+00:00", "2024-05-12 00:00:01.251163+00:00"),
        ("2024-05-12 23:59:59.5+00:00", "2024-05-13 01:00:00.75+01:00"),
        ("2024-02-28 23:59:59.75Z", "2024-02-29 00:00:01Z"),
    ],
)
@pytest.mark.parametrize("end", ["\r\n", "\n"])
def test_both_azure_stamp_formats_and_line_ends(tmp_path: Path, first: str, second: str, end: str) -> None:
    """Traces A1: if this failed, the 2024 files, or the missing last newline of 2023, would stop a user."""
    path = write(tmp_path, end.join(["TIMESTAMP,ContextTokens,GeneratedTokens", f"{first},10,2", f"{second},20,3"]))
    replayed = requests(load_trace(path))

    assert [0.0, 1.25] == pytest.approx([r.scheduled_s for r in replayed], abs=1e-9)
    assert [(10, 2), (20, 3)] == [(r.prompt_tokens, r.output_tokens) for r in replayed]


def test_gzip_and_byte_order_mark_and_spaces_are_read(tmp_path: Path) -> None:
    """If this failed, a file saved by a spreadsheet or packed for transfer would need work by hand."""
    text = '\ufeffTimestamp , "Request tokens",Response tokens\n1, 5,6\n\n2.5,"7",8\n\n'
    path = tmp_path / "packed"
    path.write_bytes(gzip.compress(text.encode()))
    replayed = requests(load_trace(str(path)))

    assert [(0.0, 5, 6), (1.5, 7, 8)] == [(r.scheduled_s, r.prompt_tokens, r.output_tokens) for r in replayed]


TEN = "Timestamp,Request tokens,Response tokens\n" + "".join(f"{100 + i},{i + 1},1\n" for i in range(10))


def test_a_bad_row_after_the_slice_does_not_matter(tmp_path: Path) -> None:
    """If this failed, reading would not stop where the slice ends, and a week-long file would be read whole."""
    path = write(tmp_path, TEN + "oops\n")

    assert 3 == load_trace(path, stop_s=3.0).requests
    assert 10 == load_trace(path, limit=10).requests

"""Formats of traces beside those of the first three: trees of chats, plain tables, Parquet, conversations."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.data.records import schedule_chunk
from harness.errors import UsageError
from workloads import replay, traces
from workloads.trace_tools import info
from workloads.trace_tools import write as written


def write(folder: Path, text: str | list[dict[str, object]], name: str = "trace.txt") -> str:
    path = folder / name
    lines = text if isinstance(text, str) else "\n".join(map(json.dumps, text))
    path.write_bytes(lines.encode())
    return str(path)


def column(trace: traces.Trace, name: str) -> list[Any]:
    values: list[Any] = trace.table[name].to_pylist()
    return values


def chat(number: int, parent: int, at_s: float, turn: int = 1, prompt: int = 20, output: int = 5) -> dict[str, object]:
    named = {"chat_id": number, "parent_chat_id": parent, "timestamp": at_s, "type": "text", "turn": turn}
    return named | {"input_length": prompt, "output_length": output, "hash_ids": list(range(-(-prompt // 16)))}


def test_chats_of_bailian_become_sessions_with_the_turn_before(tmp_path: Path) -> None:
    """If this failed, follow-ups would be sent before the answer they follow, or in another's conversation."""
    rows = [chat(7, -1, 61.114), chat(9, -1, 62.0), chat(11, 7, 63.0, 2), chat(12, 11, 64.0, 3), chat(13, 7, 65.0, 2)]
    trace = traces.read(write(tmp_path, rows))

    assert [0, 1, 0, 0, 0] == column(trace, "session")
    assert [0, 0, 1, 2, 1] == column(trace, "turn")
    assert [None, None, 0, 2, 0] == column(trace, "parent")
    assert ["text"] * 5 == column(trace, "tag")
    assert 16 == trace.block_tokens
    assert pytest.approx([0, 0.886, 1.886, 2.886, 3.886]) == column(trace, "at_s")


def test_a_chat_that_is_no_request_hands_its_parent_on(tmp_path: Path) -> None:
    """If this failed, a failed turn would cut a conversation in two."""
    rows = [chat(1, -1, 0.0), chat(2, 1, 1.0, 2, output=0), chat(3, 2, 2.0, 3)]
    trace = traces.read(write(tmp_path, rows))

    assert [(0, 0, None), (0, 1, 0)] == list(
        zip(*(column(trace, c) for c in ("session", "turn", "parent")), strict=True)
    )
    assert {"output_length is 0": 1} == trace.facts["dropped"]


def test_a_chat_whose_parent_is_not_in_the_file_is_reported(tmp_path: Path) -> None:
    """If this failed, a follow-up from before the recording would pass as a first question."""
    trace = traces.read(write(tmp_path, [chat(5, 3, 0.0, 4), chat(6, 3, 1.0, 4), chat(7, 6, 2.0, 5)]))
    odd: Any = trace.facts["oddities"]

    assert [3, 3, 4] == column(trace, "turn")
    assert [0, 0, 0] == column(trace, "session")
    assert "the turn before is not in the file: 2 rows." in odd


def test_too_few_ids_are_reported_and_too_many_refused(tmp_path: Path) -> None:
    """If this failed, a prefix cache would see blocks that a prompt does not have."""
    few = chat(1, -1, 0.0, prompt=64) | {"hash_ids": [1, 2]}
    odd: Any = traces.read(write(tmp_path, [few])).facts["oddities"]

    assert any("do not cover the whole prompt" in sentence and "1 row" in sentence for sentence in odd)
    with pytest.raises(UsageError, match="line 1, column 'hash_ids': at most 1 ids expected for 16 tokens"):
        traces.read(write(tmp_path, [chat(1, -1, 0.0, prompt=16) | {"hash_ids": [1, 2]}]))


def test_the_turn_before_is_found_across_blocks_and_slices(tmp_path: Path) -> None:
    """If this failed, `parent` would name another row as soon as a file is longer than a block, or is sliced."""
    header = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    rows = [f"{i},{'ab'[i % 2]},1,X,3,{4 if i != 4 else 0},{7 if i != 4 else 3},Conversation log\n" for i in range(9)]
    path = write(tmp_path, header + "".join(rows))
    for size in (1, 60, 1 << 20):
        trace = traces.read(path, block_bytes=size)
        sliced = traces.read(path, part=traces.Slice(start_s=2), block_bytes=size)

        assert [None, None, 0, 1, 3, 2, 4, 5] == column(trace, "parent")
        assert [0, 0, 1, 1, 2, 2, 3, 3] == column(trace, "turn")
        assert [None, None, 1, 0, 2, 3] == column(sliced, "parent")
        assert [1, 1, 2, 2, 3, 3] == column(sliced, "turn")


@pytest.mark.parametrize(("unit", "seconds"), [("ms", 0.5), ("s", 500.0)])
def test_a_timed_trace_needs_no_blocks(tmp_path: Path, unit: str, seconds: float) -> None:
    """If this failed, a trace made for another benchmark would need work by hand, or run 1,000 times slower."""
    rows: list[dict[str, object]] = [{"timestamp": t, "input_length": 9, "output_length": 2} for t in (1000, 1500)]
    path = write(tmp_path, rows)

    assert [0.0, seconds] == column(traces.read(path, f"timed-trace:unit={unit}"), "at_s")
    assert "timed-trace" == traces.read(path).facts["reader"]


def test_turns_with_delays_are_replayed_as_aiperf_replays_them(tmp_path: Path) -> None:
    """AIPerf's Mooncake sessions were refused; a row holds what its turn adds, and its delay is after an answer."""
    rows = [
        {"session_id": "a", "timestamp": 1000, "input_length": 300, "output_length": 50},
        {"session_id": "a", "delay": 2000, "input_length": 100, "output_length": 50},
        {"session_id": "a", "input_length": 10, "output_length": 5},
        {"session_id": "b", "timestamp": 1500.5, "input_length": 40, "output_length": 2},
        {"session_id": "b", "timestamp": 9000, "input_length": 1, "output_length": 1},
        {"timestamp": 9500, "input_length": 7, "output_length": 1},
    ]
    path = write(tmp_path, rows)
    trace = traces.read(path)
    names = trace.table.column("prefix_ids").to_pylist()

    assert [0.0, 0.5005, 2.0, 2.0, 8.0, 8.5] == column(trace, "at_s")
    assert [300, 40, 450, 510, 43, 7] == column(trace, "prompt_tokens")
    assert [0.0, 0.0, 2.0, 0.0, 7.4995, 0.0] == column(trace, "delay_s")
    assert [None, None, 0, 2, 1, None] == column(trace, "parent")
    assert names[0] == names[2][: 300 // 16]  # a later prompt begins with the one before
    assert "think-only" == replay.load(path).provenance["turns"]  # a delay begins when the answer ends


def test_turns_of_whole_prompts_are_not_added_up(tmp_path: Path) -> None:
    """Rows that hold whole message arrays would count the turns before twice."""
    row = {"session_id": "a", "input_length": 300, "output_length": 50, "context_mode": "message_array_with_responses"}
    trace = traces.read(write(tmp_path, [row | {"timestamp": 0}, row | {"delay": 5, "input_length": 400}]))

    assert [300, 400] == column(trace, "prompt_tokens")


def test_named_blocks_of_a_first_turn_are_those_of_the_whole_session(tmp_path: Path) -> None:
    """What a session shares with others is the start of its first prompt."""
    rows = [
        {"session_id": "a", "timestamp": 0, "input_length": 1100, "output_length": 500, "hash_ids": [4, 5, 6]},
        {"session_id": "a", "delay": 1, "input_length": 600, "output_length": 9, "hash_ids": [7, 8]},
    ]
    first, second = traces.read(write(tmp_path, rows)).table.column("prefix_ids").to_pylist()

    assert [4, 5, 6] == first
    assert (2200 // 512, [4, 5]) == (len(second), second[:2])
    assert not {6, 7, 8} & {*second[2:]}


def test_a_timed_trace_with_bailian_blocks(tmp_path: Path) -> None:
    """If this failed, the block size of another cache would be taken for Mooncake's."""
    rows: list[dict[str, object]] = [{"timestamp": 0, "input_length": 33, "output_length": 2, "hash_ids": [4, 5, 6]}]
    trace = traces.read(write(tmp_path, rows), "timed-trace:block_tokens=16")

    assert (16, [[4, 5, 6]]) == (trace.block_tokens, column(trace, "prefix_ids"))


def test_splitwise_and_the_multimodal_azure_trace(tmp_path: Path) -> None:
    """If this failed, the Azure traces as simulators pass them on, or that of 2025, could not be replayed."""
    vidur = traces.read(write(tmp_path, "arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,374,44\n4.31,396,109\n"))
    images = (
        "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n2024-10-15 00:00:00.5,2,9,3\n2024-10-15 00:00:01,0,8,3\n"
    )
    lmm = traces.read(write(tmp_path, images))

    assert "csv" == vidur.facts["reader"]
    assert [0.0, 4.31] == column(vidur, "at_s")
    assert ["image", "text"] == column(lmm, "tag")
    assert [9, 8] == column(lmm, "prompt_tokens")
    assert [2, 0] == column(lmm, "images")


def test_images_are_counted_as_tokens_and_stay_with_their_rows(tmp_path: Path) -> None:
    """Images would vanish on the way from the trace to the schedule, or weigh nothing in a prompt."""
    images = "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n" + "".join(
        f"2024-10-15T00:00:0{i}.5Z,{n},{tokens},3\n" for i, (n, tokens) in enumerate(((2, 1500), (0, 9), (1, 500)))
    )
    path = write(tmp_path, images)
    trace = traces.read(path, "azure:image=576")
    written.convert(path, target := str(tmp_path / "lmm.parquet"), reader="azure:image=576")
    loaded = replay.load(target, where="images<=1")
    table = next(iter(loaded.workload.start(np.random.default_rng(0))))

    assert ([1500, 9, 500], [1152, 0, 500]) == (column(trace, "prompt_tokens"), column(trace, "image_tokens"))
    assert any("images have more tokens than the prompt" in odd for odd in trace.facts["oddities"])
    assert [None, 500] == [extra and extra["image_tokens"] for extra in table["extra"].to_pylist()]
    assert {"share": 2 / 3, "share_of_prompt_tokens": 1652 / 2009} == {
        k: v for k, v in info.of(traces.read(target))["images"].items() if k != "images"
    }


def test_a_json_list_is_read_like_json_lines(tmp_path: Path) -> None:
    """If this failed, a file that another tool wrote as one list could not be read."""
    rows = [{"at_s": i / 4, "prompt_tokens": i + 1, "output_tokens": 2, "tag": "[{,}]"} for i in range(50)]
    expected = traces.read(write(tmp_path, rows)).table
    for indent in (None, 1):
        path = write(tmp_path, json.dumps(rows, indent=indent))
        for size in (1, 100, 1 << 20):
            assert expected.equals(traces.read(path, block_bytes=size).table.combine_chunks())


def test_keys_that_some_lines_lack_are_none_there(tmp_path: Path) -> None:
    """If this failed, a log that names the user only where there is one could not be read."""
    row: dict[str, object] = {"at_s": 0, "prompt_tokens": 1, "output_tokens": 2}
    path = write(tmp_path, [row | {"session": 7, "tag": "a"}, row, row | {"session": 7, "tag": None}])
    trace = traces.read(path)

    assert [0, None, 0] == column(trace, "session")
    assert ["a", None, None] == column(trace, "tag")


def test_blocks_of_another_size_are_reported(tmp_path: Path) -> None:
    """Blocks of 64 tokens would be taken for blocks of 512, and a cache would seem to need eight times the memory."""
    rows: list[dict[str, object]] = [
        {"at": i, "prompt_tokens": 130, "output_tokens": 1, "prefix_ids": [1, 2, 3][: i + 1]} for i in range(3)
    ]
    path = write(tmp_path, rows, "blocks.jsonl")
    odd: Any = traces.read(path).facts["oddities"]
    right: Any = traces.read(path, "jsonl:block_tokens=64").facts["oddities"]

    assert "more prefix blocks of 512 tokens than the prompt has room for" in " ".join(odd)
    assert "=N: 2 rows." in " ".join(odd)
    assert "prefix blocks" not in " ".join(right)


def test_packed_files_are_read(tmp_path: Path) -> None:
    """If this failed, a week of requests would have to be unpacked to be read."""
    text = b"at_s,prompt_tokens,output_tokens\n" + b"".join(b"%d,5,6\n" % i for i in range(1000))
    plain, packed, twice, zstd = (tmp_path / n for n in ("t.csv", "t.csv.gz", "two.gz", "t.csv.zst"))
    plain.write_bytes(text)
    packed.write_bytes(gzip.compress(text))
    twice.write_bytes(gzip.compress(text[:500]) + gzip.compress(text[500:]))
    with pa.output_stream(str(zstd), compression="zstd") as out:
        out.write(text)
    expected = traces.read(str(plain)).table

    for path in (packed, twice, zstd):
        assert expected.equals(traces.read(str(path), block_bytes=333).table.combine_chunks())


def test_the_schedule_of_a_run_is_a_trace(tmp_path: Path) -> None:
    """If this failed, a run could not be repeated from its own folder."""
    ids = pa.array([[1, 2], [], [3]], pa.list_(pa.int64()))
    given: dict[str, Any] = {
        "scheduled_s": np.array([0.5, 1.0, 4.0]),
        "prompt_tokens": [600, 5, 9],
        "output_tokens": [3, 4, 5],
    }
    table = schedule_chunk(
        3, id=np.arange(3), **given, prefix_ids=ids, tag=["a", None, "b"], session=[4, None, 4], turn=[0, 0, 1]
    )
    pq.write_table(table, tmp_path / "schedule.parquet")
    trace = traces.read(str(tmp_path / "schedule.parquet"))

    assert [0.0, 0.5, 3.5] == column(trace, "at_s")
    assert [[1, 2], [], [3]] == column(trace, "prefix_ids")
    assert [(0, 0, None), (None, 0, None), (0, 1, 0)] == [
        (r["session"], r["turn"], r["parent"]) for r in trace.table.to_pylist()
    ]


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (
            {"at_s": [0.0, None], "prompt_tokens": [1, 2], "output_tokens": [1, 2]},
            "row 2, column 'at_s': a number is missing",
        ),
        (
            {"at_s": [0.0, 1.0], "prompt_tokens": [1.0, 2.5], "output_tokens": [1, 2]},
            "row 2, column 'prompt_tokens': .* whole",
        ),
        (
            {"at_s": [0.0, float("nan")], "prompt_tokens": [1, 2], "output_tokens": [1, 2]},
            "row 2, column 'at_s': a finite",
        ),
        (
            {"at_s": [[1.0], [0.0]], "prompt_tokens": [1, 2], "output_tokens": [1, 2]},
            "row 1, column 'at_s': a finite number",
        ),
        ({"a": [1.0]}, "no reader knows the columns a"),
        ({"at_s": [], "prompt_tokens": [], "output_tokens": []}, "has a header but no rows"),
    ],
)
def test_a_parquet_table_that_is_no_trace_is_one_sentence(
    tmp_path: Path, table: dict[str, list[Any]], words: str
) -> None:
    """If this failed, a hole in a table would end in a traceback, or count as 0."""
    path = str(tmp_path / "t.parquet")
    pq.write_table(pa.table(table), path)

    with pytest.raises(UsageError, match=words):
        traces.read(path)


def test_unsorted_rows_are_sorted(tmp_path: Path) -> None:
    """If this failed, rows of a log in order of completion could not be used, or would lose their conversation."""
    text = "at_s,prompt_tokens,output_tokens,session\n3,1,1,a\n1,2,1,b\n2,3,1,a\n1,4,1,b\n5,5,0,b\n"
    path = write(tmp_path, text)
    with pytest.raises(UsageError, match=r"line 3, column 'at_s': stamps must not fall.*bench trace convert"):
        list(traces.blocks(path))
    for size in (1, 1 << 20):
        trace = traces.read(path, block_bytes=size)

        assert [2, 4, 3, 1] == column(trace, "prompt_tokens")
        assert [0.0, 0.0, 1.0, 2.0] == column(trace, "at_s")
        assert [0, 0, 1, 1] == column(trace, "session")
        assert [None, 0, None, 2] == column(trace, "parent")
        assert {"output_tokens is 0": 1} == trace.facts["dropped"]


CONVERSATIONS = [
    {"id": "x", "conversations": [("human", "a b c"), ("gpt", "d e"), ("human", "f"), ("gpt", "g h i j")]},
    {"id": "y", "conversations": [("system", "a"), ("gpt", "b c"), ("human", "d"), ("gpt", "e"), ("human", "f")]},
    {"id": "z", "conversations": []},
]


@pytest.fixture
def conversations(tmp_path: Path) -> str:
    rows = [{**t, "conversations": [{"from": f, "value": v} for f, v in t["conversations"]]} for t in CONVERSATIONS]
    return write(tmp_path, json.dumps(rows, indent=1))


def test_conversations_without_a_tokenizer_are_refused(conversations: str) -> None:
    """If this failed, words or characters would be sold as tokens."""
    with pytest.raises(UsageError, match=r"holds text, no token counts; give the reader one .*sharegpt:tokenizer="):
        traces.read(conversations)
    with pytest.raises(UsageError, match=r"Tokenizer '/nowhere/t.json' cannot be read"):
        traces.read(conversations, "sharegpt:tokenizer=/nowhere/t.json")


def test_conversations_are_counted_with_their_history(tmp_path: Path, conversations: str) -> None:
    """If this failed, later questions would be sent without the conversation that they belong to."""
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "?": 1}, unk_token="?"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    words.save(str(tmp_path / "tokenizer.json"))
    for size in (1, 1 << 20):
        trace = traces.read(conversations, f"sharegpt:tokenizer={tmp_path / 'tokenizer.json'}", block_bytes=size)

        assert [(3, 2), (6, 4), (4, 1)] == [(r["prompt_tokens"], r["output_tokens"]) for r in trace.table.to_pylist()]
        assert [(0, 0, None), (0, 1, 0), (1, 0, None)] == [
            (r["session"], r["turn"], r["parent"]) for r in trace.table.to_pylist()
        ]
        assert [0.0, 0.0, 0.0] == column(trace, "at_s")
        assert 5 == trace.facts["rows"]
        assert {"question without an answer": 1, "no question in the conversation": 1} == trace.facts["dropped"]

"""Logs of chats with their text: tokens are counted, and prompts that begin alike share blocks."""

import json
from pathlib import Path
from typing import Any

import pytest

from harness.errors import UsageError
from workloads import traces
from workloads.trace_tools import write as written

tokenizers = pytest.importorskip("tokenizers")
WORDS = " ".join(f"w{i}" for i in range(100))


@pytest.fixture
def tokenizer(tmp_path: Path) -> str:
    """One token a word."""
    vocabulary = {"[UNK]": 0, **{f"w{i}": i + 1 for i in range(100)}, "user:": 101, "assistant:": 102}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.save(str(tmp_path / "tokenizer.json"))
    return str(tmp_path / "tokenizer.json")


def write(folder: Path, *rows: dict[str, Any]) -> str:
    file = folder / "log.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return str(file)


def row(at_us: object, text: object, session: str = "a", answer: object = "w1 w2") -> dict[str, Any]:
    return {"timestamp": at_us, "input": text, "output": answer, "session_id": session}


def test_prompts_that_begin_alike_share_blocks(tmp_path: Path, tokenizer: str) -> None:
    """A replay of a log would share nothing, or what was not shared."""
    longer, other = f"{WORDS} {WORDS}", f"w5 {WORDS}"
    file = write(
        tmp_path, row(0, WORDS), row("2500000", longer), row(3_000_000, other, "b"), row(4_000_000, WORDS, "b")
    )
    trace = traces.read(file, f"messages:tokenizer={tokenizer},block_tokens=16")
    ids = trace.table["prefix_ids"].to_pylist()

    assert [100, 200, 101, 100] == trace.table["prompt_tokens"].to_pylist()
    assert [0.0, 2.5, 3.0, 4.0] == trace.table["at_s"].to_pylist()
    assert [None, 0, None, 2] == trace.table["parent"].to_pylist()
    assert ids[0] == ids[1][:6] == ids[3]
    assert 12 == len(set(ids[1]))
    assert not set(ids[2]) & set(ids[1])


def test_messages_are_read_as_their_text(tmp_path: Path, tokenizer: str) -> None:
    """A log in the form of the API would have to be rewritten by hand."""
    messages = [
        {"role": "user", "content": "w1 w2"},
        {"role": "assistant", "content": [{"type": "text", "text": "w3"}]},
    ]
    file = write(tmp_path, row(0, messages, answer={"role": "assistant", "content": "w4"}))
    table = traces.read(file, f"messages:tokenizer={tokenizer}").table

    assert (5, 1) == (table["prompt_tokens"][0].as_py(), table["output_tokens"][0].as_py())


def test_a_log_out_of_order_is_ordered_by_convert(tmp_path: Path, tokenizer: str) -> None:
    """Logs are written as answers end, so their stamps fall."""
    file = write(tmp_path, row(5, WORDS), row(1, "w1 w2"))
    written.convert(file, target := str(tmp_path / "log.parquet"), reader=f"messages:tokenizer={tokenizer}")

    assert [2, 100] == traces.read(target).table["prompt_tokens"].to_pylist()


@pytest.mark.parametrize(
    ("reader", "text", "what"),
    [
        ("messages", "w1", "holds text, no token counts"),
        ("messages:unit=h,tokenizer=", "w1", "unit"),
        ("", 7, "a text, or messages with role and content expected, got 7"),
        ("", [{"content": "w1"}], "a text, or messages with role and content expected"),
    ],
)
def test_wrong_logs_are_reported(tmp_path: Path, tokenizer: str, reader: str, text: object, what: str) -> None:
    """A damaged log would be a traceback."""
    spec = f"{reader}{tokenizer}" if reader.endswith("=") else reader or f"messages:tokenizer={tokenizer}"
    with pytest.raises(UsageError, match=what):
        traces.read(write(tmp_path, row(0, text)), spec)

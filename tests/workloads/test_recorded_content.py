"""`--content recorded`: the prompts of a trace stay in its files, and each is read again by its place."""

import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.api import RecordedContent, Request
from workloads import replay

TOOLS = [{"type": "function", "function": {"name": "grüße", "parameters": {"type": "object"}}}]
SYSTEM = {"role": "system", "content": "Antworte höflich. 漢字 😀"}


def row(i: int, **more: object) -> dict[str, Any]:
    """A request in the form of the chat API, with signs of one to four bytes."""
    return {"messages": [SYSTEM, {"role": "user", "content": f"Frage {i}: " + "äh? " * i}], **more}


def write(file: Path, rows: Sequence[object], form: str = "lines") -> str:
    """JSON lines, with a byte order mark and blank lines, or a JSON list in one line or many."""
    texts = [json.dumps(r, ensure_ascii=i % 2 == 0) for i, r in enumerate(rows)]
    if form == "lines":
        file.write_text("\n" + "\n".join(texts), encoding="utf-8")
    elif form == "marked":
        file.write_bytes(b"\xef\xbb\xbf" + "\n\n".join(texts).encode())
    else:
        file.write_text(json.dumps(rows, ensure_ascii=False, indent=1 if form == "list" else None), encoding="utf-8")
    return str(file)


def sent(path: str, **options: Any) -> list[dict[str, Any]]:
    """The recorded fields of every request of the schedule, in its order, as a sender reads them."""
    loaded = replay.load(path, content="recorded", **options)
    content = pickle.loads(pickle.dumps(loaded.content))  # noqa: S301  # a sender is another process
    assert isinstance(content, RecordedContent)
    ids = [i for part in loaded.workload.start(np.random.default_rng(0)) for i in part["id"].to_pylist()]
    return [dict(content.fields(Request(i, 0.0, 1, 1))) for i in ids]


@pytest.mark.parametrize("form", ["lines", "marked", "list", "list in a line"])
def test_the_body_is_the_recorded_one(tmp_path: Path, form: str) -> None:
    """A prompt would be cut, or be that of another request, where a place is counted in characters or lines."""
    rows = [row(i, max_tokens=9, tools=TOOLS, temperature=0.25, stop=["\n"], response_format=None) for i in range(40)]
    found = sent(write(tmp_path / "p.jsonl", rows, form))

    assert [{k: r[k] for k in ("messages", "tools", "temperature", "stop")} for r in rows] == found


def test_places_hold_where_the_file_is_read_in_many_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only files beyond the size of a block would send other prompts than theirs."""
    for form in ("lines", "marked", "list", "list in a line"):
        rows = [row(i % 7, max_tokens=9) for i in range(60)]
        path = write(tmp_path / "p.jsonl", rows, form)
        small = replay.traces.read
        monkeypatch.setattr(replay.traces, "read", lambda *a, read=small, **k: read(*a, **k, block_bytes=100))

        assert [r["messages"] for r in rows] == [f["messages"] for f in sent(path)]
        monkeypatch.undo()


def test_an_answer_in_the_record_is_not_sent_and_tells_the_length(tmp_path: Path) -> None:
    """The server would be given the answer, or get another number of tokens than was recorded."""
    answer = {"role": "assistant", "content": "x" * 33}
    rows = [row(1), row(2, max_tokens=7), row(3, max_tokens=7)]
    rows[0]["messages"].append(answer)
    rows[2]["messages"].append(answer)
    path = write(tmp_path / "p.jsonl", rows)
    loaded = replay.load(path, content="recorded")
    table = next(iter(loaded.workload.start(np.random.default_rng(0))))

    assert [9, 7, 9] == table["output_tokens"].to_pylist(), "33 bytes at 4 a token"
    assert all(f["messages"][-1]["role"] == "user" for f in sent(path))
    assert "4 bytes of UTF-8" in str(loaded.provenance["tokenizer"])


def test_a_request_without_a_length_is_dropped_by_name(tmp_path: Path) -> None:
    """A request would ask for no token, or for a number that no one gave."""
    path = write(tmp_path / "p.jsonl", [row(0), row(1, max_tokens=5)])
    loaded = replay.load(path, content="recorded")

    assert {"no answer and no max_tokens (--reader messages:output=256 sets one)": 1} == loaded.provenance["dropped"]
    assert [row(1)["messages"]] == [f["messages"] for f in sent(path)]
    assert 2 == len(sent(path, reader="messages:output=256"))


def test_conversations_of_sharegpt_are_sent_up_to_each_question(tmp_path: Path) -> None:
    """A later question would come without the turns before, or with its own answer."""
    turns = [("human", "Hallo ä"), ("gpt", "ja?"), ("human", "weiter"), ("gpt", "gut"), ("human", "ohne Antwort")]
    dialog = {"conversations": [{"from": who, "value": text} for who, text in turns]}
    path = write(tmp_path / "s.json", [{"conversations": []}, dialog, dialog], "list")
    found = sent(path, arrivals="poisson", rate_rps=2.0)
    words = {"human": "user", "gpt": "assistant"}
    prompts = [[{"role": words[who], "content": text} for who, text in turns[:n]] for n in (1, 3)]

    assert 4 == len(found)
    assert [1, 1, 3, 3] == sorted(len(f["messages"]) for f in found)
    assert all(f["messages"] in prompts for f in found)


def test_logs_of_a_folder_are_ordered_and_read_from_their_files(tmp_path: Path) -> None:
    """Logs are written one file a session, so their stamps fall from file to file."""
    logs = tmp_path / "logs"
    logs.mkdir()
    for name, first in (("a", 5_000_000), ("b", 1_000_000)):
        same = {"output": "o", "session_id": name, "tools": TOOLS, "latency_ms": 7}
        rows = [{"timestamp": first + 10 * i, "input": f"{name}{i} é", **same} for i in range(3)]
        write(logs / f"{name}.jsonl", rows)
    found = sent(str(logs))

    assert [f"{name}{i} é" for name in "ba" for i in range(3)] == [f["prompt"] for f in found]
    assert all({"prompt", "tools"} == set(f) for f in found), "only fields that a server knows"
    assert {f"b{i} é" for i in range(3)} == {f["prompt"] for f in sent(str(logs), where="session=0")}


def test_bodies_of_a_batch_are_sent_whole_but_for_what_a_run_decides(tmp_path: Path) -> None:
    """A field that a server knows and we do not would be lost."""
    body = {**row(3), "model": "gpt", "max_tokens": 5, "stream": True, "vendor_option": {"a": 1}}
    rows = [{"custom_id": f"r{i}", "method": "POST", "url": "/v1/chat/completions", "body": body} for i in range(2)]

    assert [{"messages": row(3)["messages"], "vendor_option": {"a": 1}}] * 2 == sent(write(tmp_path / "b.jsonl", rows))


def test_rows_that_are_left_out_or_come_again_keep_their_prompts(tmp_path: Path) -> None:
    """A filter, users or copies would send the prompts of other rows."""
    rows = [{"timestamp": i, "session_id": i // 2, **row(i, max_tokens=10 + i)} for i in range(20)]
    path = write(tmp_path / "p.jsonl", rows)
    questions = [r["messages"] for r in rows]
    again = sent(path, arrivals="closed:users=3", sessions="recorded:passes=2")

    assert questions[10:] == [f["messages"] for f in sent(path, where="output_tokens>=20")]
    assert 40 == len(again) and all(2 == [f["messages"] for f in again].count(q) for q in questions)
    assert 40 == len(sent(path, scale="superpose:2"))


def test_a_file_that_changed_is_an_error_of_the_request(tmp_path: Path) -> None:
    """Half of a line would be sent as a prompt."""
    file = tmp_path / "p.jsonl"
    loaded = replay.load(write(file, [row(i, max_tokens=3) for i in range(3)]), content="recorded")
    file.write_text("gone")

    assert isinstance(loaded.content, RecordedContent)
    with pytest.raises(ValueError, match="has changed since it was read"):
        loaded.content.fields(Request(1, 0.0, 1, 1))

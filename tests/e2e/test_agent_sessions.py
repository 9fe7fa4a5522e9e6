"""Sessions of agents over HTTP, on the built-in engine: prompts, hits of the prefix cache, order and think times."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from harness.cli import main

BLOCK = 16
"""Tokens of a block of the engine; those of the trace have 64."""


def conversation(name: int) -> dict[str, object]:
    """Turns that grow, a compaction, and two sub-agents that share their tools, of which one finds the other's."""

    def request(t: float, tokens: int, ids: list[int], **more: object) -> dict[str, object]:
        return {
            "t": t,
            "type": "s",
            "in": tokens,
            "out": 6,
            "hash_ids": ids,
            "api_time": 0.5,
            "think_time": 0.1,
            **more,
        }

    def agent(t: float, first: int) -> dict[str, object]:
        inner = [request(0, 150, [90, first]), request(1, 200, [90, first, first + 1])]
        return {"t": t, "type": "subagent", "agent_id": f"a{first}", "duration_ms": 1900.0, "requests": inner}

    parts = [
        request(0, 200 + name, [1, 2, 3]), request(1, 270, [1, 2, 3, 4]), agent(3.6, 100), agent(4.1, 200),
        request(4.5, 400, [1, 2, 3, 4, 5, 6]), request(5, 130, [1, 50]), request(6, 210, [1, 50, 51]),
    ]  # fmt: skip
    return {"id": str(name), "block_size": 64, "hash_id_scope": "local", "requests": parts}


def theoretical(rows: list[dict[str, object]]) -> list[int]:
    """Tokens of whole blocks that prompts before have, in the order of sending; at least one token is computed.

    The trace names whole blocks of a prompt; with the answer before, a follow-up finds all but the last token of it.
    """
    known: set[tuple[object, ...]] = set()
    found = []
    for row in rows:
        prompt = int(str(row["prompt_tokens"]))
        ids: tuple[int, ...] = tuple(row["prefix_ids"])[: prompt // 64]  # type: ignore[arg-type]  # a list
        # a block of the engine lies in one block of the trace; the rest of a prompt is its own
        names = [(ids[: end // 64 + 1], end) for end in range(BLOCK - 1, 64 * len(ids), BLOCK)]
        count = 0
        while count < (prompt - 1) // BLOCK and count < len(names) and names[count] in known:
            count += 1
        known.update(names)
        found.append(BLOCK * count)
    return found


def answered(schedule: dict[int, dict[str, object]], number: int) -> int:
    """Tokens of whole blocks of prompt and answer of what a request goes on from, but for the last token."""
    row, most = schedule[number], 0
    for parent in (schedule[i] for i in row["after"]):  # type: ignore[attr-defined]  # a list
        whole = parent["prompt_tokens"] + parent["output_tokens"]  # type: ignore[operator]  # numbers
        blocks = parent["prompt_tokens"] // 64  # type: ignore[operator]
        if parent["prefix_ids"][:blocks] == row["prefix_ids"][:blocks] and whole < row["prompt_tokens"]:  # type: ignore[index]
            most = max(most, (whole - 1) // BLOCK * BLOCK)
    return most


@pytest.mark.parametrize("history", ["lengths", "live"])
def test_what_is_found_in_the_cache_of_a_server_is_what_the_trace_has(
    history: str,
    bench: Callable[..., subprocess.Popen[str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    late_is_valid: None,
) -> None:
    """A server with a perfect cache would look worse, or better, than it is; or agents would not wait for answers."""
    (corpus := tmp_path / "corpus").mkdir()
    for number in range(3):
        (corpus / f"{number}.json").write_text(json.dumps(conversation(number)), encoding="utf-8")
    server = bench("serve", "--backend", "engine:prefix_cache=on", "--port", "0")
    assert server.stdout is not None
    url = f"http://127.0.0.1:{int(server.stdout.readline())}/v1"
    out = tmp_path / "run"
    backend = f"openai:url={url},api=completions,prompt=ids"
    assert 0 == main([
        "run", "--trace", str(corpus), "--arrivals", "closed:users=2,think=0", "--content", "tokens",
        "--backend", backend, "--history", history, "--requests", "27", "--calibrate", "off", "--quiet",
        "--out", str(out),
    ])  # fmt: skip
    capsys.readouterr()
    schedule = {row["id"]: row for row in pq.read_table(out / "schedule.parquet").to_pylist()}
    records = sorted(pq.read_table(out / "requests.parquet").to_pylist(), key=lambda row: row["sent_s"])
    ended_s = {row["request_id"]: row["token_s"][-1] for row in records}

    assert 27 == len(records) == len(schedule)
    assert {"ok"} == {row["status"] for row in records}
    assert [row["prompt_tokens"] for row in records] == [row["prompt_tokens_server"] for row in records]
    expected = theoretical([schedule[r["request_id"]] for r in records])
    if history == "live":
        expected = [
            max(tokens, answered(schedule, r["request_id"])) for tokens, r in zip(expected, records, strict=True)
        ]
    found = [r["cached_tokens"] for r in records]
    assert sum(expected) == sum(found) > 0.4 * sum(row["prompt_tokens"] for row in records)
    for row in records:
        wanted = schedule[row["request_id"]]
        if wanted["after"]:
            due_s = max(ended_s[i] for i in wanted["after"]) + wanted["delay_s"]
            assert due_s == pytest.approx(row["scheduled_s"], abs=1e-9)
            assert row["sent_s"] >= due_s

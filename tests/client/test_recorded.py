"""Recorded prompts on the wire: the server gets the body that stands in the trace."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.data.folder import Run, load

TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}]
SHAPE = {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}}}


def rows(count: int) -> list[dict[str, Any]]:
    """Requests with everything that may stand beside the messages."""
    return [
        {"messages": [{"role": "system", "content": "Sei kurz."}, {"role": "user", "content": f"Größe {i}?"}],
         "tools": TOOLS, "tool_choice": "auto", "response_format": SHAPE, "temperature": 0.5, "top_p": 0.9, "seed": i,
         "stop": ["\n\n"], "model": "another", "max_tokens": 4, "stream": False}
        for i in range(count)
    ]  # fmt: skip


@pytest.fixture
def sent(
    scripted: Callable, run_here: Callable, tmp_path: Path
) -> Callable[..., tuple[list[dict[str, Any]], Run, str]]:  # fmt: skip
    """`sent(rows, *options, **arguments)`: the bodies that the server got by their ids, the run, the output."""

    def run(given: list[dict[str, Any]], *options: str, **arguments: str) -> tuple[list[dict[str, Any]], Run, str]:
        trace = tmp_path / "prompts.jsonl"
        trace.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in given), encoding="utf-8")
        server = scripted(calm={"overhead": 5})
        more = "".join(f",{key}={value}" for key, value in arguments.items())
        code, out, err = run_here(
            "run", "--backend", f"openai:url={server.url()},model=m{more}", "--trace", str(trace), "--content",
            "recorded", *options, "--calibrate", "off", "--no-html", "--out", "out", "--force",
        )  # fmt: skip
        assert 0 == code, err
        measured = [s for s in server.seen if s.method == "POST" and int(s.headers.get("x-request-id", -1)) >= 0]
        return (
            [s.body for s in sorted(measured, key=lambda s: int(s.headers["x-request-id"]))],
            load("out").info,
            err + out,
        )

    return run


def test_the_server_gets_the_body_that_was_recorded(sent: Callable) -> None:
    """Results would be in the name of prompts that no one sent."""
    recorded = rows(6)
    bodies, info, output = sent(recorded)
    decided = ("model", "max_tokens", "stream")

    assert [{k: v for k, v in row.items() if k not in decided} for row in recorded] == [
        {k: v for k, v in body.items() if k not in (*decided, "stream_options", "max_completion_tokens")}
        for body in bodies
    ]
    assert [("m", True, 4)] * 6 == [(b["model"], b["stream"], b["max_completion_tokens"]) for b in bodies]
    assert "the server's own usage counts their tokens" in output
    assert {"content": "the recorded prompts, as they are", "counted_by": "the server"} == info.content
    assert "server" == info.backend["output_lengths"]


def test_options_of_the_run_win_over_the_record(sent: Callable) -> None:
    """A user could not measure recorded prompts at temperature 0."""
    bodies, info, _ = sent(
        rows(2), "--extra-body", '{"tool_choice": "none"}', temperature="0", output_lengths="exact"
    )  # fmt: skip

    assert [(0.0, "none", True, 4)] * 2 == [
        (b["temperature"], b["tool_choice"], b["ignore_eos"], b["max_completion_tokens"]) for b in bodies
    ]
    assert "exact" == info.backend["output_lengths"]


def test_a_text_is_a_completion_or_the_one_message_of_a_chat(sent: Callable) -> None:
    """A log of texts could be sent to one of the two interfaces only."""
    log = [{"timestamp": i, "input": f"Wörter {i}", "output": "ja", "session_id": i} for i in range(2)]

    assert [f"Wörter {i}" for i in range(2)] == [b["prompt"] for b in sent(log, api="completions")[0]]
    assert [[{"role": "user", "content": f"Wörter {i}"}] for i in range(2)] == [b["messages"] for b in sent(log)[0]]


def test_messages_for_completions_are_refused_before_anything_is_sent(
    scripted: Callable, run_here: Callable, tmp_path: Path
) -> None:
    """Every request would fail, one by one."""
    trace = tmp_path / "prompts.jsonl"
    trace.write_text(json.dumps(rows(1)[0]))
    server = scripted(calm={})
    backend = f"openai:url={server.url()},model=m,api=completions"
    code, _, err = run_here("run", "--backend", backend, "--trace", str(trace), "--content", "recorded", "--out", "out")

    assert 2 == code
    assert "api=completions does not take; use api=chat" in err
    assert [] == server.seen

"""Traces of agents by other tools: Dynamo's request traces, and the rounds of TraceLab."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from harness.errors import UsageError
from workloads import traces


def write(folder: Path, rows: list[dict[str, Any]]) -> str:
    (file := folder / "trace.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return str(file)


def ended(name: str, at_ms: int, lasts_ms: int, session: str, parent: str | None, *ids: int) -> dict[str, Any]:
    """A record as the reference of Dynamo has it."""
    replay = {"trace_block_size": 64, "input_length": 64 * len(ids), "input_sequence_hashes": [*ids]}
    received = 1_777_312_800_000 + at_ms
    request = {"request_id": name, "request_received_ms": received, "output_tokens": 16, "replay": replay}
    context = {"session_id": session, **({"parent_session_id": parent} if parent else {})}
    return {"schema": "dynamo.request.trace.v1", "event_type": "request_end", "agent_context": context,
            "event_time_unix_ms": received + lasts_ms, "request": request}  # fmt: skip


def test_sub_agents_of_dynamo_work_beside_one_another(tmp_path: Path) -> None:
    """Sessions of sub-agents would be users of their own, or wait for one another."""
    most = (1 << 64) - 1
    rows = [
        ended("1", 0, 1000, "a", None, 5), ended("2", 1500, 1000, "b", "a", 5, 6), ended("8", 0, 100, "other", None, 5),
        ended("3", 1600, 400, "c", "a", most), ended("4", 2100, 900, "c", "a", most, 7),
        ended("5", 3100, 200, "d", "b", 9), ended("6", 2600, 900, "b", "a", 8), ended("7", 4000, 500, "a", None, 5, 4),
        {**ended("9", 1200, 0, "a", None), "event_type": "tool_end", "request": None, "tool": {"tool_call_id": "x"}},
    ]  # fmt: skip
    trace = traces.read(write(tmp_path, rows))
    columns = ("session", "agent", "parent", "joins", "api_s")
    found = list(zip(*(trace.table[name].to_pylist() for name in columns), strict=True))

    assert {"an event of another kind than request_end": 1} == trace.facts["dropped"]
    assert [
        (0, None, None, [], 1.0), (1, None, None, [], 0.1), (0, "b", 0, [], 1.0), (0, "c", 0, [], 0.4),
        (0, "c", 3, [], 0.9), (0, "b", 2, [], 0.9), (0, "d", 2, [], 0.2), (0, None, 5, [4, 6], 0.5),
    ] == found  # fmt: skip
    ids = trace.table["prefix_ids"].to_pylist()
    assert ids[0] == ids[1] == ids[2][:1] == ids[7][:1]
    assert ids[3] == ids[4][:1]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"replay": {"trace_block_size": 16, "input_length": 9}}, "--reader dynamo:block=16"),
        ({"replay": {"input_length": 9, "input_sequence_hashes": ["x"]}}, "a list of hashes"),
        ({"request_received_ms": None}, "a number is missing"),
    ],
)
def test_wrong_records_of_dynamo_are_reported(tmp_path: Path, change: dict[str, Any], what: str) -> None:
    """A capture with blocks of another size would share the wrong prefixes."""
    row = ended("1", 0, 1000, "a", None, 5)

    with pytest.raises(UsageError, match=what):
        traces.read(write(tmp_path, [{**row, "request": {**row["request"], **change}}]))


def test_a_round_begins_with_its_last_input(tmp_path: Path) -> None:
    """A call would last as long as the tools before it, and what came from the cache would be computed again."""

    def round_of(session: str, prompt: int, shared: int, *events: tuple[str, float]) -> dict[str, Any]:
        stamps = [{"event_type": kind, "timestamp": f"2026-06-01T05:40:{at:06.3f}Z"} for kind, at in events]
        return {"session_id": session, "provider": "claude", "input_tokens_total": prompt, "prefix_tokens": shared,
                "output_tokens": 9, "timing_events": stamps}  # fmt: skip

    rows = [
        round_of("a", 200, 70, ("user_message", 1), ("text", 3), ("tool_call", 4)),
        round_of("b", 100, 0, ("text", 7.5)),
        round_of("a", 330, 192, ("tool_result", 4.5), ("tool_result", 9), ("usage_report", 10)),
        round_of("a", 400, 70, ("user_message", 20), ("reasoning", 22)),
    ]
    trace = traces.read(write(tmp_path, rows))
    first, other, second, third = trace.table["prefix_ids"].to_pylist()

    assert [[0, 6.5, 8, 19], [3, 0, 1, 2]] == [trace.table[name].to_pylist() for name in ("at_s", "api_s")]
    assert [None, None, 0, 2] == trace.table["parent"].to_pylist()
    assert [3, 1, 5, 6] == [len(ids) for ids in (first, other, second, third)]
    assert first == second[:3]
    assert 1 == len(set(third) & set(second))
    assert not set(other) & set(first)


ODD = (None, True, -1, 1e300, "", "x", "[", '{"a": 1}', [], {}, [None], {"a": 1}, 10**30, "\ud800", "2026-01-01")


def test_damaged_files_are_refused_in_a_sentence(tmp_path: Path) -> None:
    """A traceback would follow one odd value of a log."""
    at = {"start_time": "2026-01-01T00:00:00Z", "end_time": "2026-01-01T00:00:02Z"}
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "parts": [{"type": "tool_call", "id": "1"}]}]
    counts = {"llm.token_count.prompt": 3, "llm.token_count.completion": 4, "session.id": "s"}
    event = {"name": "gen_ai.choice", "attributes": [{"key": "message", "value": {"stringValue": "{}"}}]}
    attributes = {**counts, "gen_ai.input.messages": messages}
    one = {"context": {"span_id": "a", "trace_id": "t"}, "attributes": attributes, **at}
    whole = [
        {"spans": [{**one, "events": [event]}, {**one, "parent_id": "a"}]},
        ended("1", 0, 1000, "a", "b", 5),
        {"session_id": "a", "provider": "p", "input_tokens_total": 9, "prefix_tokens": 0, "output_tokens": 9,
         "timing_events": [{"event_type": "text", "timestamp": at["end_time"]}]},
    ]  # fmt: skip
    rng, read = random.Random(0), 0  # no secret
    for _ in range(200):
        row = json.loads(json.dumps(rng.choice(whole)))
        place = row
        while rng.random() < 0.8:
            values = place.values() if isinstance(place, dict) else place
            place = rng.choice([value for value in values if value and isinstance(value, dict | list)] or [place])
        place[rng.choice(list(place)) if isinstance(place, dict) else 0] = rng.choice(ODD)
        try:
            read += len(traces.read(write(tmp_path, [row])))
        except UsageError:
            continue
    assert read > 25

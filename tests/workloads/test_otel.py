"""Spans of model calls: who called when, how many tokens, and what is no call."""

import json
from pathlib import Path
from typing import Any

import pytest

from harness.data.schedule import Schedule
from harness.errors import UsageError
from workloads import replay, traces
from workloads.trace_tools import info

START_NS = 1_767_225_600_000_000_000


def span(start_s: float, lasts_s: float, session: str, tokens: tuple[int, int] | None, **more: Any) -> dict[str, Any]:
    values = {"gen_ai.operation.name": {"stringValue": "chat"}, "gen_ai.conversation.id": {"stringValue": session}}
    if tokens is not None:
        values |= {"gen_ai.usage.input_tokens": {"intValue": str(tokens[0])},
                   "gen_ai.usage.output_tokens": {"intValue": tokens[1]}}  # fmt: skip
    begin_ns = START_NS + int(start_s * 1e9)
    return {
        "traceId": "t", "startTimeUnixNano": str(begin_ns), "endTimeUnixNano": str(begin_ns + int(lasts_s * 1e9)),
        "attributes": [{"key": key, "value": value} for key, value in values.items()], **more,
    }  # fmt: skip


def write(folder: Path, *exports: Any) -> str:
    file = folder / "spans.jsonl"
    lines = [json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}) for spans in exports]
    file.write_text("\n".join(lines), encoding="utf-8")
    return str(file)


def test_calls_are_requests_and_other_spans_are_named(tmp_path: Path) -> None:
    """Tools and agents would be sent as prompts, or calls would be lost among them."""
    file = write(tmp_path, [span(0, 2.5, "a", (100, 20)), span(1, 9.0, "a", None)], [span(4, 1, "b", (7, 3))])
    trace = traces.read(file)

    assert "otel" == trace.facts["reader"]
    assert [100, 7] == trace.table["prompt_tokens"].to_pylist()
    assert [0.0, 4.0] == trace.table["at_s"].to_pylist()
    assert [2.5, 1.0] == trace.table["api_s"].to_pylist()
    assert (3, {"a span of something else than a model call": 1}) == (trace.facts["rows"], trace.facts["dropped"])


def test_a_think_time_begins_with_the_end_of_a_call(tmp_path: Path) -> None:
    """Users of a replay would think as long as the old server took, too."""
    file = write(tmp_path, [span(0, 2.5, "a", (100, 20)), span(4, 1, "a", (130, 3)), span(9, 1, "a", (150, 3))])
    table = Schedule.draw(replay.load(file, turns="think-only").workload, seed=0).table

    assert [0.0, 1.5, 4.0] == table["delay_s"].to_pylist()
    assert [[], [0], [1]] == table["after"].to_pylist()


@pytest.mark.parametrize(
    ("spans", "what"),
    [
        ([span(0, 1, "a", (1, 1), startTimeUnixNano="now")], "startTimeUnixNano: a finite number expected, got 'now'"),
        ([span(0, 1, "a", (-1, 1))], "gen_ai.usage.input_tokens: must not be negative"),
        ([7], "spans must be a list of objects"),
        ([span(0, 1, "a", (1, 1), attributes={})], "attributes must be a list of objects"),
    ],
)
def test_wrong_spans_are_reported(tmp_path: Path, spans: Any, what: str) -> None:
    """A damaged export would be a traceback."""
    with pytest.raises(UsageError, match=what):
        traces.read(write(tmp_path, spans))


def test_spans_in_the_order_of_their_ends_are_read_by_their_starts(tmp_path: Path) -> None:
    """The usual file of an exporter ended in exit 70, a bug: the row of the first fall was looked up among lines."""
    spans = [span(4, 1, "b", (7, 3)), span(0, 9, "a", (100, 20))]
    for file in (write(tmp_path, spans), write(tmp_path, *([one] for one in spans))):
        trace, checked = traces.read(file), info.check(file)

        assert [100, 7] == trace.table["prompt_tokens"].to_pylist()
        assert [0.0, 4.0] == trace.table["at_s"].to_pylist()
        assert "earlier than the row before, so all rows are sorted by time: 1 row." in trace.facts["oddities"]
        assert [] == checked["odd"]

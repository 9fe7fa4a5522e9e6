"""Spans of model calls: who called when, how many tokens, and what is no call."""

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.api import Request
from harness.data.schedule import Schedule
from harness.errors import UsageError
from workloads import replay, session_times, traces
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
    assert (3, {"a model call without counts of tokens and without text": 1}) == (
        trace.facts["rows"],
        trace.facts["dropped"],
    )


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
        ([span(0, 1, "a", (1, 1), attributes=7)], "attributes must be a list of objects"),
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


class Program:
    """An agent whose steps are calls, or sub-agents side by side: its spans, and which call comes before which."""

    def __init__(self, rng: random.Random, session: str) -> None:
        self.rng, self.session, self.ids = rng, session, itertools.count()
        self.calls: list[tuple[float, float, str]] = []  # begin, end, span
        self.spans: list[dict[str, Any]] = []
        begin_s = rng.uniform(0, 30)
        self.order, end_s, _ = self._agent(2, begin_s, f"{session}-root")
        self._span(f"{session}-root", None, "invoke_agent", begin_s, end_s + 1)

    def _span(self, name: str, parent: str | None, kind: str, begin_s: float, end_s: float) -> None:
        values: dict[str, Any] = {"gen_ai.operation.name": kind, "gen_ai.conversation.id": self.session}
        if kind == "chat":
            self.calls.append((begin_s, end_s, name))
            values |= {"gen_ai.usage.input_tokens": len(self.spans) + 1, "gen_ai.usage.output_tokens": 5}
        times = {"start": str(START_NS + round(begin_s * 1e9)), "end": str(START_NS + round(end_s * 1e9))}
        names = {"traceId": self.session, "spanId": name, **({"parentSpanId": parent} if parent else {})}
        pairs = [
            {"key": k, "value": {"intValue" if isinstance(v, int) else "stringValue": v}} for k, v in values.items()
        ]
        named = {f"{name}TimeUnixNano": at for name, at in times.items()}
        self.spans.append({**names, **named, "attributes": pairs})

    def _agent(self, depth: int, at_s: float, parent: str) -> tuple[set[tuple[str, str]], float, set[str]]:
        order: set[tuple[str, str]] = set()
        before: set[str] = set()
        for _ in range(self.rng.randint(1, 4)):
            at_s += self.rng.choice((0.0, self.rng.uniform(0, 2)))
            step, ends_s = set(), []
            names = [f"{self.session}-{next(self.ids)}" for _ in range(self.rng.choice((1, 1, 2, 3)) if depth else 1)]
            for name in names:
                if len(names) == 1:
                    step, end_s = {name}, at_s + self.rng.uniform(0.2, 3)
                else:
                    inner, end_s, calls = self._agent(depth - 1, at_s + self.rng.uniform(0, 0.05), name)
                    order, step, end_s = order | inner, step | calls, end_s + self.rng.uniform(0.1, 0.3)
                self._span(name, parent, "chat" if len(names) == 1 else "invoke_agent", at_s, end_s)
                ends_s.append(end_s)
            at_s = max(ends_s)
            order |= {(a, b) for a in before for b in step}
            before |= step
        return order, at_s, before


def in_flight(calls: list[tuple[float, float]]) -> int:
    """The most calls at one time: a sweep over begins and ends, ends first."""
    edges = sorted([(round(end, 6), -1) for _, end in calls] + [(round(begin, 6), 1) for begin, _ in calls])
    return max(itertools.accumulate(step for _, step in edges))


def programs(seed: int) -> Iterator[Program]:
    rng = random.Random(seed)  # no secret
    return (Program(rng, f"c{i}") for i in range(rng.randint(1, 4)))


@pytest.mark.parametrize("seed", range(40))
def test_agents_wait_for_what_their_programs_waited_for(tmp_path: Path, seed: int) -> None:
    """Parallel agents would be replayed as a chain, or go on before the work that they ordered is done."""
    made = list(programs(seed))
    spans = [one for program in made for one in program.spans]
    step = 1 + seed % 5
    trace = traces.read(write(tmp_path, *(spans[i : i + step] for i in range(0, len(spans), step))))
    names = [name for *_, name in sorted(call for program in made for call in program.calls)]
    links, reach = session_times.links_of(trace.table), list[set[int]]()
    for row in range(len(trace)):
        waits = links.of(row).tolist()
        reach.append(set(waits).union(*(reach[i] for i in waits)))
        assert not any(a in reach[b] for a in waits for b in waits), "no wait says what another says"

    assert set().union(*(p.order for p in made)) == {(names[a], names[b]) for b in range(len(names)) for a in reach[b]}


@pytest.mark.parametrize("only_calls", [False, True])
def test_as_many_calls_are_in_flight_as_were(tmp_path: Path, only_calls: bool) -> None:
    """A server would see one call of a session at a time where it saw four; with and without the spans of agents."""
    most = 0
    for seed in range(15):
        made = list(programs(seed))
        spans = [one for program in made for one in program.spans if not only_calls or len(one["attributes"]) > 2]
        trace = traces.read(write(tmp_path, spans))
        line = session_times.times_of(trace, session_times.ApiScaled(1.0))
        begin_s, api_s = line.offset_s, np.asarray(trace.table["api_s"])
        for i, session in enumerate(sorted({min(p.calls)[0] for p in made})):
            program = next(p for p in made if min(p.calls)[0] == session)
            number = trace.table["session"].to_pylist()
            calls = [(begin_s[r], begin_s[r] + api_s[r]) for r in range(len(trace)) if number[r] == i]
            most = max(most, len(calls))

            assert in_flight([call[:2] for call in program.calls]) == in_flight(calls)
        recorded = sorted(begin - min(p.calls)[0] for p in made for begin, *_ in p.calls)

        assert np.allclose(recorded, sorted(begin_s), atol=2e-6)
    assert most > 5


QUESTION = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "how are you?"}]
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
MESSAGES = [*QUESTION, {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "nothing"}]  # fmt: skip
PARTS = [
    {"role": "system", "parts": [{"type": "text", "content": "be brief"}]},
    {"role": "user", "parts": [{"type": "text", "content": "how are you?"}]},
    {"role": "assistant", "parts": [{"type": "tool_call", "id": "c1", "name": "look", "arguments": {"at": 1}}]},
    {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "nothing"}]},
]
NUMBERED = {
    "0.role": "system", "0.content": "be brief", "1.role": "user", "1.content": "how are you?", "2.role": "assistant",
    "2.content": "", "2.tool_calls.0.id": "c1", "2.tool_calls.0.function.name": "look",
    "2.tool_calls.0.function.arguments": '{"at": 1}', "3.role": "tool", "3.tool_call_id": "c1", "3.content": "nothing",
}  # fmt: skip


@pytest.mark.parametrize(
    ("attributes", "events"),
    [
        ({"gen_ai.input.messages": json.dumps(MESSAGES)}, []),
        ({"gen_ai.input.messages": MESSAGES}, []),
        ({"gen_ai.input.messages": json.dumps(PARTS)}, []),
        ({"gen_ai.system_instructions": [{"type": "text", "content": "be brief"}],
          "gen_ai.input.messages": json.dumps(PARTS[1:])}, []),
        ({f"gen_ai.prompt.{name}": value for name, value in NUMBERED.items()}, []),
        ({f"llm.input_messages.{name[:1]}.message{name[1:].replace('0.function', '0.tool_call.function')}": value
          for name, value in NUMBERED.items()}, []),
        ({}, [{"name": "gen_ai.content.prompt", "attributes": {"gen_ai.prompt": json.dumps(MESSAGES)}}]),
        ({}, [{"name": f"gen_ai.{message['role']}.message", "attributes": message} for message in MESSAGES]),
    ],
)  # fmt: skip
def test_messages_are_sent_as_the_attributes_have_them(tmp_path: Path, attributes: Any, events: Any) -> None:
    """The server would be sent made-up words, where spans hold the prompts."""
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    fixed = {"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": 9, "gen_ai.usage.output_tokens": 4,
             "gen_ai.tool.definitions": json.dumps([tool]), "gen_ai.request.temperature": 0.5}  # fmt: skip
    one = {"context": {"trace_id": "0x1", "span_id": "0x2"}, "parent_id": None, "start_time": "2026-01-01T00:00:00.5Z",
           "end_time": "2026-01-01T00:00:02Z", "attributes": {**fixed, **attributes}, "events": events}  # fmt: skip
    bare = {**one, "start_time": "2026-01-01T00:00:05Z", "attributes": fixed, "events": []}
    (file := tmp_path / "spans.jsonl").write_text(f"{json.dumps(one)}\n{json.dumps(bare)}", encoding="utf-8")
    loaded = replay.load(str(file), content="recorded", turns="recorded")

    assert {"no text is recorded": 1} == loaded.provenance["dropped"]
    assert {"messages": MESSAGES, "tools": [tool], "temperature": 0.5} == loaded.content.fields(Request(0, 0.0, 9, 4))  # type: ignore[attr-defined]


def test_every_form_of_a_file_holds_the_same(tmp_path: Path) -> None:
    """Spans would have to be brought into another form by hand: those of a trace, of the SDK, or one document."""
    made = next(programs(3))
    plain = [
        {"trace_id": one["traceId"], "span_id": one["spanId"], "parent_span_id": one.get("parentSpanId"),
         "start_time": str(np.datetime64(int(one["startTimeUnixNano"]), "ns")) + "Z",
         "end_time": str(np.datetime64(int(one["endTimeUnixNano"]), "ns")) + "Z",
         "attributes": {pair["key"]: next(iter(pair["value"].values())) for pair in one["attributes"]}}
        for one in made.spans
    ]  # fmt: skip
    export = {"resourceSpans": [{"resource": {}}, {"scopeSpans": [{"spans": made.spans}]}]}
    texts = [json.dumps(export), json.dumps(export, indent=2), json.dumps(export, indent=1).replace("{\n", "{", 1),
             json.dumps({"trace_id": "t", "spans": plain}, indent=2), json.dumps(plain, indent=2),
             "\n".join(map(json.dumps, plain))]  # fmt: skip
    tables = []
    for text in texts:
        (file := tmp_path / "t.json").write_text(text, encoding="utf-8")
        trace = traces.read(str(file))
        tables.append(trace.table)

        assert len(made.spans) == trace.facts["rows"], "rows in = requests + named drops"
    assert all(tables[0].equals(table) for table in tables)


def test_calls_inside_of_calls_and_copies_are_named(tmp_path: Path) -> None:
    """A call that two libraries recorded, or one that was written twice, would be sent twice."""
    tokens = (100, 20)
    spans = [span(0, 4, "a", tokens, spanId="1"), span(1, 2, "a", tokens, spanId="2", parentSpanId="1"),
             span(0, 4, "a", tokens, spanId="3"), span(5, 2, "a", tokens, spanId="4", parentSpanId="1")]  # fmt: skip
    spans.append({**span(6, 1, "b", tokens, spanId="1"), "traceId": "u"})  # numbered anew in each trace
    trace = traces.read(write(tmp_path, spans))

    assert [None, 0, None] == trace.table["parent"].to_pylist()
    assert {"a call inside of another call, which is counted": 1, "a call that the file holds twice": 1} == (
        trace.facts["dropped"]
    )


def test_tokens_without_counts_are_those_of_the_text(tmp_path: Path) -> None:
    """Spans with text only, as inference-perf has them, would be no calls."""
    texts = {"gen_ai.input.messages": json.dumps(QUESTION), "gen_ai.output.text": "fine, thanks"}
    one = {"trace_id": "t", "span_id": "s", "start_time": "2026-01-01T00:00:00", "end_time": "2026-01-01T00:00:02",
           "attributes": texts}  # fmt: skip
    file = tmp_path / "spans.json"
    file.write_text(json.dumps({"spans": [one, {**one, "span_id": "r", "start_time": one["end_time"]}]}, indent=1))

    with pytest.raises(UsageError, match="holds text, no token counts"):
        traces.read(str(file))
    table = traces.read(str(file), "otel:tokenizer=bytes,block=4").table

    assert [[9, 9], [3, 3]] == [table[name].to_pylist() for name in ("prompt_tokens", "output_tokens")]
    assert 2 == len(set(table["prefix_ids"].to_pylist()[0]) & set(table["prefix_ids"].to_pylist()[1]))

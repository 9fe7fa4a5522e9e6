"""Spans of model calls by OpenTelemetry's conventions for generative AI, or by those of OpenInference."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NoReturn

from workloads.readers import _cells, _texts
from workloads.readers._block import MISSING, Block
from workloads.readers._calls import Call, blank, of_calls
from workloads.readers._cells import SECOND_NS
from workloads.readers._requests import Requests

INPUT = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt")
OUTPUT = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.token_count.completion")
_SESSION = ("gen_ai.conversation.id", "session.id", "exgentic.session.id")
_CACHED = ("gen_ai.usage.cache_read.input_tokens", "llm.token_count.prompt_details.cache_read")
_AGENT = ("gen_ai.agent.name", "gen_ai.agent.id", "agent.name")
"""Attributes by their names now, before, and elsewhere."""
_KINDS = ("gen_ai.operation.name", "openinference.span.kind", "traceloop.span.kind", "span_kind")
_AGENTS = frozenset(("agent", "invoke_agent", "create_agent"))
_NO_CALLS = _AGENTS | frozenset(
    ("chain", "workflow", "invoke_workflow", "task", "tool", "execute_tool", "retriever", "reranker", "embedding",
     "embeddings", "guardrail", "evaluator", "prompt")
)  # fmt: skip
"""Kinds of spans that hold the counts of the calls inside of them, or none."""
_TIMES = (("startTimeUnixNano", "start_time"), ("endTimeUnixNano", "end_time"))
_NAMES = (("traceId", "trace_id"), ("spanId", "span_id"), ("parentSpanId", "parent_span_id", "parent_id"))
_FIELDS = ("resourceSpans", "spans", "context", "span_kind", "attributes", "events",
           *sum((*_TIMES, *_NAMES), ()))  # fmt: skip
"""Fields of a row: a whole export, the spans of a trace, or a span."""
_ROLES = {f"gen_ai.{role}.message": role for role in ("system", "user", "assistant", "tool")}
_NO_CALL = "a span of something else than a model call"
_NOTHING = "a model call without counts of tokens and without text"
_NUMBERED = re.compile(r"(\d+)\.(?:message\.|tool\.)?(.+)")
_TOOL_CALL = re.compile(r"tool_calls\.(\d+)\.(?:tool_call\.)?(?:function\.)?(id|name|arguments)")
_SAMPLING = ("temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty", "seed")


@dataclass(frozen=True, slots=True)
class Otel(_texts.Counting):
    """Calls of models with their tokens, and with their messages and tools where the attributes have them.

    An export as OTLP/JSON (one document, or lines), objects with the `spans` of a trace (as inference-perf replays
    them), or a span a line or in a list (as the SDK writes them).

    A conversation (`gen_ai.conversation.id`, `session.id`), else the trace, is a session. Calls that ran side by side
    stay side by side: each waits for those that had ended when it began, but no call of an agent for one of another
    that worked beside it, as their spans tell. A think time is what lies between. Other spans are left out and counted,
    and so is a call inside of another. Stamps are those of the start of a span. Tokens are those of the attributes;
    without them, those of the text, counted by `tokenizer` (the path of a Hugging Face `tokenizer.json`, or bytes: an
    estimate of 4 bytes a token). Prompts that begin alike share blocks of `block_tokens` tokens, which are estimated
    where no tokenizer is given. `--content recorded` sends the messages. Source: OTLP/JSON, the semantic conventions
    for generative AI of OpenTelemetry, those of OpenInference.
    """

    block_tokens: _cells.BlockTokens = 64

    needs: ClassVar[tuple[str, ...]] = ("resourceSpans",)
    also: ClassVar[tuple[tuple[str, ...], ...]] = (("spans",), ("start_time", "end_time", "attributes"))
    stamp: ClassVar[str] = "resourceSpans"
    counts: ClassVar[bool] = True
    facts: ClassVar[Mapping[str, str]] = {
        "tokenizer": "those of the models that were called, where spans tell tokens; else that given to the reader",
        "stamps": "the start of each call, in nanoseconds",
        "order": "by the end of each call",
        "prefixes": "blocks named by the text up to their end, 4 bytes a token where no tokenizer is given",
    }

    @staticmethod
    def body(row: Mapping[str, Any], number: int) -> dict[str, object]:
        """Messages, tools and sampling fields of one of the spans of a row."""
        spans = [*_spans(row, _wrong)]
        return _body(_attributes(spans[number], _wrong))

    def requests(self, block: Block) -> Requests:
        """Every span; one that is no model call, or has no tokens, is reported as dropped."""
        names = [name for name in (*_FIELDS, "resourceSpans") if block.has(name)]
        rows = [*zip(*map(block.cells, names), strict=True)]

        def spans(row: int) -> Iterator[tuple[Call, tuple[str, str, str]]]:
            refuse = partial(block.fail, row, names[0])
            fields = {name: cell for name, cell in zip(names, rows[row], strict=True) if cell is not MISSING}
            for number, span in enumerate(_spans(fields, refuse)):
                attributes = _attributes(span, refuse)
                call = _call(span, attributes, row, number, refuse)
                yield call, ("", "", "") if call.dropped else _counted(attributes, refuse)

        counted = block.each_row(lambda row: [*spans(row)], lambda row: [(blank(row), ("", "", ""))])
        calls = [call for row in counted for call, _ in row]
        texts = [text for row in counted for _, text in row]  # tools and system prompt, prompt, answer
        encode = self.encode or _texts.encoder(_texts.BYTES)
        assert encode is not None
        commons, prompts, answers = (encode([text[i] for text in texts]) for i in range(3))
        for call, common, prompt, answer in zip(calls, commons, prompts, answers, strict=True):
            if (call.prompt < 0 and len(prompt)) or (call.output < 0 and len(answer)):
                self.needed(block, "otel")
            if call.prompt < 0 and not prompt:
                call.dropped = call.dropped or (_NOTHING if call.tag else _NO_CALL)
            if not prompt:
                call.number = -1
            call.prompt = len(prompt) if call.prompt < 0 else call.prompt
            call.output = len(answer) if call.output < 0 else call.output
            call.common_tokens = min(len(common), call.prompt)
            call.ids = _texts.block_names([prompt[: call.prompt]], self.block_tokens)[0].as_py()
        return of_calls(calls, "startTimeUnixNano", SECOND_NS, INPUT[0], OUTPUT[0], by_times=True, dated=True)


def _wrong(message: str) -> Any:
    raise ValueError(message)


def _spans(row: Mapping[str, Any], refuse: _cells.Fail) -> Iterator[dict[str, Any]]:
    """The spans of a row: of an export, of a trace, or the one that it is."""
    export = "resourceSpans" in row
    for resource in _objects(row.get("resourceSpans", [row]), "resourceSpans", refuse):
        scopes = resource.get("scopeSpans", resource.get("instrumentationLibrarySpans", [] if export else [resource]))
        for scope in _objects(scopes, "scopeSpans", refuse):
            yield from _objects(scope.get("spans", [] if export else [scope]), "spans", refuse)


def _objects(value: object, name: str, refuse: _cells.Fail) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(element, dict) for element in value):
        refuse(f"{name} must be a list of objects, got {_cells.shown(value)}")
    return value


def _attributes(span: Mapping[str, Any], refuse: _cells.Fail) -> dict[str, Any]:
    """The attributes of a span, and those of its events, in which messages may stand, too."""
    messages: list[dict[str, Any]] = []
    attributes: dict[str, Any] = {}
    for event in _objects(span.get("events") or [], "events", refuse):
        values = _pairs(event.get("attributes") or {}, refuse)
        attributes.update(values)
        name = str(event.get("name"))
        if name in _ROLES:
            messages.append({"role": _ROLES[name], **values})
        elif name == "gen_ai.choice":
            attributes["gen_ai.output.messages"] = [values]
    of_events = {"gen_ai.input.messages": messages} if messages else {}
    return {**of_events, **attributes, **_pairs(span.get("attributes") or {}, refuse)}


def _pairs(attributes: Any, refuse: _cells.Fail) -> dict[str, Any]:
    decoded = _decoded(attributes)
    if isinstance(decoded, dict):
        return decoded
    return {str(pair.get("key")): _value(pair.get("value")) for pair in _objects(decoded, "attributes", refuse)}


def _value(value: Any) -> Any:
    """A value without the name of its type, which OTLP writes around it."""
    plain = next(iter(value.values()), None) if isinstance(value, dict) else None
    values = plain.get("values") if isinstance(plain, dict) else None
    if not isinstance(values, list):
        return plain
    if all(isinstance(entry, dict) and "key" in entry for entry in values):
        return {str(entry["key"]): _value(entry.get("value")) for entry in values}
    return [_value(entry) for entry in values]


def _first(attributes: Mapping[str, Any], names: tuple[str, ...]) -> tuple[str, Any]:
    """The first of some names that is there, and its value."""
    return next(
        ((name, attributes[name]) for name in names if attributes.get(name) not in (None, "")), (names[0], None)
    )


def _call(span: Mapping[str, Any], attributes: Mapping[str, Any], row: int, number: int, refuse: _cells.Fail) -> Call:
    """A span as a call; tokens that its attributes do not tell are -1."""

    def naming(name: str) -> _cells.Fail:
        def fail(message: str) -> NoReturn:
            refuse(f"{name}: {message}")

        return fail

    def at_ns(name: str, value: Any) -> int:
        if isinstance(value, str) and _cells.may_be_timestamp(value):
            return _cells.stamp_ns(value, naming(name))[0]
        exact = type(value) is int or (isinstance(value, str) and value.isdecimal())
        since_1970_ns = int(value) if exact else int(_cells.number(value, naming(name)))
        if not 0 <= since_1970_ns < 1 << 63:
            naming(name)(f"64-bit nanoseconds expected, got {_cells.shown(value)}")
        return since_1970_ns

    context = span.get("context")
    fields = {**attributes, **span, **(context if isinstance(context, dict) else {})}
    start_ns, end_ns = (at_ns(*_first(fields, names)) for names in _TIMES)
    trace, span_name, parent, session, agent = (
        _name(_first(fields, names)[1]) for names in (*_NAMES, _SESSION, _AGENT)
    )
    counts = [_first(attributes, names) for names in (INPUT, OUTPUT)]
    prompt, output = (-1 if count is None else _cells.tokens(count, naming(name)) for name, count in counts)
    kinds = [kind.lower() for field in _KINDS if (kind := _name(fields.get(field)))]
    cached = _first(attributes, _CACHED)[1] not in (None, 0, "0")
    return Call(
        start_ns,
        max(0, end_ns - start_ns) / SECOND_NS,
        prompt,
        output,
        session or trace,
        kinds[0] if kinds else None,
        agent=agent or span_name if _AGENTS.intersection(kinds) else None,
        chat=f"{trace} {span_name}" if span_name else None,  # some name the spans of each trace anew
        inside=(f"{trace} {parent}",) if parent else (),
        row=row,
        number=number,
        dropped=_NO_CALL if _NO_CALLS.intersection(kinds) else None,
        notes=["some tokens came from a cache; which, is not recorded"] if cached else [],
    )


def _counted(attributes: Mapping[str, Any], refuse: _cells.Fail) -> tuple[str, str, str]:
    """The texts of a call whose tokens are counted: of tools and system prompt, of all of the prompt, of the answer."""
    body = _body(attributes)
    messages = body["messages"]
    assert isinstance(messages, list)
    if not messages:
        return "", "", ""
    system = [message for message in messages[:1] if message["role"] in ("system", "developer")]
    whole, common = (_texts.chat_of({**body, "messages": m}, refuse, answered=False).prompt for m in (messages, system))
    names = ("gen_ai.output.messages", "gen_ai.output.text", "llm.output_messages", "gen_ai.completion")
    answer = [*_listed(attributes, "assistant", *names)]
    return common, whole, _texts.text_of(answer, refuse).removeprefix("assistant: ") if answer else ""


def _body(attributes: Mapping[str, Any]) -> dict[str, object]:
    """Messages, tools and sampling fields in the words of the API."""
    body: dict[str, object] = {
        "messages": [
            *_messages(attributes.get("gen_ai.system_instructions") or [], "system"),
            *_listed(attributes, "user", "gen_ai.input.messages", "llm.input_messages", "gen_ai.prompt"),
        ]
    }
    tools = _decoded(attributes.get("gen_ai.tool.definitions")) or _numbered(attributes, "llm.request.functions")
    tools = tools or [_decoded(tool.get("json_schema")) for tool in _numbered(attributes, "llm.tools")]
    functions = [tool for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
    if functions:
        body["tools"] = [f if "function" in f else {"type": "function", "function": {**f}} for f in functions]
    parameters = _decoded(attributes.get("llm.invocation_parameters"))
    sampling = {name: attributes.get(f"gen_ai.request.{name}") for name in _SAMPLING}
    sampling["stop"] = attributes.get("gen_ai.request.stop_sequences")
    return {**_texts.passed(parameters if isinstance(parameters, dict) else {}), **_texts.passed(sampling), **body}


def _listed(attributes: Mapping[str, Any], role: str, *names: str) -> Iterator[dict[str, Any]]:
    """Messages under one of these names: as a list, or with a number in each name."""
    listed = next((attributes[name] for name in names if attributes.get(name)), None)
    yield from _messages(listed or next(filter(None, (_numbered(attributes, name) for name in names)), []), role)


def _numbered(attributes: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """Objects from attributes such as `NAME.0.role` and `NAME.0.tool_calls.0.name`, by their numbers."""
    objects: dict[int, dict[str, Any]] = {}
    for key, value in attributes.items():
        match = _NUMBERED.fullmatch(key.removeprefix(f"{name}.")) if key.startswith(f"{name}.") else None
        if match is None:
            continue
        fields, path = objects.setdefault(int(match[1]), {}), match[2]
        if call := _TOOL_CALL.fullmatch(path):
            calls = fields.setdefault("tool_calls", {})
            function = calls.setdefault(int(call[1]), {"type": "function", "function": {}})
            (function if call[2] == "id" else function["function"])[call[2]] = value
        elif path.startswith("contents.") and path.endswith(".text"):
            fields["content"] = f"{fields.get('content', '')}{value}"
        else:
            fields[path] = value
    for fields in objects.values():
        if "tool_calls" in fields:
            fields["tool_calls"] = [*fields["tool_calls"].values()]
    return [objects[number] for number in sorted(objects)]


def _messages(value: Any, role: str) -> Iterator[dict[str, Any]]:
    """Messages in the words of the API; `role` is that of what has none."""
    entries = _decoded(value)
    for entry in entries if isinstance(entries, list) else [entries]:
        fields = entry.get("message", entry) if isinstance(entry, dict) else {"content": _text(entry)}
        fields = fields if isinstance(fields, dict) else {"content": _text(fields)}
        parts = fields.get("parts", [fields] if fields.get("type") == "text" else None)
        message = {"role": role, **{k: fields[k] for k in ("role", "content", "name", "tool_calls", "tool_call_id")
                                    if fields.get(k) is not None}}  # fmt: skip
        if isinstance(parts, list):
            texts, calls = [], []
            for part in (part for part in parts if isinstance(part, dict)):
                if part.get("type") == "tool_call":
                    function = {"name": part.get("name"), "arguments": _text(part.get("arguments"))}
                    calls.append({"id": part.get("id"), "type": "function", "function": function})
                elif part.get("type") in ("tool_call_response", "tool_result"):
                    result = next((part[k] for k in ("response", "result", "content") if k in part), "")
                    yield {"role": "tool", "tool_call_id": part.get("id"), "content": _text(result)}
                elif isinstance(text := part.get("content", part.get("text")), str):
                    texts.append(text)
            if not texts and not calls:
                continue
            message = {**message, "content": "\n".join(texts), **({"tool_calls": calls} if calls else {})}
        yield message


def _decoded(value: Any) -> Any:
    """What a text holds as JSON; any other as it is."""
    try:
        return json.loads(value) if isinstance(value, str) and value.lstrip()[:1] in ("[", "{") else value
    except (ValueError, RecursionError):
        return value


def _name(value: Any) -> str | None:
    """A value as a name; None where there is none."""
    return None if value in (None, "") else _text(value).encode(errors="replace").decode()


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)

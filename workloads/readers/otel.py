"""Spans of model calls by OpenTelemetry's conventions for generative AI (OTLP as JSON lines)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa

from workloads.readers import _cells
from workloads.readers._block import Block
from workloads.readers._cells import SECOND_NS
from workloads.readers._requests import MORE, Requests, empty

INPUT = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
OUTPUT = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
"""Attributes by their names now and before."""
_NO_CALL = "a span of something else than a model call"


class _Call(NamedTuple):
    start_ns: int
    lasted_s: float
    prompt: int
    output: int
    session: str | None
    operation: str | None
    counted: bool
    cached: bool


@dataclass(frozen=True, slots=True)
class Otel:
    """Calls of models with their tokens; a conversation (`gen_ai.conversation.id`, else the trace) is a session.

    Stamps are those of the start of a span, counts tokens. A think time is what lies between the end of one call of a
    session and the start of the next. Spans are written as they end and sorted by their start. Other spans are left out
    and counted. Which tokens a prompt shares with another is not recorded, so none are shared here. Source of the
    format: OTLP/JSON and the semantic conventions for generative AI of OpenTelemetry.
    """

    form: ClassVar[str] = "json"
    needs: ClassVar[tuple[str, ...]] = ("resourceSpans",)
    stamp: ClassVar[str] = "resourceSpans"
    block_tokens: ClassVar[int] = 64
    facts: ClassVar[Mapping[str, str]] = {
        "tokenizer": "those of the models that were called",
        "stamps": "the start of each call, in nanoseconds",
        "order": "by the end of each call",
    }

    def requests(self, block: Block) -> Requests:
        """Every span; one that is no model call, or has no tokens, is reported as dropped."""
        spans = [(row, span) for row in range(block.size) for span in _spans(block, row)]
        calls = [_call(block, row, span) for row, span in spans]
        prompt, output = (np.array([getattr(c, x) for c in calls], np.int64) for x in ("prompt", "output"))
        other = np.array([not c.counted for c in calls], bool)
        return Requests(
            "startTimeUnixNano",
            np.array([c.start_ns for c in calls], np.int64),
            SECOND_NS,
            prompt,
            output,
            dated=True,
            drops=((_NO_CALL, other), *empty(INPUT[0], prompt, OUTPUT[0], output)),
            session=pa.array([c.session for c in calls], pa.string()),
            tag=pa.array([c.operation for c in calls], pa.string()),
            notes=(
                ("some tokens came from a cache; which, is not recorded", np.array([c.cached for c in calls], bool)),
            ),
            expanded=True,
            rows=np.array([row for row, _ in spans], np.int64),
            more={"api_s": pa.array([c.lasted_s for c in calls], MORE["api_s"])},
        )


def _spans(block: Block, row: int) -> Iterator[dict[str, Any]]:
    for resource in _objects(block, row, block.cells("resourceSpans")[row], "resourceSpans"):
        scopes = resource.get("scopeSpans", resource.get("instrumentationLibrarySpans", []))
        for scope in _objects(block, row, scopes, "scopeSpans"):
            yield from _objects(block, row, scope.get("spans", []), "spans")


def _objects(block: Block, row: int, value: object, name: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(element, dict) for element in value):
        block.fail(row, "resourceSpans", f"{name} must be a list of objects, got {_cells.shown(value)}")
    return value


def _call(block: Block, row: int, span: Mapping[str, Any]) -> _Call:
    def number(value: object, name: str) -> int:
        return int(_cells.number(value, lambda m: block.fail(row, "resourceSpans", f"{name}: {m}")))

    start_ns, end_ns = (number(span.get(name), name) for name in ("startTimeUnixNano", "endTimeUnixNano"))
    values = {
        pair.get("key"): pair.get("value") for pair in _objects(block, row, span.get("attributes", []), "attributes")
    }
    attributes = {key: next(iter(value.values()), None) for key, value in values.items() if isinstance(value, dict)}
    counts = []
    for names in (INPUT, OUTPUT):
        name = next((n for n in names if n in attributes), None)
        counts.append(None if name is None else number(attributes[name], name))
    operation = attributes.get("gen_ai.operation.name")
    session = attributes.get("gen_ai.conversation.id", span.get("traceId"))
    cached = attributes.get("gen_ai.usage.cache_read.input_tokens")
    return _Call(
        start_ns,
        max(0, end_ns - start_ns) / SECOND_NS,
        counts[0] or 0,
        counts[1] or 0,
        session if isinstance(session, str) else None,
        operation if isinstance(operation, str) else None,
        None not in counts,
        cached not in (None, 0, "0"),
    )

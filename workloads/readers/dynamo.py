"""Request traces of NVIDIA Dynamo (JSON lines: schema, event_type, request with its replay, agent_context)."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from harness.bounds import Checked
from workloads.readers import _cells
from workloads.readers._block import Block
from workloads.readers._calls import Call, blank, of_calls
from workloads.readers._requests import Requests
from workloads.readers._sessions import LOCAL

_OTHER = "an event of another kind than request_end"


@dataclass(frozen=True, slots=True)
class Dynamo(Checked):
    """What a frontend of Dynamo records of requests (`DYN_REQUEST_TRACE`), with the sessions of agents where it does.

    Stamps and times are milliseconds, counts tokens; `input_sequence_hashes` name blocks of `block_tokens` tokens (the
    file says the same, or is refused). A session with a parent is a sub-agent of the parent's. Times decide what a
    request waits for: calls of an agent follow one another, sub-agents work side by side, and what comes after them
    joins them. Tools and payloads are left out and counted. Source: ai-dynamo/dynamo, dynamo.request.trace.v1.
    """

    block_tokens: _cells.BlockTokens = 64

    form: ClassVar[str] = "json"
    needs: ClassVar[tuple[str, ...]] = ("schema", "event_type", "event_time_unix_ms")
    stamp: ClassVar[str] = "event_time_unix_ms"
    facts: ClassVar[Mapping[str, str]] = {
        "tokenizer": "that of the served model",
        "stamps": "milliseconds, when the frontend received each request",
        "order": "by the end of each request",
        "prefixes": "hashes of blocks kept",
    }

    def requests(self, block: Block) -> Requests:
        """Every event; one that is no request, or has no tokens, is reported as dropped."""
        columns = map(block.cells, ("event_type", "event_time_unix_ms", "request", "agent_context"))
        rows = [*zip(*columns, strict=True)]
        calls = block.each_row(lambda row: self._call(partial(block.fail, row, "request"), row, *rows[row]), blank)
        return of_calls(calls, "request_received_ms", 1000, "input_length", "output_tokens", by_times=True)

    def _call(self, refuse: _cells.Fail, row: int, kind: object, ended_ms: Any, request: Any, context: Any) -> Call:
        end_ms = _cells.number(ended_ms, refuse)
        if kind != "request_end":
            return Call(end_ms, 0.0, 0, 0, row=row, dropped=_OTHER)
        fields, agent = (part if isinstance(part, dict) else {} for part in (request, context))
        replay = fields.get("replay", {"input_length": fields.get("input_tokens")})
        if not isinstance(replay, dict):
            refuse(f"replay must be an object, got {_cells.shown(replay)}")
        ids, size = replay.get("input_sequence_hashes", []), replay.get("trace_block_size", self.block_tokens)
        if size != self.block_tokens or not (isinstance(ids, list) and set(map(type, ids)) <= {int}):
            refuse(f"a list of hashes of blocks of {self.block_tokens} tokens expected (--reader dynamo:block={size})")
        at_ms = _cells.number(fields.get("request_received_ms"), refuse)
        session, parent = (_cells.name_of(agent.get(name), refuse) for name in ("session_id", "parent_session_id"))
        return Call(
            at_ms,
            max(0.0, end_ms - at_ms) / 1000,
            _cells.tokens(replay.get("input_length"), refuse),
            _cells.tokens(fields.get("output_tokens") or 0, refuse),
            session,
            ids=[name % LOCAL for name in ids],
            agent=session if parent else None,
            chat=_cells.name_of(fields.get("request_id"), refuse),
            inside=(parent, session) if parent and session else (),
            row=row,
        )

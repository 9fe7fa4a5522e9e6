"""Answers under way: they hear tokens from the service and turn them into bytes at once, one write a step.

Note: a stream writes to its transport itself, because an `await` a token costs more than all the rest of it.

The bytes of answers: SSE chunks in the order of OpenAI's API, and whole answers. Everything of a chunk that does not
change from token to token is built once per answer.

Faults on purpose, for testing clients: `KIND:every=10,token=5`, several at once, each for every nth request.

    reset:token=5               the connection is reset instead of token k
    slow=5%                     every token leaves 5 % later after its request came than it would; slow=5%:from=60s
                                only for requests that come 60 s after the start or later
    429:retry_after=1           refused at once, with Retry-After (seconds)

`token` counts from 1; 0 (the default) is before anything of the answer, its head included.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from json.encoder import encode_basestring as quote
from typing import Literal

from backends.server import fields
from backends.server.fields import Api, GenerationRequest
from backends.server.metrics import AnswerRecord, Metrics
from backends.server.service import EndReason, Listener, Ticket, Tokenizer
from harness.api import tpot
from harness.errors import UsageError, no_such
from harness.spec import arguments, parse
from harness.values import share

Kind = Literal["reset", "slow", "429"]
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER on, 0 s: closing sends RST."""


DONE = "data: [DONE]\n\n"
LAST_CHUNK = b"0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong with every `every`-th request.

    `slow` is the share by which times since the request came grow, for requests `from_s` after the start or later;
    `retry_after_s` what a refusal says.
    """

    kind: Kind
    every: int = 1
    token: int = 0
    retry_after_s: float = 0.0
    slow: float = 0.0
    from_s: float = 0.0
    text: str = ""


def _reset(every: int = 1, token: int = 0) -> Fault:
    return Fault("reset", every, token=token)


def _slow(by: str, every: int = 1, from_s: float = 0.0) -> Fault:
    return Fault("slow", every, slow=share(by, "slow of --fault"), from_s=from_s)


def _refusal(every: int = 1, retry_after_s: float = 1.0) -> Fault:
    return Fault("429", every, retry_after_s=retry_after_s)


FAULTS: Mapping[str, Callable[..., Fault]] = {"reset": _reset, "slow": _slow, "429": _refusal}
"""What makes each fault, of the arguments that it takes."""


def parse_fault(text: str) -> Fault:
    """A fault from its spec. Raises UsageError."""
    is_share = text.startswith("slow=")
    spec = parse(f"slow:by={text.removeprefix('slow=').replace(':', ',', 1)}" if is_share else text)
    if spec.name not in FAULTS:
        raise no_such("fault", spec.name, FAULTS)
    if spec.name == "slow" and not is_share:
        raise UsageError(f"'{text}': slow needs a share: slow=5%, or slow=5%:from=60s.")
    fault = replace(FAULTS[spec.name](**arguments(FAULTS[spec.name], spec)), text=text)
    if fault.every < 1 or min(fault.token, fault.retry_after_s, fault.from_s) < 0:
        raise UsageError(f"'{text}': every must be at least 1; token, retry_after and from not negative.")
    return fault


def in_turn(faults: Sequence[Fault]) -> Callable[[], tuple[Fault, ...]]:
    """What gives, of each request for tokens as it comes, the faults in the order in which they were named."""
    requests, began_s = itertools.count(1), time.monotonic()

    def of_next() -> tuple[Fault, ...]:
        number, run_s = next(requests), time.monotonic() - began_s
        return tuple(fault for fault in faults if number % fault.every == 0 and run_s >= fault.from_s)

    return of_next


@dataclass(slots=True)
class AnswerLog:
    """Progress of an answer, for metrics and the log."""

    ask: GenerationRequest
    record: AnswerRecord
    metrics: Metrics
    ticket: Ticket | None = None
    first_s: float = 0.0
    last_s: float = 0.0
    made: int = 0  # tokens of all answers
    ended: int = 0  # answers

    def ends(self, end: EndReason, error: str) -> bool:
        """An answer ends; whether it is the last one, as any is that fails."""
        self.ended += 1
        self.record.output_tokens = self.made
        self.record.finish_reason = end
        self.record.error = error or None
        return self.ended == self.ask.n or end == "error"

    def record_write(self, made: int, due_s: float, left_s: float) -> None:
        """Record that `made` tokens in all have been sent."""
        record, metrics = self.record, self.metrics
        if self.first_s:
            metrics.gap.observe(left_s - self.last_s)
        else:
            self.first_s = left_s
            metrics.first_token.observe(left_s - record.received_s)
        self.last_s = left_s
        record.tokens.append(made)
        record.due_s.append(due_s)
        record.left_s.append(left_s)

    def close(self) -> None:
        """Count the answer, complete or not."""
        record, metrics, ticket = self.record, self.metrics, self.ticket
        if ticket is not None:
            record.scheduled_s = ticket.scheduled_s
            record.cached_tokens = ticket.cached_tokens
            record.preemptions = ticket.preemptions
        metrics.prompt_tokens += record.prompt_tokens
        metrics.cached_tokens += record.cached_tokens
        record.finish_reason = record.finish_reason or "abort"
        metrics.finished[record.finish_reason] += 1
        if not self.first_s:
            return
        metrics.end_to_end.observe(self.last_s - record.received_s)
        metrics.decode.observe(self.last_s - self.first_s)
        if (tpot_s := tpot(self.first_s, self.last_s, record.output_tokens / self.ask.n)) is not None:
            metrics.per_token.observe(tpot_s)
        if record.scheduled_s is not None:
            metrics.queue.observe(record.scheduled_s - record.received_s)
            metrics.prefill.observe(self.first_s - record.scheduled_s)
            metrics.inference.observe(self.last_s - record.scheduled_s)


class CompleteAnswer:
    """A non-streamed answer: sent when it is complete, with the others to its request."""

    __slots__ = ("_outcome", "_texts", "_words", "done", "ids", "reason")

    def __init__(self, outcome: AnswerLog, tokenizer: Tokenizer, done: asyncio.Future[None]) -> None:
        self._outcome = outcome
        self._words = tokenizer.stream()
        self._texts: list[str] = []
        self.ids: list[int] = []
        self.done = done
        self.reason: EndReason = "error"

    @property
    def text(self) -> str:
        """The complete text."""
        return "".join(self._texts)

    def step(self, token_ids: Sequence[int], at_s: float, due_s: float, end: EndReason | None, error: str = "") -> None:
        """Keep the text; times count as if it had been sent."""
        if self.done.done():
            return
        outcome = self._outcome
        outcome.made += len(token_ids)
        self._texts.append(self._words.add(token_ids))
        self.ids += token_ids
        outcome.metrics.generation_tokens += len(token_ids)
        if token_ids:
            outcome.record_write(outcome.made, due_s, at_s)
        if end is None:
            return
        self._texts.append(self._words.rest())
        self.reason = end
        if outcome.ends(end, error):
            self.done.set_result(None)


class StreamedAnswer:
    """An answer as server-sent events, one write a step; the last one, of the last answer to its request, holds
    everything up to the end of the body.
    """

    __slots__ = ("_chunks", "_framed", "_outcome", "_started", "_transport", "_words", "done", "made")

    def __init__(
        self,
        outcome: AnswerLog,
        tokenizer: Tokenizer,
        done: asyncio.Future[None],
        chunks: Chunks,
        transport: asyncio.WriteTransport,
        framed: bool,
    ) -> None:
        self._outcome = outcome
        self._words = tokenizer.stream()
        self._chunks = chunks
        self._transport = transport
        self._framed = framed
        self.made = 0
        self._started = False
        self.done = done

    def step(
        self,
        token_ids: Sequence[int],
        at_s: float,  # noqa: ARG002  # what counts here is when they leave
        due_s: float,
        end: EndReason | None,
        error: str = "",
    ) -> None:
        """Write what this step gave, at once."""
        # A client that has hung up gets nothing more; its handler aborts the answer.
        if self.done.done() or self._transport.is_closing():
            return
        outcome = self._outcome
        self.made += len(token_ids)
        outcome.made += len(token_ids)
        outcome.metrics.generation_tokens += len(token_ids)
        text = self._words.add(token_ids)
        ids = token_ids if outcome.ask.token_ids else None
        if end is None:
            if text or ids or outcome.ask.usage_on_every_chunk:
                self._write(self._event(text, ids).encode())
                outcome.record_write(outcome.made, due_s, time.monotonic())
            return
        last = outcome.ends(end, error)
        self._last(text + self._words.rest(), ids, end, error, last=last)
        if token_ids:
            outcome.record_write(outcome.made, due_s, time.monotonic())
        if last:
            self.done.set_result(None)

    def _last(self, text: str, ids: Sequence[int] | None, end: EndReason, error: str, *, last: bool) -> None:
        """The last token and how the answer ended; of the `last` answer usage, too, and the end of the stream."""
        outcome = self._outcome
        events = self._event(text, ids) if text or ids or outcome.ask.usage_on_every_chunk else self._role()
        if end == "error":
            events += f"data: {fields.body(500, error or 'The backend failed.')}\n\n"
        else:
            events += self._chunks.finish(end, self._so_far())
        if not last:
            self._write(events.encode())
            return
        if outcome.ask.usage and end != "error":
            cached_tokens = 0 if outcome.ticket is None else outcome.ticket.cached_tokens
            events += self._chunks.usage(outcome.made, cached_tokens)
        # In one write: an end of its own would be a second segment, which leaves later than the last token.
        self._write((events + DONE).encode(), LAST_CHUNK)

    def _event(self, text: str, ids: Sequence[int] | None) -> str:
        """The chunk of a step, after the role where it is the first."""
        chunk = self._chunks.text(text, self._so_far(), ids)
        return chunk if self._started else self._role() + chunk

    def _role(self) -> str:
        if self._started:
            return ""
        # Not before the first token: clients that stamp the first event of any kind would report the role as TTFT.
        self._started = True
        return self._chunks.role(self._outcome.ask.usage_on_every_chunk)

    def _so_far(self) -> int | None:
        return self.made if self._outcome.ask.usage_on_every_chunk else None

    def _write(self, payload: bytes, last: bytes = b"") -> None:
        self._transport.write(frame(payload) + last if self._framed else payload)


class FaultyAnswer:
    """Passes the steps of an answer on, each later by a share of its time, until the connection is reset at a token."""

    __slots__ = ("_answer", "_came_s", "_later", "_loop", "_made", "_reset", "_reset_at", "_slow", "_timer")

    def __init__(self, answer: Listener, faults: Sequence[Fault], reset: Callable[[], None]) -> None:
        self._answer = answer
        self._slow = sum(fault.slow for fault in faults)
        self._reset_at = min((fault.token for fault in faults if fault.kind == "reset"), default=math.inf)
        self._reset = reset
        self._loop = asyncio.get_running_loop()
        self._came_s = self._loop.time()
        self._later: deque[tuple[float, Sequence[int], float, float, EndReason | None, str]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._made = 0

    def step(self, token_ids: Sequence[int], at_s: float, due_s: float, end: EndReason | None, error: str = "") -> None:
        """Pass it on when its time has come, or reset the connection."""
        now_s = self._loop.time()
        self._made += len(token_ids)
        if self._made >= self._reset_at:
            self._reset_at = math.inf
            self._reset()
            return
        free_s = now_s + self._slow * (now_s - self._came_s)
        if free_s <= now_s and not self._later:
            self._answer.step(token_ids, at_s, due_s, end, error)
            return
        self._later.append((free_s, token_ids, at_s, due_s, end, error))
        if self._timer is None:
            self._wait()

    def stop(self) -> None:
        """The client has disconnected."""
        self._later.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self) -> None:
        self._timer = self._loop.call_at(self._later[0][0], self._release)

    def _release(self) -> None:
        self._timer = None
        while self._later and self._later[0][0] <= self._loop.time():
            _, token_ids, at_s, due_s, end, error = self._later.popleft()
            self._answer.step(token_ids, at_s, due_s, end, error)
        if self._later:
            self._wait()


def reset(transport: asyncio.Transport) -> None:
    """End the connection by RST, whatever was written."""
    connection = transport.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    transport.abort()


def usage_fields(prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> dict[str, object]:
    """How many tokens were read, made, and found in the prefix cache, as OpenAI's API writes it."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


class Chunks:
    """Builds the events of one streamed answer. Texts are put in as they are, not escaped to ASCII."""

    __slots__ = ("_after", "_before", "_chat", "_choice", "_head", "_usage_before", "prompt_tokens")

    def __init__(
        self, api: Api, answer_id: str, created: int, model: str, prompt_tokens: int, index: int = 0
    ) -> None:  # fmt: skip
        self._chat = api == "chat"
        self.prompt_tokens = prompt_tokens
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        head = _json({"id": answer_id, "object": kind, "created": created, "model": model})
        self._head = f"data: {head[:-1]}," + '"choices":['
        self._choice = f'{self._head}{{"index":{index},'
        self._before = self._choice + ('"delta":{"content":' if self._chat else '"text":')
        self._after = ("}" if self._chat else "") + ',"logprobs":null,"finish_reason":null}]'
        self._usage_before = f',"usage":{{"prompt_tokens":{prompt_tokens},"completion_tokens":'

    def text(self, text: str, made: int | None = None, ids: Sequence[int] | None = None) -> str:
        """A piece of the answer, with its token ids where they are given; with `made` also the usage so far."""
        after = self._after if ids is None else self._after.replace("}]", f',"token_ids":{[*ids]}}}]')
        return f"{self._before}{quote(text)}{after}{self._usage(made)}}}\n\n"

    def role(self, with_usage: bool = False) -> str:
        """The first chunk of a chat, with zero usage if `with_usage`; a completion has none."""
        if not self._chat:
            return ""
        delta = '"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
        return f"{self._choice}{delta}{self._usage(0 if with_usage else None)}}}\n\n"

    def finish(self, reason: str, made: int | None = None) -> str:
        """The chunk with the finish reason."""
        what = '"delta":{}' if self._chat else '"text":""'
        return f'{self._choice}{what},"logprobs":null,"finish_reason":"{reason}"}}]{self._usage(made)}}}\n\n'

    def usage(self, completion_tokens: int, cached_tokens: int) -> str:
        """The chunk of its own that a client asks for with `include_usage`."""
        return (
            f'{self._head}],"usage":{_json(usage_fields(self.prompt_tokens, completion_tokens, cached_tokens))}}}\n\n'
        )

    def _usage(self, made: int | None) -> str:
        if made is None:
            return ""
        return f'{self._usage_before}{made},"total_tokens":{self.prompt_tokens + made}}}'


def frame(payload: bytes) -> bytes:
    """One chunk of the chunked transfer encoding."""
    return b"%x\r\n%b\r\n" % (len(payload), payload)


def whole(
    ask: GenerationRequest, record: AnswerRecord, created: int, model: str, answers: Sequence[CompleteAnswer]
) -> Mapping[str, object]:
    """The answers to a request that does not stream, with their token ids where they are requested."""
    choices: list[dict[str, object]] = []
    for index, answer in enumerate(answers):
        choice: dict[str, object] = {"index": index, "logprobs": None, "finish_reason": answer.reason}
        choice |= {"token_ids": answer.ids} if ask.token_ids else {}
        if ask.api == "chat":
            choice["message"] = {"role": "assistant", "content": answer.text}
        else:
            choice["text"] = answer.text
        choices.append(choice)
    return {
        "id": record.id,
        "object": "chat.completion" if ask.api == "chat" else "text_completion",
        "created": created,
        "model": model,
        "choices": choices,
        "usage": usage_fields(record.prompt_tokens, record.output_tokens, record.cached_tokens),
    }


def _json(fields: Mapping[str, object]) -> str:
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))

"""How tokens become bytes: one write a step, whole characters, nothing of a stop text."""

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from backends.server.answers import AnswerLog, Chunks, StreamedAnswer
from backends.server.fields import GenerationRequest
from backends.server.metrics import AnswerRecord, Metrics
from backends.server.service import Sampling, Ticket
from backends.server.tokenizer import Builtin

TOKENIZER = Builtin(512)


@dataclass(slots=True)
class Wire:
    """A transport that keeps each write."""

    writes: list[bytes] = field(default_factory=list)

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def is_closing(self) -> bool:
        return False


@dataclass(slots=True)
class Stand:
    """An answer and what it writes."""

    answer: StreamedAnswer
    outcome: AnswerLog
    wire: Wire

    def tell(self, *tokens: int, end: Any = None, error: str = "") -> list[Any]:
        """The events of the one write that these tokens cause; none without a write."""
        before = len(self.wire.writes)
        now_s = time.monotonic()
        self.answer.step(tokens, now_s, now_s, end, error)
        new = self.wire.writes[before:]
        assert len(new) <= 1
        return [event for write in new for event in decoded(write)]


def decoded(write: bytes) -> list[Any]:
    text = write.decode()
    lines = [event.removeprefix("data: ") for event in text.split("\n\n")[:-1]]
    return [json.loads(line) if line.startswith("{") else line for line in lines]


def stand(api: Any = "chat", every: bool = False, usage: bool = False) -> Stand:
    loop = asyncio.new_event_loop()
    ask = GenerationRequest(api, (1, 2), Sampling(100), True, usage or every, every)
    outcome = AnswerLog(
        ask, AnswerRecord("id", None, api, True, time.monotonic()), Metrics(), Ticket(lambda: None, None, 5)
    )
    wire = Wire()
    chunks = Chunks(api, "id", 1, "model", 2)
    answer = StreamedAnswer(
        outcome, TOKENIZER, loop.create_future(), chunks, cast("asyncio.WriteTransport", wire), False
    )
    loop.close()
    return Stand(answer, outcome, wire)


def test_the_role_leaves_with_the_first_token() -> None:
    """Sent early it makes vLLM's benchmark report nonsense for TTFT."""
    s = stand()

    assert ["", "a"] == [event["choices"][0]["delta"]["content"] for event in s.tell(ord("a"))]
    assert ["b"] == [event["choices"][0]["delta"]["content"] for event in s.tell(ord("b"))]


def test_the_end_leaves_with_the_last_token() -> None:
    """The last token would wait for nothing, or the end of the stream for another wake-up."""
    s = stand(usage=True)
    s.tell(ord("a"))
    *events, done = s.tell(ord("b"), end="stop")

    assert "b" == events[0]["choices"][0]["delta"]["content"]
    assert "stop" == events[1]["choices"][0]["finish_reason"]
    assert (2, 2, 5) == (
        events[2]["usage"]["prompt_tokens"],
        events[2]["usage"]["completion_tokens"],
        events[2]["usage"]["prompt_tokens_details"]["cached_tokens"],
    )
    assert "[DONE]" == done


def test_several_tokens_of_one_step_are_one_event() -> None:
    """One step would leave in several segments."""
    s = stand(every=True)
    *_, event = s.tell(*b"abc")

    assert "abc" == event["choices"][0]["delta"]["content"]
    assert 3 == event["usage"]["completion_tokens"]


def test_half_a_character_waits_for_its_rest() -> None:
    """Clients would show U+FFFD for every character that two tokens share."""
    s = stand()
    first, second = "é".encode()

    assert [] == s.tell(first)
    assert ["", "é"] == [event["choices"][0]["delta"]["content"] for event in s.tell(second)]
    assert [2] == s.outcome.record.tokens.tolist()


def test_half_a_character_counts_where_usage_is_continuous() -> None:
    """A client that sees the usage of each token would miss one."""
    s = stand(every=True)
    first, second = "é".encode()

    assert [0, 1] == [event["usage"]["completion_tokens"] for event in s.tell(first)]
    assert [("é", 2)] == [
        (event["choices"][0]["delta"]["content"], event["usage"]["completion_tokens"]) for event in s.tell(second)
    ]


def test_a_character_that_never_became_whole_is_shown_at_the_end() -> None:
    """The client would see fewer tokens than were paid for, without a sign."""
    s = stand()
    events = s.tell("é".encode()[0], end="length")

    assert "\ufffd" == events[1]["choices"][0]["delta"]["content"]


def test_an_end_of_sequence_alone_still_sends_role_and_finish() -> None:
    """An empty answer would have no end."""
    s = stand()
    events = s.tell(end="stop")

    assert [{"role": "assistant", "content": ""}, {}] == [event["choices"][0]["delta"] for event in events[:-1]]


def test_a_failure_in_mid_stream_is_an_error_event() -> None:
    """A broken backend would look like an answer that ended well."""
    s = stand()
    s.tell(ord("a"))
    *_, error, done = s.tell(end="error", error="The engine has died.")

    assert "The engine has died." == error["error"]["message"]
    assert "[DONE]" == done
    assert "error" == s.outcome.record.finish_reason


def test_nothing_is_written_after_the_end() -> None:
    """A late token would stand in the next answer of the connection."""
    s = stand()
    s.tell(ord("a"), end="stop")
    s.answer.step((ord("b"),), 0.0, 0.0, None)

    assert 1 == len(s.wire.writes)


def test_text_is_not_escaped_to_ascii() -> None:
    """Clients would never be tried with characters of several bytes, nor with U+2028 inside JSON."""
    s = stand()
    s.tell(*"日\u2028".encode(), end="stop")

    assert "日\u2028".encode() in s.wire.writes[0]


@given(st.text(alphabet='ab"\\\n\r\u2028é日😀\x00', max_size=40))
def test_any_text_arrives_unchanged(text: str) -> None:
    """Quotes, line ends and control characters would break the JSON of an event."""
    s = stand("completions")
    events = [event for byte in text.encode() for event in s.tell(byte)] + s.tell(end="stop")

    assert text == "".join(event["choices"][0]["text"] for event in events[:-1])

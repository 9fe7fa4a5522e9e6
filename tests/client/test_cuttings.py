"""Any cutting of any legal stream into reads says the same, and every token has the stamp of the read that ended it."""

import json
import re
from array import array
from collections.abc import Sequence
from typing import Any

import pytest
from bench_tests_quirks import CHAT_ONLY, QUIRKS, fields_of, pairs  # the tables beside this file, loaded by conftest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from backends.client.connection import Answer
from backends.client.framing import Framing
from backends.client.reading import Reader
from harness.api import Ended, Request, TokenEvent

TOKENS = 8


def wire(script: Any, played: Any, api: str) -> tuple[bytes, list[tuple[int, Any]]]:
    """All bytes of the answer to an ordinary request, and for each mark the place behind its last byte."""
    body = {"stream": True, "max_tokens": TOKENS, "prompt": "a b c d e"}
    plan = script.answer(played, api, body)
    stop = script.faulted(played, plan.frames)
    data, marks = bytearray(plan.head), []
    for frame in plan.frames[:stop]:
        marks += [(len(data) + mark.end, mark) for mark in frame.marks]
        data += frame.data
    if stop == len(plan.frames):
        data += plan.end
    return bytes(data), marks


def answered(data: bytes, cuts: Sequence[int], how: str) -> Answer:
    """Read i arrived at second i."""
    places = [0, *sorted(set(cuts) - {0, len(data)}), len(data)]
    pieces = [data[a:b] for a, b in zip(places, places[1:], strict=False)]
    times = array("d", map(float, range(len(pieces))))
    return Answer(sent_s=-1.0, ended_s=float(len(pieces)), how=how, data=pieces, stamp_s=times, read_s=times)


def read(answer: Answer) -> tuple[list[TokenEvent], Ended]:
    *events, ended = Reader().read(answer, Request(0, 0.0, 5, TOKENS))
    return events, ended


def how_of(played: Any) -> str:
    return "closed" if played.framing == "close" or played.fault == "close" else "complete"


def facts_of(events: list[TokenEvent], ended: Ended) -> tuple:
    """Everything that must not depend on the cutting."""
    x = ended.exchange
    return (
        [e.tokens for e in events], ended.status, ended.error, ended.prompt_tokens_server, ended.cached_tokens,
        x.http_status, x.finish_reason, x.counted_by, x.reasoning_tokens, x.server_prefill_s,
    )  # fmt: skip


@given(
    names=st.lists(st.sampled_from(sorted(QUIRKS)), max_size=4, unique=True),
    api=st.sampled_from(("chat", "completions")),
    cuts=st.lists(st.floats(0, 1), max_size=40),
)
@example(names=["tool calls", "empty at 0"], api="completions", cuts=[0.5])
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_cutting_of_a_stream_says_the_same(script: Any, names: list[str], api: str, cuts: list[float]) -> None:
    """Where the network cuts a stream would change what is counted, or the time of a token."""
    played = script.Script(**fields_of(names))
    data, marks = wire(script, played, api)
    places = [round(c * len(data)) for c in cuts]

    whole = read(answered(data, (), how_of(played)))
    answer = answered(data, places, how_of(played))
    events, ended = read(answer)

    assert facts_of(*whole) == facts_of(events, ended)
    _hold_stamps(answer, events, marks)


def _hold_stamps(answer: Answer, events: list[TokenEvent], marks: list[tuple[int, Any]]) -> None:
    """Read i came at second i: an event has the number of the read with its last byte."""
    ends, size = [], 0
    for piece in answer.data:
        size += len(piece)
        ends.append(size)
    due = [next(i for i, e in enumerate(ends) if place <= e) for place, mark in marks if mark.seen]

    assert due[: len(events)] == [e.at_s for e in events]


@pytest.mark.nightly
@pytest.mark.parametrize(("names", "cut"), [((n,), 1) for n in QUIRKS], ids=list(QUIRKS))
def test_every_cutting_in_two_says_the_same(script: Any, names: tuple[str, ...], cut: int) -> None:
    """Some place, inside a character or between CR and LF, would break the reading."""
    played = script.Script(**({"odd": True} | fields_of(names)), tokens=3) if "tokens" not in fields_of(names) else (
        script.Script(**fields_of(names))
    )  # fmt: skip
    data, marks = wire(script, played, "chat")
    whole = facts_of(*read(answered(data, (), how_of(played))))

    for at in range(1, len(data)):
        answer = answered(data, (at,), how_of(played))
        events, ended = read(answer)
        assert whole == facts_of(events, ended)
        _hold_stamps(answer, events, marks)


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_quirks_in_pairs_give_what_the_specification_says(script: Any, api: str) -> None:
    """Two oddities of one server would hide each other."""
    wrong = []
    body = {"stream": True, "max_tokens": TOKENS, "prompt": "a b c d e"}
    for names in pairs():
        if api == "completions" and set(names) & set(CHAT_ONLY):
            continue
        played = script.Script(**fields_of(names))
        data, _ = wire(script, played, api)
        events, ended = read(answered(data, range(0, len(data), 97), how_of(played)))
        owed = script.expected(played, api, body)
        found = (ended.status, sum(e.tokens for e in events), len(events), ended.exchange.finish_reason)
        if found != (owed.status, owed.tokens if owed.events else 0, owed.events, owed.finish):
            wrong.append((names, owed, found, ended.error))

    assert [] == wrong


@given(
    names=st.lists(st.sampled_from(sorted(QUIRKS)), max_size=3, unique=True),
    share=st.floats(0, 1),
    how=st.sampled_from(("complete", "closed", "reset", "timeout", "cancelled", "failed")),
    cuts=st.lists(st.floats(0, 1), max_size=5),
)
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_stream_that_breaks_anywhere_keeps_its_tokens_and_is_no_success(
    script: Any, names: list[str], share: float, how: str, cuts: list[float]
) -> None:
    """A broken answer would pass for a whole one, lose the tokens before the break, or raise."""
    played = script.Script(**fields_of(names))
    data, marks = wire(script, played, "chat")
    kept = data[: round(share * len(data))]
    finish = played.finish or "no such word"

    events, ended = read(answered(kept, [round(c * len(kept)) for c in cuts], how))

    come = [m for place, m in marks if place <= len(kept) and m.seen]
    assert len(come) <= len(events) <= len(come) + 1
    if finish.encode() not in kept and played.chunk_bytes is None:  # small chunks cut the word itself
        assert ended.status in ("truncated", "error", "timeout", "cancelled")
    if how in ("timeout", "cancelled") and ended.status != "ok":
        assert how == ended.status


@given(
    names=st.lists(st.sampled_from(sorted(QUIRKS)), max_size=3, unique=True),
    changes=st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=12), st.integers(0, 12)), max_size=6),
    how=st.sampled_from(("complete", "closed", "reset")),
)
@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_bytes_spoiled_on_the_way_never_stop_the_reading(
    script: Any, names: list[str], changes: list[tuple[float, bytes, int]], how: str
) -> None:
    """A server's nonsense would end in a traceback, and the other records would be lost with it."""
    data = bytearray(wire(script, script.Script(**fields_of(names)), "chat")[0])
    for share, put, gone in changes:
        at = round(share * len(data))
        data[at : at + gone] = put

    events, ended = read(answered(bytes(data), range(0, len(data), 200), how))

    assert all(e.tokens >= 0 for e in events)
    assert [e.at_s for e in events] == sorted(e.at_s for e in events)
    assert (ended.status == "ok") == (ended.error is None)


@given(
    names=st.lists(st.sampled_from(sorted(set(QUIRKS) - {"until close"})), max_size=3, unique=True),
    cuts=st.lists(st.floats(0, 1), max_size=40),
    late=st.integers(1, 30),
)
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_end_of_an_answer_is_found_with_its_last_byte(
    script: Any, names: list[str], cuts: list[float], late: int
) -> None:
    """A connection would be given to the next request with half an answer in it, or never be given again."""
    played = script.Script(**fields_of(names))
    if played.fault is not None:
        return
    data, _ = wire(script, played, "chat")
    pieces = answered(data, [round(c * len(data)) for c in cuts] + [len(data) - late], "complete").data
    framing, reads = Framing(), []

    for piece in pieces:
        assert not framing.done
        reads.append(piece)
        if not framing.quiet or framing.may_end(reads):
            framing.take(reads)

    assert framing.done and framing.keep


@pytest.mark.parametrize("how", ["chunked", "length", "close"])
@pytest.mark.parametrize("word", ["data: [DONE]", "\ndata: [DONE]\n\n", "\r\ndata:[DONE]", "0\r\n\r\n"])
def test_text_like_the_end_of_a_stream_does_not_end_it(script: Any, word: str, how: str) -> None:
    """An answer that quotes the protocol would be cut off in the middle."""
    data, _ = wire(script, script.Script(words=(word,), framing=how), "chat")
    encoded = json.dumps(word)[1:-1].encode()
    places = [m.start() for m in re.finditer(re.escape(encoded), data)][:TOKENS]

    assert TOKENS == len(places)
    for at in places:
        for start, stop in ((at, at + len(encoded)), (at + 2, at + len(encoded)), (at - 3, at + len(encoded))):
            framing, reads = Framing(), []
            for piece in answered(data[: stop + 1], (start, stop), "complete").data:
                reads.append(piece)
                assert not framing.take(reads)


@pytest.mark.parametrize("garbage", [b"what now?\r\n", b"\x00" * 40, b"FFFFFFFFFFFFFFFFFF\r\n"])
def test_tokens_that_came_in_one_read_with_garbage_are_kept(script: Any, garbage: bytes) -> None:
    """A proxy that breaks a stream would take with it what it had passed on before."""
    data, marks = wire(script, script.Script(), "chat")
    whole = data[: marks[4][0] + 2]  # with the line end of the chunk

    events, ended = read(answered(whole + garbage, (), "failed"))

    assert ("error", 5) == (ended.status, len(events)), ended.error

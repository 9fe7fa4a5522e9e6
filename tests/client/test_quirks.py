"""Everything that servers have been seen to do to a stream: status, counts, stamps, and the same in any cutting."""

import asyncio
import json
import re
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from bench_tests_quirks import (  # the tables beside this file, loaded by conftest
    CASES,
    CHAT_ONLY,
    QUIRKS,
    WIRE,
    fields_of,
    pairs,
)
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from backends.client.connection import Answer
from backends.client.framing import Framing
from backends.client.reading import Reader
from harness.api import Ended, Request, TokenEvent

TOKENS = 8
BODY = {"stream": True, "max_tokens": TOKENS, "prompt": "a b c d e"}
LIMITS = {"first_token_s", "idle_s"}
"""Options of a case that the connection keeps, and not who reads its answer."""
HOW = {"close": "closed", "reset": "reset", "silence": "timeout", "garbage": "failed"}


def runs() -> list[Any]:
    """Every case with every API for which it makes sense."""
    return [
        pytest.param(name, api, id=f"{name}, {api}")
        for name, (_, options, only, _) in CASES.items()
        for api in ("chat", "completions")
        if only in (None, api) and not LIMITS & options.keys()
    ]


def wire(script: Any, played: Any, api: str, stream: bool = True) -> tuple[bytes, list[tuple[int, Any]]]:
    """All bytes of the answer to an ordinary request, and for each mark the place behind its last byte."""
    plan = script.answer(played, api, BODY | {"stream": stream})
    stop = script.faulted(played, plan.frames) if played.fault in HOW else len(plan.frames)
    data, marks = bytearray(plan.head), []
    for frame in plan.frames[:stop]:
        marks += [(len(data) + mark.end, mark) for mark in frame.marks]
        data += frame.data
    if played.fault in HOW and played.fault_at is None:
        return (b"what now?\r\n" if played.fault == "garbage" else b""), []
    if stop == len(plan.frames):
        data += plan.end
    return bytes(data), marks


def answered(data: bytes, cuts: Sequence[int], how: str) -> Answer:
    """Read i arrived at second i."""
    places = [0, *sorted(set(cuts) - {0, len(data)}), len(data)]
    pieces = [data[a:b] for a, b in zip(places, places[1:], strict=False)]
    times = array("d", map(float, range(len(pieces))))
    why = None if how in ("complete", "closed") else "it broke off"
    return Answer(sent_s=-1.0, ended_s=float(len(pieces)), how=how, why=why, data=pieces, stamp_s=times, read_s=times)


def read(answer: Answer, stream: bool = True) -> tuple[list[TokenEvent], Ended]:
    *events, ended = Reader(stream).read(answer, Request(0, 0.0, 5, TOKENS))
    return events, ended


def how_of(played: Any) -> str:
    return HOW.get(played.fault, "closed" if played.framing == "close" else "complete")


@pytest.mark.parametrize(("name", "api"), runs())
def test_a_quirk_of_a_server_gives_the_status_and_the_counts_of_the_specification(
    name: str, api: str, script: Any
) -> None:
    """A server's oddity would lose, invent or misjudge tokens."""
    fields, options, _, owed = CASES[name]
    played, stream = script.Script(**fields), options.get("stream", True)
    data, marks = wire(script, played, api, stream)
    answer = answered(data, range(0, len(data), 97), how_of(played))
    events, ended = read(answer, stream)
    exchange = ended.exchange
    found = {
        "status": ended.status, "http": exchange.http_status, "events": len(events),
        "tokens": sum(e.tokens for e in events), "counted_by": exchange.counted_by, "n": [e.tokens for e in events],
        "finish": exchange.finish_reason, "cached": ended.cached_tokens, "reasoning": exchange.reasoning_tokens,
        "queue_s": exchange.server_queue_s, "ttft_s": exchange.server_ttft_s,
        "prefill_s": exchange.server_prefill_s, "decode_s": exchange.server_decode_s,
    }  # fmt: skip
    judged = {key: value for key, value in owed.items() if key != "error" and value is not None}

    assert judged == {key: found[key] for key in judged}, ended.error
    assert owed.get("error", "") in (ended.error or "")
    assert (ended.error is None) == (ended.status == "ok")
    if stream:
        _hold_stamps(answer, events, marks)


@pytest.mark.nightly
@pytest.mark.parametrize("name", [name for name, (_, options, *_) in CASES.items() if LIMITS & options.keys()])
async def test_a_server_that_is_silent_for_too_long_is_given_up(name: str, scripted: Callable, ask: Callable) -> None:
    """It would hold a run for ever."""
    played, options, _, owed = CASES[name]
    server = scripted(it=played)

    (outcome,) = await ask(server, "it", **options)

    assert (owed["status"], owed["tokens"], 1) == (outcome.ended.status, outcome.tokens, len(outcome.seen))
    assert owed.get("error", "") in (outcome.ended.error or "")


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
    for names in pairs():
        if api == "completions" and set(names) & set(CHAT_ONLY):
            continue
        played = script.Script(**fields_of(names))
        data, _ = wire(script, played, api)
        events, ended = read(answered(data, range(0, len(data), 97), how_of(played)))
        owed = script.expected(played, api, BODY)
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


@pytest.mark.parametrize("name", CASES)
def test_the_oracle_of_the_pairs_agrees_with_what_is_owed_by_hand(name: str, script: Any) -> None:
    """The judge of the pairs would follow its own rules instead of the specification's."""
    played, options, only, owed = CASES[name]
    if {"stream", "first_token_s"} & options.keys() or {"ascii", "usage_more"} & played.keys():
        pytest.skip("the oracle knows nothing of it")

    found = script.expected(script.Script(**played), only or "chat", BODY)

    assert (owed["status"], owed["http"], owed["events"]) == (found.status, found.http, found.events)
    if owed["tokens"] is not None:
        assert owed["tokens"] == found.tokens
    for key in ("counted_by", "finish"):
        assert key not in owed or owed[key] == getattr(found, key)
    assert found.error is None or found.error in owed["error"]


AT_ONCE = 40


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_quirks_in_pairs_over_the_network_give_what_the_specification_says(
    api: str, scripted: Callable, opened: Callable, script: Any
) -> None:
    """Two oddities of one server would hide each other, or an odd answer would spoil its neighbours on the way."""
    named = [p for p in (*pairs()[:: len(WIRE)], *pairs(WIRE)) if api == "chat" or not set(p) & set(CHAT_ONLY)]
    server = scripted(it=[fields_of(p) for p in named])

    found = asyncio.run(_all(opened, server, api, len(named)))

    assert len(named) == len(found)
    assert [] == [
        (names, owed, got, ended.error)
        for names, played, (events, ended) in zip(named, server.scripts["it"], found, strict=True)
        if (owed := _reported(script.expected(played, api, BODY)))
        != (got := (ended.status, ended.exchange.http_status, sum(e.tokens for e in events), len(events)))
    ]


def _reported(owed: Any) -> tuple:
    return owed.status, owed.http, owed.tokens if owed.events else 0, owed.events


async def _all(opened: Callable, server: Any, api: str, count: int) -> list[tuple[list, Any]]:
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(backend: Any, number: int) -> tuple[list, Any]:
        async with gate:
            *events, ended = [e async for e in backend.submit(Request(number, 0.0, 5, 8))]
            return events, ended

    async with asyncio.timeout(240), opened(server.url("it"), api=api, timeout_s=120) as backend:
        server.arm()
        return await asyncio.gather(*(one(backend, i) for i in range(count)))

"""Everything that servers have been seen to do to a stream, one at a time: status, counts, stamps, and never a hang."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from bench_tests_quirks import (  # the tables beside this file, loaded by conftest
    CASES,
    CHAT_ONLY,
    WIRE,
    fields_of,
    pairs,
)

from harness.api import Request

STAMP_S = 0.0005
"""The conversion of the kernel's clock to the monotonic one may be off by this much."""


def runs() -> list[Any]:
    """Every case with every API for which it makes sense."""
    return [
        pytest.param(name, api, id=f"{name}, {api}")
        for name, (_, _, only, _) in CASES.items()
        for api in ("chat", "completions")
        if only in (None, api)
    ]


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "api"), runs())
def test_a_quirk_of_a_server_gives_the_status_and_the_counts_of_the_specification(
    name: str, api: str, scripted: Callable, ask: Callable, script: Any
) -> None:
    """A server's oddity would lose, invent or misjudge tokens, or hold a run for ever."""
    played, options, _, owed = CASES[name]
    server = scripted(it=played)

    (outcome,) = asyncio.run(ask(server, "it", api=api, **options))
    ended, exchange = outcome.ended, outcome.ended.exchange

    assert exchange is not None
    assert (owed["status"], owed["http"]) == (ended.status, exchange.http_status), ended.error
    assert owed["events"] == len(outcome.events)
    _hold_counts(owed, outcome)
    _hold_rest(owed, outcome)
    _hold_stamps(script, server, outcome, api)
    assert (ended.error is None) == (ended.status == "ok")
    assert 1 == len(outcome.seen)


def _hold_counts(owed: dict, outcome: Any) -> None:
    exchange = outcome.ended.exchange
    if owed["tokens"] is not None:
        assert owed["tokens"] == outcome.tokens
    if "counted_by" in owed:
        assert owed["counted_by"] == exchange.counted_by
    if owed.get("n"):
        assert owed["n"] == [e.tokens for e in outcome.events]


def _hold_rest(owed: dict, outcome: Any) -> None:
    ended, exchange = outcome.ended, outcome.ended.exchange
    seen = {
        "finish": exchange.finish_reason,
        "cached": ended.cached_tokens,
        "reasoning": exchange.reasoning_tokens,
        "queue_s": exchange.server_queue_s,
        "ttft_s": exchange.server_ttft_s,
        "prefill_s": exchange.server_prefill_s,
        "decode_s": exchange.server_decode_s,
    }
    assert {k: pytest.approx(owed[k]) for k in seen if k in owed} == {k: v for k, v in seen.items() if k in owed}
    if "error" in owed:
        assert owed["error"] in (ended.error or "")


def _hold_stamps(script: Any, server: Any, outcome: Any, api: str) -> None:
    """No stamp is before its bytes were written, none falls behind the one before, none is after the end."""
    (seen,) = outcome.seen
    stamps_s = outcome.stamps_s
    end_s = outcome.ended.at_s + outcome.epoch_s

    assert stamps_s == sorted(stamps_s)
    assert not stamps_s or stamps_s[-1] <= end_s + STAMP_S
    assert outcome.ended.sent_s + outcome.epoch_s <= seen.arrived_s
    if not seen.body.get("stream"):
        return
    frames = script.answer(server.scripts["it"], api, seen.body).frames
    marks = [m for f in frames for m in f.marks]
    written = [w for w, m in zip(seen.written, marks, strict=False) if m.seen]
    for stamp_s, (before_s, _) in zip(stamps_s, written, strict=True):
        assert before_s - STAMP_S <= stamp_s


@pytest.mark.parametrize("name", CASES)
def test_the_oracle_of_the_pairs_agrees_with_what_is_owed_by_hand(name: str, script: Any) -> None:
    """The judge of the pairs would follow its own rules instead of the specification's."""
    played, options, only, owed = CASES[name]
    if {"stream", "first_token_s"} & options.keys() or {"ascii", "usage_more"} & played.keys():
        pytest.skip("the oracle knows nothing of it")
    body = {"stream": True, "max_tokens": 8, "prompt": "a b c d e"}

    found = script.expected(script.Script(**played), only or "chat", body)

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
        if (owed := _reported(script.expected(played, api, {"stream": True, "max_tokens": 8, "prompt": "a b c d e"})))
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

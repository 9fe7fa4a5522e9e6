"""Faults on purpose happen to the right requests, at the right token, in the right way."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from backends.server.answers import FaultyAnswer, in_turn, parse_fault

if TYPE_CHECKING:
    from conftest import Play

TEXT = "/v1/completions"
FIVE = {"prompt": [1], "max_tokens": 5, "stream": True}


def tokens(data: bytes) -> int:
    return data.count(b'"text":" ')


def test_every_nth_request_is_hit() -> None:
    """Two faults with periods of their own would disturb each other's count."""
    faults = in_turn([parse_fault("reset:every=2"), parse_fault("429:every=3")])

    assert [[], ["reset"], ["429"], ["reset"], [], ["reset", "429"]] == [
        [fault.kind for fault in faults()] for _ in range(6)
    ]


def test_a_slow_server_is_slower_by_a_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """The self-test of a gate would not know the size of the loss that it should find."""
    now_s, timers, left_s = [0.0], list[tuple[float, Callable[[], None]]](), list[float]()
    clock = SimpleNamespace(
        time=lambda: now_s[0], monotonic=lambda: now_s[0], call_at=lambda at_s, call: timers.append((at_s, call))
    )
    monkeypatch.setattr("backends.server.answers.time", clock)
    monkeypatch.setattr("asyncio.get_running_loop", lambda: clock)
    faults = in_turn([parse_fault("slow=50%:from=600ms")])
    before = faults()
    now_s[0] = 10.0
    slow: Any = SimpleNamespace(step=lambda *_: left_s.append(now_s[0]))
    answer = FaultyAnswer(slow, faults(), lambda: None)
    for now_s[0] in (10.1, 10.2):
        answer.step((7,), now_s[0], now_s[0], None)
    while timers:
        now_s[0], release = timers.pop(0)
        release()

    assert () == before
    assert [10.15, 10.3] == pytest.approx(left_s)


async def test_a_reset_comes_instead_of_its_token(play: Play) -> None:
    """A client would be tried with a clean end and not with a reset."""
    async with play(faults=("reset:every=2,token=3",), backend="null:itl=5ms") as stage:
        data, reset = await stage.raw(TEXT, FIVE)
        assert (0, False) == (tokens(data) - 5, reset)
        data, reset = await stage.raw(TEXT, FIVE)
        assert reset
        assert tokens(data) <= 2
        assert b"[DONE]" not in data


async def test_token_0_is_before_the_head(play: Play) -> None:
    """A client would see a status where it should see none."""
    async with play(faults=("reset",)) as stage:
        assert (b"", True) == await stage.raw(TEXT, FIVE)


async def test_a_refusal_tells_when_to_come_again(play: Play) -> None:
    """A client that obeys Retry-After could not be tried."""
    async with play(faults=("429:retry_after=2.5",)) as stage:
        answer = await stage.post(TEXT, FIVE)

        assert (429, "3") == (answer[0], answer[1]["Retry-After"])
        assert json.loads(answer[2])["error"]["code"] == "fault"
        assert 200 == (await stage.get("/health"))[0]


@pytest.mark.parametrize("stream", [True, False])
async def test_waiting_loses_nothing(play: Play, stream: bool) -> None:
    """A fault that delays would also change the answer."""
    async with play(faults=("slow=50%",), backend="null:itl=10ms") as stage:
        _, _, text = await stage.post(TEXT, {**FIVE, "stream": stream})

        assert " be bi bo bu ca" == (
            "".join(words(event) for event in text.split("\n\n")) if stream
            else json.loads(text)["choices"][0]["text"]
        )  # fmt: skip


def words(event: str) -> str:
    data: Any = json.loads(event.removeprefix("data: ")) if event.startswith("data: {") else None
    return "" if data is None else str(data["choices"][0]["text"])


async def test_answers_with_faults_do_not_count_as_late(play: Play) -> None:
    """The server would call itself late for its configured delays."""
    async with play(faults=("slow=50%",), backend="null:itl=10ms") as stage:
        await stage.post(TEXT, FIVE)
        assert 0 == stage.running.front.truth.lateness.reads
        await stage.post(TEXT, FIVE)
        assert 0 == stage.running.front.truth.lateness.reads

"""Prompts of half a million tokens: as many as planned, and alike on the wire as far as their blocks are."""

import json

import pytest

from backends.client.body import Builder, RequestFormat
from harness.api import Request
from workloads.content.text import Text
from workloads.content.tokens import Tokens

TOKENS, BLOCK, SHARED = 500_000, 64, 7_000
FIRST = Request(1, 0.0, TOKENS, 5, tuple(range(TOKENS // BLOCK)), BLOCK)
SECOND = Request(2, 9.0, TOKENS + 640, 5, (*range(SHARED), *range(10**6, 10**6 + 822)), BLOCK)


@pytest.mark.parametrize("api", ["completions", "chat"])
def test_equal_blocks_are_equal_on_the_wire_and_nothing_behind_them(api: str) -> None:
    """A server would find more or less of a long prompt in its cache than the trace has."""
    ids = api == "completions"
    ask = RequestFormat(prompt="ids" if ids else "text", api=api, vocab_size=128_000, salt="s")  # type: ignore[arg-type]
    builder = Builder(ask, Tokens() if ids else Text())
    bodies = [json.loads(builder.body(request)) for request in (FIRST, SECOND)]
    one, two = (b["prompt"] if ids else b["messages"][0]["content"].split() for b in bodies)

    assert [TOKENS, TOKENS + 640] == [len(one), len(two)]
    assert one[: SHARED * BLOCK] == two[: SHARED * BLOCK]
    assert one[SHARED * BLOCK :][:BLOCK] != two[SHARED * BLOCK :][:BLOCK]

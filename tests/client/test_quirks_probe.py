"""What a server refuses or gets wrong before the run: found by the probe, reported to the user, and never a hang."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from harness.api import Request
from harness.errors import BackendError, BenchError


async def _probed(opened: Callable, url: str, server: Any, **options: Any) -> tuple[list, Any, dict]:
    async with asyncio.timeout(120), opened(url, **options) as backend:
        server.arm()
        *events, ended = [e async for e in backend.submit(Request(0, 0.0, 5, 8))]
        return events, ended, dict(backend.describe())


def _names(value: Any) -> set[str]:
    """All keys of a JSON object, those inside it with their path."""
    found = set()
    for key, inner in value.items():
        found.add(key)
        if isinstance(inner, dict):
            found |= {f"{key}.{name}" for name in _names(inner)}
    return found


REFUSED = {
    "ignore_eos": "ignore_eos",
    "stream_options.continuous_usage_stats": "continuous_usage_stats",
    "stream_options": "include_usage",
    "temperature": "temperature",
    "seed": "seed",
    "top_p": "top_p",
}


@pytest.mark.parametrize("status", [400, 422])
@pytest.mark.parametrize("field", REFUSED)
def test_a_field_that_a_server_refuses_is_left_out_and_reported(
    field: str, status: int, scripted: Callable, opened: Callable
) -> None:
    """Every request of the run would be refused, or the user would not hear what is missing."""
    server = scripted(it={"refuse": (field,), "refuse_status": status})
    options = {"temperature": 0.5, "seed": 3, "top_p": 0.9}

    events, ended, facts = asyncio.run(_probed(opened, server.url("it"), server, **options))

    assert ("ok", 8) == (ended.status, sum(e.tokens for e in events)), ended.error
    (sent,) = server.of("it")
    assert field not in _names(sent.body)
    dropped = {d["field"]: d["cost"] for d in facts["capabilities"]["dropped"]}
    assert dropped[REFUSED[field]]
    others = {"temperature", "seed", "top_p"} - {field}
    assert others <= _names(sent.body), "what the server takes was left out too"


@pytest.mark.parametrize("status", [400, 422])
def test_the_older_name_of_the_length_is_used_where_the_newer_is_refused(
    status: int, scripted: Callable, opened: Callable
) -> None:
    """Older servers could not be measured."""
    server = scripted(it={"refuse": ("max_completion_tokens",), "refuse_status": status})

    _, ended, _ = asyncio.run(_probed(opened, server.url("it"), server, api="chat"))

    assert "ok" == ended.status
    (sent,) = server.of("it")
    assert 8 == sent.body["max_tokens"]
    assert "max_completion_tokens" not in sent.body


def test_everything_refused_at_once_still_gives_answers(scripted: Callable, opened: Callable) -> None:
    """A plain server that knows no extension could not be measured."""
    refuse = ("ignore_eos", "min_tokens", "generation_config", "stream_options", "max_completion_tokens", "prompt ids")
    server = scripted(it={"refuse": refuse, "usage": None})

    for api in ("chat", "completions"):
        events, ended, _ = asyncio.run(_probed(opened, server.url("it"), server, api=api))
        assert ("ok", "events", 8) == (ended.status, ended.exchange.counted_by, len(events))
        sent = server.of("it")[-1]
        assert not _names(sent.body) & set(refuse)


@pytest.mark.parametrize(
    ("quirk", "words"),
    [
        ({"status": 307, "location": "/elsewhere"}, "307"), ({"page": "<html>"}, "."), ({"malformed_at": 0}, "."),
        ({"error_at": 0}, "died of grief"), ({"fault": "close"}, "."), ({"fault": "reset"}, "."),
        ({"fault": "silence"}, "0.5 s"), ({"fault": "silence", "fault_at": 3}, "0.5 s"),
    ],
)  # fmt: skip
def test_a_server_that_fails_the_probe_is_one_sentence_before_the_run(
    quirk: dict, words: str, scripted: Callable, opened: Callable
) -> None:
    """A hopeless run would start, hang, or end in a traceback."""
    server = scripted(it=quirk)
    server.arm()

    with pytest.raises(BackendError, match=words) as caught:
        asyncio.run(_probed(opened, server.url("it"), server, timeout_s=0.5 if "0.5 s" in words else 120.0))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


def test_an_address_that_names_no_host_is_one_sentence(opened: Callable, scripted: Callable) -> None:
    """A mistyped address would be a traceback of the resolver."""
    for url in ("http://no-such-host.invalid/v1", "ftp://127.0.0.1/v1", "127.0.0.1:80", "http://", "http://h:port/v1"):
        with pytest.raises(BenchError) as caught:
            asyncio.run(_probed(opened, url, None))
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("fault", ["close", "reset"])
def test_a_probe_that_breaks_off_is_reported(fault: str, scripted: Callable, opened: Callable) -> None:
    """A run of nothing but truncated answers would begin without a word."""
    server = scripted(it={"fault": fault, "fault_at": 3})
    server.arm()

    *_, facts = asyncio.run(_probed(opened, server.url("it"), server))

    assert any("finish_reason" in note for note in facts["notes"])

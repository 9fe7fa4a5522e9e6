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

"""The backend as the harness meets it: options, copies for senders, departures at once, no secrets in its facts."""

import asyncio
import pickle
import resource
from collections.abc import Callable

import pytest

from backends.openai import OpenAI
from harness.api import Ended, Request
from harness.errors import BackendError, UsageError
from harness.registry import make


def test_the_options_are_found_by_their_names() -> None:
    """A user could not say where the server is."""
    backend = make("backends", "openai:url=http://127.0.0.1:1/v1,model=m,api=completions,timeout=5min,idle_s=30")

    assert ("http://127.0.0.1:1/v1", "m", "completions", 300.0, 30.0) == (
        backend.url,
        backend.model,
        backend.api,
        backend.timeout_s,
        backend.idle_s,
    )


def test_a_wrong_option_is_reported_in_a_sentence(refusals: Callable[..., None]) -> None:
    """A slip would end in a traceback, or in a run that asks something else."""
    refusals("wrong-openai.txt", "--requests", "2")


def test_a_host_without_an_address_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A misspelt host would end in a traceback."""

    async def nowhere(*_: object, **__: object) -> None:
        raise OSError(-2, "Name or service not known")

    async def run() -> None:
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", nowhere)
        await OpenAI(url="http://no.such.host/v1").open(object())

    with pytest.raises(BackendError, match=r"No address of the host 'no\.such\.host' can be found: Name or service"):
        asyncio.run(run())


async def test_a_sender_gets_a_copy_without_connections(scripted: Callable, opened: Callable) -> None:
    """A second sender could not start, or would write to the sockets of the first."""
    server = scripted(calm={})

    async with opened(server.url("calm")) as backend:
        copy: OpenAI = pickle.loads(pickle.dumps(backend))  # noqa: S301
        try:
            request = Request(3, 0.0, 5, 4)
            one = [e async for e in backend.submit(request)]
            two = [e async for e in copy.submit(request)]
            one, two = one, two
        finally:
            await copy.close()

    assert len(one) == len(two)
    assert ["ok", "ok"] == [e.status for e in (one[-1], two[-1]) if isinstance(e, Ended)]


async def test_a_request_leaves_when_it_is_fetched_not_when_its_answer_is_awaited(
    scripted: Callable, opened: Callable
) -> None:
    """Every departure would be late by a turn of the event loop."""
    server = scripted(calm={})

    async with opened(server.url("calm")) as backend:
        first = await backend.fetch(Request(0, 0.0, 5, 4))  # its connection is kept
        backend.prepare(Request(1, 0.0, 5, 4))
        pool = backend._pool
        assert pool is not None
        before_s = pool.clock.now_s()
        waiting = backend.fetch(Request(1, 0.0, 5, 4))
        after_s = pool.clock.now_s()
        answer = await waiting
        assert answer.sent_s is not None
        assert before_s <= answer.sent_s <= after_s
        first, answer = first, answer

    assert ("complete", "complete", None) == (first.how, answer.how, answer.connect_s)


async def test_a_request_that_is_cancelled_hangs_up(scripted: Callable, opened: Callable) -> None:
    """The server would go on computing without a client."""
    server = scripted(silent={"fault": "silence"})

    async with opened(server.url("silent")) as backend:
        server.arm("silent")
        task = asyncio.ensure_future(anext(aiter(backend.submit(Request(0, 0.0, 5, 4)))))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        assert repr(backend._pool).startswith("<Pool 0 calls")


def test_a_machine_that_allows_too_few_files_is_reported_before_the_run(
    scripted: Callable, opened: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half-way through, requests would fail for want of files."""
    server = scripted(calm={})
    monkeypatch.setattr(resource, "getrlimit", lambda _: (100, 100))
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)

    async def run() -> None:
        async with opened(server.url("calm")) as backend:
            await backend.connect(0, 1000.0, 100.0)

    with pytest.raises(UsageError, match="this machine allows 100 open files"):
        asyncio.run(run())


def test_addresses_with_too_few_ports_are_reported_before_the_run(
    scripted: Callable, opened: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half-way through, requests would fail with 'Cannot assign requested address'."""
    server = scripted(calm={})
    monkeypatch.setattr("backends.client.target.ports_per_address", lambda: 1000)

    async def run() -> None:
        async with opened(server.url("calm"), source="127.0.0.2|127.0.0.3") as backend:
            await backend.connect(0, 500.0, 1.0)
            await backend.connect(0, 1000.0, 100.0)

    with pytest.raises(UsageError, match="About 3500 connections are needed, and this machine has 2000 ports"):
        asyncio.run(run())


async def test_each_server_is_probed_and_they_share_the_requests(scripted: Callable, opened: Callable) -> None:
    """The second server would get fields that it refuses, or no requests at all."""
    one, two = scripted(calm={}), scripted(calm={})

    async with opened(f"{one.url('calm')}|{two.url('calm')}") as backend:
        answers = [await backend.fetch(Request(k, 0.0, 5, 4)) for k in range(4)]
        assert 2 == len(backend.describe()["addresses"])

        assert 2 == len({answer.address for answer in answers})


def test_every_option_is_explained() -> None:
    """`bench explain openai` would list names without a meaning."""
    described = OpenAI.__doc__ or ""
    named = ("affinity", "prompt", "header", "extra_body", "proxy", "client_cert", "ca", "metrics")

    assert [] == [name for name in named if f"`{name}`" not in described]

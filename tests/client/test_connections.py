"""Connections that servers close, refuse, queue and secure: what happens to requests that follow one another."""

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trustme

from harness.api import Request
from harness.errors import BenchError


def statuses(outcomes: list[Any]) -> list[str]:
    return [o.ended.status for o in outcomes]


def test_a_server_with_one_slot_answers_all(scripted: Callable, ask: Callable) -> None:
    """A serial server would be taken for a dead one, or its queue would not be in the TTFT."""
    server = scripted(it={"slots": 1, "itl_s": 0.005})

    outcomes = asyncio.run(ask(server, "it", requests=6, at_once=True))

    assert ["ok"] * 6 == statuses(outcomes)
    order = sorted(outcomes, key=lambda o: o.events[0].at_s)
    for one, next_one in zip(order, order[1:], strict=False):
        (last_s, _) = _seen(one).written[-1]
        assert last_s - 0.0005 <= next_one.stamps_s[0]


def _seen(outcome: Any) -> Any:
    """What the server noted of the request of this outcome."""
    return next(s for s in outcome.seen if s.headers["x-request-id"] == str(outcome.ended.request_id))


async def test_a_full_backlog_is_waited_for(scripted: Callable, opened: Callable) -> None:
    """A server that is slow to accept would count as one that refuses."""
    server = scripted(None, True, it={})

    opening = asyncio.create_task(_first_of(opened, server))
    await asyncio.sleep(0.2)
    await asyncio.to_thread(server.accept)

    assert "ok" == (await asyncio.wait_for(opening, 120)).status


async def _first_of(opened: Callable, server: Any) -> Any:
    async with opened(server.url("it")) as backend:
        server.arm()
        return [e async for e in backend.submit(Request(0, 0.0, 5, 8))][-1]


async def test_a_server_that_dies_fails_what_is_under_way_and_what_comes(scripted: Callable, opened: Callable) -> None:
    """Requests to a dead server would hang, or vanish from the records."""
    server = scripted(it={"itl_s": 5.0})

    async with asyncio.timeout(120), opened(server.url("it")) as backend:
        server.arm()
        under_way = [asyncio.create_task(_end(backend, i)) for i in range(4)]
        await asyncio.to_thread(server.wait, lambda s: len(s.of("it")) == 4)
        await asyncio.to_thread(server.kill)
        ended = [*await asyncio.gather(*under_way), await _end(backend, 9)]

    assert ["error"] * 5 == [e.status for e in ended]
    assert all(e.error for e in ended)


async def _end(backend: Any, number: int) -> Any:
    return [e async for e in backend.submit(Request(number, 0.0, 5, 8))][-1]


def test_an_answer_that_comes_before_the_request_is_whole_is_read(scripted: Callable, opened: Callable) -> None:
    """A server that refuses long prompts, or everything, would look like one that breaks connections."""
    server = scripted(it={})

    async def run(port: int) -> list[Any]:
        async with asyncio.timeout(120), opened(server.url("it")) as backend:
            peer = backend._pool._targets[0].peer
            object.__setattr__(peer, "addresses", [(socket.AF_INET, ("127.0.0.1", port))])  # the probe went elsewhere
            requests = [Request(i, 0.0, tokens, 8) for i, tokens in enumerate((5, 200_000, 300_000, 400_000))]
            return [[e async for e in backend.submit(r)][-1] for r in requests]

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_refuse_at_once, args=(listener, 4), daemon=True).start()
        ended = asyncio.run(run(listener.getsockname()[1]))

    assert [("rejected", 503)] * 4 == [(e.status, e.exchange.http_status) for e in ended], ended


def _refuse_at_once(listener: socket.socket, count: int) -> None:
    """Answer after the first bytes and close; what is not read makes the close a reset."""
    for _ in range(count):
        connection, _ = listener.accept()
        with connection:
            connection.recv(1000)
            connection.sendall(b"HTTP/1.1 503 Busy\r\nContent-Length: 2\r\n\r\n{}")


# --- TLS ---


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def ca_file(authority: trustme.CA, tmp_path: Path) -> str:
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    return str(tmp_path / "ca.pem")


@pytest.fixture
def server_tls(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return context


@pytest.mark.parametrize("options", [{}, {"ca": "other"}])
def test_a_certificate_of_an_unknown_authority_is_refused(
    options: dict, scripted: Callable, ask: Callable, server_tls: ssl.SSLContext, tmp_path: Path
) -> None:
    """A key would be sent to any server that answers."""
    if options:
        trustme.CA().cert_pem.write_to_path(str(tmp_path / "other.pem"))
        options = {"ca": str(tmp_path / "other.pem")}
    server = scripted(server_tls, it={})

    with pytest.raises(BenchError, match="certificate") as caught:
        asyncio.run(ask(server, "it", **options))
    assert "\n" not in str(caught.value)
    assert [] == server.seen


def test_a_certificate_of_another_name_is_refused(
    scripted: Callable, ask: Callable, authority: trustme.CA, ca_file: str
) -> None:
    """Any certificate of the authority would do."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("elsewhere.example").configure_cert(context)
    server = scripted(context, it={})

    with pytest.raises(BenchError, match="certificate"):
        asyncio.run(ask(server, "it", ca=ca_file))


async def test_insecure_asks_for_no_certificate_and_says_so(
    scripted: Callable, opened: Callable, server_tls: ssl.SSLContext
) -> None:
    """A run whose server was not verified would not tell."""
    server = scripted(server_tls, it={})

    async with opened(server.url("it"), insecure=True) as backend:
        server.arm()
        ended, facts = await _end(backend, 0), backend.describe()

    assert "ok" == ended.status
    assert "insecure" in str(facts)


def test_a_server_that_wants_to_know_its_clients_gets_a_certificate(
    scripted: Callable, ask: Callable, authority: trustme.CA, server_tls: ssl.SSLContext, ca_file: str, tmp_path: Path
) -> None:
    """Servers with mutual TLS could not be measured."""
    client = authority.issue_cert("bench@client.example")
    client.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "client.pem"))
    authority.configure_trust(server_tls)
    server_tls.verify_mode = ssl.CERT_REQUIRED
    server = scripted(server_tls, it={})

    (outcome,) = asyncio.run(ask(server, "it", ca=ca_file, client_cert=str(tmp_path / "client.pem")))

    assert "ok" == outcome.ended.status
    with pytest.raises(BenchError):
        asyncio.run(ask(server, "it", ca=ca_file))


# --- several addresses ---


async def test_a_dead_address_does_not_take_the_others_with_it(scripted: Callable, opened: Callable) -> None:
    """One lost replica would end the measurement of all."""
    alive, dying = scripted(it={}), scripted(it={})

    async with opened(f"{alive.url('it')}|{dying.url('it')}", route="round-robin") as backend:
        alive.arm()
        await asyncio.to_thread(dying.kill)
        ended = [await _end(backend, i) for i in range(6)]

    assert ["error", "error", "error", "ok", "ok", "ok"] == sorted(e.status for e in ended)
    assert {str(dying.port)} == {e.exchange.address.rpartition(":")[2] for e in ended if e.status == "error"}

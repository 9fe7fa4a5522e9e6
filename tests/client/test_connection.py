"""A connection opens, by TLS or a proxy where configured, writes requests whole and keeps every read with its time."""

import asyncio
import contextlib
import select
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from backends.client import connection, stamps, target
from backends.client.pool import ConnectionPool, Target
from backends.client.target import Limits

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def request_of(reader: asyncio.StreamReader) -> bytes:
    """Head and body of one request."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next((int(h.split(b":")[1]) for h in head.split(b"\r\n") if h.lower().startswith(b"content-length")), 0)
    return head + await reader.readexactly(length)


@asynccontextmanager
async def serving(serve: Serve, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """The port of a server that handles each connection by `serve`."""
    tasks: set[asyncio.Task[None]] = set()

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await serve(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                await writer.wait_closed()

    server = await asyncio.start_server(one, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def pool_to(
    url: str, trust: target.Trust | None = None, proxy: str | None = None, limits: Limits | None = None
) -> AsyncIterator[ConnectionPool]:
    place = await target.find(url, proxy)
    first = b"POST %b HTTP/1.1\r\nHost: x\r\n" % (url.encode() if place.whole_url else b"/")
    first += place.proxy_headers if place.whole_url else b""
    pool = ConnectionPool([Target(first, place.peer(trust or target.Trust(), {}), place.label)], limits)
    stamps.kernel_stamps()
    try:
        yield pool
        pool.check()
    finally:
        pool.close()


def rest(body: bytes = b"") -> bytes:
    return b"Content-Length: %d\r\n\r\n" % len(body) + body


async def echo_length(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        size = b"%d" % len(await request_of(reader))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(size) + size)


async def test_a_request_larger_than_the_buffers_of_the_kernel_arrives_whole() -> None:
    """A long prompt would be cut, or block all other requests while it is written."""
    async with serving(echo_length) as port, pool_to(f"http://127.0.0.1:{port}") as pool:
        pool.start_clock(time.monotonic())
        answer = await pool.send(1, rest(b"x" * 20_000_000))
    head = len(b"POST / HTTP/1.1\r\nHost: x\r\n" + rest(b"x" * 20_000_000))

    assert ("complete", b"%d" % head) == (answer.how, b"".join(answer.data).partition(b"\r\n\r\n")[2])
    assert answer.sent_s is not None and answer.written_s is not None
    assert 0 <= answer.sent_s < answer.written_s <= answer.ended_s


async def test_every_read_keeps_its_bytes_and_the_time_at_which_they_arrived() -> None:
    """Tokens would be lost, or all stamped alike."""
    parts = [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"2\r\na\n\r\n", b"2\r\nb\n\r\n", b"0\r\n\r\n"]
    written_s: list[float] = []

    async def slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        for part in parts:
            written_s.append(time.monotonic())
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.02)

    async with serving(slowly) as port, pool_to(f"http://127.0.0.1:{port}") as pool:
        answer = await pool.send(1, rest())

    assert parts == answer.data
    assert sorted(answer.stamp_s) == list(answer.stamp_s)
    assert all(w - 1e-3 <= s <= r for w, s, r in zip(written_s, answer.stamp_s, answer.read_s, strict=True))
    if stamps.kernel_stamps():
        assert 0 == answer.process_stamps


def test_a_long_prompt_is_let_go_when_its_answer_begins() -> None:
    """2,000 prompts of 100,000 tokens under way would take 1 GB; a refusal must still find its bytes to forward."""
    held: dict[bytes, int] = {}

    async def run(status: bytes) -> None:
        async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await request_of(reader)
            writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 2\r\n\r\na")
            await asyncio.sleep(0.05)
            held[status] = len(pool._calls[1].rest)
            writer.write(b"b")

        async with serving(half) as port, pool_to(f"http://127.0.0.1:{port}") as pool:
            assert "complete" == (await pool.send(1, rest(b"x" * 1000))).how

    for status in (b"200 OK", b"503 Busy"):
        asyncio.run(run(status))

    assert {b"200 OK": 0, b"503 Busy": len(rest(b"x" * 1000))} == held


async def test_after_a_step_of_the_clock_reads_are_stamped_by_the_process() -> None:
    """The clock of the client is set, and a token seems to come a second early."""
    async with serving(echo_length) as port, pool_to(f"http://127.0.0.1:{port}") as pool:
        await pool.send(0, rest())
        pool.clock._restart(pool.clock._offset_s - 1.0, 1e-7, time.monotonic())
        one = await pool.send(1, rest())
        two = await pool.send(2, rest())
        one, two, steps = one, two, pool.clock.steps

    assert 1 == steps
    assert list(one.read_s) == list(one.stamp_s)
    if stamps.kernel_stamps():
        assert (1, 0) == (one.process_stamps, two.process_stamps)


async def test_without_epoll_or_stamps_of_the_kernel_the_process_stamps(monkeypatch: pytest.MonkeyPatch) -> None:
    """On macOS nothing could be measured."""
    monkeypatch.delattr(select, "epoll", raising=False)
    monkeypatch.setattr(stamps.sys, "platform", "darwin")

    async with serving(echo_length) as port, pool_to(f"http://127.0.0.1:{port}") as pool:
        await pool.send(1, rest())
        answer = await pool.send(2, rest(b"x" * 20_000_000))

    assert ("complete", len(answer.data)) == (answer.how, answer.process_stamps)
    assert list(answer.read_s) == list(answer.stamp_s)


async def test_an_address_that_refuses_is_followed_by_the_next() -> None:
    """'localhost' would be unreachable where only one of its two addresses has a server."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        dead = closed.getsockname()
    async with serving(echo_length) as port:
        peer = target.Peer([(socket.AF_INET, dead), (socket.AF_INET, ("127.0.0.1", port))], "both")
        pool = ConnectionPool([Target(b"GET / HTTP/1.1\r\n", peer, "both")])
        try:
            result = await pool.send(1, rest())
        finally:
            pool.close()

    assert "complete" == result.how


async def test_no_server_at_all_is_refused_in_words() -> None:
    """A wrong port would look like a slow server."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    async with pool_to(f"http://127.0.0.1:{port}") as pool:
        answer = await pool.send(1, rest())

    assert ("refused", f"no connection to {answer.address}: Connection refused") == (answer.how, answer.why)
    assert answer.sent_s is None


@pytest.mark.parametrize("says", [b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhalf", b"nonsense"])
async def test_an_answer_that_breaks_off_is_reported_with_what_came(says: bytes) -> None:
    """Half an answer would be lost, or wait for its other half."""

    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(says)

    async with serving(half) as port, pool_to(f"http://127.0.0.1:{port}") as pool:
        answer = await pool.send(1, rest())

    assert [says] == answer.data
    assert ("failed" if says == b"nonsense" else "closed") == answer.how


@pytest.mark.parametrize("epoll", [True, False])
async def test_an_internal_error_ends_only_its_request(epoll: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request would hang for ever, and with it the run."""
    if not epoll:
        monkeypatch.delattr(select, "epoll", raising=False)

    def bug(self: object, reads: object, whole: int) -> bool:
        raise ZeroDivisionError("a bug")

    async with serving(echo_length) as port, pool_to(f"http://127.0.0.1:{port}") as pool:
        monkeypatch.setattr(connection.Framing, "take", bug)
        answer = await pool.send(1, rest())

    assert ("failed", "ZeroDivisionError: a bug") == (answer.how, answer.why)


# TLS


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ssl.SSLContext]:
    """The PEM file of our authority, and the context of a server that has its certificate."""
    trustme = pytest.importorskip("trustme")
    folder = tmp_path_factory.mktemp("tls")
    ca = trustme.CA()
    ca.cert_pem.write_to_path(str(folder / "ca.pem"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    ca.issue_cert("127.0.0.1", "localhost").configure_cert(context)
    return folder / "ca.pem", context


@pytest.mark.parametrize("size", [10, 3_000_000])
async def test_a_server_with_a_certificate_of_our_authority_is_measured_like_any_other(authority, size: int) -> None:
    """Bytes that came encrypted would be lost or stamped by the process."""
    ca, context = authority

    trust = target.Trust(ca=str(ca))
    async with serving(echo_length, context) as port, pool_to(f"https://127.0.0.1:{port}", trust) as pool:
        one, two = [await pool.send(k, rest(b"x" * size)) for k in range(2)]

    assert ["complete", "complete"] == [one.how, two.how]
    assert one.connect_s is not None and two.connect_s is None
    assert one.sent_s is not None and one.written_s is not None and one.sent_s <= one.written_s
    assert b"".join(two.data).startswith(b"HTTP/1.1 200 OK\r\n")
    if stamps.kernel_stamps():
        assert 0 == one.process_stamps + two.process_stamps
        assert one.stamp_s[-1] < one.read_s[-1]


async def test_a_server_without_tls_is_a_clear_error() -> None:
    """https for http, the commonest slip, would end in an error of a library."""

    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with serving(plain) as port, pool_to(f"https://127.0.0.1:{port}") as pool:
        answer = await pool.send(1, rest())

    assert "failed" == answer.how
    assert answer.why is not None and answer.why.startswith("no secure connection to 127.0.0.1:")


# Proxies


@asynccontextmanager
async def proxying(heads: list[bytes], refuse: bool = False) -> AsyncIterator[int]:
    """The port of a proxy that writes down the heads it reads; it knows CONNECT and whole URLs."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        heads.append(head)
        if refuse:
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
            return
        method, where = head.split(b" ")[:2]
        host = (where if method == b"CONNECT" else where.split(b"/")[2]).decode()
        ahead, behind = await asyncio.open_connection(*host.split(":"))
        if method == b"CONNECT":
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            behind.write(head)
        try:
            await asyncio.gather(pump(reader, behind), pump(ahead, writer))
        finally:
            behind.close()
            with contextlib.suppress(ConnectionError):
                await behind.wait_closed()

    async with serving(serve) as port:
        yield port


async def test_a_proxy_gets_whole_urls_and_its_password() -> None:
    """Servers behind a proxy could not be measured."""
    heads: list[bytes] = []

    async with (
        serving(echo_length) as port,
        proxying(heads) as proxy,
        pool_to(f"http://127.0.0.1:{port}", proxy=f"http://user:pass%21@127.0.0.1:{proxy}") as pool,
    ):
        answer = await pool.send(1, rest())

    assert "complete" == answer.how
    assert heads[0].startswith(b"POST http://127.0.0.1:")
    assert b"Proxy-Authorization: Basic dXNlcjpwYXNzIQ==\r\n" in heads[0]


async def test_tls_goes_through_a_tunnel_of_the_proxy(authority) -> None:
    """A proxy would read what is encrypted for the server, or keep its own password in the request."""
    ca, context = authority
    heads: list[bytes] = []

    trust = target.Trust(ca=str(ca))
    async with (
        serving(echo_length, context) as port,
        proxying(heads) as proxy,
        pool_to(f"https://127.0.0.1:{port}", trust, f"http://127.0.0.1:{proxy}") as pool,
    ):
        answer = await pool.send(1, rest())

    assert "complete" == answer.how
    assert heads[0].startswith(b"CONNECT 127.0.0.1:")


async def test_the_refusal_of_a_proxy_is_quoted() -> None:
    """A wrong password of the proxy would look like a broken server."""
    async with (
        proxying([], refuse=True) as proxy,
        pool_to("https://127.0.0.1:9", proxy=f"http://127.0.0.1:{proxy}") as pool,
    ):
        answer = await pool.send(1, rest())

    assert "refused" == answer.how
    assert answer.why is not None and "407 Proxy Authentication Required" in answer.why


OK = b"HTTP/1.1 200 OK\r\n"
STREAM = OK + b"Content-Type: text/event-stream\r\n"
BLOCK = b"x" * 60_000
FLOODS = {
    "a body": (OK + b"Content-Length: 300000000\r\n\r\n", BLOCK, "the answer is larger than 300,000 bytes"),
    "an error": (b"HTTP/1.1 500 No\r\nContent-Length: 300000000\r\n\r\n", BLOCK, "the answer is larger than"),
    "events": (STREAM + b"Transfer-Encoding: chunked\r\n\r\n", b"a\r\ndata: {}\n\n\r\n" * 3000, "the answer is larger"),
    "an event": (STREAM + b"Content-Length: 300000000\r\n\r\ndata: ", BLOCK, "an event of the answer is larger"),
    "an event in chunks": (
        STREAM + b"Transfer-Encoding: chunked\r\n\r\n", b"ea60\r\n%b\r\n" % BLOCK, "an event of the answer is larger"
    ),
    "a head": (OK + b"X-A: ", BLOCK, "the answer has a header block larger than 20,000 bytes (max_head_bytes)"),
}  # fmt: skip


@pytest.mark.parametrize("what", FLOODS)
async def test_an_answer_without_end_is_given_up_and_not_kept(what: str) -> None:
    """A server would decide how much memory the client takes: four answers of 300 MB took 3 GB."""
    head, block, why = FLOODS[what]
    written = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        request = await request_of(reader)
        writer.write(OK + b"Content-Length: 2\r\n\r\nok" if request.endswith(b"calm") else head)
        while not request.endswith(b"calm"):
            writer.write(block)
            written += len(block)
            await writer.drain()

    limits = target.Limits(body_bytes=300_000, event_bytes=90_000, head_bytes=20_000)
    async with serving(flood) as port, pool_to(f"http://127.0.0.1:{port}", limits=limits) as pool:
        given_up, next_one = await pool.send(1, rest()), await pool.send(2, rest(b"calm"))

    assert given_up.why is not None and given_up.why.startswith(why), given_up.why
    assert sum(map(len, given_up.data)) <= connection.READ_BYTES and written < 30_000_000
    assert ("complete", b"ok") == (next_one.how, next_one.data[-1][-2:])


async def test_events_within_the_limits_are_no_reason_to_give_up() -> None:
    """A long answer of small events, or an event as large as allowed, would be lost."""
    large = b"data: " + b"y" * 80_000 + b"\r\n\r\n"
    body = b"".join([b"data: {}\n\n" * 9000, large, b"data: a\rdata: b\r\r" * 6000, large])

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(STREAM + b"Content-Length: %d\r\n\r\n" % len(body) + body)

    limits = target.Limits(body_bytes=len(body) + 100, event_bytes=90_000)
    async with serving(serve) as port, pool_to(f"http://127.0.0.1:{port}", limits=limits) as pool:
        answer = await pool.send(1, rest())

    assert ("complete", body) == (answer.how, b"".join(answer.data).partition(b"\r\n\r\n")[2])


def test_the_room_of_an_answer_grows_with_the_tokens_requested() -> None:
    """A long answer would be taken for a flood."""
    assert (1 << 20) + 8192 * 100_000 == target.Limits().answer_bytes(100_000)
    assert 5 == target.Limits(body_bytes=5).answer_bytes(100_000)

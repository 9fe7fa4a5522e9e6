"""Which connection a request takes, when one is given up, and that every request ends exactly once."""

import asyncio
import contextlib
import os
import pickle
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.client import pool, target
from backends.client.connection import Answer
from backends.client.pool import ConnectionPool, Target
from backends.client.target import Limits

GOOD = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
BUSY = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nbusy"
REST = b"Content-Length: 0\r\n\r\n"

Play = Callable[["Played"], Awaitable[None]]


@dataclass(slots=True)
class Played:
    """One request as a server sees it: on which connection, the how manyeth of it, and how to answer."""

    connection: int
    nth: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def reset(self) -> None:
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


@dataclass(slots=True)
class Server:
    """Answers each request as `play` does, and remembers (connection, how manyeth of it) of each."""

    play: Play
    seen: list[tuple[int, int]] = field(default_factory=list)
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    connections: int = 0
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _server: asyncio.Server | None = None

    async def __aenter__(self) -> "Server":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def port(self) -> int:
        assert self._server is not None
        return self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.append(asyncio.current_task())
        number, nth = self.connections, 0
        self.connections += 1
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while not writer.is_closing():
                    await reader.readuntil(b"\r\n\r\n")
                    self.seen.append((number, nth))
                    await self.play(Played(number, nth, reader, writer))
                    nth += 1
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            self.closed.set()


def target_of(port: int) -> Target:
    peer = target.Peer([(socket.AF_INET, ("127.0.0.1", port))], f"127.0.0.1:{port}")
    return Target(b"POST / HTTP/1.1\r\n", peer, f"127.0.0.1:{port}")


@contextlib.asynccontextmanager
async def pooled(
    play: Play | list[Play], limits: Limits | None = None, **options: object
) -> AsyncIterator[tuple[ConnectionPool, list[Server]]]:
    """A pool, and the servers to which it connects: one per `play`."""
    plays = play if isinstance(play, list) else [play]
    async with contextlib.AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(Server(p)) for p in plays]
        made = ConnectionPool([target_of(s.port) for s in servers], limits, **options)
        try:
            async with asyncio.timeout(120):
                yield made, servers
            made.check()
        finally:
            made.close()
            made.check()


async def until(found: Callable[[], object]) -> None:
    """Wait for what sets no event; the limit on the whole test ends a vain wait."""
    while not found():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


async def good(request: Played) -> None:
    await request.say(GOOD)


async def silent(request: Played) -> None:
    await asyncio.sleep(60)


async def test_the_connection_used_last_is_used_next() -> None:
    """Connections would all grow old together, and be closed by the server one after another."""
    async with pooled(good) as (made, servers):
        await asyncio.gather(*(made.send(k, REST) for k in range(3)))
        servers[0].seen.clear()
        for k in range(3, 6):
            await made.send(k, REST)
        seen = servers[0].seen

    assert 1 == len({number for number, _ in seen})
    assert [1, 2, 3] == [nth for _, nth in seen]


async def test_a_connection_that_was_idle_for_long_is_never_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server closes it just as the next request is written, and the request is lost."""
    assert pool.MAX_IDLE_S < 5  # when uvicorn closes
    monkeypatch.setattr(pool, "MAX_IDLE_S", 0.0)

    async with pooled(good) as (made, servers):
        for k in range(3):
            await made.send(k, REST)

        assert ([(0, 0), (1, 0), (2, 0)], 3) == (servers[0].seen, made.facts()["connections_opened"])


async def test_the_facts_of_a_sender_count_what_happened() -> None:
    """A client that lost packets, or had no files left, would be taken for a sound one."""
    async with pooled(good) as (made, _):
        await asyncio.gather(*(made.send(k, REST) for k in range(3)))
        await made.send(3, REST)
        facts = dict(made.facts())
    counts = ("sent", "reads", "connections_opened", "connections_most", "resent", "retransmits", "clock_steps")

    assert [4, 4, 3, 3, 0, 0, 0] == [facts[name] for name in counts]
    assert facts["segments"] >= 4 or not facts["segments"]
    assert 0 <= facts["read_lag_p50_s"] <= facts["read_lag_p99_s"] <= facts["read_lag_max_s"]
    assert 3 <= facts["open_files"] <= facts["open_files_limit"]


@pytest.mark.parametrize("end", ["close", "reset"])
async def test_a_reused_connection_that_proves_closed_is_replaced_once(end: str) -> None:
    """A request that the server never saw would count as its failure."""

    async def once(request: Played) -> None:
        if request.nth == 0:
            await request.say(GOOD)
        elif end == "reset":
            request.reset()
        else:
            request.writer.close()

    async with pooled(once) as (made, servers):
        one = await made.send(1, REST)
        two = await made.send(2, REST)
        seen, resent = servers[0].seen, made.facts()["resent"]

    assert ("complete", False, "complete", True) == (one.how, one.resent, two.how, two.resent)
    assert ([(0, 0), (0, 1), (1, 0)], 1) == (seen, resent)
    assert two.sent_s is not None and two.written_s is not None and two.sent_s < two.written_s <= two.stamp_s[0]
    assert two.connect_s is not None


async def test_nothing_is_sent_again_on_a_fresh_connection_or_after_any_byte() -> None:
    """A benchmark would retry silently, and call a failing server sound."""

    async def fail(request: Played) -> None:
        if request.nth == 1:
            await request.say(b"HTTP/1.1 200 OK\r\n")
        if request.nth == 0 and request.connection == 0:
            await request.say(GOOD)
        else:
            request.writer.close()

    async with pooled(fail) as (made, servers):
        answers, seen = [await made.send(k, REST) for k in range(3)], servers[0].seen

    assert [("complete", False), ("closed", False), ("closed", False)] == [(a.how, a.resent) for a in answers]
    assert [(0, 0), (0, 1), (1, 0)] == seen


async def test_a_reused_connection_that_ends_late_is_a_failure_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that dies while it computes would be given the work a second time, unseen."""
    monkeypatch.setattr(pool, "RESEND_S", 0.0)

    async def once(request: Played) -> None:
        if request.nth:
            request.writer.close()
        else:
            await request.say(GOOD)

    async with pooled(once) as (made, _):
        await made.send(1, REST)
        answer = await made.send(2, REST)

    assert ("closed", False) == (answer.how, answer.resent)


async def test_idle_connections_that_the_server_closes_are_forgotten() -> None:
    """The next request would begin with a failure."""

    async def close_after(request: Played) -> None:
        await request.say(GOOD)
        request.writer.close()

    async with pooled(close_after) as (made, servers):
        await made.send(1, REST)
        await servers[0].closed.wait()
        await until(lambda: repr(made).startswith("<Pool 0 calls, 0 idle"))

        assert (await made.send(2, REST)).resent is False


async def test_hanging_up_closes_the_connection_and_keeps_what_came() -> None:
    """The server would go on computing without a client, and the tokens so far would be lost."""
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nsome"

    async def some(request: Played) -> None:
        await request.say(head)
        await request.reader.read()

    async with pooled(some) as (made, servers):
        future = made.send(1, REST)
        await until(lambda: made._calls[1].answer.data)
        made.hang_up(1, "cancelled", "the run was stopped")
        made.hang_up(1, "cancelled", "twice does nothing")
        made.hang_up(7, "cancelled", "the test ended it")
        await servers[0].closed.wait()
        answer = await future

    assert ("cancelled", "the run was stopped", [head]) == (answer.how, answer.why, answer.data)


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        (Limits(total_s=0.05), "no end within 0.05 s"),
        (Limits(first_token_s=0.05), "no first token within 0.05 s"),
        (Limits(idle_s=0.05), "nothing came for 0.05 s"),
    ],
)
async def test_a_limit_that_passes_ends_the_request(limits: Limits, why: str) -> None:
    """A server that never answers would hold the run for ever."""
    async with pooled(silent, limits) as (made, _):
        answer = await made.send(1, REST)

    assert ("timeout", why) == (answer.how, answer.why)
    assert answer.sent_s is not None and answer.ended_s - answer.sent_s >= 0.05


async def test_a_first_token_in_time_lifts_the_limit_on_it() -> None:
    """A long answer would be cut off by the limit on its beginning."""
    looked: list[int] = []

    async def slow(request: Played) -> None:
        await request.say(GOOD[:-1])
        await until(lambda: looked)
        await asyncio.sleep(0.1)
        await request.say(GOOD[-1:])

    def started(answer: Answer) -> bool:
        looked.append(len(answer.data))
        return True

    async with pooled(slow, Limits(first_token_s=0.5), started=started) as (made, _):
        answer = await made.send(1, REST)

    assert ("complete", 1) == (answer.how, len(looked))


async def test_a_server_that_takes_no_connection_ends_in_a_timeout() -> None:
    """A full backlog would hold the run for ever."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        made = ConnectionPool([target_of(listener.getsockname()[1])], Limits(connect_s=0.1))
        try:
            answer = await made.send(1, REST)
        finally:
            made.close()
            for filler in fillers:
                filler.close()

    assert ("timeout", "no connection within 0.1 s", None) == (answer.how, answer.why, answer.sent_s)


async def test_an_answer_whose_end_stands_before_foreign_bytes_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that writes more than its framing allows would hold each request until the time limit."""
    monkeypatch.setattr(pool, "QUIET_S", 0.05)

    async def more(request: Played) -> None:
        await request.say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await asyncio.sleep(0.02)
        await request.say(b"2\r\nok\r\n0\r\n\r\nand more")
        await asyncio.sleep(60)

    async with pooled(more) as (made, _):
        answer, shown = await made.send(1, REST), repr(made)

    assert "complete" == answer.how
    assert "<Pool 0 calls, 0 idle, 0 connecting>" == shown


async def test_done_ends_a_stream_whose_framing_the_server_never_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server without a last chunk would hold each request until the time limit."""
    monkeypatch.setattr(pool, "QUIET_S", 0.05)

    async def open_end(request: Played) -> None:
        await request.say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\ne\r\ndata: [DONE]\n\n\r\n")
        await asyncio.sleep(60)

    async with pooled(open_end) as (made, _):
        assert "closed" == (await made.send(1, REST)).how


# Several servers


async def test_round_robin_gives_each_server_its_turn_by_the_number_of_the_request() -> None:
    """The share of a server would depend on the number of senders."""
    async with pooled([good] * 3) as (made, servers):
        await asyncio.gather(*(made.send(k, REST) for k in range(8)))

        assert [3, 3, 2] == [len(server.seen) for server in servers]


async def test_least_outstanding_spares_the_server_that_is_slow() -> None:
    """Requests would queue at one server while the other has nothing to do."""
    async with pooled([silent, good], route="least-outstanding") as (made, servers):
        slow = made.send(0, REST)
        for k in range(1, 7):
            await made.send(k, REST)
        made.hang_up(0, "cancelled", "enough")
        await slow

        assert [1, 6] == [len(server.seen) for server in servers]


async def test_a_refused_request_is_not_sent_to_another_server() -> None:
    """A retry that was not requested would hide that a server refuses."""

    async def busy(request: Played) -> None:
        await request.say(BUSY)

    async with pooled([busy, good]) as (made, servers):
        assert (b"busy", 0) == (b"".join((await made.send(0, REST)).data)[-4:], len(servers[1].seen))


# Connections ahead of the run


async def test_connections_are_open_before_the_first_request_and_a_spare_one_is_kept() -> None:
    """The first requests of a run would pay for connecting."""
    async with pooled(good) as (made, servers):
        await made.warm(5)
        made.spare = 1
        waited = [a.connect_s for a in await asyncio.gather(*(made.send(k, REST) for k in range(5)))]
        await until(lambda: servers[0].connections >= 6)

        assert ([None] * 5, 6) == (waited, servers[0].connections)


async def test_a_spare_connection_replaces_those_that_grew_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a low rate every request would pay for connecting."""
    monkeypatch.setattr(pool, "MAX_IDLE_S", 0.02)
    monkeypatch.setattr(target, "SWEEP_S", 0.01)

    async with pooled(good) as (made, servers):
        made.spare = 1
        await until(lambda: servers[0].connections >= 3)

        assert 3 <= servers[0].connections


async def test_opening_connections_to_a_closed_port_ends() -> None:
    """A run against a server that is down would not even begin to fail."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    made = ConnectionPool([target_of(port)])
    try:
        async with asyncio.timeout(120):
            await made.warm(10)
        made.check()
        result = repr(made)
    finally:
        made.close()

    assert "<Pool 0 calls, 0 idle, 0 connecting>" == result


async def test_what_comes_back_can_be_sent_to_another_process() -> None:
    """A sender could not hand its answers to the process that reads them."""
    async with pooled(good) as (made, _):
        answer = await made.send(1, REST)
    again = pickle.loads(pickle.dumps(answer))  # noqa: S301

    assert answer == again


def test_open_files_are_allowed_as_far_as_the_machine_goes() -> None:
    """A run with many streams would fail half-way for want of files."""
    allowed = target.allow_open_files(1)

    assert allowed == target.allow_open_files(1)
    assert allowed <= target.allow_open_files(allowed + 1)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(["good", "close", "reset", "half", "last", "hang", "busy"]), min_size=1, max_size=12))
def test_every_request_ends_once_and_every_connection_is_accounted_for(script: list[str]) -> None:
    """Some mixture of failures would lose a request, or leak connections until none is left."""
    numbers: list[str] = []

    async def play(request: Played) -> None:
        what = script[len(numbers) % len(script)]
        numbers.append(what)
        if what == "good":
            await request.say(GOOD)
        elif what == "busy":
            await request.say(BUSY)
        elif what == "half":
            await request.say(GOOD[:-1])
            request.writer.close()
        elif what == "last":
            await request.say(GOOD.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
            request.writer.close()
        elif what == "reset":
            request.reset()
        elif what == "close":
            request.writer.close()
        else:
            await asyncio.sleep(60)

    answers: list[Answer] = []

    async def use() -> None:
        async with pooled([play, play], Limits(total_s=0.3), route="least-outstanding") as (made, _):
            for start in range(0, len(script), 3):
                sent = [made.send(k, REST) for k in range(start, min(start + 3, len(script)))]
                await asyncio.sleep(0.002)
                made.check()
                for k in range(start, start + 3):
                    if start % 2:
                        made.hang_up(k, "cancelled", "on a whim")
                answers.extend(await asyncio.gather(*sent))
                made.check()

    asyncio.run(use())

    assert len(script) == len(answers)
    assert {a.how for a in answers} <= {"complete", "closed", "reset", "timeout", "cancelled"}


TIMED_OUT = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 2\r\n\r\n{}"


@pytest.mark.parametrize("left", [TIMED_OUT, b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nlies", None], ids=str)
async def test_what_lies_in_an_idle_connection_is_no_answer_to_the_next_request(left: bytes | None) -> None:
    """A 408 to no request would be the next answer, and each answer that of the request before it."""
    sockets = []

    async def play(request: Played) -> None:
        sockets.append(request.writer.get_extra_info("socket"))
        await request.say(GOOD)

    async with pooled(play) as (made, servers):
        first = await made.send(1, REST)
        if left is None:
            sockets[0].shutdown(socket.SHUT_WR)
        else:
            os.write(sockets[0].fileno(), left)
        second = await made.send(2, REST)  # the event loop has not turned: only the kernel knows
        answers, seen = [first, second, await made.send(3, REST)], servers[0].seen

    assert [[GOOD]] * 3 == [answer.data for answer in answers]
    assert [(0, 0), (1, 0), (1, 1)] == seen
    assert [False] * 3 == [answer.resent for answer in answers]


async def test_a_request_that_crossed_a_408_is_sent_again_once() -> None:
    """The server closed an idle connection while the request was under way, and never saw it."""

    async def play(request: Played) -> None:
        await request.say(GOOD if request.nth == 0 and request.connection < 2 else TIMED_OUT)

    async with pooled(play) as (made, servers):
        answers, seen = [await made.send(i, REST) for i in range(4)], servers[0].seen

    assert [[GOOD], [GOOD], [TIMED_OUT], [TIMED_OUT]] == [answer.data for answer in answers]
    assert [False, True, True, True] == [answer.resent for answer in answers]
    assert [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0)] == seen

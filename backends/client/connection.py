"""One connection to a server: a request goes out in one write, and every read is kept with the time of its arrival.

Connections are driven by their own epoll object, which is a single file for the event loop: a read costs one system
call and one Python call, and a wake-up handles at most `BATCH` of them, so that departures are not late.
"""

from __future__ import annotations

import asyncio
import errno
import math
import os
import select
import socket
import ssl
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from backends.client.answer import Answer, How
from backends.client.framing import BadFraming, Framing
from backends.client.stamps import CONTROL_BYTES, MAX_AGE_S, STAMP, Clock, stamped_socket

BATCH = 16
"""Events handled in one wake-up: about 0.4 ms, after which the event loop looks at departures again."""
READ_BYTES = 65536
READ, WRITE = 1, 4
"""EPOLLIN and EPOLLOUT; errors and hang-ups (8, 16) are seen by reading."""

Stage = Literal["new", "connecting", "tunnel", "handshake", "open", "closed"]
SocketAddress = tuple[str, int] | tuple[str, int, int, int]
Control = Sequence[tuple[int, int, bytes]]
_unpack = STAMP.unpack
_TCP_INFO = struct.Struct("=100xI32xI")
"""struct tcp_info of linux/tcp.h: tcpi_total_retrans at byte 100, tcpi_segs_out at byte 136."""
_MAY_WANT = "it may want a certificate of the client (client_cert=FILE)"
_NO_ROOM = {
    errno.EADDRNOTAVAIL: "no local port is left; lower --rate, or send from several addresses",
    errno.EMFILE: "too many open files; raise the limit with 'ulimit -n'",
}


@dataclass(frozen=True, slots=True)
class Peer:
    """Where a connection goes: the addresses to try in turn, and what must happen before the first request.

    `tunnel` is what a proxy is told first (CONNECT); `server_name` is what a certificate must name, with `tls`.
    """

    addresses: Sequence[tuple[int, SocketAddress]]
    name: str
    tls: ssl.SSLContext | None = None
    server_name: str | None = None
    tunnel: bytes | None = None


@dataclass(slots=True, eq=False)
class Call:
    """A request under way: what goes out for it, what has come, and who waits for the end."""

    request_id: int
    rest: bytes
    future: asyncio.Future[Answer]
    asked_s: float  # monotonic, when its fetch began
    answer: Answer = field(default_factory=Answer)
    connection: Connection | None = None
    target: int = 0
    refused_by: tuple[int, ...] = ()
    heard_s: float = 0.0  # of the run: when the last bytes were read, or the request was sent
    started: bool = False  # a first token is known to be among the reads


@dataclass(slots=True)
class Wire:
    """What TCP did for all closed connections of a process; zero where the system does not tell."""

    segments: int = 0
    retransmits: int = 0

    def count(self, sock: socket.socket) -> None:
        """Add what this connection sent; to be called before it is closed."""
        try:
            info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
            retransmits, segments = _TCP_INFO.unpack(info)
        except (OSError, AttributeError, struct.error):
            return
        self.segments += segments
        self.retransmits += retransmits


class Owner(Protocol):
    """What a connection tells its pool."""

    def opened(self, connection: Connection) -> None:
        """It can be sent to."""
        ...

    def ended(self, connection: Connection, how: How, why: str | None) -> None:
        """Its call has ended, or it was lost: connecting, idle, or under way. `connection.call` tells."""
        ...


class Poller(Protocol):
    """Tells connections that their sockets are ready."""

    clock: Clock

    def watch(self, connection: Connection, events: int) -> None:
        """From now on call `connection.ready(events)`; `events` is READ or READ | WRITE."""
        ...

    def change(self, connection: Connection, events: int) -> None:
        """Watch for other events."""
        ...

    def drop(self, connection: Connection) -> None:
        """Stop watching, and close the socket as soon as no event of it can be pending."""
        ...

    def close(self) -> None:
        """Let go of the event loop."""
        ...


class EpollPoller:
    """An epoll object of its own, seen by the event loop as one readable file."""

    __slots__ = ("_awake", "_by_fd", "_closing", "_epoll", "_loop", "clock")

    def __init__(self, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self.clock = clock
        self._loop = loop
        self._awake = False
        self._epoll = select.epoll()
        self._by_fd: dict[int, Connection] = {}
        self._closing: list[socket.socket] = []
        loop.add_reader(self._epoll.fileno(), self._wake)

    def __repr__(self) -> str:
        return f"<EpollPoller {len(self._by_fd)} connections>"

    def watch(self, connection: Connection, events: int) -> None:
        """See `Poller`."""
        self._by_fd[connection.fd] = connection
        self._epoll.register(connection.fd, events)

    def change(self, connection: Connection, events: int) -> None:
        """See `Poller`."""
        self._epoll.modify(connection.fd, events)

    def drop(self, connection: Connection) -> None:
        """See `Poller`. In a wake-up it is closed last: its number, given out again, would get its events."""
        if self._by_fd.pop(connection.fd, None) is not None and not self._epoll.closed:
            self._epoll.unregister(connection.fd)
        if self._awake:
            self._closing.append(connection.sock)
        else:
            connection.sock.close()

    def close(self) -> None:
        """See `Poller`."""
        if not self._epoll.closed:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()

    def _wake(self) -> None:
        events = self._epoll.poll(0, BATCH)
        self.clock.sample()
        by_fd = self._by_fd
        self._awake = True
        try:
            for fd, what in events:
                connection = by_fd.get(fd)
                if connection is not None:
                    connection.ready(what)
        except Exception as error:  # noqa: BLE001  # a bug of ours: it ends this request, and no other waits for ever
            assert connection is not None
            connection.fail(f"{type(error).__name__}: {error}")
        finally:
            self._awake = False
        while self._closing:
            self._closing.pop().close()
        if len(events) < BATCH and not self.clock.trusted:
            self.clock.caught_up()


class LoopPoller:
    """The same by the event loop's own selector, where there is no epoll."""

    __slots__ = ("_loop", "_writing", "clock")

    def __init__(self, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self.clock = clock
        self._loop = loop
        self._writing: set[int] = set()

    def watch(self, connection: Connection, events: int) -> None:
        """See `Poller`."""
        self._loop.add_reader(connection.fd, self._ready, connection, READ)
        self.change(connection, events)

    def change(self, connection: Connection, events: int) -> None:
        """See `Poller`."""
        if events & WRITE and connection.fd not in self._writing:
            self._writing.add(connection.fd)
            self._loop.add_writer(connection.fd, self._ready, connection, WRITE)
        elif not events & WRITE and connection.fd in self._writing:
            self._writing.discard(connection.fd)
            self._loop.remove_writer(connection.fd)

    def drop(self, connection: Connection) -> None:
        """See `Poller`."""
        self.change(connection, READ)
        self._loop.remove_reader(connection.fd)
        connection.sock.close()

    def close(self) -> None:
        """See `Poller`."""

    def _ready(self, connection: Connection, what: int) -> None:
        self.clock.sample()
        try:
            connection.ready(what)
        except Exception as error:  # noqa: BLE001  # as above
            connection.fail(f"{type(error).__name__}: {error}")
        self.clock.caught_up()


def poller(clock: Clock, loop: asyncio.AbstractEventLoop) -> Poller:
    """The best way of this system to watch many sockets."""
    return EpollPoller(clock, loop) if hasattr(select, "epoll") else LoopPoller(clock, loop)


class Connection:
    """A connection from its opening to its end; it serves one call at a time.

    `answers` counts the calls it has served to their end, `idle_since_s` (monotonic) is when the last one ended.
    """

    __slots__ = ("_address", "_clock", "_framing", "_last_s", "_out", "_owner", "_poller", "_recvmsg", "_tls",
                 "_tls_in", "_tls_out", "_tunnel", "_wire", "_writing", "answers", "began_s", "call", "fd",
                 "idle_since_s", "opened_s", "peer", "sock", "stage", "target")  # fmt: skip

    def __init__(self, peer: Peer, target: int, owner: Owner, poller: Poller, wire: Wire) -> None:
        self.peer = peer
        self.target = target
        self._owner = owner
        self._poller = poller
        self._clock = poller.clock
        self._wire = wire
        self.call: Call | None = None
        self.answers = 0
        self.began_s = time.monotonic()
        self.opened_s = 0.0
        self.idle_since_s = 0.0
        self._last_s = float("-inf")
        self._framing = Framing()
        self._out = b""
        self._writing = False
        self._tunnel = b""
        self._tls: ssl.SSLObject | None = None
        self._address = 0
        self.stage: Stage = "new"

    def __repr__(self) -> str:
        doing = f"request {self.call.request_id}" if self.call else "idle"
        return f"<Connection to {self.peer.name}, {self.stage}, {doing}, {self.answers} answers>"

    def dial(self) -> None:
        """Begin to connect to the next address; the owner hears how it went, never before this returns."""
        family, address = self.peer.addresses[self._address]
        self.stage = "connecting"
        try:
            self.sock, _ = stamped_socket(family)
            self.fd = self.sock.fileno()
            self._recvmsg = self.sock.recvmsg
            code = self.sock.connect_ex(address)
        except OSError as error:  # no file is left, or no such family of addresses
            code = error.errno or errno.EIO
        if code in (0, errno.EINPROGRESS):
            self._writing = True
            self._poller.watch(self, READ | WRITE)
        else:
            asyncio.get_running_loop().call_soon(self._not_connected, code)

    def send(self, call: Call, first: bytes) -> None:
        """Write the request of `call`, or as much of it as the kernel takes; the rest follows as room comes free."""
        answer = call.answer
        self.call = call
        call.connection = self
        self._framing = Framing()
        now_s = time.monotonic() - self._clock.epoch_s
        if answer.sent_s is None:
            answer.sent_s = now_s
        call.heard_s = now_s
        self._last_s = max(self._last_s, now_s)
        if self._tls is not None:
            self._tls.write(first + call.rest)
            self._push()
            return
        try:
            written = self.sock.sendmsg((first, call.rest))
        except BlockingIOError:
            written = 0
        except OSError as error:
            self._broken(error)
            return
        if written == len(first) + len(call.rest):
            answer.written_s = time.monotonic() - self._clock.epoch_s
        else:
            self._out = (first + call.rest)[written:]
            self._want_write(True)

    def close(self) -> None:
        """Hang up. Nobody is told."""
        if self.stage != "closed":
            self.stage = "closed"
            self._hang_up()

    def _hang_up(self) -> None:
        if hasattr(self, "sock"):
            self._wire.count(self.sock)
            self._poller.drop(self)

    def _want_write(self, wanted: bool) -> None:
        if wanted != self._writing:
            self._writing = wanted
            self._poller.change(self, READ | WRITE if wanted else READ)

    def ready(self, events: int) -> None:
        """The socket can be read or written, or is broken."""
        if self.stage == "open":
            if events != READ and events & WRITE:
                self._flush()
            if events & ~WRITE and self.stage == "open":
                self._read()
        elif self.stage == "connecting":
            self._connected()
        elif self.stage != "closed":
            if events & WRITE and self._out:
                self._flush()
            if self.stage == "tunnel":
                self._read_tunnel()
            elif self.stage == "handshake":
                self._read()

    def _read(self) -> None:
        """One read: the hot path. Level-triggered, so what is left is announced again."""
        try:
            data, control, _, _ = self._recvmsg(READ_BYTES, CONTROL_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._broken(error)
            return
        read_s = time.monotonic() - self._clock.epoch_s
        if self._tls is not None:
            self._read_tls(data, control, read_s)
        elif data:
            self._keep(data, control, read_s)
        else:
            self._end_of_stream()

    def _keep(self, data: bytes, control: Control, read_s: float) -> None:
        """Keep what was read with the time of its arrival, and see whether it may be the end of the answer.

        The kernel's stamp is not believed when it is missing, taken around a step of the clock, earlier than the one
        before it on this connection, later than the reading, or more than a second older.
        """
        call = self.call
        if call is None:  # nobody asked: a server that gives up on an idle connection may say so first
            self._lose("closed", None)
            return
        answer = call.answer
        clock = self._clock
        stamp_s = math.nan
        if control and clock.trusted:  # Note: written out here, because it is done for every token
            seconds, nanoseconds = _unpack(control[0][2])
            stamp_s = seconds - clock.base_s + nanoseconds * 1e-9 - clock.shift_s
        if not self._last_s <= stamp_s <= read_s <= stamp_s + MAX_AGE_S:
            stamp_s = read_s
            answer.process_stamps += 1
        self._last_s = stamp_s
        call.heard_s = read_s
        answer.data.append(data)
        answer.stamp_s.append(stamp_s)
        answer.read_s.append(read_s)
        framing = self._framing
        if not framing.quiet or framing.may_end(answer.data):
            self._look()

    def _look(self) -> None:
        """See whether the answer has ended."""
        call = self.call
        assert call is not None
        try:
            done = self._framing.take(call.answer.data)
        except BadFraming as error:
            self._lose("failed", f"the answer {error}")
            return
        if done:
            self._complete()

    def fail(self, why: str) -> None:
        """End whatever this connection is doing."""
        self._lose("failed", why)

    def look_again(self) -> None:
        """The answer has been silent: see whether its end was overlooked because other bytes came after it."""
        if self.call is not None and self.call.answer.data and self.stage == "open":
            self._look()

    @property
    def http_status(self) -> int | None:
        """Status of the answer that is coming or came last."""
        return self._framing.status

    def _complete(self) -> None:
        self.answers += 1
        self.idle_since_s = time.monotonic()
        if not self._framing.keep or self._out:
            self.close()
        self._owner.ended(self, "complete", None)

    def _end_of_stream(self) -> None:
        """The server has closed; the reads that were not looked at may hold the end of the answer."""
        if self.call is not None and self.call.answer.data:
            self._framing.keep = False
            self._look()
        elif self.call is not None and self._tls is not None and not self.answers:
            # Note: in TLS 1.3 a server refuses our certificate after we think that the connection is open
            self._lose("failed", f"{self.peer.name} closed the secure connection without a word; {_MAY_WANT}")
        self._lose("closed", None)

    def _lose(self, how: How, why: str | None) -> None:
        if self.stage != "closed":
            self.close()
            self._owner.ended(self, how, why)

    def _broken(self, error: OSError) -> None:
        text = os.strerror(error.errno) if error.errno else str(error)
        if isinstance(error, ConnectionResetError | BrokenPipeError):
            self._lose("reset", f"{self.peer.name}: {text}")
        else:
            self._lose("failed", f"{self.peer.name}: {text}")

    def _flush(self) -> None:
        """Write what is pending; when all of it is with the kernel, the request has been written."""
        try:
            sent = self.sock.send(self._out) if self._out else 0
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self._broken(error)
            return
        self._out = self._out[sent:]
        self._want_write(bool(self._out))
        if not self._out and self.stage == "open" and self.call is not None and self.call.answer.written_s is None:
            self.call.answer.written_s = time.monotonic() - self._clock.epoch_s

    def _connected(self) -> None:
        code = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._not_connected(code)
        elif self.peer.tunnel is not None:
            self.stage = "tunnel"
            self._out = self.peer.tunnel
            self._flush()
        else:
            self._secure()

    def _not_connected(self, code: int) -> None:
        """This address takes no connection: try the next one, if there is one."""
        if self.stage != "connecting":
            return
        if self._address + 1 < len(self.peer.addresses):
            self._hang_up()
            self._address += 1
            self.dial()
        else:
            self._lose("refused", f"no connection to {self.peer.name}: {_NO_ROOM.get(code, os.strerror(code))}")

    def _read_tunnel(self) -> None:
        """The proxy's answer to CONNECT; anything but a success ends the connection."""
        try:
            data = self.sock.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._broken(error)
            return
        self._tunnel += data
        head, end, _ = self._tunnel.partition(b"\r\n\r\n")
        line = head.partition(b"\r\n")[0].decode("latin-1")[:100]
        if end and line.split(" ")[1:2] == ["200"]:
            self._secure()
        elif end or not data:
            said = f"answered '{line}'" if line else "closed the connection"
            self._lose("refused", f"no connection to {self.peer.name}: the proxy {said}")

    def _secure(self) -> None:
        if self.peer.tls is None:
            self._open()
            return
        self.stage = "handshake"
        self._tls_in, self._tls_out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = self.peer.tls.wrap_bio(self._tls_in, self._tls_out, server_hostname=self.peer.server_name)
        self._shake()

    def _shake(self) -> None:
        assert self._tls is not None
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._push()
        except (ssl.SSLError, ssl.CertificateError) as error:
            self._push()
            if self.stage != "closed":
                self._lose("failed", f"no secure connection to {self.peer.name}: {_ssl_text(error)}")
        else:
            self._push()
            if self.stage != "closed":
                self._open()

    def _push(self) -> None:
        """Send what TLS wants to say; a request being written stays before it."""
        if data := self._tls_out.read():
            self._out += data
            self._flush()

    def _read_tls(self, data: bytes, control: Control, read_s: float) -> None:
        """All that these bytes make readable arrived with them."""
        if not data:
            self._end_of_tls("closed", "it was closed while it was opened")
            return
        self._tls_in.write(data)
        if self.stage == "handshake":
            self._shake()
        if self.stage != "open":
            return
        plain, ended = self._decrypt()
        self._push()
        if plain and self.stage == "open":
            self._keep(plain, control, read_s)
        if ended and self.stage == "open":
            self._end_of_tls(*ended)

    def _decrypt(self) -> tuple[bytes, tuple[How, str | None] | None]:
        """What can be read now, and how TLS says that it ended, if it does."""
        assert self._tls is not None
        parts: list[bytes] = []
        try:
            while part := self._tls.read(READ_BYTES):
                parts.append(part)
        except ssl.SSLWantReadError:
            return b"".join(parts), None
        except ssl.SSLZeroReturnError:
            pass
        except ssl.SSLError as error:
            return b"".join(parts), ("failed", _ssl_text(error))
        return b"".join(parts), ("closed", None)

    def _end_of_tls(self, how: How, why: str | None) -> None:
        if self.stage == "open" and how == "closed":
            self._end_of_stream()
        else:
            self._lose("failed", f"no secure connection to {self.peer.name}: {why}")

    def _open(self) -> None:
        self.stage = "open"
        self.opened_s = self.idle_since_s = time.monotonic()
        self._want_write(bool(self._out))
        self._owner.opened(self)


def _ssl_text(error: Exception) -> str:
    """What OpenSSL says, without the numbers of its source lines."""
    verify = getattr(error, "verify_message", None)
    return str(verify or getattr(error, "reason", None) or error)

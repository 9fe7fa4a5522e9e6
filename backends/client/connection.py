"""One connection to a server: a request goes out in one write, and every read is kept with the time of its arrival.

What comes back is left unread: bytes with the times of their arrival, and how the answer ended.
"""

from __future__ import annotations

import asyncio
import errno
import os
import select
import socket
import struct
import sys
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from backends.client import reads
from backends.client.framing import BadFraming, Framing
from backends.client.reads import CONTROL_BYTES, EMPTY, ENDED, LOOK, READ, READ_BYTES, WRITE, stamped_s
from backends.client.stamps import Poller, stamped_socket
from backends.client.target import Limits, NotSecureError, Peer, Secure

if TYPE_CHECKING:
    from backends.client.pool import ConnectionPool

    Doubles = array[float]
else:
    Doubles = array  # takes no parameter before Python 3.12; the class is read by what decodes it

How = Literal["complete", "closed", "reset", "refused", "failed", "timeout", "cancelled", "oversized"]
"""How an answer ended on the wire.

`complete`: its framing says that all of it came. `closed`: the server closed the connection (the end of an answer
without a length, or an answer cut short: the reader tells). `reset`: the connection broke. `refused`: no connection
could be opened. `failed`: anything else that kept us from sending or receiving, such as a certificate. `timeout` and
`cancelled`: we hung up. `oversized`: we did too, because more came than an answer may have; its first read is left.
"""


_TCP_INFO = struct.Struct("=100xI32xI")
"""struct tcp_info of linux/tcp.h: tcpi_total_retrans at byte 100, tcpi_segs_out at byte 136."""
OK = 200
Stage = Literal["new", "connecting", "tunnel", "handshake", "open", "closed"]
Control = Sequence[tuple[int, int, bytes]]
_MAY_WANT = "it may want a certificate of the client (client_cert=FILE)"
_BIND_ADDRESS_NO_PORT = 24
"""Of <linux/in.h>."""
_NO_ROOM = {
    errno.EADDRNOTAVAIL: "no local port is left; lower --rate, or send from several addresses (source=A|B)",
    errno.EMFILE: "too many open files; raise the limit with 'ulimit -n'",
}


@dataclass(slots=True)
class Answer:
    """The reads of one answer, in order. Times are in seconds of the run (`time.monotonic() - epoch_s`).

    Read i brought `data[i]` (decrypted, headers and framing included), which arrived at `stamp_s[i]` and was read at
    `read_s[i]`; `process_stamps` of the stamps are times of reading, because the kernel's were implausible.
    `sent_s` is just before the first write of the request, None when it never left; `written_s` when its last byte
    was handed to the kernel. `connect_s` is how long the request waited for a connection, None when one was open.
    `why` is the reason in words wherever `how` is not `complete` or `closed`.
    """

    sender: int = 0
    address: str = ""
    sent_s: float | None = None
    written_s: float | None = None
    connect_s: float | None = None
    resent: bool = False
    ended_s: float = 0.0
    how: How = "complete"
    why: str | None = None
    data: list[bytes] = field(default_factory=list)
    stamp_s: Doubles = field(default_factory=lambda: array("d"))
    read_s: Doubles = field(default_factory=lambda: array("d"))
    process_stamps: int = 0


@dataclass(slots=True, eq=False)
class Call:
    """A request in flight: bytes to send, bytes received, and the future of its end."""

    request_id: int
    rest: bytes
    future: asyncio.Future[Answer]
    requested_s: float  # monotonic, when its fetch began
    answer: Answer = field(default_factory=Answer)
    connection: Connection | None = None
    target: int = 0
    most_bytes: int = 0  # that the answer may have
    reads: reads.Reads | None = None  # of its answer, from when it is sent
    started: bool = False  # a first token is known to be among the reads

    @property
    def last_read_s(self) -> float:
        """When the last bytes were read, or the request was sent; seconds of the run."""
        return 0.0 if self.reads is None else self.reads.last_read_s


@dataclass(slots=True)
class Wire:
    """What TCP did for all closed connections of a process; zero where the system does not report it."""

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


class Connection:
    """A connection from its opening to its end; it serves one call at a time.

    `answers` counts the calls it has served to their end, `idle_since_s` (monotonic) is when the last one ended.
    """

    __slots__ = ("_address", "_clock", "_framing", "_limits", "_out", "_owner", "_poller", "_recvmsg",
                 "_tls", "_tunnel", "_unread", "_wire", "_writing", "answers", "began_s", "call", "fd",
                 "idle_since_s", "opened_s", "peer", "reads", "sock", "stage", "target")  # fmt: skip

    def __init__(
        self, peer: Peer, target: int, owner: ConnectionPool, poller: Poller, wire: Wire, limits: Limits
    ) -> None:
        self.peer = peer
        self.target = target
        self._owner = owner
        self._poller = poller
        self._clock = poller.clock
        self._wire = wire
        self._limits = limits
        self._unread = select.poll()
        self.call: Call | None = None
        self.answers = 0
        self.began_s = time.monotonic()
        self.opened_s = 0.0
        self.idle_since_s = 0.0
        self.reads: reads.Reads | None = None  # of the call under way, or of the last one
        self._framing = Framing()
        self._out = b""
        self._writing = False
        self._tunnel = b""
        self._tls: Secure | None = None
        self._address = 0
        self.stage: Stage = "new"

    def dial(self) -> None:
        """Begin to connect to the next address; the owner is notified of the result, never before this returns."""
        family, address = self.peer.addresses[self._address]
        self.stage = "connecting"
        try:
            self.sock, _ = stamped_socket(family)
            self.fd = self.sock.fileno()
            if (sources := self.peer.sources.get(family)) is not None:
                if sys.platform == "linux":  # the port is chosen by connect, which knows those that are free to there
                    self.sock.setsockopt(socket.IPPROTO_IP, _BIND_ADDRESS_NO_PORT, 1)
                self.sock.bind((next(sources), 0))
            self._recvmsg = self.sock.recvmsg
            code = self.sock.connect_ex(address)
        except OSError as error:  # no file is left, or no such family of addresses
            code = error.errno or errno.EIO
        if code in (0, errno.EINPROGRESS):
            self._writing = True
            self._poller.watch(self, READ | WRITE)
        else:
            asyncio.get_running_loop().call_soon(self._not_connected, code)

    def usable(self) -> bool:
        """Whether this idle connection is still good; what lies in it unread came before any request, so is no answer.

        One system call of about a microsecond: the event loop may not have come to what arrived since its last turn.
        """
        if self._unread.poll(0):
            self._read()  # ends the connection, unless TLS has something to say to itself
            if self.stage == "open" and self._unread.poll(0):
                self._lose("closed", None)
        return self.stage == "open"

    def send(self, call: Call, first: bytes) -> None:
        """Write the request of `call`, or as much of it as the kernel takes; the rest follows as room comes free."""
        answer = call.answer
        self.call = call
        call.connection = self
        self._framing = Framing(self._limits.head_bytes)
        # Before the system call: what it takes is part of TTFT. A request that is sent again keeps its first time,
        # because its user has waited since then.
        now_s = time.monotonic() - self._clock.epoch_s
        if answer.sent_s is None:
            answer.sent_s = now_s
        last_s = now_s if self.reads is None else max(self.reads.last_stamp_s, now_s)
        room_bytes = min(call.most_bytes, self._limits.event_bytes)  # up to this size no event can be too large
        self.reads = call.reads = reads.Reads(self._recvmsg, self.fd, answer.data, last_s, room_bytes)
        call.reads.last_read_s = now_s
        if self._tls is None:
            self._poller.follow(self.fd, call.reads)
        if self._tls is not None:
            self._tls.encrypt(first + call.rest)
            self._push(self._tls)
            return
        try:
            written = self.sock.sendmsg((first, call.rest))
        except BlockingIOError:
            written = 0
        except OSError as error:
            self._out = first + call.rest
            self._broken(error)
            return
        if written == len(first) + len(call.rest):
            answer.written_s = time.monotonic() - self._clock.epoch_s
        else:
            self._out = (first + call.rest)[written:]
            self._want_write(True)

    def close(self) -> None:
        """Close the connection without notifying the owner."""
        if self.stage != "closed":
            self.stage = "closed"
            self._hang_up()

    def _hang_up(self) -> None:
        if hasattr(self, "sock"):
            self._wire.count(self.sock)
            self._poller.drop(self)

    def _want_write(self, wanted: bool) -> None:
        # Only while something is left to write: a socket can be written nearly always, and would wake the loop each
        # time.
        if wanted != self._writing:
            self._writing = wanted
            self._poller.change(self, READ | WRITE if wanted else READ)

    def ready(self, events: int) -> None:
        """The socket can be read or written, or is broken."""
        if self.stage == "open":
            if events & ~WRITE:  # first: a server may refuse a request before it has all of it, and hang up
                self._read()
            if events != READ and events & WRITE and self.stage == "open":
                self._flush()
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
        """One read, where it is not made while the loop waits (`reads.wait`)."""
        clock = self._clock
        if self.call is not None and self.call.reads is not None and self._tls is None:
            self.took(self.call.reads.receive(clock.base_s, clock.believed_s, clock.epoch_s))
            return
        try:
            data, control, _, _ = self._recvmsg(READ_BYTES, CONTROL_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._broken(error)
            return
        read_s = time.monotonic() - clock.epoch_s
        if self._tls is not None:
            self._read_tls(self._tls, data, control, read_s)
        elif data:
            self._keep(data, control, read_s)
        else:
            self._end_of_stream()

    def _keep(self, data: bytes, control: Control, read_s: float) -> None:
        """Keep what was read with the time of its arrival, and see whether it may be the end of the answer."""
        if self.call is None or self.call.reads is None:
            self._lose("closed", None)  # a server may send a notice before it closes an idle connection
        else:
            stamp_s = stamped_s(control, self._clock.base_s, self._clock.believed_s)
            self.took(self.call.reads.keep(data, stamp_s, read_s))

    def took(self, came: int) -> None:
        """A read of the answer under way was made."""
        call = self.call
        assert call is not None and call.reads is not None
        if came == LOOK and call.reads.size_bytes > call.most_bytes:
            self._give_up(call, f"the answer is larger than {call.most_bytes:,} bytes (max_body_bytes)")
        elif came == LOOK:
            self._look()
            if call.reads.size_bytes > call.reads.room_bytes and self.call is call:
                self._measure(call)
        elif came == ENDED:
            self._end_of_stream()
        elif came < 0:
            self._broken(OSError(-came, os.strerror(-came)))

    def _look(self) -> None:
        """See whether the answer has ended."""
        call = self.call
        assert call is not None and call.reads is not None
        try:
            done = self._framing.take(call.answer.data, call.reads.whole)
        except BadFraming as error:
            self._lose("failed", f"the answer {error}")
            return
        call.reads.quiet, call.reads.between = self._framing.quiet, self._framing.between
        call.reads.whole = call.reads.unlooked = 0
        if self._framing.status == OK:
            call.rest = b""  # it will not be sent again; 2,000 prompts of 100,000 tokens under way are 1 GB
        if done:
            self._complete()

    def _measure(self, call: Call) -> None:
        """Give the answer up if its newest event is too large; else find out at which size to look again."""
        reads, most, behind = call.answer.data, self._limits.event_bytes, 0
        assert call.reads is not None
        if not self._framing.events:
            call.reads.room_bytes = call.most_bytes
            return
        for i in range(len(reads) - 1, -1, -1):
            piece = reads[i - 1][-1:] + reads[i] if i else reads[i]
            end = max(piece.rfind(b"\n\n"), piece.rfind(b"\n\r"), piece.rfind(b"\r\r"))  # any two line ends
            behind += len(piece) - end if end >= 0 else len(reads[i])
            if end >= 0 or behind > most:
                break
        if behind > most:
            self._give_up(call, f"an event of the answer is larger than {most:,} bytes (max_event_bytes)")
        call.reads.room_bytes = min(call.most_bytes, call.reads.size_bytes - behind + most)

    def _give_up(self, call: Call, why: str) -> None:
        """Hang up on an answer, and keep no more of it than its head."""
        del call.answer.data[1:]
        self._lose("oversized", why)

    def fail(self, why: str) -> None:
        """Close the connection in any state."""
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
        self._poller.follow(self.fd, None)
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
        self._read_rest()
        if self.stage == "closed":
            return
        text = os.strerror(error.errno) if error.errno else str(error)
        if isinstance(error, ConnectionResetError | BrokenPipeError):
            self._lose("reset", f"{self.peer.name}: {text}")
        else:
            self._lose("failed", f"{self.peer.name}: {text}")

    def _read_rest(self) -> None:
        """What came before the connection broke: a server may refuse a request before it has all of it."""
        clock = self._clock
        while self.stage == "open" and self._tls is None and self.call is not None and self.call.reads is not None:
            came = self.call.reads.receive(clock.base_s, clock.believed_s, clock.epoch_s)
            if came in (ENDED, EMPTY) or came < 0:
                return
            self.took(came)

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
        if len(self._tunnel) > self._limits.head_bytes:
            self._lose("refused", f"no connection to {self.peer.name}: the proxy answers with too long a header block")
            return
        head, end, _ = self._tunnel.partition(b"\r\n\r\n")
        line = head.partition(b"\r\n")[0].decode("latin-1")[:100]
        if end and line.split(" ")[1:2] == ["200"]:
            self._secure()
        elif end or not data:
            refusal = f"answered '{line}'" if line else "closed the connection"
            self._lose("refused", f"no connection to {self.peer.name}: the proxy {refusal}")

    def _secure(self) -> None:
        if self.peer.tls is None:
            self._open()
            return
        self.stage = "handshake"
        self._tls = Secure(self.peer.tls, self.peer.server_name)
        self._shake(self._tls)

    def _shake(self, tls: Secure) -> None:
        try:
            done = tls.shake()
        except NotSecureError as error:
            self._push(tls)
            self._not_secure(str(error))
            return
        self._push(tls)
        if done and self.stage == "handshake":
            self._open()

    def _push(self, tls: Secure) -> None:
        """Send pending TLS records; a request being written stays before them."""
        if data := tls.outgoing():
            self._out += data
            self._flush()

    def _read_tls(self, tls: Secure, data: bytes, control: Control, read_s: float) -> None:
        """All that these bytes make readable arrived with them."""
        if not data:
            if self.stage == "handshake":
                self._not_secure("it was closed while it was opened")
            self._end_of_stream()
            return
        tls.receive(data)
        if self.stage == "handshake":
            self._shake(tls)
        if self.stage != "open":
            return
        try:
            plain = tls.decrypt()
        except NotSecureError as error:
            self._not_secure(str(error))
            return
        self._push(tls)
        if plain.data and self.stage == "open":
            self._keep(plain.data, control, read_s)
        if plain.ended and self.stage == "open":
            self._end_of_stream()

    def _not_secure(self, why: str) -> None:
        self._lose("failed", f"no secure connection to {self.peer.name}: {why}")

    def _open(self) -> None:
        self.stage = "open"
        self._unread.register(self.fd, select.POLLIN)
        self.opened_s = self.idle_since_s = time.monotonic()
        self._want_write(bool(self._out))
        self._owner.opened(self)

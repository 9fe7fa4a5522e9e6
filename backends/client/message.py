"""What came back for one request, unread: bytes with the times of their arrival, and how it ended.

A request in flight, and its target.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from backends.client.connection import Connection

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


SocketAddress = tuple[str, int] | tuple[str, int, int, int]
_TCP_INFO = struct.Struct("=100xI32xI")
"""struct tcp_info of linux/tcp.h: tcpi_total_retrans at byte 100, tcpi_segs_out at byte 136."""


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


@dataclass(frozen=True, slots=True)
class Peer:
    """Where a connection goes: the addresses to try in turn, and what must happen before the first request.

    `tunnel` is sent to a proxy first (CONNECT); `server_name` is what a certificate must name, with `tls`. `sources`
    give the address of this machine for the next connection, by family.
    """

    addresses: Sequence[tuple[int, SocketAddress]]
    name: str
    tls: ssl.SSLContext | None = None
    server_name: str | None = None
    tunnel: bytes | None = None
    sources: Mapping[int, Iterator[str]] = field(default_factory=dict)


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
    size_bytes: int = 0  # of the answer so far
    room_bytes: int = 0  # up to this size no event of it can be too large
    last_read_s: float = 0.0  # of the run: when the last bytes were read, or the request was sent
    started: bool = False  # a first token is known to be among the reads


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

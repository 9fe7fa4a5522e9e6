"""A request under way, where it goes, and what its connection tells of it."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from backends.client.answer import Answer, How

if TYPE_CHECKING:
    from backends.client.connection import Connection

SocketAddress = tuple[str, int] | tuple[str, int, int, int]
_TCP_INFO = struct.Struct("=100xI32xI")
"""struct tcp_info of linux/tcp.h: tcpi_total_retrans at byte 100, tcpi_segs_out at byte 136."""


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

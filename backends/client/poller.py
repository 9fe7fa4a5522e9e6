"""Watches the sockets of all connections: one file for the event loop, so that a read costs it next to nothing.

A wake-up handles at most `BATCH` reads, so that departures are not late.
"""

from __future__ import annotations

import asyncio
import select
import socket
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from backends.client.connection import Connection
    from backends.client.stamps import Clock

BATCH = 16
"""Events handled in one wake-up: about 0.25 ms, after which the event loop looks at departures again."""
READ, WRITE = 1, 4
"""EPOLLIN and EPOLLOUT; errors and hang-ups (8, 16) are seen by reading."""


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

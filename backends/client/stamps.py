"""When bytes arrived, by the clock of the kernel: times that stay right when the process that reads them is late.

Linux stamps what a socket with SO_TIMESTAMPNS receives with the time of the real-time clock. A read of several segments
has the stamp of the newest, so a stamp is never early, and late at most by as much as the reader was.

Watches the sockets of all connections: one file for the event loop, so that a read costs it next to nothing.

A wake-up handles at most `BATCH` reads, so that departures are not late.
"""

from __future__ import annotations

import asyncio
import math
import random
import select
import socket
import sys
import time
from array import array
from collections.abc import Sequence
from operator import sub
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from backends.client import reads
from backends.client.reads import CONTROL_BYTES, LOOK, READ, STAMP, WRITE
from harness.metrics.quantiles import quantile

if TYPE_CHECKING:
    from backends.client.connection import Connection
    from backends.client.reads import Reads, Ready

SO_TIMESTAMPNS = 35
"""Number of the socket option and of its control message on Linux (asm-generic/socket.h: x86-64, arm64)."""
STEP_S = 1e-4
"""A jump of the real-time clock against the monotonic one by more than this is a step."""
AGEING = 1e-5
"""The kept offset loses 10 us of its accuracy a second: both clocks are slewed alike, only small steps part them."""
TRIES, TRY_S = 20, 0.005
"""How long to wait until the kernel begins to stamp: usually a few milliseconds."""
KEPT_LAGS = 1 << 18


TOGETHER_S = 2e-4
"""Token events closer than this were sent in one go: a server that makes one at a time makes fewer than 5,000 a second.
"""
WHOLE_TOKENS = 16
"""An answer of so many tokens in its only event was not streamed, however it was framed."""
BATCH = 16
"""Events handled in one wake-up: about 0.25 ms, after which the event loop checks departures again."""

Poller: TypeAlias = "EpollPoller | LoopPoller"


def stamped_socket(family: int) -> tuple[socket.socket, bool]:
    """A non-blocking TCP socket without delay, and whether the kernel promised to stamp what it receives."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if not sys.platform.startswith("linux"):
        return sock, False
    try:
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    except OSError:
        return sock, False
    return sock, True


def kernel_stamps() -> bool:
    """Whether this machine stamps bytes that arrive over TCP, found out by sending some to itself.

    Linux begins to stamp a moment after the first socket has enabled it, and ends when the last one is closed: who
    wants stamps from the first byte on keeps a socket of `stamped_socket` open and waits for this.
    """
    try:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            sock, promised = stamped_socket(socket.AF_INET)
            with sock:
                if not promised:
                    return False
                sock.setblocking(True)
                sock.settimeout(1.0)
                sock.connect(listener.getsockname())
                peer, _ = listener.accept()
                with peer:
                    return any(_is_stamped(peer, sock) for _ in range(TRIES))
    except OSError:
        return False


def _is_stamped(sender: socket.socket, receiver: socket.socket) -> bool:
    sender.sendall(b"?")
    if stamp_of(receiver.recvmsg(1, CONTROL_BYTES)[1]) is not None:
        return True
    time.sleep(TRY_S)
    return False


def stamp_of(control: Sequence[tuple[int, int, bytes]]) -> tuple[int, int] | None:
    """(seconds, nanoseconds) of the real-time clock in the control messages of a read, None without a stamp."""
    for level, kind, data in control:
        if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS and len(data) == STAMP.size:
            seconds, nanoseconds = STAMP.unpack(data)
            return seconds, nanoseconds
    return None


class Clock:
    """Turns stamps of the real-time clock into seconds of the run, and notices when that clock is set.

    A stamp of `seconds` and `nanoseconds` is `seconds - base_s + nanoseconds * 1e-9 - shift_s` in seconds of the run;
    `base_s` keeps the numbers small, so that a float holds their nanoseconds. The offset of the two clocks is sampled
    at every wake-up between two readings of the monotonic clock, and the one from the narrowest bracket is kept. After
    a step no stamp is used until everything that waited has been read.
    """

    __slots__ = ("_at_s", "_first_at_s", "_first_s", "_half_s", "_offset_s", "base_s", "epoch_s", "shift_s",
                 "slope_ppm", "steps", "trusted")  # fmt: skip

    def __init__(self) -> None:
        self.epoch_s = 0.0
        self.steps = 0
        self.slope_ppm = 0.0
        self.trusted = True
        self.base_s = int(time.time())
        self._half_s = 1.0
        self._offset_s = 0.0
        self.shift_s = 0.0
        self._restart(*self._bracket())

    def start(self, epoch_s: float) -> None:
        """Times count from `epoch_s` of the monotonic clock from now on."""
        self.epoch_s = epoch_s
        self.shift_s = self._offset_s + epoch_s

    def now_s(self) -> float:
        """Seconds of the run."""
        return time.monotonic() - self.epoch_s

    def sample(self) -> None:
        """Compare the clocks; to be called before the stamps of a wake-up are converted."""
        # a difference beyond both brackets cannot be an error of measurement: the clock was set
        offset_s, half_s, at_s = self._bracket()
        if abs(offset_s - self._offset_s) > STEP_S + half_s + self._half_s:
            self.steps += 1
            self.trusted = False
            self._restart(offset_s, half_s, at_s)
        elif half_s <= self._half_s + AGEING * (at_s - self._at_s):
            self._keep(offset_s, half_s, at_s)

    @property
    def believed_s(self) -> float:
        """The shift of stamps that can be used; NaN after a step, until everything that waited has been read."""
        return self.shift_s if self.trusted else math.nan

    @property
    def error_s(self) -> float:
        """The largest error of the shift now."""
        return self._half_s + AGEING * (time.monotonic() - self._at_s)

    def caught_up(self) -> None:
        """Nothing that arrived before the last step waits to be read any more."""
        self.trusted = True

    def _bracket(self) -> tuple[float, float, float]:
        """(offset, half the width of its bracket, when): the real-time clock minus the monotonic one."""
        # The two clocks cannot be read at once. Between two readings of one, the other is off by half their distance at
        # most; if the process was preempted in between, the bracket is wide and the sample is not kept.
        before_s = time.monotonic()
        real_ns = time.time_ns()
        after_s = time.monotonic()
        return (
            (real_ns - self.base_s * 1_000_000_000) * 1e-9 - (before_s + after_s) / 2,
            (after_s - before_s) / 2,
            after_s,
        )

    def _restart(self, offset_s: float, half_s: float, at_s: float) -> None:
        self._first_s, self._first_at_s = offset_s, at_s
        self._keep(offset_s, half_s, at_s)

    def _keep(self, offset_s: float, half_s: float, at_s: float) -> None:
        self._offset_s, self._half_s, self._at_s = offset_s, half_s, at_s
        self.shift_s = offset_s + self.epoch_s
        if at_s - self._first_at_s >= 1.0:
            slope_ppm = 1e6 * (offset_s - self._first_s) / (at_s - self._first_at_s)
            self.slope_ppm = max(self.slope_ppm, slope_ppm, key=abs)


class Lags:
    """How long bytes waited for their reader, over all answers of a process, in bounded memory.

    When more than `room` are kept every second is forgotten, and from then on only every second read is taken;
    where that begins in an answer is drawn, so that the first reads of answers do not stand for all.
    """

    __slots__ = ("_every", "_lag_s", "_rng", "_room", "max_s", "process_stamps", "reads", "sum_s")

    def __init__(self, room: int = KEPT_LAGS) -> None:
        self._room = room
        self._lag_s = array("d")
        self._every = 1
        self._rng = random.Random(0)
        self.max_s = self.sum_s = 0.0
        self.reads = 0
        self.process_stamps = 0

    def add(self, read_s: array[float], stamp_s: array[float], process_stamps: int) -> None:
        self.reads += len(read_s)
        self.process_stamps += process_stamps
        lag_s = array("d", map(sub, read_s, stamp_s))
        if lag_s:
            self.max_s = max(self.max_s, max(lag_s))
            self.sum_s += sum(lag_s)
            self._lag_s.extend(lag_s[self._rng.randrange(self._every) :: self._every] if self._every > 1 else lag_s)
        while len(self._lag_s) > self._room:
            self._lag_s = self._lag_s[::2]
            self._every *= 2

    def quantile_s(self, share: float) -> float | None:
        """The lag that this share of the reads did not exceed, None without reads."""
        return quantile(np.frombuffer(self._lag_s), share) if self._lag_s else None


def held_back(sent_s: float | None, event_s: Sequence[float], tokens: int) -> tuple[int, float]:
    """How many token events of an answer came together with an earlier one, and the silence before such groups.

    In that silence the tokens may have been made, and been held back by whatever lies between. `event_s` never falls;
    `tokens` came in all. The only event of a long answer counts as held back itself.
    """
    if len(event_s) < 2:
        return (1, event_s[0] - (sent_s or 0.0)) if event_s and tokens >= WHOLE_TOKENS else (0, 0.0)
    together = sum(map(TOGETHER_S.__ge__, map(sub, event_s[1:], event_s)))
    if not together:  # the usual case, at the cost of one pass in C
        return 0, 0.0
    gap_s = np.diff(event_s, prepend=sent_s or 0.0)  # (events,) since the event before, of the first since sending
    joined = gap_s <= TOGETHER_S
    joined[0] = False
    leads = ~joined & np.append(joined[1:], False)  # the first of each group
    return together, float(gap_s[leads].sum())


class EpollPoller:
    """Notifies connections that their sockets are ready, by an epoll object that the loop sees as one readable file."""

    __slots__ = ("_awake", "_by_fd", "_closing", "_epoll", "_loop", "_under_way", "_waiting", "clock")

    def __init__(self, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self.clock = clock
        self._loop = loop
        self._awake = False
        self._epoll = select.epoll()
        self._by_fd: dict[int, Connection] = {}
        self._under_way: dict[int, Reads] = {}
        self._closing: list[socket.socket] = []
        self._waiting = getattr(loop, "waiting", None) if reads.wait is not None else None
        if self._waiting is None:
            loop.add_reader(self._epoll.fileno(), self._wake)
        else:
            self._epoll.register(self._waiting.fileno(), READ)
            self._waiting.wait = self._wait

    def watch(self, connection: Connection, events: int) -> None:
        """From now on call `connection.ready(events)`; `events` is READ or READ | WRITE."""
        self._by_fd[connection.fd] = connection
        self._epoll.register(connection.fd, events)

    def change(self, connection: Connection, events: int) -> None:
        self._epoll.modify(connection.fd, events)

    def follow(self, fd: int, answer: Reads | None) -> None:
        """What comes from this socket belongs to an answer, or to none any more."""
        if answer is None:
            self._under_way.pop(fd, None)
        else:
            self._under_way[fd] = answer

    def drop(self, connection: Connection) -> None:
        """Stop watching and close the socket, in a wake-up last: its number, given out again, would get its events."""
        self._under_way.pop(connection.fd, None)
        if self._by_fd.pop(connection.fd, None) is not None and not self._epoll.closed:
            self._epoll.unregister(connection.fd)
        if self._awake:
            self._closing.append(connection.sock)
        else:
            connection.sock.close()

    def close(self) -> None:
        if self._epoll.closed:
            return
        if self._waiting is None:
            self._loop.remove_reader(self._epoll.fileno())
        else:
            self._waiting.wait = None
        self._epoll.close()

    def _wake(self) -> None:
        # The clocks are compared once for all reads of a wake-up, which share the cost.
        events = self._epoll.poll(0, BATCH)
        self.clock.sample()
        self._attend([(fd, what, None, LOOK) for fd, what in events])
        # fewer events than one batch: everything that was stamped before the step has been read
        if len(events) < BATCH and not self.clock.trusted:
            self.clock.caught_up()

    def _wait(self, loop_fd: int, timeout_s: float | None) -> bool:
        """Wait in place of the loop, and read meanwhile; gives whether files of the loop may be ready."""
        assert reads.wait is not None
        clock = self.clock
        ready, others = reads.wait(
            self._epoll.fileno(), loop_fd, self._under_way, clock.base_s, clock.believed_s, clock.epoch_s,
            clock.error_s, BATCH, -1.0 if timeout_s is None else timeout_s,
        )  # fmt: skip
        if ready is None:
            self._loop.call_soon(self._wake)
        elif ready:
            self._attend(ready)
        return others

    def _attend(self, ready: Sequence[Ready]) -> None:
        """Do what more is to do for sockets; those that another has closed meanwhile are gone."""
        self._awake = True
        for fd, events, answer, came in ready:
            connection = self._by_fd.get(fd)
            if connection is None or (answer is not None and answer is not connection.reads):
                continue
            try:
                if answer is None:
                    connection.ready(events)
                elif connection.call is not None:
                    connection.took(came)
            except Exception as error:  # noqa: BLE001  # a bug here ends this request, and blocks no other
                connection.fail(f"{type(error).__name__}: {error}")
        self._awake = False
        while self._closing:
            self._closing.pop().close()


class LoopPoller:
    """The same by the event loop's own selector, where there is no epoll."""

    __slots__ = ("_loop", "clock")

    def __init__(self, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self.clock = clock
        self._loop = loop

    def watch(self, connection: Connection, events: int) -> None:
        self._loop.add_reader(connection.fd, self._ready, connection, READ)
        self.change(connection, events)

    def follow(self, fd: int, answer: Reads | None) -> None:
        """Nothing to do: each connection reads by itself."""

    def change(self, connection: Connection, events: int) -> None:
        if events & WRITE:
            self._loop.add_writer(connection.fd, self._ready, connection, WRITE)
        else:
            self._loop.remove_writer(connection.fd)

    def drop(self, connection: Connection) -> None:
        self.change(connection, READ)
        self._loop.remove_reader(connection.fd)
        connection.sock.close()

    def close(self) -> None:
        """Leave nothing: each socket was watched by itself."""

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

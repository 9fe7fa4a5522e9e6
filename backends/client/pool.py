"""All connections of one process to the servers under test: assignment of requests, timeouts.

A connection serves one request at a time and is reused last in, first out, but never after `MAX_IDLE_S` of
idleness: servers close idle connections after 5 s (uvicorn), and a request sent at that moment is lost.
"""

import asyncio
import resource
import socket
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from backends.client import reads
from backends.client.connection import Answer, Call, Connection, How, Wire
from backends.client.framing import says_done
from backends.client.stamps import Clock, Lags, poller, stamped_socket
from backends.client.target import Limits, Peer, open_files

Route = Literal["round-robin", "least-outstanding"]
MAX_IDLE_S = 2.0
RESEND_S = 1.0
"""A reused connection that ends without an answer within this time was closed before the server saw the request."""
REQUEST_TIMEOUT = 408
"""What some servers say before they do so; it may have crossed the request. Source: RFC 9110, 15.5.9."""
QUIET_S = 1.0
"""An answer silent for so long is looked at again: its end may stand before bytes that do not belong to it."""
WARM_GAP_S = 0.002
"""Between two connections opened ahead of a run, so that no backlog overflows."""


@dataclass(frozen=True, slots=True)
class Target:
    """One server: `first` is the beginning of each request to it (request line and Host), `label` names it."""

    first: bytes
    peer: Peer
    label: str


class ConnectionPool:
    """The connections of one sender. All methods are called in its event loop.

    `spare` unused connections are kept to each server, ready for requests that come close together.
    """

    def __init__(
        self,
        targets: Sequence[Target],
        limits: Limits | None = None,
        route: Route = "round-robin",
        sender: int = 0,
        started: Callable[[Answer], bool] | None = None,
    ) -> None:
        """`started` returns whether a first token is among the reads of an answer; `first_token_s` needs it."""
        self._targets = tuple(targets)
        self._limits = limits or Limits()
        self._route = route
        self._sender = sender
        self._started = started or (lambda answer: bool(answer.data))
        self._loop = asyncio.get_running_loop()
        self.clock = Clock()
        self.lags = Lags()
        self.wire = Wire()
        self._poller = poller(self.clock, self._loop)
        self._keeper, _ = stamped_socket(socket.AF_INET)  # while one socket asks for stamps, no first byte lacks one
        self._idle: list[list[Connection]] = [[] for _ in self._targets]
        self._busy: list[int] = [0] * len(self._targets)
        self._calls: dict[int, Call] = {}
        self._connecting: dict[Connection, None] = {}
        self.spare = 0
        self._closed = False
        self._open_now = 0
        self._opened = 0
        self._opened_most = 0
        self._resent = 0
        self._sent = 0
        self._connect_s = array("d")
        self._arrived: asyncio.Event = asyncio.Event()
        self._timer = self._loop.call_later(self._limits.sweep_s, self._sweep)

    def __repr__(self) -> str:
        idle = sum(map(len, self._idle))
        return f"<Pool {len(self._calls)} calls, {idle} idle, {len(self._connecting)} connecting>"

    def check(self) -> None:
        """Raise AssertionError unless every connection and call is accounted for."""
        waiting = sum(1 for c in self._connecting if c.call is not None)
        sending = sum(1 for c in self._calls.values() if c.connection is not None and c.connection.stage == "open")
        assert len(self._calls) == waiting + sending, (len(self._calls), waiting, sending)
        assert sum(self._busy) == len(self._calls), (self._busy, len(self._calls))
        assert self._open_now == sum(map(len, self._idle)) + sending + len(self._connecting), repr(self)
        assert all(c.stage == "open" and c.call is None for idle in self._idle for c in idle)

    async def warm(self, count: int) -> None:
        """Open `count` connections ahead; returns when they are open, or are known not to open.

        A server that takes none is found out by the first request.
        """
        for k in range(count):
            self._dial(k % len(self._targets), None)
            await asyncio.sleep(WARM_GAP_S if k % 8 == 7 else 0)
        while any(c.call is None for c in self._connecting):
            self._arrived.clear()
            await self._arrived.wait()

    @property
    def slowest_connect_s(self) -> float:
        """The longest that a connection took to open so far."""
        return max(self._connect_s, default=0.0)

    def start_clock(self, epoch_s: float) -> None:
        """Times count from `epoch_s` of the monotonic clock from now on."""
        self.clock.start(epoch_s)

    def send(self, request_id: int, rest: bytes, output_tokens: int = 0) -> asyncio.Future[Answer]:
        """Send now, on an open connection or as soon as one is open. The future never fails.

        `output_tokens`, as requested, bound the size of the answer.
        """
        call = Call(request_id, rest, self._loop.create_future(), time.monotonic())
        call.most_bytes = self._limits.answer_bytes(output_tokens)
        call.answer.sender = self._sender
        self._calls[request_id] = call
        self._sent += 1
        self._dispatch(call, self._choose(call))
        return call.future

    def hang_up(self, request_id: int, how: How, why: str) -> None:
        """End a request under way; nothing happens when it has ended."""
        call = self._calls.get(request_id)
        if call is None:
            return
        if call.connection is not None:
            self._forget(call.connection)
            call.connection.close()
        self._finish(call, how, why)

    def facts(self) -> Mapping[str, object]:
        """Facts of this sender's connections, for run.json."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        wire = self._whole_wire()
        return {
            "sent": self._sent,
            "stamps": "process" if self.lags.reads and self.lags.process_stamps == self.lags.reads else "kernel",
            "reads_by": "Python" if reads.wait is None else "C",
            "reads": self.lags.reads,
            "process_stamps": self.lags.process_stamps,
            "read_lag_p50_s": self.lags.quantile_s(0.5),
            "read_lag_p99_s": self.lags.quantile_s(0.99),
            "read_lag_max_s": self.lags.max_s,
            "clock_steps": self.clock.steps,
            "clock_slope_ppm": self.clock.slope_ppm,
            "connections_opened": self._opened,
            "connections_most": self._opened_most,
            "resent": self._resent,
            "segments": wire.segments,
            "retransmits": wire.retransmits,
            "open_files": open_files(self._opened_most - self._open_now),
            "open_files_limit": soft,
        }

    def _whole_wire(self) -> Wire:
        """What TCP did for the connections that are closed and those that are open."""
        wire = Wire(self.wire.segments, self.wire.retransmits)
        under_way = [call.connection for call in self._calls.values()]
        for connection in [*under_way, *(c for idle in self._idle for c in idle)]:
            if connection is not None and connection.stage == "open":
                wire.count(connection.sock)
        return wire

    def close(self) -> None:
        """Close all connections. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        self._timer.cancel()
        for request_id in list(self._calls):
            self.hang_up(request_id, "cancelled", "the client was closed")
        for connection in [*self._connecting, *(c for idle in self._idle for c in idle)]:
            connection.close()
        self._connecting.clear()
        self._idle = [[] for _ in self._targets]
        self._open_now = 0
        self._poller.close()
        self._keeper.close()

    def opened(self, connection: Connection) -> None:
        """A connection can be sent to: by the call that waits for it, or by one that comes later."""
        self._connecting.pop(connection, None)
        self._opened += 1
        self._connect_s.append(connection.opened_s - connection.began_s)
        call = connection.call
        if call is None:
            self._idle[connection.target].append(connection)
        else:
            if call.answer.connect_s is None:
                call.answer.connect_s = connection.opened_s - call.requested_s
            connection.send(call, self._targets[connection.target].first)
        self._arrived.set()

    def ended(self, connection: Connection, how: How, why: str | None) -> None:
        """The call of a connection has ended, or the connection was lost."""
        call = connection.call
        if call is None:
            self._forget(connection)
            self._arrived.set()
        elif self._unseen(connection, call, how):
            self._drop(connection)
            self._send_again(call)
        elif how != "complete":
            self._forget(connection)
            self._finish(call, how, why)
        else:
            self._give_back(connection)
            self._finish(call, how, why)

    def _unseen(self, connection: Connection, call: Call, how: How) -> bool:
        """Whether a reused connection was closed before the server saw this request, which was sent once so far."""
        answer = call.answer
        timed_out = connection.http_status == REQUEST_TIMEOUT
        closed = timed_out if answer.data else how in ("closed", "reset")
        reused = connection.answers > (1 if how == "complete" else 0)  # a complete answer is counted already
        soon = answer.sent_s is not None and self.clock.now_s() - answer.sent_s <= RESEND_S
        return closed and reused and soon and not answer.resent

    def _choose(self, call: Call) -> int:
        """The server that a call goes to next; ties go in turn, so that equal servers get equal shares."""
        # By the number of the request, not by a count of this sender: the shares do not depend on how many send.
        count = len(self._targets)
        turn = call.request_id % count
        if count == 1 or self._route == "round-robin":
            return turn
        return min(((turn + k) % count for k in range(count)), key=self._busy.__getitem__)

    def _dispatch(self, call: Call, target: int) -> None:
        call.target = target
        call.answer.address = self._targets[target].label
        self._busy[target] += 1
        connection = self._take_idle(target)
        # No request waits for a busy connection to come free: that would hide the server's queue in the client's.
        if connection is None:
            self._dial(target, call)
        else:
            connection.send(call, self._targets[target].first)
        # In a later turn of the loop: opening one ahead must not make this request, or the next, late.
        if self.spare > len(self._idle[target]):
            self._loop.call_soon(self._replenish, target)

    def _replenish(self, target: int) -> None:
        """Open connections until there are as many unused ones as wanted; those being opened count."""
        opening = sum(1 for c in self._connecting if c.target == target and c.call is None)
        for _ in range(self.spare - len(self._idle[target]) - opening if not self._closed else 0):
            self._dial(target, None)

    def _take_idle(self, target: int) -> Connection | None:
        """The usable connection that was used last, unless it has been idle for too long; then they all have."""
        while idle := self._idle[target]:
            # The one that was used last is the least likely to have been closed by the server meanwhile.
            connection = idle.pop()
            if time.monotonic() - connection.idle_since_s > MAX_IDLE_S:
                self._idle[target] = []
                for old in (connection, *idle):
                    self._drop(old)
            elif connection.usable():
                return connection
        return None

    def _dial(self, target: int, call: Call | None) -> None:
        connection = Connection(self._targets[target].peer, target, self, self._poller, self.wire, self._limits)
        connection.call = call
        if call is not None:
            call.connection = connection
        self._connecting[connection] = None
        self._open_now += 1
        self._opened_most = max(self._opened_most, self._open_now)
        connection.dial()

    def _send_again(self, call: Call) -> None:
        self._resent += 1
        answer = call.answer
        call.answer = Answer(self._sender, answer.address, answer.sent_s, connect_s=answer.connect_s, resent=True)
        call.requested_s = time.monotonic()
        self._dial(call.target, call)

    def _give_back(self, connection: Connection) -> None:
        """An answer is complete: its connection can take the next request, if it is still open."""
        connection.call = None
        if connection.stage == "open":
            self._idle[connection.target].append(connection)
        else:
            self._open_now -= 1

    def _drop(self, connection: Connection) -> None:
        self._forget(connection)
        connection.close()

    def _forget(self, connection: Connection) -> None:
        self._connecting.pop(connection, None)
        if connection.call is None and connection in (idle := self._idle[connection.target]):
            idle.remove(connection)
        connection.call = None
        self._open_now -= 1

    def _finish(self, call: Call, how: How, why: str | None) -> None:
        answer = call.answer
        answer.how, answer.why, answer.ended_s = how, why, self.clock.now_s()
        if call.reads is not None:
            times = array("d", call.reads.times())
            answer.stamp_s, answer.read_s = times[::2], times[1::2]
            answer.process_stamps = call.reads.process_stamps
        del self._calls[call.request_id]
        self._busy[call.target] -= 1
        call.connection = None
        self.lags.add(answer.read_s, answer.stamp_s, answer.process_stamps)
        if not call.future.done():
            call.future.set_result(answer)

    def _sweep(self) -> None:
        """Coarse housekeeping: limits that have passed, connections too long idle, the clocks."""
        self._timer = self._loop.call_later(self._limits.sweep_s, self._sweep)
        # While nothing arrives no wake-up compares the clocks.
        self.clock.sample()
        now_s = time.monotonic()
        self._sweep_connecting(now_s)
        self._sweep_total(now_s - self.clock.epoch_s)
        self._sweep_idle(now_s)
        self._sweep_silent(now_s - self.clock.epoch_s)

    def _sweep_connecting(self, now_s: float) -> None:
        """Give up connections that do not open; the oldest stand first."""
        for connection in list(self._connecting):
            if now_s - connection.began_s < self._limits.connect_s:
                return
            connection.close()
            self.ended(connection, "timeout", f"no connection within {self._limits.connect_s:g} s")

    def _sweep_total(self, run_s: float) -> None:
        """Hang up on answers that take too long; the oldest stand first."""
        total_s = self._limits.total_s
        if total_s is None:
            return
        for call in list(self._calls.values()):
            sent_s = call.answer.sent_s
            if sent_s is not None and run_s - sent_s < total_s:
                return
            if sent_s is not None:
                self.hang_up(call.request_id, "timeout", f"no end within {total_s:g} s")

    def _sweep_idle(self, now_s: float) -> None:
        for target, idle in enumerate(self._idle):
            old = [c for c in idle if now_s - c.idle_since_s > MAX_IDLE_S]
            self._idle[target] = idle[len(old) :]  # the oldest stand first
            for connection in old:
                self._drop(connection)
            self._replenish(target)

    def _sweep_silent(self, run_s: float) -> None:
        """Answers under way that have been silent for too long, or that have no first token yet."""
        limits = self._limits
        if limits.first_token_s is not None:
            for call in [c for c in self._calls.values() if not c.started]:
                self._sweep_first(call, run_s, limits.first_token_s)
        allowed_s = QUIET_S if limits.idle_s is None else min(limits.idle_s, QUIET_S)
        for call in [c for c in self._calls.values() if run_s - c.last_read_s > allowed_s]:
            connection = call.connection
            if call.answer.sent_s is None or connection is None or connection.stage != "open":
                continue
            if limits.idle_s is not None and run_s - call.last_read_s > limits.idle_s:
                self.hang_up(call.request_id, "timeout", f"nothing came for {limits.idle_s:g} s")
            elif run_s - call.last_read_s > QUIET_S and call.answer.data:
                self._sweep_quiet(call, connection)

    def _sweep_first(self, call: Call, run_s: float, limit_s: float) -> None:
        """The reads are looked at once, when the limit has passed."""
        sent_s = call.answer.sent_s
        if sent_s is not None and run_s - sent_s > limit_s:
            call.started = self._started(call.answer)
            if not call.started:
                self.hang_up(call.request_id, "timeout", f"no first token within {limit_s:g} s")

    def _sweep_quiet(self, call: Call, connection: Connection) -> None:
        """The framing of a silent answer may be done, or never be: `[DONE]` ends a stream regardless of the framing."""
        connection.look_again()
        if call.connection is connection and says_done(call.answer.data[-1]):
            connection.close()
            self.ended(connection, "closed", "the server left the answer open after [DONE]")

"""Coordinates the processes that send one schedule; reads and records the answers that they pass on."""

import asyncio
import os
import time
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from harness.api import ENDED_WELL, End, Outcome, Remote, RequestRecord, ResponseCache
from harness.data.schedule import Schedule
from harness.errors import BackendError
from harness.ipc import Malformed, of_data
from harness.runner.remote import sender
from harness.runner.remote.hosts import READY_S, Line, Offset, ending, greet, label, start
from harness.runner.remote.split import share
from harness.runner.transport import read
from harness.runner.wall import ProgressListener, RecordSink

T = TypeVar("T")

LEAD_S = 0.3
"""Between the start message to the senders and time 0."""
LOOK_S, QUIET_S, STILL_S = 1.0, 3.0, 10.0
"""Each second it is seen which senders have reported nothing, as they do four times a second, for 3 s, which gives a
warning, or for 10 s, which ends the run: they were stopped, or get no processor."""
FIRST, OF_MANY, MANY = 20, 100, 200
"""A run is stopped when its first 20 requests fail, when 20 in a row get no answer at all, or when 100 of the last 200
fail, for other reasons than rejection: the server is unreachable, has gone away, or refuses the requests."""
WORST: tuple[End, ...] = ("failed", "stopped", "interrupted", "finished")


@dataclass(slots=True)
class _Child:
    """One sender: where it runs, the line to it, and its progress so far."""

    index: int
    line: Line
    where: str | None = None
    done: sender.Done | None = None
    sent: int = 0
    finished: int = 0
    taken: int = 0
    last_message_s: float = 0.0
    """When its last message came, by the monotonic clock."""
    still_s: float | None = None
    """For how long it had reported nothing when it was given up."""
    lost: bool = False
    """Whether it ran on another machine and ended before its time."""
    before: Offset | None = None
    after: Offset | None = None
    """The clock of another machine, before the run and after it."""


@dataclass(slots=True)
class Senders:
    """One run by `count` senders over the schedule stored in `path`; `interrupt` as for a `WallDriver`.

    They are processes of this machine, or run one each where `hosts` says, whose clocks are compared with this one's.
    `taken` gets every record; `live` is updated; `begun` is called with time 0. Answers are read in this process.
    """

    backend: Remote
    path: Path
    count: int
    duration_s: float | None
    drain_s: float
    taken: RecordSink
    live: ProgressListener
    begun: Callable[[float], None]
    hosts: Sequence[str] = ()
    max_in_flight: int | None = None
    """Of all requests together; one sender keeps it."""
    raised: bool = True
    """Whether they send at raised priority."""
    response_cache: ResponseCache | None = None
    """Before all of them; one sender keeps it."""
    facts: list[dict[str, Any]] = field(default_factory=list, init=False)
    """What each sender reported of itself at the end, and what is known of its host."""
    _children: list[_Child] = field(default_factory=list, init=False)
    _interrupts: int = field(default=0, init=False)
    _error: str | None = field(default=None, init=False)
    _crash: str | None = field(default=None, init=False)
    _in_a_row: int = field(default=0, init=False)
    _failures: deque[bool] = field(default_factory=lambda: deque(maxlen=MANY), init=False)

    async def open(self) -> None:
        """Start the senders: connections are open and requests are built when this returns.

        Raises BackendError or UsageError when one of them cannot.
        """
        for index in range(self.count):  # one by one: `close` knows those that were started
            host = self.hosts[index] if self.hosts else None
            self._children.append(_Child(index, await start(host), host))
        for child in self._children:
            await greet(child.line, self._name(child))
            schedule = os.fspath(self.path) if child.where is None else self.path.read_bytes()
            child.line.send(
                sender.Job(self.backend, schedule, child.index, self.count, self.duration_s, self.drain_s,
                           self.max_in_flight, self.raised, self.response_cache)
            )  # fmt: skip
        await self._all_ready()
        self._send(sender.Connect())
        await self._all_ready()
        for child in self._children:
            if child.where is not None:
                child.before = await self._in_time(child, child.line.offset())

    async def _in_time(self, child: _Child, coming: Coroutine[None, None, T]) -> T:
        """What comes from a sender before the run. Raises BackendError where it does not come."""
        try:
            return await asyncio.wait_for(coming, READY_S)
        except TimeoutError:
            raise BackendError(f"{self._name(child)} did not start within {READY_S:g} s.") from None
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise BackendError(f"{self._name(child)} did not start ({type(error).__name__}).") from None

    async def _all_ready(self) -> None:
        for child in self._children:
            ready = await self._in_time(child, child.line.receive(sender.Ready))
            if ready.error is not None:
                if child.where is not None:
                    ready.error.args = (f"{self._name(child)}: {ready.error}",)
                raise ready.error

    async def run(self) -> Outcome:
        """Start the senders, and record answers until all of them are done."""
        away = [child.before for child in self._children if child.before is not None]
        epoch_s = time.monotonic() + LEAD_S + max((2 * offset.error_s for offset in away), default=0.0)
        self.backend.start_clock(epoch_s)
        self.live.start(epoch_s)
        self.begun(epoch_s)
        for child in self._children:
            child.line.send(sender.Go(epoch_s + (child.before.offset_s if child.before else 0.0)))
            child.last_message_s = epoch_s
        watching = asyncio.ensure_future(self._watch())
        try:
            await asyncio.gather(*(self._listen(child) for child in self._children))
        finally:
            watching.cancel()
        outcomes = [child.done.outcome for child in self._children if child.done and child.done.outcome]
        ended: End = min((o.ended for o in outcomes), key=WORST.index, default="failed")
        if ended == "interrupted" and self._interrupts > 1:  # senders with nothing in flight had ended by the second
            ended = "stopped"
        for child in self._children:
            if child.before is not None and child.done is not None:
                child.after = await self._offset_after(child)
        self.facts = _with_others([
            {"sender": c.index, **(c.done.facts if c.done else {}), **_host(c)}
            for c in self._children if c.done or c.before
        ])  # fmt: skip
        return Outcome(
            ended="stopped" if self._gone else "failed" if self._error else ended,
            sent=sum(c.sent for c in self._children),
            not_sent=sum(o.not_sent for o in outcomes),
            cut=sum(o.cut for o in outcomes),
            error=self._error,
            crash=self._crash or next((o.crash for o in outcomes if o.crash), None),
        )

    def interrupt(self, at_once: bool = False) -> None:
        self._interrupts = 2 if at_once else self._interrupts + 1
        if self._interrupts == 1:
            self.live.say(
                f"stopping: nothing more is sent, {self.live.sent - self.live.finished} in flight get "
                f"{self.drain_s:g} s to finish; Ctrl-C again ends the run now"
            )
        self._send(sender.Interrupt(at_once))

    async def close(self) -> None:
        """End whatever sender is left. Safe to call twice, and after a failed `open`."""
        await asyncio.gather(*(child.line.end(done=child.done is not None) for child in self._children))

    async def _offset_after(self, child: _Child) -> Offset | None:
        """None where the host left too early."""
        try:
            return await asyncio.wait_for(child.line.offset(), QUIET_S)
        except (asyncio.IncompleteReadError, ConnectionError, TimeoutError):
            return None

    async def _listen(self, child: _Child) -> None:
        while child.done is None:
            try:
                message = await child.line.receive(*sender.REPORTS, sender.Pong)
                answer = of_data(message.answer, self.backend.answer) if isinstance(message, sender.Arrived) else None
            except Malformed as error:
                await self._lost(child, f"sent what no sender of this version sends ({error})")
                return
            except (asyncio.IncompleteReadError, ConnectionError):
                await self._lost(child, await ending(child.line) if child.still_s is None else None)
                return
            child.last_message_s = time.monotonic()
            if isinstance(message, sender.Arrived):
                child.taken += 1
                record = read(self.backend, message.request, answer)
                record.cap_wait_s = message.cap_wait_s
                self._take(record)
            elif isinstance(message, sender.Known):
                child.taken += message.record.sent_s is not None
                self._take(message.record)
            elif isinstance(message, sender.Progress):
                self._progress(child, message)
            elif isinstance(message, sender.Done):
                child.done = message
                if message.error is not None:
                    self._crash = self._crash or message.traceback
                    self._stop(f"{self._name(child)} broke: {message.error}")
                elif message.outcome is not None and message.outcome.error is not None:
                    self._stop(message.outcome.error)
            if self.taken.error is not None:
                self._stop(f"rows cannot be written: {self.taken.error}")

    def _take(self, record: RequestRecord) -> None:
        self.taken.add(record)
        if record.status in ("rejected", "dropped", "cancelled"):
            return
        self._failures.append(record.status not in ENDED_WELL)
        answered = record.exchange is not None and record.exchange.http_status is not None
        self._in_a_row = self._in_a_row + 1 if record.status == "error" and not answered else 0
        if record.status in ENDED_WELL:
            return
        failed, why = sum(self._failures), record.error or record.status
        if failed == FIRST == len(self._failures):
            self._stop(f"the first {FIRST} requests all failed, the last one because: {why}")
        elif self._in_a_row == FIRST:
            self._stop(f"{FIRST} requests in a row got no answer, the last one because: {why}")
        elif failed == OF_MANY:
            self._stop(f"{OF_MANY} of the last {len(self._failures)} requests failed, the last one because: {why}")

    def _progress(self, child: _Child, now: sender.Progress) -> None:
        self.live.sent += now.sent - child.sent
        self.live.finished += now.finished - child.finished
        child.sent, child.finished = now.sent, now.finished
        for late_s in now.late_s:
            self.live.departed(late_s)

    def _stop(self, why: str) -> None:
        """Have all senders end at once: the run has failed."""
        if self._error is None:
            self._error = why
            self._send(sender.Interrupt(at_once=True))

    async def _watch(self) -> None:
        """Give up senders that stand still: their sockets stay open, and without them the run would never end."""
        looked_s = time.monotonic()
        while True:
            await asyncio.sleep(LOOK_S)
            now_s = time.monotonic()
            for child in self._children:
                if child.where is not None and child.done is None:
                    child.line.send(sender.Ping(now_s))  # a host that hears nothing stops
                if now_s - looked_s > 2 * LOOK_S:  # this process stood still: what they reported waits to be read
                    child.last_message_s = now_s
                silent_s = now_s - child.last_message_s
                if child.done is not None or child.still_s is not None or child.line.reader.at_eof():
                    continue
                if silent_s >= STILL_S:
                    child.still_s = silent_s
                    child.line.process.kill()
                    child.line.writer.transport.abort()
                elif QUIET_S <= silent_s < QUIET_S + LOOK_S:
                    self.live.say(
                        f"warning: {self._name(child)} has reported nothing for {silent_s:.0f} s, as if it were "
                        f"stopped; after {STILL_S:.0f} s the run ends"
                    )
            looked_s = now_s

    async def _lost(self, child: _Child, how: str | None) -> None:
        if how is None:
            how = f"stood still (stopped or frozen?) and reported nothing for {child.still_s:.0f} s"
        child.sent = max(child.sent, child.taken)  # its last progress message may be older than its last answer
        lost = child.sent - child.taken
        why = f"{self._name(child)} {how}; at least {lost:,} requests that it had sent have no record"
        if child.where is not None:
            child.lost = True
            shard = await asyncio.to_thread(lambda: share(Schedule.load(self.path), child.index, self.count))
            why += f", and {len(shard.table) - child.sent:,} of its {len(shard.table):,} were not sent"
        elif child.still_s is None:
            self._crash = self._crash or why  # a lost sender is a bug here, not a failure of the server
        self._stop(why)

    @property
    def _gone(self) -> bool:
        """Whether a frozen process or a lost host ended the run."""
        return self._crash is None and any(child.still_s is not None or child.lost for child in self._children)

    def _send(self, message: object) -> None:
        for child in self._children:
            child.line.send(message)

    def _name(self, child: _Child) -> str:
        location = "" if child.where is None else f" ({label(child.where)})"
        return f"sender {child.index + 1} of {self.count}{location}"


def _host(child: _Child) -> dict[str, Any]:
    """The host of a sender and the offset of its clock; `clock_error_s` holds all through the run."""
    if child.where is None or child.before is None:
        return {}
    before, after = child.before, child.after
    drift_s = None if after is None else after.offset_s - before.offset_s
    error_s = before.error_s if after is None or drift_s is None else max(before.error_s, abs(drift_s) + after.error_s)
    return {
        "host": label(child.where),
        "clock_offset_s": before.offset_s,
        "clock_drift_s": drift_s,
        "clock_error_s": error_s,
    }


def _with_others(facts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The facts of the senders, with the cores of their machine busy with anything but them (a server there too)."""
    cpu_by_host: dict[object, float] = defaultdict(float)
    for report in facts:
        cpu_by_host[report.get("host")] += float(report.get("cpu_share") or 0.0)
    for report in facts:
        busy = report.pop("machine_cores_busy", None)
        report["other_load_cores"] = None if busy is None else max(0.0, busy - cpu_by_host[report.get("host")])
    return facts

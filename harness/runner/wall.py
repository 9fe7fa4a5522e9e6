"""The open loop under the wall clock: a request leaves at its time, whether or not others were answered."""

import asyncio
import math
import time
from collections import deque
from collections.abc import Awaitable, Iterable, Sequence
from heapq import heappop, heappush
from traceback import format_exception
from typing import Any, Protocol

from harness.api import End, Ended, FollowUps, Outcome, Request, RequestRecord, ResponseCache, Status, Step
from harness.data.dependencies import record_of
from harness.timer import Alarm

LEAD_S = 0.02
"""Between the start of the clock and time 0, so that the first request can be on time."""
CANCEL_S = 5.0
"""How long cancelled requests may take to end."""
TICK_S = 1.0
AHEAD_REQUESTS, AHEAD_TOKENS = 4096, 16_000_000
"""How many requests, of how many prompt tokens in all (some 80 MB of text), are made ready before they are due; of
follow-ups, which may be due in hours, as many tokens beside them, and the next one that leaves."""
BURST = 8
"""How many requests that are due may leave before answers are read again."""
REFILL = 64
"""So many are made ready in a row, which takes half the time of one here and one there."""
IDLE_S, FILL_S = 0.0002, 0.002
"""Shortest pause before the next departure in which one more request is made ready (four times what the last took), and
how long that may go on before answers are read again."""
SHORT_TOKENS = 128
"""Such prompts are made ready in less than a quarter of `IDLE_S`, which is not measured: that takes as long itself."""


class Transport(Protocol):
    """Sends requests to a backend and receives its answers."""

    @property
    def failure(self) -> str | None:
        """Why the backend can take no more requests; None while it can."""
        ...

    def start(self, epoch_s: float) -> None:
        """The run starts: all stamps are `time.monotonic() - epoch_s` from now on."""
        ...

    def prepare(self, request: Request) -> None:
        """Build a request before it is due."""
        ...

    def carry(self, request: Request, sent_s: float) -> Awaitable[object]:
        """Send now. The awaitable ends with the request."""
        ...

    def record(self, request: Request, sent_s: float, arrived: Any) -> RequestRecord | None:
        """The record of what `carry` gave, None if another process reads the answer."""
        ...

    def cut(self, request: Request, status: Status, why: str) -> None:
        """End a request that is under way, with that status."""
        ...

    def steps(self) -> Sequence[Step]:
        """Executor steps since the last call."""
        ...


class RecordSink(Protocol):
    """Where finished requests go; the part of a recorder that a driver needs."""

    error: Exception | None

    def add(self, record: RequestRecord) -> None:
        """Take one finished request."""
        ...

    def add_steps(self, steps: Iterable[Step]) -> None:
        """Take executor steps."""
        ...


class ProgressListener(Protocol):
    """The display of a run under way; the part of `harness.runner.live.Live` that a driver needs."""

    sent: int
    finished: int

    def start(self, epoch_s: float) -> None:
        """The clock starts at `epoch_s` of the monotonic clock."""
        ...

    def departed(self, late_s: float) -> None:
        """A request left `late_s` after its time."""
        ...

    def say(self, line: str) -> None:
        """Print a line."""
        ...


class WallDriver:
    """One run under the wall clock; `interrupt` once stops the sending, twice or `at_once` ends the run.

    After the last departure it waits `drain_s` at most: a request unanswered then is recorded as `timeout`,
    or as `cancelled` when the run was interrupted. With `most` requests in flight those that are due wait, in the order
    of their times. What `cache` does not answer leaves for the backend when it has searched.
    """

    def __init__(
        self,
        line: Transport,
        schedule: Iterable[Request],
        follow_ups: FollowUps | None,
        recorder: RecordSink,
        live: ProgressListener,
        drain_s: float,
        most: int | None = None,
        cache: ResponseCache | None = None,
    ) -> None:
        self._cache = cache
        self._most = most
        self._freed_s = -math.inf  # when a request ended and others could have been waiting for its place
        self.cap_wait_s: dict[int, float] = {}
        """How long requests waited for a place or for the cache, by id, of those that did and have not ended."""
        self._line = line
        self._schedule = iter(schedule)
        self._ahead: deque[Request] = deque()  # taken from the schedule and made ready
        self._ahead_tokens = 0
        self._filling = False
        self._pause_s = IDLE_S  # a pause that is long enough to make one more request ready
        self._follow_ups = follow_ups
        self._recorder = recorder
        self._live = live
        self._drain_s = drain_s
        self._heap: list[tuple[float, int, Request, bool]] = []
        self._ready: set[int] = set()  # ids of follow-ups that are made ready
        self._ready_tokens = 0
        self._under_way: dict[asyncio.Future[Any], tuple[Request, float]] = {}  # and when it left
        self._alarm: Alarm | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._epoch_s = 0.0
        self._interrupts = 0
        self._error: str | None = None
        self._crash: str | None = None
        self._sent = 0
        self._cut = 0
        self._end: tuple[Status, str] | None = None  # of what is cut, when no more answers are waited for

    def __repr__(self) -> str:
        return f"<WallDriver {self._sent} sent, {len(self._under_way)} in flight, {self._interrupts} interrupts>"

    def interrupt(self, at_once: bool = False) -> None:
        self._interrupts = 2 if at_once else self._interrupts + 1
        if self._interrupts == 1:
            self._live.say(
                f"stopping: nothing more is sent, {len(self._under_way)} in flight get "
                f"{self._drain_s:g} s to finish; Ctrl-C again ends the run now"
            )
        self._turn()

    def prepare(self) -> None:
        """Make ready as many requests as may wait ready, before the clock starts."""
        while self._prepare_one():
            pass

    async def run(self, epoch_s: float | None = None) -> Outcome:
        """Send everything, wait for the answers, and return the outcome; time 0 is `epoch_s`, or in `LEAD_S`."""
        self._epoch_s = time.monotonic() + LEAD_S if epoch_s is None else epoch_s
        self._line.start(self._epoch_s)
        self._live.start(self._epoch_s)
        self._alarm = Alarm(self._ring)
        ticker = asyncio.create_task(self._tick())
        try:
            self._pull()
            await self._send()
            await self._drain()
            await self._cancel_rest()
        finally:
            ticker.cancel()
            self._alarm.close()
            self._recorder.add_steps(self._line.steps())
        unsent = len(self._heap) + len(self._ahead) + sum(1 for _ in self._schedule)
        return Outcome(self._ending(), self._sent, unsent, self._cut, self._error, self._crash)

    def _ending(self) -> End:
        if self._error is not None:
            return "failed"
        if self._interrupts:
            return "interrupted" if self._interrupts == 1 else "stopped"
        return "finished"

    @property
    def _stopping(self) -> bool:
        return self._interrupts > 0 or self._error is not None

    def _now_s(self) -> float:
        return time.monotonic() - self._epoch_s

    async def _send(self) -> None:
        """Send each request at its time; returns when none is pending or the run is being stopped."""
        while self._heap and not self._stopping:
            self._ring()
            if self._heap and not self._stopping:
                await self._nap()

    @property
    def _full(self) -> bool:
        return self._most is not None and len(self._under_way) >= self._most

    @property
    def _next_s(self) -> float:
        """When the next request leaves; where all places are taken, an end of another wakes the sending before."""
        return self._now_s() + TICK_S if self._full else self._heap[0][0]

    def _depart(self) -> None:
        """Launch what is due, at most `BURST` requests at once: answers must be read too."""
        launched = 0
        while self._heap and not self._stopping and launched < BURST and self._next_s <= self._now_s():
            _, _, request, planned = heappop(self._heap)
            if planned:
                self._pull()
            elif request.id in self._ready:
                self._ready.remove(request.id)
                self._ready_tokens -= request.prompt_tokens
            self._launch(request)
            launched += 1

    def _ring(self) -> None:
        """The time of a departure has come, or the end of a wait. Departures do not wait for a turn of the loop."""
        assert self._alarm is not None
        self._depart()
        if self._heap and not self._stopping:
            goes_on = self._fill()
            self._alarm.set(self._epoch_s + (self._now_s() if goes_on else self._next_s))
        else:
            self._turn()

    def _fill(self) -> bool:
        """Make requests ready in the pause before the next departure; True where others must have their turn first."""
        begun_s = now_s = self._now_s()
        while self._next_s - now_s > self._pause_s and (self._prepare_next() or self._prepare_one()):
            now_s = self._now_s()
            if now_s - begun_s > FILL_S:
                return True
        return False

    def _pull(self) -> None:
        """Make the next request of the schedule pending: the heap holds one of those, and the follow-ups."""
        if self._ahead:
            self._ahead_tokens -= self._ahead[0].prompt_tokens
        request = self._ahead.popleft() if self._ahead else next(self._schedule, None)
        if request is not None:
            heappush(self._heap, (request.scheduled_s, request.id, request, True))

    def _prepare_one(self) -> bool:
        """Make one more request of the schedule ready; False when enough of them are, or none is left."""
        most = AHEAD_REQUESTS if self._filling else AHEAD_REQUESTS - REFILL
        self._filling = len(self._ahead) < most and self._ahead_tokens < AHEAD_TOKENS
        if not self._filling:
            return False
        request = next(self._schedule, None)
        if request is None:
            return False
        self._make_ready(request)
        self._ahead.append(request)
        self._ahead_tokens += request.prompt_tokens
        return True

    def _prepare_next(self) -> bool:
        """Make the next request to leave ready, a follow-up that had no room before; False where it is none."""
        _, _, request, planned = self._heap[0]
        if planned or request.id in self._ready:
            return False
        self._make_ready(request)
        self._ready.add(request.id)
        self._ready_tokens += request.prompt_tokens
        return True

    def _make_ready(self, request: Request) -> None:
        if request.prompt_tokens <= SHORT_TOKENS:
            self._line.prepare(request)
            self._pause_s = IDLE_S
            return
        begun_s = time.thread_time()  # by the wall clock one wait for a core would end this for good
        self._line.prepare(request)
        self._pause_s = max(IDLE_S, 4 * (time.thread_time() - begun_s))

    async def _nap(self) -> None:
        """Sleep until `_turn` ends that, because the alarm rings with nothing to send or something has changed."""
        waiter = self._waiter = asyncio.get_running_loop().create_future()
        try:
            await waiter
        finally:
            self._waiter = None

    def _turn(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _launch(self, request: Request) -> None:
        self._sent += 1
        self._live.sent += 1
        sent_s = self._now_s()
        try:
            going = self._line.carry(request, sent_s) if self._cache is None else self._cached(request, sent_s)
            coming = asyncio.ensure_future(going)
        except Exception as error:  # noqa: BLE001  # a bug in the transport must end the run
            self._broke(error)
            return
        if request.scheduled_s < self._freed_s:
            self.cap_wait_s[request.id] = self._freed_s - request.scheduled_s
        self._live.departed(sent_s - max(request.scheduled_s, self._freed_s))
        self._under_way[coming] = request, sent_s
        coming.add_done_callback(self._ended)  # Note: a task that waited for each would cost as much as its sending

    async def _cached(self, request: Request, sent_s: float) -> RequestRecord | None:
        """The answer of the response cache, else that of the backend, which the cache then gets to know."""
        assert self._cache is not None
        hit = self._cache.lookup(request, sent_s)
        await asyncio.sleep(self._cache.search_s if hit is None else hit.after_s)
        now_s = self._now_s()
        if hit is not None:
            tokens = request.answers * request.output_tokens
            record = record_of(request, Ended(request.id, now_s, "ok"), sent_s, [now_s], [tokens])
            record.cache_hit = hit.hit
            return record
        self.cap_wait_s[request.id] = self.cap_wait_s.get(request.id, 0.0) + now_s - sent_s  # is no lateness
        going = self._line.carry(request, now_s)
        if self._end is not None:  # it was cut while the cache searched
            self._line.cut(request, *self._end)
        answered = self._line.record(request, now_s, await going)
        if answered is not None:
            self._cache.store(request, answered)
        return answered

    def _ended(self, coming: asyncio.Future[Any]) -> None:
        """A request has ended: take its record where there is one."""
        full = self._full
        request, sent_s = self._under_way.pop(coming)
        if full:
            self._freed_s = self._now_s()
            self._turn()
        self._live.finished += 1
        try:
            arrived = coming.result()
            record = arrived if self._cache is not None else self._line.record(request, sent_s, arrived)
            if record is not None:
                self._record(record)
        except asyncio.CancelledError:
            return
        except Exception as error:  # noqa: BLE001  # as above
            self._broke(error)
        if self._line.failure is not None:
            self._fail(self._line.failure)
        if not self._under_way:
            self._turn()

    def _record(self, record: RequestRecord) -> None:
        record.cap_wait_s = self.cap_wait_s.pop(record.request_id, None)
        self._recorder.add(record)
        if self._follow_ups is None or self._stopping:
            return
        for request in self._follow_ups(record):
            if self._ready_tokens + request.prompt_tokens <= AHEAD_TOKENS:
                self._line.prepare(request)
                self._ready.add(request.id)
                self._ready_tokens += request.prompt_tokens
            heappush(self._heap, (request.scheduled_s, request.id, request, False))
            self._turn()

    def _fail(self, message: str) -> None:
        if self._error is None:
            self._error = message
        self._turn()

    def _broke(self, error: BaseException) -> None:
        if self._error is None:
            self._crash = "".join(format_exception(error))
        self._fail(f"{type(error).__name__}: {error}")

    async def _drain(self) -> None:
        """Wait for the answers, and send the follow-ups that they bring about."""
        assert self._alarm is not None
        deadline_s = self._now_s() + self._drain_s
        while (self._under_way or self._heap) and self._interrupts < 2 and self._error is None:
            if self._heap and not self._stopping:
                await self._send()
                deadline_s = self._now_s() + self._drain_s
            elif not self._under_way or self._now_s() >= deadline_s:
                return
            else:
                stopping = self._stopping
                self._alarm.set(self._epoch_s + deadline_s)
                await self._nap()
                if self._stopping and not stopping:
                    deadline_s = self._now_s() + self._drain_s

    async def _cancel_rest(self) -> None:
        status: Status = "cancelled" if self._stopping else "timeout"
        why = "the run was stopped" if self._stopping else f"no end within {self._drain_s:g} s of the last departure"
        self._end = status, why
        self._cut += len(self._under_way)
        for request, _ in [*self._under_way.values()]:
            self._line.cut(request, status, why)
        if self._under_way:
            await asyncio.wait([*self._under_way], timeout=CANCEL_S)

    async def _tick(self) -> None:
        """Each second: fetch the backend's steps, and see that rows can still be written."""
        while True:
            await asyncio.sleep(TICK_S)
            self._recorder.add_steps(self._line.steps())
            if self._recorder.error is not None:
                self._fail(f"rows cannot be written: {self._recorder.error}")

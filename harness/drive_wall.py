"""The open loop under the wall clock: a request leaves at its time, whether or not others were answered."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing
from heapq import heappop, heappush
from typing import TYPE_CHECKING, cast

from harness.api import Backend, Ended, FollowUps, Request, RequestRecord, Status, TokenEvent
from harness.drive import End, Outcome
from harness.errors import BackendError

if TYPE_CHECKING:
    from harness.progress import Live
    from harness.recorder import Recorder

FINE_S = 0.0012
"""The last stretch before a departure is spent turning the event loop: epoll wakes up to 1 ms late."""
LEAD_S = 0.02
"""Between the start of the clock and time 0, so that the first request can be on time."""
CANCEL_S = 5.0
"""How long cancelled requests may take to let go."""
TICK_S = 1.0


class WallDriver:
    """One run under the wall clock; `interrupt` once stops the sending, twice ends the run.

    After the last departure it waits `drain_s` at most: a request unanswered then is recorded as `timeout`,
    or as `cancelled` when the run was interrupted.
    """

    def __init__(
        self,
        backend: Backend,
        schedule: Iterable[Request],
        follow_ups: FollowUps | None,
        recorder: Recorder,
        live: Live,
        drain_s: float,
    ) -> None:
        self._backend = backend
        self._schedule = iter(schedule)
        self._follow_ups = follow_ups
        self._recorder = recorder
        self._live = live
        self._drain_s = drain_s
        self._heap: list[tuple[float, int, Request, bool]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiter: asyncio.Future[bool] | None = None
        self._epoch_s = 0.0
        self._interrupts = 0
        self._error: str | None = None
        self._sent = 0
        self._cut = 0

    def __repr__(self) -> str:
        return f"<WallDriver {self._sent} sent, {len(self._tasks)} in flight, {self._interrupts} interrupts>"

    def interrupt(self) -> None:
        """Stop sending; when called again, stop waiting for answers too."""
        self._interrupts += 1
        if self._interrupts == 1:
            self._live.say(
                f"stopping: nothing more is sent, {len(self._tasks)} in flight get "
                f"{self._drain_s:g} s to finish; Ctrl-C again ends the run now"
            )
        self._turn()

    async def run(self) -> Outcome:
        """Send everything, wait for the answers, and tell how it ended."""
        self._epoch_s = time.monotonic() + LEAD_S
        self._backend.start_clock(self._epoch_s)
        self._live.start(self._epoch_s)
        ticker = asyncio.create_task(self._tick())
        try:
            self._pull()
            await self._send()
            await self._drain()
            await self._cancel_rest()
        finally:
            ticker.cancel()
            self._recorder.add_steps(self._backend.steps())
        return Outcome(self._ended(), self._sent, self._count_unsent(), self._cut, self._error)

    def _ended(self) -> End:
        if self._error is not None:
            return "failed"
        if self._interrupts:
            return "interrupted" if self._interrupts == 1 else "stopped"
        return "finished"

    def _count_unsent(self) -> int:
        return len(self._heap) + sum(1 for _ in self._schedule)

    @property
    def _stopping(self) -> bool:
        return self._interrupts > 0 or self._error is not None

    def _now_s(self) -> float:
        return time.monotonic() - self._epoch_s

    async def _send(self) -> None:
        """Send each request at its time; returns when none is pending or the run is being stopped."""
        while self._heap and not self._stopping:
            if await self._until(self._heap[0][0]) and not self._stopping:
                _, _, request, planned = heappop(self._heap)
                if planned:
                    self._pull()
                self._launch(request)
                await asyncio.sleep(0)  # the request leaves in this turn of the loop, and answers get read

    def _pull(self) -> None:
        """Make the next request of the schedule pending: the heap holds one of those, and the follow-ups."""
        request = next(self._schedule, None)
        if request is not None:
            heappush(self._heap, (request.scheduled_s, request.id, request, True))

    async def _until(self, at_s: float) -> bool:
        """Wait until `at_s`; False when something happened before that may change what is next."""
        while (left_s := at_s - self._now_s()) > 0:
            if left_s <= FINE_S:
                await asyncio.sleep(0)
            elif await self._nap(left_s - FINE_S):
                return False
        return True

    async def _nap(self, seconds: float) -> bool:
        """Sleep, coarsely; True when `_turn` ended the sleep before its time."""
        loop = asyncio.get_running_loop()
        waiter = self._waiter = loop.create_future()
        timer = loop.call_later(seconds, self._turn, False)
        try:
            return bool(await waiter)
        finally:
            self._waiter = None
            timer.cancel()

    def _turn(self, early: bool = True) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(early)

    def _launch(self, request: Request) -> None:
        self._sent += 1
        self._live.sent += 1
        task = asyncio.create_task(self._follow(request))
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        if (error := task.exception()) is not None:  # a bug of ours: never lose it
            self._fail(f"{type(error).__name__}: {error}")
        elif not self._tasks:
            self._turn()

    async def _follow(self, request: Request) -> None:
        """Submit one request, collect its tokens and record how it ended, whatever happens."""
        token_s, token_n = array("d"), array("i")
        ended: Ended | None = None
        sent_s = self._now_s()
        self._live.departed(sent_s - request.scheduled_s)
        try:
            async with aclosing(_closable(self._backend.submit(request))) as events:
                async for event in events:
                    if isinstance(event, Ended):
                        ended = event
                        break
                    token_s.append(event.at_s)
                    token_n.append(event.tokens)
        except asyncio.CancelledError:
            self._cut += 1
            ended = self._cut_off(request)
        except BackendError as error:
            self._fail(str(error))
            ended = Ended(request.id, self._now_s(), "error", error=str(error))
        except Exception as error:  # noqa: BLE001  # whatever a backend throws must leave a row and stop the run
            self._fail(f"{type(error).__name__}: {error}")
            ended = Ended(request.id, self._now_s(), "error", error=f"{type(error).__name__}: {error}")
        if ended is None:
            ended = Ended(request.id, self._now_s(), "error", error="the backend never said how this request ended")
        self._record(record_of(request, ended, sent_s, token_s, token_n))

    def _cut_off(self, request: Request) -> Ended:
        status: Status = "cancelled" if self._stopping else "timeout"
        why = "the run was stopped" if self._stopping else f"no end within {self._drain_s:g} s of the last departure"
        return Ended(request.id, self._now_s(), status, error=why)

    def _record(self, record: RequestRecord) -> None:
        self._recorder.add(record)
        self._live.finished += 1
        if self._follow_ups is None or self._stopping:
            return
        for request in self._follow_ups(record):
            heappush(self._heap, (request.scheduled_s, request.id, request, False))
            self._turn()

    def _fail(self, message: str) -> None:
        if self._error is None:
            self._error = message
        self._turn()

    async def _drain(self) -> None:
        """Wait for the answers, and send the follow-ups that they bring about."""
        deadline_s = self._now_s() + self._drain_s
        while (self._tasks or self._heap) and self._interrupts < 2 and self._error is None:
            if self._heap and not self._stopping:
                await self._send()
                deadline_s = self._now_s() + self._drain_s
            elif not self._tasks or (left_s := deadline_s - self._now_s()) <= 0:
                return
            else:
                stopping = self._stopping
                await self._nap(left_s)
                if self._stopping and not stopping:
                    deadline_s = self._now_s() + self._drain_s

    async def _cancel_rest(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CANCEL_S)

    async def _tick(self) -> None:
        """Each second: fetch the backend's steps, and see that rows can still be written."""
        while True:
            await asyncio.sleep(TICK_S)
            self._recorder.add_steps(self._backend.steps())
            if self._recorder.error is not None:
                self._fail(f"rows cannot be written: {self._recorder.error}")


def record_of(
    request: Request, ended: Ended, sent_s: float, token_s: array[float], token_n: array[int]
) -> RequestRecord:
    """The row of a request; the backend's own stamp of departure, where it has one, is the better one."""
    plain = all(n == 1 for n in token_n)
    return RequestRecord(
        request_id=request.id,
        scheduled_s=request.scheduled_s,
        sent_s=ended.sent_s if ended.sent_s is not None else sent_s,
        token_s=token_s,
        token_n=None if plain else token_n,
        prompt_tokens=request.prompt_tokens,
        output_tokens=len(token_n) if plain else sum(token_n),
        output_tokens_asked=request.output_tokens,
        status=ended.status,
        error=ended.error,
        session=request.session,
        turn=request.turn,
        tag=request.tag,
        prompt_tokens_server=ended.prompt_tokens_server,
        cached_tokens=ended.cached_tokens,
        replica=ended.replica,
        preemptions=ended.preemptions,
        prefill_start_s=ended.prefill_start_s,
        prefill_end_s=ended.prefill_end_s,
        handoff_start_s=ended.handoff_start_s,
        handoff_end_s=ended.handoff_end_s,
        decode_start_s=ended.decode_start_s,
        arrived_s=ended.arrived_s,
        slo_ttft_s=request.slo_ttft_s,
        slo_tpot_s=request.slo_tpot_s,
        ended_s=None if ended.status == "ok" else ended.at_s,
        slo_task_s=request.slo_task_s,
        exchange=ended.exchange,
    )


def _closable(events: AsyncIterator[TokenEvent | Ended]) -> AsyncGenerator[TokenEvent | Ended, None]:
    """The contract says that closing the iterator cancels the request, so it can be closed."""
    return cast("AsyncGenerator[TokenEvent | Ended, None]", events)

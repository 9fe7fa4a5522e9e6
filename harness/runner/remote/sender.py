"""A sender's process: sends its share of a schedule.

Standard input and output lead to the process that coordinates the senders, here or on another machine.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from operator import attrgetter
from traceback import format_exc
from typing import Any, Self

from harness import termination
from harness.api import DeadlineSlo, Ended, Extra, Outcome, Remote, Request, RequestRecord, ResponseCache, Step
from harness.data.dependencies import Releases, record_of
from harness.data.schedule import Schedule, flat
from harness.errors import BenchError, Crashed, UsageError
from harness.ipc import MOST_BYTES, DataReader, Outbox, data_frame, receive, where
from harness.runner.remote.process import SenderWatch, raise_priority
from harness.runner.remote.split import ITL_S, TTFT_S, requests_rps, share
from harness.runner.transport import DeferredTransport
from harness.runner.virtual import quiet_process
from harness.runner.wall import WallDriver
from harness.timer import WaitingLoop
from harness.version import __version__

PROGRESS_S = 0.25
"""How often a sender reports its progress."""
GATHER_S = 0.01
"""How long an answer waits for others to be passed on together: each time wakes the process that reads them."""
FLUSH_S = 60.0
"""The last answers are given up when the process that reads them takes nothing for so long."""
ALONE_S = 30.0
"""On another machine a sender stops when nothing has come for so long; a message comes each second."""
HELLO = "bench sender "
"""How the line begins that a sender writes before any message; its version follows."""


@dataclass(frozen=True, slots=True)
class Job:
    """First message to a sender: sender `index` of `count`, sending its share of the schedule.

    The schedule is the path of its file, or on another machine the bytes of that file.
    """

    backend: Remote
    schedule: str | bytes
    index: int
    count: int
    duration_s: float | None
    drain_s: float
    max_in_flight: int | None = None
    raised: bool = True
    """Whether it sends at raised priority, as far as its system allows."""
    response_cache: ResponseCache | None = None


@dataclass(frozen=True, slots=True)
class Connect:
    """All senders have built their requests: open connections. An idle connection does not stay good for long."""


@dataclass(frozen=True, slots=True)
class Ready:
    """Answer to `Job` when requests are built, and to `Connect` when connections are open; or why not."""

    error: BenchError | None = None


@dataclass(frozen=True, slots=True)
class Ping:
    """Asks for the time, at `sent_s` of the clock of the process that asks."""

    sent_s: float


@dataclass(frozen=True, slots=True)
class Pong:
    """Answer to a ping: the monotonic clock of the sender."""

    sent_s: float
    now_s: float


@dataclass(frozen=True, slots=True)
class Go:
    """The run starts: time 0 is `epoch_s` of the sender's monotonic clock."""

    epoch_s: float


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Stop sending; the second one, or one that says so, ends the run."""

    at_once: bool = False


@dataclass(slots=True)  # what is frozen takes three times as long to make
class Arrived:
    """An answer that has ended, unread, and what its record needs of its request."""

    id: int
    scheduled_s: float
    prompt_tokens: int
    output_tokens: int
    session: int | None
    turn: int
    tag: str | None
    slo_ttft_s: float | None
    slo_tpot_s: float | None
    slo_task_s: float | None
    slo_e2e_s: float | None
    answers: int
    cap_wait_s: float | None
    answer: Any

    @classmethod
    def of(cls, request: Request, cap_wait_s: float | None, answer: object) -> Self:
        return cls(*_of_request(request), cap_wait_s, answer)  # type: ignore[call-arg]  # of all its fields

    @property
    def request(self) -> Request:
        slo = None if self.slo_e2e_s is None else DeadlineSlo(self.slo_e2e_s)
        extra = None if slo is None and self.answers == 1 else Extra(slo=slo, n=self.answers)
        return Request(**dict(zip(_OF_REQUEST[:-2], _of_request(self), strict=False)), extra=extra)


@dataclass(frozen=True, slots=True)
class Known:
    """The record of a request without an answer to be read."""

    record: RequestRecord


@dataclass(slots=True)
class Progress:
    """How far a sender is; `late_s` is the lateness of departures since the last message."""

    sent: int = 0
    finished: int = 0
    late_s: list[float] = field(default_factory=list)

    def start(self, epoch_s: float) -> None:
        """Nothing to show."""

    def departed(self, late_s: float) -> None:
        """A request left that late."""
        self.late_s.append(late_s)

    def say(self, line: str) -> None:
        """Nothing to print: the coordinator informs the user."""


@dataclass(frozen=True, slots=True)
class Done:
    """Last message: how it ended and what the sender knows about itself, or what broke, with its traceback."""

    outcome: Outcome | None
    facts: Mapping[str, Any]
    error: str | None = None
    traceback: str | None = None


@dataclass(frozen=True, slots=True)
class Calibrate:
    """First message to a sender that shall measure the floor of its machine under its share of a schedule."""

    backend: Remote
    schedule: bytes
    index: int
    count: int
    seconds: float
    raised: bool


@dataclass(frozen=True, slots=True)
class Measured:
    """Its answer: what it found, or why it found nothing."""

    found: dict[str, Any]
    error: str | None = None


_OF_REQUEST = tuple(field.name for field in fields(Arrived)[:-2])
_of_request = attrgetter(*_OF_REQUEST)
REPORTS = (Arrived, Known, Progress, Done)
"""What a sender sends by itself during a run."""
from_sender = DataReader(Ready, Pong, Measured, *REPORTS)
"""Reads what senders send."""


class Outgoing:
    """Hands what has ended to the other process; stands in for the recorder of a driver."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self.error: Exception | None = None
        self.cap_wait_s: dict[int, float] = {}
        """That of the driver."""

    def add(self, record: RequestRecord) -> None:
        """An answer of the backend was passed on, and is read and recorded there; one of the response cache is not."""
        if record.cache_hit is not None:
            self.drop(record)

    def drop(self, record: RequestRecord) -> None:
        """The record of a request whose answer is not passed on: it will never be sent, or there is none to be read."""
        self._outbox.send(Known(record))

    def add_steps(self, steps: Iterable[Step]) -> None:
        """A remote endpoint reports none."""

    def pass_on(self, request: Request, answer: object) -> None:
        """An answer to be read there."""
        arrived = Arrived.of(request, self.cap_wait_s.pop(request.id, None), answer)
        if not self._outbox.send(arrived, MOST_BYTES, wait_s=GATHER_S):
            why = f"the answer is larger than {MOST_BYTES >> 20} MiB, the most that a sender passes on"
            ended = Ended(request.id, request.scheduled_s, "error", error=why)
            self.drop(record_of(request, ended, request.scheduled_s))


async def work(job: object, reader: asyncio.StreamReader, outbox: Outbox) -> None:
    """Do the job, until it is done or the other process is gone."""
    assert isinstance(job, Job)
    try:
        shard = share(Schedule.received(job.schedule), job.index, job.count)
        driver, progress = _built(job, shard, outbox)
        outbox.send(Ready())
        assert isinstance(await receive(reader), Connect)
        tokens = shard.table["output_tokens"].to_numpy()
        mean_tokens = float(tokens.mean()) if len(tokens) else 0.0
        rate_rps = requests_rps(shard, TTFT_S + mean_tokens * ITL_S)
        await job.backend.connect(job.index, rate_rps, mean_tokens)
        outbox.send(Ready())
    except Exception as error:  # noqa: BLE001  # the coordinator must be informed of any bug
        cause = error if isinstance(error, BenchError) else Crashed.of(f"a sender broke: {where(error)}", format_exc())
        outbox.send(Ready(cause))
        await outbox.flush(FLUSH_S)
        return
    try:
        while isinstance(go := await receive(reader), Ping):
            outbox.send(Pong(go.sent_s, time.monotonic()))
        assert isinstance(go, Go)
        await _run(job, go, driver, progress, reader, outbox)
    finally:
        await job.backend.close()


def _built(job: Job, ours: Schedule, outbox: Outbox) -> tuple[WallDriver, Progress]:
    """A driver whose first requests are built."""
    outgoing, progress = Outgoing(outbox), Progress()
    follow_ups = Releases(ours, outgoing.drop, job.duration_s) if ours.has_follow_ups else None
    # others leave when these have ended; a response cache stores all
    waited = flat(ours.table["after"].combine_chunks()) if job.response_cache is None else ours.table["id"]
    line = DeferredTransport(job.backend, frozenset(waited.to_pylist()), outgoing.pass_on)
    driver = WallDriver(
        line, ours.planned(), follow_ups, outgoing, progress, job.drain_s, job.max_in_flight, job.response_cache
    )
    outgoing.cap_wait_s = driver.cap_wait_s
    driver.prepare()
    return driver, progress


async def _run(
    job: Job, go: Go, driver: WallDriver, progress: Progress, reader: asyncio.StreamReader, outbox: Outbox
) -> None:
    priority = raise_priority() if job.raised else "ordinary"
    watch = SenderWatch()
    others = [asyncio.ensure_future(watch.run()), asyncio.ensure_future(_report(progress, outbox))]
    over = asyncio.Event()
    patience_s = ALONE_S if isinstance(job.schedule, bytes) else None
    listening = asyncio.ensure_future(_listen(reader, driver, outbox, over, patience_s))
    try:
        with quiet_process():
            outcome = await driver.run(go.epoch_s)
            seen = watch.facts()  # before the collector is let loose again
        loop = type(asyncio.get_running_loop()).__name__
        outbox.send(progress)
        outbox.send(
            Done(
                outcome,
                {"sent": outcome.sent, "loop": loop, "priority": priority, **seen, **job.backend.sender_facts()},
            )
        )
    except Exception as error:  # noqa: BLE001  # the coordinator must be informed of any bug
        outbox.send(Done(None, {}, where(error), format_exc()))
    finally:
        for other in others:
            other.cancel()
    await outbox.flush(FLUSH_S)
    over.set()
    await listening  # its clock may be read once more


async def _listen(
    reader: asyncio.StreamReader, driver: WallDriver, outbox: Outbox, over: asyncio.Event, patience_s: float | None
) -> None:
    """Take interrupts and tell the time, until the coordinator is gone: an unfinished sender then exits at once.

    No process would record its answers. Silence for `patience_s` means the same: the network between them is gone.
    """
    while True:
        try:
            message = await asyncio.wait_for(receive(reader), patience_s)
        except (asyncio.IncompleteReadError, ConnectionError, TimeoutError):
            if over.is_set():
                return
            os._exit(1)
        if isinstance(message, Interrupt):
            driver.interrupt(message.at_once)
        elif isinstance(message, Ping):
            outbox.send(Pong(message.sent_s, time.monotonic()))


async def _report(progress: Progress, outbox: Outbox) -> None:
    while True:
        await asyncio.sleep(PROGRESS_S)
        late_s, progress.late_s = progress.late_s, []
        outbox.send(Progress(progress.sent, progress.finished, late_s))


async def _serve(do: Callable[[object, asyncio.StreamReader, Outbox], Awaitable[None]], given: int, taken: int) -> None:
    os.write(taken, f"{HELLO}{__version__}\n".encode())
    reader = asyncio.StreamReader(limit=1 << 24)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(given, "rb", buffering=0))
    outbox = Outbox(taken, loop, data_frame)
    try:
        job = await receive(reader)
    except (AttributeError, ImportError, TypeError) as error:
        why = f"it cannot read its job ({type(error).__name__}: {error}); install the same versions on all hosts"
        outbox.send(Ready(UsageError(f"{why}.")))
        await outbox.flush(FLUSH_S)
        return
    await do(job, reader, outbox)


def main(do: Callable[[object, asyncio.StreamReader, Outbox], Awaitable[None]] = work) -> None:
    """Serve the process at the other end of standard input and output: `do` gets its first message."""
    termination.led()  # by the process at the other end
    stdin_fd, stdout_fd, nothing = os.dup(0), os.dup(1), os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)  # what others print must not come between the messages
    with (
        contextlib.suppress(asyncio.IncompleteReadError, ConnectionError),
        asyncio.Runner(loop_factory=WaitingLoop) as runner,
    ):
        runner.run(_serve(do, stdin_fd, stdout_fd))

"""The wall-clock driver alone, against backends that do one thing each."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest

from backends.null import Null
from harness.api import Ended, FollowUps, Outcome, Request, RequestRecord, Step, TokenEvent
from harness.errors import BackendError
from harness.runner.live import Live
from harness.runner.recorder import Recorder
from harness.runner.transport import StreamingTransport
from harness.runner.virtual import quiet_process
from harness.runner.wall import AHEAD_TOKENS, WallDriver


class Rows:
    """Keeps rows in memory."""

    def __init__(self) -> None:
        self.records: list[RequestRecord] = []
        self.steps: list[Step] = []

    def add_records(self, records: list[RequestRecord]) -> None:
        self.records += records

    def add_steps(self, steps: Sequence[Step]) -> None:
        self.steps += steps

    def flush(self) -> None:
        pass


class Scripted(Null):
    """A backend whose answer is a function of the request."""

    def __init__(self, answer: Callable[[Request], AsyncIterator[TokenEvent | Ended]]) -> None:
        super().__init__()
        self.answer = answer

    def submit(self, request: Request) -> AsyncIterator[TokenEvent | Ended]:
        return self.answer(request)


def drive(
    backend: Null,
    requests: Sequence[Request],
    follow_ups: FollowUps | None = None,
    drain_s: float = 60.0,
    after: Callable[[WallDriver], None] = lambda _: None,
) -> tuple[Outcome, dict[int, RequestRecord]]:
    """Outcome, and records by id; `after` is called with the driver 50 ms after the second request has left."""
    rows = Rows()
    live = Live(total=len(requests))

    async def main() -> Outcome:
        recorder = Recorder(rows)
        driver = WallDriver(StreamingTransport(backend), requests, follow_ups, recorder, live, drain_s)
        loop = asyncio.get_running_loop()

        def watch() -> None:
            loop.call_later(0.05, after, driver) if live.sent >= 2 else loop.call_later(0.005, watch)

        watch()
        outcome = await driver.run()
        recorder.close()
        return outcome

    outcome = asyncio.run(main())
    assert len(rows.records) == len({r.request_id for r in rows.records})
    return outcome, {r.request_id: r for r in rows.records}


def at(*times_s: float, tokens: int = 3) -> list[Request]:
    return [Request(i, t, prompt_tokens=5, output_tokens=tokens) for i, t in enumerate(times_s)]


def test_every_request_ends_in_one_record() -> None:
    """Requests would be missing from the table, and attainment would be too good."""
    outcome, records = drive(Null(), at(0.0, 0.01, 0.01, 0.02))

    assert Outcome("finished", sent=4, not_sent=0, cut=0) == outcome
    assert [0, 1, 2, 3] == sorted(records)
    assert all(r.status == "ok" and r.output_tokens == 3 and r.token_n is None for r in records.values())
    assert all(r.sent_s is not None and r.scheduled_s <= r.sent_s <= r.token_s[0] for r in records.values())


def test_departures_do_not_wait_for_answers() -> None:
    """A slow server would get less traffic than requested, which hides its slowness (coordinated omission)."""
    started: list[int] = []
    gate = asyncio.Event()

    async def answer(request: Request) -> AsyncIterator[TokenEvent | Ended]:
        started.append(request.id)
        if len(started) == 3:
            gate.set()
        await gate.wait()  # no answer before the last request was sent
        yield Ended(request.id, 0.0, "ok")

    outcome, _ = drive(Scripted(answer), at(0.0, 0.005, 0.01))

    assert ("finished", 3) == (outcome.ended, outcome.sent)


def test_chunks_keep_their_token_counts() -> None:
    """A server that sends several tokens per chunk would seem to have produced fewer."""

    async def answer(request: Request) -> AsyncIterator[TokenEvent | Ended]:
        yield TokenEvent(request.id, 0.1, 1)
        yield TokenEvent(request.id, 0.2, 4)
        yield Ended(request.id, 0.3, "ok", sent_s=0.05, replica=2)

    _, records = drive(Scripted(answer), at(0.0))

    assert [1, 4] == list(records[0].token_n or ())
    assert (5, 0.05, 2) == (records[0].output_tokens, records[0].sent_s, records[0].replica)


def test_follow_ups_go_out_when_their_answer_has_come() -> None:
    """Later turns of a conversation would be lost, or sent before the user has read the answer."""

    def follow_ups(record: RequestRecord) -> list[Request]:
        if record.turn == 2:
            return []
        turn_s = record.token_s[-1] + 0.01
        return [Request(record.request_id + 10, turn_s, 5, 3, session=1, turn=record.turn + 1)]

    outcome, records = drive(Null(ttft_s=0.01), at(0.0, 0.2), follow_ups)

    assert [0, 1, 10, 11, 20, 21] == sorted(records)
    assert 6 == outcome.sent
    assert records[0].token_s[-1] < records[10].sent_s  # type: ignore[operator]  # it was sent
    assert records[10].token_s[-1] < records[20].sent_s  # type: ignore[operator]
    assert 0.2 <= records[1].sent_s  # type: ignore[operator]


def test_interrupt_once_stops_sending_and_waits() -> None:
    """Ctrl-C would throw away answers that were nearly there."""
    outcome, records = drive(Null(ttft_s=0.1), at(0.0, 0.01, 30.0, 60.0), after=WallDriver.interrupt)

    assert Outcome("interrupted", sent=2, not_sent=2, cut=0) == outcome
    assert ["ok", "ok"] == [records[i].status for i in (0, 1)]


def test_interrupt_twice_ends_now_and_keeps_what_came() -> None:
    """The second Ctrl-C would hang on a server that never answers, or lose the unanswered requests."""

    def twice(driver: WallDriver) -> None:
        driver.interrupt()
        driver.interrupt()

    outcome, records = drive(Null(tpot_s=3600.0), at(0.0, 0.01, 30.0), drain_s=3600.0, after=twice)

    assert Outcome("stopped", sent=2, not_sent=1, cut=2) == outcome
    assert ["cancelled", "cancelled"] == [records[i].status for i in (0, 1)]
    assert [1, 1] == [records[i].output_tokens for i in (0, 1)]


def test_an_interrupt_at_once_is_one_even_when_nothing_is_under_way() -> None:
    """Of two interrupts the second could come after the end: a run that a full disk ended was called interrupted."""
    outcome, _ = drive(Null(ttft_s=0.0), at(0.0, 0.01, 30.0), after=lambda driver: driver.interrupt(at_once=True))

    assert "stopped" == outcome.ended


def test_unanswered_requests_time_out_after_the_drain() -> None:
    """A server that swallows one request would hold the run forever."""
    outcome, records = drive(Null(ttft_s=3600.0), at(0.0, 0.01), drain_s=0.05)

    assert Outcome("finished", sent=2, not_sent=0, cut=2) == outcome
    assert ["timeout", "timeout"] == [records[i].status for i in (0, 1)]


def test_crash_keeps_everything_measured_before() -> None:
    """The end of a server would take the measurements before it along."""
    outcome, records = drive(Null(crash_after=3), at(0.0, 0.01, 0.02, 30.0))

    assert ("failed", 3, 1) == (outcome.ended, outcome.sent, outcome.not_sent)
    assert "crash_after" in (outcome.error or "")
    assert ["ok", "ok", "error"] == [records[i].status for i in (0, 1, 2)]


def test_bug_of_a_backend_is_a_failed_run_with_a_row() -> None:
    """A programming error of a backend would look like a server that does not answer."""

    async def answer(request: Request) -> AsyncIterator[TokenEvent | Ended]:
        yield TokenEvent(request.id, 0.1)
        raise KeyError("block table")

    outcome, records = drive(Scripted(answer), at(0.0))

    assert ("failed", "KeyError: 'block table'") == (outcome.ended, outcome.error)
    assert ("error", 1) == (records[0].status, records[0].output_tokens)


def test_stream_without_an_end_is_an_error_of_that_request() -> None:
    """A connection that breaks off would count as a good answer."""

    async def answer(request: Request) -> AsyncIterator[TokenEvent | Ended]:
        yield TokenEvent(request.id, 0.1)

    outcome, records = drive(Scripted(answer), at(0.0))

    assert ("finished", "error") == (outcome.ended, records[0].status)


def test_failing_share_is_exact_and_stays_in_the_table() -> None:
    """Failures would leave the table, and attainment would be a share of the successes only."""
    _, records = drive(Null(fail_share=0.25), at(*[0.0] * 100))

    assert 25 == sum(r.status == "error" for r in records.values())


def test_full_disk_stops_the_run_and_is_reported() -> None:
    """A run would go on for hours although nothing is written."""

    class Full(Rows):
        def flush(self) -> None:
            raise OSError(28, "No space left on device")

    async def main() -> None:
        recorder = Recorder(Full())
        driver = WallDriver(StreamingTransport(Null()), at(0.0, 30.0), None, recorder, Live(), 1.0)
        outcome = await driver.run()
        assert ("failed", 1) == (outcome.ended, outcome.not_sent)
        recorder.close()

    with pytest.raises(OSError, match="No space left"):
        asyncio.run(main())


def test_garbage_collection_comes_back_after_a_run() -> None:
    """A program that calls the harness would grow without bound afterwards."""
    import gc
    import sys

    turn_s = sys.getswitchinterval()

    def failing() -> None:
        with quiet_process():
            assert not gc.isenabled()
            raise BackendError("the run failed")

    with pytest.raises(BackendError):
        failing()

    assert gc.isenabled()
    assert turn_s == sys.getswitchinterval()


async def test_few_long_follow_ups_are_made_ready_at_a_time() -> None:
    """Bodies of megabytes would be held for hours of think time, one for each of thousands of users."""
    waiting, most = set[int](), 0

    class Counting(StreamingTransport):
        def prepare(self, request: Request) -> None:
            nonlocal most
            waiting.add(request.id)
            most = max(most, len(waiting & set(range(1, 9))))

        def carry(self, request: Request, sent_s: float) -> Awaitable[object]:
            waiting.discard(request.id)
            return super().carry(request, sent_s)

    def follow_ups(record: RequestRecord) -> list[Request]:
        due_s = [0.05 + 0.03 * i for i in range(8)] if record.request_id == 0 else []
        return [Request(i, at_s, AHEAD_TOKENS, output_tokens=1) for i, at_s in enumerate(due_s, 1)]

    rows = Rows()

    recorder = Recorder(rows)
    outcome = await WallDriver(Counting(Null()), at(0.0), follow_ups, recorder, Live(total=9), 5.0).run()
    recorder.close()

    assert 9 == outcome.sent
    assert 9 == len(rows.records)
    assert 1 <= most <= 2


async def test_a_bug_while_the_first_request_leaves_ends_the_run() -> None:
    """Nothing under way would ever wake a run that has more to send."""

    class Broken(StreamingTransport):
        def carry(self, request: Request, sent_s: float) -> Awaitable[object]:
            raise KeyError(request.id, sent_s)

    driver = WallDriver(Broken(Null()), at(0.0, 9.0), None, Recorder(Rows()), Live(total=2), 1.0)

    assert "failed" == (await asyncio.wait_for(driver.run(time.monotonic()), 5.0)).ended

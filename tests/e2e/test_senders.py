"""Requests to a remote endpoint, sent by processes of their own and read in this one."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
import pytest

from backends.client.connection import Answer
from backends.client.null_server import Timing, running
from backends.openai import OpenAI
from harness.api import Outcome, Request, RequestRecord
from harness.data.records import scheduled_table
from harness.data.schedule import Schedule, digest
from harness.ipc import data_frame
from harness.options import RunSpec
from harness.registry import make
from harness.runner.live import Live
from harness.runner.remote.coordinator import Senders, _Child
from harness.runner.remote.hosts import Line
from harness.runner.remote.process import raise_priority, yielding
from harness.runner.remote.sender import Arrived, Progress
from harness.runner.run import Result, execute


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server that answers 20 ms after a request, with a token each 2 ms."""
    with running(Timing(0.02, 0.002, 4)) as found:
        yield found


def run(url: str, out: Path, say: Callable[[str], None] = lambda _: None, **options: object) -> Result:
    """A short run against that server, without a measurement of the client."""
    given = {"workload": "chatbot", "lengths": "fixed:prompt=20,output=4", "rate": 100.0, "requests": 60, **options}
    return execute(RunSpec(backend=f"openai:url={url}", calibrate=0.0, **given), out=out, say=say)  # type: ignore[arg-type]


@pytest.mark.parametrize(("senders", "priority"), [("1", None), ("3", "off")])
def test_every_request_ends_in_one_record(url, tmp_path, senders, priority, monkeypatch):
    """A request would be lost, or counted twice, between the processes; or a busy machine be taken for the server."""
    monkeypatch.setattr(os, "getloadavg", lambda: (999.0, 999.0, 999.0))
    lines: list[str] = []
    result = run(url, tmp_path / "run", lines.append, senders=senders, priority=priority)
    table = result.run.requests

    assert ("finished", 60) == (result.outcome.ended, result.outcome.sent)
    assert list(range(60)) == sorted(table["request_id"].to_pylist())
    assert {"ok"} == set(table["status"].to_pylist())
    assert (int(senders), "batch") == (result.run.info.client.senders, result.run.info.client.scheduling)
    assert 1 == sum(line.startswith("warning: load 999.0 on") for line in lines)
    obtained = {str(sender.priority).split()[0] for sender in result.run.info.client.per_sender}
    assert obtained <= ({"ordinary"} if priority == "off" else {"real", "niceness", "ordinary"})


def test_a_sender_takes_the_priority_that_its_system_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run without privileges would fail, or be reported with what it has not."""
    nicenesses: list[int] = []

    def refuse(*_: object) -> None:
        raise PermissionError

    def limited(_which: int, _who: int, niceness: int) -> None:
        nicenesses.append(niceness)
        if niceness < lowest:
            raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    monkeypatch.setattr(os, "setpriority", limited)
    lowest = -5

    assert ("niceness -5", -5) == (raise_priority(), nicenesses[-1])
    lowest = 20
    assert "ordinary" == raise_priority()
    monkeypatch.setattr(os, "sched_setscheduler", lambda *_: None)
    assert "real time" == raise_priority()


@pytest.mark.nightly
def test_the_schedule_does_not_depend_on_the_senders(url, tmp_path):
    """A run would be another one on a machine with more cores."""
    one, three = (run(url, tmp_path / n, senders=n).run for n in ("1", "3"))

    assert one.info.schedule.sha256 == three.info.schedule.sha256
    assert [0] == sorted(set(one.http["sender"].to_pylist()))
    assert [0, 1, 2] == sorted(set(three.http["sender"].to_pylist()))


def test_nothing_leaves_before_its_time(url, tmp_path):
    """The arrivals would not be those that were drawn."""
    table = run(url, tmp_path / "run", senders="2").run.requests

    assert (table["sent_s"].to_numpy() >= table["scheduled_s"].to_numpy()).all()


@pytest.mark.parametrize("senders", ["1", "2"])
def test_turns_follow_the_answers(url, tmp_path, senders):
    """The next turn of a conversation would be sent before the answer it replies to."""
    result = run(url, tmp_path / "run", sessions="fixed:turns=3,think=10ms", requests=45, senders=senders)
    rows = result.run.requests.select(["session", "turn", "sent_s", "token_s"]).to_pylist()
    ended_s = {(row["session"], row["turn"]): row["token_s"][-1] for row in rows}
    before = [(row["sent_s"], ended_s.get((row["session"], row["turn"] - 1))) for row in rows]
    waits_s = [sent_s - answered_s for sent_s, answered_s in before if answered_s is not None]

    assert 45 == len(rows)
    assert 25 < len(waits_s)
    assert min(waits_s) >= 0.01


def test_waiting_users_go_on_with_each_answer(url, tmp_path):
    """A closed loop would stop, or let one user have two requests under way."""
    result = run(url, tmp_path / "run", arrivals="closed:users=5,think=0s", rate=None, requests=40, senders="2")
    table = result.run.requests
    starts, ends = table["sent_s"].to_numpy(), np.array([stamps[-1] for stamps in table["token_s"].to_pylist()])
    at_once = [int(((starts <= at) & (ends > at)).sum()) for at in starts]

    assert 40 == len(table)
    assert 5 == (table["scheduled_s"].to_numpy() == 0).sum() >= max(at_once)


def test_a_server_that_fails_every_request_ends_the_run(tmp_path):
    """An hour of failures would be sent unnoticed."""
    slow = Timing(60.0, 0.002, 4)  # by far, as answers a little over the limit come in time on a busy machine
    with running(slow) as url:
        result = run(f"{url},first_token_s=5ms,model=m,probe=off", tmp_path / "run", requests=2000, rate=200.0)

    assert (3, "failed") == (result.exit_code, result.outcome.ended)
    assert "the first 20 requests all failed" in str(result.outcome.error)
    assert 20 <= len(result.run.requests) == result.outcome.sent < 2000


class Taken:
    """Keeps records in memory, and tells when there are `wanted` of them."""

    def __init__(self, wanted: int) -> None:
        self.records: list[RequestRecord] = []
        self.error: Exception | None = None
        self.wanted = wanted
        self.enough = asyncio.Event()

    def add(self, record: RequestRecord) -> None:
        self.records.append(record)
        if len(self.records) == self.wanted:
            self.enough.set()

    def add_steps(self, steps: object) -> None:
        pass


def sent(
    url: str, path: Path, do: Callable[[Senders], None], *, after: int = 40, requests: int = 6000
) -> tuple[Outcome, list[RequestRecord]]:
    """Have 100 requests a second sent by two senders, and `do` something when `after` of them have ended.

    There are so many that a busy machine does it before the last ones are sent; what is done ends the run.
    """
    table = scheduled_table([Request(i, 0.01 * i, 20, 4) for i in range(requests)])
    Schedule(table, digest(table)).save(path)
    taken = Taken(after)

    async def main() -> Outcome:
        backend = OpenAI(url=url)
        await backend.open(make("content", "text"))
        senders = Senders(backend, path, 2, None, 5.0, taken, Live(total=requests), begun=lambda _: None)
        try:
            await senders.open()
            going = asyncio.ensure_future(senders.run())
            await asyncio.wait_for(taken.enough.wait(), 120)
            do(senders)
            return await asyncio.wait_for(going, 120)
        finally:
            await senders.close()

    return asyncio.run(main()), taken.records


@pytest.mark.nightly
def test_an_interrupt_lets_answers_finish(url, tmp_path):
    """Ctrl-C would throw away what is under way."""
    outcome, records = sent(url, tmp_path / "schedule.parquet", Senders.interrupt)

    assert "interrupted" == outcome.ended
    assert {"ok"} == {record.status for record in records}
    assert (len(records), 6000) == (outcome.sent, outcome.sent + outcome.not_sent)


@pytest.mark.nightly
def test_a_second_interrupt_ends_at_once_and_loses_nothing(url, tmp_path):
    """Requests that were under way would leave no record."""

    def twice(senders: Senders) -> None:
        senders.interrupt()
        senders.interrupt()

    outcome, records = sent(url, tmp_path / "schedule.parquet", twice)

    assert "stopped" == outcome.ended
    assert {"ok", "cancelled"} >= {record.status for record in records}
    assert outcome.sent == len(records)


def test_a_sender_that_dies_ends_the_run_and_is_named(url, tmp_path):
    """Half of the load would go on as if it were the whole."""

    def kill(senders: Senders) -> None:
        senders._children[0].line.process.kill()

    outcome, records = sent(url, tmp_path / "schedule.parquet", kill)

    assert "failed" == outcome.ended
    assert "sender 1 of 2 was ended by SIGKILL" in str(outcome.error)
    assert 40 <= len(records) < 6000


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Senders are given up after 3 s, so that a test is short."""
    for name, value_s in {"LOOK_S": 0.1, "QUIET_S": 1.0, "STILL_S": 3.0}.items():
        monkeypatch.setattr(f"harness.runner.remote.coordinator.{name}", value_s)
    monkeypatch.setattr("harness.runner.remote.hosts.LEAVE_S", 0.5)


def test_a_sender_that_stands_still_ends_the_run_and_is_named(url, tmp_path, impatient):
    """Its socket stays open: the run would wait for its answers for ever."""

    def stop(senders: Senders) -> None:
        senders._children[0].line.process.send_signal(signal.SIGSTOP)

    outcome, records = sent(url, tmp_path / "schedule.parquet", stop)
    later = {record.request_id for record in records if record.scheduled_s > 2}

    assert "stopped" == outcome.ended
    assert outcome.crash is None
    assert "sender 1 of 2 stood still (stopped or frozen?) and reported nothing for 3 s; " in str(outcome.error)
    assert outcome.sent - len(records) == int(str(outcome.error).split("at least ")[1].split()[0])
    assert later  # the other sender went on, and its records are kept


def test_senders_are_not_blamed_for_a_coordinator_that_stands_still(url, tmp_path, impatient):
    """Ctrl-Z stops it, and not the senders: fg would end a run that can go on."""
    outcome, records = sent(url, tmp_path / "schedule.parquet", lambda _: time.sleep(3.5), requests=400)

    assert ("finished", None) == (outcome.ended, outcome.error)
    assert 400 == len(records)


class Killed:
    """A process that was killed."""

    async def wait(self) -> int:
        return -9


async def test_answers_that_a_dead_sender_had_not_handed_over_are_reported(tmp_path):
    """Who reads the verdict would believe that nothing is missing but what was under way."""
    taken = Taken(99)
    senders = Senders(OpenAI(), tmp_path, 1, None, 5.0, taken, Live(total=9), begun=lambda _: None)
    reader = asyncio.StreamReader()
    answers = [Arrived.of(Request(i, 0.0, 5, 4), None, Answer(how="failed", why="no")) for i in range(2)]
    for message in (Progress(5, 5), *answers):
        reader.feed_data(data_frame(message))
    reader.feed_eof()
    await senders._listen(_Child(0, Line(Killed(), reader, None)))  # type: ignore[arg-type]  # as much as is needed
    error, records = senders._error, len(taken.records)

    assert 2 == records
    assert "sender 1 of 1 was ended by SIGKILL; at least 3 requests that it had sent have no record" == error


def test_a_server_that_goes_away_ends_the_run(tmp_path):
    """The rest of an hour would be failures, and their share would decide the verdict."""
    with ExitStack() as server:
        url = server.enter_context(running(Timing(0.02, 0.002, 4)))
        outcome, records = sent(url, tmp_path / "schedule.parquet", lambda _: server.close())

    assert "failed" == outcome.ended
    assert "20 requests in a row got no answer" in str(outcome.error)
    assert 40 <= len(records) < 6000


def test_what_a_run_does_with_its_own_priority_is_undone_before_it_concludes() -> None:
    """Beside busy processes the conclusion of a run starved for minutes at niceness 10."""
    before = os.sched_getscheduler(0), os.nice(0)
    with suppress(KeyboardInterrupt), yielding() as policy:
        during = os.sched_getscheduler(0), os.nice(0)
        raise KeyboardInterrupt

    assert ("batch", (os.SCHED_BATCH, before[1])) == (policy, during)
    assert before == (os.sched_getscheduler(0), os.nice(0))

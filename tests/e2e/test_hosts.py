"""Senders on other hosts: processes behind a command, and network namespaces with a clock of their own."""

import asyncio
import os
import pickle
import re
import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from backends.client.connection import Answer
from backends.client.null_server import Timing, running, take_truth
from backends.openai import OpenAI
from harness.api import Outcome, Request, RequestRecord
from harness.data.records import scheduled_table
from harness.data.schedule import Schedule, digest
from harness.errors import BackendError, Crashed, UsageError
from harness.ipc import MOST_BYTES, Malformed, data_frame, of_data, receive
from harness.registry import make
from harness.runner.live import Live
from harness.runner.remote import sender
from harness.runner.remote.coordinator import Senders
from harness.runner.remote.hosts import Line, command, greet, label
from harness.runner.remote.sender import Arrived, Ping, Pong, Ready, from_sender

HERE = f"{sys.executable} -m harness sender"
"""Starts a sender as a shell on another machine would."""
SHIFT_S = 5000


def _permitted(*words: str) -> bool:
    try:
        return subprocess.run([*words], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _elsewhere() -> tuple[str, float]:
    """A host with another monotonic clock, where this user may make one, and by how much it differs."""
    other_time = ("unshare", "-T", "--monotonic", str(SHIFT_S))
    return (" ".join((*other_time, HERE)), SHIFT_S) if _permitted(*other_time, "true") else (HERE, 0.0)


@dataclass(slots=True)
class Sent:
    """What a run of `Senders` gave."""

    records: list[RequestRecord] = field(default_factory=list)
    outcome: Outcome | None = None
    facts: list[dict[str, Any]] = field(default_factory=list)
    epoch_s: float = 0.0
    error: Exception | None = None
    enough: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, record: RequestRecord) -> None:
        self.records.append(record)
        if len(self.records) == 40:
            self.enough.set()

    def add_steps(self, steps: object) -> None:
        pass

    def started(self, epoch_s: float) -> None:
        self.epoch_s = epoch_s

    def arrivals_s(self) -> np.ndarray:
        """(requests,) in order."""
        return np.sort([record.sent_s for record in self.records if record.sent_s is not None])


def send(
    backend: OpenAI, path: Path, times_s: Sequence[float], hosts: Sequence[str],
    disturb: Callable[[Senders], None] | None = None,
) -> Sent:  # fmt: skip
    """A request of 4 tokens at each of these times, by one sender a host; `disturb` is called after 40 records."""
    table = scheduled_table([Request(i, at_s, 20, 4) for i, at_s in enumerate(times_s)])
    Schedule(table, digest(table)).save(path)
    sent = Sent()

    async def main() -> None:
        await backend.open(make("content", "text"))
        count = len(hosts) or 1
        senders = Senders(backend, path, count, None, 5.0, sent, Live(total=len(times_s)), sent.started, hosts)
        try:
            await senders.open()
            going = asyncio.ensure_future(senders.run())
            if disturb is not None:
                await asyncio.wait_for(sent.enough.wait(), 120)
                disturb(senders)
            sent.outcome = await asyncio.wait_for(going, 240)
            sent.facts = senders.facts
        finally:
            await senders.close()

    asyncio.run(main())
    return sent


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server that answers 20 ms after a request."""
    with running(Timing(0.02, 0.002, 4)) as found:
        yield found


def test_two_hosts_send_one_schedule_by_one_clock(url: str, tmp_path: Path) -> None:
    """Requests would be lost or sent twice, or the times of a host would be off by what its clock shows."""
    place, shift_s = _elsewhere()
    sent = send(OpenAI(url, source="127.0.0.2|127.0.0.3"), tmp_path / "s.parquet", np.arange(60) * 0.01, (HERE, place))
    served = take_truth(url).requests
    here, there = sent.facts
    delays_s = {record.request_id: served[str(record.request_id)].arrived_s - sent.epoch_s - record.sent_s
                for record in sent.records if record.sent_s is not None}  # fmt: skip

    assert list(range(60)) == sorted(record.request_id for record in sent.records)
    assert {"ok"} == {record.status for record in sent.records}
    assert all(record.sent_s >= record.scheduled_s for record in sent.records)
    assert (30, 30) == (here["sent"], there["sent"])
    assert abs(there["clock_offset_s"] - shift_s) <= there["clock_error_s"]
    assert abs(here["clock_offset_s"]) <= here["clock_error_s"]
    assert min(delays_s.values()) > -max(here["clock_error_s"], there["clock_error_s"])


@pytest.mark.parametrize("count", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_a_lost_host_is_named_with_what_it_left_undone(count: int, url: str, tmp_path: Path) -> None:
    """Half of the load would go on as if it were the whole, or the server would be blamed (exit code 3)."""

    def kill(senders: Senders) -> None:
        senders._children[-1].line.process.kill()

    sent = send(OpenAI(url), tmp_path / "s.parquet", np.arange(200) * 0.01, (HERE,) * count, kill)
    assert sent.outcome is not None and sent.outcome.error is not None
    without, unsent, whole = map(int, re.findall(r"(\d+) (?:requests|of its|were)", sent.outcome.error))
    recorded = sum(record.request_id % count == count - 1 for record in sent.records)

    assert ("stopped", None) == (sent.outcome.ended, sent.outcome.crash)
    assert sent.outcome.error.startswith(f"sender {count} of {count} ({label(HERE)}) was ended by SIGKILL; ")
    assert 200 // count == whole == recorded + without + unsent
    assert recorded >= 10
    assert len(sent.records) + without == sent.outcome.sent


class _Host:
    """The other end of a line: a clock that is ahead, and answers that come late, more so in one direction.

    The first of them, or the second, is much quicker than the others.
    """

    def __init__(self, reader: asyncio.StreamReader, ahead_s: float, quick: int) -> None:
        self._reader, self._ahead_s = reader, ahead_s
        self._delays_s = np.random.default_rng(quick).exponential((0.001, 0.003), (1000, 2))
        self._delays_s[quick] = 0.0
        self._rows = iter(self._delays_s + 0.0002)

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        ping = pickle.loads(data[4:])  # noqa: S301  # our own
        assert isinstance(ping, Ping)
        out_s, back_s = next(self._rows)
        time.sleep(out_s)
        pong = Pong(ping.sent_s, time.monotonic() + self._ahead_s)
        asyncio.get_running_loop().call_later(back_s, self._reader.feed_data, data_frame(pong))


@pytest.mark.parametrize("quick", range(2))
async def test_the_offset_is_never_off_by_more_than_its_error(quick: int) -> None:
    """Times of two hosts would be put in the wrong order, with a promise that they are not."""
    reader = asyncio.StreamReader()
    line = Line(Any, reader, _Host(reader, 7.0, quick))  # type: ignore[arg-type]
    found = await line.offset()
    offset_s, error_s = found.offset_s, found.error_s

    assert abs(offset_s - 7.0) <= error_s < 7.0


def test_what_a_host_sends_is_data() -> None:
    """A host that was broken into could run commands on the machine that controls the run."""
    answer = Answer(how="complete", data=[b"x"], read_s=array("d", [1.5]))
    request = Request(1, 0.0, 5, 4, session=3, tag="a", slo_ttft_s=0.5)
    message = from_sender(data_frame(Arrived.of(request, None, answer))[4:])
    crash = from_sender(data_frame(Ready(Crashed.of("it broke", "line 1")))[4:])

    assert isinstance(message, Arrived) and isinstance(crash, Ready)
    assert (request, answer) == (message.request, of_data(message.answer, Answer))
    assert (Crashed, "it broke", ["line 1"]) == (type(crash.error), str(crash.error), crash.error.__notes__)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "body",
    [
        pickle.dumps(os.system), pickle.dumps(Ready()), b"", b"\x91" * 100_000, msgspec.msgpack.encode(("Path", {})),
        msgspec.msgpack.encode(("Pong", {"sent_s": "a", "now_s": 1.0})),
        msgspec.msgpack.encode(("Ready", {"error": 5})),
    ],
)  # fmt: skip
def test_what_is_no_message_is_refused(body: bytes) -> None:
    """What a host makes up would be run, or be taken for a bug of this machine."""
    with pytest.raises(Malformed):
        from_sender(body)


def test_a_message_of_a_host_is_at_most_64_mib() -> None:
    """Four bytes of a host would have this machine wait for 4 GiB, and hold them."""

    async def main() -> None:
        reader = asyncio.StreamReader()
        reader.feed_data((MOST_BYTES + 1).to_bytes(4, "little"))
        await receive(reader, from_sender, MOST_BYTES)

    with pytest.raises(Malformed, match="67,108,865 bytes"):
        asyncio.run(main())


def test_an_answer_too_large_for_a_message_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """One endless answer would end the run of its host."""
    sent: list[object] = []
    monkeypatch.setattr(sender, "MOST_BYTES", 100)

    class Full:
        def send(self, message: object, most_bytes: int | None = None, *, wait_s: float = 0.0) -> bool:  # noqa: ARG002
            sent.append(message)
            return most_bytes is None

    sender.Outgoing(Full()).pass_on(Request(7, 0.5, 5, 4), Answer())  # type: ignore[arg-type]

    assert isinstance(known := sent[-1], sender.Known)
    assert (7, "error", 0) == (known.record.request_id, known.record.status, known.record.output_tokens)


@pytest.mark.parametrize(
    ("printed", "kind", "says"),
    [
        ("welcome\nbench sender 0.0.9\n", UsageError, "h has bench '0.0.9', and this machine has bench"),
        ("bench: command not found\n", BackendError, "h did not start: its command ended with exit code 127, and"),
    ],
)
def test_a_host_without_this_version_gets_one_sentence(printed: str, kind: type[Exception], says: str) -> None:
    """Messages of another version would be a traceback, or read as something else."""

    class Ended:
        async def wait(self) -> int:
            return 127

    async def main() -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(printed.encode())
        reader.feed_eof()
        await greet(Line(Ended(), reader, None), "h")  # type: ignore[arg-type]  # as much as is needed

    with pytest.raises(kind, match=re.escape(says)):
        asyncio.run(main())


def test_a_host_is_reached_by_ssh_and_anything_else_by_its_command() -> None:
    """A password prompt that the user does not see would keep the run waiting."""
    ssh = command("ssh:me@far")

    assert ["ssh", "BatchMode=yes"] == [ssh[0], ssh[2]]
    assert ["--", "me@far", "bench", "sender"] == ssh[-4:]
    assert ["docker", "exec", "-i", "a b", "bench", "sender"] == command("docker exec -i 'a b' bench sender")

"""kill -9 of the client, of one sender, of the server, in the middle of a run: measurements stay and are reported."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.cli import main
from harness.data.folder import load

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to find the senders")

ENOUGH = 30
"""Records on disk before anything is killed."""


def _children(pid: int) -> list[int]:
    """The senders of a run."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            command = (stat.parent / "cmdline").read_text()
        except (OSError, ValueError):
            continue
        if parent == pid and "harness.runner.remote.sender" in command:
            found.append(int(stat.parent.name))
    return found


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Running:
    """A run of many requests against a scripted server, with records on disk already."""

    def __init__(self, bench: Callable, server: Any, path: Path, senders: int, duration: str) -> None:
        self.path = path / "out"
        self.server = server
        self._size = self._rows = 0
        self.process = bench(
            "run", "--backend", f"openai:url={server.url('it')},model=m", "--rate", "60", "--duration", duration,
            "--lengths", "fixed:prompt=30,output=8", "--calibrate", "off", "--out", "out", "--no-html",
            "--senders", str(senders), "--drain", "5s",
        )  # fmt: skip

    def rows(self) -> int:
        """Records on disk; read only when there are more, because reading takes the processor from the senders."""
        assert self.process.poll() is None, self.process.communicate()
        stream = self.path / "requests.arrows"
        size = stream.stat().st_size if stream.exists() else 0
        if size != self._size:
            self._size, self._rows = size, len(load(self.path).requests)
        return self._rows


@pytest.fixture
def report(capsys: pytest.CaptureFixture[str]) -> Callable[[Running], str]:
    """What `bench report` prints of a run."""

    def make(running: Running) -> str:
        assert main(["report", str(running.path), "--format", "text"]) == 0
        return " ".join(capsys.readouterr().out.split())

    return make


@pytest.fixture
def start(bench: Callable, scripted: Callable, wait_for: Callable, tmp_path: Path) -> Callable[..., Running]:
    """`start(senders, duration)`: a run that has written some records."""

    def make(senders: int = 2, duration: str = "60s") -> Running:
        server = scripted(it={"itl_s": 0.005})
        server.arm_measured()
        running = Running(bench, server, tmp_path, senders, duration)
        wait_for(lambda: running.rows() >= ENOUGH)
        return running

    return make


def _hold_rows(running: Running) -> Any:
    run = load(running.path)
    ids = run.requests["request_id"].to_pylist()
    assert len(ids) >= ENOUGH
    assert len(set(ids)) == len(ids)
    assert set(run.http["request_id"].to_pylist()) <= set(ids)
    return run


def test_a_killed_client_leaves_its_records_and_no_sender(
    start: Callable, report: Callable, wait_for: Callable
) -> None:
    """An hour of measuring would be lost, or orphans would go on sending for ever."""
    running = start()
    senders = _children(running.process.pid)

    running.process.kill()
    running.process.wait()
    wait_for(lambda: not any(_alive(pid) for pid in senders))
    sent = len(running.server.of("it"))
    run = _hold_rows(running)

    assert 2 == len(senders)
    assert not run.complete
    assert len(run.requests) <= sent
    assert "It was killed, or is still running" in report(running)


def test_a_killed_sender_is_reported_and_the_rest_is_kept(start: Callable, report: Callable) -> None:
    """Half of the traffic would be missing from a run that seems complete."""
    running = start(duration="4s")
    os.kill(_children(running.process.pid)[0], signal.SIGKILL)

    out, err = running.process.communicate(timeout=240)

    run = _hold_rows(running)
    assert "Traceback" not in err
    assert running.process.returncode in (70, 4), err  # a process of bench, not the server; or it had just ended
    assert run.info.verdict.valid is False
    assert "sender" in " ".join(run.info.verdict.reasons)
    assert "sender" in " ".join((out + err).split())
    assert "sender" in report(running)


@pytest.mark.nightly
def test_a_stopped_sender_is_reported_and_the_rest_is_kept(start: Callable) -> None:
    """A frozen container would keep the command waiting beyond all its time-outs."""
    running = start(duration="20s")
    os.kill(_children(running.process.pid)[0], signal.SIGSTOP)

    err = running.process.communicate(timeout=240)[1]

    run = _hold_rows(running)
    assert 4 == running.process.returncode, err
    assert "warning: sender" in err
    assert "stood still (stopped or frozen?)" in err.splitlines()[-1]
    assert not run.info.verdict.valid
    assert "not valid: sender" in run.info.verdict.text


def test_a_killed_server_is_reported_and_nothing_hangs(start: Callable) -> None:
    """The run would wait for a dead server, or call its silence a result."""
    running = start(duration="60s")
    ok = len(load(running.path).requests)

    running.server.kill()
    _, err = running.process.communicate(timeout=240)

    run = _hold_rows(running)
    statuses = run.requests["status"].to_pylist()
    assert "Traceback" not in err
    assert "error" in statuses
    assert ok <= statuses.count("ok") < len(statuses)
    assert all(run.requests["error"].to_pylist()[i] for i, s in enumerate(statuses) if s == "error")
    assert running.process.returncode != 0


@pytest.mark.nightly
def test_an_interrupt_ends_senders_and_keeps_what_was_measured(start: Callable, wait_for: Callable) -> None:
    """Ctrl-C would leave processes that go on sending."""
    running = start()
    senders = _children(running.process.pid)

    running.process.send_signal(signal.SIGINT)
    _, err = running.process.communicate(timeout=240)

    run = _hold_rows(running)
    assert "Traceback" not in err
    wait_for(lambda: not any(_alive(pid) for pid in senders))
    assert "interrupted" in run.info.verdict.text or run.info.state == "interrupted"
    assert {"ok"} >= set(run.requests["status"].to_pylist()) - {"cancelled"}

"""Servers that are not open yet: what `--wait` waits for, what it says, and when it gives up."""

from collections.abc import Callable

import pytest

from harness.cli import main
from harness.errors import BackendError, NotReady
from harness.runner.remote import run as remote


class Clock:
    """Time that passes only in `sleep`."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(remote, "time", made)
    return made


def answering(clock: Clock, reasons: list[tuple[float, str]]) -> Callable[[], str]:
    """An action that lacks each of these until so many seconds have passed."""

    def action() -> str:
        for until_s, reason in reasons:
            if clock.now_s < until_s:
                raise NotReady(reason)
        return "an answer"

    return action


def test_each_reason_is_printed_once_until_the_server_answers(clock: Clock) -> None:
    """A user would not know whether a wrong port is waited for, or weights that are being read."""
    lines: list[str] = []
    action = answering(clock, [(5, "No server answers"), (20, "The server is loading its model")])

    assert "an answer" == remote.when_ready(action, 600, lines.append)
    assert ["waiting up to 600 s: No server answers", "waiting up to 595 s: The server is loading its model"] == lines
    assert 20 == clock.now_s


def test_a_long_wait_repeats_its_reason_each_minute_and_gives_up_in_time(clock: Clock) -> None:
    """A pipeline would hang, or seem to."""
    lines: list[str] = []

    with pytest.raises(BackendError, match=r"No server answers; gave up after --wait 150s."):
        remote.when_ready(answering(clock, [(1e9, "No server answers")]), 150, lines.append)
    assert ["waiting up to 150 s", "waiting up to 90 s", "waiting up to 30 s"] == [
        line.partition(":")[0] for line in lines
    ]
    assert 150 == clock.now_s


def test_without_a_wait_the_error_names_the_option(clock: Clock) -> None:
    """A user whose server takes minutes to load would start the command by hand again and again."""
    with pytest.raises(NotReady, match=r"^No server answers; --wait 10min waits for it.$"):
        remote.when_ready(answering(clock, [(1, "No server answers")]), 0, print)
    assert "No server answers; --wait 10min waits for it." == str(NotReady(f"{NotReady('No server answers')}"))


def test_a_line_break_in_a_header_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """A value from a file with a line end would forge another header."""
    assert 2 == main(["run", "http://127.0.0.1:1", "--header", "X-A: b\r\nX-B: c"])
    assert "A value of --header holds a line break" in capsys.readouterr().err

"""Stamps of the kernel become times of the run, unless the real-time clock was set meanwhile."""

import socket
import struct
import sys
import time
from array import array
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.client import stamps
from backends.client.stamps import Clock, Lags, kernel_stamps, stamp_of, stamped_socket


class Clocks:
    """Two clocks that a test moves: a reading of the monotonic one takes `read_s`."""

    def __init__(self) -> None:
        self.mono_s = 1000.0
        self.real_s = 1_800_000_000.25
        self.read_s = 1e-7

    def monotonic(self) -> float:
        self.pass_s(self.read_s)
        return self.mono_s

    def time(self) -> float:
        return self.real_s

    def time_ns(self) -> int:
        return round(self.real_s * 1e6) * 1000

    def pass_s(self, seconds: float) -> None:
        self.mono_s += seconds
        self.real_s += seconds


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    found = Clocks()
    monkeypatch.setattr(
        stamps, "time", SimpleNamespace(monotonic=found.monotonic, time=found.time, time_ns=found.time_ns)
    )
    return found


def run_s(clock: Clock, real_s: float) -> float:
    """As a connection converts a stamp."""
    return int(real_s) - clock.base_s + (real_s - int(real_s)) - clock.shift_s


def test_a_stamp_becomes_the_time_of_the_run_at_which_the_bytes_arrived(clocks: Clocks) -> None:
    """Every latency would be wrong by the age of the machine."""
    clock = Clock()
    clock.start(clocks.mono_s)
    clocks.pass_s(2.5)

    assert run_s(clock, clocks.real_s) == pytest.approx(2.5, abs=2e-6)


def test_a_clock_that_is_set_is_noticed_and_no_stamp_believed_until_all_is_read(clocks: Clocks) -> None:
    """A step of the clock by a second would become a TTFT of a second, or a negative one."""
    clock = Clock()
    clock.start(clocks.mono_s)
    clocks.real_s += 1.0
    clock.sample()
    seen = [clock.steps, clock.trusted]
    clocks.pass_s(0.1)
    clock.sample()
    seen.append(clock.trusted)
    clock.caught_up()

    assert [1, False, False] == seen
    assert clock.trusted
    assert run_s(clock, clocks.real_s) == pytest.approx(0.1, abs=2e-6)


@pytest.mark.parametrize(("step_s", "steps"), [(2e-4, 1), (-2e-4, 1), (5e-5, 0), (-5e-5, 0)])
def test_a_step_is_a_jump_of_more_than_a_tenth_of_a_millisecond(clocks: Clocks, step_s: float, steps: int) -> None:
    """Steps that spoil stamps would go unseen, or the noise of reading two clocks pass for steps."""
    clock = Clock()
    clocks.real_s += step_s
    clock.sample()

    assert steps == clock.steps


def test_a_sample_that_was_interrupted_is_not_kept_and_is_no_step(clocks: Clocks) -> None:
    """A busy machine would shift all stamps by the time for which the client did not run."""
    clock = Clock()
    clock.start(clocks.mono_s)
    good = clock.shift_s
    clocks.read_s = 0.02
    clock.sample()

    assert (0, good) == (clock.steps, clock.shift_s)


def test_clocks_that_drift_apart_slowly_are_followed(clocks: Clocks) -> None:
    """In a long run the first comparison of the clocks would be held for true, however wrong it has become."""
    clock = Clock()
    clock.start(clocks.mono_s)
    for _ in range(100):
        clocks.pass_s(0.1)
        clocks.real_s += 0.1 * 50e-6
        clock.sample()

    assert 0 == clock.steps
    assert clock.slope_ppm == pytest.approx(50, rel=0.1)
    assert run_s(clock, clocks.real_s) == pytest.approx(clocks.mono_s - 1000.0, abs=1e-5)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux stamps what arrives")
def test_the_kernel_says_when_bytes_arrived_however_late_they_are_read() -> None:
    """A client that was busy would blame the server for its own lateness."""
    clock = Clock()
    clock.start(time.monotonic())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sock, promised = stamped_socket(socket.AF_INET)
        with sock:
            begun = kernel_stamps()
            sock.setblocking(True)
            sock.connect(listener.getsockname())
            peer, _ = listener.accept()
            with peer:
                before_s = clock.now_s()
                peer.sendall(b"token")
                after_s = clock.now_s()
                while clock.now_s() < after_s + 0.05:
                    pass
                data, control, _, _ = sock.recvmsg(100, stamps.CONTROL_BYTES)
    found = stamp_of(control)
    assert found is not None
    stamp_s = found[0] - clock.base_s + found[1] * 1e-9 - clock.shift_s

    assert promised and begun
    assert b"token" == data
    assert before_s - 1e-4 <= stamp_s < after_s + 0.04


def test_a_control_message_of_another_kind_is_no_stamp() -> None:
    """Whatever the kernel says besides would be taken for a time."""
    when = struct.pack("=qq", 5, 7)

    assert (5, 7) == stamp_of([(socket.SOL_SOCKET, 1, b"?"), (socket.SOL_SOCKET, stamps.SO_TIMESTAMPNS, when)])
    assert stamp_of([(socket.SOL_SOCKET, stamps.SO_TIMESTAMPNS, when[:8])]) is None
    assert stamp_of([]) is None


@given(st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=20), max_size=60))
def test_lags_in_bounded_memory_keep_their_count_and_maximum(answers: list[list[float]]) -> None:
    """A slow reader in the middle of a long run would be forgotten."""
    lags = Lags(room=16)
    for lag_s in answers:
        lags.add(array("d", lag_s), array("d", [0.0] * len(lag_s)), 1)
    every = [lag for lag_s in answers for lag in lag_s]

    assert (len(every), len(answers), max(every, default=0.0)) == (lags.reads, lags.process_stamps, lags.max_s)
    assert (lags.quantile_s(0.5) is None) == (not every)
    assert all(min(every) <= value <= max(every) for value in [lags.quantile_s(0.99)] if value is not None)


def test_lags_of_a_long_run_are_those_of_all_reads() -> None:
    """The reader would be judged by the first read of each answer, which contains the head and belongs to no gap."""
    lags = Lags(room=64)
    for _ in range(2000):
        lags.add(array("d", [0.0, 0.0, 0.0, 1.0]), array("d", [0.0] * 4), 0)

    assert (0.0, 1.0) == (lags.quantile_s(0.5), lags.quantile_s(0.9))

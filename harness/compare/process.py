"""One process at a time, with Ctrl-C handed on to it: a run that is interrupted still ends in order."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness import termination

_STEP_S = 0.1

_GUARD = (
    "import ctypes, os, signal, sys\n"
    "ctypes.CDLL(None).prctl(1, signal.SIGTERM)\n"  # PR_SET_PDEATHSIG of <linux/prctl.h>; it outlives exec
    "os.execvp(sys.argv[1], sys.argv[1:])"
)
"""Has the kernel end a process when the one that started it dies, however it dies."""


class Watched:
    """Starts processes and waits for them; what interrupts this process is handed on, and remembered.

    The third interruption kills the process that is going on. Each has a group of its own, so that what it started
    in turn gets the same signals.
    """

    def __init__(self) -> None:
        self.interruptions = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._missed: int | None = None
        self._signals = termination.handled(self._interrupted)

    def __enter__(self) -> Watched:
        self._signals.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._signals.__exit__(None, None, None)
        self._end()

    def call(self, words: Sequence[str], variables: Mapping[str, str], out: Path, err: Path) -> int:
        """The exit code of a command whose output goes to two files. Raises OSError where it cannot be started."""
        # The guard ends the command when we end: else it would disturb the runs that come next.
        guard = [sys.executable, "-I", "-S", "-c", _GUARD] if sys.platform == "linux" else []
        with out.open("wb") as told, err.open("wb") as complained:
            self._process = subprocess.Popen(  # noqa: S603  # the user's own command, and no shell
                [*guard, *words],
                stdin=subprocess.DEVNULL,
                stdout=told,
                stderr=complained,
                env={**os.environ, **variables},
                start_new_session=True,
            )
            if self._missed is not None:  # it came while the process was being started
                self._send(self._missed)
            code = self._process.wait()
            self._process = None
        return code

    def pause(self, seconds: float) -> None:
        """Wait, unless interrupted."""
        end_s = time.monotonic() + seconds
        while not self.interruptions and (left_s := end_s - time.monotonic()) > 0:
            time.sleep(min(left_s, _STEP_S))

    def _interrupted(self, number: int) -> None:
        self.interruptions += 1
        if self._process is None:
            self._missed = number
        else:
            self._send(signal.SIGKILL if self.interruptions > 2 else number)

    def _send(self, number: int) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _end(self) -> None:
        """An error on our side leaves no process behind."""
        if self._process is not None:
            self._send(signal.SIGTERM)
            self._process.wait()
            self._process = None

    def __repr__(self) -> str:
        return f"<Watched {'busy' if self._process else 'idle'}, interrupted {self.interruptions} times>"

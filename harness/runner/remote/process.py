"""Whether a sender kept up: its share of a core, its waits for one, stalls of its event loop."""

import asyncio
import gc
import os
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from harness.metrics.quantiles import quantile

LOOK_S = 0.05
"""How often the loop wakes to check itself: a shorter stall may go unseen, and delays a departure by no more."""
WINDOW_S = 1.0
HIGHEST_NICENESS = -20
STALLS = 1 << 14
"""Samples whose lateness is kept: those of the last quarter of an hour."""


@contextmanager
def yielding() -> Iterator[str | None]:
    """Run as a batch process, so that reading answers delays no sender on a shared core; gives the policy, None where
    there is none.

    Note: not by niceness, which a process without privileges cannot take back: what it concludes would wait for minutes
    beside busy processes. On a shared core a sender wakes up no later than beside a process of niceness 10.
    """
    if not hasattr(os, "SCHED_BATCH") or os.sched_getscheduler(0) != os.SCHED_OTHER:
        yield None
        return
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    try:
        yield "batch"
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def raise_priority() -> str:
    """Have this process run before others while it sends, as far as the system lets it; gives what that came to.

    A sender that waits for a core finds the first token of an answer together with the next ones, with their stamp.
    """
    with suppress(OSError, AttributeError):  # not root and no CAP_SYS_NICE or RLIMIT_RTPRIO; not Linux
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
        return "real time"
    for niceness in range(HIGHEST_NICENESS, 0):
        with suppress(OSError):  # more than RLIMIT_NICE allows
            os.setpriority(os.PRIO_PROCESS, 0, niceness)
            return f"niceness {niceness}"
    return "ordinary"


class SenderWatch:
    """Monitors its own process while it sends; `facts` returns the findings, in seconds and shares of one core."""

    def __init__(self) -> None:
        self._begun_s = self._window_s = time.monotonic()
        self._begun_cpu_s = self._window_cpu_s = time.process_time()
        self._begun_wait_s = run_wait_s()
        self._others_s = _machine_cpu_s()
        self._gc_s = self._cpu_share = 0.0
        self._stall_s: deque[float] = deque([0.0], maxlen=STALLS)
        self._longest_stall_s = 0.0
        self._gc_begun_s = 0.0

    async def run(self) -> None:
        """Until cancelled."""
        gc.callbacks.append(self._collected)
        try:
            due_s = time.monotonic()
            while True:
                due_s += LOOK_S
                await asyncio.sleep(max(0.0, due_s - time.monotonic()))
                now_s = time.monotonic()
                self._stall_s.append(now_s - due_s)
                self._longest_stall_s = max(self._longest_stall_s, now_s - due_s)
                due_s = max(due_s, now_s - LOOK_S)
                if now_s - self._window_s >= WINDOW_S:
                    cpu_s = time.process_time()
                    share = (cpu_s - self._window_cpu_s) / (now_s - self._window_s)
                    self._cpu_share = max(self._cpu_share, share)
                    self._window_s, self._window_cpu_s = now_s, cpu_s
        finally:
            gc.callbacks.remove(self._collected)

    def facts(self) -> Mapping[str, float | int | None]:
        """What was seen from construction until now."""
        now_s, cpu_s, wait_s = time.monotonic(), time.process_time(), run_wait_s()
        seconds = max(now_s - self._begun_s, 1e-9)
        others = None
        if self._others_s is not None and (machine_s := _machine_cpu_s()) is not None:
            others = (machine_s - self._others_s) / seconds
        waited = None if wait_s is None or self._begun_wait_s is None else (wait_s - self._begun_wait_s) / seconds
        share = (cpu_s - self._begun_cpu_s) / seconds
        return {
            "cpu_s": cpu_s - self._begun_cpu_s,
            "cpu_share": share,
            "cpu_share_max": max(self._cpu_share, share),
            "run_wait_share": waited,
            "stall_max_s": self._longest_stall_s,
            "stall_p90_s": quantile(np.array(self._stall_s), 0.9),
            "gc_max_s": self._gc_s,
            "machine_cores_busy": others,
        }

    def _collected(self, phase: str, info: Mapping[str, int]) -> None:  # noqa: ARG002  # the signature of gc.callbacks
        if phase == "start":
            self._gc_begun_s = time.monotonic()
        else:
            self._gc_s = max(self._gc_s, time.monotonic() - self._gc_begun_s)


def run_wait_s() -> float | None:
    """Seconds for which this process was ready to run and no core was free; None where the system does not say."""
    try:
        return int(Path("/proc/self/schedstat").read_text(encoding="ascii").split()[1]) * 1e-9
    except (OSError, IndexError, ValueError):
        return None


def _machine_cpu_s() -> float | None:
    """Core seconds that all processes of the machine have used; None where the system does not say."""
    try:
        ticks = [int(word) for word in Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return None
    idle = ticks[3] + ticks[4]  # and waiting for a disk
    return (sum(ticks) - idle) / os.sysconf("SC_CLK_TCK")

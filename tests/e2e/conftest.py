"""Set-up that end-to-end tests share: `bench` as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Bench = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """Starts `bench` with these arguments in an empty folder; whatever still runs at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "harness", *arguments],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "COLUMNS": "100"},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def wait_for() -> Callable[[Callable[[], bool]], None]:
    """Waits until something is true, for half a minute at most."""

    def wait(true: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + 30
        while not true():
            assert time.monotonic() < deadline_s, "it did not happen within half a minute"
            time.sleep(0.02)

    return wait

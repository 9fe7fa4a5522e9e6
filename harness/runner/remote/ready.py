"""Waits for a server that is not there yet, is loading its model, or limits requests."""

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from harness import termination
from harness.api import Remote
from harness.errors import BackendError, NotReady, UsageError
from harness.options import RunSpec
from harness.runner.plan import make_backend
from harness.runner.remote.calibration import Words
from harness.spec import parse

T = TypeVar("T")

PAUSE_S = 1.0
"""Between two tries."""
REMIND_S = 60.0
"""How often the same reason is repeated."""


def when_ready(action: Callable[[], T], wait_s: float, say: Callable[[str], None]) -> T:
    """The result of an action as soon as it does not raise NotReady; `say` hears what it waits for.

    Raises BackendError where it still does after `wait_s`.
    """
    begun_s = reminded_s = time.monotonic()
    reason = ""
    while True:
        try:
            return action()
        except NotReady as error:
            now_s = time.monotonic()
            left_s = begun_s + wait_s - now_s
            if wait_s and left_s <= 0:
                raise BackendError(f"{error.args[0]}; gave up after --wait {wait_s:g}s.") from None
            if left_s <= 0:
                raise
            if error.args[0] != reason or now_s - reminded_s >= REMIND_S:
                reason, reminded_s = error.args[0], now_s
                say(f"waiting up to {left_s:.0f} s: {reason}")
            time.sleep(min(PAUSE_S, left_s))


def await_servers(specs: Iterable[RunSpec], wait_s: float | None, say: Callable[[str], None]) -> None:
    """Wait until the servers of runs take requests, by those of a probe, `wait_s` for each; None does not wait.

    Raises UsageError for a backend that is no server.
    """
    if wait_s is None:
        return
    for spec in {spec.backend: spec for spec in specs}.values():
        backend = make_backend(spec)
        if not isinstance(backend, Remote):
            raise UsageError(f"--wait is for a server; the backend '{parse(spec.backend).name}' needs none.")
        when_ready(partial(_open, backend), wait_s, say)


def _open(backend: Remote) -> None:
    async def opened() -> None:
        try:
            await backend.open(Words())
        finally:
            await backend.close()

    termination.run(opened())

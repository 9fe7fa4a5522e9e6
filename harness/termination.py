"""SIGTERM or SIGHUP ends a command in order: as Ctrl-C does, with all that was measured, but with exit code 4."""

from __future__ import annotations

import _thread
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")

ENDING = (signal.SIGTERM, signal.SIGHUP)
"""What ends a command in order: the second comes when its terminal is closed."""
AGAIN_S = 0.05
_PR_SET_PDEATHSIG = 1
"""Of <linux/prctl.h>."""


class Terminated(KeyboardInterrupt):
    """One of `ENDING` was received; whatever handles Ctrl-C handles it in the same way."""


class Handler:
    """What SIGINT or one of `ENDING` does for a while; it and the handlers that stood before remember the latter."""

    def __init__(self, handle: Callable[[int], None]) -> None:
        self._handle = handle
        self._before: object = None
        self.received: signal.Signals | None = None

    def __call__(self, number: int, _: FrameType | None) -> None:
        """The signal has come."""
        if number != signal.SIGINT:
            self.remember(signal.Signals(number))
        self._handle(number)

    def remember(self, number: signal.Signals) -> None:
        self.received = number
        if isinstance(self._before, Handler):
            self._before.remember(number)

    @contextmanager
    def installed(self, *numbers: signal.Signals) -> Iterator[Handler]:
        """Handles these signals in the body; then the handlers that stood before handle them again."""
        thread = threading.current_thread()
        if isinstance(thread, _LoopThread):
            thread.handlers.append(self)
            try:
                yield self
            finally:
                thread.handlers.remove(self)
            return
        if thread is not threading.main_thread():  # signals are the main thread's alone
            yield self
            return
        self._before = signal.getsignal(signal.SIGTERM)
        # one that is ignored stays so: a shell ignores Ctrl-C for what it starts in the background
        active = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self) for number in active}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class _LoopThread(threading.Thread):
    """Runs an event loop for a thread that has one running; what it installs handles the signals of that thread."""

    def __init__(self, target: Callable[[], None]) -> None:
        super().__init__(target=target, name="bench-loop", daemon=True)
        self.handlers: list[Handler] = []

    def forward(self, number: int) -> None:
        if self.handlers:
            self.handlers[-1](number, None)
        else:  # its loop is about to begin, or has just ended
            _thread.start_new_thread(_again, (number,))


class Command(Handler):
    """One of `ENDING` during a command raises `Terminated`, until `over` is set; then it is remembered alone."""

    def __init__(self) -> None:
        super().__init__(self._raise)
        self.over = False
        self.swallowed = False
        """Whether a signal fell into code that cannot raise; it comes again, but what follows may already be wrong."""

    def _raise(self, _: int) -> None:
        if not self.over:
            raise Terminated

    @contextmanager
    def guarding(self) -> Iterator[Command]:
        """Handles `ENDING` in the body, also one that falls into code whose exceptions Python can only print."""
        before = sys.unraisablehook

        def unraisable(ignored: Any) -> None:  # sys.UnraisableHookArgs exists for type checkers only
            if not isinstance(ignored.exc_value, KeyboardInterrupt):
                before(ignored)
            elif (
                not self.over
            ):  # raised in a destructor, a callback or compiled code, where it ended nothing: once more
                self.swallowed = True
                # Note: Thread.start waits, and would wait in this hook
                _thread.start_new_thread(_again, (self.received or signal.SIGINT,))

        sys.unraisablehook = unraisable
        try:
            with self.installed(*ENDING):
                yield self
        finally:
            sys.unraisablehook = before


def _again(number: int) -> None:
    time.sleep(AGAIN_S)
    os.kill(os.getpid(), number)


def received() -> bool:
    """Whether one of `ENDING` has come during this command: a run that was about to end then is a whole one, and no
    other one may begin."""
    handler = signal.getsignal(signal.SIGTERM)
    return isinstance(handler, Handler) and handler.received is not None


def handled(handle: Callable[[int], None]) -> AbstractContextManager[Handler]:
    """A context in which SIGINT and `ENDING` call `handle` with their number and raise nothing."""
    return Handler(handle).installed(signal.SIGINT, *ENDING)


def ignored() -> None:
    """Ignore SIGINT and `ENDING` in a child process: they may reach the whole group, but the parent decides."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)


def led() -> None:
    """As `ignored`; besides, the kernel kills this process when the thread that started it ends, in any computation.

    Only Linux does that. Elsewhere, and where the parent has ended before this call, a child must notice it itself.
    """
    ignored()
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run`, in which one of `ENDING` cancels the task as Ctrl-C does; raises Terminated then.

    Where this thread has a running loop, as in a notebook, another thread runs the coroutine while this one waits.
    An exception of a task that is never awaited goes to `threading.excepthook`, as that of a thread does.
    """
    import asyncio  # heavy

    from harness.timer import WaitingLoop

    signals: list[int] = []

    def ended() -> KeyboardInterrupt:
        return Terminated() if {*signals} & {*ENDING} else KeyboardInterrupt()

    async def watched() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        loop.set_exception_handler(_unwatched)

        def cancel(number: int) -> None:
            signals.append(number)
            if len(signals) > 1:
                raise ended()
            loop.call_soon_threadsafe(task.cancel)

        with Handler(cancel).installed(*ENDING):
            return await coroutine

    def run_loop() -> T:
        # Note: `asyncio.run` may be that of nest_asyncio, for the main thread alone
        with asyncio.Runner(loop_factory=WaitingLoop) as runner:
            return runner.run(watched())

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        call = run_loop
    else:
        call = partial(_in_thread, run_loop)
    try:
        return call()
    except asyncio.CancelledError:
        if signals:
            raise ended() from None
        raise
    finally:
        with suppress(RuntimeError):
            coroutine.close()  # where the signal came before its first step


def _in_thread(run_loop: Callable[[], T]) -> T:
    """What `run_loop` returns or raises in a thread of its own, to which the signals of this one go."""
    from concurrent.futures import Future

    future: Future[T] = Future()

    def work() -> None:
        try:
            future.set_result(run_loop())
        except BaseException as error:  # noqa: BLE001  # raised in the thread that waits
            future.set_exception(error)

    thread = _LoopThread(work)
    with Handler(thread.forward).installed(signal.SIGINT, *ENDING):
        thread.start()
        thread.join()
    return future.result()


def _unwatched(loop: Any, context: dict[str, Any]) -> None:
    error = context.get("exception")
    if not isinstance(error, Exception):
        loop.default_exception_handler(context)
        return
    threading.excepthook(threading.ExceptHookArgs((type(error), error, error.__traceback__, None)))


def left_s(ends_s: float) -> float | None:
    """Seconds until a time of the monotonic clock; None where there is no end."""
    return None if ends_s == math.inf else max(0.0, ends_s - time.monotonic())

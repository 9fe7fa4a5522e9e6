"""Independent trials, several at a time: the one seam through which work leaves this process."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from types import TracebackType
from typing import Protocol, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Pool(Protocol):
    """Carries out calls that do not depend on one another. `workers` is how many run at a time."""

    workers: int

    def map(self, call: Callable[[Item], Answer], items: Iterable[Item]) -> Iterator[tuple[Item, Answer]]:
        """Each item with its answer, as they come; items are taken when a worker is free. An error ends it."""
        ...

    def __enter__(self) -> Pool: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Here:
    """No other process: one call after another, where the clock is the wall's or there is one core."""

    workers = 1

    def map(self, call: Callable[[Item], Answer], items: Iterable[Item]) -> Iterator[tuple[Item, Answer]]:
        """Each item with its answer, in order."""
        for item in items:
            yield item, call(item)

    def __enter__(self) -> Here:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class Processes:
    """A process per core. Calls, items and answers are pickled; Ctrl-C is left to this process."""

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers or cores()
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["harness.trial", "harness.slo", "workloads.catalog", "backends.sim"])
        self._executor = ProcessPoolExecutor(self.workers, mp_context=context, initializer=_deaf)

    def map(self, call: Callable[[Item], Answer], items: Iterable[Item]) -> Iterator[tuple[Item, Answer]]:
        """Each item with its answer, as they come."""
        waiting: dict[Future[Answer], Item] = {}
        left = iter(items)
        try:
            while True:
                while len(waiting) < self.workers and (item := next(left, _END)) is not _END:
                    waiting[self._executor.submit(call, item)] = item  # type: ignore[assignment, arg-type]  # not _END
                if not waiting:
                    return
                done, _ = wait(waiting, return_when=FIRST_COMPLETED)
                for future in done:
                    yield waiting.pop(future), future.result()
        finally:
            for future in waiting:
                future.cancel()

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._executor.shutdown(wait=error is None, cancel_futures=True)


_END = object()


def of(workers: int | None = None) -> Pool:
    """Processes, as many as there are cores; this process alone where there is one, or one is asked for."""
    count = workers or cores()
    return Here() if count == 1 else Processes(count)


def cores() -> int:
    """Cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _deaf() -> None:
    """Ctrl-C in a terminal reaches every process of the group; the one that reports decides."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

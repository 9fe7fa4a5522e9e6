"""Independent trials, several at a time: the one seam through which work leaves this process."""

from __future__ import annotations

import contextlib
import gc
import importlib
import math
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from typing import Any, Protocol, TypeVar

from harness import termination
from harness.errors import BackendError, Crashed, UsageError, no_such

Item = TypeVar("Item")
Answer = TypeVar("Answer")
_END = object()
FILES = 32
"""Files that must be free before workers start: pipes to two of them, and what they are sent."""
_NO_WORD = "ignore:resource_tracker:UserWarning"
"""What it clears away after this process was killed is of no interest to the user."""
PROCESSES = "processes"


class Pool(Protocol):
    """Executes calls that do not depend on one another. `workers` is how many run at a time."""

    workers: int

    def map(
        self, call: Callable[[Item], Answer], items: Iterable[Item], ends_s: float = math.inf
    ) -> Iterator[tuple[Item, Answer]]:
        """Each item with its answer, as they come; items are taken when a worker is free. An error ends it.

        Calls that run at `ends_s` of the monotonic clock are cut, and the pool is of no more use.
        """
        ...

    def __enter__(self) -> Pool: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None: ...


class Here:
    """No other process: one call after another, where the clock is the wall's or there is one core."""

    workers = 1

    def map(
        self,
        call: Callable[[Item], Answer],
        items: Iterable[Item],
        ends_s: float = math.inf,  # noqa: ARG002  # its calls cannot be cut
    ) -> Iterator[tuple[Item, Answer]]:
        """Each item with its answer, in order."""
        for item in items:
            yield item, call(item)

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *error: object) -> None:
        pass


class Processes:
    """A process per core. Calls, items and answers are pickled; Ctrl-C is left to this process.

    The workers hold one end of a pipe, this process the other: when it ends, however it does, so do they, in the
    middle of a call. An error in the body of the `with` ends them too.
    """

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers or cores()
        context = forks()
        self._held, self._lifeline = context.Pipe(duplex=False)
        self._executor = ProcessPoolExecutor(
            self.workers, mp_context=context, initializer=begin, initargs=(self._held,)
        )

    def map(
        self, call: Callable[[Item], Answer], items: Iterable[Item], ends_s: float = math.inf
    ) -> Iterator[tuple[Item, Answer]]:
        waiting: dict[Future[Answer], Item] = {}
        remaining = iter(items)
        try:
            while True:
                while len(waiting) < self.workers and (item := next(remaining, _END)) is not _END:
                    with _signals_later(), without_main():  # it may start a worker, which would not be known
                        future = self._executor.submit(call, item)  # type: ignore[arg-type]  # not _END
                    waiting[future] = item  # type: ignore[assignment]  # as above
                if not waiting:
                    return
                done, _ = wait(waiting, termination.left_s(ends_s), return_when=FIRST_COMPLETED)
                if not done:
                    return
                for future in done:
                    yield waiting.pop(future), future.result()
        except BrokenProcessPool:
            raise Crashed(
                "a worker process was killed, most likely for want of memory; take fewer --workers."
            ) from None
        finally:
            if [future for future in waiting if not future.cancel()]:  # their results would be dropped
                self._lifeline.close()

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._lifeline.close()
            # before, shutdown waits for what writes to workers that are gone (gh-94777)
            if sys.version_info < (3, 11, 5):
                self._executor._call_queue._reader.close()  # type: ignore[attr-defined]  # noqa: SLF001
        self._executor.shutdown(wait=True, cancel_futures=True)
        self._lifeline.close()
        self._held.close()


class Ray:
    """A task per call on a Ray cluster; needs the extra `ray`, on every node the same version of bench.

    Without an `address` a cluster of this machine is started, and ended with the pool. Raises UsageError where Ray is
    not installed, BackendError where no cluster answers.
    """

    def __init__(self, address: str | None = None, workers: int | None = None) -> None:
        self._ray = _module()
        self._own = not self._ray.is_initialized()
        if self._own:
            self._begin(address, workers)
        self.workers = workers or max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def _begin(self, address: str | None, workers: int | None) -> None:
        quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
        paths = os.pathsep.join(path for path in sys.path if path)  # workers find bench where this process does
        local = {"num_cpus": workers, "runtime_env": {"env_vars": {"PYTHONPATH": paths}}, **quiet}
        cluster = {"address": address, "log_to_driver": False, "logging_level": "ERROR"}
        try:
            self._ray.init(**(local if address is None else cluster))
        except (ConnectionError, OSError, RuntimeError, ValueError) as error:
            message = str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
            raise BackendError(f"Ray at '{address or 'this machine'}' does not answer: {message}.") from None

    def map(
        self, call: Callable[[Item], Answer], items: Iterable[Item], ends_s: float = math.inf
    ) -> Iterator[tuple[Item, Answer]]:
        remote = self._ray.remote(num_cpus=1, max_retries=1)(_called)
        waiting: dict[Any, Item] = {}
        remaining = iter(items)
        try:
            while True:
                while len(waiting) < self.workers and (item := next(remaining, _END)) is not _END:
                    waiting[remote.remote(call, item)] = item  # type: ignore[assignment]  # not _END
                if not waiting:
                    return
                done, _ = self._ray.wait([*waiting], num_returns=1, timeout=termination.left_s(ends_s))
                if not done:
                    return
                for reference in done:
                    yield waiting.pop(reference), self._answer(reference)
        finally:
            for reference in waiting:
                self._ray.cancel(reference, force=True)

    def _answer(self, reference: Any) -> Any:
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except self._ray.exceptions.RayError as error:
            message = str(error).strip().splitlines()[0].rstrip(".")
            raise Crashed(f"Ray lost a worker: {message}; take fewer --workers.") from None

    def __enter__(self) -> Ray:
        return self

    def __exit__(self, *error: object) -> None:
        if self._own:
            self._ray.shutdown()


def _called(call: Callable[[Item], Answer], item: Item) -> Answer:
    """What a worker of Ray does: it takes functions of bench alone, where a call may be anything."""
    return call(item)


def _module() -> Any:
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # or Ray warns of what its next version does
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise UsageError("Ray is not installed; pip install 'goodput-bench[ray]', or take --pool processes.") from None


def of(workers: int | None = None, name: str = PROCESSES, *, virtual: bool = True, cuts: bool = False) -> Pool:
    """Return the pool of that name: processes of this machine, as many as there are cores, or Ray.

    It is this process alone under a wall clock, and where there is one core or one is requested, unless it `cuts` calls
    that take too long. Raises UsageError.
    """
    check(name, virtual=virtual)
    kind, _, address = name.partition(":")
    if kind == "ray":
        return Ray(address or None, workers if address else workers or cores())
    count = workers or cores()
    return Here() if not virtual or (count == 1 and not cuts) else Processes(count)


def check(name: str, *, virtual: bool) -> None:
    """Raises UsageError for a name that is none of a pool, and for Ray under a wall clock."""
    kind, _, address = name.partition(":")
    if kind not in (PROCESSES, "ray") or (address and kind != "ray"):
        raise no_such("pool", name, (PROCESSES, "ray"), "Or ray:ADDRESS for a cluster that runs.")
    if kind == "ray" and not virtual:
        raise UsageError(f"--pool {name} is for simulated trials, and these run on a wall clock; leave it out.")


def cores() -> int:
    """Cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def forks() -> ForkServerContext:
    """What makes processes with the imports of this one, which planned the trials; start them `without_main`."""
    context = multiprocessing.get_context("forkserver")
    ours = ("harness.", "workloads.", "backends.")
    context.set_forkserver_preload([name for name in sys.modules if name.startswith(ours) and ".cli" not in name])
    with without_main():
        _start_server()
    return context


def _start_server() -> None:
    """Start what forks the workers, which ignores Ctrl-C and SIGTERM from its first line on: this process decides.

    Raises OSError where too few files can be open: Python's server would print a traceback.
    """
    with contextlib.ExitStack() as held:
        for _ in range(FILES // 2):
            for handle in os.pipe():
                held.callback(os.close, handle)
    sys.warnoptions.append(_NO_WORD)  # what it starts with
    try:
        with safe_path():
            resource_tracker.ensure_running()  # the server would start it, which lets Ctrl-C through again
    finally:
        sys.warnoptions.remove(_NO_WORD)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, *termination.ENDING})
    try:
        with safe_path():
            forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def safe_path() -> Iterator[None]:
    """Python processes started in the body import no files of the current folder, as those of `harness.ipc.python`."""
    before = {name: value for name, value in os.environ.items() if name == "PYTHONSAFEPATH"}
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        del os.environ["PYTHONSAFEPATH"]
        os.environ.update(before)


@contextlib.contextmanager
def _signals_later() -> Iterator[None]:
    """Ctrl-C and SIGTERM during the body count after it."""
    received: list[int] = []
    with termination.handled(received.append):
        yield
    if received:
        signal.raise_signal(received[0])


@contextlib.contextmanager
def without_main() -> Iterator[None]:
    """Processes started in the body do not import the program that started them.

    Calls are functions of bench. A script or notebook that calls `harness.sweep` would run again in every worker.
    """
    main = sys.modules["__main__"]
    hidden: dict[str, object] = {name: vars(main)[name] for name in ("__file__", "__spec__") if name in vars(main)}
    vars(main).pop("__file__", None)
    vars(main)["__spec__"] = None
    try:
        yield
    finally:
        vars(main).update(hidden)


def begin(lifeline: Connection) -> None:
    """What a worker does first: from now on it ends with the other end of a pipe, even in the middle of a call.

    Ctrl-C reaches every process of a terminal; the one that reports decides.
    """
    termination.ignored()
    gc.set_threshold(50_000)  # simulations leave little
    threading.Thread(target=_end_with, args=(lifeline,), name="lifeline", daemon=True).start()


def _end_with(lifeline: Connection) -> None:
    """Nothing is ever sent: the pipe ends when the other side does, and then so does this process."""
    with contextlib.suppress(EOFError, OSError):
        lifeline.recv_bytes()
    os._exit(1)

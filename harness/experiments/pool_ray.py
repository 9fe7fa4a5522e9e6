"""Ray behind the seam of `pool`: the same calls on a cluster of this machine, or on one that runs elsewhere.

Needs the extra `ray` (`pip install 'goodput-bench[ray]'`), on every node of a cluster the same version of bench.
"""

from __future__ import annotations

import importlib
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from harness import termination
from harness.errors import BackendError, Crashed, UsageError

Item = TypeVar("Item")
Answer = TypeVar("Answer")

_END = object()


class Ray:
    """A task per call. Without an `address` a cluster of this machine is started, and ended with the pool.

    Raises UsageError where Ray is not installed, BackendError where no cluster answers.
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
        here = {"num_cpus": workers, "runtime_env": {"env_vars": {"PYTHONPATH": paths}}, **quiet}
        elsewhere = {"address": address, "log_to_driver": False, "logging_level": "ERROR"}
        try:
            self._ray.init(**(here if address is None else elsewhere))
        except (ConnectionError, OSError, RuntimeError, ValueError) as error:
            message = str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
            raise BackendError(f"Ray at '{address or 'this machine'}' does not answer: {message}.") from None

    def map(
        self, call: Callable[[Item], Answer], items: Iterable[Item], ends_s: float = math.inf
    ) -> Iterator[tuple[Item, Answer]]:
        remote = self._ray.remote(num_cpus=1, max_retries=1)(_called)
        waiting: dict[Any, Item] = {}
        left = iter(items)
        try:
            while True:
                while len(waiting) < self.workers and (item := next(left, _END)) is not _END:
                    waiting[remote.remote(call, item)] = item  # type: ignore[assignment]  # not _END
                if not waiting:
                    return
                done, _ = self._ray.wait([*waiting], num_returns=1, timeout=termination.left_s(ends_s))
                if not done:
                    return
                for one in done:
                    yield waiting.pop(one), self._answer(one)
        finally:
            for one in waiting:
                self._ray.cancel(one, force=True)

    def _answer(self, one: Any) -> Any:
        try:
            return self._ray.get(one)
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

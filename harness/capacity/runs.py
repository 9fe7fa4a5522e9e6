"""Trials under the wall clock: one run after another, each with its folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from harness.capacity.trials import Key, Task, Tried, Watch, concluded
from harness.errors import BackendError, NotValid
from harness.failures import failures
from harness.validity import ANSWERS

if TYPE_CHECKING:
    from harness.run import Result

TRIALS = "trials"
AGAIN = 2
"""Times that a trial is made before it counts as not valid: a machine may be disturbed once."""


class Runs:
    """Makes trials as runs below `path`; notes of a run go to `say`."""

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self._path = path
        self._say = say
        self.invalid: list[str] = []
        """Why each trial that was thrown away is not valid: such a trial decides nothing."""

    def __repr__(self) -> str:
        return f"<Runs in {self._path}>"

    def __call__(self, tasks: Iterable[Task]) -> Iterator[Tried]:
        """Each when it is over. Raises BackendError, and NotValid for a trial that proves nothing."""
        for task in tasks:
            yield self._made(task)

    def _made(self, task: Task) -> Tried:
        for attempt in range(AGAIN):
            begun_s = time.monotonic()
            watch = None if task.key.goal is None else Watch(task)
            result = self._run(task, watch)
            early = None if watch is None else watch.passed
            result.outcome.check()
            if result.outcome.error is not None:
                raise BackendError(result.outcome.error)
            if result.outcome.ended != "finished" and early is None:
                raise KeyboardInterrupt
            if (said := _fault(task, result)) is not None:
                raise BackendError(f"The trial at {task.key.rate_rps:g} req/s (seed {task.key.seed}): {said}")
            if _is_valid(result, ended_early=early is not None):
                return concluded(task, result.run.requests, early, begun_s)
            reasons = " ".join(result.run.info["verdict"]["reasons"])
            self.invalid.append(f"{task.key.rate_rps:g} req/s, seed {task.key.seed}: {reasons}")
            if attempt == 0:
                self._say(f"not valid, made again: {reasons}")
        raise NotValid(
            f"The trial at {task.key.rate_rps:g} req/s (seed {task.key.seed}) is not valid, twice: {reasons} "
            f"See '{result.run.path}'."
        )

    def _run(self, task: Task, watch: Watch | None) -> Result:
        from harness.run import execute

        return execute(
            task.run,
            out=self._path / TRIALS / folder_name(task.key),
            force=True,
            say=self._say,
            watch=None if watch is None else watch.take,
        )


def _is_valid(result: Result, *, ended_early: bool) -> bool:
    """Whether a run proves anything. Of a probe that was ended early the answers may all be outstanding."""
    info = result.run.info
    if info["verdict"]["valid"]:
        return True
    failed = {check["check"] for check in info["checks"] if check["state"] == "failed"}
    return ended_early and failed == {ANSWERS}


def _fault(task: Task, result: Result) -> str | None:
    """The sentence on a backend that failed, not on one that has too much to do: then a search would find no capacity.

    A probe may lie far above the capacity, where requests that wait too long are what load does.
    """
    probe = task.key.goal is not None
    overloaded = probe or bool(result.run.info["verdict"]["queue_grew"])
    told = failures(result.run.requests, overloaded=overloaded, at_most=task.spec.max_failed)
    few = told["requests"] <= told["at_most"] * task.key.planned  # of a probe that was ended only some are there
    return None if few else str(told["said"])


def folder_name(key: Key) -> str:
    """A name that a person can read: `4.2rps-seed3`, `4.2rps-seed3-probe90`."""
    probe = "" if key.goal is None else f"-probe{100 * key.goal:g}"
    return f"{key.rate_rps:g}rps-seed{key.seed}-{key.planned}{probe}"

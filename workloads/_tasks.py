"""Tasks: what one arrival brings about where it is more than one request. The protocol of the plug-ins `sessions`."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

Pairs = Callable[[int], tuple[np.ndarray, np.ndarray]]
"""Draws the lengths of n requests: prompt and output tokens, (n,) int64 each."""


class Streams(NamedTuple):
    """What tasks are drawn from: a generator for their sizes, one for their delays, and the lengths."""

    sizes: np.random.Generator
    delays: np.random.Generator
    pairs: Pairs


class Tasks(NamedTuple):
    """The requests of some tasks in columns (M,), task after task; within a task those waited for come first.

    A request comes after the `parents` rows from row `parent` on (0 of them: it starts its task), and `delay_s` after
    the last of their answers. It names `blocks` leading blocks of its prompt: those of the task from `first_block` on.
    """

    sizes: np.ndarray  # (tasks,) requests of each
    turn: np.ndarray
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray
    delay_s: np.ndarray
    parent: np.ndarray
    parents: np.ndarray
    blocks: np.ndarray
    first_block: np.ndarray


class Sessions(Protocol):
    """How an arrival becomes a task; lengths are those of the new part of a prompt, and of its answer."""

    @property
    def block_tokens(self) -> int:
        """Tokens of the blocks in which a prompt names what it shares with its task."""
        ...

    @property
    def mean_requests(self) -> float:
        """Mean number of requests of a task."""
        ...

    def tasks(self, count: int, streams: Streams) -> Tasks:
        """The next `count` tasks; the stream of tasks must not depend on how many are asked for at a time."""
        ...


def starts_of(sizes: np.ndarray) -> np.ndarray:
    """(tasks,) first row of each task."""
    return np.asarray(np.cumsum(sizes) - sizes)


def earliest_s(tasks: Tasks, start_s: np.ndarray) -> np.ndarray:
    """(M,) the earliest time of each request, as if answers took no time; `start_s` (tasks,) when each begins."""
    at_s = np.repeat(start_s, tasks.sizes)
    order = np.argsort(tasks.turn, kind="stable")
    ends = np.cumsum(np.bincount(tasks.turn))
    for begin, end in zip(ends[:-1], ends[1:], strict=True):  # turn after turn: sums do not depend on the neighbours
        rows = order[begin:end]
        parent, last = tasks.parent[rows], tasks.parents[rows] - 1
        latest_s = at_s[parent]
        for i in range(1, int(last.max(initial=0)) + 1):
            latest_s = np.maximum(latest_s, at_s[parent + np.minimum(i, last)])
        at_s[rows] = np.where(last >= 0, latest_s + tasks.delay_s[rows], at_s[rows])
    return at_s

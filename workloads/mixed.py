"""Tasks: what one arrival brings about where it is more than one request. The protocol of the plug-ins `sessions`.

A workload mixed from arrivals, lengths, sessions and shared prefixes, each with a random stream of its own.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import chain, islice
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from harness.api import Arrivals, Extra, Lengths
from harness.data.records import SCHEDULE, schedule_chunk
from workloads._timeline import Columns, Timeline
from workloads.arrivals.closed import Closed
from workloads.prefixes import MOST_OWNERS, Prefixes, Run, Space, id_lists

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
        """The next `count` tasks; the stream of tasks must not depend on the chunk size."""
        ...


@runtime_checkable
class Deadline(Protocol):
    """Sessions that bound the time of a whole task."""

    @property
    def deadline_s(self) -> float | None:
        """Seconds from when a task is due to the last token of its last answer; None: these have no bound."""
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


FIRST_CHUNK, CHUNK = 256, 32_768
"""Requests drawn at first and at most at one time, about: a short run does not pay for a long one."""

MOST_TASKS = 1 << 30
"""Tasks of one class of traffic; with the number of the class they fit the owners of prefix blocks."""


@dataclass(frozen=True, slots=True)
class Mixed:
    """Requests at the times of `arrivals` with the `lengths`, which do not depend on one another.

    Changing the arrivals leaves the lengths of a seed as they are. With `sessions` an arrival starts a task of
    several requests; with `prefixes` a task's prompts begin with a shared prefix on top of their own tokens. `tag`
    names the class of traffic, `number` counts the classes of a mix. `slo` sets bounds in seconds for every
    request itself (keys `ttft`, `tpot`, `task`), which no SLO of a run can relax; leave it empty for one that can
    be scored again. The requests name `model` where that is not the one of the run.
    """

    arrivals: Arrivals
    lengths: Lengths
    sessions: Sessions | None = None
    prefixes: Prefixes | None = None
    tag: str | None = None
    slo: Mapping[str, float] = field(default_factory=dict)
    priority: int = 0
    number: int = 0
    facts: Mapping[str, object] = field(default_factory=dict)
    offline: bool = False
    model: str | None = None

    def __post_init__(self) -> None:
        if self.sessions is not None and isinstance(self.arrivals, Closed):
            raise ValueError("closed arrivals are users who send follow-ups themselves, so they accept no sessions.")
        if self.sessions is not None and self.number >= MOST_OWNERS // MOST_TASKS:
            raise ValueError(f"only the first {MOST_OWNERS // MOST_TASKS} classes of a mix can have sessions.")
        if self.sessions is not None and self.sessions.mean_requests > 1 and self.prefixes is not None:
            block = self.sessions.block_tokens
            if any(length % block for length in self.prefixes.lengths_tokens) or self.prefixes.block_tokens != block:
                raise ValueError(
                    f"with sessions, a shared prefix must be a multiple of their blocks of {block} tokens and named "
                    f"in them; change tokens and block_tokens of the prefixes, or block_tokens of the sessions."
                )

    def start(self, rng: np.random.Generator, first_chunk: int | None = None) -> Iterator[pa.Table]:
        """Chunks of the schedule; as many requests as the arrivals bring about, which may be without end.

        The first chunk holds about `first_chunk` requests, each one after it twice as many: the rows do not show it.
        """
        first_chunk = first_chunk or FIRST_CHUNK
        arrivals_rng, lengths_rng, _content_rng, sizes_rng, delays_rng, prefixes_rng = rng.spawn(6)
        pairs = pairs_from(self.lengths.pairs(lengths_rng))
        if isinstance(self.arrivals, Closed):
            rows = _of_users(self.arrivals, pairs, arrivals_rng)
        elif self.sessions is None:
            rows = _of_arrivals(_chunks(self.arrivals.times(arrivals_rng), first_chunk), pairs)
        else:
            streams = Streams(sizes_rng, delays_rng, pairs)
            each = self.sessions.mean_requests
            chunks = _chunks(self.arrivals.times(arrivals_rng), first_chunk, each)
            rows = _of_tasks(chunks, self.sessions, streams, self.prefixes, prefixes_rng)
        for columns in rows:
            if self.prefixes is not None and self.sessions is None:
                columns.update(_prefixed(self.prefixes, prefixes_rng, len(columns["id"])))
            if len(columns["id"]):
                yield self._table(columns)

    def describe(self) -> Mapping[str, object]:
        """Preparation, tokenizer, source and licence of the lengths."""
        return self.facts

    @property
    def deadline_s(self) -> float | None:
        """Seconds within which a whole task must end: those of its class, else those of its sessions."""
        own = self.sessions.deadline_s if isinstance(self.sessions, Deadline) else None
        return self.slo.get("task", own)

    def _table(self, rows: Columns) -> pa.Table:
        n = len(rows["id"])
        columns: dict[str, object] = {name: pa.repeat(pa.scalar(v, SCHEDULE.field(name).type), n)
                                      for name, v in self._constants().items()}  # fmt: skip
        prompt = rows["prompt_tokens"]
        if "prefix" in rows:
            assert self.prefixes is not None
            prompt = prompt + np.where(rows["prefixed"], self.prefixes.length_tokens(rows["prefix"]), 0)
        if "parents" in rows:
            columns |= {"after": _lists(np.concatenate(([0], np.cumsum(rows["parents"]))), rows["after"], "after"),
                        "delay_s": rows["delay_s"]}  # fmt: skip
        if "task" in rows:
            columns |= {"session": self.number * MOST_TASKS + rows["task"], "turn": rows["turn"]}
        if runs := self._runs(rows):
            columns["prefix_ids"] = _lists(*id_lists(*runs), "prefix_ids")
            columns["prefix_block_tokens"] = self._block_tokens(rows)
        return schedule_chunk(
            n,
            id=rows["id"],
            scheduled_s=rows["at_s"],
            prompt_tokens=prompt,
            output_tokens=rows["output_tokens"],
            **columns,
        )

    def _constants(self) -> dict[str, object]:
        own = {"slo_task_s": self.deadline_s} | {f"slo_{metric}_s": bound for metric, bound in self.slo.items()}
        extra = asdict(Extra(offline=self.offline, model=self.model)) if self.offline or self.model else None
        whole = {**own, "tag": self.tag, "priority": self.priority or None, "extra": extra}
        return {name: v for name, v in whole.items() if v}

    def _runs(self, rows: Columns) -> list[Run]:
        runs = []
        if self.prefixes is not None:
            runs.append(self.prefixes.run(rows["prefix"], rows["prefixed"]))
        if "task" in rows:
            owners = self.number * MOST_TASKS + rows["task"]
            runs.append(Run(Space.SESSION, owners, rows["blocks"], rows["first_block"]))
        return runs

    def _block_tokens(self, rows: Columns) -> object:
        """Those of the sessions, which fit the prefixes; those of the prefixes where no session names anything."""
        if self.prefixes is not None and (self.sessions is None or self.sessions.mean_requests == 1):
            return self.prefixes.block_tokens_of(rows["prefix"])
        assert self.sessions is not None
        return pa.repeat(pa.scalar(self.sessions.block_tokens), len(rows["id"]))


def pairs_from(pairs: Iterator[tuple[int, int]]) -> Pairs:
    """Draws n pairs at a time from a stream of (prompt_tokens, output_tokens)."""

    def draw(n: int) -> tuple[np.ndarray, np.ndarray]:
        flat = np.fromiter(chain.from_iterable(islice(pairs, n)), np.int64, 2 * n)
        return flat[::2], flat[1::2]

    return draw


def _chunks(times: Iterator[float], size: int, each: float = 1.0) -> Iterator[np.ndarray]:
    """Arrivals that bring about `each` requests in the mean, and `size` in the first chunk."""
    while len(at_s := np.fromiter(islice(times, max(1, int(size / each))), float)):
        yield at_s
        size = min(2 * size, CHUNK)


def _of_arrivals(chunks: Iterator[np.ndarray], pairs: Pairs) -> Iterator[Columns]:
    """One request an arrival."""
    first = 0
    for at_s in chunks:
        prompt, output = pairs(len(at_s))
        ids = np.arange(first, first + len(at_s))
        yield {"id": ids, "at_s": at_s, "prompt_tokens": prompt, "output_tokens": output}
        first += len(at_s)


def _of_users(closed: Closed, pairs: Pairs, rng: np.random.Generator) -> Iterator[Columns]:
    """Each request of a user after the one before."""
    first = 0
    last_of = np.full(closed.users, -1)  # id of the last request of each user; -1 is never read
    for cycles in closed.cycles(rng):
        ids = np.arange(first, first + len(cycles.at_s))
        first += len(ids)
        order = np.argsort(cycles.user, kind="stable")
        users, mine = cycles.user[order], ids[order]
        begins = np.diff(users, prepend=-1) > 0
        before = np.where(begins, last_of[users], np.concatenate(([0], mine[:-1]))[: len(mine)])
        last_of[users] = mine  # the last of equal users stays
        after = np.empty_like(ids)
        after[order] = before
        prompt, output = pairs(len(ids))
        yield {
            "id": ids, "at_s": cycles.at_s, "prompt_tokens": prompt, "output_tokens": output, "delay_s": cycles.think_s,
            "parents": (after >= 0).astype(np.int64), "after": after[after >= 0],
        }  # fmt: skip


def _of_tasks(
    chunks: Iterator[np.ndarray],
    sessions: Sessions,
    streams: Streams,
    prefixes: Prefixes | None,
    prefixes_rng: np.random.Generator,
) -> Iterator[Columns]:
    """The requests of all tasks in order of their earliest times."""
    line, made, begun = Timeline(), 0, 0
    for start_s in chain(chunks, [np.zeros(0)]):
        tasks = sessions.tasks(len(start_s), streams)
        rows = tasks._asdict()
        del rows["sizes"]
        rows |= {
            "at_s": earliest_s(tasks, start_s),
            "parent": tasks.parent + made,
            "task": np.repeat(np.arange(begun, begun + len(start_s)), tasks.sizes),
        }
        if prefixes is not None:
            drawn = _prefixed(prefixes, prefixes_rng, len(start_s))
            rows |= {name: np.repeat(values, tasks.sizes) for name, values in drawn.items()}
        made, begun = made + len(rows["at_s"]), begun + len(start_s)
        if begun > MOST_TASKS:
            raise ValueError(f"more than {MOST_TASKS:,} sessions in one class of traffic")
        yield line.add(rows, start_s[-1] if len(start_s) else np.inf)


def _prefixed(prefixes: Prefixes, rng: np.random.Generator, n: int) -> Columns:
    numbers, has_prefix = prefixes.draw(rng, n)
    return {"prefix": numbers, "prefixed": has_prefix}


def _lists(offsets: np.ndarray, values: np.ndarray, name: str) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values), type=SCHEDULE.field(name).type)

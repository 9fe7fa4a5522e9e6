"""Tasks: what one arrival brings about where it is more than one request. The protocol of the plug-ins `sessions`.

A workload mixed from arrivals, lengths, sessions and shared prefixes, each with a random stream of its own.
"""

import heapq
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, islice
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness.api import WARM_UP, AnswerKind, Arrivals, Extra, Lengths
from harness.bounds import AtLeastOne, check
from harness.data.records import EXTRA, SCHEDULE, listed, places, schedule_chunk
from harness.errors import UsageError
from workloads.arrivals.closed import Closed
from workloads.prefixes import MOST_OWNERS, Prefixes, Run, Space, id_lists
from workloads.trace_rows import extra_columns
from workloads.under_way import ANSWER_TOKEN_S, begun_rps, next_requests

FIRST_CHUNK, CHUNK = 256, 32_768
"""Requests drawn at first and at most at one time, about: a short run does not pay for a long one."""

MIDDLES = 256
"""Tasks, at least, of which users at work choose the first, the likelier the longer it lasts: of few the longest ones
are too rare."""

POOL = 8192
"""Requests of tasks, about, of which those under way at the start of an open loop are chosen, for each window."""

MOST_WAITING = 10_000_000
"""Requests of sessions under way that are drawn at one time: of more, memory would not do."""

MOST_TASKS = 1 << 30
"""Tasks of one class of traffic, half of them for those under way at first; with the number of the class they fit the
owners of prefix blocks."""

Columns = dict[str, np.ndarray]
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


def earliest_s(tasks: Tasks, start_s: np.ndarray, answer_s: np.ndarray | float = 0.0) -> np.ndarray:
    """(M,) the earliest time of each request; `start_s` (M,) that of requests that wait for nothing.

    Answers take `answer_s` (M,) each, or no time.
    """
    at_s, answer_s = start_s.copy(), np.broadcast_to(answer_s, start_s.shape)
    order = np.argsort(tasks.turn, kind="stable")
    ends = np.cumsum(np.bincount(tasks.turn))
    for begin, end in zip(ends[:-1], ends[1:], strict=True):  # turn after turn: sums do not depend on the neighbours
        # Rows of one turn wait for rows of earlier turns only, so all of them are known by now.
        rows = order[begin:end]
        parent, last = tasks.parent[rows], tasks.parents[rows] - 1
        latest_s = at_s[parent] + answer_s[parent]
        for i in range(1, int(last.max(initial=0)) + 1):
            other = parent + np.minimum(i, last)
            latest_s = np.maximum(latest_s, at_s[other] + answer_s[other])
        at_s[rows] = np.where(last >= 0, latest_s + tasks.delay_s[rows], at_s[rows])
    return at_s


@dataclass(frozen=True, slots=True)
class Mixed:
    """Requests at the times of `arrivals` with the `lengths`, which do not depend on one another.

    Changing the arrivals leaves the lengths of a seed as they are. With `sessions` an arrival starts a task of
    several requests, tasks that began before 0 are under way (`workloads.under_way`), and users in a closed loop have
    one after the other; with `prefixes` a task's prompts begin with a shared prefix on top of their own tokens. `tag`
    names the class of traffic, `number` counts the classes of a mix. `slo` sets bounds in seconds for every
    request itself (keys `ttft`, `tpot`, `task`), which no SLO of a run can relax; leave it empty for one that can
    be scored again. The requests name `model` where that is not the one of the run. Follow-ups stand at their earliest
    times, or as if each token of an answer took `answer_token_s`. Each request asks for `n` answers of this `kind`, and
    `image_tokens` of its prompt are those of images; `questions` draws
    their `cluster`.
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
    n: AtLeastOne = 1
    kind: AnswerKind = "autoregressive"
    image_tokens: int = 0
    model: str | None = None
    answer_token_s: float = 0.0
    questions: Prefixes | None = None

    def __post_init__(self) -> None:
        check(self)
        if self.sessions is None and isinstance(self.arrivals, Closed) and self.arrivals.steady:
            raise ValueError(
                "steady users begin in the middle of sessions, and these are single requests; give --sessions, or a "
                "workload with sessions such as coding-agent."
            )
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
        streams = Streams(sizes_rng, delays_rng, pairs)
        if isinstance(self.arrivals, Closed):
            if self.sessions is None:
                rows = _of_users(self.arrivals, pairs, arrivals_rng)
            else:
                drawn = _tasks_of_users(self.arrivals, self.sessions, streams, arrivals_rng)
                rows = _in_order(drawn, self.prefixes, [prefixes_rng])
        elif self.sessions is None:
            rows = _of_arrivals(_chunks(self.arrivals.times(arrivals_rng), first_chunk), pairs)
        else:
            per_task = self.sessions.mean_requests
            chunks = _chunks(self.arrivals.times(arrivals_rng), first_chunk, per_task)
            lengths_rng, sizes_rng, delays_rng, choice_rng, before_rng = rng.spawn(5)
            pool_streams = Streams(sizes_rng, delays_rng, pairs_from(self.lengths.pairs(lengths_rng)))
            # Half of a task would meet any deadline of the whole.
            rate_rps = 0.0 if self.deadline_s else begun_rps(self.arrivals)
            before = _before(self.sessions, pool_streams, rate_rps, choice_rng, self.answer_token_s)
            begun = _tasks_of_arrivals(chunks, self.sessions, streams, before, self.answer_token_s)
            rows = _in_order(begun, self.prefixes, [prefixes_rng, before_rng])
        questions_rng = rng.spawn(1)[0]  # after all others, which do not change with it
        for columns in rows:
            if self.questions is not None:
                columns["cluster"], _ = self.questions.draw(questions_rng, len(columns["id"]))
            if self.prefixes is not None and self.sessions is None:
                columns.update(_prefixed(self.prefixes, prefixes_rng, len(columns["id"])))
            if len(columns["id"]):
                yield self._table(columns)

    def as_recorded(self) -> "Mixed":
        """The same requests at the times that a recorder would see where answers take their nominal time."""
        return replace(self, answer_token_s=ANSWER_TOKEN_S)

    def describe(self) -> Mapping[str, object]:
        """Preparation, tokenizer, source and licence of the lengths."""
        return self.facts

    @property
    def deadline_s(self) -> float | None:
        """Seconds within which a whole task must end: those of its class, else those of its sessions."""
        default_s = self.sessions.deadline_s if isinstance(self.sessions, Deadline) else None
        return self.slo.get("task", default_s)

    def _table(self, rows: Columns) -> pa.Table:
        n = len(rows["id"])
        columns: dict[str, object] = {name: pa.repeat(pa.scalar(v, SCHEDULE.field(name).type), n)
                                      for name, v in self._constants().items()}  # fmt: skip
        prompt = rows["prompt_tokens"]
        if "prefix" in rows:
            assert self.prefixes is not None
            prompt = prompt + np.where(rows["prefixed"], self.prefixes.length_tokens(rows["prefix"]), 0)
        if "cluster" in rows:
            alike = {"category": self.tag, "model": self.model, "offline": self.offline, "n": self.n, "kind": self.kind}
            known = {name: pa.repeat(pa.scalar(v, EXTRA.field(name).type), n) for name, v in alike.items()}
            columns["extra"] = extra_columns(n, {**known, "cluster": rows["cluster"]})
        if "parents" in rows:
            columns |= {"after": listed(rows["parents"], rows["after"], SCHEDULE.field("after").type),
                        "delay_s": rows["delay_s"]}  # fmt: skip
        if "task" in rows:
            columns |= {"session": self.number * MOST_TASKS + rows["task"], "turn": rows["turn"]}
        if "warm" in rows:
            class_tag = pa.scalar(self.tag, pa.string())
            columns["tag"] = pc.if_else(pa.array(rows["warm"]), pa.scalar(WARM_UP), class_tag)
        if runs := self._runs(rows):
            columns["prefix_ids"] = id_lists(*runs)
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
        bounds = {"slo_task_s": self.deadline_s} | {f"slo_{metric}_s": bound for metric, bound in self.slo.items()}
        extra = Extra(offline=self.offline, model=self.model, n=self.n, kind=self.kind, image_tokens=self.image_tokens)
        constants = {**bounds, "tag": self.tag, "priority": self.priority or None,
                     "extra": None if extra == Extra() else asdict(extra)}  # fmt: skip
        return {name: v for name, v in constants.items() if v}

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


class Timeline:
    """Rows go in as they are made and come out by (`at_s`, order of making), numbered from 0.

    `parent` and `parents` go in as numbers of making: a row waits for the `parents` rows from number `parent` on.
    """

    def __init__(self) -> None:
        self._made = 0
        self._waiting: Columns = {}
        self._id_of = np.empty(1024, np.int64)  # id by number of making
        self._given = 0

    def __repr__(self) -> str:
        return f"<Timeline {self._made - self._given} waiting, {self._given} given>"

    def add(self, rows: Columns, until_s: float) -> Columns:
        """Take rows in, give those due up to `until_s`; no row added later may be due before it."""
        count = len(rows["at_s"])
        rows = {**rows, "made": np.arange(self._made, self._made + count)}
        self._made += count
        at_s, serials = self._with(rows, "at_s"), self._with(rows, "made")
        due, later = np.flatnonzero(at_s <= until_s), np.flatnonzero(at_s > until_s)
        # Ties in order of making: it does not depend on which rows wait together, as the place in a table does.
        due = due[np.lexsort((serials[due], at_s[due]))]
        ready: Columns = {}
        for name in rows:  # one after the other: a column is in memory twice, not all of them
            column = self._with(rows, name)
            ready[name], self._waiting[name] = column[due], _small(column[later])
        return self._numbered(ready)

    def _with(self, rows: Columns, name: str) -> np.ndarray:
        """A column of what waits and of the new rows."""
        return np.concatenate((self._waiting[name], rows[name])) if name in self._waiting else rows[name]

    def _numbered(self, rows: Columns) -> Columns:
        """The rows with `id`, and with `after` (ids, flat) of `parents` each instead of `parent`."""
        serials = rows.pop("made")
        ids = np.arange(self._given, self._given + len(serials))
        if self._made > len(self._id_of):
            self._id_of = np.concatenate((self._id_of, np.empty(max(self._made, len(self._id_of)), np.int64)))
        self._id_of[serials] = ids
        self._given += len(serials)
        parents = rows["parents"]
        after = self._id_of[np.repeat(rows.pop("parent").astype(np.int64), parents) + places(parents)]
        return {**rows, "id": ids, "after": after}


def _small(values: np.ndarray) -> np.ndarray:
    """Whole numbers in 4 bytes where they fit: very many rows may wait for days."""
    if values.dtype != np.int64 or not len(values):
        return values
    fits = values.max() < 1 << 31 and values.min() >= -(1 << 31)
    return values.astype(np.int32) if fits else values


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
        users, sorted_ids = cycles.user[order], ids[order]
        begins = np.diff(users, prepend=-1) > 0
        before = np.where(begins, last_of[users], np.concatenate(([0], sorted_ids[:-1]))[: len(sorted_ids)])
        last_of[users] = sorted_ids  # the last of equal users stays
        after = np.empty_like(ids)
        after[order] = before
        prompt, output = pairs(len(ids))
        yield {
            "id": ids, "at_s": cycles.at_s, "prompt_tokens": prompt, "output_tokens": output, "delay_s": cycles.think_s,
            "parents": (after >= 0).astype(np.int64), "after": after[after >= 0],
        }  # fmt: skip


class _Begun(NamedTuple):
    """Tasks with the time at which each begins, and until when (s) nothing else is due; parents are rows of making."""

    tasks: Tasks
    at_s: np.ndarray  # (M,) of their rows
    until_s: float
    warm: np.ndarray | None = None  # (M,) whether a row warms the cache, and is not of the workload
    before: bool = False  # whether the tasks began before time 0


def _tasks_of_arrivals(
    chunks: Iterator[np.ndarray], sessions: Sessions, streams: Streams, before: Iterator[_Begun], token_s: float
) -> Iterator[_Begun]:  # fmt: skip
    """One task an arrival, and those that began `before`, whose next requests come up to the end of each."""
    rows_made, known_s = 0, 0.0
    for start_s in chain(chunks, [np.zeros(0)]):
        until_s = float(start_s[-1]) if len(start_s) else np.inf
        while known_s < until_s < np.inf:
            if (earlier := next(before, None)) is None:
                break
            known_s, parent = earlier.until_s, earlier.tasks.parent + rows_made
            yield earlier._replace(tasks=earlier.tasks._replace(parent=parent), until_s=-np.inf)
            rows_made += len(earlier.at_s)
        tasks = sessions.tasks(len(start_s), streams)
        at_s = earliest_s(tasks, np.repeat(start_s, tasks.sizes), token_s * tasks.output_tokens)
        yield _Begun(tasks._replace(parent=tasks.parent + rows_made), at_s, until_s)
        rows_made += len(at_s)


def _before(
    sessions: Sessions, streams: Streams, rate_rps: float, rng: np.random.Generator, token_s: float
) -> Iterator[_Begun]:  # fmt: skip
    """Tasks under way at time 0, window after window of their next requests."""
    each = sessions.mean_requests
    count = max(int(POOL / each), min(MIDDLES, 1 + int(MOST_WAITING / 10 / each)))  # few of very long ones
    end_s, longer = 0.0, rate_rps > 0
    while longer:
        pool = sessions.tasks(count, streams)
        task = np.repeat(np.arange(count), pool.sizes)
        at_s = earliest_s(pool, np.zeros(len(task)), ANSWER_TOKEN_S * pool.output_tokens)
        window_s = end_s, (end_s := end_s + count / rate_rps)
        chosen, next_s, longer = next_requests(at_s, task, rate_rps, window_s, rng)
        if pool.sizes[task[chosen]].sum() > MOST_WAITING:
            raise UsageError(
                f"{len(chosen):,} sessions of {each:,.0f} requests are under way at this rate, more than "
                f"{MOST_WAITING:,} requests; lower --rate, or give --sessions fewer turns or shorter think times."
            )
        tasks, since_s = _rest_of(
            pool, at_s, starts_of(pool.sizes)[task[chosen]], pool.sizes[task[chosen]], at_s[chosen]
        )
        start_s = np.repeat(next_s, tasks.sizes) + since_s
        begun_s = earliest_s(tasks, start_s, token_s * tasks.output_tokens)
        yield _Begun(tasks, begun_s, end_s if longer else np.inf, before=True)


def _rest_of(
    pool: Tasks, at_s: np.ndarray, begin: np.ndarray, sizes: np.ndarray, from_s: np.ndarray
) -> tuple[Tasks, np.ndarray]:  # fmt: skip
    """What comes at `from_s` (K,) or later of tasks of the pool, with `sizes` rows from row `begin` on, and how much
    later; a request waits for those that remain of what it waited for.
    """
    row, task = np.repeat(begin, sizes) + places(sizes), np.repeat(np.arange(len(sizes)), sizes)
    since_s = at_s[row] - from_s[task]
    remains = since_s >= 0
    number = np.append(0, np.cumsum(remains))  # of the rows that remain before each
    waits, parent = pool.parents[row] > 0, pool.parent[row] + np.arange(len(row)) - row
    first, last = (number[np.where(waits, edge, 0)][remains] for edge in (parent, parent + pool.parents[row]))
    columns = (column[row[remains]] for column in pool[1:])
    tasks = Tasks(np.bincount(task[remains], minlength=len(sizes)), *columns)._replace(
        parent=first, parents=last - first
    )
    return tasks._replace(delay_s=np.where(last > first, tasks.delay_s, 0.0)), since_s[remains]


def _tasks_of_users(
    closed: Closed, sessions: Sessions, streams: Streams, rng: np.random.Generator
) -> Iterator[_Begun]:  # fmt: skip
    """Users have one task after the other, each their think time after all answers of the one before."""
    ramp_s = (closed.ramp_s * np.arange(closed.users) / closed.users).tolist()
    # when a user is free at the earliest, who it is, and which rows their next task waits for: the first, and how many
    # and when their cycles of least time are over
    free = [(start_s, user, 0, 0, start_s) for user, start_s in enumerate(ramp_s)]
    least, rows_made = max(1, int(FIRST_CHUNK / sessions.mean_requests)), 0
    while True:
        middle = closed.steady and not rows_made
        tasks, warm = sessions.tasks(max(MIDDLES if middle else least, closed.users), streams), None
        if middle:
            tasks, warm = _from_the_middle(tasks, closed.users, rng)
        elif closed.steady:
            warm = np.zeros(len(tasks.turn), bool)
        first, size = starts_of(tasks.sizes), len(tasks.turn)
        at_s = earliest_s(tasks, np.zeros(size))  # after the start of the task
        lasts_s, least_s = np.maximum.reduceat(at_s, first), (closed.least_cycle_s * tasks.sizes).tolist()
        waited = np.zeros(size + 1, np.int64)
        np.add.at(waited, tasks.parent[has := tasks.parents > 0], 1)
        np.add.at(waited, (tasks.parent + tasks.parents)[has], -1)
        last = np.where(np.cumsum(waited)[:-1] > 0, size, np.arange(size))  # rows that no other one waits for
        last, end = np.minimum.reduceat(last, first), first + tasks.sizes
        parent, parents, delay_s = tasks.parent + rows_made, tasks.parents.copy(), tasks.delay_s.copy()
        start_s = np.zeros(len(first))
        for number, row in enumerate(first.tolist()):
            free_s, user, parent[row], parents[row], earliest = heapq.heappop(free)
            if parents[row]:
                delay_s[row] = closed.think_s if closed.law == "fixed" else rng.exponential(closed.think_s)
            start_s[number] = begin_s = max(free_s + delay_s[row], earliest)
            behind = rows_made + int(last[number]), int(end[number] - last[number])
            heapq.heappush(free, (begin_s + lasts_s[number], user, *behind, begin_s + least_s[number]))
        at_s += np.repeat(start_s, tasks.sizes)
        begun = tasks._replace(parent=parent, parents=parents, delay_s=delay_s)
        yield _Begun(begun, at_s, free[0][0], warm)
        rows_made += size


def _from_the_middle(tasks: Tasks, users: int, rng: np.random.Generator) -> tuple[Tasks, np.ndarray]:
    """A task for each user from a random moment on, the likelier the longer it lasts, as one finds users at work.

    The request before that moment comes first, with one token of answer, and warms the cache: (M,) which those are.
    """
    first, row = starts_of(tasks.sizes), np.arange(len(tasks.turn))
    at_s = earliest_s(tasks, np.zeros(len(row)))
    if not at_s.any():  # without thinking, by the number of requests
        at_s = (row - np.repeat(first, tasks.sizes)).astype(float)
    lasts_s = np.maximum.reduceat(at_s, first)
    waits_for = np.where(tasks.parents > 0, tasks.parent, len(row))
    clear = np.minimum.accumulate(waits_for[::-1])[::-1] >= row - 1  # nothing from here on waits for more than one row
    # A moment falls into a task in proportion to how long the task lasts (the inspection paradox).
    chosen = rng.choice(len(first), users, p=lasts_s / lasts_s.sum() if lasts_s.any() else None)
    pieces, warm = [], []
    for number, share in zip(chosen.tolist(), rng.random(users).tolist(), strict=True):
        span = slice(first[number], first[number] + tasks.sizes[number])
        begin = span.start + min(int((at_s[span] < share * lasts_s[number]).sum()), span.stop - span.start - 1)
        begin -= int(np.argmax(clear[span.start : begin + 1][::-1]))
        pieces.append(row[max(begin - 1, span.start) : span.stop])
        warm.append(np.arange(len(pieces[-1])) < (begin > span.start))
    rows, sizes = np.concatenate(pieces), np.array([len(part) for part in pieces])
    begins, is_warm = starts_of(sizes), np.concatenate(warm)
    running = Tasks(sizes, *(column[rows] for column in tasks[1:]))
    running.parents[begins], running.delay_s[begins] = 0, 0.0
    moved = np.arange(len(rows)) - rows  # of a task all rows by as much
    output_tokens = np.where(is_warm, 1, running.output_tokens)
    return running._replace(parent=running.parent + moved, output_tokens=output_tokens), is_warm


def _in_order(
    begun: Iterator[_Begun], prefixes: Prefixes | None, prefixes_rngs: list[np.random.Generator]
) -> Iterator[Columns]:
    """The requests of all tasks in order of their earliest times; those that began before 0 count apart."""
    line, counts = Timeline(), [0, MOST_TASKS // 2]
    for part in begun:
        rows, sizes, count = part.tasks._asdict(), part.tasks.sizes, counts[part.before]
        del rows["sizes"]
        rows |= {"at_s": part.at_s, "task": np.repeat(np.arange(count, count + len(sizes)), sizes)}
        if part.warm is not None:
            rows["warm"] = part.warm
        if prefixes is not None:
            drawn = _prefixed(prefixes, prefixes_rngs[part.before], len(sizes))
            rows |= {name: np.repeat(values, sizes) for name, values in drawn.items()}
        counts[part.before] += len(sizes)
        if max(counts[0], counts[1] - MOST_TASKS // 2) > MOST_TASKS // 2:
            raise ValueError(f"more than {MOST_TASKS // 2:,} sessions in one class of traffic")
        yield line.add(rows, part.until_s)


def _prefixed(prefixes: Prefixes, rng: np.random.Generator, n: int) -> Columns:
    numbers, has_prefix = prefixes.draw(rng, n)
    return {"prefix": numbers, "prefixed": has_prefix}

"""Sessions of a trace at starts of their own: which of them users or arrivals begin, when, and from where.

All of it is drawn before the run: answers decide when a request leaves, not which one is next.
"""

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import count, islice
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness.api import WARM_UP, Arrivals
from harness.bounds import AtLeastOne, Share, check
from harness.data.records import SCHEDULE, listed, places, ragged, schedule_chunk
from harness.errors import UsageError, no_such
from harness.spec import build, parse
from workloads.arrivals.closed import Closed
from workloads.prefixes import Run, Space, first_ids
from workloads.session_times import ApiScaled, SessionTimes, ThinkOnly, Turns, times_of
from workloads.trace_rows import above, alike, brought, conversations, extras, with_small_ids
from workloads.traces import Trace
from workloads.under_way import begun_rps, next_requests

CHUNK = 4096
"""Rows of a chunk of the schedule; a row may name ten thousand blocks."""
_USED = frozenset({"prompt_tokens", "output_tokens", "prefix_ids", "turn", "tag", "agent", "image_tokens", "n", "model",
                   "slo_ttft_s", "slo_tpot_s", "slo_e2e_s", "slo_task_s", "priority"})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sessions:
    """Whole sessions of the trace, `count` of them (None: all), in random order or that of the file, `passes` times.

    A session that comes again has blocks of its own. The first session of each user starts somewhere between
    the shares `begin_least` and `begin_most` of its requests: what came before is left out, but for one request with
    the prompt before, which brings the cache up to date. With `common` sessions share that part of their leading tokens
    of tools and system prompt, as far as the trace tells how many they are.
    """

    count: AtLeastOne | None = None
    order: Literal["random", "file"] = "random"
    passes: AtLeastOne = 1
    begin_least: Share = 0.0
    begin_most: Share = 0.0
    common: Share = 0.0

    def __post_init__(self) -> None:
        check(self)
        if self.begin_least > self.begin_most:
            raise ValueError(
                f"begin_least and begin_most must be shares in this order, got {self.begin_least:g} and "
                f"{self.begin_most:g}."
            )


def sessions_of(text: str | None, kind: str = "recorded") -> Sessions:
    """The choice of a spec such as 'recorded:count=20,common=0.5', or 'fitted:...' of a model. Raises UsageError."""
    if text is None:
        return Sessions()
    spec = parse(text)
    if spec.name not in ("recorded", kind):  # sessions of a model go by both names
        what = "trace" if kind == "recorded" else "model"
        raise no_such(f"kind of sessions of a {what}", spec.name, [kind], f"Sessions of a {what} are {kind}:count=20.")
    return build(Sessions, spec)


class _Placed(NamedTuple):
    """The requests of the schedule, in order of making: columns (M,), and what each waits for as numbers of making."""

    row: np.ndarray  # of the trace
    copy: np.ndarray  # which time its session is replayed, from 0
    at_s: np.ndarray
    delay_s: np.ndarray
    after: list[np.ndarray]
    warm: np.ndarray


@dataclass(slots=True)
class _Placing:
    """Puts session after session onto the time line."""

    line: SessionTimes
    rows: list[np.ndarray]  # of each session, in order of time
    inner: np.ndarray  # (N,) whether a sub-agent sends it
    made: int = 0
    parts: list[_Placed] = field(default_factory=list)

    def lasts_s(self, session: int, begin: int) -> float:
        """How long a session lasts as recorded from a request on, its think times capped."""
        times_s = self.line.recorded_s[self.rows[session]]
        return float(times_s.max() - times_s[begin])

    def middle(self, session: int, share: float) -> int:
        """Number of the request from which on a session that starts at `share` of its requests is sent; 0: all."""
        return self._of_its_own(session, min(int(share * len(self.rows[session])), len(self.rows[session]) - 1))

    def somewhere(self, lasts_s: np.ndarray, rng: np.random.Generator) -> tuple[int, int]:
        """A session, the likelier the longer it lasts, and the number of its first request after a random moment."""
        share = lasts_s / lasts_s.sum() if lasts_s.any() else None
        session = int(rng.choice(len(self.rows), p=share))
        times_s = self.line.recorded_s[self.rows[session]]
        number = int(np.searchsorted(times_s, times_s.min() + rng.uniform() * lasts_s[session]))
        return session, self._of_its_own(session, min(number, len(times_s) - 1))

    def _of_its_own(self, session: int, number: int) -> int:
        rows = self.rows[session]
        while number and (self.inner[rows[number]] or (self.line.waits and not len(self.line.links.of(rows[number])))):
            number -= 1  # to a turn of the session's own agent, after another one
        return number

    def place(
        self, session: int, copy: int, start_s: float, begin: int, behind: np.ndarray, think_s: float, *,
        warms: bool = True,
    ) -> tuple[float, np.ndarray]:  # fmt: skip
        """Add a session from its row number `begin` on, `think_s` after the answers of the requests `behind`.

        One that begins in the middle `warms` the cache, or just goes on. Returns when its last request comes at the
        earliest, and the requests that no other one of it waits for.
        """
        line, rows = self.line, self.rows[session]
        if begin and not warms:
            rows = rows[begin:]
        elif begin:  # the turn before is sent once more, and warms the cache
            before = line.links.of(rows[begin])
            rows = np.concatenate((before[:1] if len(before) else rows[begin - 1 : begin], rows[begin:]))
        id_of = {row: self.made + number for number, row in enumerate(rows.tolist())}
        at_s = start_s + np.maximum(line.offset_s[rows] - line.offset_s[rows[0]], 0.0)
        delay_s = line.delay_s[rows].copy()
        after, led = [], np.zeros(len(rows), bool)
        for number, row in enumerate(rows.tolist()):
            waits = [id_of[i] for i in line.links.of(row).tolist() if i in id_of] if line.waits else []
            if begin and warms and number and line.waits and not waits:  # what it waited for was before the middle
                waits, delay_s[number] = [self.made], at_s[number] - start_s
            if not waits:  # it starts with the session
                waits = behind.tolist()
                delay_s[number] = think_s + at_s[number] - start_s if waits else 0.0
            for i in waits:
                if i >= self.made:
                    led[i - self.made] = True
            after.append(np.array(waits, np.int64))
        if begin and line.waits:
            at_s = self._earliest(at_s, delay_s, after)
        warm = np.arange(len(rows)) < bool(begin and warms)
        self.parts.append(_Placed(rows, np.full(len(rows), copy), at_s, delay_s, after, warm))
        leaves = self.made + np.flatnonzero(~led)
        self.made += len(rows)
        return float(at_s.max()), leaves

    def _earliest(self, at_s: np.ndarray, delay_s: np.ndarray, after: list[np.ndarray]) -> np.ndarray:
        """(n,) times of a session that starts in the middle: those of its own requests only."""
        times_s = at_s.tolist()
        for number, waits in enumerate(after):
            inside = [times_s[i - self.made] for i in waits.tolist() if i >= self.made]
            if inside:
                times_s[number] = max(inside) + float(delay_s[number])
        return np.array(times_s)

    def whole(self) -> _Placed:
        """All of it in order of time, numbered in that order."""
        columns = [
            np.concatenate([getattr(p, name) for p in self.parts])
            for name in ("row", "copy", "at_s", "delay_s", "warm")
        ]
        row, copy, at_s, delay_s, warm = columns
        order = np.argsort(at_s, kind="stable")
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        after = [waits for part in self.parts for waits in part.after]
        moved = [np.sort(place[after[i]]) for i in order.tolist()]
        return _Placed(row[order], copy[order], at_s[order], delay_s[order], moved, warm[order])


@dataclass(frozen=True, slots=True, eq=False)
class SessionReplay:
    """The sessions of a trace as `arrivals` start them, whatever the seed of the run: `place` has drawn them."""

    trace: Trace
    common: float
    placed: _Placed
    facts: Mapping[str, object]
    warmup: str | None = None  # what is not measured: the requests with which users start, where some are to warm up

    def __len__(self) -> int:
        return len(self.placed.row)

    def start(self, rng: np.random.Generator) -> Iterator[pa.Table]:  # noqa: ARG002  # drawn already
        """All requests, in order of their earliest times."""
        table, beyond = self.trace.table, 0
        if "prefix_ids" in table.column_names and (self.placed.copy > 0).any():
            table = with_small_ids(table)
            beyond = above(table["prefix_ids"].combine_chunks().flatten())
        units, sessions = conversations(table)
        common = self._common_blocks(table, units)
        for first in range(0, len(self), CHUNK):
            yield self._chunk(table, units, sessions, common, beyond, slice(first, min(first + CHUNK, len(self))))

    def describe(self) -> Mapping[str, object]:
        """File, hash, format, rows, what was left out or capped, and what was done to the rest."""
        return self.facts

    def _chunk(
        self, table: pa.Table, units: np.ndarray, sessions: int, common: np.ndarray, beyond: int, part: slice
    ) -> pa.Table:  # fmt: skip
        placed = self.placed
        row, copy, warm = placed.row[part], placed.copy[part], placed.warm[part]
        rows = table.select([n for n in table.column_names if n in _USED]).take(pa.array(row))
        after = placed.after[part]
        optional: dict[str, Any] = {"after": ragged(after, "q", SCHEDULE.field("after").type), **brought(rows)}
        if "session" in table.column_names:
            optional["session"] = sessions * copy + units[row]
        if "turn" in table.column_names:
            optional["turn"] = rows["turn"].fill_null(0)
        if "prefix_ids" in table.column_names:
            optional["prefix_ids"] = _named(
                rows["prefix_ids"].combine_chunks(), copy * beyond, common[row], self._owners(rows)
            )
            optional["prefix_block_tokens"] = np.full(len(row), self.trace.block_tokens)
        tag = rows["tag"] if "tag" in table.column_names else pa.nulls(len(row), pa.string())
        optional["tag"] = pc.if_else(pa.array(warm), WARM_UP, tag)
        if (extra := extras(rows, tag)) is not None:
            optional["extra"] = extra
        return schedule_chunk(
            len(row),
            id=np.arange(part.start, part.stop),
            scheduled_s=placed.at_s[part],
            prompt_tokens=rows["prompt_tokens"],
            output_tokens=np.where(warm, 1, np.asarray(rows["output_tokens"])),
            delay_s=np.where([len(a) > 0 for a in after], placed.delay_s[part], 0.0),
            **optional,
        )

    @staticmethod
    def _owners(taken: pa.Table) -> np.ndarray:
        """(n,) what common blocks belong to: 0 the agents of sessions, 1 sub-agents, which have other tools."""
        if "agent" not in taken.column_names:
            return np.zeros(len(taken), np.int64)
        return np.asarray(taken["agent"].is_valid()).astype(np.int64)

    def _common_blocks(self, table: pa.Table, units: np.ndarray) -> np.ndarray:
        """(N,) leading blocks of each prompt that all sessions share: those with which its agent began, as far as
        `common` of its tokens of tools and system prompt go.
        """
        blocks = np.zeros(len(table), np.int64)
        if not self.common or "common_tokens" not in table.column_names or "prefix_ids" not in table.column_names:
            return blocks
        most = np.floor(self.common * np.asarray(table["common_tokens"])).astype(np.int64) // self.trace.block_tokens
        lists = table["prefix_ids"].combine_chunks()
        starts, items = lists.offsets.to_numpy(), lists.values.to_numpy()
        owners = self._owners(table)
        begins: dict[tuple[int, int], np.ndarray] = {}
        for row in range(len(table)):
            leading = items[starts[row] : min(starts[row + 1], starts[row] + most[row])]
            first = begins.setdefault((int(units[row]), int(owners[row])), leading)
            blocks[row] = alike(leading, first)
        return blocks


def _named(lists: pa.ListArray, shift: np.ndarray, common: np.ndarray, owners: np.ndarray) -> pa.ListArray:
    """The ids of copies, which are others, but for the common blocks, which are the same everywhere."""
    if not shift.any() and not common.any():
        return lists
    counts = np.asarray(lists.value_lengths())
    items = np.asarray(lists.flatten()) + np.repeat(shift, counts)
    first = first_ids(Run(Space.SHARED, np.array([0, 1]), np.ones(2, np.int64)))
    number = places(counts)
    shared = number < np.repeat(common, counts)
    items[shared] = (np.repeat(first[owners], counts) + number)[shared]
    return listed(counts, items, lists.type)


def draw(trace: Trace, chosen: Sessions, seed: int, *, endless: bool = False) -> Iterator[tuple[int, int]]:
    """Numbers of the sessions in the order in which they begin, and which time each is replayed."""
    rng = np.random.default_rng(np.random.SeedSequence(seed).spawn(1)[0])
    sessions = conversations(trace.table)[1]
    for copy in count() if endless else range(chosen.passes):
        numbers = rng.permutation(sessions) if chosen.order == "random" else np.arange(sessions)
        for number in numbers[: chosen.count].tolist():
            yield number, copy


def mean_requests(trace: Trace, chosen: Sessions, seed: int) -> float:
    """Mean number of requests of the sessions that are drawn."""
    requests = np.bincount(conversations(trace.table)[0])
    return float(np.mean([requests[session] for session, _ in draw(trace, chosen, seed)]))


def place(
    trace: Trace, turns: Turns, chosen: Sessions, arrivals: Arrivals | None, seed: int, duration_s: float | None = None
) -> SessionReplay:
    """The replay of the sessions of a trace: users of `closed` arrivals each have one session after the other, other
    arrivals start one each, and without any sessions start at their recorded times.

    In a run of `duration_s` arrivals find sessions under way (`workloads.under_way`), of which the rest comes beside.
    Users take the next session that is drawn when they would be free by the record. Steady ones begin at a random
    moment of one, and have sessions for `duration_s` even if answers took none. Raises UsageError for a choice that
    needs users or arrivals.
    """
    _, begin_rng, arrivals_rng = (np.random.default_rng(s) for s in np.random.SeedSequence(seed).spawn(3))
    line = times_of(trace, turns)
    units = conversations(trace.table)[0]
    rows = np.split(np.argsort(units, kind="stable"), np.cumsum(np.bincount(units))[:-1])
    inner = "agent" in trace.table.column_names
    sub = np.asarray(trace.table["agent"].is_valid()) if inner else np.zeros(len(trace), bool)
    placing = _Placing(line, rows, sub)
    nothing = np.zeros(0, np.int64)
    users, closed = 0, isinstance(arrivals, Closed)
    if chosen.begin_most and not closed:
        raise UsageError(
            "--sessions: begin starts the first sessions of users in the middle; give --arrivals closed:users=N."
        )
    drawn = [*draw(trace, chosen, seed)]
    if isinstance(arrivals, Closed) and arrivals.steady:
        if chosen.begin_most or chosen.count is not None or chosen.passes > 1:
            raise UsageError(
                "--arrivals closed:steady=on decides how many sessions there are, and where they start; leave out "
                "count, passes and begin of --sessions."
            )
        if duration_s is None:
            raise UsageError("--arrivals closed:steady=on draws sessions of the trace for a time; give --duration.")
        users, endless = arrivals.users, draw(trace, chosen, seed, endless=True)
        _by_users(placing, endless, users, chosen, arrivals, begin_rng, arrivals_rng, duration_s)
    elif isinstance(arrivals, Closed):
        users = min(arrivals.users, len(drawn))
        _by_users(placing, iter(drawn), users, chosen, arrivals, begin_rng, arrivals_rng, None)
    elif arrivals is not None:
        starts_s = [*islice(arrivals.times(arrivals_rng), len(drawn))]
        if len(starts_s) < len(drawn):
            raise UsageError(
                f"--arrivals has {len(starts_s):,} arrivals for {len(drawn):,} sessions; draw fewer of them."
            )
        for (session, copy), start_s in zip(drawn, starts_s, strict=True):
            placing.place(session, copy, start_s, 0, nothing, 0.0)
        if duration_s is not None:
            among = np.flatnonzero(np.isin(units, [session for session, _ in drawn]))
            owner = np.unique(units[among], return_inverse=True)[1]
            window_s, times_s = (0.0, duration_s), line.recorded_s[among]
            chosen_rows, next_s, _ = next_requests(times_s, owner, begun_rps(arrivals), window_s, begin_rng)
            for number, (row, first_s) in enumerate(zip(among[chosen_rows].tolist(), next_s.tolist(), strict=True)):
                session = int(units[row])
                begin = int(np.searchsorted(rows[session], row))
                placing.place(session, chosen.passes + number, first_s, begin, nothing, 0.0, warms=False)
    elif chosen.passes > 1:
        raise UsageError("--sessions: sessions come again only with --arrivals, such as closed:users=N.")
    else:
        for session, copy in sorted(drawn):
            placing.place(session, copy, float(trace.at_s[rows[session][0]]), 0, nothing, 0.0)
    placed = placing.whole()
    facts = {**trace.facts, **line.facts, **_counts(trace, chosen, placed)}
    if line.cut_s is not None and isinstance(turns, ThinkOnly | ApiScaled):
        cut_s = line.cut_s[placed.row[~placed.warm]]
        facts["think_cap"] = {"cap_s": turns.cap_s, "capped": int((cut_s > 0).sum()), "of": len(cut_s),
                              "cut_s": float(cut_s.sum())}  # fmt: skip
    warmup = None
    if isinstance(arrivals, Closed) and placed.warm.any():
        warmup = arrivals.warm_up(users)
    return SessionReplay(trace, chosen.common, placed, facts, warmup)


def _by_users(
    placing: _Placing, drawn: Iterator[tuple[int, int]], users: int, chosen: Sessions, closed: Closed,
    begin_rng: np.random.Generator, think_rng: np.random.Generator, steady_s: float | None,
) -> None:  # fmt: skip
    ramp_s = [closed.ramp_s * user / closed.users for user in range(users)]
    # when by the record, who, when at the earliest, and the requests that are waited for
    free: list[tuple[float, int, float, np.ndarray]] = [(s, u, s, np.zeros(0, np.int64)) for u, s in enumerate(ramp_s)]
    first_copy = 0
    least_s = np.zeros(users)  # that the requests of a user take beyond all thinking
    if steady_s is not None:
        lasts_s = np.array([placing.lasts_s(session, 0) for session in range(len(placing.rows))])
        first_copy = users  # the first sessions of all users have blocks of their own
        for user, start_s in enumerate(ramp_s):
            session, begin = placing.somewhere(lasts_s, begin_rng)
            last_s, leaves = placing.place(session, user, start_s, begin, free[user][3], 0.0)
            free[user] = (start_s + placing.lasts_s(session, begin), user, last_s, leaves)
        heapq.heapify(free)
    for session, copy in drawn:
        while steady_s is not None and free and free[0][2] + least_s[free[0][1]] > steady_s:
            heapq.heappop(free)
        if not free:
            break
        # By the recorded end and not by the earliest one: which session a user has must not depend on the answers.
        free_s, user, end_s, behind = heapq.heappop(free)
        begin, think_s = 0, 0.0
        if not len(behind):
            begin = placing.middle(session, begin_rng.uniform(chosen.begin_least, chosen.begin_most))
        else:
            think_s = closed.think_s if closed.law == "fixed" else float(think_rng.exponential(closed.think_s))
        rows_before = placing.made
        last_s, leaves = placing.place(session, first_copy + copy, end_s + think_s, begin, behind, think_s)
        least_s[user] += closed.least_cycle_s * (placing.made - rows_before)
        heapq.heappush(free, (free_s + think_s + placing.lasts_s(session, begin), user, last_s, leaves))


def _counts(trace: Trace, chosen: Sessions, placed: _Placed) -> dict[str, object]:
    """Rows in = requests + those left out - those added, each with its reason."""
    before, added = trace.facts.get("left_out"), trace.facts.get("added")
    warm = int(placed.warm.sum())
    rows = np.unique(placed.row[~placed.warm])
    sessions = conversations(trace.table)[0]
    drawn = np.isin(sessions, sessions[rows])
    left_out = {
        "of sessions that were not drawn": int((~drawn).sum()),
        "before the start of a session in the middle": int(drawn.sum()) - len(rows),
    }
    more = {"when sessions come again": len(placed.row) - warm - len(rows), "to warm the cache": warm}
    return {
        "left_out": {**(before if isinstance(before, dict) else {}), **{k: n for k, n in left_out.items() if n}},
        "added": {**(added if isinstance(added, dict) else {}), **{k: n for k, n in more.items() if n}},
        "requests": len(placed.row),
        "chosen": {name: value for name, value in asdict(chosen).items() if value != getattr(Sessions(), name)},
    }

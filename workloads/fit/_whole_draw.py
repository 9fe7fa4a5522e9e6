"""Whole sessions drawn from the figures of `_whole.measure`, as a trace that names the blocks of each prompt.

So many sessions, requests or seconds, at the times of the requests of the model.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from scipy.special import ndtr

from harness.data.records import listed, places, ragged
from harness.errors import UsageError
from workloads.fit import _draw, _laws
from workloads.fit._whole import COMPACTS, CONTINUES, EDITS, FROM_REQUESTS, RESTARTS, SESSION
from workloads.prefixes import MOST_BLOCKS
from workloads.trace_rows import alike
from workloads.traces import Trace

if TYPE_CHECKING:
    from workloads.fit.model import Model

MOST_TURNS = 1_000_000
_STARTS, _SESSIONS = 10, 11  # of the seed's children, beside those that other draws of the same seed take
_STEPS = np.linspace(0, 1, 1001)


@dataclass(frozen=True, slots=True)
class Session:
    """Columns (n,) of the requests of a session in order of time, which counts from its start.

    `ids` are the blocks of each prompt, `agent` numbers the branches from 1 (0: none), `after` is what each request
    waits for, the one whose answer it follows first.
    """

    at_s: np.ndarray
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray
    delay_s: np.ndarray
    api_s: np.ndarray
    common_tokens: int
    ids: Sequence[np.ndarray]
    agent: np.ndarray
    after: Sequence[Sequence[int]]

    @property
    def lasts_s(self) -> float:
        """Seconds from its first request to its last answer."""
        return float((self.at_s + self.api_s).max())


@dataclass(slots=True)
class Drawing:
    """Draws session after session; blocks are counted from 0, those that sessions share first.

    Raises KeyError, TypeError or ValueError for figures that are none.
    """

    figures: Mapping[str, Any]
    rng: np.random.Generator
    made: list[int] = field(default_factory=lambda: [0])  # blocks, those of branches included
    inner: Drawing | None = field(init=False, repr=False)  # of branches, which leave the sessions of a seed as they are
    roots: list[np.ndarray] = field(default_factory=list)
    root_shares: np.ndarray = field(init=False, repr=False)  # (roots,) cumulated
    factor: np.ndarray = field(init=False, repr=False)  # (5, 5) of the correlation, times its transpose

    def __post_init__(self) -> None:
        figures = self.figures
        correlation = np.array(figures["correlation"], np.float64)
        if correlation.shape != (len(SESSION),) * 2 or not np.isfinite(correlation).all():
            raise ValueError(f"correlation must be numbers for each pair of {', '.join(SESSION)}.")
        if not 0 < figures["largest_tokens"] <= MOST_BLOCKS * figures["block_tokens"]:
            raise ValueError(f"largest_tokens must be above 0 and at most {MOST_BLOCKS:,} blocks.")
        values, vectors = np.linalg.eigh((correlation + correlation.T) / 2)
        self.factor = vectors * np.sqrt(np.maximum(values, 0.0))
        for root in figures["roots"]:
            if not 0 <= root["same"] <= root["blocks"] <= MOST_BLOCKS:
                raise ValueError(f"the blocks of roots must be between 0 and {MOST_BLOCKS:,}.")
            same = self.roots[root["like"]][: root["same"]] if self.roots else np.zeros(0, np.int64)
            self.roots.append(np.concatenate([same, self._new(root["blocks"] - len(same))]))
        self.root_shares = np.cumsum([root["share"] for root in figures["roots"]])
        agents = figures.get("agents")  # not in models of before
        self.inner = None if agents is None else Drawing(agents["chains"], self.rng.spawn(1)[0], self.made)

    def sessions(self) -> Iterator[Session]:
        while True:
            yield self._session()

    def _session(self) -> Session:
        figures, rng = self.figures, self.rng
        scores = self.factor @ rng.standard_normal(len(SESSION))
        [turns] = turns_at(figures, ndtr(scores[:1]))
        [first_tokens] = _laws.in_cells(figures["first_tokens"], np.array([turns]), ndtr(scores[1:2]))
        first = self._tokens(float(first_tokens))
        noise = rng.standard_normal((3, turns))
        share = figures["growth_with_answer"]
        # A prompt grows by the answer before it: their ranks go together (a Gaussian copula).
        noise[0, 1:] = share * noise[1, :-1] + (1 - share**2) ** 0.5 * noise[0, 1:]
        ranks = {}
        for name, part, jitter in zip(SESSION[2:], scores[2:], noise, strict=True):
            effect = figures["effects"][name]
            ranks[name] = ndtr(effect["mean"] + effect["between"] * part + effect["within"] * jitter)
        output = np.maximum(np.round(_laws.at(figures["output"], ranks["output"])), 1).astype(np.int64)
        pause_s = np.append(0.0, self._pauses(ranks["pause"][1:]))
        answers, answer_ranks = figures["answer_s"], rng.random(turns)
        api_s = np.zeros(turns) if answers is None else _laws.in_cells(answers, output, answer_ranks)
        prompt, ids = self._prompts(first, ranks["growth"])
        at_s = np.cumsum(pause_s) + np.append(0.0, np.cumsum(api_s)[:-1])
        common = 0 if figures["common_tokens"] is None else int(_laws.at(figures["common_tokens"], rng.random()))
        after = [[i - 1] if i else [] for i in range(turns)]
        agent = np.zeros(turns, np.int64)
        session = Session(at_s, prompt, output, pause_s, api_s, min(common, first), ids, agent, after)
        return session if self.inner is None or turns == 1 else self._branched(session, self.inner, figures["agents"])

    def _branched(self, main: Session, inner: Drawing, agents: Mapping[str, Any]) -> Session:
        """The session with branches after some of its turns, if it has any; for some of them the next turn waits."""
        rng, rows, parts = inner.rng, len(main.at_s), [main]
        if rng.random() >= agents["sessions"] * rows:
            return main
        begins = rng.random(rows - 1) < agents["turns"]
        begins[rng.integers(rows - 1)] = True
        at_s, after = main.at_s.copy(), [list(waits) for waits in main.after]
        for turn in np.flatnonzero(begins).tolist():
            ended_s = latest_s = float(at_s[turn] + main.api_s[turn])
            waits = rng.random() < agents["joined"]
            for _ in range(max(round(float(_laws.at(agents["each"], rng.random()))), 1)):
                branch = next(inner.sessions())
                begin_s, kept = (float(_laws.at(agents[name], rng.random())) for name in ("begin_s", "kept"))
                held = main.ids[turn][: round(kept * len(main.ids[turn]))]
                same = [min(alike(part, branch.ids[0]), len(held)) for part in branch.ids]
                ids = [np.concatenate([held[:n], part[n:]]) for n, part in zip(same, branch.ids, strict=True)]
                delay_s, agent = np.append(begin_s, branch.delay_s[1:]), np.full(len(branch.at_s), len(parts))
                parts.append(
                    replace(branch, at_s=ended_s + begin_s + branch.at_s, delay_s=delay_s, ids=ids, agent=agent)
                )
                after += [[rows + i - 1] if i else [turn] for i in range(len(agent))]
                rows += len(agent)
                if waits:
                    after[turn + 1].append(rows - 1)
                    latest_s = max(latest_s, ended_s + begin_s + branch.lasts_s)
            at_s[turn + 1 :] += latest_s - ended_s
        parts[0] = replace(main, at_s=at_s)
        order = np.argsort(np.concatenate([part.at_s for part in parts]), kind="stable")
        place = np.argsort(order)
        names = ("at_s", "prompt_tokens", "output_tokens", "delay_s", "api_s", "agent")
        columns: dict[str, Any] = {name: np.concatenate([getattr(p, name) for p in parts])[order] for name in names}
        ids = [ids for part in parts for ids in part.ids]
        waits_for = [place[after[i]].tolist() for i in order.tolist()]
        return replace(main, ids=[ids[i] for i in order.tolist()], after=waits_for, **columns)

    def _tokens(self, tokens: float) -> int:
        """Tokens of a prompt, which is no longer than the longest of the trace."""
        return int(min(max(round(tokens), 1), self.figures["largest_tokens"]))

    def _pauses(self, ranks: np.ndarray) -> np.ndarray:
        """(n,) seconds, along a chain of what causes them."""
        parts, step_s = self.figures["pause"]["causes"], self.figures["pause"]["step_s"]
        begins, steps = np.cumsum([part["share"] for part in parts]), [np.cumsum(part["next"]) for part in parts]
        causes = np.zeros(len(ranks), np.int64)
        shares = begins
        for i, chance in enumerate(self.rng.random(len(ranks)).tolist()):
            causes[i] = min(int(np.searchsorted(shares, chance, side="right")), len(parts) - 1)
            shares = steps[causes[i]]
        pauses_s = np.zeros(len(ranks))
        for number, part in enumerate(parts):
            pauses_s[causes == number] = _laws.at(part["law"], ranks[causes == number])
        return np.maximum(pauses_s if step_s is None else np.round(pauses_s / step_s) * step_s, 0.0)

    def _limit(self, first: int) -> float:
        """Tokens above which a session that begins with so many is compacted."""
        law = self.figures["limit_tokens"]
        # Given that the session began below its limit: the law is cut at the first prompt, not shifted by it.
        below = np.interp(first, _laws.at(law, _STEPS), _STEPS)
        return float(_laws.at(law, below + (1 - below) * self.rng.random()))

    def _prompts(self, first: int, ranks: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
        """Tokens of the prompts, and their blocks."""
        figures, limit, block_tokens = self.figures, self._limit(first), self.figures["block_tokens"]
        cuts = figures["cuts"]
        drawn = self.rng.random((len(ranks), 4))
        grown = _laws.in_cells(figures["growth"], np.arange(1, len(ranks)), ranks[1:]).tolist()
        prompt, ids = [first], [self._begun(self._named(first))]
        restart_kept: int | None = None  # blocks that the last restart kept
        after = False
        for i, growth in enumerate(grown, 1):
            before, chance = prompt[-1], drawn[i, 0]
            cell = int(np.searchsorted(cuts["edges"], before, side="right"))
            edits, restarts = cuts["after_restart"] if after else cuts["second"] if i == 1 else cuts["shares"][cell]
            kind = EDITS if chance < edits else RESTARTS if chance < edits + restarts else CONTINUES
            if kind == CONTINUES and before + growth > limit:
                kind = COMPACTS
            size = None if kind == CONTINUES else figures["size"][kind - 1]
            full_blocks = before // block_tokens
            if size is None:
                kind, tokens, kept_blocks = CONTINUES, before + growth, full_blocks - int(drawn[i, 1] < figures["slip"])
            elif kind == EDITS:
                tokens = before * float(_laws.at(size, drawn[i, 1]))
                kept_blocks = full_blocks - round(float(_laws.at(figures["lost_blocks"], drawn[i, 2])))
            else:
                tokens = before * float(_laws.at(size, drawn[i, 1]))
                if restart_kept is None or drawn[i, 3] >= figures["kept_again"]:
                    restart_kept = round(float(_laws.at(figures["kept_blocks"], drawn[i, 2])))
                kept_blocks = restart_kept
            after = kind >= RESTARTS
            prompt.append(self._tokens(tokens))
            blocks = self._named(prompt[-1])
            kept_blocks = max(min(kept_blocks, blocks, len(ids[-1])), 0)
            ids.append(np.concatenate([ids[-1][:kept_blocks], self._new(blocks - kept_blocks)]))
        return np.array(prompt, np.int64), ids

    def _named(self, tokens: int) -> int:
        """Blocks that a prompt names."""
        size = int(self.figures["block_tokens"])
        return -(-tokens // size) if self.figures["last_block_named"] else tokens // size

    def _begun(self, named: int) -> np.ndarray:
        """The blocks of a first prompt: those that it shares, and its own."""
        number = int(np.searchsorted(self.root_shares, self.rng.random(), side="right"))
        root = self.roots[number][:named] if number < len(self.roots) else np.zeros(0, np.int64)
        return np.concatenate([root, self._new(named - len(root))])

    def _new(self, blocks: int) -> np.ndarray:
        self.made[0] += blocks
        kind = np.int32 if self.made[0] < 1 << 31 else np.int64  # prompts of long sessions name very many blocks
        return np.arange(self.made[0] - blocks, self.made[0], dtype=kind)


def turns_at(figures: Mapping[str, Any], ranks: np.ndarray) -> np.ndarray:
    """(n,) turns of sessions at ranks."""
    return np.clip((_laws.at(figures["turns"], ranks) + 0.5).astype(np.int64), 1, MOST_TURNS)


def table(drawn: Sequence[Session], starts_s: Sequence[float]) -> pa.Table:
    """The requests of sessions in order of time, in the columns of a trace."""
    sizes = np.array([len(session.at_s) for session in drawn])
    at_s = np.concatenate([start + session.at_s for start, session in zip(starts_s, drawn, strict=True)])
    order = np.argsort(at_s, kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    turn = places(sizes)
    begins = np.repeat(np.cumsum(sizes) - sizes, sizes)
    after = [waits for session in drawn for waits in session.after]
    waits_for = [place[np.array(after[i], np.int64) + begins[i]] for i in order.tolist()]
    agent = np.concatenate([session.agent for session in drawn])[order]
    parts = [part for session in drawn for part in session.ids]
    counts = np.array([len(parts[i]) for i in order.tolist()])
    ids = np.empty(counts.sum(), np.int64)
    for i, end, count in zip(order.tolist(), np.cumsum(counts).tolist(), counts.tolist(), strict=True):
        ids[end - count : end] = parts[i]

    def column(name: str) -> np.ndarray:
        return np.asarray(np.concatenate([getattr(session, name) for session in drawn])[order])

    rows = pa.table({
        "at_s": at_s[order],
        "prompt_tokens": column("prompt_tokens"),
        "output_tokens": column("output_tokens"),
        "prefix_ids": listed(counts, ids),
        "session": np.repeat(np.arange(len(drawn)), sizes)[order],
        "turn": pa.array(turn[order], pa.int32()),
        "parent": pa.array([int(waits[0]) if len(waits) else None for waits in waits_for], pa.int64()),
        "delay_s": column("delay_s"),
        "api_s": column("api_s"),
        "common_tokens": np.repeat([session.common_tokens for session in drawn], sizes)[order],
    })  # fmt: skip
    if not agent.any():
        return rows
    rows = rows.append_column("joins", ragged([waits[1:] for waits in waits_for], "q", pa.list_(pa.int64())))
    return rows.append_column("agent", pa.array([f"branch_{number}" if number else None for number in agent.tolist()]))


def check(figures: Mapping[str, Any]) -> None:
    """Raise KeyError, TypeError, ValueError, IndexError or OverflowError for figures from which nothing is drawn."""
    drawn = Drawing({**figures, "turns": [2.5] * len(figures["turns"])}, np.random.default_rng(0))
    next(drawn.sessions())


def drawn(
    model: Model,
    *,
    sessions: int | None = None,
    requests: int | None = None,
    duration_s: float | None = None,
    rate_rps: float | None = None,
    whole: bool = False,
    seed: int = 0,
) -> Trace:
    """The first so many `sessions`, `requests` or seconds, whatever ends first; a `rate_rps` is that of requests.

    Requests come at the rate and with the bursts of the model: a session begins with an arrival of the model, unless a
    turn of an earlier one has taken its place; so at first more begin, which stand for those under way, as they do
    where a trace begins. Over a draw of up to two hours the rate is that of its mean, as over an excerpt scaled to it.
    Of so many sessions the last ones are cut when the last one begins, as in a recorded trace; `whole` ones are not.
    Sessions with clocks of their own follow one another. Raises UsageError for a rate that they do not have, and where
    nothing is drawn.
    """
    assert model.whole is not None
    own_clocks = model.whole["own_clocks"]
    if rate_rps is not None and own_clocks:
        raise UsageError(
            f"The sessions of '{model.source.get('file')}' have clocks of their own, so their model has no rate; leave "
            "the rate out."
        )
    rng, begins = (np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(k,))) for k in (_SESSIONS, _STARTS))
    stream = Drawing(model.whole, rng).sessions()
    arrivals = None
    if not own_clocks:
        rate_rps = rate_rps or model.whole["rate_rps"]
        times = _draw.arrivals(model, begins, rate_rps, _draw.held_s(rate_rps, requests, duration_s))
        arrivals = (at_s for block, _ in times for at_s in block.tolist())
    begun: list[Session] = []
    starts_s: list[float] = []
    turns: list[float] = []  # times of later turns that are not due yet, a heap
    due = replaced = 0  # turns that are due, and those of them that have taken the place of an arrival
    next_s = 0.0
    while sessions is None or len(begun) < sessions:
        at_s = next_s if arrivals is None else next(arrivals)
        while turns and turns[0] <= at_s:
            heapq.heappop(turns)
            due += 1
        if (duration_s is not None and at_s >= duration_s) or (requests is not None and len(begun) + due >= requests):
            break
        # The model's arrivals are those of requests: a turn that is due takes the place of one, which would have
        # begun a session, so that turns and first requests together have its rate and its bursts.
        if arrivals is not None and replaced < due:
            replaced += 1
            continue
        begun.append(next(stream))
        starts_s.append(at_s)
        next_s = at_s + begun[-1].lasts_s
        for later_s in (begun[-1].at_s[1:] + at_s).tolist():
            heapq.heappush(turns, later_s)
    if not begun:
        raise UsageError("No session begins in that time; give a longer duration or a higher rate.")
    rows = table(begun, starts_s)
    ends_s = [] if whole or own_clocks or len(begun) != sessions else [starts_s[-1]]
    ends_s += [] if duration_s is None else [float(np.nextafter(duration_s, 0.0))]
    if ends_s:
        rows = rows.slice(0, int(np.searchsorted(rows["at_s"], min(ends_s), side="right")))
    return _trace(model, rows.slice(0, requests), seed)


def _trace(model: Model, rows: pa.Table, seed: int) -> Trace:
    assert model.whole is not None
    file = model.source.get("file")
    unknown = [name for name, part in (("api_s", "answer_s"), ("common_tokens", "common_tokens"))
               if model.whole[part] is None]  # fmt: skip
    at_s, from_requests = np.asarray(rows["at_s"]), model.whole["pause_is"] == FROM_REQUESTS
    facts = {
        "file": f"model of {file}", "sha256": model.source.get("sha256"), "reader": "model", "drawn_with_seed": seed,
        **({"clock": "session"} if model.whole["own_clocks"] else {}), "rows": len(rows), "requests": len(rows),
        "dropped": {}, "time_0": "the first session", "start_s": None, "stop_s": None, "limit": None,
        "span_s": float(at_s[-1] - at_s[0]), "grain_s": None, "duplicates": 0, "oddities": [],
        **({"think_times": FROM_REQUESTS} if from_requests else {}),
    }  # fmt: skip
    return Trace(rows.drop_columns(unknown), int(model.whole["block_tokens"]), facts)

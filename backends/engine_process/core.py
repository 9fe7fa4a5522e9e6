"""The engine's loop under any clock: one turn takes in what arrived, forms a batch, runs it and commits it.

`backends.engine` runs it in a process of its own under the wall clock; tests run it with a clock of their own.

The engine's drafts: n-gram lookup (prompt lookup decoding) and what verification made of them.

Source: Saxena, Prompt Lookup Decoding, 2023 (apoorvumang/prompt-lookup-decoding). It needs no second model, and is
right wherever an answer repeats itself or its prompt.
"""

from __future__ import annotations

import time
import zlib
from array import array
from collections.abc import Callable, Mapping
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from backends.engine_process.token_blocks import block_names
from backends.serving.batch import Batch, Oracle, Sequence
from backends.serving.replica import Replica
from backends.simulator.core import BlockCost, preemption_costs
from harness.api import Ended, Executor, Piece, Prompts, Request, Status, Step

if TYPE_CHECKING:
    from backends.serving.batch import Sequence
    from backends.serving.replica import Replica


@dataclass(frozen=True, slots=True)
class GenerationParams:
    """Generation parameters of one request, besides its lengths.

    `prompt` are its token ids; after a token of `ends` the answer is over, and there is none before `min_tokens`
    tokens. `temperature` and `seed` are None where the engine's own hold.
    """

    prompt: ListOf[int]
    ends: frozenset[int] = frozenset()
    min_tokens: int = 0
    temperature: float | None = None
    top_p: float = 1.0
    seed: int | None = None


@dataclass(slots=True)
class Turn:
    """What one turn brought: the requests `tokens` got one each (or several, with drafts) at `at_s`: `token_ids`.

    `started` are the requests whose prompt went into a step for the first time, `cached` how many tokens of each
    were found in the prefix cache, `preempted` those that lost their memory; `running` sequences and `free_blocks` are
    what the turn left behind. `facts` are those for run.json that the turn has changed.
    """

    at_s: float
    tokens: list[int] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)
    step: Step | None = None
    token_ids: list[int] = field(default_factory=list)
    started: list[int] = field(default_factory=list)
    cached: list[int] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)
    running: int = 0
    free_blocks: int = 0
    facts: Mapping[str, object] = field(default_factory=dict)


NO_PARAMS: Mapping[int, GenerationParams] = MappingProxyType({})


@runtime_checkable
class Pacer(Protocol):
    """An executor that computes nothing: it knows when the step of a batch ends, and the engine waits until then.

    A step that ends up to `late_s` after its time counts as in time.
    """

    late_s: float

    @property
    def vocab_size(self) -> int:
        """As of every executor."""
        ...

    @property
    def max_tokens(self) -> int:
        """As of every executor."""
        ...

    def end_s(self, batch: Batch, start_s: float) -> float:
        """When one step of a batch that starts at `start_s` ends."""
        ...

    def answer(self, seed: int, tokens: int) -> np.ndarray:
        """(tokens,) int64: an answer, made up."""
        ...

    def blocks_that_fit(self, block_tokens: int) -> int:
        """KV blocks where the user does not say how many."""
        ...

    def block_cost(self, block_tokens: int) -> BlockCost:
        """Cost of moving a block to the host."""
        ...

    def describe(self) -> Mapping[str, object]:
        """As of every executor."""
        ...


class EngineCore:
    """One replica whose batches an executor runs: a real model, or one that only waits as long as that takes.

    Paced steps that follow one another leave no gap: what the host does between two of them is within the time of the
    second. `sleep` waits so many seconds of `clock`.
    """

    def __init__(
        self,
        replica: Replica,
        executor: Executor | Pacer,
        prompts: Prompts | None,
        clock: Callable[[], float],
        temperature: float = 0.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.replica = replica
        self._executor = executor
        self._prompts = prompts
        self._clock = clock
        self._temperature = temperature
        self._pace = Pace(executor, replica, clock, sleep) if isinstance(executor, Pacer) else None
        self._token_ids: dict[int, np.ndarray] = {}  # request id -> (prompt + output,) ids, filled as they come
        self._params: dict[int, GenerationParams] = {}
        self._host: dict[int, ListOf[object]] = {}  # KV of who is swapped out, block by block

    @property
    def computes(self) -> bool:
        """Whether a real model runs, rather than a clock."""
        return self._pace is None

    def token_ids(self, request_id: int) -> np.ndarray:
        """Prompt and output of a request under way, (prompt + output,); outputs to come are 0."""
        return self._token_ids[request_id]

    def turn(
        self,
        arrived: ListOf[Request] = (),
        cancelled: ListOf[int] = (),
        params: Mapping[int, GenerationParams] = NO_PARAMS,
        sent_s: float | None = None,
    ) -> Turn:
        """Take in, schedule, execute, commit. A turn without a step means that nothing can run.

        `params` (by request id) go with what arrived; a request without one has the prompt of its content. `sent_s` is
        when the last of what arrived was sent, where that is known.
        """
        now_s = self._clock()
        if self._pace is not None:
            came_s = now_s if sent_s is None else sent_s
            now_s = self._pace.start_s(now_s, came_s if arrived else 0.0)
        turn = Turn(now_s)
        for request_id in cancelled:
            seq = self.replica.cancel(request_id, now_s)
            if seq is not None:
                turn.ended.append(self._end(seq, now_s, "cancelled"))
        for request in arrived:
            refusal = self._add(request, now_s, params.get(request.id))
            if refusal is not None:
                turn.ended.append(Ended(request.id, now_s, "rejected", refusal, arrived_s=now_s))
        batch = self.replica.schedule(now_s)
        if batch is not None:
            self._run(batch, turn)
        elif self._pace is not None:
            self._pace.idle()
        turn.running, turn.free_blocks = self.replica.running, self.replica.blocks.free
        return turn

    def _add(self, request: Request, now_s: float, params: GenerationParams | None) -> str | None:
        total = request.prompt_tokens + request.output_tokens
        if total > self._executor.max_tokens:
            return f"prompt and output of {total} tokens exceed the model's {self._executor.max_tokens}"
        refusal = self.replica.add(request, now_s)
        if refusal is None:
            ids = np.zeros(total, np.int64)
            if params is not None:
                ids[: request.prompt_tokens] = params.prompt
                self._params[request.id] = params
            elif self._pace is None:  # a paced engine reads no prompt
                if self._prompts is None:
                    raise ValueError(f"request {request.id} came without a prompt")
                ids[: request.prompt_tokens] = self._prompts(request, self._executor.vocab_size)
            if self._pace is not None:
                ids[request.prompt_tokens :] = self._pace.answer(request, params)
            self._token_ids[request.id] = ids
        return refusal

    def _run(self, batch: Batch, turn: Turn) -> None:
        replica, start_s = self.replica, turn.at_s
        items = batch.items(iter(replica.decoding))
        if self._pace is None:
            produced, rows = self._execute(batch, items)
            end_s = self._clock()
        else:
            produced, rows = self._paced_tokens(self._pace, batch, items)
            end_s, turn.facts = self._pace.wait(batch, start_s)
        stopping = []
        for (seq, _), tokens in zip(items, produced, strict=True):
            if tokens:
                request_id = seq.request.id
                self._note(turn, seq, tokens)
                if tokens[-1] in self._ends(seq):
                    stopping.append(request_id)
                if replica.cache is not None and request_id in self._params:
                    # who goes on from a whole answer finds its blocks; content made from ids has names already
                    total = seq.prompt + seq.emitted + len(tokens)
                    if request_id in stopping or total == seq.prompt + Oracle.output_tokens(seq):
                        ids = self._token_ids[request_id][:total].tolist()
                        replica.cache.tell(seq, block_names(ids, replica.blocks.size))
        turn.at_s = end_s
        first = [seq for seq, _ in batch.prefills if seq.prefill_start_s == start_s]
        turn.started = [seq.request.id for seq in first]
        turn.cached = [seq.cached_tokens or 0 for seq in first]
        turn.preempted = [seq.request.id for seq in batch.preempted]
        if batch.preempted or batch.swaps:
            turn.facts = {**turn.facts, **preemption_costs([replica])}
        decodes = rows - len(batch.prefills)  # a padded row is not executed
        turn.step = Step(
            replica.index, start_s, end_s, sum(n for _, n in batch.prefills), decodes, batch.context_tokens,
            batch.waiting, batch.running, batch.free_blocks,
        )  # fmt: skip
        turn.ended.extend(self._end(seq, end_s, "ok") for seq in replica.commit(batch, (end_s,)))
        for request_id in stopping:
            stopped = replica.stop(request_id, end_s)
            if stopped is not None:  # else it was its last token anyway
                turn.ended.append(self._end(stopped, end_s, "ok"))

    def _execute(self, batch: Batch, items: ListOf[tuple[Sequence, int]]) -> tuple[list[list[int]], int]:
        """The tokens that the model gives each item, and how many rows it ran for them."""
        assert not isinstance(self._executor, Pacer)
        # what leaves first: it may make room for those that come back
        for seq, table in sorted(batch.swaps, key=lambda swap: swap[1] is None):
            self._swap(self._executor, seq, table)
        pieces = [self._piece(seq, tokens) for seq, tokens in items]
        drafts = Drafting.of(self.replica, self._token_ids) if batch.draft_rows else None
        sampled = self._executor.execute(pieces if drafts is None else drafts.with_pieces(pieces, self._draft_piece))
        produced = [
            [] if token is None else [token] if drafts is None else drafts.kept(seq, token, sampled, self._ends(seq))
            for (seq, _), token in zip(items, sampled, strict=False)  # drafts come after them
        ]
        return produced, len(sampled)

    def _paced_tokens(
        self, pace: Pace, batch: Batch, items: ListOf[tuple[Sequence, int]]
    ) -> tuple[list[list[int]], int]:
        """As `_execute`, without a model: each item that is due gets a token, and as many more as drafts are right."""
        right = pace.right_drafts() if batch.draft_rows else {}
        produced = []
        for seq, tokens in items:
            due = seq.computed + tokens == seq.prompt + seq.emitted
            first, count = seq.prompt + seq.emitted, 1 + right.get(seq, 0) if due else 0
            produced.append(self._token_ids[seq.request.id][first : first + count].tolist())
        return produced, len(items) + batch.draft_rows

    def _swap(self, executor: Executor, seq: Sequence, table: list[int] | None) -> None:
        """Copy the KV of a sequence from the blocks of `table` to the host, or back into those that it has now."""
        if table is not None:
            self._host[seq.request.id] = executor.copy_out(table)
        else:
            kept = self._host.pop(seq.request.id)
            executor.copy_in(kept, self.replica.table(seq)[: len(kept)])

    def _piece(self, seq: Sequence, tokens: int) -> Piece:
        start, request_id = seq.computed, seq.request.id
        end = start + tokens
        piece = Piece(
            request_id,
            self._token_ids[request_id][start:end].tolist(),
            start,
            self.replica.table(seq),
            sample=end == seq.prompt + seq.emitted,
            temperature=self._temperature,
            seed=request_id,
        )
        params = self._params.get(request_id)
        if params is not None and piece.sample:
            _grant(params, piece, seq.emitted)
        return piece

    def _draft_piece(self, seq: Sequence, nth: int, token: int) -> Piece:
        """The row that verifies draft number `nth` (from 1 on) of a sequence, and samples the token after it."""
        piece = Piece(
            seq.request.id,
            [token],
            seq.computed + nth,
            self.replica.table(seq),
            sample=True,
            temperature=self._temperature,
            seed=seq.request.id,
        )
        params = self._params.get(seq.request.id)
        if params is not None:
            _grant(params, piece, seq.emitted + nth)
        return piece

    def _note(self, turn: Turn, seq: Sequence, tokens: ListOf[int]) -> None:
        """These tokens of a sequence came out."""
        first = seq.prompt + seq.emitted
        self._token_ids[seq.request.id][first : first + len(tokens)] = tokens
        turn.tokens.extend([seq.request.id] * len(tokens))
        turn.token_ids.extend(tokens)

    def _ends(self, seq: Sequence) -> frozenset[int]:
        params = self._params.get(seq.request.id)
        return params.ends if params is not None else frozenset()

    def _end(self, seq: Sequence, now_s: float, status: Status) -> Ended:
        del self._token_ids[seq.request.id]
        self._params.pop(seq.request.id, None)
        self._host.pop(seq.request.id, None)
        return Ended(
            seq.request.id, now_s, status, cached_tokens=seq.cached_tokens, replica=self.replica.index,
            preemptions=seq.preemptions, prefill_start_s=seq.prefill_start_s, prefill_end_s=seq.prefill_end_s,
            decode_start_s=seq.decode_start_s, arrived_s=seq.arrived_s,
        )  # fmt: skip


def _grant(params: GenerationParams, piece: Piece, emitted: int) -> None:
    """Draw the token of `piece`, the one after `emitted` others, by the parameters of its request."""
    piece.top_p = params.top_p
    if params.temperature is not None:
        piece.temperature = params.temperature
    if params.seed is not None:
        piece.seed = params.seed
    if emitted < params.min_tokens:
        piece.forbidden = tuple(params.ends)


class Pace:
    """Waits for the ends of paced steps, counts those that came late, and makes up the tokens."""

    def __init__(
        self, pacer: Pacer, replica: Replica, clock: Callable[[], float], sleep: Callable[[float], None]
    ) -> None:
        self._pacer = pacer
        self._replica = replica
        self._clock = clock
        self._sleep = sleep
        self._guess = None if replica.drafts is None else replica.drafts.kept  # by chance, as in the simulator
        self._end_s: float | None = None  # of the step before, while one follows the other
        self._steps = 0
        self._late = 0
        self._latest_s = 0.0

    def start_s(self, now_s: float, came_s: float) -> float:
        """When a step starts that is formed at `now_s`: at the end of the one before, if it follows that one.

        But not before `came_s`, when the last of the requests that it takes in came.
        """
        return now_s if self._end_s is None else min(now_s, max(self._end_s, came_s))

    def idle(self) -> None:
        """Nothing can run."""
        self._end_s = None

    def wait(self, batch: Batch, start_s: float) -> tuple[float, Mapping[str, object]]:
        """Until the step that started at `start_s` is over: when that was, and the count of steps and late steps."""
        end_s = self._pacer.end_s(batch, start_s)
        if (left_s := end_s - self._clock()) > 0:
            self._sleep(left_s)
        late_s = self._clock() - end_s
        self._steps += 1
        self._latest_s = max(self._latest_s, late_s)
        if late_s > self._pacer.late_s:
            self._late += 1
            end_s += late_s
        self._end_s = end_s
        return end_s, {"paced_steps": self._steps, "late_steps": self._late, "latest_step_s": self._latest_s}

    def right_drafts(self) -> dict[Sequence, int]:
        """How many drafts of each sequence are right; the replica will take no others."""
        group = self._replica.drafts
        assert group is not None and self._guess is not None
        right = {seq: self._guess(seq, drafts) if drafts else 0 for seq, drafts in group.members.items()}
        group.kept = lambda seq, _: right[seq]
        return right

    def answer(self, request: Request, params: GenerationParams | None) -> np.ndarray:
        """(output,) the whole answer to a request: equal for equal prompts and seeds, where prompts are known."""
        seed = request.id
        if params is not None:
            chance = params.seed if params.temperature and params.seed is not None else 0
            seed = zlib.crc32(array("q", params.prompt), chance & 0xFFFFFFFF)
        return self._pacer.answer(seed, request.output_tokens)


def looked_up(tokens: np.ndarray, ngram: int, count: int) -> list[int]:
    """Up to `count` tokens that followed the last `ngram` of `tokens` (n,) when they last occurred before; or none."""
    n = len(tokens)
    if count < 1 or n <= ngram:
        return []
    windows = np.lib.stride_tricks.sliding_window_view(tokens[:-1], ngram)  # (n - ngram, ngram)
    found = np.flatnonzero((windows == tokens[n - ngram :]).all(axis=1))
    if not len(found):
        return []
    first = int(found[-1]) + ngram
    drafts: list[int] = tokens[first : first + count].tolist()
    return drafts


@dataclass(slots=True)
class Drafting:
    """The drafts of one step, by sequence, and where the rows that verify them stand."""

    drafts: dict[Sequence, list[int]]
    _first: dict[Sequence, int] = field(default_factory=dict)
    _right: dict[Sequence, int] = field(default_factory=dict)

    @staticmethod
    def of(replica: Replica, token_ids: Mapping[int, np.ndarray]) -> Drafting:
        """Draft what the replica has made room for; it will keep what `kept` finds right."""
        group = replica.drafts
        assert group is not None
        drafts = {
            seq: looked_up(token_ids[seq.request.id][: seq.prompt + seq.emitted], group.ngram, room)
            for seq, room in group.members.items()
        }
        made = Drafting(drafts)
        group.kept = made.right
        return made

    def with_pieces(self, pieces: list[Piece], piece: Callable[[Sequence, int, int], Piece]) -> list[Piece]:
        """`pieces`, and behind them a row for each draft: `piece(sequence, number, token)`."""
        rows = list(pieces)
        for seq, tokens in self.drafts.items():
            self._first[seq] = len(rows)
            rows += [piece(seq, nth, token) for nth, token in enumerate(tokens, 1)]
        return rows

    def kept(self, seq: Sequence, token: int, sampled: ListOf[int | None], ends: frozenset[int]) -> list[int]:
        """Tokens of a sequence in this step: the drafts that were right, and the model's token after them.

        `token` is the model's token after the accepted context; nothing follows a token of `ends`.
        """
        tokens = [token]
        for nth, draft in enumerate(self.drafts.get(seq, ())):
            if tokens[-1] != draft or draft in ends:
                break
            after = sampled[self._first[seq] + nth]
            assert after is not None
            tokens.append(after)
        self._right[seq] = len(tokens) - 1
        return tokens

    def right(self, seq: Sequence, _: int) -> int:
        """How many of its drafts a sequence keeps."""
        return self._right[seq]

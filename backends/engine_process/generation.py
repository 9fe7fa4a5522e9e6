"""What steps need of the requests under way, and what comes of them: prompts, sampled tokens, drafts.

The engine's drafts: n-gram lookup (prompt lookup decoding) and what verification made of them.

Source: Saxena, Prompt Lookup Decoding, 2023 (apoorvumang/prompt-lookup-decoding). It needs no second model, and is
right wherever an answer repeats itself or its prompt.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable, Mapping
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice

import numpy as np

from backends.executors.paced import Pace, Paced
from backends.serving.batch import Batch, Oracle, Sequence
from backends.serving.replica import Replica
from backends.simulator.real_time import Turn
from harness.api import Ended, Executor, Piece, Prompts, Request, Status, Step, alike, names_answer


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


@dataclass(frozen=True, slots=True)
class Work:
    """What an executor does for one step: copies between KV blocks and host memory, then the pieces.

    `swaps` are (request id, ids of its blocks, whether they are copied to the host); what leaves comes first: it may
    make room for those that come back. `forks` are blocks that are copied into others before they are written to. A
    paced step has none of them, but ends at `end_s`.
    """

    swaps: list[tuple[int, list[int], bool]] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    end_s: float | None = None
    forks: list[tuple[int, list[int]]] = field(default_factory=list)


def execute(executor: Executor, host: dict[int, ListOf[object]], work: Work) -> list[int | None]:
    """Make the copies of a step, then run it; `host` has the KV of who is swapped out, block by block."""
    for request_id, table, leaves in work.swaps:
        if leaves:
            host[request_id] = executor.copy_out(table)
        else:
            blocks = host.pop(request_id)
            executor.copy_in(blocks, table[: len(blocks)])
    for source, targets in work.forks:
        executor.copy_in(list(executor.copy_out([source])) * len(targets), targets)
    return executor.execute(work.pieces)


@dataclass(slots=True)
class PlannedStep:
    """A step that is formed: its sequences with their new tokens, the work, and what came of it."""

    items: list[tuple[Sequence, int]]
    work: Work
    drafts: Drafting | None = None
    counts: list[int] = field(default_factory=list)  # pieces of each item
    produced: list[list[int]] = field(default_factory=list)  # tokens of each item
    rows: int = 0  # how many rows ran for them


class Answers:
    """The tokens of the requests under way, on any number of replicas: what steps need of them, and add to them.

    A paced engine (`pacer`) reads no prompts and makes the answers up beforehand.
    """

    def __init__(
        self, prompts: Prompts | None, vocab_size: int, max_tokens: int, temperature: float, pacer: Paced | None = None
    ) -> None:
        # request id -> (prompt + output,) ids, filled as they come; of several answers one after the other
        self.token_ids: dict[int, np.ndarray] = {}
        self._params: dict[int, GenerationParams] = {}
        self._answered: dict[int, list[tuple[Request, np.ndarray]]] = {}  # by session: answers that follow-ups repeat
        self._prompts = prompts
        self._vocab_size = vocab_size
        self._max_tokens = max_tokens
        self._temperature = temperature
        self._pacer = pacer

    def refusal(self, request: Request) -> str | None:
        """Why the model cannot take this request, or None."""
        total = request.prompt_tokens + request.output_tokens
        if total > self._max_tokens:
            return f"prompt and output of {total} tokens exceed the model's {self._max_tokens}"
        return None

    def add(self, request: Request, params: GenerationParams | None) -> None:
        """A request is under way; without `params` it has the prompt of its content."""
        ids = np.zeros(request.prompt_tokens + request.answers * request.output_tokens, np.int64)
        if params is not None:
            ids[: request.prompt_tokens] = params.prompt
            self._params[request.id] = params
        elif self._pacer is None:
            if self._prompts is None:
                raise ValueError(f"request {request.id} came without a prompt")
            ids[: request.prompt_tokens] = self._prompts(request, self._vocab_size)
            self._repeat(request, ids)
        if self._pacer is not None:  # equal for equal prompts and seeds, where prompts are known
            seed = request.id if params is None else answer_seed(params.prompt, params.temperature, params.seed)
            answer = self._pacer.answer(seed, request.output_tokens)
            ids[request.prompt_tokens :] = np.tile(answer, request.answers)
        self.token_ids[request.id] = ids

    def _repeat(self, request: Request, ids: np.ndarray) -> None:
        """Put the answers that came before in its session into the prompt, as far as its blocks are the same."""
        for before, answer in self._answered.get(request.session, ()) if request.session is not None else ():
            same = alike(before.prefix_ids, request.prefix_ids)
            begin, end = before.prompt_tokens, before.prompt_tokens + len(answer)
            if same < len(before.prefix_ids):
                end = min(end, same * before.prefix_block_tokens)
            end = min(end, request.prompt_tokens)
            ids[begin:end] = answer[: max(0, end - begin)]

    def plan(self, replica: Replica, batch: Batch) -> PlannedStep:
        """The step of a batch for an executor that computes."""
        # What leaves goes first: who comes back may get its blocks in this very step.
        swaps = [
            (Oracle.request(seq).id, replica.table(seq) if table is None else table, table is not None)
            for seq, table in sorted(batch.swaps, key=lambda swap: swap[1] is None)
        ]
        items = batch.items(iter(replica.decoding))
        rows = [self._pieces(replica, seq, tokens) for seq, tokens in items]
        pieces = [piece for each in rows for piece in each]
        forks = [fork for seq, _ in items if (fork := self._fork(replica, seq))]
        drafts = Drafting.of(replica, self.token_ids) if batch.draft_rows else None
        if drafts is not None:
            pieces = drafts.with_pieces(
                pieces,
                lambda seq, nth, token: self._row(
                    replica, seq, [token], seq.computed + nth, seq.emitted + nth, sample=True
                ),
            )
        return PlannedStep(items, Work(swaps, pieces, forks=forks), drafts, counts=[len(each) for each in rows])

    def take(self, step: PlannedStep, sampled: ListOf[int | None]) -> None:
        """The executor gave these tokens to the pieces of a step."""
        tokens = iter(sampled)  # drafts come after those of the items
        answered = [[token for token in islice(tokens, count) if token is not None] for count in step.counts]
        drafts = step.drafts
        step.produced = answered if drafts is None else [
            drafts.kept(seq, its[0], sampled, self._ends(seq)) if its else []
            for (seq, _), its in zip(step.items, answered, strict=True)
        ]  # fmt: skip
        step.rows = len(sampled)

    def plan_paced(self, pace: Pace, replica: Replica, batch: Batch) -> PlannedStep:
        """The step of a batch that no executor computes: each item that is due gets a token, and one a right draft."""
        right = pace.right_drafts() if batch.draft_rows else {}
        items = batch.items(iter(replica.decoding))
        produced = []
        for seq, tokens in items:
            due = seq.group is not None or tokens == seq.need()
            first, count = seq.prompt + seq.emitted, 1 + right.get(seq, 0) if due else 0
            produced.append(seq.answers * self.token_ids[Oracle.request(seq).id][first : first + count].tolist())
        work = Work(end_s=pace.due_s(batch, batch.start_s))
        rows = len(batch.prefills) + replica.decoding.rows + batch.draft_rows
        return PlannedStep(items, work, produced=produced, rows=rows)

    def commit(self, turn: Turn, replica: Replica, batch: Batch, step: PlannedStep) -> list[Sequence]:
        """Commit a batch that ended at `turn.at_s`, and say what came of it in `turn`; the sequences that are over."""
        end_s = turn.at_s
        stopping = []
        for (seq, _), tokens in zip(step.items, step.produced, strict=True):
            if tokens:
                request_id = Oracle.request(seq).id
                self.token_ids[request_id][_places(seq, len(tokens))] = tokens
                turn.tokens.extend([request_id] * len(tokens))
                turn.token_ids.extend(tokens)
                if tokens[-1] in self._ends(seq):
                    stopping.append(seq)
                if replica.cache is not None and request_id in self._params:
                    # who goes on from a whole answer finds its blocks; content made from ids has names already
                    total = seq.prompt + seq.emitted + len(tokens)
                    if seq in stopping or total == seq.prompt + Oracle.output_tokens(seq):
                        ids = self.token_ids[request_id][:total].tolist()
                        replica.cache.tell(seq, block_names(ids, replica.blocks.size))
        first = [seq for seq, _ in batch.prefills if seq.prefill_start_s == batch.start_s]
        turn.started = [Oracle.request(seq).id for seq in first]
        turn.cached = [seq.cached_tokens or 0 for seq in first]
        turn.preempted = [Oracle.request(seq).id for seq in batch.preempted]
        prompts = sum(step.counts[-len(batch.prefills) :]) if batch.prefills and step.counts else len(batch.prefills)
        decodes = step.rows - prompts  # a padded row is not executed
        turn.step = Step(
            replica.index, batch.start_s, end_s, sum(n for _, n in batch.prefills), decodes, batch.context_tokens,
            batch.waiting, batch.running, batch.free_blocks,
        )  # fmt: skip
        done = replica.commit(batch, (end_s,))
        done += [seq for seq in stopping if seq not in done and self._stop(replica, seq, end_s)]
        turn.ended.extend(self.end(seq, replica.index, end_s, "ok") for seq in done)
        return done

    @staticmethod
    def _stop(replica: Replica, seq: Sequence, now_s: float) -> bool:
        """End a sequence after the token that ends it, also one that waits to be handed on; whether it was here."""
        if seq in replica.outbox.leaving:
            replica.outbox.fresh.remove(seq)
            replica.release(seq, now_s)
            return True
        return replica.stop(Oracle.request(seq).id, now_s) is not None

    def end(self, seq: Sequence, replica: int, now_s: float, status: Status, error: str | None = None) -> Ended:
        request = Oracle.request(seq)
        goes_on = names_answer(len(request.prefix_ids), request.prefix_block_tokens, request.prompt_tokens)
        if status == "ok" and request.session is not None and goes_on and self._pacer is None:
            answer = self.token_ids[request.id][request.prompt_tokens :][: request.output_tokens]
            self._answered.setdefault(request.session, []).append((request, answer.astype(np.int32)))
        self.forget(Oracle.request(seq).id)
        return Ended(
            Oracle.request(seq).id, now_s, status, error, cached_tokens=seq.cached_tokens, replica=replica,
            preemptions=seq.preemptions, prefill_start_s=seq.prefill_start_s, prefill_end_s=seq.prefill_end_s,
            handoff_start_s=seq.handoff_start_s, handoff_end_s=seq.handoff_end_s,
            decode_start_s=seq.decode_start_s, arrived_s=seq.arrived_s,
        )  # fmt: skip

    def forget(self, request_id: int) -> None:
        """A request is not under way any more."""
        self.token_ids.pop(request_id, None)
        self._params.pop(request_id, None)

    def _pieces(self, replica: Replica, seq: Sequence, tokens: int) -> list[Piece]:
        """What runs of a sequence: the next tokens of its prompt, or of each of its answers.

        Where it has several answers the last token of the prompt runs once for each, which sample by seeds of their
        own. Answers that are computed again begin with the tokens of the prompt in the block that each has to itself;
        those whose last token ran in an earlier step run it once more with the last ones, to sample.
        """
        ids, start, end = self.token_ids[Oracle.request(seq).id], seq.computed, seq.computed + tokens
        if seq.answers == 1:
            sample = end == seq.prompt + seq.emitted
            return [self._row(replica, seq, ids[start:end].tolist(), start, seq.emitted, sample=sample)]
        size, output = replica.blocks.size, Oracle.output_tokens(seq)
        parts = []  # (answer, its tokens from position, to position)
        if seq.group is not None:
            parts = [(i, start, start + 1) for i in range(seq.answers)]
        elif not seq.emitted:
            last = end == seq.prompt
            parts = [(0, start, end - last)] + [(i, end - 1, end) for i in range(seq.answers) if last]
        else:
            first = [seq.prompt + i * seq.emitted for i in range(seq.answers)]  # place of an answer among what runs
            parts = [(0, start, min(end, seq.prompt))]
            if start < seq.prompt <= end:
                parts += [(i, seq.prompt // size * size, seq.prompt) for i in range(1, seq.answers)]
            parts += [(i, max(start - at, 0) + seq.prompt, min(end - at, seq.emitted) + seq.prompt)
                      for i, at in enumerate(first)]  # fmt: skip
        after = seq.prompt + seq.emitted
        if seq.emitted and seq.group is None and end == seq.to_compute():
            parts = [
                (i, min(begin, after - 1), upto) if upto == after else (i, begin, upto) for i, begin, upto in parts
            ]
        return [
            self._row(replica, seq, ids[_of_answer(seq.prompt, output, answer, begin, upto)].tolist(), begin,
                      seq.emitted, sample=upto == after and (end == seq.to_compute() or seq.group is not None),
                      answer=answer)
            for answer, begin, upto in parts if begin < upto
        ]  # fmt: skip

    @staticmethod
    def _fork(replica: Replica, seq: Sequence) -> tuple[int, list[int]] | None:
        """The last block of a prompt and those of the other answers into which it is copied before the first write."""
        size = replica.blocks.size
        if seq.answers == 1 or seq.group is None or seq.emitted > 1 or seq.prompt % size == 0:
            return None
        table, shared = replica.table(seq), seq.prompt // size
        return table[shared], table[shared + 1 : shared + seq.answers]

    def _row(
        self, replica: Replica, seq: Sequence, ids: list[int], start: int, emitted: int, *, sample: bool,
        answer: int = 0,
    ) -> Piece:  # fmt: skip
        """These tokens at `start` of an answer, and with `sample` the token after `emitted` others."""
        request_id = Oracle.request(seq).id
        table = replica.table(seq)
        if seq.answers > 1:  # behind what they share their blocks take turns
            shared = seq.prompt // replica.blocks.size
            in_prompt = start + len(ids) <= seq.prompt and not seq.emitted
            table = table[:shared] + table[shared + (0 if in_prompt else answer) :: seq.answers]
        seed = request_id + (answer << 32)  # the first answer is that of the request alone
        piece = Piece(request_id, ids, start, table, sample=sample, temperature=self._temperature, seed=seed)
        params = self._params.get(request_id)
        if params is not None and sample:
            _grant(params, piece, emitted)
        return piece

    def _ends(self, seq: Sequence) -> frozenset[int]:
        params = self._params.get(Oracle.request(seq).id)
        return params.ends if params is not None else frozenset()


def _of_answer(prompt: int, output: int, answer: int, begin: int, end: int) -> np.ndarray:
    """Places among the ids of a request of the positions `begin`..`end`-1 of prompt and this answer."""
    positions = np.arange(begin, end)
    places: np.ndarray = positions + answer * output * (positions >= prompt)
    return places


def _places(seq: Sequence, tokens: int) -> slice:
    """Where the next tokens of a sequence stand among the ids of its request; of several answers one of each."""
    place = seq.prompt + seq.emitted
    if seq.answers == 1:
        return slice(place, place + tokens)
    output = Oracle.output_tokens(seq)
    return slice(place, place + seq.answers * output, output)


def _grant(params: GenerationParams, piece: Piece, emitted: int) -> None:
    """Draw the token of `piece`, the one after `emitted` others, by the parameters of its request."""
    piece.top_p = params.top_p
    if params.temperature is not None:
        piece.temperature = params.temperature
    if params.seed is not None:
        piece.seed = params.seed
    if emitted < params.min_tokens:
        piece.forbidden = tuple(params.ends)


def answer_seed(prompt: ListOf[int], temperature: float | None, seed: int | None) -> int:
    """Return what an answer is made up from: equal for equal prompts and, where the client asks for chance, seeds."""
    return zlib.crc32(array("q", prompt), (seed or 0) & 0xFFFFFFFF if temperature else 0)


def block_names(token_ids: ListOf[int], size: int) -> tuple[int, ...]:
    """One `prefix_id` of 63 bits per full block of `size` tokens, made of the tokens in it."""
    tokens = array("q", token_ids).tobytes()
    width = 8 * size
    ends = range(width, len(tokens) + 1, width)
    digests = [blake2b(tokens[end - width : end], digest_size=8).digest() for end in ends]
    return tuple([int.from_bytes(digest, "little") >> 1 for digest in digests])


def looked_up(tokens: np.ndarray, ngram: int, count: int) -> list[int]:
    """Up to `count` tokens that followed the last `ngram` of `tokens` (n,) when they last occurred before; or none."""
    n = len(tokens)
    if count < 1 or n <= ngram:
        return []
    windows = np.lib.stride_tricks.sliding_window_view(tokens[:-1], ngram)  # (n - ngram, ngram)
    matches = np.flatnonzero((windows == tokens[n - ngram :]).all(axis=1))
    if not len(matches):
        return []
    first = int(matches[-1]) + ngram
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
            seq: looked_up(token_ids[Oracle.request(seq).id][: seq.prompt + seq.emitted], group.ngram, room)
            for seq, room in group.members.items()
        }
        drafting = Drafting(drafts)
        group.kept = drafting.right
        return drafting

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

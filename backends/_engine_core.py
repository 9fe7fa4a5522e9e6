"""The engine's loop under any clock: one turn takes in what arrived, forms a batch, runs it and commits it.

`backends.engine` runs it in a process of its own under the wall clock; tests run it with a clock of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from harness.api import Ended, Executor, Piece, Prompts, Request, Status, Step

if TYPE_CHECKING:
    from backends.serving.batch import Batch
    from backends.serving.replica import Replica
    from backends.serving.sequence import Sequence


@dataclass(slots=True)
class Turn:
    """What one turn brought: `tokens` are the ids of the requests that got one at `at_s`."""

    at_s: float
    tokens: list[int] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)
    step: Step | None = None


class EngineCore:
    """One replica whose batches a real model carries out."""

    def __init__(
        self,
        replica: Replica,
        executor: Executor,
        prompts: Prompts,
        clock: Callable[[], float],
        temperature: float = 0.0,
    ) -> None:
        self.replica = replica
        self._executor = executor
        self._prompts = prompts
        self._clock = clock
        self._temperature = temperature
        self._token_ids: dict[int, np.ndarray] = {}  # request id -> (prompt + output,) ids, filled as they come

    def token_ids(self, request_id: int) -> np.ndarray:
        """Prompt and output of a request under way, (prompt + output,); outputs to come are 0."""
        return self._token_ids[request_id]

    def turn(self, arrived: ListOf[Request] = (), cancelled: ListOf[int] = ()) -> Turn:
        """Take in, schedule, execute, commit. A turn without a step means that nothing can run."""
        now_s = self._clock()
        turn = Turn(now_s)
        for request_id in cancelled:
            seq = self.replica.cancel(request_id, now_s)
            if seq is not None:
                turn.ended.append(self._end(seq, now_s, "cancelled"))
        for request in arrived:
            refusal = self._add(request, now_s)
            if refusal is not None:
                turn.ended.append(Ended(request.id, now_s, "rejected", refusal, arrived_s=now_s))
        batch = self.replica.schedule(now_s)
        if batch is not None:
            self._run(batch, turn)
        return turn

    def _add(self, request: Request, now_s: float) -> str | None:
        total = request.prompt_tokens + request.output_tokens
        if total > self._executor.max_tokens:
            return f"prompt and output of {total} tokens exceed the model's {self._executor.max_tokens}"
        refusal = self.replica.add(request, now_s)
        if refusal is None:
            ids = np.zeros(total, np.int64)
            ids[: request.prompt_tokens] = self._prompts(request, self._executor.vocab_size)
            self._token_ids[request.id] = ids
        return refusal

    def _run(self, batch: Batch, turn: Turn) -> None:
        replica = self.replica
        items = batch.items(iter(replica.decoding))
        pieces = [self._piece(seq, tokens) for seq, tokens in items]
        sampled = self._executor.execute(pieces)
        start_s, end_s = turn.at_s, self._clock()
        for piece, (seq, _), token in zip(pieces, items, sampled, strict=True):
            if token is not None:
                self._token_ids[piece.request_id][seq.prompt + seq.emitted] = token
                turn.tokens.append(piece.request_id)
        turn.at_s = end_s
        decodes = len(replica.decoding) if batch.decode_seqs else 0  # a padded row is not executed
        turn.step = Step(
            replica.index, start_s, end_s, sum(n for _, n in batch.prefills), decodes, batch.context_tokens,
            batch.waiting, batch.running, batch.free_blocks,
        )  # fmt: skip
        turn.ended.extend(self._end(seq, end_s, "ok") for seq in replica.commit(batch, (end_s,)))

    def _piece(self, seq: Sequence, tokens: int) -> Piece:
        start, request_id = seq.computed, seq.request.id
        end = start + tokens
        return Piece(
            request_id,
            self._token_ids[request_id][start:end].tolist(),
            start,
            self.replica.table(seq),
            sample=end == seq.prompt + seq.emitted,
            temperature=self._temperature,
            seed=request_id,
        )

    def _end(self, seq: Sequence, now_s: float, status: Status) -> Ended:
        del self._token_ids[seq.request.id]
        return Ended(
            seq.request.id, now_s, status, replica=self.replica.index, preemptions=seq.preemptions,
            prefill_start_s=seq.prefill_start_s, prefill_end_s=seq.prefill_end_s, decode_start_s=seq.decode_start_s,
            arrived_s=seq.arrived_s,
        )  # fmt: skip

"""dLLM-Serve: serving of diffusion language models, whose steps work on a whole answer or on one block of it.

Source: dLLM-Serve, chosen-ox/dLLM-Serve, `dllmserve/engine/scheduler.py` (costs, order, limits) and
`dllmserve/sparse/state.py` (pages of what is retained). It claims 1.6 to 1.8 times the throughput of its baseline.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field
from itertools import chain
from math import ceil
from typing import TYPE_CHECKING, Literal

from backends.latency.roofline import Roofline
from backends.serving.batch import Oracle
from harness.api import LatencyModel
from harness.bounds import AtLeastOne, AtLeastTwo, Checked, PositiveShare, check
from harness.errors import UsageError

if TYPE_CHECKING:
    from backends.serving.batch import Batch, Sequence
    from backends.serving.replica import Replica


@dataclass(slots=True)
class DiffusionPolicy:
    """Diffusion decoding: each step works on tokens of the answer all at once, and one of them is settled.

    A request generates so many tokens in so many steps, in blocks of `block` tokens. The first step of a block works on
    prompt and answer (full); step `delay` does, too, and stores the keys and values that are retained (refresh); the
    others work on the block alone and read what is stored (reuse). A client sees blocks: the tokens of a block come out
    with its last step, so that TTFT is the time to the first block.

    multiplexed: in order of arrival, who runs before who waits, each step holds whatever fits `budget` tokens, so that
    the short steps of many requests run beside the long ones of a few. lockstep: a batch is formed, all of it is padded
    to its longest request, and the next one is formed when it is over.

    Each token of a step has a row of logits over the whole vocabulary: memory is set aside for those of `budget`
    tokens, or of `logit_rows` where the last product is divided so that no more are there at a time. Each of its parts
    reads the matrix again.

    Use it with kv=sparse. The length of the answer is no prediction here: a request says it.
    """

    schedule: Literal["multiplexed", "lockstep"] = "multiplexed"
    budget: AtLeastOne = 16384
    max_seqs: AtLeastOne = 512
    block: AtLeastTwo = 32
    delay: AtLeastOne = 1
    retention: PositiveShare = 0.5
    logit_rows: AtLeastOne | None = None
    _model: LatencyModel | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check(self)
        if self.delay >= self.block:
            raise UsageError(f"delay={self.delay} must be below block={self.block}: a block has so many steps.")

    @property
    def simulated(self) -> str:
        """An engine here makes one token after the other."""
        return "settles tokens of an answer out of order"

    @property
    def rows_at_once(self) -> int:
        """Rows of logits that are in memory at a time."""
        return self.budget if self.logit_rows is None else min(self.budget, self.logit_rows)

    def refusal(self, prompt: int, output: int) -> str | None:
        """Prompt and answer must fit a step."""
        if prompt + output <= self.budget:
            return None
        return f"a step on prompt and answer has {prompt + output} tokens, budget={self.budget}"

    def use_model(self, model: LatencyModel) -> None:
        """What says how long a step on so many tokens takes."""
        self._model = model

    def phase(self, step: int) -> Literal["full", "refresh", "reuse"]:
        """Of a request that has done so many steps, what the next one is."""
        place = step % self.block
        return "full" if place == 0 else "refresh" if place == self.delay else "reuse"

    def piece(self, seq: Sequence) -> tuple[int, int]:
        """(tokens that its next step works on, retained ones that it reads)."""
        tokens = seq.prompt + Oracle.output_tokens(seq)
        if self.phase(seq.emitted) == "reuse":
            return min(self.block, tokens), ceil(self.retention * tokens)
        return tokens, 0

    def fill(self, replica: Replica, batch: Batch) -> None:
        """Who runs, in order of admission, then who waits; as many as fit."""
        left, seats = self.budget, self.max_seqs
        for seq in sorted(chain(replica.decoding, replica.parked), key=lambda seq: seq.admitted):
            tokens = self.piece(seq)[0]
            fits, sits_out = tokens <= left and seats > 0, seq in replica.parked
            if fits:
                left, seats = left - tokens, seats - 1
            if fits and sits_out:
                replica.unpark(seq)
            elif not fits and not sits_out:
                replica.park(seq)
        was_running = replica.running > 0
        if replica.decoding.members:
            replica.decode(batch)
        pieces = [self.piece(seq) for seq in replica.decoding]
        longest, lockstep = 0, self.schedule == "lockstep"
        while replica.waiting and not batch.preempted and not (lockstep and was_running):
            piece = self.piece(replica.waiting[0])
            longest = max(longest, piece[0])
            tokens = longest * (len(pieces) + 1) if lockstep else self.budget - left + piece[0]
            if tokens > self.budget or replica.running >= self.max_seqs or not replica.admissible():
                break
            replica.admit(batch, replica.waiting[0].need())
            pieces.append(piece)
            left -= piece[0]
        if lockstep and pieces:
            pieces = [max(pieces)] * len(pieces)
        batch.loads = pieces
        batch.takes_s = self._seconds(pieces)

    def _seconds(self, pieces: ListOf[tuple[int, int]]) -> float | None:
        """Seconds of a step on these pieces, in which each token attends to all of its piece and to what is stored.

        A latency model knows prompts, whose tokens attend to those before them and of which the last one alone has
        logits: half a piece more is stored, and the logits of the others are added where the model tells them.
        """
        if self._model is None or not pieces:
            return None
        time_s = self._model.step_s([(tokens, stored + tokens // 2) for tokens, stored in pieces], 0, 0)
        if isinstance(self._model, Roofline):
            parts, rest = divmod(sum(tokens for tokens, _ in pieces), self.rows_at_once)
            logits_s = parts * self._model.head_s(self.rows_at_once) + (self._model.head_s(rest) if rest else 0.0)
            time_s += logits_s - self._model.head_s(len(pieces))
        return time_s

    def on_finish(self, seq: Sequence) -> None:
        """Its tokens came out block by block."""
        ends, counts, settled = array("d"), [], 0
        for end_s, tokens in zip(seq.token_s, seq.tokens_per_stamp(), strict=True):
            settled += tokens
            if settled >= self.block or end_s == seq.token_s[-1]:
                ends.append(end_s)
                counts.append(settled)
                settled = 0
        seq.token_s, seq.token_n = ends, counts


@dataclass(frozen=True, slots=True)
class SparseKv(Checked):
    """KV of a share of the tokens of prompt and answer, reserved at admission in pages (dLLM-Serve).

    A sequence holds `retention` of its tokens in pages of `block_tokens`.
    """

    retention: PositiveShare = 0.5
    block_tokens: AtLeastOne = 256
    blocks: AtLeastOne | None = None

    @property
    def simulated(self) -> str:
        """An engine here keeps all tokens."""
        return "drops keys and values of tokens"

    @property
    def watermark(self) -> float:
        """0: what is reserved cannot run short."""
        return 0.0

    @property
    def reserves(self) -> bool:
        """True: all memory at admission."""
        return True

    def reserved_tokens(self, prompt: int, output: int) -> int:
        """What is retained of both."""
        return ceil(self.retention * (prompt + output))

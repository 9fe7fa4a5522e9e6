"""LoongServe: groups of GPUs of any size for each step, over one memory of all of them (elastic sequence parallelism).

Source: Wu et al., LoongServe, SOSP 2024 (arXiv 2404.09526): prompts are divided over a group whose KV stays wherever it
leaves room, so that groups grow and shrink without migration. It claims 3.85 times the throughput of chunked prefill,
and 5.81 times that of disaggregated prefill and decode.
"""

from __future__ import annotations

from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field
from math import ceil, inf
from typing import TYPE_CHECKING

from backends.serving.plugins import Policy
from harness.api import LatencyModel
from harness.bounds import AtLeastOne, AtLeastTwo, check
from harness.errors import UsageError

if TYPE_CHECKING:
    from backends.serving.batch import Batch, Sequence
    from backends.serving.replica import Replica

DECODE = 0
LOOKED_AHEAD = 12
"""Requests at the head of the queue that are divided over groups at a time."""


@dataclass(slots=True)
class LoongservePolicy:
    """LoongServe: every step of prompts or decodes takes as many GPUs as suit it; all KV is in one memory.

    A replica is `sp` instances of the `tp` GPUs that it has else, each with the whole model. A step of a group of g of
    them computes a g-th of its tokens on each, and of the attention over what is stored; passing KV around is hidden
    behind that. Any token's KV may be on any instance, so a group is as large as its KV needs, at least.

    Decodes are one batch. Its group is the smallest that holds its KV, and larger while instances are idle and each has
    more than `decode_seqs` sequences. What is left is for prompts: those at the head of the queue are divided into
    batches and these over the idle instances so that the sum of their latencies is least (dynamic programming over
    prompts in order of length). When a prompt is computed its group is free again, but for the memory that it filled.

    Source: algorithm 1 and sections 4 and 5; one batch of decodes, and whose KV is on which instance is not followed.
    """

    sp: AtLeastTwo = 4
    decode_seqs: AtLeastOne = 128
    max_seqs: AtLeastOne = 1024
    _groups: list[int] = field(init=False, repr=False, compare=False)  # by lane, of its last batch
    _model: LatencyModel | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check(self)
        self._groups = [0] * (self.sp + 1)

    @property
    def simulated(self) -> str:
        """It has lanes."""
        return "runs batches side by side"

    def use_model(self, model: LatencyModel) -> None:
        """What says how long steps of one instance take."""
        self._model = model

    def fill(self, replica: Replica, batch: Batch) -> None:  # noqa: ARG002
        """Raise UsageError: this driver has no lanes."""
        raise UsageError("policy=loongserve runs batches side by side, which only simulated replicas do.")

    def lanes(self) -> ListOf[Policy]:
        """Decode, and as many batches of prompts as there are instances."""
        return [_DecodeLane(self), *(_PrefillLane(self, lane) for lane in range(1, self.sp + 1))]

    def rates(self, lanes: ListOf[int]) -> ListOf[float]:
        """No two share an instance."""
        return [1.0] * len(lanes)

    def idle(self, replica: Replica) -> int:
        """Instances without a batch."""
        lanes = enumerate(replica.lanes if replica.pipeline is None else replica.pipeline.lanes)
        return self.sp - sum(self._groups[lane] for lane, each in lanes if each.in_flight is not None)

    def holding(self, replica: Replica, blocks: int) -> int:
        """Instances that so many blocks need."""
        return ceil(blocks * self.sp / replica.blocks.total)

    def take(self, lane: int, group: int, batch: Batch, pieces: ListOf[tuple[int, int]], context: int) -> None:
        """The batch of a lane runs on a group of this size."""
        self._groups[lane] = batch.instances = group
        if self._model is not None:
            decodes = -(-batch.decode_seqs // group)
            batch.takes_s = self._model.step_s(_divided(pieces, group), decodes, context // group)

    def batch_of_head(self, replica: Replica, idle: int) -> tuple[set[Sequence], int]:
        """Of the best division of the first requests that wait over `idle` instances, the batch of the very first, and
        the instances that it gets.
        """
        waiting = [replica.waiting[i] for i in range(min(LOOKED_AHEAD, len(replica.waiting)))]
        blocks = {seq: seq.blocks_for(seq.prompt + seq.emitted, replica.blocks.size) for seq in waiting}
        if self.holding(replica, blocks[waiting[0]]) > idle:
            return set(), 0
        seqs = sorted(waiting, key=lambda seq: (seq.need(), seq.order))
        # best[n][k]: the least sum of latencies of the first n on k instances, where their last batch begins, its group
        best: list[list[tuple[float, int, int]]] = [[(0.0, 0, 0)] * (idle + 1)]
        for end in range(1, len(seqs) + 1):
            row = [(inf, 0, 0)] * (idle + 1)
            for begin in range(end):
                pieces = [(seq.need(), seq.computed) for seq in seqs[begin:end]]
                least = self.holding(replica, sum(blocks[seq] for seq in seqs[begin:end]))
                for group in range(max(1, least), idle + 1):
                    sum_s = (end - begin) * self._seconds(pieces, group)
                    for instances in range(group, idle + 1):
                        choice = (best[begin][instances - group][0] + sum_s, begin, group)
                        row[instances] = min(row[instances], choice)
            best.append(row)
        end, instances = len(seqs), idle
        while best[end][instances][0] < inf:
            _, begin, group = best[end][instances]
            if waiting[0] in seqs[begin:end]:
                return set(seqs[begin:end]), group
            end, instances = begin, instances - group
        return {waiting[0]}, idle  # not all of them fit

    def _seconds(self, pieces: ListOf[tuple[int, int]], group: int) -> float:
        """Seconds of a step; without a model its tokens on each instance, which orders groups as well as one can."""
        pieces = _divided(pieces, group)
        return float(sum(new for new, _ in pieces)) if self._model is None else self._model.step_s(pieces, 0, 0)


def _divided(pieces: ListOf[tuple[int, int]], group: int) -> list[tuple[int, int]]:
    """What each of `group` instances computes of pieces of prompts: every g-th token, each after half of its piece on
    the average.
    """
    return [(-(-new // group), stored + (new - -(-new // group)) // 2) for new, stored in pieces]


@dataclass(frozen=True, slots=True)
class _DecodeLane:
    """All decodes, on a group that holds their KV."""

    shared: LoongservePolicy

    def fill(self, replica: Replica, batch: Batch) -> None:
        shared, decoding = self.shared, replica.decoding
        if not decoding.members or replica.pipeline is None:
            return
        prompts = sum(seq.blocks for lane in replica.pipeline.lanes for seq in lane.prefilling)
        idle = shared.idle(replica)
        group = max(1, shared.holding(replica, replica.blocks.total - replica.blocks.free - prompts))
        if group > idle and idle < shared.sp:
            return  # its KV is partly where prompts are computed now
        group = min(max(group, -(-len(decoding) // shared.decode_seqs)), idle)
        replica.decode(batch)
        if batch.decode_seqs:
            shared.take(DECODE, group, batch, (), decoding.context)

    def has_room(self, replica: Replica) -> bool:
        return replica.running < self.shared.max_seqs


@dataclass(frozen=True, slots=True)
class _PrefillLane:
    """A batch of prompts, on some of the instances that are idle."""

    shared: LoongservePolicy
    lane: int

    def fill(self, replica: Replica, batch: Batch) -> None:
        shared = self.shared
        idle = shared.idle(replica)
        if not idle or not replica.waiting or not replica.admissible():
            return
        chosen, group = shared.batch_of_head(replica, idle)
        replica.order_waiting(lambda seq: seq not in chosen)
        for _ in range(len(chosen)):
            if not replica.admissible():
                break
            replica.admit(batch, replica.waiting[0].need())
        if batch.prefills:
            pieces = [(tokens, seq.computed) for seq, tokens in batch.prefills]
            shared.take(self.lane, group, batch, pieces, 0)

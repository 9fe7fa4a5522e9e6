"""Paced steps: an executor that computes nothing says when they end; those that come late are counted."""

from collections.abc import Mapping
from collections.abc import Sequence as ListOf
from typing import Protocol, runtime_checkable

import numpy as np

from backends.serving.batch import Batch, Sequence
from backends.serving.replica import Replica
from backends.simulator.core import BlockCost
from harness.api import LatencyModel


@runtime_checkable
class Pacer(Protocol):
    """An executor that computes nothing: it knows when the step of a batch ends, and the engine waits until then.

    A step that ends up to `late_s` after its time counts as in time.
    """

    late_s: float

    @property
    def latency_model(self) -> LatencyModel:
        """What says how long steps take."""
        ...

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


class Pace:
    """Says when the paced steps of a replica end, and counts those that came late."""

    def __init__(self, pacer: Pacer, replica: Replica) -> None:
        self._pacer = pacer
        self._replica = replica
        self._guess = None if replica.drafts is None else replica.drafts.kept  # by chance, as in the simulator
        self.steps = 0
        self.late = 0
        self.latest_s = 0.0

    @property
    def late_s(self) -> float:
        """A step that ends up to so much after its time counts as in time."""
        return self._pacer.late_s

    def due_s(self, batch: Batch, start_s: float) -> float:
        """When the step of a batch that starts at `start_s` ends."""
        return self._pacer.end_s(batch, start_s)

    def ended(self, due_s: float, now_s: float) -> float:
        """A step that was due is over now: when it ended."""
        late_s = now_s - due_s
        self.steps += 1
        self.latest_s = max(self.latest_s, late_s)
        if late_s <= self._pacer.late_s:
            return due_s
        self.late += 1
        return due_s + late_s

    def right_drafts(self) -> dict[Sequence, int]:
        """How many drafts of each sequence are right; the replica will take no others."""
        group = self._replica.drafts
        assert group is not None and self._guess is not None
        right = {seq: self._guess(seq, drafts) if drafts else 0 for seq, drafts in group.members.items()}
        group.kept = lambda seq, _: right[seq]
        return right


def pace_facts(paces: ListOf[Pace]) -> dict[str, object]:
    """Facts for run.json: steps and late steps so far."""
    return {
        "paced_steps": sum(pace.steps for pace in paces),
        "late_steps": sum(pace.late for pace in paces),
        "latest_step_s": max(pace.latest_s for pace in paces),
    }

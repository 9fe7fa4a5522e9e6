"""Paced steps: an executor that computes nothing says when they end; those that come late are counted."""

from collections.abc import Sequence as ListOf

from backends.executors.paced import Paced
from backends.serving.batch import Batch, Sequence
from backends.serving.replica import Replica


class Pace:
    """Says when the paced steps of a replica end, and counts those that came late."""

    def __init__(self, pacer: Paced, replica: Replica) -> None:
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

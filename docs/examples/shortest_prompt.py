"""Shortest prompt first: the waiting sequence with the least to compute starts next; decodes continue.

An example of a policy. Short prompts get their first token early; long ones wait as long as shorter ones arrive.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShortestPrompt:
    """At most `max_seqs` running sequences."""

    max_seqs: int = 64

    def __post_init__(self) -> None:
        if self.max_seqs < 1:
            raise ValueError(f"max_seqs must be at least 1, got {self.max_seqs}")

    def fill(self, replica, batch) -> None:
        """All decodes, then whole prompts, the shortest first."""
        if replica.decoding.members:
            replica.decode(batch)
        waiting = replica.waiting
        while waiting and not batch.preempted and replica.running < self.max_seqs:
            shortest = min(waiting, key=lambda seq: seq.prompt + seq.emitted)
            waiting.remove(shortest)
            waiting.appendleft(shortest)
            if not replica.admissible():
                break
            replica.admit(batch, waiting[0].need())
        batch.repeats = not batch.preempted

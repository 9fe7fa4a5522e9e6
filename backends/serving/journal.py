"""The journal: the ordered calls into a replica and the batches that came of them. Replaying it is the proof that
a replica depends on nothing else.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from backends.serving.batch import Batch
    from backends.serving.decodes import Decodes
    from backends.serving.replica import Replica
    from backends.serving.sequence import Sequence
    from backends.serving.speculation import Drafts
    from harness.api import Request

Kind = Literal["add", "schedule", "commit", "cancel", "stop", "forget"]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a driver: `at_s` seconds; `request_id` of what is added or withdrawn; the step ends of a commit."""

    kind: Kind
    at_s: float
    request_id: int | None = None
    end_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """What a batch was made of, by request id: decodes, (id, tokens) of prompts, preempted."""

    decodes: tuple[int, ...]
    prefills: tuple[tuple[int, int], ...]
    preempted: tuple[int, ...]


@dataclass(slots=True)
class Journal:
    """Calls in order, and one decision per batch."""

    calls: list[Call] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)

    def add(self, request_id: int, now_s: float) -> None:
        """A request arrived at the replica."""
        self.calls.append(Call("add", now_s, request_id))

    def schedule(self, now_s: float) -> None:
        """The driver asked for a batch."""
        self.calls.append(Call("schedule", now_s))

    def commit(self, end_s: ListOf[float]) -> None:
        """A batch ended (`end_s`: one stamp per step of a leap)."""
        self.calls.append(Call("commit", end_s[-1], None, tuple(end_s)))

    def cancel(self, request_id: int, now_s: float) -> None:
        """A request was withdrawn."""
        self.calls.append(Call("cancel", now_s, request_id))

    def stop(self, request_id: int, now_s: float) -> None:
        """A sequence ended before its last token."""
        self.calls.append(Call("stop", now_s, request_id))

    def forget(self, now_s: float) -> None:
        """The prefix cache was emptied."""
        self.calls.append(Call("forget", now_s))

    def batch(self, batch: Batch, decoding: Decodes | Drafts) -> None:
        """The replica formed a batch."""
        self.decisions.append(
            Decision(
                tuple(seq.request.id for seq in decoding) if batch.decode_seqs else (),
                tuple((seq.request.id, tokens) for seq, tokens in batch.prefills),
                tuple(seq.request.id for seq in batch.preempted),
            )
        )


def replay(calls: ListOf[Call], requests: Mapping[int, Request], replica: Replica) -> list[Sequence]:
    """Make the same calls on a fresh replica; returns the sequences that ended, in order.

    Raises ValueError when the calls do not fit (a commit without a batch).
    """
    done: list[Sequence] = []
    handlers: dict[Kind, Callable[[Call], None]] = {
        "add": lambda call: _add(call, requests, replica),
        "schedule": lambda call: _ignore(replica.schedule(call.at_s)),
        "commit": lambda call: done.extend(_commit(call, replica)),
        "cancel": lambda call: _withdraw(call, replica.cancel),
        "stop": lambda call: _withdraw(call, replica.stop),
        "forget": lambda call: replica.forget_prefixes(call.at_s),
    }
    for call in calls:
        handlers[call.kind](call)
    return done


def _add(call: Call, requests: Mapping[int, Request], replica: Replica) -> None:
    assert call.request_id is not None
    replica.add(requests[call.request_id], call.at_s)


def _commit(call: Call, replica: Replica) -> list[Sequence]:
    if replica.in_flight is None:
        raise ValueError(f"the journal commits a batch at {call.at_s} s that the replica did not form")
    return replica.commit(replica.in_flight, array("d", call.end_s))


def _withdraw(call: Call, how: Callable[[int, float], Sequence | None]) -> None:
    assert call.request_id is not None
    how(call.request_id, call.at_s)


def _ignore(_: object) -> None:
    return None

"""The journal: the ordered calls into a replica and the batches that came of them. Replaying it is the proof that
a replica depends on nothing else.
"""

from array import array
from collections.abc import Callable, Mapping
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field
from typing import Literal

from backends.serving.batch import Batch
from backends.serving.decodes import Decodes
from backends.serving.handoff import arrived_prefilled
from backends.serving.replica import Replica
from backends.serving.sequence import Sequence
from backends.serving.speculation import Drafts
from harness.api import Request

Kind = Literal["add", "schedule", "commit", "cancel", "stop", "forget", "accept", "land", "let_go"]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a driver: `at_s` seconds; `request_id` of what is added or withdrawn; the step ends of a commit."""

    kind: Kind
    at_s: float
    request_id: int | None = None
    end_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """What a batch was made of, by request id: decodes, (id, tokens) of prompts, preempted, (id, out?) of swaps."""

    decodes: tuple[int, ...]
    prefills: tuple[tuple[int, int], ...]
    preempted: tuple[int, ...]
    swapped: tuple[tuple[int, bool], ...] = ()


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

    def accept(self, request_id: int, now_s: float) -> None:
        """A prefilled sequence was given memory on a decode replica."""
        self.calls.append(Call("accept", now_s, request_id))

    def land(self, request_id: int, now_s: float) -> None:
        """Its KV arrived there."""
        self.calls.append(Call("land", now_s, request_id))

    def let_go(self, request_id: int, now_s: float) -> None:
        """The prefill replica freed its memory."""
        self.calls.append(Call("let_go", now_s, request_id))

    def batch(self, batch: Batch, decoding: Decodes | Drafts) -> None:
        """The replica formed a batch."""
        self.decisions.append(
            Decision(
                tuple(seq.request.id for seq in decoding) if batch.decode_seqs else (),
                tuple((seq.request.id, tokens) for seq, tokens in batch.prefills),
                tuple(seq.request.id for seq in batch.preempted),
                tuple((seq.request.id, table is not None) for seq, table in batch.swaps),
            )
        )


def replay(calls: ListOf[Call], requests: Mapping[int, Request], replica: Replica) -> list[Sequence]:
    """Make the same calls on a fresh replica; returns the sequences that ended, in order.

    Raises ValueError when the calls do not fit (a commit without a batch).
    """
    done: list[Sequence] = []
    handed: dict[int, Sequence] = {}  # on their way to this replica
    handlers: dict[Kind, Callable[[Call], None]] = {
        "add": lambda call: _add(call, requests, replica),
        "schedule": lambda call: _ignore(replica.schedule(call.at_s)),
        "commit": lambda call: done.extend(_commit(call, replica)),
        "cancel": lambda call: _withdraw(call, replica.cancel),
        "stop": lambda call: _withdraw(call, replica.stop),
        "forget": lambda call: replica.forget_prefixes(call.at_s),
        "accept": lambda call: replica.accept(_handed(call, requests, handed), call.at_s),
        "land": lambda call: _land(call, requests, handed, replica),
        "let_go": lambda call: _let_go(call, replica),
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


def _handed(call: Call, requests: Mapping[int, Request], handed: dict[int, Sequence]) -> Sequence:
    assert call.request_id is not None
    if call.request_id not in handed:
        handed[call.request_id] = arrived_prefilled(requests[call.request_id], call.at_s)
    return handed[call.request_id]


def _land(call: Call, requests: Mapping[int, Request], handed: dict[int, Sequence], replica: Replica) -> None:
    seq = _handed(call, requests, handed)
    assert replica.inbox is not None
    replica.inbox.incoming.setdefault(seq)  # pushed: nobody accepted it
    replica.land(seq, call.at_s)


def _let_go(call: Call, replica: Replica) -> None:
    assert replica.outbox is not None
    seq = next(seq for seq in replica.outbox.leaving if seq.request.id == call.request_id)
    replica.let_go(seq, call.at_s)


def _ignore(_: object) -> None:
    return None

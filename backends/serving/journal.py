"""The journal: the ordered calls into a replica and the batches that came of them. Replaying it is the proof that
a replica depends on nothing else.
"""

from array import array
from collections.abc import Mapping
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field
from typing import Literal

from backends.serving.batch import Batch, Sequence
from backends.serving.decodes import Decodes
from backends.serving.handoff import arrived_prefilled
from backends.serving.replica import Replica, Role
from backends.serving.speculation import Drafts
from harness.api import Request

Kind = Literal["add", "schedule", "commit", "cancel", "stop", "forget", "accept", "land", "release", "send", "stay",
               "reserve", "unreserve", "restart", "drop", "fail", "role", "insert", "whole", "resize"]  # fmt: skip


@dataclass(frozen=True, slots=True)
class JournalCall:
    """One call of a driver: `at_s` seconds; `request_id` of what is added or withdrawn; the step ends of a commit.

    Of a sequence that comes from elsewhere `computed` and `emitted` are its tokens with KV and its answer so far; of
    a reservation `blocks`; of a commit the `lane`, where lanes share the GPUs.
    """

    kind: Kind
    at_s: float
    request_id: int | None = None
    end_s: tuple[float, ...] = ()
    computed: int = 0
    emitted: int = 0
    blocks: int = 0
    role: Role | None = None
    keys: tuple[int, ...] = ()
    lane: int | None = None


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

    calls: list[JournalCall] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)

    def call(
        self, kind: Kind, at_s: float, request_id: int | None = None, computed: int = 0, emitted: int = 0,
        blocks: int = 0, *, end_s: ListOf[float] = (), role: Role | None = None, keys: ListOf[int] = (),
        lane: int | None = None,
    ) -> None:  # fmt: skip
        """Keep one call of the driver."""
        self.calls.append(
            JournalCall(kind, at_s, request_id, tuple(end_s), computed, emitted, blocks, role, tuple(keys), lane)
        )

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


def replay(calls: ListOf[JournalCall], requests: Mapping[int, Request], replica: Replica) -> list[Sequence]:
    """Make the same calls on a fresh replica; returns the sequences that ended, in order.

    Raises ValueError when the calls do not fit (a commit without a batch).
    """
    done: list[Sequence] = []
    handed: dict[int, Sequence] = {}  # on their way to this replica
    for call in calls:
        at_s = call.at_s
        match call.kind, call.request_id:
            case "schedule", None:
                replica.schedule(at_s)
            case "commit", None:
                if replica.in_flight is None:
                    raise ValueError(f"the journal commits a batch at {at_s} s that the replica did not form")
                if replica.pipeline is not None and call.lane is not None:
                    replica.pipeline.leaves_next(call.lane)
                done += replica.commit(replica.in_flight, array("d", call.end_s))
            case "forget", None:
                replica.forget_prefixes(at_s)
            case "add", int(request_id):
                replica.add(requests[request_id], at_s)
            case "whole", int(request_id):
                replica.serve_whole(request_id, at_s)
            case "cancel", int(request_id):
                replica.cancel(request_id, at_s)
            case "stop", int(request_id):
                replica.stop(request_id, at_s)
            case "accept" | "land" | "restart", int(request_id):
                if request_id not in handed:
                    handed[request_id] = arrived_prefilled(requests[request_id], at_s)
                seq = handed[request_id]
                seq._computed, seq._emitted = call.computed, call.emitted
                # When its tokens came out is not in the journal: nothing is decided by it, only by how many there are.
                seq.token_s.extend([at_s] * (call.emitted - len(seq.token_s)))
                if call.kind == "accept":
                    replica.accept(seq, at_s)
                elif call.kind == "restart":
                    replica.restart(handed.pop(request_id), at_s)
                else:
                    replica.inbox.incoming.setdefault(seq)  # pushed, not accepted by the pull gate
                    replica.land(handed.pop(request_id), at_s)
            case "drop", int(request_id):
                replica.drop(handed.pop(request_id), at_s)
            case "send", int(request_id):
                replica.send(request_id, at_s)
            case "release" | "stay", int(request_id):
                seq = next(seq for seq in replica.outbox.leaving if seq.request.id == request_id)
                (replica.release if call.kind == "release" else replica.stay)(seq, at_s)
            case "reserve", int(request_id):
                replica.reserve(request_id, call.blocks, at_s, call.keys)
            case "unreserve", int(request_id):
                replica.unreserve(request_id, at_s)
            case "resize", None:
                replica.resize(call.blocks, at_s)
            case "fail", None:
                replica.fail(at_s)
            case "role", None:
                assert call.role is not None
                replica.set_role(call.role, at_s)
            case "insert", request_id:
                replica.insert_prefix(call.keys, at_s, request_id)
            case _:
                raise AssertionError(call)
    return done

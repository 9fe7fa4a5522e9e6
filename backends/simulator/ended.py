"""Requests that are over, as records or as columns of a table of many."""

from collections.abc import Iterator

from backends.serving.batch import Oracle, Sequence
from harness.api import Request, RequestRecord, Status

Column = list[object]


class EndedSequence:
    """A sequence that is answered, rejected, or ended by an error; `ended_s` where that was not its last token."""

    __slots__ = ("ended_s", "error", "replica", "seq", "status")

    def __init__(
        self, seq: Sequence, replica: int | None, status: Status = "ok", error: str | None = None,
        ended_s: float | None = None,
    ) -> None:  # fmt: skip
        self.seq = seq
        self.replica = replica
        self.status: Status = status
        self.error = error
        self.ended_s = ended_s

    def record(self) -> RequestRecord:
        seq = self.seq
        request = Oracle.request(seq)
        scheduled_s = request.scheduled_s
        token_n = None if seq.token_n is None else seq.tokens_per_stamp()
        return RequestRecord(
            request.id, scheduled_s, scheduled_s, seq.token_s, token_n, seq.prompt, seq.emitted, request.output_tokens,
            self.status, self.error, request.session, request.turn, request.tag, None, seq.cached_tokens, self.replica,
            seq.preemptions, seq.prefill_start_s, seq.prefill_end_s, seq.handoff_start_s, seq.handoff_end_s,
            seq.decode_start_s, request.slo_ttft_s, request.slo_tpot_s,
            None if self.status == "rejected" else seq.arrived_s, self.ended_s, request.slo_task_s,
        )  # fmt: skip


def records(ended: Iterator[EndedSequence]) -> Iterator[RequestRecord]:
    for sequence in ended:
        yield sequence.record()


def rejected(request: Request, reason: str, replica: int | None, now_s: float) -> EndedSequence:
    """A request that is not served."""
    return EndedSequence(Sequence(request, 0, now_s), replica, "rejected", reason, max(now_s, request.scheduled_s))


def columns(ended: list[EndedSequence]) -> dict[str, Column]:
    """The columns of the `requests` table of these sequences, in their order; those that are null are left out."""
    sequences = [entry.seq for entry in ended]
    requests = [Oracle.request(seq) for seq in sequences]
    scheduled_s: Column = [request.scheduled_s for request in requests]
    return {
        "request_id": [request.id for request in requests],
        "session": [request.session for request in requests],
        "turn": [request.turn for request in requests],
        "tag": [request.tag for request in requests],
        "scheduled_s": scheduled_s,
        "sent_s": scheduled_s,
        "token_s": [seq.token_s for seq in sequences],
        "token_n": [None if seq.token_n is None else seq.tokens_per_stamp() for seq in sequences],
        "prompt_tokens": [seq.prompt for seq in sequences],
        "cached_tokens": [seq.cached_tokens for seq in sequences],
        "output_tokens": [seq.emitted for seq in sequences],
        "output_tokens_asked": [request.output_tokens for request in requests],
        "status": [entry.status for entry in ended],
        "error": [entry.error for entry in ended],
        "replica": [entry.replica for entry in ended],
        "preemptions": [seq.preemptions for seq in sequences],
        "prefill_start_s": [seq.prefill_start_s for seq in sequences],
        "prefill_end_s": [seq.prefill_end_s for seq in sequences],
        "handoff_start_s": [seq.handoff_start_s for seq in sequences],
        "handoff_end_s": [seq.handoff_end_s for seq in sequences],
        "decode_start_s": [seq.decode_start_s for seq in sequences],
        "slo_ttft_s": [request.slo_ttft_s for request in requests],
        "slo_tpot_s": [request.slo_tpot_s for request in requests],
        "arrived_s": [None if entry.status == "rejected" else entry.seq.arrived_s for entry in ended],
        "ended_s": [entry.ended_s for entry in ended],
        "slo_task_s": [request.slo_task_s for request in requests],
    }

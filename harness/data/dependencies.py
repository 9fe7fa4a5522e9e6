"""Which requests become due when an answer has ended: turns of a session, stages of a task, users who wait.

The schedule holds them all, drawn before the run; an answer only decides when they leave, and a failed one that the
rest of its session is dropped. What is dropped gets a record like everything else.
"""

from collections.abc import Callable, Sequence

import numpy as np

from harness.api import ENDED_WELL, Ended, Request, RequestRecord
from harness.data.schedule import Rows, Schedule, links


class Releases:
    """The follow-ups of a schedule; calling it with a record gives those that are due now (`harness.api.FollowUps`).

    Requests due at or after `end_s` are held back for good, unless they belong to a task that must be completed
    (`slo_task_s`). `drop` gets the records of requests that cannot be sent
    because one before them in their session failed.
    """

    def __init__(self, schedule: Schedule, drop: Callable[[RequestRecord], None], end_s: float | None = None) -> None:
        table = schedule.table
        self._rows = Rows(table)
        self._drop = drop
        self._end_s = end_s
        child, parent = links(table)
        order = np.argsort(parent, kind="stable")
        self._children = child[order]  # (L,) rows, grouped by the row they come after
        ids = table["id"].to_numpy()
        parents, starts = np.unique(parent[order], return_index=True)
        ends = np.append(starts[1:], len(order))
        self._of = {int(ids[p]): (int(a), int(b)) for p, a, b in zip(parents, starts, ends, strict=True)}
        self._waits = np.bincount(child, minlength=len(table))  # (rows,) answers that are still to come
        self._due_s = table["scheduled_s"].to_numpy().copy()  # (rows,) earliest time that the answers so far allow
        self._delay_s = table["delay_s"].to_numpy()  # (rows,)
        self.held_back = 0

    def __repr__(self) -> str:
        return f"<Releases {int((self._waits > 0).sum())} waiting, {self.held_back} held back>"

    def __call__(self, record: RequestRecord) -> list[Request]:
        """The requests for which this was the last answer to wait for, each with the time at which it is due."""
        due: list[Request] = []
        ended = [record]  # and what is dropped because of it: a stack, because a session may be long
        while ended:
            parent = ended.pop()
            first, last = self._of.pop(parent.request_id, (0, 0))
            for row in self._children[first:last].tolist():
                request = self._answered(row, parent, ended)
                if request is not None:
                    due.append(request)
        return due

    def _answered(self, row: int, record: RequestRecord, ended: list[RequestRecord]) -> Request | None:
        """The request of a row if it may leave now that `record` has ended; if it is dropped it goes to `ended`."""
        if self._waits[row] == 0:  # dropped before, because of another answer
            return None
        self._waits[row] -= 1
        due_s = self._due_s[row] = max(self._due_s[row], ended_s(record) + float(self._delay_s[row]))
        if record.status not in ENDED_WELL and record.session is not None:
            request = self._rows.at(row, float(due_s))
            if request.session == record.session:
                self._waits[row] = 0
                if self._too_late(request):
                    return None
                ended.append(dropped(request, record))
                self._drop(ended[-1])
                return None
        if self._waits[row]:
            return None
        request = self._rows.at(row, float(due_s))
        return None if self._too_late(request) else request

    def _too_late(self, request: Request) -> bool:
        """Whether a request is held back, because it is due after the end of the sending; it is counted."""
        held = self._end_s is not None and request.scheduled_s >= self._end_s and request.slo_task_s is None
        self.held_back += held
        return held


def dropped(request: Request, because: RequestRecord) -> RequestRecord:
    """The record of a request that cannot be sent, because of one before it in its session."""
    why = f"request {because.request_id} of its session was {because.status}"
    return record_of(request, Ended(request.id, request.scheduled_s, "dropped", error=why), None)


def ended_s(record: RequestRecord) -> float:
    """When a request ended: with its last token, or as the record says."""
    if record.ended_s is not None:
        return record.ended_s
    return record.token_s[-1] if len(record.token_s) else record.scheduled_s


def record_of(
    request: Request, ended: Ended, sent_s: float | None, token_s: Sequence[float] = (), token_n: Sequence[int] = ()
) -> RequestRecord:
    """The row of a request; the backend's own stamp of departure, where it has one, is the better one."""
    plain = all(n == 1 for n in token_n)
    return RequestRecord(
        request_id=request.id,
        scheduled_s=request.scheduled_s,
        sent_s=ended.sent_s if ended.sent_s is not None else sent_s,
        token_s=token_s,
        token_n=None if plain else token_n,
        prompt_tokens=request.prompt_tokens,
        output_tokens=(len(token_n) if plain else sum(token_n)) + (ended.unseen_tokens or 0),
        output_tokens_asked=request.answers * request.output_tokens,
        status=ended.status,
        error=ended.error,
        session=request.session,
        turn=request.turn,
        tag=request.tag,
        prompt_tokens_server=ended.prompt_tokens_server,
        cached_tokens=ended.cached_tokens,
        replica=ended.replica,
        preemptions=ended.preemptions,
        prefill_start_s=ended.prefill_start_s,
        prefill_end_s=ended.prefill_end_s,
        handoff_start_s=ended.handoff_start_s,
        handoff_end_s=ended.handoff_end_s,
        decode_start_s=ended.decode_start_s,
        arrived_s=ended.arrived_s,
        slo_ttft_s=request.slo_ttft_s,
        slo_tpot_s=request.slo_tpot_s,
        ended_s=None if ended.status == "ok" else ended.at_s,
        slo_task_s=request.slo_task_s,
        exchange=ended.exchange,
        unseen_tokens=ended.unseen_tokens,
        slo_e2e_s=request.slo_e2e_s,
        answers=None if request.answers == 1 else request.answers,
    )

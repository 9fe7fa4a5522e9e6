"""The null backend behind `bench serve`: each token at a stated time after its request, and nothing computed.

All streams share one alarm and one heap of due times: a token costs microseconds and is due at an absolute time.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from backends.null import Null
from backends.server.service import EndReason, Listener, Sampling, Stats, Ticket, Tokenizer
from backends.server.tokenizer import BYTES, Builtin
from harness.api import Step
from harness.errors import UsageError
from harness.spec import Spec, build
from harness.timer import Alarm

VOCAB_SIZE = 1024
MAX_MODEL_LEN = 1 << 20
"""Any prompt of a published trace fits."""
BURST = 4096
"""Tokens sent before the loop reads its sockets again: with a gap of 0 all of an answer is due at once."""


def make(spec: Spec) -> NullService:
    """The service of `null:ttft=0.2,itl=0.01,tokens=16`."""
    null = build(Null, spec)
    if null.fail_share or null.crash_after is not None:
        raise UsageError(f"'{spec}': fail_share and crash_after are of bench run; a server fails with --fault.")
    return NullService(null)


@dataclass(slots=True)
class _NullAnswer:
    """One answer in flight: `made` of `tokens` have been sent, the first was due at `first_s`."""

    listener: Listener | None
    first_s: float
    tokens: int
    reason: EndReason
    made: int = 0


@dataclass(slots=True)
class NullService:
    """Answers with words of syllables; without `tokens` an answer is as long as it may be."""

    null: Null
    model: str = "null"
    max_model_len: int = MAX_MODEL_LEN
    tokenizer: Tokenizer = field(default_factory=lambda: Builtin(VOCAB_SIZE), repr=False)
    _alarm: Alarm | None = field(default=None, init=False, repr=False)
    _due: list[tuple[float, int, _NullAnswer]] = field(default_factory=list, init=False, repr=False)
    _order: itertools.count[int] = field(default_factory=itertools.count, init=False, repr=False)
    _running: int = field(default=0, init=False)

    async def start(self) -> None:
        """Set the alarm up in the running loop."""
        self._alarm = Alarm(self._ring)

    def submit(
        self,
        token_ids: Sequence[int],  # noqa: ARG002
        sampling: Sampling,
        listener: Listener,
        received_s: float | None = None,
    ) -> Ticket:
        """The first token is due `ttft_s` after the request was received, however long its prompt took to read."""
        now_s = time.monotonic()
        first_s = (now_s if received_s is None else received_s) + self.null.ttft_s
        tokens = sampling.max_tokens
        if self.null.tokens is not None and not sampling.ignore_eos:
            tokens = min(max(self.null.tokens, sampling.min_tokens), tokens)
        reason: EndReason = "length" if tokens == sampling.max_tokens else "stop"
        answer = _NullAnswer(listener, first_s, tokens, reason)
        self._running += 1
        heapq.heappush(self._due, (answer.first_s, next(self._order), answer))
        if self._due[0][2] is answer:
            self._set_alarm()
        return Ticket(lambda: self._abort(answer), scheduled_s=now_s)

    def stats(self) -> Stats:
        """Everything runs, nothing waits."""
        return Stats(running=self._running)

    def steps(self) -> Sequence[Step]:
        """None: nothing is batched."""
        return ()

    def clear_cache(self) -> None:
        """There is none."""

    def describe(self) -> Mapping[str, object]:
        return self.null.describe()

    async def close(self) -> None:
        if self._alarm is not None:
            self._alarm.close()
            self._alarm = None
        self._due.clear()

    def _abort(self, answer: _NullAnswer) -> None:
        if answer.listener is not None:
            answer.listener = None
            self._running -= 1

    def _ring(self) -> None:
        """Send the tokens that are due now; what becomes due meanwhile waits until the loop has read its sockets."""
        now_s = time.monotonic()
        due = self._due
        for _ in range(BURST):
            if not due or due[0][0] > now_s:
                break
            due_s, order, answer = due[0]
            if self._tell(answer, due_s):
                heapq.heapreplace(due, (answer.first_s + answer.made * self.null.gap_s, order, answer))
            else:
                heapq.heappop(due)
        self._set_alarm()

    def _tell(self, answer: _NullAnswer, due_s: float) -> bool:
        """One token; whether there are more to come."""
        listener = answer.listener
        if listener is None:
            return False
        answer.made += 1
        ended = answer.made == answer.tokens
        if ended:
            self._abort(answer)
        token = BYTES + answer.made % (VOCAB_SIZE - BYTES)
        listener.step((token,), time.monotonic(), due_s, answer.reason if ended else None)
        return not ended

    def _set_alarm(self) -> None:
        if self._due and self._alarm is not None:
            self._alarm.set(self._due[0][0])

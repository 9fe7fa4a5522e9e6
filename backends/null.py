"""Answers at once, or at stated times, and computes nothing: what is left is the cost of the harness itself.

`null:ttft=50ms,tpot=10ms` sends the first token 50 ms after the request and one more every 10 ms;
`fail_share=0.1` lets every tenth request fail; `crash_after=100` stops the whole backend at request 100.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field

from harness.api import Content, Ended, Request, Step, TokenEvent
from harness.bounds import AtLeastOne, NotNegative, Share, check
from harness.errors import BackendError


@dataclass(slots=True)
class Null:
    """A backend without a model: first token after `ttft_s`, then one token each `tpot_s` (seconds).

    `itl_s` is another word for `tpot_s`, since its gaps are all equal. `tokens` is where its answers end by themselves.
    """

    ttft_s: NotNegative = 0.0
    tpot_s: NotNegative = 0.0
    fail_share: Share = 0.0
    crash_after: int | None = None
    itl_s: NotNegative | None = None
    tokens: AtLeastOne | None = None
    _epoch_s: float = field(default=0.0, init=False, repr=False)
    _submitted: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        check(self)
        if self.itl_s is not None and self.tpot_s:
            raise ValueError("itl_s is the same as tpot_s: give one of them.")

    @property
    def gap_s(self) -> float:
        """Seconds from one token to the next."""
        return self.tpot_s if self.itl_s is None else self.itl_s

    async def open(self, content: Content) -> None:
        """Nothing to get ready."""

    def start_clock(self, epoch_s: float) -> None:
        """Stamps count from `epoch_s` of the monotonic clock."""
        self._epoch_s = epoch_s

    async def submit(self, request: Request) -> AsyncIterator[TokenEvent | Ended]:
        """The requested number of tokens, none before its due time, each stamped when sent."""
        sent_s = self._now_s()
        self._submitted += 1
        if self.crash_after is not None and self._submitted >= self.crash_after:
            raise BackendError(f"The null backend stopped at request {request.id}, because of 'crash_after'.")
        # failures are spread evenly over the ids, without random numbers: every tenth for a share of 0.1
        if math.floor((request.id + 1) * self.fail_share) > math.floor(request.id * self.fail_share):
            yield Ended(request.id, sent_s, "error", error="failed on purpose (fail_share)")
            return
        for i in range(min(request.output_tokens, self.tokens or request.output_tokens)):
            left_s = sent_s + self.ttft_s + i * self.gap_s - self._now_s()
            if left_s > 0:
                await asyncio.sleep(left_s)
            yield TokenEvent(request.id, self._now_s())
        yield Ended(request.id, self._now_s(), "ok", prompt_tokens_server=request.prompt_tokens)

    def steps(self) -> Sequence[Step]:
        """None: nothing is batched."""
        return ()

    def describe(self) -> Mapping[str, object]:
        return {
            "backend": "null",
            "model": None,
            "gpus": 0,
            "ttft_s": self.ttft_s,
            "tpot_s": self.gap_s,
            "tokens": self.tokens,
            "fail_share": self.fail_share,
        }

    async def close(self) -> None:
        """Nothing to let go of."""

    def _now_s(self) -> float:
        return time.monotonic() - self._epoch_s

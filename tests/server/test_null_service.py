"""The null service: what is due at once does not stop everything else."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from backends.null import Null
from backends.server.null_service import BURST, NullService
from backends.server.service import EndReason, Sampling, Ticket


@dataclass(slots=True)
class Received:
    """Counts its tokens, and hangs up in the turn of the loop after the first one, if it has a ticket to do so."""

    ticket: Ticket | None = None
    tokens: int = 0
    due_s: list[float] = field(default_factory=list)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def step(
        self,
        token_ids: Sequence[int],
        at_s: float,  # noqa: ARG002  # times are the business of other tests
        due_s: float,
        end: EndReason | None,
        error: str = "",  # noqa: ARG002
    ) -> None:
        self.tokens += len(token_ids)
        self.due_s.append(due_s)
        if self.ticket is not None and self.tokens == 1:
            asyncio.get_running_loop().call_soon(self.ticket.abort)
        if end is not None:
            self.ended.set()


def test_a_long_answer_without_gaps_leaves_turns_to_others() -> None:
    """One client that asks for 100,000 tokens would stop all others, and could not even hang up."""

    async def run() -> tuple[int, int]:
        service = NullService(Null())
        await service.start()
        gone, whole = Received(), Received()
        gone.ticket = service.submit((1,), Sampling(10 * BURST), gone)
        service.submit((1,), Sampling(2 * BURST + 5), whole)
        await asyncio.wait_for(whole.ended.wait(), 120)
        await service.close()
        return gone.tokens, whole.tokens

    assert (BURST, 2 * BURST + 5) == asyncio.run(run())


def test_tokens_are_due_after_the_request_was_received_and_not_after_it_was_understood() -> None:
    """A prompt of 20,000 tokens takes 40 ms to tokenise: a client's TTFT would be wrong, and the server not late."""

    async def run() -> tuple[float, list[float]]:
        service = NullService(Null(ttft_s=0.05, itl_s=0.01))
        await service.start()
        received, received_s = Received(), time.monotonic() - 0.04
        service.submit((1,), Sampling(3), received, received_s)
        await asyncio.wait_for(received.ended.wait(), 120)
        await service.close()
        return received_s, received.due_s

    received_s, due_s = asyncio.run(run())

    assert [received_s + 0.05 + i * 0.01 for i in range(3)] == due_s

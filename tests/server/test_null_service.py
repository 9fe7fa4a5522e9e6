"""The null service: what is due at once does not stop everything else."""

import asyncio
import time

from backends.null import Null
from backends.server.null_service import BURST, NullService
from backends.server.service import Sampling, Ticket
from server._received import Received, running


class Gone(Received):
    """Hangs up in the turn of the loop after the first token."""

    ticket: Ticket

    def step(self, *reported: object) -> None:
        super().step(*reported)
        if len(self.tokens) == 1:
            asyncio.get_running_loop().call_soon(self.ticket.abort)


async def test_a_long_answer_without_gaps_leaves_turns_to_others() -> None:
    """One client that asks for 100,000 tokens would stop all others, and could not even hang up."""
    async with running(NullService(Null())) as service:
        gone, whole = Gone(), Received()
        gone.ticket = service.submit((1,), Sampling(10 * BURST), gone)
        service.submit((1,), Sampling(2 * BURST + 5), whole)
        await whole.ended.wait()

        assert (BURST, 2 * BURST + 5) == (len(gone.tokens), len(whole.tokens))


async def test_tokens_are_due_after_the_request_was_received_and_not_after_it_was_understood() -> None:
    """A prompt of 20,000 tokens takes 40 ms to tokenise: a client's TTFT would be wrong, and the server not late."""
    async with running(NullService(Null(ttft_s=0.05, itl_s=0.01))) as service:
        received, received_s = Received(), time.monotonic() - 0.04
        service.submit((1,), Sampling(3), received, received_s)
        await received.ended.wait()
        due_s = received.due_s

    assert [received_s + 0.05 + i * 0.01 for i in range(3)] == due_s

"""Messages between processes leave as the other side takes them, however many wait."""

import asyncio
import socket

import pytest

from harness.ipc import Outbox

COUNT, SIZE = 30, 200_000


async def _flushed(take_bytes: int, patience_s: float) -> int:
    """Bytes that come of `COUNT` messages while they are flushed, if the other side takes so many at a time."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        outbox = Outbox(ours.fileno(), asyncio.get_running_loop())
        for _ in range(COUNT):
            outbox.send(bytes(SIZE))
        flushing = asyncio.ensure_future(outbox.flush(patience_s))
        taken = 0
        while not flushing.done():
            await asyncio.sleep(0.05)
            if take_bytes:
                taken += len(theirs.recv(take_bytes))
        try:
            while data := theirs.recv(1 << 20):
                taken += len(data)
        except BlockingIOError:
            pass
        asyncio.get_running_loop().remove_writer(ours.fileno())
    return taken


def test_a_backlog_leaves_as_long_as_the_other_side_takes_of_it() -> None:
    """The last answers of a run that was faster than its reader would be thrown away."""
    assert COUNT * SIZE < asyncio.run(_flushed(200_000, 120.0))


@pytest.mark.parametrize("patience_s", [0.05])
def test_flush_does_not_wait_for_ever_for_a_reader_that_takes_nothing(patience_s: float) -> None:
    """A sender would stay when the process that reads is stuck."""
    assert COUNT * SIZE > asyncio.run(_flushed(0, patience_s))

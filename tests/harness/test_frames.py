"""Messages between processes leave as the other side takes them, however many wait."""

import asyncio
import errno
import os
import socket

import pytest

from harness import ipc
from harness.ipc import Outbox, receive

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


@pytest.mark.parametrize("room_in_file", [0, 1, COUNT // 2, COUNT])
async def test_what_has_no_room_in_memory_leaves_in_order(room_in_file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers would come twice, in pieces of one another, or not at all once a reader is behind or a disk is full."""
    write, written = os.pwrite, 0

    def limited(fd: int, message: bytes, at: int) -> int:
        nonlocal written
        written += 1
        if written > room_in_file:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, message, at)

    monkeypatch.setattr(os, "pwrite", limited)
    monkeypatch.setattr(ipc, "MEMORY_BYTES", 3 * SIZE)
    monkeypatch.setattr(ipc, "REFILL_BYTES", SIZE // 3)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        outbox = Outbox(ours.fileno(), asyncio.get_running_loop())
        for number in range(COUNT):
            outbox.send((number, bytes(SIZE)))
            in_memory_bytes = sum(map(len, outbox._waiting))
            assert in_memory_bytes == outbox._memory_bytes
            assert in_memory_bytes <= 3 * SIZE or written > room_in_file
        flushing = asyncio.ensure_future(outbox.flush(120.0))
        reader, writer = await asyncio.open_connection(sock=theirs)
        arrived = [await receive(reader) for _ in range(COUNT)]
        await flushing
        writer.close()

    assert [(number, bytes(SIZE)) for number in range(COUNT)] == arrived
    assert outbox._file is None


@pytest.mark.parametrize("patience_s", [0.05])
def test_flush_does_not_wait_for_ever_for_a_reader_that_takes_nothing(patience_s: float) -> None:
    """A sender would stay when the process that reads is stuck."""
    assert COUNT * SIZE > asyncio.run(_flushed(0, patience_s))

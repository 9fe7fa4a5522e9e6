"""The reads of answers under way, each with the time of its arrival: what is done for every token, and little else.

In Python here, and in C (`_reads.c`), which takes its place where it was built (`hatch_build.py`). The same tests hold
for both.
"""

from __future__ import annotations

import errno
import math
import struct
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

KEPT, LOOK, ENDED, EMPTY = range(4)
"""What came: a read that may wait, or that must be looked at; the end of the stream; nothing. An error is -errno."""
READ, WRITE = 1, 4
"""EPOLLIN and EPOLLOUT; errors and hang-ups (8, 16) are seen by reading."""
READ_BYTES = 65536
STAMP = struct.Struct("=qq")
"""The control message: seconds and nanoseconds of the real-time clock."""
CONTROL_BYTES = 64
"""Room for one control message of 16 bytes."""
MAX_AGE_S = 1.0
"""A stamp older than this when it is read is replaced by the time of the read."""
LATER = 64
"""So many reads of a chunked body may wait to be looked at: it bounds the work when the last chunk comes."""
Ready = tuple[int, int, "Reads | None", int]
"""A socket that needs more than its read: file, events, its reads and what came; where it has none, it was not read."""


class Reads:
    """The reads of one answer so far, from the socket `fd`. Times are in seconds of the run.

    Most reads of a chunked body are one chunk that ends nothing. While the answer is `quiet`, a read must be looked at
    only where it may hold the last chunk, where too many are `unlooked`, or beyond `room_bytes`. While it is `between`
    two chunks, a read that is a `whole` one needs no look at all.
    """

    __slots__ = ("_data", "_recvmsg", "_times", "between", "last_read_s", "last_stamp_s", "process_stamps", "quiet",
                 "room_bytes", "size_bytes", "unlooked", "whole")  # fmt: skip

    def __init__(
        self, recvmsg: Callable[..., tuple[bytes, Sequence[tuple[int, int, bytes]], int, object]], fd: int,  # noqa: ARG002
        data: list[bytes], last_s: float, room_bytes: int,
    ) -> None:  # fmt: skip
        """Reads are appended to `data`; no stamp of them is before `last_s`."""
        self._recvmsg = recvmsg
        self._data = data
        self._times = array("d")
        self.last_stamp_s = self.last_read_s = last_s
        self.process_stamps = self.size_bytes = self.whole = self.unlooked = 0
        self.room_bytes = room_bytes
        self.quiet = self.between = False

    def receive(self, base_s: int, shift_s: float, epoch_s: float) -> int:
        """One read. Level-triggered, so what is left is announced again. The clock is that of `stamps.Clock`."""
        try:
            data, control, _, _ = self._recvmsg(READ_BYTES, CONTROL_BYTES)
        except (BlockingIOError, InterruptedError):
            return EMPTY
        except OSError as error:
            return -(error.errno or errno.EIO)
        read_s = time.monotonic() - epoch_s
        if not data:
            return ENDED
        return self.keep(data, stamped_s(control, base_s, shift_s), read_s)

    def keep(self, data: bytes, stamp_s: float, read_s: float) -> int:
        """Keep what was read, KEPT or LOOK.

        The kernel's stamp is not used when it is missing (NaN), taken around a step of the clock, earlier than the one
        before it on this connection, later than the reading, or more than a second older: the clock was set. The time
        of the read is late, but never wrong by more than the read lag.
        """
        if not self.last_stamp_s <= stamp_s <= read_s <= stamp_s + MAX_AGE_S:
            stamp_s = read_s
            self.process_stamps += 1
        self.last_stamp_s, self.last_read_s = stamp_s, read_s
        self._data.append(data)
        self._times.extend((stamp_s, read_s))
        self.size_bytes += len(data)
        if self.between and not self.unlooked and self.size_bytes <= self.room_bytes and is_chunk(data):
            self.whole += 1
            return KEPT
        self.unlooked += 1
        ends = len(data) < 4 or data.endswith(b"\r\n\r\n")
        return LOOK if not self.quiet or ends or self.unlooked >= LATER or self.size_bytes > self.room_bytes else KEPT

    def times(self) -> bytes:
        """(reads, 2) doubles: stamp and time of reading of each."""
        return self._times.tobytes()


def is_chunk(data: bytes) -> bool:
    """Whether a read is one whole chunk that is not the last, with a size of up to four digits and nothing else."""
    end = data.find(b"\r\n", 1, 6)
    if end < 0 or not data[:end].isalnum():
        return False
    try:
        size = int(data[:end], 16)
    except ValueError:
        return False
    return size > 0 and end + size + 4 == len(data)


def stamped_s(control: Sequence[tuple[int, int, bytes]], base_s: int, shift_s: float) -> float:
    """When bytes came that were read with these control messages, by the kernel; NaN without a stamp."""
    if not control:
        return math.nan
    seconds, nanoseconds = STAMP.unpack(control[0][2])
    return float(seconds - base_s + nanoseconds * 1e-9 - shift_s)


Wait = Callable[[int, int, Mapping[int, Reads], int, float, float, float, int, float], tuple[list[Ready] | None, bool]]
wait: Wait | None = None
"""Wait for an epoll object, which also watches the selector of an event loop, and take what comes meanwhile.

Until a socket needs more than that, the loop has something to do, or so many seconds have passed (negative: for ever).
The arguments are the two files, what is under way by file, the clock as for `Reads.receive` and its error, and how many
sockets are read at once. None: the clocks have parted, and nothing was read; True: the loop may have something to do.
Only in C: there a token costs no turn of the loop."""

if not TYPE_CHECKING:
    with suppress(ImportError):  # not built
        from backends.client import _reads

        Reads, wait = _reads.Reads, _reads.wait

"""Processes of bench: the command that starts one, and messages between two: a length of 4 bytes, then a pickle.

Unpickling is safe here: the two processes are connected by a socket pair that no other process can reach. What comes
back from senders, which may run on other machines, is plain data instead (`DataReader`).
"""

import asyncio
import contextlib
import os
import pickle
import select
import socket
import struct
import sys
import tempfile
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from traceback import extract_tb
from typing import IO, Any, TypeVar

import msgspec

from harness import errors
from harness.errors import BenchError

T = TypeVar("T")

_LENGTH = struct.Struct("<I")
CHUNK = 1 << 16
MOST_BYTES = 64 << 20
"""Of a message from another machine."""
MEMORY_BYTES, REFILL_BYTES = 8 << 20, 1 << 20
"""What waits in memory for a reader that is behind, and what is taken at once from the file that holds the rest."""
TOGETHER = 64
"""Messages that leave in one write."""
_ROOT = Path(__file__).resolve().parents[1]


def python(module: str, *arguments: str) -> list[str]:
    """The command that runs `main` of a module of bench, and nothing that lies in the current folder.

    `python -m` and `-c` alone would import its files first: a `numpy.py`, or one with the name of a standard module.
    """
    start = f"import sys; sys.path.append({str(_ROOT)!r}); from {module} import main; sys.exit(main())"
    return [sys.executable, "-P", "-c", start, *arguments]


def where(error: Exception) -> str:
    """What broke, and on which line, for the process at the other end."""
    *_, last = extract_tb(error.__traceback__)
    return f"{type(error).__name__} in {Path(last.filename).name}, line {last.lineno}: {error}"


def frame(message: object) -> bytes:
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(body)) + body


async def receive(
    reader: asyncio.StreamReader, loads: Callable[[bytes], object] = pickle.loads, most_bytes: int | None = None
) -> object:
    """The next message. Raises asyncio.IncompleteReadError when the other side is gone, Malformed for one of more than
    `most_bytes`, and what `loads` raises."""
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if most_bytes is not None and length > most_bytes:
        raise Malformed(f"a message of {length:,} bytes")
    return loads(await reader.readexactly(length))


class Malformed(ConnectionError):
    """Bytes that are no message of this version."""


def data_frame(message: object) -> bytes:
    """A message of plain data: its kind, and its fields as MessagePack. Raises TypeError for any other."""
    body = msgspec.msgpack.encode((type(message).__name__, message), enc_hook=_plain)
    return _LENGTH.pack(len(body)) + body


class DataReader:
    """Reads messages of these kinds, whatever another machine sends: nothing of it is run.

    Raises Malformed for bytes that are none of them.
    """

    def __init__(self, *kinds: type) -> None:
        self._frame = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw])
        self._kinds: dict[str, msgspec.msgpack.Decoder[Any]] = {
            kind.__name__: msgspec.msgpack.Decoder(kind, dec_hook=_made) for kind in kinds
        }

    def __call__(self, body: bytes) -> object:
        try:
            name, fields = self._frame.decode(body)
            return self._kinds[name].decode(fields)
        except (KeyError, RecursionError, ValueError) as error:  # msgspec's errors are ValueErrors
            raise Malformed(f"{type(error).__name__}: {error}"[:200]) from None


def of_data(value: object, kind: type[T]) -> T:
    """What a field of any kind held, as this kind. Raises Malformed."""
    try:
        return msgspec.convert(value, kind, dec_hook=_made)
    except ValueError as error:
        raise Malformed(str(error)[:200]) from None


def _plain(value: Any) -> object:
    if isinstance(value, array):
        return value.tobytes()  # of all machines that this runs on, the lowest byte first
    if isinstance(value, BenchError):
        return (type(value).__name__, str(value), getattr(value, "__notes__", []))
    raise TypeError(type(value).__name__)


def _made(kind: Any, value: Any) -> object:
    if kind is array:
        return array("d", msgspec.convert(value, bytes))
    if kind is BenchError:
        name, message, notes = msgspec.convert(value, tuple[str, str, list[str]])
        cls = vars(errors).get(name)
        error = (cls if isinstance(cls, type) and issubclass(cls, BenchError) else BenchError)(message)
        for note in notes:
            error.add_note(note)
        return error
    raise TypeError(kind)


class Inbox:
    """Messages from a blocking socket: all that have arrived, or with `wait` at least one."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._bytes = bytearray()
        self.closed = False

    def take(self, *, wait: bool) -> Iterator[object]:
        """Messages that have arrived; with `wait` blocks until there is one or the other side is gone."""
        got = False
        while not self.closed:
            for message in self._whole():
                got = True
                yield message
            if not select.select([self._sock], [], [], None if wait and not got else 0)[0]:
                return
            data = self._sock.recv(CHUNK)
            self.closed = not data
            self._bytes += data

    def _whole(self) -> Iterator[object]:
        while len(self._bytes) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._bytes)
            end = _LENGTH.size + length
            if len(self._bytes) < end:
                return
            body = bytes(self._bytes[_LENGTH.size : end])
            del self._bytes[:end]
            yield pickle.loads(body)  # noqa: S301  our own process wrote it


class Outbox:
    """Messages that leave over a socket or pipe, which becomes non-blocking, as it takes them; `send` never waits.

    What has no room in memory waits in a file: a reader that is behind costs its writer none.

    Note: asyncio's own write buffer moves all its bytes whenever some of them leave, which a backlog makes slow.
    """

    def __init__(self, fd: int, loop: asyncio.AbstractEventLoop, encode: Callable[[object], bytes] = frame) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._encode = encode
        self._loop = loop
        self._waiting: deque[memoryview] = deque()
        self._memory_bytes = 0  # of those that wait
        self._file: IO[bytes] | None = None  # of what comes behind them
        self._read_bytes = self._stored_bytes = 0  # of the file, which is empty where both are 0
        self._left_bytes = 0  # that have left so far
        self._empty = asyncio.Event()
        self._empty.set()
        self.broken = False

    def send(self, message: object, most_bytes: int | None = None, *, wait_s: float = 0.0) -> bool:
        """Take a message; it leaves now, or with others in `wait_s`, or as soon as the other side has room.

        False where it has more bytes.
        """
        if self.broken:
            return True
        data = self._encode(message)
        if most_bytes is not None and len(data) > most_bytes:
            return False
        idle = not self._waiting
        if not self._store(data):
            self._waiting.append(memoryview(data))
            self._memory_bytes += len(data)
        if not wait_s:
            self._leave()
        elif idle:
            self._loop.call_later(wait_s, self._leave)
        return True

    def _leave(self) -> None:
        self._write()
        if self._waiting:
            self._empty.clear()
            self._loop.add_writer(self._fd, self._write_rest)

    def _store(self, data: bytes) -> bool:
        """Put a message into the file where others wait there or memory has no room; False where it is not there."""
        if not self._stored_bytes and (not self._waiting or self._memory_bytes + len(data) <= MEMORY_BYTES):
            return False
        try:
            self._file = self._file or tempfile.TemporaryFile(prefix="bench-")  # noqa: SIM115  # as long as this
            whole = os.pwrite(self._file.fileno(), data, self._stored_bytes) == len(data)
        except OSError:
            whole = False
        if whole:
            self._stored_bytes += len(data)
        elif self._file is not None:  # the disk is full: memory holds all of it from now on
            self._refill(self._stored_bytes)
        return whole

    def _refill(self, most_bytes: int) -> None:
        """Take the next bytes of the file, which is empty when all of it is taken."""
        assert self._file is not None
        size_bytes = min(most_bytes, self._stored_bytes - self._read_bytes)
        if size_bytes:
            self._waiting.append(memoryview(os.pread(self._file.fileno(), size_bytes, self._read_bytes)))
        self._memory_bytes += size_bytes
        self._read_bytes += size_bytes
        if self._read_bytes == self._stored_bytes:
            self._read_bytes = self._stored_bytes = 0
            self._file.close()
            self._file = None

    async def flush(self, patience_s: float) -> None:
        """Until everything has left, or the other side is gone, or has taken nothing for `patience_s`."""
        self._leave()
        while self._waiting:
            before = self._left_bytes
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._empty.wait(), patience_s)
            if self._left_bytes == before:
                return

    def _write_rest(self) -> None:
        self._write()
        if not self._waiting:
            self._loop.remove_writer(self._fd)
            self._empty.set()

    def _write(self) -> None:
        """Hand over as much of the first messages as the other side takes."""
        try:
            sent = os.writev(self._fd, [*islice(self._waiting, TOGETHER)])
        except (BlockingIOError, InterruptedError):
            return
        except OSError:  # the other side is gone
            self.broken = True
            self._waiting.clear()
            return
        self._left_bytes += sent
        self._memory_bytes -= sent
        while sent:
            first = self._waiting.popleft()
            if sent < len(first):
                self._waiting.appendleft(first[sent:])
            sent = max(0, sent - len(first))
        if not self._waiting and self._stored_bytes:
            self._refill(REFILL_BYTES)

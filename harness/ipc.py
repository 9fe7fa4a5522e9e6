"""Processes of bench: the command that starts one, and messages between two: a length of 4 bytes, then a pickle.

Unpickling is safe here: the two processes are connected by a socket pair that no other process can reach. What comes
from another machine is unpickled with `limited`: it may make data of bench and nothing else.
"""

import asyncio
import contextlib
import io
import os
import pickle
import select
import socket
import struct
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

_LENGTH = struct.Struct("<I")
CHUNK = 1 << 16
_ROOT = Path(__file__).resolve().parents[1]


def python(module: str, *arguments: str) -> list[str]:
    """The command that runs `main` of a module of bench, and nothing that lies in the current folder.

    `python -m` and `-c` alone would import its files first: a `numpy.py`, or one with the name of a standard module.
    """
    start = f"import sys; sys.path.append({str(_ROOT)!r}); from {module} import main; sys.exit(main())"
    return [sys.executable, "-P", "-c", start, *arguments]


def frame(message: object) -> bytes:
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(body)) + body


async def receive(reader: asyncio.StreamReader, loads: Callable[[bytes], object] = pickle.loads) -> object:
    """The next message. Raises asyncio.IncompleteReadError when the other side is gone, and what `loads` raises."""
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    return loads(await reader.readexactly(length))


def limited(body: bytes) -> object:
    """The message of another machine. Raises pickle.UnpicklingError where it is made of anything but data of bench."""
    try:
        return _Limited(io.BytesIO(body)).load()
    except (AttributeError, ImportError, TypeError, ValueError) as error:
        raise pickle.UnpicklingError(f"{type(error).__name__}: {error}") from None


class _Limited(pickle.Unpickler):
    """Finds the data classes and errors of bench, and arrays of numbers."""

    def find_class(self, module: str, name: str) -> Any:
        package = module.partition(".")[0]
        if (module, name) in (("array", "array"), ("array", "_array_reconstructor")):
            return super().find_class(module, name)
        if package in ("harness", "backends") and "." not in name:
            found = super().find_class(module, name)
            if isinstance(found, type) and (is_dataclass(found) or module == "harness.errors"):
                return found
        raise pickle.UnpicklingError(f"'{module}.{name}' is no data of bench")


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

    Note: asyncio's own write buffer moves all its bytes whenever some of them leave, which a backlog makes slow.
    """

    def __init__(self, fd: int, loop: asyncio.AbstractEventLoop) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._loop = loop
        self._waiting: deque[memoryview] = deque()
        self._left_bytes = 0  # that have left so far
        self._empty = asyncio.Event()
        self._empty.set()
        self.broken = False

    def send(self, message: object) -> None:
        """Take a message; it leaves now, or as soon as the other side has room."""
        if self.broken:
            return
        self._waiting.append(memoryview(frame(message)))
        if len(self._waiting) == 1:
            self._write()
            if self._waiting:
                self._empty.clear()
                self._loop.add_writer(self._fd, self._write_rest)

    async def flush(self, patience_s: float) -> None:
        """Until everything has left, or the other side is gone, or has taken nothing for `patience_s`."""
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
        """Hand over as much of the first message as the other side takes."""
        try:
            sent = os.write(self._fd, self._waiting[0])
        except (BlockingIOError, InterruptedError):
            return
        except OSError:  # the other side is gone
            self.broken = True
            self._waiting.clear()
            return
        self._left_bytes += sent
        rest = self._waiting.popleft()[sent:]
        if rest:
            self._waiting.appendleft(rest)

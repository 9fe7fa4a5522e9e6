"""Senders on other machines: the command that starts one, its first line, and the offset of its clock."""

import asyncio
import contextlib
import math
import shlex
import signal
import socket
import time
from dataclasses import dataclass
from typing import TypeVar

from harness.errors import BackendError, UsageError
from harness.ipc import MOST_BYTES, Malformed, frame, python, receive
from harness.runner.remote.sender import HELLO, REPORTS, Ping, Pong, from_sender
from harness.version import __version__

Message = TypeVar("Message")
SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=2",
       "-o", "ConnectTimeout=10", "--")  # fmt: skip
"""No question to a user who cannot see it; a network that is gone is noticed within 15 s."""
READY_S = 120.0
"""How long a sender may take to start, to open its connections and to build its first requests."""
LEAVE_S = 2.0
"""How long a sender that is done may take to leave."""
FRAME_BYTES = 1 << 24
BANNER_LINES = 100
"""What a remote shell may print before a sender begins."""
LABEL = 50
PINGS, PINGS_S = 64, 1.0
"""Round trips for one offset, at most, and for how long at most."""


@dataclass(frozen=True, slots=True)
class Offset:
    """What the monotonic clock of a host shows more than that of this machine, and the largest error of that."""

    offset_s: float
    error_s: float


@dataclass(slots=True)
class Line:
    """The process that runs a sender, or leads to one on another machine, and the messages from and to it."""

    process: asyncio.subprocess.Process
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def receive(self, *kinds: type[Message]) -> Message:
        """The next message, which is of one of these kinds. Raises Malformed, and as `harness.ipc.receive`."""
        message = await receive(self.reader, from_sender, MOST_BYTES)
        if not isinstance(message, kinds):
            raise Malformed(f"a message '{type(message).__name__}'")
        return message

    def send(self, message: object) -> None:
        """Send, unless it is being closed."""
        if not self.writer.is_closing():
            self.writer.write(frame(message))

    async def offset(self) -> Offset:
        """The offset of the clock at the other end, by the round trip that took least (Cristian, 1989).

        The other clock was read at some moment of it, so half its duration is the largest possible error.
        """
        best = Offset(0.0, math.inf)
        begun_s = time.monotonic()
        for _ in range(PINGS):
            self.send(Ping(sent_s := time.monotonic()))
            while not isinstance(pong := await self.receive(*REPORTS, Pong), Pong) or pong.sent_s != sent_s:
                pass  # an answer to an earlier one
            took_s = (now_s := time.monotonic()) - sent_s
            if took_s / 2 < best.error_s:
                best = Offset(pong.now_s - sent_s - took_s / 2, took_s / 2)
            if now_s - begun_s > PINGS_S:
                break
        return best

    async def end(self, *, done: bool) -> None:
        """Hang up; what does not leave is killed, at once unless it is done."""
        self.writer.close()
        for patience_s in (LEAVE_S if done else 0.0, LEAVE_S):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.process.wait(), patience_s)
                return
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()  # which takes effect on a frozen process once it is thawed


def label(where: str) -> str:
    """The host as printed; a command by its first words."""
    text = where.removeprefix("ssh:")
    return text if len(text) <= LABEL else f"{text[: LABEL - 3]}..."


def command(where: str | None) -> list[str]:
    """What starts a sender there, or on this machine."""
    if where is None:
        return python("harness.runner.remote.sender")
    host = where.removeprefix("ssh:")
    return shlex.split(where) if host == where else [*SSH, host, "bench", "sender"]


async def start(where: str | None) -> Line:
    """Start a sender there. Raises UsageError where the command is unknown."""
    words = command(where)
    parent_sock, child_sock = socket.socketpair()
    with child_sock:
        try:
            process = await asyncio.create_subprocess_exec(
                *words, stdin=child_sock.fileno(), stdout=child_sock.fileno(),
                process_group=0,  # Ctrl-C is for this process, which tells the senders
            )  # fmt: skip
        except OSError as error:
            parent_sock.close()
            raise UsageError(f"--senders: '{words[0]}' cannot be started: {error.strerror}.") from None
    reader, writer = await asyncio.open_unix_connection(sock=parent_sock, limit=FRAME_BYTES)
    return Line(process, reader, writer)


async def greet(line: Line, name: str) -> None:
    """Wait until a sender is there. Raises BackendError where it does not start, UsageError of another version."""
    printed = ""
    for _ in range(BANNER_LINES):
        try:
            text = (await asyncio.wait_for(line.reader.readline(), READY_S)).decode(errors="replace").strip()
        except (ValueError, TimeoutError, ConnectionError):  # ValueError: no line, but bytes without end
            break
        if text.startswith(HELLO):
            if (version := text.removeprefix(HELLO)) != __version__:
                raise UsageError(
                    f"{name} has bench {version[:40]!r}, and this machine has bench {__version__}; "
                    "install the same version on all hosts."
                )
            return
        printed = text or printed
        if line.reader.at_eof():
            break
    last = f", and printed {printed[:80]!r}" if printed else ""
    raise BackendError(f"{name} did not start: its command {await ending(line)}{last}.")


async def ending(line: Line) -> str:
    """How the process of a sender ended, after its name."""
    try:
        code = await asyncio.wait_for(line.process.wait(), LEAVE_S)
    except TimeoutError:
        return "closed its output"
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

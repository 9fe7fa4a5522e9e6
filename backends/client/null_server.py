"""A server with a fixed timing and no work behind it, which records when it sent each token.

    python -m backends.client.null_server --ttft 0.2 --itl 0.05

It answers OpenAI's streaming routes: the first token `ttft_s` after the request has arrived, each other one `itl_s`
after the one before, at absolute times. The times of a client minus those of this process are the client's error:
requests are stamped by the kernel as they arrive, tokens by `time.monotonic()` just before they are written.
`POST /truth` hands that over. One thread, one core, 40,000 tokens a second.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import re
import resource
import select
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from array import array
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.ipc import python

if TYPE_CHECKING:
    from harness.api import Remote

SO_TIMESTAMPNS = 35
"""Linux on x86-64 and arm64; `socket` has no name for it before Python 3.14."""
MODEL = "null"
TURN_WRITES = 32  # tokens written before arrivals are looked at again
SETTLE_S = 5.0  # to start, or to hand over the truth
READ_BYTES = 1 << 18
FIRST_BYTES = 1 << 12
"""The first read of a request: the kernel stamps its last byte, and the client's time begins with the first one."""
HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
    b"server: bench-null\r\ntransfer-encoding: chunked\r\n\r\n"
)
LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)
REQUEST_ID = re.compile(rb"\r\nx-request-id:[ \t]*([^\r\n]+)", re.IGNORECASE)
STREAM = re.compile(rb'"stream":\s*true')
TOKENS = re.compile(rb'"max_(?:completion_)?tokens":\s*(\d+)')
IDS = re.compile(rb'"prompt":\s*\[([\d\s,]*)\]')


@dataclass(frozen=True, slots=True)
class Timing:
    """When tokens are sent, in seconds from the arrival of the request; `tokens` is the default output length."""

    ttft_s: float = 0.2
    itl_s: float = 0.05
    tokens: int = 16


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """The truth of one request, in seconds of the host's monotonic clock: when its first bytes arrived, and (n,) writes
    of its tokens.
    """

    request_id: str
    arrived_s: float
    written_s: Sequence[float]
    complete: bool


@dataclass(frozen=True, slots=True)
class Measured:
    """A running null server, and the `client` that is measured against it; see `harness.api.NullServer`."""

    client: Remote
    url: str

    def served(self) -> tuple[Mapping[str, ServedRequest], float]:
        """What it did since the last call by request id, and the 99th percentile of its own lateness."""
        truth = take_truth(self.url)
        return truth.requests, truth.late_s[1]


@dataclass(frozen=True, slots=True)
class Truth:
    """What a null server did. `late_s` are p50, p99 and maximum of how late it wrote tokens by its own schedule.

    `cpu_s` is its CPU time, `process_stamps` the requests whose arrival the kernel did not stamp, `blocked_writes`
    those that found the socket full because the client did not read.
    """

    requests: Mapping[str, ServedRequest]
    late_s: tuple[float, float, float]
    cpu_s: float
    process_stamps: int
    blocked_writes: int


class _Stream:
    """One answer under way, or done: `left` tokens are to come, the next at `due_s`, the first one at `begins_s`."""

    __slots__ = ("arrived_s", "begins_s", "connection", "due_s", "end", "fd", "first", "left", "next", "request_id",
                 "written_s")  # fmt: skip

    def __init__(
        self, connection: _Connection, request_id: str, arrived_s: float, begins_s: float, tokens: int
    ) -> None:
        self.connection = connection
        self.fd = connection.fd
        self.request_id = request_id
        self.arrived_s = arrived_s
        self.left = tokens
        self.due_s = self.begins_s = begins_s
        self.written_s = array("d")
        self.first = self.next = self.end = b""


class _Connection:
    """A connection, what has come of its next request and since when, and what could not be written yet."""

    __slots__ = ("backlog", "began_s", "closed", "fd", "inbox", "sock", "stream")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.inbox = b""
        self.began_s = 0.0
        self.backlog = b""
        self.stream: _Stream | None = None
        self.closed = False


class NullServer:
    """The loop: arrivals by epoll, tokens by absolute times from two queues that are in order without sorting."""

    def __init__(self, timing: Timing, port: int = 0, until_eof: bool = False) -> None:
        self._timing = timing
        self._epoll = select.epoll()  # made first, so that its number is small enough for select()
        self._listener = socket.create_server(("127.0.0.1", port), backlog=4096)
        self._listener.setblocking(False)
        if sys.platform == "linux":  # the kernel stamps what arrives; accepted connections inherit it
            self._listener.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self._epoll.register(self._listener.fileno(), select.EPOLLIN)
        self._connections: dict[int, _Connection] = {}
        self._firsts: deque[_Stream] = deque()
        self._nexts: deque[_Stream] = deque()
        self._finished: list[_Stream] = []
        self._offset_s = _offset_s()
        self._process_stamps = 0
        self._blocked: set[_Connection] = set()
        self._blocked_writes = 0
        self._running = True
        self._until_eof = until_eof
        if until_eof:
            self._epoll.register(0, select.EPOLLIN | select.EPOLLHUP)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}/v1"

    def serve(self) -> None:
        """Serve until standard input ends (with `until_eof`), or forever."""
        _quiet_runtime()
        epoll, epoll_fds = self._epoll, [self._epoll.fileno()]
        while self._running:
            now_s = time.monotonic()
            due_s = min(self._write_due(self._firsts, now_s), self._write_due(self._nexts, now_s))
            wait_s = due_s - time.monotonic()
            if self._blocked:
                self._retry()
                wait_s = min(wait_s, 0.001)
            # Note: epoll's own wait is rounded up to milliseconds; select() on it is not.
            if wait_s > 0 and not select.select(epoll_fds, (), (), min(wait_s, 1.0))[0]:
                continue
            for fd, _ in epoll.poll(0):
                self._ready(fd)
        self._listener.close()

    def _write_due(self, queue: deque[_Stream], now_s: float) -> float:
        """Write the tokens of a queue that are due, some at a time; returns when its next one is due."""
        write, clock, itl_s, nexts = os.write, time.monotonic, self._timing.itl_s, self._nexts
        for _ in range(TURN_WRITES):
            if not queue:
                return float("inf")
            stream = queue[0]
            if stream.due_s > now_s:
                return stream.due_s
            queue.popleft()
            connection = stream.connection
            if connection.closed:
                continue
            data = stream.next if stream.left > 1 else stream.end
            if stream.first:
                data, stream.first = stream.first + data, b""
            stream.left -= 1
            written_s = clock()
            try:
                done = 0 if connection.backlog else write(stream.fd, data)
            except BlockingIOError:
                done = 0
            except OSError:
                self._close(connection)
                continue
            stream.written_s.append(written_s)
            if done < len(data):
                self._hold(connection, data[done:])
            if stream.left:
                stream.due_s += itl_s
                nexts.append(stream)
            else:
                self._end(stream)
        return now_s

    def _hold(self, connection: _Connection, data: bytes) -> None:
        connection.backlog += data
        self._blocked.add(connection)
        self._blocked_writes += 1

    def _retry(self) -> None:
        for connection in list(self._blocked):
            with contextlib.suppress(OSError):
                connection.backlog = connection.backlog[os.write(connection.fd, connection.backlog) :]
            if connection.closed or not connection.backlog:
                self._blocked.discard(connection)

    def _end(self, stream: _Stream) -> None:
        """A stream is over: the connection is free for its next request, which may have come already."""
        self._finished.append(stream)
        stream.connection.stream = None
        if stream.connection.inbox:
            self._take(stream.connection, time.monotonic())

    def _ready(self, fd: int) -> None:
        if fd == self._listener.fileno():
            self._accept()
        elif fd in self._connections:
            self._read(self._connections[fd])
        elif self._until_eof and not os.read(0, 4096):
            self._running = False

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._connections[sock.fileno()] = _Connection(sock)
            self._epoll.register(sock.fileno(), select.EPOLLIN)

    def _read(self, connection: _Connection) -> None:
        first = not connection.inbox
        arrived_s = self._receive(connection, FIRST_BYTES if first else READ_BYTES)
        if arrived_s is None:
            return
        if first:
            connection.began_s = arrived_s
            if len(connection.inbox) == FIRST_BYTES and (rest_s := self._receive(connection, READ_BYTES)) is not None:
                arrived_s = rest_s
        if connection.stream is None and not connection.closed:
            self._take(connection, arrived_s)

    def _receive(self, connection: _Connection, most_bytes: int) -> float | None:
        """When the last of what is there arrived; None where nothing is, and where the connection has ended."""
        try:
            data, extras, _, _ = connection.sock.recvmsg(most_bytes, 128)
        except BlockingIOError:
            return None
        except OSError:
            data, extras = b"", []
        if not data:
            self._close(connection)
            return None
        connection.inbox += data
        return self._arrival_s(extras)

    def _arrival_s(self, extras: Sequence[tuple[int, int, bytes]]) -> float:
        """When the last byte read arrived, by the kernel where its stamp is plausible."""
        now_s = time.monotonic()
        for level, kind, raw in extras:
            if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS:
                seconds, nanoseconds = struct.unpack("qq", raw)
                for _ in range(2):
                    wall_ns, monotonic_ns = self._offset_s
                    stamp_s: float = (seconds * 1_000_000_000 + nanoseconds - wall_ns + monotonic_ns) / 1e9
                    if now_s - 1.0 < stamp_s <= now_s:
                        return stamp_s
                    self._offset_s = _offset_s()  # the wall clock was set
        self._process_stamps += 1
        return now_s

    def _take(self, connection: _Connection, arrived_s: float) -> None:
        """Act on the next request of a connection, if all of it has come."""
        head, separator, rest = connection.inbox.partition(b"\r\n\r\n")
        if not separator:
            return
        length = LENGTH.search(head)
        body_bytes = int(length[1]) if length else 0
        if len(rest) < body_bytes:
            return
        body, connection.inbox = rest[:body_bytes], rest[body_bytes:]
        method, path, _ = head.split(b" ", 2)
        if method == b"POST" and path.endswith(b"/completions"):
            self._complete(connection, head, body, arrived_s, chat=path.endswith(b"/chat/completions"))
        elif method == b"POST" and path.endswith(b"/truth"):
            self._answer(connection, 200, self._truth())
        elif path.endswith(b"/models"):
            self._answer(connection, 200, {"object": "list", "data": [{"id": MODEL, "object": "model"}]})
        elif path.endswith(b"/health"):
            self._answer(connection, 200, {})
        else:
            message = f"{path.decode('latin-1')} is not here"
            self._answer(connection, 404, {"error": {"message": message, "type": "not_found", "code": 404}})

    def _complete(self, connection: _Connection, head: bytes, body: bytes, arrived_s: float, *, chat: bool) -> None:
        requested, name = TOKENS.search(body), REQUEST_ID.search(head)
        tokens = max(1, int(requested[1]) if requested else self._timing.tokens)
        ids = IDS.search(body)
        prompt = ids[1].count(b",") + 1 if ids else max(1, len(body) // 4)  # text counts a token for each four bytes
        usage = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}
        if not STREAM.search(body):
            self._answer(connection, 200, _whole(chat, tokens, usage))
            return
        request_id = name[1].decode("latin-1") if name else str(len(self._finished))
        stream = _Stream(connection, request_id, connection.began_s, arrived_s + self._timing.ttft_s, tokens)
        connection.stream = stream
        stream.first = HEAD + (_ROLE if chat else b"")
        stream.next = _CHAT if chat else _TEXT
        # the last token, finish, usage, the end of the events and the end of the body
        stream.end = (
            stream.next + _ENDS[chat] + _event(chat, [], usage=usage) + _framed(b"data: [DONE]\n\n") + b"0\r\n\r\n"
        )
        self._firsts.append(stream)

    def _answer(self, connection: _Connection, status: int, value: object) -> None:
        body = json.dumps(value).encode()
        head = f"HTTP/1.1 {status} -\r\ncontent-type: application/json\r\nserver: bench-null\r\n"
        data = head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body
        try:
            done = os.write(connection.fd, data)
        except BlockingIOError:
            done = 0
        except OSError:
            self._close(connection)
            return
        if done < len(data):
            self._hold(connection, data[done:])

    def _truth(self) -> dict[str, object]:
        """Truth since the last call; requests in flight are part of a later one."""
        finished, self._finished = self._finished, []
        late_s = sorted(
            written_s - stream.begins_s - i * self._timing.itl_s
            for stream in finished
            for i, written_s in enumerate(stream.written_s)
        )
        return {
            "requests": [
                [stream.request_id, stream.arrived_s, stream.written_s.tolist(), not stream.left] for stream in finished
            ],
            "late_s": [late_s[int(p * (len(late_s) - 1))] for p in (0.5, 0.99, 1.0)] if late_s else [0.0, 0.0, 0.0],
            "cpu_s": time.process_time(),
            "process_stamps": self._process_stamps,
            "blocked_writes": self._blocked_writes,
        }

    def _close(self, connection: _Connection) -> None:
        connection.closed = True
        if connection.stream is not None:
            self._finished.append(connection.stream)
        self._blocked.discard(connection)
        del self._connections[connection.fd]
        connection.sock.close()


def _offset_s() -> tuple[int, int]:
    """Nanoseconds of the wall clock at one instant, and those of the monotonic clock, by the narrowest of brackets."""
    best = (1 << 62, 0, 0)
    for _ in range(50):
        before_ns, wall_ns, after_ns = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        best = min(best, (after_ns - before_ns, wall_ns, (before_ns + after_ns) // 2))
    return best[1], best[2]


def _quiet_runtime() -> None:
    """No garbage collection pauses, no coalesced timers."""
    gc.collect()
    gc.freeze()
    gc.disable()
    with contextlib.suppress(OSError):
        Path("/proc/self/timerslack_ns").write_text("1000")


def _framed(event: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(event), event)


def _event(chat: bool, choices: list[dict[str, object]], **more: object) -> bytes:
    """One server-sent event in a chunk of HTTP's, as long as those of common servers."""
    kind = "chat.completion.chunk" if chat else "text_completion"
    body = {"id": "cmpl-0123456789abcdef0123456789abcdef", "object": kind, "created": 1700000000, "model": MODEL}
    return _framed(b"data: " + json.dumps(body | {"choices": choices} | more).encode() + b"\n\n")


def _choice(finish: str | None, **what: object) -> list[dict[str, object]]:
    return [{"index": 0, **what, "logprobs": None, "finish_reason": finish}]


_ROLE = _event(True, _choice(None, delta={"role": "assistant", "content": ""}))
_CHAT = _event(True, _choice(None, delta={"content": " word"}))
_TEXT = _event(False, _choice(None, text=" word"))
_ENDS = (_event(False, _choice("length", text="")), _event(True, _choice("length", delta={})))


def _whole(chat: bool, tokens: int, usage: dict[str, int]) -> dict[str, object]:
    text = " word" * tokens
    what: dict[str, object] = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    kind = "chat.completion" if chat else "text_completion"
    head = {"id": "cmpl-0", "object": kind, "created": 1700000000, "model": MODEL}
    return head | {"choices": _choice("length", **what), "usage": usage}


@contextmanager
def running(timing: Timing, cores: Sequence[int] | None = None) -> Iterator[str]:
    """A null server in a process of its own, on these cores of the machine if any are named; gives its URL.

    It ends with the block, or when this process ends, however that happens. Raises RuntimeError when it does not start.
    """
    command = python("backends.client.null_server", "--until-eof")
    command += [f"--ttft={timing.ttft_s!r}", f"--itl={timing.itl_s!r}", f"--tokens={timing.tokens}"]
    command += [f"--cores={','.join(map(str, cores))}"] if cores else []
    with subprocess.Popen(  # noqa: S603  # our own module
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            url = process.stdout.readline().strip()
            if not url:
                raise RuntimeError("the null server did not start")
            yield url
        finally:
            process.stdin.close()
            try:
                process.wait(SETTLE_S)
            except subprocess.TimeoutExpired:
                process.kill()


def take_truth(url: str) -> Truth:
    """What the null server at this URL has done since the last call."""
    requested = urllib.request.Request(url + "/truth", data=b"", method="POST")  # noqa: S310  # a URL of this module
    with urllib.request.urlopen(requested, timeout=60) as answer:  # noqa: S310
        finished: dict[str, Any] = json.load(answer)
    requests = {
        name: ServedRequest(name, arrived_s, written_s, done)
        for name, arrived_s, written_s, done in finished["requests"]
    }
    p50, p99, most = finished["late_s"]
    return Truth(requests, (p50, p99, most), finished["cpu_s"], finished["process_stamps"], finished["blocked_writes"])


def main() -> None:
    """Serve on a free port of this machine and print its URL."""
    options = argparse.ArgumentParser(description="A server with a fixed timing.")
    options.add_argument("--ttft", type=float, default=0.2, help="seconds from arrival to first token")
    options.add_argument("--itl", type=float, default=0.05, help="seconds from token to token")
    options.add_argument("--tokens", type=int, default=16, help="where a request does not say how many")
    options.add_argument("--port", type=int, default=0)
    options.add_argument("--cores", help="use these only, such as 0,1")
    options.add_argument("--until-eof", action="store_true", help="end with standard input")
    arguments = options.parse_args()
    if arguments.cores:
        os.sched_setaffinity(0, [int(core) for core in arguments.cores.split(",")])
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    server = NullServer(Timing(arguments.ttft, arguments.itl, arguments.tokens), arguments.port, arguments.until_eof)
    print(server.url, flush=True)  # noqa: T201  # read by the parent process
    with contextlib.suppress(KeyboardInterrupt):
        server.serve()


if __name__ == "__main__":
    main()

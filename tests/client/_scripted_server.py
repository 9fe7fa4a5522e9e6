"""A server on 127.0.0.1 that answers as scripts say, in a thread of its own, and keeps the truth of what it did.

One server plays many scripts at once: the first part of the path names the script, as in `http://host:port/calm/v1`.
"""

import asyncio
import contextlib
import json
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

_script = sys.modules["bench_tests_script"]

RESET = struct.pack("ii", 1, 0)


@dataclass(slots=True)
class Seen:
    """One request as the server saw it. Times are of the monotonic clock.

    `written` has, for each event with tokens, the times just before and just after the write that completed it.
    `how` is how the answer ended: "answered", "hung up" (the client went), or the name of the fault.
    """

    name: str
    method: str
    path: str
    headers: dict[str, str]
    raw: bytes
    connection: int
    nth: int
    arrived_s: float
    query: str = ""
    written: list[tuple[float, float]] = field(default_factory=list)
    how: str | None = None
    ended_s: float | None = None

    @property
    def body(self) -> dict:
        return json.loads(self.raw) if self.raw else {}


class ScriptedServer:
    """Plays `scripts` until it is closed; before `arm`, each has a good day, as a probe finds it."""

    def __init__(self, scripts: Mapping[str, object], tls: ssl.SSLContext | None = None, hold: bool = False) -> None:
        self.scripts = dict(scripts)
        self.seen: list[Seen] = []
        self.connections = 0
        self.tls = tls
        self._armed: dict[str, int] = {}
        self._by_id = False
        self._closers: dict[str, int] = {}
        self._slots: dict[str, asyncio.Semaphore] = {}
        self._open: set[_Connection] = set()
        self._loop = asyncio.new_event_loop()
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=0 if hold else 1024)
        self.port: int = self._socket.getsockname()[1]
        self._server: asyncio.Server | None = None
        self._thread = threading.Thread(target=self._run, name="scripted server", daemon=True)
        self._thread.start()
        if not hold:
            self.accept()

    def accept(self) -> None:
        """Begin to accept connections; a server made with `hold` leaves them in its backlog until then."""
        asyncio.run_coroutine_threadsafe(self._serve(), self._loop).result(120)

    def url(self, name: str = "calm") -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}/{name}/v1"

    def arm(self, *names: str) -> None:
        """From now on these scripts (all of them without a name) play their faults."""
        for name in names or tuple(self.scripts):
            self._armed.setdefault(name, 0)

    def arm_measured(self) -> None:
        """From now on every request whose id is a number, as those of a schedule are, is played its faults."""
        self._by_id = True

    def of(self, name: str, measured: bool = True) -> list[Seen]:
        """The requests for an answer that came to this script; `measured` leaves out those before `arm`."""
        return [s for s in self.seen if s.name == name and s.method == "POST" and (s.nth > 0 or not measured)]

    def wait(self, true: object, limit_s: float = 120.0) -> None:
        """Wait until `true(self)`; the server's own thread goes on meanwhile."""
        deadline_s = time.monotonic() + limit_s
        while not true(self):
            assert time.monotonic() < deadline_s, "the scripted server never came to it"
            time.sleep(0.005)

    def close(self) -> None:
        """Close everything; safe to call twice."""
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._shut(), self._loop).result(120)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(120)
        self._loop.close()
        self._socket.close()

    def kill(self) -> None:
        """Die at once: every connection is reset and the port is closed."""
        asyncio.run_coroutine_threadsafe(self._shut(reset=True), self._loop).result(120)

    # --- inside the thread ---

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    async def _serve(self) -> None:
        self._server = await self._loop.create_server(lambda: _Connection(self), sock=self._socket, ssl=self.tls)

    async def _shut(self, reset: bool = False) -> None:
        if self._server is not None:
            self._loop.remove_reader(self._socket)
            for _ in range(2):  # what has been accepted becomes a connection, which is closed as the others are
                await asyncio.sleep(0)
            self._server.close()
            self._server = None
        for connection in list(self._open):
            connection.drop(reset=reset)
        tasks = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)

    def script_of(self, seen: Seen) -> object:
        """The script under this name; of a list of scripts, the one at the number of the request."""
        script = self.scripts[seen.name]
        if isinstance(script, list):
            number = seen.headers.get("x-request-id", "0")
            return script[int(number) % len(script) if number.isdigit() else 0]
        return script

    def next_script(self, seen: Seen) -> tuple[object, int]:
        """What to play now, and the number of this request since the script was armed (0 before)."""
        name, script = seen.name, self.script_of(seen)
        if self._by_id and seen.headers.get("x-request-id", "").isdigit():
            self._armed.setdefault(name, 0)
        elif self._by_id:
            return script.calm(), 0
        if name not in self._armed:
            return script.calm(), 0
        self._armed[name] += 1
        nth = self._armed[name]
        return (script if nth % script.every == 0 else script.calm()), nth

    def slots(self, name: str, n: int) -> asyncio.Semaphore:
        return self._slots.setdefault(name, asyncio.Semaphore(n))

    def closes(self, name: str, most: int) -> bool:
        """Whether a kept connection is closed under this request; `most` times in all."""
        done = self._closers.get(name, 0)
        if name not in self._armed or done >= most:
            return False
        self._closers[name] = done + 1
        return True


class _Connection(asyncio.Protocol):
    """One client: reads requests one after another and plays an answer to each."""

    def __init__(self, server: ScriptedServer) -> None:
        self._server = server
        self._buffer = bytearray()
        self._more = asyncio.Event()
        self._gone = asyncio.Event()
        self._answered = 0
        server.connections += 1
        self._number = server.connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        # asyncio does so itself, but not for sockets of `create_server`, which name no protocol
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._server._open.add(self)
        self._task = asyncio.get_running_loop().create_task(self._live())

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._more.set()

    def eof_received(self) -> bool:
        self._gone.set()
        self._more.set()
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the name is the protocol's
        self._gone.set()
        self._more.set()
        self._server._open.discard(self)

    def drop(self, *, reset: bool) -> None:
        """Close, or close so that the other side sees a reset."""
        sock = self._transport.get_extra_info("socket")
        if reset and sock is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            self._transport.abort()
        elif reset:
            self._transport.abort()
        else:
            self._transport.close()

    async def _live(self) -> None:
        script = None
        while not self._gone.is_set():
            kept_s = script.kept_s if script is not None else None
            if not await self._readable(kept_s):
                self._transport.close()
                return
            if script is not None and self._server.closes(self._name, script.close_next):
                await self._request()
                self._transport.close()
                return
            request = await self._request()
            if request is None:
                return
            script = await self._answer(request)
            self._answered += 1

    async def _readable(self, limit_s: float | None) -> bool:
        """Wait for the next request to begin; False when the client stayed silent or went."""
        if not self._buffer:
            self._more.clear()
            try:
                await asyncio.wait_for(self._more.wait(), limit_s)
            except TimeoutError:
                return False
        return bool(self._buffer)

    async def _until(self, true: object) -> bool:
        while not true():
            if self._gone.is_set():
                return False
            self._more.clear()
            await self._more.wait()
        return True

    async def _request(self) -> Seen | None:
        arrived_s = time.monotonic()
        if not await self._until(lambda: b"\r\n\r\n" in self._buffer):
            return None
        raw, _, rest = bytes(self._buffer).partition(b"\r\n\r\n")
        first, *lines = raw.decode("latin-1").split("\r\n")
        method, path, _ = first.split(" ")
        headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", 0))
        assert "transfer-encoding" not in headers, "the client chunks what it sends"
        self._name, _, rest_path = path.partition("?")[0].lstrip("/").partition("/")
        self._buffer = bytearray(rest)
        if not await self._until(lambda: len(self._buffer) >= length):
            return None
        body = bytes(self._buffer[:length])
        del self._buffer[:length]
        return Seen(
            self._name, method, "/" + rest_path, headers, body, self._number, 0, arrived_s, path.partition("?")[2]
        )

    async def _answer(self, seen: Seen) -> object:
        if seen.name not in self._server.scripts:
            self._server.seen.append(seen)
            self._transport.write(_script.whole(404, _script.error_body(f"no script named {seen.name!r}")))
            return _script.Script()
        script = self._server.script_of(seen)
        api = {"/v1/chat/completions": "chat", "/v1/completions": "completions"}.get(seen.path)
        if seen.method == "POST" and api is not None:
            played, seen.nth = self._server.next_script(seen)
            self._server.seen.append(seen)
            if script.slots:
                async with self._server.slots(seen.name, script.slots):
                    await self._play(seen, played, api)
            else:
                await self._play(seen, played, api)
            return script
        self._server.seen.append(seen)
        self._transport.write(_other(script, seen))
        return script

    async def _play(self, seen: Seen, script: object, api: str) -> None:
        start_s = time.monotonic()
        refused = _refused(script, seen)
        if refused:
            self._transport.write(refused)
            seen.how = "refused"
            return
        try:
            seen.how = await self._stream(seen, script, _script.answer(script, api, seen.body), start_s)
        finally:
            seen.how = seen.how or "hung up"
            seen.ended_s = time.monotonic()

    async def _stream(self, seen: Seen, script: object, plan: object, start_s: float) -> str:
        stop = _script.faulted(script, plan.frames)
        head = plan.head
        if script.fault and script.fault_at is None and not await self._fault(script):
            return script.fault
        if not script.late_head or not plan.frames:
            self._transport.write(head)
            head = b""
        for i, frame in enumerate(plan.frames):
            if not await self._wait(start_s + frame.due_s):
                return "hung up"
            if i == stop and script.fault_at is not None and not await self._fault(script):
                return script.fault
            if i == stop and script.fault == "stall":
                start_s += script.fault_s
            if not await self._write(seen, script, frame, head):
                return "hung up"
            head = b""
        if script.left_open:
            await self._gone.wait()
            return "left open"
        self._transport.write(plan.end)
        if not plan.keeps:
            self._transport.close()
        return "answered"

    async def _wait(self, due_s: float) -> bool:
        """Until this time of the monotonic clock; False when the client has gone."""
        left_s = due_s - time.monotonic()
        if left_s > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._gone.wait(), left_s)
        return not self._gone.is_set()

    async def _fault(self, script: object) -> bool:
        """Do the fault; True when the answer goes on after it."""
        if script.fault == "stall":
            return await self._stall(script)
        if script.fault == "silence":
            await self._gone.wait()
        elif script.fault == "garbage":
            self._transport.write(b"what now?\r\n" * 3)
            await self._gone.wait()
        else:
            # the bytes of before must have left: a reset throws away what the kernel still holds for the reader
            await asyncio.sleep(0.02 if script.fault == "reset" else 0)
            self.drop(reset=script.fault == "reset")
        return False

    async def _stall(self, script: object) -> bool:
        """Say nothing for `fault_s`, or nothing but pings."""
        until_s = time.monotonic() + script.fault_s
        while script.stall_ping_s and time.monotonic() + script.stall_ping_s < until_s:
            if not await self._wait(time.monotonic() + script.stall_ping_s):
                return False
            self._transport.write(b"8\r\n: ping\n\n\r\n")
        return await self._wait(until_s)

    async def _write(self, seen: Seen, script: object, frame: object, head: bytes) -> bool:
        data = head + frame.data
        ends = [m.end + len(head) for m in frame.marks]
        size = script.cut_bytes or len(data)
        for at in range(0, len(data), size):
            if self._gone.is_set():
                return False
            before_s = time.monotonic()
            self._transport.write(data[at : at + size])
            after_s = time.monotonic()
            seen.written += [(before_s, after_s) for end in ends if at < end <= at + size]
            if script.cut_bytes:
                await asyncio.sleep(script.pause_s)
        return True


def _refused(script: object, seen: Seen) -> bytes | None:
    """An answer that refuses the request for what is in it."""
    try:
        body = seen.body
    except ValueError:
        return _script.whole(400, _script.error_body("the body is not JSON"))
    if script.needs_key and seen.headers.get("authorization") != f"Bearer {script.needs_key}":
        return _script.whole(401, _script.error_body(f"Incorrect API key: {seen.headers.get('authorization')}"))
    if script.echo:
        words = [
            seen.headers.get("authorization", "").split(" ")[-1],
            seen.headers.get("x-api-key"),
            body.get("api_key"),
        ]
        details = json.dumps({"headers": seen.headers, "body": body})
        return _script.whole(500, _script.error_body(f"it fell over {words} ({seen.query}) at {details}"))
    for name in script.refuse:
        value = body
        for part in name.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if name == "prompt ids" and isinstance(body.get("prompt"), list):
            return _script.whole(script.refuse_status, _script.error_body("prompt: Input should be a valid string"))
        if value is not None:
            detail = {"detail": [{"loc": ["body", *name.split(".")], "msg": "Extra inputs are not permitted"}]}
            message = _script.error_body(f"Unknown field: {name}", param=name)
            return _script.whole(script.refuse_status, detail if script.refuse_status == 422 else message)
    return None


def _other(script: object, seen: Seen) -> bytes:
    """The routes beside the two that answer."""
    path = seen.path
    if script.location is not None:
        return _script.whole(307, {}, Location=script.location)
    if path == "/v1/models" and script.models is not None:
        names = [script.model, *(f"{script.model}{i}" for i in range(2, script.models + 1))][: script.models]
        return _script.whole(200, {"object": "list", "data": [{"id": n, "object": "model"} for n in names]})
    if path == "/health":
        return _script.whole(200, "")
    if path == "/metrics" and script.metrics is not None:
        return _script.whole(200, script.metrics)
    if path in ("/tokenize", "/v1/tokenize") and script.tokenize and seen.method == "POST":
        count = _script.prompt_tokens(script, seen.body)
        return _script.whole(200, {"tokens": list(range(count)), "count": count, "max_model_len": 8192})
    return _script.whole(404, _script.error_body(f"no such route: {seen.method} {path}"))

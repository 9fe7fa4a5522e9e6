"""The clients that `client_accuracy.py` compares, each a process of its own that sends one schedule.

    python tests/perf/accuracy_clients.py CLIENT URL PLAN.json SENT.json

`aiohttp` and `httpx` are written as benchmark clients mostly are: a task per request, a clock read at each line of the
answer. `bare` is the least that Python can do: one epoll loop, the kernel's stamps, no HTTP. `openai` is ours alone,
without the senders around it.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import resource
import select
import socket
import struct
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

Plan = dict[str, Any]
"""`requests`: [id, seconds after the start, output tokens]; `prompt`: token ids; `epoch_s`, once `ready` has set it."""

Row = list[Any]
"""[id, seconds sent at, [seconds of its tokens], None or what went wrong], in seconds of the monotonic clock."""


def ready(plan: Plan) -> None:
    """Tell the parent that sending may begin; it answers with the start, in seconds of the monotonic clock."""
    gc.collect()
    print("ready", flush=True)
    plan["epoch_s"] = float(sys.stdin.readline())


def payload(plan: Plan, tokens: int) -> dict[str, Any]:
    """What each client asks."""
    return {
        "model": "null",
        "prompt": plan["prompt"],
        "max_tokens": tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def open_loop(
    plan: Plan, send: Callable[[str, int], Awaitable[Row]], start_clock: Callable[[float], None] | None = None
) -> list[Row]:
    """A task per request, started at its time by the loop's own timer."""
    tasks = []
    ready(plan)
    if start_clock is not None:
        start_clock(plan["epoch_s"])
    for name, at_s, tokens in plan["requests"]:
        left_s = plan["epoch_s"] + at_s - time.monotonic()
        if left_s > 0:
            await asyncio.sleep(left_s)
        tasks.append(asyncio.create_task(send(name, tokens)))
    return list(await asyncio.gather(*tasks))


def _is_token(line: bytes | str) -> bool:
    """Whether a line of the answer holds text."""
    text = line.decode() if isinstance(line, bytes) else line
    if not text.startswith("data: {"):
        return False
    choices = json.loads(text[6:])["choices"]
    return bool(choices and choices[0]["text"])


async def with_aiohttp(url: str, plan: Plan) -> list[Row]:
    """One session without a limit of connections; lines as they come."""
    import aiohttp

    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=60)
    ) as session:

        async def send(name: str, tokens: int) -> Row:
            stamps: list[float] = []
            sent_s = time.monotonic()
            try:
                async with session.post(
                    url + "/completions", json=payload(plan, tokens), headers={"x-request-id": name}
                ) as answer:
                    async for line in answer.content:
                        now_s = time.monotonic()
                        if _is_token(line.strip()):
                            stamps.append(now_s)
            except (aiohttp.ClientError, TimeoutError) as error:
                return [name, sent_s, stamps, repr(error)]
            return [name, sent_s, stamps, None]

        return await open_loop(plan, send)


async def with_httpx(url: str, plan: Plan) -> list[Row]:
    """One client without a limit of connections; lines as they come."""
    import httpx

    async with httpx.AsyncClient(limits=httpx.Limits(max_connections=None), timeout=60) as session:

        async def send(name: str, tokens: int) -> Row:
            stamps: list[float] = []
            sent_s = time.monotonic()
            try:
                async with session.stream(
                    "POST", url + "/completions", json=payload(plan, tokens), headers={"x-request-id": name}
                ) as answer:
                    async for line in answer.aiter_lines():
                        now_s = time.monotonic()
                        if _is_token(line):
                            stamps.append(now_s)
            except httpx.HTTPError as error:
                return [name, sent_s, stamps, repr(error)]
            return [name, sent_s, stamps, None]

        return await open_loop(plan, send)


async def with_openai(url: str, plan: Plan) -> list[Row]:
    """`backends.openai` by its `fetch`, read after the run."""
    import numpy as np
    from backends.openai import OpenAI

    from harness.api import Ended, Request

    class Ids:
        def token_ids(self, _request: Request, _vocab_size: int) -> np.ndarray:
            return np.asarray(plan["prompt"])

    backend = OpenAI(url=url, model="null", api="completions", salt="none")
    await backend.open(Ids())
    requests = {name: Request(int(name), at_s, len(plan["prompt"]), tokens) for name, at_s, tokens in plan["requests"]}
    span_s = plan["requests"][-1][1]
    mean = sum(request.output_tokens for request in requests.values()) / len(requests)
    await backend.connect(0, len(requests) / span_s, mean)
    for request in requests.values():
        backend.prepare(request)
    answers: dict[str, object] = {}
    gc.collect()
    gc.freeze()
    gc.disable()

    async def send(name: str, _tokens: int) -> Row:
        answers[name] = await backend.fetch(requests[name])
        return [name]

    await open_loop(plan, send, backend.start_clock)
    rows: list[Row] = []
    for name, answer in answers.items():
        *tokens, ended = backend.read(requests[name], answer)
        assert isinstance(ended, Ended) and ended.sent_s is not None
        stamps = [plan["epoch_s"] + token.at_s for token in tokens]
        rows.append([name, plan["epoch_s"] + ended.sent_s, stamps, None if ended.status == "ok" else ended.error])
    await backend.close()
    return rows


def with_bare(url: str, plan: Plan) -> list[Row]:
    """Blocking connects before the start, one epoll loop, stamps of the kernel, a look at the tail of each read."""
    address = (urlsplit(url).hostname, urlsplit(url).port)
    gc.freeze()
    gc.disable()
    epoll, monotonic = select.epoll(), time.monotonic  # first, so that select() takes its number
    free = [_connected(address) for _ in range(plan["streams"] + 50)]
    offset_s = time.time() - time.monotonic()
    rows: dict[int, tuple[socket.socket, Row]] = {}
    ended: list[Row] = []
    for sock in free:
        epoll.register(sock.fileno(), select.EPOLLIN)
    bodies = {name: _bytes(plan, name, tokens) for name, _, tokens in plan["requests"]}
    at = [epoll.fileno()]
    schedule = iter([*plan["requests"], None])
    following = next(schedule)
    Path("/proc/self/timerslack_ns").write_text("1000")
    ready(plan)
    while following is not None or rows:
        while following is not None and plan["epoch_s"] + following[1] <= monotonic():
            name = following[0]
            sock = free.pop() if free else _connected(address, epoll)
            row: Row = [name, monotonic(), [], None]
            sock.send(bodies[name])
            rows[sock.fileno()] = (sock, row)
            following = next(schedule)
        wait_s = 1.0 if following is None else max(0.0, plan["epoch_s"] + following[1] - monotonic())
        select.select(at, (), (), wait_s)
        for fd, _ in epoll.poll(0):
            sock, row = rows[fd]
            data, extras, _, _ = sock.recvmsg(65536, 64)
            seconds, nanoseconds = struct.unpack("qq", extras[0][2])
            row[2].append((seconds - offset_s + nanoseconds * 1e-9, data))
            if data.endswith(b"0\r\n\r\n"):
                free.append(sock)
                ended.append(rows.pop(fd)[1])
    for row in ended:
        row[2] = [stamp_s for stamp_s, data in row[2] for _ in range(data.count(b'" word"'))]
    return ended


def _connected(address: tuple[str | None, int | None], epoll: select.epoll | None = None) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, 35, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.connect(address)
    sock.setblocking(False)
    if epoll is not None:
        epoll.register(sock.fileno(), select.EPOLLIN)
    return sock


def _bytes(plan: Plan, name: str, tokens: int) -> bytes:
    body = json.dumps(payload(plan, tokens)).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: null\r\nx-request-id: {name}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def main() -> None:
    """Send the plan and write down what was seen."""
    client, url, plan_path, out = sys.argv[1:5]
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    plan: Plan = json.loads(Path(plan_path).read_text())
    if client == "bare":
        rows = with_bare(url, plan)
    else:
        rows = asyncio.run({"aiohttp": with_aiohttp, "httpx": with_httpx, "openai": with_openai}[client](url, plan))
    Path(out).write_text(json.dumps({"rows": rows, "pid": os.getpid()}))


if __name__ == "__main__":
    main()

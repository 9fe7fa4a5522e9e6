"""Limits, hang-ups and the end of the server's life."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from typing import TYPE_CHECKING

import pytest

from backends.server import run
from backends.server.front import Options
from backends.server.run import serving
from harness.errors import BackendError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import ByHand, Play

TEXT = "/v1/completions"
ASK = {"prompt": [1, 2], "max_tokens": 5, "stream": True}


async def test_a_full_queue_refuses_with_429(play: Play, by_hand: Callable[..., ByHand]) -> None:
    """An overloaded server would hide behind an ever longer queue."""
    service = by_hand(waiting=3)

    async with play(service, max_queue=3) as stage:
        status, headers, text = await stage.post(TEXT, ASK)

        assert (429, "1") == (status, headers["Retry-After"])
        assert "queue_full" == json.loads(text)["error"]["code"]
        service.waiting = 2
        asking = asyncio.create_task(stage.post(TEXT, ASK))
        (await service.next()).tell(65, end="stop")
        assert 200 == (await asking)[0]


async def test_a_long_body_is_refused(play: Play) -> None:
    """One client could take all memory."""
    async with play(max_body_bytes=2000) as stage:
        status, _, text = await stage.post(TEXT, {"prompt": "x" * 3000})

        assert 413 == status
        assert "2000 bytes" in json.loads(text)["error"]["message"]
        assert 200 == (await stage.post(TEXT, {"prompt": "x", "max_tokens": 1}))[0]


async def test_a_body_that_does_not_come_is_refused(play: Play) -> None:
    """Half a request would hold its connection for ever."""
    async with play(body_s=0.2) as stage:
        reader, writer = await asyncio.open_connection("127.0.0.1", stage.running.port)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{")

        answer = await asyncio.wait_for(reader.read(), 120)  # up to the end of the connection

        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"within 0.2 s" in answer
        writer.close()


async def test_connections_without_a_request_are_closed(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that sends its head byte by byte would take all connections."""
    monkeypatch.setattr(run, "KEEP_ALIVE_S", 0.2)
    monkeypatch.setattr(run, "_HOUSEKEEPING_S", 0.05)

    async with play(backend="null:ttft=0.5,itl=0.01") as stage:
        reader, writer = await asyncio.open_connection("127.0.0.1", stage.running.port)
        writer.write(b"POST /v1/comp")
        streaming = asyncio.create_task(stage.post(TEXT, {"prompt": "x", "max_tokens": 10, "stream": True}))

        assert b"" == await asyncio.wait_for(reader.read(), 120)
        assert 200 == (await streaming)[0]  # which takes longer
        writer.close()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example:8000"}, 403),
        ({"Host": "localhost:8000"}, 200),
        ({"Host": "[::1]:8000"}, 200),
        ({"Host": "["}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://localhost:3000"}, 200),
    ],
)
async def test_pages_of_other_sites_are_refused(play: Play, headers: dict[str, str], status: int) -> None:
    """A page in the browser of someone who runs a server could use it."""
    async with play() as stage:
        answer = await stage.post(TEXT, {"prompt": "x", "max_tokens": 1}, **headers)

        assert status == answer[0], answer[2]


async def test_a_client_that_resets_leaves_no_traceback(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    """A test of disconnections would bury the terminal."""
    async with play() as stage:
        body = json.dumps({"prompt": "x", "max_tokens": 3, "stream": True}).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", stage.running.port)) as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                client.sendall(head + body)
        await asyncio.sleep(0.2)
        assert 200 == (await stage.post(TEXT, {"prompt": "x", "max_tokens": 1}))[0]
    assert [] == caplog.records


@pytest.mark.parametrize(("error", "status"), [(ValueError("Too large."), 400), (BackendError("It died."), 500)])
async def test_what_the_service_refuses_is_reported(
    play: Play, error: Exception, status: int, by_hand: Callable[..., ByHand]
) -> None:
    """The client would wait for a token that never comes."""
    service = by_hand(refuses=error)

    async with play(service) as stage:
        answer = await stage.post(TEXT, ASK)

        assert status == answer[0]
        assert str(error) == json.loads(answer[2])["error"]["message"]
        assert (503 if status == 500 else 200) == (await stage.get("/health"))[0]


async def test_a_backend_that_fails_in_mid_answer_is_reported(play: Play, by_hand: Callable[..., ByHand]) -> None:
    """A half answer would look like a whole one."""
    service = by_hand()

    async with play(service) as stage:
        asking = asyncio.create_task(stage.post(TEXT, {**ASK, "stream": False}))
        submitted = await service.next()
        submitted.tell(65)
        submitted.tell(end="error", error="It died.")

        assert (500, "It died.") == ((await asking)[0], json.loads((await asking)[2])["error"]["message"])
        assert 1 == stage.running.front.metrics.finished["error"]


async def test_a_key_is_required_where_one_is_configured(play: Play) -> None:
    """A client's handling of keys could not be tried."""
    async with play(api_key="s3cret") as stage:
        assert 401 == (await stage.get("/v1/models"))[0]
        assert 401 == (await stage.get("/v1/models", Authorization="Bearer wrong"))[0]
        assert 401 == (await stage.get("/v1/models", Authorization="Basic s3cret"))[0]
        assert 200 == (await stage.get("/v1/models", Authorization="Bearer s3cret"))[0]
        assert 200 == (await stage.get("/v1/models", Authorization="bearer s3cret"))[0]
        assert 200 == (await stage.get("/health"))[0]


async def test_no_path_that_tells_or_changes_anything_is_without_a_key(play: Play) -> None:
    """Anyone could empty the prefix cache in the middle of a run, count tokens, and read the load."""
    async with play(api_key="s3cret") as stage:
        open_paths = set()
        for route in stage.running.front.application().router.routes():
            path = route.resource.canonical if route.resource is not None else ""
            async with stage.http.request(route.method, stage.root + path) as answer:
                open_paths |= {path} if answer.status != 401 else set()

        assert {"/health"} == open_paths
        assert 401 == (await stage.get("//metrics"))[0]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_hangs_up_aborts_its_sequence(
    play: Play, stream: bool, by_hand: Callable[..., ByHand], wire_request: Callable[..., bytes]
) -> None:
    """The server would compute without a client, and its KV memory would be held."""
    service = by_hand()

    async with play(service) as stage:
        _, writer = await asyncio.open_connection("127.0.0.1", stage.running.port)
        writer.write(wire_request(TEXT, {**ASK, "stream": stream}))
        submitted = await service.next()
        submitted.tell(65)
        writer.transport.abort()
        await service.abort_of(submitted)
        await stage.running.front.idle()

        assert 1 == stage.running.front.metrics.finished["abort"]


@pytest.mark.parametrize("path", ["/reset_prefix_cache", "/flush_cache"])
async def test_the_cache_can_be_cleared(play: Play, path: str, by_hand: Callable[..., ByHand]) -> None:
    """The second of two runs would find the first one's prefixes."""
    service = by_hand()

    async with play(service) as stage:
        assert 200 == (await stage.post(path, {}))[0]
        assert 1 == service.cleared


async def test_running_answers_finish_before_the_server_ends(
    by_hand: Callable[..., ByHand], wire_request: Callable[..., bytes]
) -> None:
    """Ctrl-C would break answers that clients wait for."""
    service = by_hand()

    async with serving(Options(port=0, grace_s=20.0), service) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(wire_request(TEXT, ASK))
        submitted = await service.next()
        asyncio.get_running_loop().call_later(0.05, lambda: submitted.tell(65, end="stop"))
    data = await reader.read()
    writer.close()

    assert b"[DONE]" in data


async def test_a_server_that_is_about_to_end_takes_nothing_new(
    by_hand: Callable[..., ByHand], wire_request: Callable[..., bytes]
) -> None:
    """It would never end under load."""
    service = by_hand()

    async with serving(Options(port=0, grace_s=20.0), service) as running:
        _, first = await asyncio.open_connection("127.0.0.1", running.port)
        first.write(wire_request(TEXT, ASK))
        submitted = await service.next()
        running.front.draining = True
        reader, second = await asyncio.open_connection("127.0.0.1", running.port)
        second.write(wire_request(TEXT, ASK))
        data = await reader.read()
        submitted.tell(65, end="stop")
    first.close()
    second.close()

    assert data.startswith(b"HTTP/1.1 503")


async def test_answers_that_outlast_the_grace_are_cut(
    by_hand: Callable[..., ByHand], wire_request: Callable[..., bytes]
) -> None:
    """A client that never reads would keep the server alive."""
    service = by_hand()

    async with serving(Options(port=0, grace_s=0.01), service) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(wire_request(TEXT, ASK))
        (await service.next()).tell(65)
    data = await reader.read()
    writer.close()
    data = data
    assert b'"text":"A"' in data
    assert b"[DONE]" not in data


def test_a_port_that_is_taken_is_one_sentence() -> None:
    """The user would meet a traceback."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        async def scenario() -> None:
            async with serving(Options(backend="null", port=port)):
                pass

        with pytest.raises(UsageError, match=f"127.0.0.1:{port} cannot be listened on"):
            asyncio.run(scenario())


async def test_the_log_holds_the_truth_of_every_request(play: Play, tmp_path: Path) -> None:
    """What clients report could not be laid beside what happened."""
    log = tmp_path / "truth.jsonl"

    async with play(log=log) as stage:
        await stage.post(TEXT, ASK, **{"X-Request-Id": "r-1"})
        await stage.post(TEXT, {**ASK, "prompt": None})
    head, good, bad, last = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    assert {"server", "clock"} == set(head)
    assert ("r-1", 200, "length", 5) == (good["x_request_id"], good["status"], good["finish_reason"],
                                         good["output_tokens"])  # fmt: skip
    assert [1, 2, 3, 4, 5] == good["tokens"]
    assert all(due <= left for due, left in zip(good["due_s"], good["left_s"], strict=True))
    assert good["received_s"] <= good["read_s"] <= good["submitted_s"] <= good["left_s"][0] <= good["ended_s"]
    assert 400 == bad["status"]
    assert "prompt" in bad["error"]
    assert 5 == last["lateness"]["tokens"]


async def test_a_client_that_disconnects_in_its_request_is_no_error(
    play: Play, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The log would tell of an answer that was not given."""
    log = tmp_path / "truth.jsonl"

    async with play(log=log) as stage:
        _, writer = await asyncio.open_connection("127.0.0.1", stage.running.port)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nabc")
        while not stage.running.front.open:
            await stage.get("/health")
        writer.transport.abort()
        await stage.running.front.idle()
    assert ("", "") == capfd.readouterr()
    assert None is json.loads(log.read_text(encoding="utf-8").splitlines()[1])["status"]


POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
WHOLE = b'Content-Length: 29\r\n\r\n{"prompt":"a","max_tokens":1}'
GOOD, WRONG = b" 200 ", b" 400 "
RAW = {
    "garbage": (b"garbage\r\n\r\n", WRONG),
    "TLS": (b"\x16\x03\x01\x02\x00" + bytes(range(128)), WRONG),
    "a long header": (b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 20_000 + b"\r\n\r\n", WRONG),
    "no chunk": (POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", WRONG),
    "a length below 0": (POST + b"Content-Length: -5\r\n\r\n", WRONG),
    "no gzip": (POST + b"Content-Encoding: gzip\r\nContent-Length: 5\r\n\r\nabcde", WRONG),
    "nested JSON": (POST + b"Content-Length: 100001\r\n\r\n[" + b"[" * 100_000, WRONG),
    "a key that is no text": (POST + b"Authorization: Bearer \xff\xfe\r\n" + WHOLE, b" 401 "),
    "HTTP/1.0 without a host": (b"POST /v1/completions HTTP/1.0\r\n" + WHOLE, GOOD),
    "an id that is no text": (POST + b"X-Request-Id: \xff\xfe\r\n" + WHOLE, GOOD),
    "a long id": (POST + b"X-Request-Id: " + b"a" * 600 + b"\r\n" + WHOLE, GOOD),
    "an empty id": (POST + b"X-Request-Id: \r\n" + WHOLE, GOOD),
    **{
        f"the coding {coding!r}": (POST + b"Transfer-Encoding: %b\r\n\r\n2\r\n{}\r\n0\r\n\r\n" % coding, b" 501 | 400 ")
        for coding in (b"gzip, chunked", b"chunked, chunked", b"chunked\r\nTransfer-Encoding: chunked", b"x", b"")
    },
}  # fmt: skip


@pytest.mark.parametrize("name", RAW)
async def test_bytes_of_an_odd_client_get_one_answer_and_no_traceback(
    play: Play, name: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """One broken client would fill the terminal, end the server, or hide a second request behind a proxy."""
    data, status = RAW[name]

    async with play(api_key="s3cret" if b"Bearer" in data else None) as stage:
        reader, writer = await asyncio.open_connection("127.0.0.1", stage.running.port)
        writer.write(data)
        first = await reader.readline()
        rest = await reader.read() if data.startswith(b"POST") else b""
        writer.close()

        assert any(code in first for code in status.split(b"|")), (first, rest)
        assert b"HTTP/1." not in rest
        assert b"\xff" not in rest and b"aaaa" not in rest
        assert 200 == (await stage.get("/health"))[0]
    assert ("", "") == capfd.readouterr()
    assert [] == caplog.records

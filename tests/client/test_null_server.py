import http.client
import json
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from urllib.parse import urlsplit

import pytest

from backends.client.null_server import FIRST_BYTES, READ_BYTES, Timing, Truth, running, take_truth

TIMING = Timing(ttft_s=0.01, itl_s=0.002, tokens=5)


@pytest.fixture
def url() -> Iterator[str]:
    with running(TIMING) as url:
        yield url


def post(connection: http.client.HTTPConnection, name: str, chat: bool = False, **fields: object) -> str:
    path = "/v1/chat/completions" if chat else "/v1/completions"
    body = json.dumps({"model": "null", "prompt": [1, 2, 3], "stream": True} | fields)
    connection.request("POST", path, body, {"x-request-id": name})
    answer = connection.getresponse()
    assert 200 == answer.status
    return answer.read().decode()


def connect(url: str) -> closing[http.client.HTTPConnection]:
    parts = urlsplit(url)
    return closing(http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=120))


def events(text: str) -> list[dict]:
    lines = [line[6:] for line in text.split("\n\n") if line.startswith("data: ")]
    assert "[DONE]" == lines[-1]
    return [json.loads(line) for line in lines[:-1]]


def wait_for_truth(url: str, name: str) -> Truth:
    while True:  # the server learns of a hang-up in its own time; the test's limit of time stops this
        truth = take_truth(url)
        if name in truth.requests:
            return truth


@pytest.mark.parametrize("chat", [False, True])
def test_an_answer_is_a_stream_of_the_requested_length(url: str, chat: bool) -> None:
    """A client that is calibrated against an unlawful stream would be calibrated for nothing."""
    with connect(url) as connection:
        seen = events(post(connection, "a", chat, max_tokens=7))

    choices = [event["choices"][0] for event in seen if event["choices"]]
    texts = [(c["delta"].get("content") if chat else c["text"]) for c in choices]
    assert 7 == sum(bool(text) for text in texts)
    assert "length" == choices[-1]["finish_reason"]
    assert {"prompt_tokens": 3, "completion_tokens": 7, "total_tokens": 10} == seen[-1]["usage"]


def test_tokens_are_never_early_and_all_are_reported(url: str) -> None:
    """The truth would be wrong: a client's error is measured against these very times."""
    with connect(url) as connection:
        post(connection, "first", max_tokens=20)
        post(connection, "second", max_tokens=1)
    truth = take_truth(url)

    assert {"first", "second"} == set(truth.requests)
    served = truth.requests["first"]
    due_s = [served.arrived_s + TIMING.ttft_s + i * TIMING.itl_s for i in range(20)]
    assert served.complete
    assert 20 == len(served.written_s)
    assert all(written_s >= due - 1e-6 for written_s, due in zip(served.written_s, due_s, strict=True))
    assert 1 == len(truth.requests["second"].written_s)
    assert truth.requests["second"].arrived_s > served.written_s[-1]
    assert 0 <= truth.late_s[0] <= truth.late_s[1] <= truth.late_s[2]
    assert {} == take_truth(url).requests


def test_without_a_number_the_server_says_its_own(url: str) -> None:
    """A probe without max_tokens would hang or get nothing."""
    with connect(url) as connection:
        seen = events(post(connection, "a"))

    assert 5 == seen[-1]["usage"]["completion_tokens"]


def test_an_answer_that_is_not_streamed_comes_whole(url: str) -> None:
    """A client with stream=false could not be tried here."""
    with connect(url) as connection:
        served = json.loads(post(connection, "a", chat=True, stream=False, max_tokens=2))

    assert " word word" == served["choices"][0]["message"]["content"]
    assert 2 == served["usage"]["completion_tokens"]


def test_a_hang_up_is_reported_as_such(url: str) -> None:
    """A stream that a client cut off would count as one that the client failed to see."""
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port or 0), timeout=120) as sock:
        body = json.dumps({"max_tokens": 1_000_000, "stream": True}).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nX-Request-Id: cut\r\nContent-Length: %d\r\n\r\n" % len(body)
        sock.sendall(head)
        sock.sendall(body[:10])
        sock.sendall(body[10:])
        sock.recv(100)
    served = wait_for_truth(url, "cut").requests["cut"]

    assert not served.complete
    assert len(served.written_s) < 1_000_000


@pytest.mark.nightly
def test_nothing_is_lost_when_the_client_does_not_read() -> None:
    """A slow client would get a broken stream and blame itself for it."""
    with running(Timing(ttft_s=0.0, itl_s=0.0)) as url:
        parts = urlsplit(url)
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect((parts.hostname, parts.port))
            sock.settimeout(120)
            body = json.dumps({"max_tokens": 30_000, "stream": True}).encode()
            sock.sendall(b"POST /v1/completions HTTP/1.1\r\nX-Request-Id: a\r\nContent-Length: %d\r\n\r\n" % len(body))
            sock.sendall(body)
            truth = wait_for_truth(url, "a")
            data = bytearray()
            while not data.endswith(b"\r\n0\r\n\r\n"):
                data += sock.recv(1 << 20)

    assert 30_000 == data.count(b'"text": " word"')
    assert 30_000 == len(truth.requests["a"].written_s)
    assert truth.blocked_writes > 0


def test_other_routes_answer_like_a_server(url: str) -> None:
    """The probe of a client would take an odd answer for a broken server."""
    with connect(url) as connection:
        seen = []
        for method, path in [("GET", "/v1/models"), ("GET", "/health"), ("POST", "/tokenize")]:
            connection.request(method, path, b"")
            answer = connection.getresponse()
            seen.append((answer.status, json.loads(answer.read())))

    assert [200, 200, 404] == [status for status, _ in seen]
    assert ["null"] == [model["id"] for model in seen[0][1]["data"]]
    assert "/tokenize is not here" == seen[2][1]["error"]["message"]


@pytest.mark.parametrize("size", [FIRST_BYTES - 1, FIRST_BYTES, FIRST_BYTES + 1, 3 * READ_BYTES])
def test_a_request_of_any_size_is_answered(url: str, size: int) -> None:
    """A request that ends with the first read would wait for more for ever."""
    head = b"POST /v1/completions HTTP/1.1\r\nx-request-id: long\r\ncontent-length: %07d\r\n\r\n"
    body = b'{"stream": true, "prompt": ['
    body += b"1" * (size - len(head % 0) - len(body) - 2) + b"]}"
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=120) as connection:
        connection.sendall(head % len(body) + body)
        got = b""
        while not got.endswith(b"0\r\n\r\n"):
            got += connection.recv(65536)

    assert b"200 OK" in got and 5 == len(take_truth(url).requests["long"].written_s)


def test_a_long_request_arrives_with_its_first_bytes(url: str) -> None:
    """The time that a prompt takes to come would count as an error of the client."""
    parts = urlsplit(url)
    body = b'{"stream": true, "prompt": [' + b"1" * 1_000_000 + b"]}"
    with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=120) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nx-request-id: slow\r\ncontent-length: %d\r\n\r\n" % len(body)
        )
        time.sleep(0.2)
        rest_s = time.monotonic()
        connection.sendall(body)
        while not connection.recv(65536).endswith(b"0\r\n\r\n"):
            pass
    served = take_truth(url).requests["slow"]

    assert served.arrived_s < rest_s < served.written_s[0]

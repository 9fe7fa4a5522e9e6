"""Where a server is, by which of its addresses, and the headers for it and a proxy."""

import asyncio
import errno
import socket

import pytest

from backends.client import connection, target
from backends.client.pool import ConnectionPool, Target
from harness.errors import UsageError


def found(monkeypatch: pytest.MonkeyPatch, url: str, *addresses: tuple) -> target.Place:
    async def resolve(*_: object, **__: object) -> list:
        return [(family, socket.SOCK_STREAM, 6, "", address) for family, address in addresses]

    async def run() -> target.Place:
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
        return await target.find(url)

    return asyncio.run(run())


def test_of_several_addresses_one_that_answers_is_tried_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each connection to 'localhost' would begin with a refusal, and every TTFT contain it."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_server(("127.0.0.1", 0)) as closed:
        good, bad = listener.getsockname(), closed.getsockname()
        closed.close()
        place = found(monkeypatch, "http://localhost:8000/v1", (socket.AF_INET, bad), (socket.AF_INET, good))

    assert [good, bad] == [address for _, address in place.addresses]


def test_addresses_that_are_no_internet_addresses_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection would be tried to a kind of address that this client cannot speak to."""
    place = found(monkeypatch, "http://h/v1", (socket.AF_UNIX, ("x", 1)), (socket.AF_INET, ("127.0.0.1", 80)))

    assert [(int(socket.AF_INET), ("127.0.0.1", 80))] == list(place.addresses)


@pytest.mark.parametrize(
    ("url", "label"),
    [
        ("http://h/v1", "h:80"),
        ("https://h/v1", "h:443"),
        ("http://user:pass@h:8000/v1", "h:8000"),
        ("http://[::1]:8000/v1", "[::1]:8000"),
    ],
)
def test_a_server_is_named_by_host_and_port_alone(url: str, label: str) -> None:
    """A password in a URL would stand in every row of the table."""
    assert label == target.Place(url, ()).label


def test_proxies_of_the_environment_are_named_not_used() -> None:
    """A run would go through a proxy that is not configured, and measure it."""
    assert ["https_proxy", "ALL_PROXY"] == target.proxies_set(
        {"https_proxy": "http://p", "ALL_PROXY": "x", "HOME": "/"}
    )


def test_a_certificate_file_that_holds_none_is_reported(tmp_path) -> None:
    """A wrong file would end in an error of OpenSSL."""
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("nothing")

    with pytest.raises(UsageError, match="it holds none in PEM form"):
        target.Trust(ca=str(wrong)).context()
    with pytest.raises(UsageError, match="it holds none in PEM form"):
        target.Trust(client_cert=str(wrong)).context()


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (errno.EADDRNOTAVAIL, "no local port is left"),
        (errno.EMFILE, "too many open files"),
        (errno.EACCES, "Permission"),
    ],
)
async def test_a_machine_without_room_for_a_connection_says_what_is_missing(
    code: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit of the client's machine would look like a server that is down."""

    def full(family: int) -> None:
        raise OSError(code, "full")

    monkeypatch.setattr(connection, "stamped_socket", full)

    peer = target.Peer([(socket.AF_INET, ("127.0.0.1", 9))] * 2, "server")
    pool = ConnectionPool([Target(b"GET / HTTP/1.1\r\n", peer, "server")])
    try:
        answer = await pool.send(1, b"\r\n")
        pool.check()
        result = f"{answer.how}: {answer.why}"
    finally:
        pool.close()

    assert says in str(result)


def test_connections_leave_from_the_named_addresses_in_turn() -> None:
    """One address has 28,232 ports to a server; the second one would never be used."""

    async def run(listener: socket.socket) -> list[str]:
        own = target.own_addresses("127.0.0.2|127.0.0.4/30")
        place = target.Place("http://h/v1", [(socket.AF_INET, listener.getsockname())])
        pool = ConnectionPool([Target(b"GET / HTTP/1.1\r\n", place.peer(target.Trust(), own), "server")])
        try:
            await pool.warm(4)
            accepted = [listener.accept() for _ in range(4)]
            for sock, _ in accepted:
                sock.close()
            return [address[0] for _, address in accepted]
        finally:
            pool.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        seen = asyncio.run(run(listener))

    assert ["127.0.0.2", "127.0.0.5", "127.0.0.6", "127.0.0.2"] == seen


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("here", "'here' is neither an IP address nor a network"),
        ("203.0.113.0/30", "no address of source=203.0.113.0/30"),
    ],
)
def test_addresses_that_this_machine_does_not_have_are_reported(source: str, says: str) -> None:
    """Every connection would fail with 'Cannot assign requested address'."""
    with pytest.raises(UsageError, match=says):
        target.own_addresses(source)


@pytest.mark.parametrize(
    ("typed", "base"),
    [
        ("http://h:8000", "http://h:8000/v1"),
        ("h:8000", "http://h:8000/v1"),
        (" localhost:11434/ ", "http://localhost:11434/v1"),
        ("http://h:8000/v1/", "http://h:8000/v1"),
        ("http://h:8000//v1", "http://h:8000/v1"),
        ("http://h:8000/v1/chat/completions", "http://h:8000/v1"),
        ("http://h:8000/api/v1/completions/", "http://h:8000/api/v1"),
        ("http://h:8000/v1/models", "http://h:8000/v1"),
        ("http://h:8000/docs#/default", "http://h:8000/v1"),
        ("http://h:8000/v1/docs", "http://h:8000/v1"),
        ("http://h:8000/health", "http://h:8000/v1"),
        ("http://h:8000/v2/health/ready", "http://h:8000/v1"),
        ("http://h:8000/api/generate", "http://h:8000/v1"),
        ("https://h/openai", "https://h/openai/v1"),
        ("https://h/api/paas/v4", "https://h/api/paas/v4"),
        ("https://h/v1beta/openai/", "https://h/v1beta/openai"),
        ("https://h/v1/openai/chat/completions", "https://h/v1/openai"),
        ("https://h/inference/chat/completions", "https://h/inference"),
        ("https://h/chat/completions", "https://h"),
        (
            "https://h/openai/deployments/x/chat/completions?api-version=1",
            "https://h/openai/deployments/x?api-version=1",
        ),
        ("https://h/openai/deployments/x?api-version=1", "https://h/openai/deployments/x?api-version=1"),
        ("http://[::1]:8000", "http://[::1]:8000/v1"),
        ("http://h:8000/v1/chat", "http://h:8000/v1"),
        ("http://h:8000/v1/models/meta-llama/Llama-3.1-8B", "http://h:8000/v1"),
        ("http://h:8000/v1/messages/count_tokens", "http://h:8000/v1"),
        ("http://h:8000/v1/audio/transcriptions", "http://h:8000/v1"),
        ("http://h:8000/tokenize", "http://h:8000/v1"),
        ("http://h:8000/invocations", "http://h:8000/v1"),
        ("http://h:11434/api/show", "http://h:11434/v1"),
        ("http://h:1234/api/v0/chat/completions", "http://h:1234/api/v0"),
        ("https://h/serving-endpoints/my-llm/invocations", "https://h/serving-endpoints"),
        ("https://h/models/chat/completions?api-version=1", "https://h/models?api-version=1"),
        ("https://h/models/v1", "https://h/models/v1"),
        ("HTTP://H:8000/V1", "http://H:8000/v1"),
        ("HTTP://H:8000/V1/CHAT/COMPLETIONS", "http://H:8000/v1"),
        ("http://h/PROD", "http://h/PROD/v1"),
        ("http://h/v1/models/llama/v1", "http://h/v1/models/llama/v1"),
        ("http://h/api/v3/models/m/chat/completions", "http://h/api/v3/models/m"),
        ("http://h/v1/chat/llm/v1", "http://h/v1/chat/llm/v1"),
        ("https://h/v1beta/models/gemini-x:generateContent", "https://h/v1beta/openai"),
        ("https://h/v1beta/models/gemini-x:streamGenerateContent?alt=sse", "https://h/v1beta/openai"),
        ("https://h/v1/projects/p/publishers/google/models/g:rawPredict", "https://h/v1/projects/p/endpoints/openapi"),
    ],
)
def test_a_pasted_url_means_a_base_url(typed: str, base: str) -> None:
    """A newcomer would look for the fault in the server."""
    assert (base, False) == target.base_url(typed, {"OPENAI_BASE_URL": "http://other/v1"})
    assert (base, False) == target.base_url(base if "/v1" in base or "/v4" in base else typed, {})


def test_the_address_is_named_or_of_the_environment() -> None:
    """A run would go to a server that is not configured, without a word."""
    assert ("http://b/v1", True) == target.base_url(None, {"OPENAI_BASE_URL": "http://b/v1"})
    with pytest.raises(UsageError, match="has no address"):
        target.base_url(None, {})


@pytest.mark.parametrize(
    "wrong",
    ["ftp://host", "http://", "http://host:99999999", "http://me:pw@:1", "http://host:0", "a b:80", "[::1",
     "http:/h:8000", "http//h:8000", "8000", "unix:/tmp/s"],
)  # fmt: skip
def test_what_is_no_url_of_a_server_is_refused_without_its_password(wrong: str) -> None:
    """Port 0 would be an error of the socket, a slash left out a host named http; a password would stand in a log."""
    with pytest.raises(UsageError, match="is not the URL of a server") as error:
        target.base_url(wrong, {})
    assert "pw" not in str(error.value)


def test_an_azure_url_names_its_model_and_its_header() -> None:
    """Azure takes no bearer token for a key, and its deployments list no models."""
    url = "https://h/openai/deployments/gpt%204?api-version=2024-10-21"

    assert "gpt 4" == target.deployment(url)
    assert ("api-key", "k") == target.key_header(url, "k")
    assert ("Authorization", "Bearer k") == target.key_header("https://h/v1?api-version=1", "k")

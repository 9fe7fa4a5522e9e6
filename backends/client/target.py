"""Connection targets: addresses resolved before the run, proxies, certificates, limits.

How long a request may take, and how many files a process may open.

TLS works on bytes in memory, so that this client reads the socket itself and gets the kernel's stamps.
"""

import asyncio
import base64
import re
import resource
import socket
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_network
from itertools import cycle, islice
from pathlib import Path
from typing import NamedTuple, cast
from urllib.parse import SplitResult, unquote, urlsplit

from harness.errors import NotReady, UsageError

SocketAddress = tuple[str, int] | tuple[str, int, int, int]
MOST_SOURCES = 1024
"""Addresses of a network that are tried."""
PORTS = 28_232
"""Of net.ipv4.ip_local_port_range, by default 32768 to 60999."""
PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


_VERSION = r"/v\d+[a-z]*\d*(?:/openai)?|/deployments/[^/]+|/serving-endpoints"
"""What a base URL ends with: a version (`/v1`, `/v1beta/openai`, `/api/paas/v4`), a deployment of Azure, or the
endpoints of Databricks."""
_ROUTES = "(chat/)?completions|responses|messages|embeddings|models"
"""Routes below the base URL; a version has others too, as `/v1/chat` and `/v1/tokenize`."""
_BESIDE = (
    "docs|redoc|swagger|openapi.json|index.html|ui|v2/health/(live|ready)|health|healthz|ready|ping|metrics|version"
    "|generate|generate_stream|completion|tokenize|detokenize|api/(chat|generate|tags|version|show|ps)"
)
"""Routes that servers have beside `/v1`: pages, probes, and their native APIs."""
_GEMINI = (
    (r"/v1[^/]*/models/[^/]+:\w+$", "/v1beta/openai"),
    (r"/publishers/[^/]+/models/[^/]+:\w+$", "/endpoints/openapi"),
)
"""Routes of Gemini's own API, of Google's AI Studio and of Vertex, and where the same server has that of OpenAI."""
SWEEP_S = 0.25
BODY_BYTES, BODY_TOKEN_BYTES = 1 << 20, 8 << 10
"""Largest answer, and what each requested token adds: an event of a token has some 300 bytes, with the log
probabilities of 20 candidates some 2 KB; the constant part holds prompts that are echoed, and error pages."""
EVENT_BYTES = 1 << 20
"""Largest event of a stream: the largest known are those that repeat the ids of a prompt of 100,000 tokens (700 KB)."""
HEAD_BYTES = 64 << 10
"""Largest header block; by default h11 takes 16 KiB, and aiohttp 8 KiB a line."""
READ_BYTES = 65536


@dataclass(frozen=True, slots=True)
class Trust:
    """Trusted authorities and the client certificate, PEM files; `insecure` accepts every certificate."""

    ca: str | None = None
    client_cert: str | None = None
    insecure: bool = False

    def context(self) -> ssl.SSLContext:
        """For connections to servers. Raises UsageError for files that cannot be used."""
        context = ssl.create_default_context()
        context.set_alpn_protocols(["http/1.1"])
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        try:
            if self.ca is not None:
                context.load_verify_locations(cafile=self.ca)
        except (OSError, ssl.SSLError) as error:
            raise UsageError(f"No certificates of authorities in ca '{self.ca}': {_why(error)}.") from None
        try:
            if self.client_cert is not None:
                context.load_cert_chain(self.client_cert)
        except (OSError, ssl.SSLError) as error:
            raise UsageError(
                f"No certificate with its private key in client_cert '{self.client_cert}': {_why(error)}."
            ) from None
        return context


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return "it holds none in PEM form"
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


@dataclass(frozen=True, slots=True)
class Peer:
    """Where a connection goes: the addresses to try in turn, and what must happen before the first request.

    `tunnel` is sent to a proxy first (CONNECT); `server_name` is what a certificate must name, with `tls`. `sources`
    give the address of this machine for the next connection, by family.
    """

    addresses: Sequence[tuple[int, SocketAddress]]
    name: str
    tls: ssl.SSLContext | None = None
    server_name: str | None = None
    tunnel: bytes | None = None
    sources: Mapping[int, Iterator[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Place:
    """One server: its URL, and the addresses to connect to (those of the proxy, where there is one)."""

    url: str
    addresses: Sequence[tuple[int, SocketAddress]]
    proxy: str | None = None

    @property
    def secure(self) -> bool:
        """Whether it is reached by TLS."""
        return urlsplit(self.url).scheme == "https"

    @property
    def whole_url(self) -> bool:
        """Whether requests must name the whole URL, because a proxy reads them."""
        return self.proxy is not None and not self.secure

    @property
    def label(self) -> str:
        parts = urlsplit(self.url)
        host = parts.hostname or ""
        return f"[{host}]:{_port(parts)}" if ":" in host else f"{host}:{_port(parts)}"

    @property
    def proxy_headers(self) -> bytes:
        """Headers for the proxy, in every request that it reads or in its CONNECT."""
        if self.proxy is None or (user := urlsplit(self.proxy).username) is None:
            return b""
        words = f"{unquote(user)}:{unquote(urlsplit(self.proxy).password or '')}".encode()
        return b"Proxy-Authorization: Basic " + base64.b64encode(words) + b"\r\n"

    def peer(self, trust: Trust, sources: Mapping[int, Sequence[str]]) -> Peer:
        """How to connect, in this process, and from which of its addresses of each family, in turn."""
        tunnel = None
        if self.proxy is not None and self.secure:
            host = self.label.encode("idna" if not self.label.isascii() else "ascii")
            tunnel = b"CONNECT %b HTTP/1.1\r\nHost: %b\r\n%b\r\n" % (host, host, self.proxy_headers)
        return Peer(
            addresses=self.addresses,
            name=self.label,
            tls=trust.context() if self.secure else None,
            server_name=urlsplit(self.url).hostname if self.secure else None,
            tunnel=tunnel,
            sources={family: cycle(ips) for family, ips in sources.items()},
        )


async def find(url: str, proxy: str | None = None) -> Place:
    """Look up the addresses of a server, or of the proxy before it; those that take connections come first.

    Raises UsageError for a proxy that is none, NotReady for a host that has no address.
    """
    parts = urlsplit(proxy or url)
    if proxy is not None and (parts.scheme != "http" or not parts.hostname):
        redacted = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        raise UsageError(f"'{redacted}' is not a supported proxy; expected http://HOST:PORT.")
    loop = asyncio.get_running_loop()
    try:
        infos = await loop.getaddrinfo(parts.hostname, _port(parts), type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not a valid host name"
        raise NotReady(f"No address of the host '{parts.hostname}' can be found: {why}") from None
    addresses = [(int(f), cast("SocketAddress", at)) for f, *_, at in infos if f in (socket.AF_INET, socket.AF_INET6)]
    if len(addresses) > 1:
        addresses = await _reachable_first(addresses)
    return Place(url, tuple(addresses), proxy)


async def _reachable_first(addresses: Sequence[tuple[int, SocketAddress]]) -> list[tuple[int, SocketAddress]]:
    """'localhost' has two addresses and often one server: addresses that refuse now are tried last."""
    good: list[tuple[int, SocketAddress]] = []
    for family, address in addresses:
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.setblocking(False)
            try:
                await asyncio.wait_for(asyncio.get_running_loop().sock_connect(sock, address), 2.0)
            except OSError:
                continue
            good.append((family, address))
    return good + [a for a in addresses if a not in good]


def proxies_set(environ: Mapping[str, str]) -> list[str]:
    """Names of the environment's variables that name proxies; this client does not use them."""
    return [name for name in PROXY_VARIABLES if environ.get(name)]


def base_url(url: str | None, environ: Mapping[str, str]) -> tuple[str, bool]:
    """The base URL that an address means, and whether the address is that of OPENAI_BASE_URL.

    A missing `http://` and `/v1` are added; routes (`/v1/chat/completions`), pages (`/docs`) and slashes at the end are
    left out, a query stays. Where a route stands below a path without `/v1`, nothing is added: `/inference`.

    Raises UsageError when there is none, and for one that is no http or https address or holds a password.
    """
    address = (url or environ.get("OPENAI_BASE_URL", "")).strip()
    if not address:
        raise UsageError(
            "The openai backend has no address; give the URL of a server, as in bench run http://HOST:PORT, or set "
            "OPENAI_BASE_URL."
        )
    try:
        parts = urlsplit(address if "://" in address else f"http://{address}")
        sound = (
            parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and parts.port != 0
            and not re.search(r"\s|^(https?|\d+)(:|$)|:$", parts.netloc)  # http:/h, 8000, unix:/h
        )
    except ValueError:  # a port that is none, half an IPv6 address
        sound = False
    if not sound:
        redacted = re.sub("//.*@", "//", address.partition("?")[0])
        raise UsageError(
            f"'{redacted}' is not the URL of a server; expected http://HOST:PORT/v1, with a port from 1 to 65535."
        )
    if parts.username is not None or parts.password is not None:
        raise UsageError(
            f"The address of {parts.hostname} holds a user name or a password, which others can see in the arguments; "
            "leave it out, and give a key by OPENAI_API_KEY or key_file, or a header by --header."
        )
    path = re.sub("/{2,}", "/", parts.path).rstrip("/")
    if path.isupper() and re.search(rf"({_VERSION}|/({_ROUTES}|{_BESIDE}))$", path.lower()):
        path = path.lower()  # typed in capitals; those of a gateway's own path stay
    path = re.sub(rf"/({_BESIDE})$|^/invocations$", "", path)
    for native, base in _GEMINI:
        if re.search(native, path):
            path, parts = re.sub(native, base, path), parts._replace(query=re.sub("&?alt=sse&?", "", parts.query))
    below = re.sub(rf"/({_ROUTES})$", "", path)
    if below == path:  # behind the last version all from a known route on: `/v1/models/ID`
        routes = rf"({_VERSION})(/[^/]+/invocations|/({_ROUTES}|chat|rerank|score|audio|images)(/(?!.*{_VERSION}).*)?)$"
        below = re.sub(routes, r"\1", path)
    if below == path and not re.search(rf"({_VERSION})(/|$)", path):
        below += "/v1"
    return parts._replace(path=below, fragment="").geturl(), not url


def without_version(url: str) -> str | None:
    """A base URL without its `/v1`, beside which some servers have their routes; None where it has none."""
    parts = urlsplit(url)
    above = parts.path.removesuffix("/v1")
    return None if above == parts.path else parts._replace(path=above).geturl()


def deployment(url: str) -> str | None:
    """The model that an URL of Azure names: `gpt-x` of `/openai/deployments/gpt-x`."""
    match = re.search("/deployments/([^/]+)", urlsplit(url).path)
    return unquote(match[1]) if match else None


def key_header(url: str, key: str) -> tuple[str, str]:
    """The header that takes a key: that of Azure for its URLs, `/openai/...?api-version=...`, else that of OpenAI."""
    parts = urlsplit(url)
    azure = "api-version=" in parts.query and (
        "/openai" in parts.path or "/deployments/" in parts.path or (parts.hostname or "").endswith(".azure.com")
    )
    return ("api-key", key) if azure else ("Authorization", f"Bearer {key}")


def _port(parts: SplitResult) -> int:
    return parts.port or (443 if parts.scheme == "https" else 80)


@dataclass(frozen=True, slots=True)
class Limits:
    """When a request is given up: after so many seconds (None: never), or more bytes than an answer may have.

    `total_s` counts from the sending, `first_token_s` too, `idle_s` from the last bytes. `body_bytes` bounds a whole
    answer as it comes over the wire (None: by the tokens requested, see `BODY_BYTES`).
    """

    connect_s: float = 10.0
    total_s: float | None = 600.0
    first_token_s: float | None = None
    idle_s: float | None = None
    body_bytes: int | None = None
    event_bytes: int = EVENT_BYTES
    head_bytes: int = HEAD_BYTES

    def answer_bytes(self, output_tokens: int) -> int:
        """The most that an answer of so many requested tokens may have."""
        return BODY_BYTES + BODY_TOKEN_BYTES * output_tokens if self.body_bytes is None else self.body_bytes

    @property
    def sweep_s(self) -> float:
        """How often to look whether one has passed: a quarter of the shortest, 10 ms to `SWEEP_S`."""
        limits_s = [s for s in (self.connect_s, self.total_s, self.first_token_s, self.idle_s) if s is not None]
        return min(SWEEP_S, max(0.01, min(limits_s) / 4))


def networks(source: str) -> list[IPv4Network | IPv6Network]:
    """Those named in `source`; an address is one of a single address. Raises UsageError."""
    parsed = []
    for part in source.split("|"):
        try:
            parsed.append(ip_network(part.strip(), strict=False))
        except ValueError:
            raise UsageError(
                f"source: '{part.strip()}' is neither an IP address nor a network such as 10.0.0.0/24."
            ) from None
    return parsed


def own_addresses(source: str) -> dict[int, list[str]]:
    """By family the addresses of this machine among those of `source`. Raises UsageError where there is none."""
    addresses: dict[int, list[str]] = {}
    for network in networks(source):
        family = socket.AF_INET if network.version == 4 else socket.AF_INET6
        for address in map(str, islice(network.hosts(), MOST_SOURCES)):
            with socket.socket(family) as sock, suppress(OSError):
                sock.bind((address, 0))
                addresses.setdefault(family, []).append(address)
    if not addresses:
        raise UsageError(f"This machine has no address of source={source}.")
    return addresses


def ports_per_address() -> int:
    """Connections that one address of this machine can have to one server: 28,232 on Linux by default."""
    try:
        low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return PORTS
    return int(high) - int(low) + 1


def open_files(otherwise: int) -> int:
    """Files that this process has open now, and so many more; only the latter where there is no /proc."""
    try:
        return sum(1 for _ in Path("/proc/self/fd").iterdir()) + otherwise
    except OSError:
        return otherwise


def allow_open_files(needed: int) -> int:
    """Raise the soft limit on open files as far as the hard one allows; returns the limit. Never lowers it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return soft
    limit = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return limit


class NotSecureError(Exception):
    """No secure connection; the message is that of OpenSSL, without source line numbers."""


class Plain(NamedTuple):
    """Decrypted bytes, and whether the peer has closed the TLS session."""

    data: bytes
    ended: bool


class Secure:
    """One side of a TLS connection; what goes to the other side is fetched by `outgoing`."""

    __slots__ = ("_in", "_out", "_tls")

    def __init__(self, context: ssl.SSLContext, server_name: str | None) -> None:
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname=server_name)

    def receive(self, data: bytes) -> None:
        self._in.write(data)

    def outgoing(self) -> bytes:
        return self._out.read()

    def shake(self) -> bool:
        """Continue the handshake; True when it is complete. Raises NotSecureError."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except (ssl.SSLError, ssl.CertificateError) as error:
            raise NotSecureError(_tls_reason(error)) from None
        return True

    def encrypt(self, data: bytes) -> None:
        """Make `data` part of what is outgoing."""
        self._tls.write(data)

    def decrypt(self) -> Plain:
        """All that can be read now. Raises NotSecureError."""
        parts: list[bytes] = []
        try:
            while part := self._tls.read(READ_BYTES):
                parts.append(part)
        except ssl.SSLWantReadError:
            return Plain(b"".join(parts), ended=False)
        except ssl.SSLZeroReturnError:
            pass
        except ssl.SSLError as error:
            raise NotSecureError(_tls_reason(error)) from None
        return Plain(b"".join(parts), ended=True)


def _tls_reason(error: Exception) -> str:
    verify = getattr(error, "verify_message", None)
    return str(verify or getattr(error, "reason", None) or error)

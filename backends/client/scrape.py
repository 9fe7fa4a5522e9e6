"""The server's own view of a run: its Prometheus metrics, read before, each second during, and after it.

A thread of a process that sends nothing reads them. Rows hold (time_s, name, labels, value); a value that is as it
was at the last reading is left out, so that a page of a thousand series costs what changes of it. Each reading gives
a row `up` (1, or 0 where nothing could be read), as Prometheus itself does.
"""

import ssl
import threading
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from http.client import HTTPException
from importlib.resources import files
from typing import Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit

import pyarrow as pa

from harness.data.records import server_metrics_table
from harness.errors import UsageError

EVERY_S = 1.0
TIMEOUT_S = 5.0
MOST_BYTES = 32 << 20
"""A page larger than this is no page of metrics."""

NO_METRICS = "the page holds no metrics"
UP = "up"
PLUS = " + "
TIMES = ("ttft", "tpot", "itl", "e2e", "queue", "prefill", "decode", "inference", "late")
"""Quantities that are histograms: their samples end with _sum and _count."""

Write = Callable[["pa.Table"], None]


__all__ = ["EVERY_S", "MetricsPage", "Sample", "Scraper", "names", "parsed", "paths", "recognised", "sources"]


class Sample(NamedTuple):
    """One value on a page; `labels` as the text format writes them, in the order of their names."""

    name: str
    labels: str
    value: float


@dataclass(frozen=True, slots=True)
class MetricsPage:
    """A page of metrics: where it is, and what it takes to read it. Nothing but `shown` may be written down."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    tls: ssl.SSLContext | None = None
    proxy: str | None = field(default=None, repr=False)

    @property
    def shown(self) -> str:
        """The address without user, password and query."""
        parts = urlsplit(self.url)
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))

    @property
    def instance(self) -> str:
        """Host and port, which distinguish several servers."""
        return urlsplit(self.url).netloc.rpartition("@")[2]


@cache
def names() -> Mapping[str, Mapping[str, Sequence[str]]]:
    """Per kind of server the quantities and their metric names, from `server_metrics.toml`."""
    return {kind: table for kind, table in _data().items() if isinstance(table, dict)}


def paths() -> list[str]:
    """Where servers keep the page, the most usual first."""
    return list(_data()["paths"])


@cache
def _data() -> dict[str, Any]:
    return tomllib.loads(files(__package__).joinpath("server_metrics.toml").read_text(encoding="utf-8"))


def sources(
    base_urls: Sequence[str],
    metrics: str = "auto",
    headers: Mapping[str, str] | None = None,
    tls: ssl.SSLContext | None = None,
    proxy: str | None = None,
) -> list[list[MetricsPage]]:
    """Per server the places where its page may be: `auto` tries those of the known servers, `none` gives nothing.

    `metrics` may name one or several addresses instead, joined by `|`. `headers` (a key, perhaps) go to the servers of
    the `base_urls` and to no other. Raises UsageError for what is no address.
    """
    if metrics == "none":
        return []
    hosts = {urlsplit(url)[:2] for url in base_urls}
    if metrics != "auto":
        urls = [url.strip() for url in metrics.split("|") if url.strip()]
        if not urls or not all(urlsplit(url).scheme in ("http", "https") for url in urls):
            raise UsageError("metrics must be auto, none, or the address of a page such as http://HOST:8000/metrics.")
        return [[MetricsPage(url, (headers or {}) if urlsplit(url)[:2] in hosts else {}, tls, proxy)] for url in urls]
    roots = dict.fromkeys(urlunsplit((*urlsplit(url)[:2], "", "", "")) for url in base_urls)
    return [[MetricsPage(root + path, headers or {}, tls, proxy) for path in paths()] for root in roots]


def parsed(text: str) -> tuple[list[Sample], set[str]]:
    """The samples of a page and all names on it, those of empty families too. Raises ValueError for any other text."""
    from prometheus_client.parser import text_string_to_metric_families

    samples: list[Sample] = []
    on_page: set[str] = set()
    try:
        families = list(text_string_to_metric_families(text))
    except (ValueError, IndexError, KeyError):  # whatever the parser met; what it says quotes the page
        raise ValueError(NO_METRICS) from None
    for family in families:
        on_page.add(family.name)
        if family.type == "counter":
            on_page.add(f"{family.name}_total")
        for name, labels, value, *_ in family.samples:
            if not name.endswith("_created"):
                text = ",".join(f'{key}="{_escaped(labels[key])}"' for key in sorted(labels))
                samples.append(Sample(name, text, float(value)))
                on_page.add(name)
    if not on_page:
        raise ValueError(NO_METRICS)
    return samples, on_page


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def recognised(known: Iterable[str]) -> tuple[str | None, dict[str, str]]:
    """The kind of server with such metric names, and its names of the known quantities; None if unknown."""
    present = set(known)
    for kind, table in names().items():
        begins = str(table["begins"])
        if any(name.startswith(begins) for name in present):
            words: dict[str, str] = {}
            for word, called in table.items():
                for name in called if word != "begins" else ():
                    # a histogram is there by its family or its sum, others by family or sample
                    if all(
                        part in present
                        or part.removesuffix("_sum") in present
                        or (word in TIMES and f"{part}_sum" in present)
                        for part in name.split(PLUS)
                    ):
                        words[word] = name
                        break
            return kind, words
    return None, {}


class Scraper:
    """Reads the pages of some servers and gives the rows to `write`, from a thread of its own.

    `before`, `follow`, `stop`, in this order; none of them raises for a server that gives nothing. `before` and `stop`
    wait for the network.
    """

    def __init__(self, servers: Sequence[Sequence[MetricsPage]], write: Write, *, every_s: float = EVERY_S) -> None:
        self._servers = servers
        self._write = write
        self._every_s = every_s
        self._found: list[MetricsPage] = []
        self._last: dict[tuple[str, str], float] = {}
        self._known: set[str] = set()
        self._waiting: list[tuple[float, list[Sample]]] = []
        self._read = self._failed = 0
        self._why: str | None = None
        self._epoch_s = 0.0
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def before(self) -> None:
        """Find the pages and read them for the first time."""
        for places in self._servers:
            source = next((place for place in places if self._scrape(place)), None)
            if source is not None:
                self._found.append(source)
        if self._found:
            self._why = None
            self._failed = 0

    def follow(self, epoch_s: float) -> None:
        """Read them each second from now on; rows get times since `epoch_s` of the monotonic clock."""
        self._epoch_s = epoch_s
        self._hand_over()
        if self._found:
            self._thread = threading.Thread(target=self._run, name="metrics of the server", daemon=True)
            self._thread.start()

    def stop(self) -> dict[str, Any]:
        """Read them a last time, when the server has counted everything that has ended; what is found out."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        if self._found:
            self._last_time()
        self._hand_over()
        return self.facts()

    def facts(self) -> dict[str, Any]:
        """Facts for run.json; `why` nothing could be read, or the last time that it could not."""
        kind, called = recognised(self._known)
        return {
            "kind": kind,
            "metrics_url": [source.shown for source in self._found],
            "names": called,
            "scrapes": self._read,
            "failed": self._failed,
            "why": self._why,
        }

    def _run(self) -> None:
        begun_s = time.monotonic()
        due = 1
        while not self._ended.wait(max(0.0, begun_s + due * self._every_s - time.monotonic())):
            for source in self._found:
                self._scrape(source)
            self._hand_over()
            due = int((time.monotonic() - begun_s) / self._every_s) + 1

    def _last_time(self) -> None:
        """Until nothing is running any more, or a second has passed: servers count an answer just after it."""
        for _ in range(5):
            for source in self._found:
                self._scrape(source)
            called = recognised(self._known)[1]
            gauges = {called[word] for word in ("running", "waiting") if word in called}
            if not any(value > 0 for (name, _), value in self._last.items() if name in gauges):
                return
            time.sleep(0.2)

    def _scrape(self, source: MetricsPage) -> bool:
        requested_s = time.monotonic()
        try:
            samples, on_page = parsed(_page(source))
        except (OSError, HTTPException, ValueError) as error:
            self._failed += 1
            self._why = f"{source.shown}: {_reason(error)}"
            samples, on_page, up = [], set(), 0.0
        else:
            self._read += 1
            up = 1.0
        at_s = 0.5 * (requested_s + time.monotonic())
        self._known |= on_page
        if up or source in self._found:
            self._waiting.append((at_s, list(self._changed(source, samples, up))))
        return bool(up)

    def _changed(self, source: MetricsPage, samples: Iterable[Sample], up: float) -> Iterator[Sample]:
        instance = f'instance="{_escaped(source.instance)}"'
        yield Sample(UP, instance, up)
        for name, labels, value in samples:
            labelled = labels if len(self._servers) < 2 else ",".join(part for part in (instance, labels) if part)
            if self._last.get((name, labelled)) != value:
                self._last[name, labelled] = value
                yield Sample(name, labelled, value)

    def _hand_over(self) -> None:
        waiting, self._waiting = self._waiting, []
        rows = [(at_s - self._epoch_s, *sample) for at_s, samples in waiting for sample in samples]
        if rows:
            self._write(server_metrics_table(rows))


class _SameHost(urllib.request.HTTPRedirectHandler):
    """Goes where the same server sends it and nowhere else: the headers may hold a key."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if urlsplit(newurl)[:2] != urlsplit(req.full_url)[:2]:
            raise urllib.error.HTTPError(req.full_url, code, "it sends elsewhere", headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _page(source: MetricsPage) -> str:
    proxies = {} if source.proxy is None else dict.fromkeys(("http", "https"), source.proxy)
    handlers: list[Any] = [urllib.request.ProxyHandler(proxies), _SameHost()]
    if source.tls is not None:
        handlers.append(urllib.request.HTTPSHandler(context=source.tls))
    request = urllib.request.Request(source.url, headers={"Accept": "text/plain;version=0.0.4", **source.headers})  # noqa: S310  # sources() lets http and https through
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=TIMEOUT_S) as answer:
            body = answer.read(MOST_BYTES + 1)
    except urllib.error.HTTPError as error:
        error.close()
        raise OSError(f"HTTP {error.code}") from None
    if len(body) > MOST_BYTES:
        raise ValueError(f"the page is larger than {MOST_BYTES >> 20} MiB")
    text: str = body.decode("utf-8", "replace")
    return text


def _reason(error: Exception) -> str:
    """Why a page could not be read, in words."""
    if isinstance(error, urllib.error.URLError):
        return str(error.reason)[:200]
    if isinstance(error, TimeoutError):
        return f"no answer within {TIMEOUT_S:g} s"
    return (str(error) or type(error).__name__)[:200]

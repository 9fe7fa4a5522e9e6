"""The server's own view: pages read, names known, sums and gauges beside what the client saw."""

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pyarrow as pa
import pytest
import trustme

from backends.client import scrape
from harness.data.records import SERVER_METRICS
from harness.errors import UsageError

VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 2.0
# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="m"} 40.0
# TYPE vllm:prompt_tokens_created gauge
vllm:prompt_tokens_created{engine="0",model_name="m"} 1.7e+09
# HELP vllm:time_to_first_token_seconds Histogram of time to first token in seconds.
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1",model_name="m"} 3.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="m"} 4.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} 4.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="m"} 0.5
"""


class Page:
    """What a scripted server answers, and what it was requested."""

    def __init__(self) -> None:
        self.text = VLLM
        self.status = 200
        self.location: str | None = None
        self.requested: list[tuple[str, str | None]] = []
        self.seen = threading.Semaphore(0)
        self.url = ""


@pytest.fixture
def page() -> Iterator[Page]:
    """A server with one page at /metrics; another path is 404."""
    with serving() as page:
        yield page


class Server(ThreadingHTTPServer):
    """Says nothing of clients who hang up."""

    def handle_error(self, request: object, client_address: object) -> None:
        pass


@contextmanager
def serving(tls: ssl.SSLContext | None = None) -> Iterator[Page]:
    page = Page()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page.requested.append((self.path, self.headers.get("Authorization")))
            self.send_response(page.status if self.path == "/metrics" else 404)
            if page.location is not None:
                self.send_header("Location", page.location)
            body = page.text.encode()
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            page.seen.release()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = Server(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    page.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_address[1]}"
    try:
        yield page
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def rows(tables: list[pa.Table]) -> list[tuple[str, str, float]]:
    table = pa.concat_tables(tables)
    assert table.schema == SERVER_METRICS
    return [(r["name"], r["labels"], r["value"]) for r in table.to_pylist()]


@pytest.mark.parametrize("kind", scrape.names())
def test_each_server_is_known_by_its_names(kind: str) -> None:
    """A server that the project claims to know would be a stranger, or taken for another."""
    table = scrape.names()[kind]
    found = {part for word, called in table.items() if word != "begins" for part in called[0].split(" + ")}

    assert (kind, {word: called[0] for word, called in table.items() if word != "begins"}) == scrape.recognised(found)


def test_a_renamed_metric_is_found_under_its_old_name() -> None:
    """An older vLLM would seem to have no KV memory."""
    kind, called = scrape.recognised(["vllm:gpu_cache_usage_perc", "vllm:num_requests_running"])

    assert kind == "vllm"
    assert called == {"kv_use": "vllm:gpu_cache_usage_perc", "running": "vllm:num_requests_running"}


def test_names_of_the_table_are_those_of_our_own_server() -> None:
    """What `bench serve` counts under vLLM's names could not be read back."""
    samples, known = scrape.parsed(VLLM)
    kind, called = scrape.recognised(known)

    assert kind == "vllm"
    assert set(called) == {"ttft", "running", "prompt_tokens"}
    assert not [s for s in samples if s.name.endswith("_created")]
    assert scrape.Sample("vllm:prompt_tokens_total", 'engine="0",model_name="m"', 40.0) in samples


@pytest.mark.parametrize("text", ["", "\n", "<!doctype html><html><p class='a'>", '{"object": "list"}', "a b c d {"])
def test_other_pages_are_none_of_metrics(text: str) -> None:
    """A web page at /metrics would be stored as numbers, or end the run."""
    with pytest.raises(ValueError, match="no metrics"):
        scrape.parsed(text)


def test_only_what_changed_is_written_again(page: Page) -> None:
    """Ten minutes of a server with a thousand series would fill the disk with repeated values."""
    tables: list[pa.Table] = []
    scraper = scrape.Scraper(scrape.sources([f"{page.url}/v1"]), tables.append, every_s=60)
    scraper.before()
    begun = scraper.facts()
    scraper.follow(epoch_s=0.0)
    page.text = VLLM.replace('running{engine="0",model_name="m"} 2.0', 'running{engine="0",model_name="m"} 0.0')
    ended = scraper.stop()

    first, *later = tables
    assert begun["kind"] == ended["kind"] == "vllm"
    assert begun["metrics_url"] == [f"{page.url}/metrics"]
    assert (1, 2, 0) == (begun["scrapes"], ended["scrapes"], ended["failed"])
    assert len(rows([first])) == 7
    assert rows(later) == [
        ("up", f'instance="{page.url[7:]}"', 1.0),
        ("vllm:num_requests_running", 'engine="0",model_name="m"', 0.0),
    ]


def test_the_page_is_read_again_and_again(page: Page) -> None:
    """Gauges of a long run would be known at its two ends only."""
    tables: list[pa.Table] = []
    scraper = scrape.Scraper(scrape.sources([page.url]), tables.append, every_s=0.001)
    scraper.before()
    scraper.follow(epoch_s=0.0)
    for _ in range(4):
        assert page.seen.acquire(timeout=120)
    page.text = VLLM.replace(" 2.0", " 0.0")
    facts = scraper.stop()

    times = pa.concat_tables(tables)["time_s"].to_pylist()
    assert times == sorted(times)
    assert facts["scrapes"] >= 4
    assert facts["failed"] == 0


def test_a_server_without_the_page_costs_nothing(page: Page) -> None:
    """A run against a server that has no metrics would fail or print a traceback."""
    page.status = 404
    tables: list[pa.Table] = []
    scraper = scrape.Scraper(scrape.sources([page.url]), tables.append)
    scraper.before()
    begun = scraper.facts()
    scraper.follow(0.0)

    assert begun == scraper.stop()
    assert begun["kind"] is None
    assert begun["metrics_url"] == []
    assert begun["why"] == f"{page.url}/prometheus/metrics: HTTP 404"
    assert tables == []
    assert [path for path, _ in page.requested] == ["/metrics", "/prometheus/metrics"]


def test_a_reading_that_fails_is_a_gap_and_not_an_end(page: Page) -> None:
    """One slow answer of a busy server would cost the whole of its view."""
    tables: list[pa.Table] = []
    scraper = scrape.Scraper(scrape.sources([page.url]), tables.append, every_s=60)
    scraper.before()
    scraper.follow(0.0)
    page.status = 500
    facts = scraper.stop()

    assert (1, 5) == (facts["scrapes"], facts["failed"])  # what was running when it was last read may still be
    assert {("up", f'instance="{page.url[7:]}"', 0.0)} == set(rows(tables[1:]))


def test_the_key_goes_to_the_server_of_the_run_and_nowhere_else(page: Page) -> None:
    """A key would be handed to the host of the metrics, or to the target of a redirect."""
    key = {"Authorization": "Bearer sk-secret"}
    with serving() as other:
        elsewhere = scrape.sources([page.url], f"{other.url}/metrics", key)
        scrape.Scraper(elsewhere, lambda _: None).before()
        page.status, page.location = 307, f"{other.url}/metrics"
        scraper = scrape.Scraper(scrape.sources([page.url], "auto", key), lambda _: None)
        scraper.before()
        facts = scraper.facts()

        assert [("/metrics", None)] == other.requested
    assert ("/metrics", "Bearer sk-secret") in page.requested
    assert facts["metrics_url"] == []
    assert "sk-secret" not in repr(elsewhere) + repr(facts)


def test_nothing_secret_of_an_address_is_reported(page: Page) -> None:
    """A password in the address would stand in run.json."""
    source = scrape.MetricsPage(f"http://me:hunter2@{page.url[7:]}/metrics?key=hunter3")

    assert f"{page.url}/metrics" == source.shown
    assert page.url[7:] == source.instance


def test_several_servers_are_distinguished(page: Page) -> None:
    """Counters of two replicas would be taken for one that jumps."""
    with serving() as other:
        tables: list[pa.Table] = []
        scraper = scrape.Scraper(scrape.sources([page.url, other.url]), tables.append)
        scraper.before()
        scraper.follow(0.0)
        page.text = other.text = VLLM.replace(" 2.0", " 0.0")
        scraper.stop()

    labels = {labels for name, labels, _ in rows(tables) if name == "vllm:prompt_tokens_total"}
    assert {f'instance="{p.url[7:]}",engine="0",model_name="m"' for p in (page, other)} == labels


def test_none_sends_no_query() -> None:
    """Servers would be scraped although scraping is off."""
    assert [] == scrape.sources(["http://127.0.0.1:1"], "none")


def test_a_server_that_is_not_there_is_reported() -> None:
    """A refused connection would end the run with a traceback."""
    scraper = scrape.Scraper(scrape.sources(["http://127.0.0.1:1"]), lambda _: None)
    scraper.before()
    facts = scraper.facts()

    assert facts["kind"] is None
    assert "refused" in facts["why"]


@pytest.mark.parametrize("metrics", ["yes", "", "|", "ftp://h/metrics", "file:///etc/passwd"])
def test_what_is_no_page_is_reported_at_once(metrics: str) -> None:
    """A slip in an option would be known after the run, or a file of this machine would be read."""
    with pytest.raises(UsageError, match="metrics must be auto, none"):
        scrape.sources(["http://127.0.0.1:1"], metrics)


def test_a_page_behind_an_authority_of_ones_own_is_read() -> None:
    """A server inside a company would keep its view to itself, or anybody would be believed to be it."""
    authority = trustme.CA()
    server_tls, ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(server_tls)
    authority.configure_trust(ours)
    with serving(server_tls) as page:
        read, refused = (
            scrape.Scraper(scrape.sources([page.url], tls=tls), lambda _: None)
            for tls in (ours, ssl.create_default_context())
        )
        read.before()
        refused.before()

    assert read.facts()["kind"] == "vllm"
    assert refused.facts()["kind"] is None
    assert "CERTIFICATE_VERIFY_FAILED" in refused.facts()["why"]

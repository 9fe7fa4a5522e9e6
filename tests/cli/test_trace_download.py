"""A trace is fetched whole and unchanged, or an error says why not; against a real server on 127.0.0.1."""

import hashlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.cli import main
from harness.errors import BenchError, Interrupted, NotValid, UsageError
from workloads.readers._known import KnownTrace
from workloads.trace_tools import download as trace_tools_download
from workloads.trace_tools.download import RETRIES, Watch, download

DATA = np.random.default_rng(7).bytes(300_000)
DIGEST = hashlib.sha256(DATA).hexdigest()


@dataclass
class Site:
    """What the server does; `seen` holds the Range header of each request, None for none."""

    data: bytes = DATA
    ranges: bool = True
    cuts: list[int] = field(default_factory=list)  # per request: bytes after which the connection is closed
    statuses: list[int] = field(default_factory=list)  # per request: an error to answer, 200 for none
    redirects: dict[str, str] = field(default_factory=dict)
    stalls: list[bool] = field(default_factory=list)  # per request: whether to say nothing at all
    length: bool = True
    off_by: int = 0  # bytes by which a range starts too early, as a faulty proxy might do it
    seen: list[str | None] = field(default_factory=list)
    url: str = ""
    release: threading.Event = field(default_factory=threading.Event)


class Handler(BaseHTTPRequestHandler):
    """Answers as the site of its server says."""

    def log_message(self, *_: object) -> None:
        """Not on the terminal."""

    def do_GET(self) -> None:
        site: Site = self.server.site  # type: ignore[attr-defined]  # set by the fixture
        if self.path in site.redirects:
            self.send_response(302)
            self.send_header("Location", site.redirects[self.path])
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        site.seen.append(self.headers.get("Range"))
        if site.stalls and site.stalls.pop(0):
            site.release.wait(10)
            self.close_connection = True
            return
        status = site.statuses.pop(0) if site.statuses else 200
        if status != 200:
            self.send_error(status)
            return
        self._data(site)

    def _data(self, site: Site) -> None:
        start = 0
        wanted = self.headers.get("Range")
        if wanted and site.ranges:
            start = max(0, int(wanted.removeprefix("bytes=").rstrip("-")) - site.off_by)
            if start >= len(site.data):
                self.send_error(416)
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(site.data) - 1}/{len(site.data)}")
        else:
            self.send_response(200)
        body = site.data[start:]
        if site.length:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: site.cuts.pop(0)] if site.cuts else body)
        self.close_connection = True


@pytest.fixture
def site() -> Iterator[Site]:
    """A server that has one file, /files/trace.csv."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    made = Site(url=f"http://127.0.0.1:{server.server_address[1]}/files/trace.csv")
    server.site = made  # type: ignore[attr-defined]  # read by the handler
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield made
    made.release.set()
    server.shutdown()
    server.server_close()
    thread.join()


@dataclass
class Watched:
    """Who watches: what was noted, and how long was waited without waiting."""

    notes: list[str] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)
    steps: list[tuple[int, int | None]] = field(default_factory=list)

    @property
    def watch(self) -> Watch:
        return Watch(self.notes.append, lambda done, total: self.steps.append((done, total)), self.waits_s.append)


@pytest.fixture
def watched() -> Watched:
    """Notes, progress and waits of a download."""
    return Watched()


@pytest.fixture
def official(monkeypatch: pytest.MonkeyPatch, site: Site) -> KnownTrace:
    """The file of the server as a known trace with a known hash."""
    entry = KnownTrace("mine", site.url, about="my trace", sha256=DIGEST, hash_from="computed", licence="CC-BY-4.0")
    monkeypatch.setattr(trace_tools_download, "sources", lambda: {"mine": entry})
    return entry


def names(folder: Path) -> list[str]:
    """The files in a folder."""
    return sorted(file.name for file in folder.iterdir())


GONE_ON = [None, "bytes=100000-"]
"""What a server receives by a download that goes on."""


@pytest.mark.parametrize(("what", "part", "ranges", "waits_s", "note"), [
    ({}, None, [None], [], ""),
    ({"cuts": [100_000, 50_000]}, None, [*GONE_ON, "bytes=150000-"], [1.0, 1.0], "going on after 100,000 bytes"),
    ({"cuts": [100_000], "ranges": False}, None, GONE_ON, [1.0], "starting again"),
    ({"cuts": [100_000], "off_by": 1000}, None, [*GONE_ON, None], [1.0, 2.0], ""),
    ({"statuses": [503, 429, 500]}, None, [None] * 4, [1.0, 2.0, 4.0], ""),
    ({"stalls": [True]}, None, [None] * 2, [1.0], "no answer in time"),
    ({"length": False}, None, [None], [], ""),
    ({}, DATA, ["bytes=300000-", None], [1.0], ""),
    ({}, DATA + 1000 * b"x", ["bytes=301000-", None], [1.0], ""),
], ids=["whole", "broken off twice", "no ranges", "another range", "busy", "silent", "no length",
        "complete part", "part that is too long"])  # fmt: skip
def test_a_file_is_fetched_whole_whatever_the_server_does(
    what: dict[str, Any], part: bytes | None, ranges: list[str | None], waits_s: list[float],
    note: str, site: Site, watched: Watched, official: KnownTrace, tmp_path: Path,
) -> None:  # fmt: skip
    """A break would cost the whole download, bytes stand twice in the file, or a dead connection hold the command."""
    vars(site).update(what)
    if part is not None:
        (tmp_path / "trace.csv.part").write_bytes(part)
    done = download("mine", tmp_path, watch=watched.watch, timeout_s=0.2 if site.stalls else 60.0)

    assert DATA == done.path.read_bytes()
    assert (DIGEST, "my trace", True) == (done.sha256, done.known, done.new)
    assert ["trace.csv"] == names(tmp_path)
    assert (ranges, waits_s) == (site.seen, watched.waits_s)
    assert any(note in text for text in watched.notes) if note else ranges[1:] or part or not watched.notes
    assert ranges != [None] or (len(DATA), len(DATA) if site.length else None) == watched.steps[-1]


def test_an_interrupted_command_resumes(site: Site, official: KnownTrace, tmp_path: Path) -> None:
    """Ctrl-C would throw away an hour of downloading."""

    def interrupt(done: int, _: int | None) -> None:
        if done == 100_000:
            raise KeyboardInterrupt

    site.cuts = [100_000]
    with pytest.raises(Interrupted, match=r"100,000 bytes are kept in .*trace\.csv\.part"):
        download("mine", tmp_path, watch=Watch(progress=interrupt))
    kept = names(tmp_path)
    done = download("mine", tmp_path)

    assert ["trace.csv.part"] == kept
    assert DATA == done.path.read_bytes()
    assert [None, "bytes=100000-"] == site.seen
    assert ["trace.csv"] == names(tmp_path)


def test_a_file_without_a_hash_starts_again(site: Site, tmp_path: Path) -> None:
    """The first half of one version and the second half of another would make a file that never was."""
    site.cuts = [100_000]
    with pytest.raises(SystemExit):
        download(site.url, tmp_path, watch=Watch(sleep=_interrupted))
    site.data = DATA[::-1]
    done = download(site.url, tmp_path)

    assert DATA[::-1] == done.path.read_bytes()
    assert [None, None] == site.seen


def _interrupted(_: float) -> None:
    raise SystemExit


def test_a_wrong_hash_is_kept_aside(site: Site, official: KnownTrace, tmp_path: Path) -> None:
    """Invented rows would pass under the name of an official trace."""
    site.data = DATA[:-1] + b"!"
    with pytest.raises(NotValid, match=r"official file .*kept as .*trace\.csv\.bad"):
        download("mine", tmp_path)

    assert ["trace.csv.bad"] == names(tmp_path)


def test_a_pointer_is_not_taken_for_the_file(site: Site, tmp_path: Path) -> None:
    """A hundred bytes of Git LFS would be replayed as a trace."""
    site.data = b"version https://git-lfs.github.com/spec/v1\noid sha256:41ac\nsize 27901454\n"
    with pytest.raises(NotValid, match="Git LFS pointer"):
        download(site.url, tmp_path)

    assert ["trace.csv.bad"] == names(tmp_path)


def test_an_unknown_hash_is_reported_as_unverified(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A user would trust a file without a known hash."""
    code = main(["trace", "download", site.url, "-o", str(tmp_path)])
    out = capsys.readouterr().out

    assert 0 == code
    assert DIGEST in out
    assert "unverified" in out


@pytest.mark.parametrize(("status", "what"), [(404, "may have moved"), (403, "login"), (410, "may have moved")])
def test_a_permanent_error_is_reported_at_once(
    site: Site, watched: Watched, tmp_path: Path, status: int, what: str
) -> None:
    """A wrong address would be requested again and again."""
    site.statuses = [status]
    with pytest.raises(BenchError, match=f"answered {status} .*{what}") as caught:
        download(site.url, tmp_path, watch=watched.watch)

    assert 3 == caught.value.exit_code
    assert 1 == len(site.seen)
    assert [] == names(tmp_path)


def test_it_gives_up_when_nothing_moves(site: Site, watched: Watched, tmp_path: Path) -> None:
    """The command would try for ever."""
    site.statuses = [503] * 20
    with pytest.raises(BenchError, match=f"{RETRIES + 1} times in a row"):
        download(site.url, tmp_path, watch=watched.watch)

    assert RETRIES + 1 == len(site.seen)


def test_redirects_are_followed(site: Site, tmp_path: Path) -> None:
    """Releases, which redirect, could not be fetched."""
    site.redirects = {"/latest/trace.csv": site.url}
    site.cuts = [100_000]
    done = download(site.url.replace("/files/", "/latest/"), tmp_path, watch=Watch(sleep=lambda _: None))

    assert DATA == done.path.read_bytes()
    assert [None, "bytes=100000-"] == site.seen


def test_a_redirect_cannot_read_local_files(site: Site, tmp_path: Path) -> None:
    """A server could make us copy any file of this machine."""
    site.redirects = {"/files/trace.csv": "file:///etc/hostname"}
    with pytest.raises(BenchError, match="answered 302"):
        download(site.url, tmp_path)

    assert [] == names(tmp_path)


def test_a_file_that_is_there_is_kept(site: Site, official: KnownTrace, tmp_path: Path) -> None:
    """A download would overwrite what the user has, or fetch again what is already right."""
    (tmp_path / "trace.csv").write_bytes(b"mine")
    with pytest.raises(UsageError, match=r"another hash .*--force"):
        download("mine", tmp_path)
    forced = download("mine", tmp_path, force=True)
    again = download("mine", tmp_path)

    assert DATA == forced.path.read_bytes()
    assert (False, DIGEST) == (again.new, again.sha256)
    assert 1 == len(site.seen)


def test_no_server_answers(tmp_path: Path, watched: Watched) -> None:
    """An unreachable server would be a traceback."""
    with pytest.raises(BenchError, match="connection refused"):
        download("http://127.0.0.1:9/trace.csv", tmp_path, watch=watched.watch)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://example.org/a/b.csv?raw=1#x", "b.csv"),
        ("https://example.org/a/%2e%2e%2fpasswd", "passwd"),
        ("https://example.org/a/tr%20ace%0a.csv", "tr ace_.csv"),
        ("https://example.org/a/.hidden", "hidden"),
    ],
)
def test_file_names_stay_in_their_folder(url: str, name: str) -> None:
    """An address could choose where on the disk its bytes go."""
    assert name == trace_tools_download.find(url).file


def test_every_known_trace_can_be_named() -> None:
    """The list would name traces with no address, or two with one file."""
    known = trace_tools_download.sources()
    hashes = [source.sha256 for source in known.values() if source.sha256]

    assert 15 < len(known)
    assert len(known) == len({source.url for source in known.values()})
    assert len(hashes) == len(set(hashes))
    for source in known.values():
        assert source.url.startswith("https://")
        assert source.file
        assert source.about
        assert source.source
        assert source.licence
        assert (source.sha256 is None) == (source.hash_from is None)
        assert source.sha256 is None or 64 == len(source.sha256)


def test_the_list_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """The known names would not be listed."""
    code = main(["trace", "download"])
    out = capsys.readouterr().out

    assert 0 == code
    assert "azure-2023-conversation" in out
    assert "burstgpt-3" in out

"""One attempt to fetch a file over HTTP into FILE.part, from where an earlier attempt stopped.

FILE.part.json beside it holds the address and what the server said about the file, so that two versions are never
joined.
"""

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

BLOCK = 1 << 20


class Changed(Exception):
    """What is there belongs to another version of the file; it was removed."""


@dataclass(frozen=True, slots=True)
class Watch:
    """Who is told how it goes: `note` gets sentences, `progress` bytes so far and in all (None: unknown).

    `sleep` waits some seconds.
    """

    note: Callable[[str], None] = lambda _: None
    progress: Callable[[int, int | None], None] = lambda _, __: None
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True, slots=True)
class _Version:
    """What a server says about a file, to tell whether the rest belongs to what is there."""

    url: str
    etag: str | None = None
    modified: str | None = None
    size: int | None = None

    @property
    def condition(self) -> str | None:
        """For If-Range; a weak tag does not promise equal bytes."""
        return self.etag if self.etag and not self.etag.startswith("W/") else self.modified


def fetch(url: str, part: Path, watch: Watch, timeout_s: float) -> None:
    """The rest of the part if the server can, else all of it. Raises what urllib raises, and Changed."""
    had, version = size(part), _stored(part, url)
    if had and version is None:
        watch.note(f"'{part}' is of another address or of unknown origin; starting again.")
    if version is not None and had == version.size:
        return
    asked = _request(url, had if version is not None else 0, version)
    try:
        answer = urllib.request.urlopen(asked, timeout=timeout_s)  # noqa: S310  # http(s) only: sources.find
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise
        error.close()
        forget(part)
        raise Changed("the file is shorter than its part, so it is fetched again from its start") from None
    with answer:
        _store(answer, url, part, had, version, watch)


def _request(url: str, had: int, version: _Version | None) -> urllib.request.Request:
    headers = {"User-Agent": "bench", "Accept-Encoding": "identity"}
    if had and version is not None:
        headers["Range"] = f"bytes={had}-"
        if version.condition:
            headers["If-Range"] = version.condition
    return urllib.request.Request(url, headers=headers)  # noqa: S310  # as above


def _store(
    answer: http.client.HTTPResponse, url: str, part: Path, had: int, old: _Version | None, watch: Watch
) -> None:
    """Append the answer to the part, or begin it anew where the answer is the whole file."""
    version = _version(answer, url)
    goes_on = False
    if old is not None and had > 0 and answer.status == 206:
        start = answer.headers.get("Content-Range", "").removeprefix("bytes ").partition("-")[0]
        pairs = ((old.etag, version.etag), (old.modified, version.modified), (old.size, version.size))
        same = all(a is None or b is None or a == b for a, b in pairs)  # as far as both tell
        goes_on = same and start.isdecimal() and int(start) == had
    if answer.status == 206 and not goes_on:
        forget(part)
        raise Changed("the file changed on the server, so it is fetched again from its start")
    if had and not goes_on:
        watch.note("the server cannot go on in the middle (or the file changed); starting again.")
    elif goes_on:
        watch.note(f"going on after {had:,} bytes.")
    _beside(part).write_text(json.dumps({name: getattr(version, name) for name in _Version.__slots__}))
    done = had if goes_on else 0
    with part.open("ab" if goes_on else "wb") as stream:
        while block := answer.read1(BLOCK):
            stream.write(block)
            done += len(block)
            watch.progress(done, version.size)
    if version.size is not None and done != version.size:
        raise ConnectionError("the connection was cut")


def _version(answer: http.client.HTTPResponse, url: str) -> _Version:
    ranged = answer.headers.get("Content-Range", "").rpartition("/")[2] if answer.status == 206 else ""
    total = ranged or (answer.headers.get("Content-Length") if answer.status != 206 else None) or ""
    return _Version(
        url, answer.headers.get("ETag"), answer.headers.get("Last-Modified"), int(total) if total.isdecimal() else None
    )


def _stored(part: Path, url: str) -> _Version | None:
    """What was stored about the part; None for a part that is not known to be of this address."""
    try:
        values = json.loads(_beside(part).read_text())
        version = _Version(**values)
    except (OSError, ValueError, TypeError):
        return None
    return version if version.url == url else None


def forget(part: Path) -> None:
    """Remove the part and what was stored about it."""
    part.unlink(missing_ok=True)
    forget_version(part)


def forget_version(part: Path) -> None:
    """Remove what was stored about the part, once it is complete."""
    _beside(part).unlink(missing_ok=True)


def _beside(part: Path) -> Path:
    return part.with_name(part.name + ".json")


def size(part: Path) -> int:
    """Bytes in the part; 0 where there is none."""
    return part.stat().st_size if part.exists() else 0

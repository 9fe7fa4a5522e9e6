"""Public traces by name: where their owners keep them, under which licence, and their hash where it is known.

One attempt to fetch a file over HTTP into FILE.part, from where an earlier attempt stopped.

FILE.part.json beside it holds the URL and the validators of the server, so that two versions are never
joined.

Downloads a trace from its public URL: resumes a partial file, and checks the hash before it gets its name.

While it is incomplete it is called FILE.part.
"""

import hashlib
import http.client
import json
import re
import time
import tomllib
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness.errors import BenchError, Interrupted, NotValid, UsageError, no_such
from workloads.readers import _known

BLOCK = 1 << 20
TIMEOUT_S = 30.0
"""Longest wait for the next bytes of an answer."""
RETRIES = 5
"""Attempts that may fail one after the other without a byte of progress."""
_AGAIN = (408, 425, 429, 500, 502, 503, 504)
"""Answers that may be better the next time."""
_LFS = b"version https://git-lfs"


@dataclass(frozen=True, slots=True)
class KnownTrace:
    """A file that can be fetched; `sha256` None where it is not known."""

    name: str
    url: str
    about: str = ""
    sha256: str | None = None
    hash_from: str | None = None
    rows: int | None = None
    size: str | None = None
    source: str | None = None
    licence: str | None = None

    @property
    def file(self) -> str:
        """Its name on disk: the last part of the path of the address."""
        return _file_name(self.url)


def sources() -> dict[str, KnownTrace]:
    """All known traces, in the order of the table."""
    values = tomllib.loads(Path(__file__).with_name("sources.toml").read_text(encoding="utf-8"))
    return {name: KnownTrace(name, **entry) for name, entry in values.items()}


def find(name_or_url: str) -> KnownTrace:
    """The source of that name, or of that http(s) address. Raises UsageError for anything else."""
    by_name = sources()
    if name_or_url in by_name:
        return by_name[name_or_url]
    if "://" not in name_or_url:
        raise no_such("trace to download", name_or_url, by_name, "An address (https://...) can be given too.")
    same = [source for source in by_name.values() if source.url == name_or_url]
    if same:
        return same[0]
    parts = urllib.parse.urlsplit(name_or_url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"'{name_or_url}' is not a download URL; it must begin with https:// or http://.")
    if not _file_name(name_or_url):
        raise UsageError(f"'{name_or_url}' names no file; give the URL of the trace file.")
    return KnownTrace(name=_file_name(name_or_url), url=name_or_url)


def _file_name(url: str) -> str:
    """The last part of the path, without what no file name should hold."""
    name = urllib.parse.unquote(urllib.parse.urlsplit(url).path).rstrip("/").rsplit("/", 1)[-1]
    return re.sub(r"[^\w.+=@ -]", "_", name).strip(". ")


def known_as(sha256: str) -> str | None:
    """Which official file has this hash; None for an unknown one."""
    entry = _known.known(sha256)
    if entry is not None:
        return str(entry["name"])
    return next((source.about for source in sources().values() if source.sha256 == sha256), None)


class Changed(Exception):
    """What is there belongs to another version of the file; it was removed."""


@dataclass(frozen=True, slots=True)
class Watch:
    """Listener of a download: `note` gets sentences, `progress` bytes so far and in all (None: unknown).

    `sleep` waits some seconds.
    """

    note: Callable[[str], None] = lambda _: None
    progress: Callable[[int, int | None], None] = lambda _, __: None
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True, slots=True)
class _Version:
    """Validators of a server for a file, to check that the rest belongs to the partial file."""

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
    request = _request(url, had if version is not None else 0, version)
    try:
        answer = urllib.request.urlopen(request, timeout=timeout_s)  # noqa: S310  # http(s) only: sources.find
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


@dataclass(frozen=True, slots=True)
class Fetched:
    """The file, its size (bytes) and hash, and which official file it is; None: of no known hash."""

    path: Path
    size: int
    sha256: str
    known: str | None
    new: bool = True


def download(
    name_or_url: str,
    folder: Path,
    *,
    force: bool = False,
    watch: Watch = Watch(),  # frozen
    timeout_s: float = TIMEOUT_S,
) -> Fetched:
    """The file of a known name, or of an address, in the folder.

    Raises UsageError for an unknown name, or a file that is there (unless `force`, or it is the right one);
    NotValid for bytes with another hash than the official file (kept as FILE.bad); Interrupted on Ctrl-C;
    BenchError where the server refuses or cannot be reached. What was fetched stays in FILE.part.
    """
    source = find(name_or_url)
    path = folder / source.file
    if path.exists() and not force:
        return _there(path, source)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what = "is a file; name a folder" if folder.is_file() else f"cannot be made: {error.strerror}"
        raise UsageError(f"'{folder}' {what}.") from None
    part = path.with_name(path.name + ".part")
    try:
        _complete(source.url, part, watch, timeout_s)
    except KeyboardInterrupt:
        saved = part.stat().st_size if part.exists() else 0
        raise Interrupted(f"interrupted; {saved:,} bytes are kept in '{part}': rerun the command to resume.") from None
    return _checked(part, path, source)


def _there(path: Path, wanted: KnownTrace) -> Fetched:
    """A file of that name exists: good if it is the requested one."""
    digest = _sha256(path)
    if digest != wanted.sha256:
        why = "has another hash than the official file" if wanted.sha256 else "already exists"
        raise UsageError(f"'{path}' {why}; --force replaces it, -o FOLDER puts the download elsewhere.")
    return Fetched(path, path.stat().st_size, digest, known_as(digest), new=False)


def _checked(part: Path, path: Path, wanted: KnownTrace) -> Fetched:
    """The complete file under its name. Raises NotValid when it is not the one that is wanted."""
    with part.open("rb") as stream:
        pointer = stream.read(len(_LFS)) == _LFS
    digest = _sha256(part)
    forget_version(part)
    if pointer or (wanted.sha256 is not None and digest != wanted.sha256):
        bad = path.with_name(path.name + ".bad")
        part.replace(bad)
        what = (
            "is a Git LFS pointer, not the file itself; take the address that serves the file"
            if pointer
            else f"has SHA-256 {digest}, the official file {wanted.sha256}; do not trust it, or its owner changed it"
        )
        raise NotValid(f"'{wanted.url}' {what} (kept as '{bad}').")
    part.replace(path)
    return Fetched(path, path.stat().st_size, digest, known_as(digest))


def _complete(url: str, part: Path, watch: Watch, timeout_s: float) -> None:
    """Ask until all bytes are in the part; after a failure wait 1, 2, 4, ... s, and give up when nothing moves."""
    failures, had = 0, size(part)
    while True:
        try:
            fetch(url, part, watch, timeout_s)
            return
        except urllib.error.HTTPError as error:
            error.close()
            if error.code not in _AGAIN:
                remedy = (
                    "it needs a login or a permission that you do not have"
                    if error.code in (401, 403)
                    else "its owner may have moved it: look at the source that 'bench trace download' names, and give "
                    "its address"
                )
                raise BenchError(f"'{url}' answered {error.code} {error.reason}; {remedy}.") from None
            reason = f"{error.code} {error.reason}"
        except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError, Changed) as error:
            # Another attempt may help against these; a full disk is not among them.
            reason = _reason(error)
        failures = 1 if size(part) > had else failures + 1
        had = max(had, size(part))
        if failures > RETRIES:
            raise BenchError(
                f"'{url}' could not be read: {reason}, {failures} times in a row; {size(part):,} bytes are "
                f"kept in '{part}'; rerun the command to resume."
            )
        wait_s = 2.0 ** (failures - 1)
        watch.note(f"{reason} after {size(part):,} bytes; next attempt in {wait_s:g} s.")
        watch.sleep(wait_s)


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _reason(error: Exception) -> str:
    inner = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(inner, TimeoutError):
        return "no answer in time"
    text = str(getattr(inner, "strerror", None) or inner or type(inner).__name__)
    return text[:1].lower() + text[1:].rstrip(".")

"""Public traces by name: where their owners keep them, under which licence, and their hash where it is known.

Downloads a trace from its public URL, and checks the hash before it gets its name. While it is incomplete it is
called FILE.part. Only where the hash is known does a command complete what an earlier one left: without it, two
versions could be joined and pass for the file.
"""

import http.client
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness.errors import BenchError, Interrupted, NotValid, UsageError, no_such
from workloads.readers import _lines
from workloads.readers._known import KnownTrace, table

BLOCK = 1 << 20
TIMEOUT_S = 30.0
"""Longest wait for the next bytes of an answer."""
RETRIES = 5
"""Attempts that may fail one after the other without a byte of progress."""
_AGAIN = (408, 425, 429, 500, 502, 503, 504)
"""Answers that may be better the next time."""
_LFS = b"version https://git-lfs"


def sources() -> dict[str, KnownTrace]:
    """The traces that can be fetched, in the order of the table."""
    return {name: entry for name, entry in table().items() if entry.warning is None}


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
    source = KnownTrace(name_or_url, name_or_url)
    if not source.file:
        raise UsageError(f"'{name_or_url}' names no file; give the URL of the trace file.")
    return source


def known_as(sha256: str) -> str | None:
    """Which official file has this hash; None for an unknown one."""
    return next((source.about for source in sources().values() if source.sha256 == sha256), None)


class Changed(Exception):
    """The part cannot be completed; it was removed."""


@dataclass(frozen=True, slots=True)
class Watch:
    """Listener of a download: `note` gets sentences, `progress` bytes so far and in all (None: unknown).

    `sleep` waits some seconds.
    """

    note: Callable[[str], None] = lambda _: None
    progress: Callable[[int, int | None], None] = lambda _, __: None
    sleep: Callable[[float], None] = time.sleep


def fetch(url: str, part: Path, watch: Watch, timeout_s: float) -> None:
    """Fetch the rest of the part if the server can, else all of it. Raises what urllib raises, and Changed."""
    had = size(part)
    headers = {"User-Agent": "bench", "Accept-Encoding": "identity"} | ({"Range": f"bytes={had}-"} if had else {})
    request = urllib.request.Request(url, headers=headers)  # noqa: S310  # http(s) only: sources.find
    try:
        answer = urllib.request.urlopen(request, timeout=timeout_s)  # noqa: S310  # as above
    except urllib.error.HTTPError as error:
        if error.code != 416 or not had:
            raise
        error.close()
        part.unlink()
        raise Changed("nothing follows the part of the file, so it is fetched again from its start") from None
    with answer:
        _store(answer, part, had, watch)


def _store(answer: http.client.HTTPResponse, part: Path, had: int, watch: Watch) -> None:
    """Append the answer to the part, or begin it anew where the answer is the whole file."""
    goes_on = answer.status == 206
    if goes_on and not answer.headers.get("Content-Range", "").startswith(f"bytes {had}-"):
        part.unlink()
        raise Changed("the server sent another part of the file, so it is fetched again from its start")
    if goes_on:
        watch.note(f"going on after {had:,} bytes.")
    elif had:
        watch.note("the server cannot go on in the middle; starting again.")
    done = had if goes_on else 0
    length = answer.headers.get("Content-Length")
    total = None if length is None else done + int(length)
    with part.open("ab" if goes_on else "wb") as stream:
        while block := answer.read1(BLOCK):
            stream.write(block)
            done += len(block)
            watch.progress(done, total)
    if total is not None and done != total:
        raise ConnectionError("the connection was cut")


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
    BenchError where the server refuses or cannot be reached.
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
    if source.sha256 is None:
        part.unlink(missing_ok=True)
    try:
        _complete(source.url, part, watch, timeout_s)
    except KeyboardInterrupt:
        saved = part.stat().st_size if part.exists() else 0
        raise Interrupted(f"interrupted; {saved:,} bytes are kept in '{part}': rerun the command.") from None
    return _checked(part, path, source)


def _there(path: Path, wanted: KnownTrace) -> Fetched:
    """A file of that name exists: good if it is the requested one."""
    digest = _lines.sha256(path)
    if digest != wanted.sha256:
        why = "has another hash than the official file" if wanted.sha256 else "already exists"
        raise UsageError(f"'{path}' {why}; --force replaces it, -o FOLDER puts the download elsewhere.")
    return Fetched(path, path.stat().st_size, digest, known_as(digest), new=False)


def _checked(part: Path, path: Path, wanted: KnownTrace) -> Fetched:
    """The complete file under its name. Raises NotValid when it is not the one that is wanted."""
    with part.open("rb") as stream:
        pointer = stream.read(len(_LFS)) == _LFS
    digest = _lines.sha256(part)
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
                f"kept in '{part}'; rerun the command."
            )
        wait_s = 2.0 ** (failures - 1)
        watch.note(f"{reason} after {size(part):,} bytes; next attempt in {wait_s:g} s.")
        watch.sleep(wait_s)


def _reason(error: Exception) -> str:
    inner = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(inner, TimeoutError):
        return "no answer in time"
    text = str(getattr(inner, "strerror", None) or inner or type(inner).__name__)
    return text[:1].lower() + text[1:].rstrip(".")

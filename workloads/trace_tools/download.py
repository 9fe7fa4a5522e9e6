"""Fetches a trace from its public address: goes on where it stopped, and checks the hash before the file has its name.

While it is incomplete it is called FILE.part.
"""

import hashlib
import http.client
import urllib.error
from dataclasses import dataclass
from pathlib import Path

from harness.errors import BenchError, Interrupted, NotValid, UsageError
from workloads.trace_tools import _transfer, sources
from workloads.trace_tools._transfer import Watch

TIMEOUT_S = 30.0
"""Longest wait for the next bytes of an answer."""

RETRIES = 5
"""Attempts that may fail one after the other without a byte of progress."""

_AGAIN = (408, 425, 429, 500, 502, 503, 504)
"""Answers that may be better the next time."""

_PASSING = (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError, _transfer.Changed)
"""What another attempt may help against; a full disk is not among them."""

_LFS = b"version https://git-lfs"


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
    watch: Watch = Watch(),  # noqa: B008  # frozen
    timeout_s: float = TIMEOUT_S,
) -> Fetched:
    """The file of a known name, or of an address, in the folder.

    Raises UsageError for an unknown name, or a file that is there (unless `force`, or it is the right one);
    NotValid for bytes with another hash than the official file (kept as FILE.bad); Interrupted on Ctrl-C;
    BenchError where the server refuses or cannot be reached. What was fetched stays in FILE.part.
    """
    wanted = sources.find(name_or_url)
    path = folder / wanted.file
    if path.exists() and not force:
        return _there(path, wanted)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what = "is a file; name a folder" if folder.is_file() else f"cannot be made: {error.strerror}"
        raise UsageError(f"'{folder}' {what}.") from None
    part = path.with_name(path.name + ".part")
    try:
        _complete(wanted.url, part, watch, timeout_s)
    except KeyboardInterrupt:
        kept = part.stat().st_size if part.exists() else 0
        raise Interrupted(
            f"interrupted; {kept:,} bytes are kept in '{part}': the same command goes on there."
        ) from None
    return _checked(part, path, wanted)


def _there(path: Path, wanted: sources.Source) -> Fetched:
    """A file of that name is there already: good if it is the one that is wanted."""
    digest = _sha256(path)
    if digest != wanted.sha256:
        why = "has another hash than the official file" if wanted.sha256 else "is there already"
        raise UsageError(f"'{path}' {why}; --force replaces it, -o FOLDER puts the download elsewhere.")
    return Fetched(path, path.stat().st_size, digest, sources.known_as(digest), new=False)


def _checked(part: Path, path: Path, wanted: sources.Source) -> Fetched:
    """The complete file under its name. Raises NotValid when it is not the one that is wanted."""
    with part.open("rb") as stream:
        pointer = stream.read(len(_LFS)) == _LFS
    digest = _sha256(part)
    _transfer.forget_version(part)
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
    return Fetched(path, path.stat().st_size, digest, sources.known_as(digest))


def _complete(url: str, part: Path, watch: Watch, timeout_s: float) -> None:
    """Ask until all bytes are in the part; after a failure wait 1, 2, 4, ... s, and give up when nothing moves."""
    failures, had = 0, _transfer.size(part)
    while True:
        try:
            _transfer.fetch(url, part, watch, timeout_s)
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
        except _PASSING as error:
            reason = _reason(error)
        failures = 1 if _transfer.size(part) > had else failures + 1
        had = max(had, _transfer.size(part))
        if failures > RETRIES:
            raise BenchError(
                f"'{url}' could not be read: {reason}, {failures} times in a row; {_transfer.size(part):,} bytes are "
                f"kept in '{part}', and the same command goes on there."
            )
        wait_s = 2.0 ** (failures - 1)
        watch.note(f"{reason} after {_transfer.size(part):,} bytes; next attempt in {wait_s:g} s.")
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

"""Opens trace files: plain or gzip text, line by line, with an error that names file and line for whatever is wrong."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path

from harness.errors import UsageError

LONGEST_LINE_BYTES = 16 << 20  # a longer one is no line of a trace
_GZIP = b"\x1f\x8b"
_FORMATS = "a trace is CSV or JSON lines, plain or gzip"


def checked(path: str) -> Path:
    """The path of an existing, non-empty, regular file; raises UsageError otherwise."""
    file = Path(path)
    try:
        if file.is_dir():
            raise UsageError(f"Trace '{path}' is a folder; name a file in it{_listing(file)}.")
        if not file.exists():
            raise UsageError(_missing(file, path))
        if not file.is_file():
            raise UsageError(f"Trace '{path}' is not a regular file; {_FORMATS}.")
        if file.stat().st_size == 0:
            raise UsageError(f"Trace '{path}' is empty; {_FORMATS}.")
    except (OSError, ValueError) as error:  # a name too long, a NUL in it, no permission
        raise UsageError(f"Trace '{path}' cannot be read: {_reason(error)}.") from None
    return file


def _missing(file: Path, path: str) -> str:
    folder = file.parent
    if not folder.is_dir():
        return f"Trace '{path}' does not exist: there is no folder '{folder}'."
    near = get_close_matches(file.name, [f.name for f in folder.iterdir()], n=1, cutoff=0.5)
    guess = f" Did you mean '{folder / near[0]}'?" if near else _listing(folder)
    return f"Trace '{path}' does not exist.{guess}" if near else f"Trace '{path}' does not exist{guess}."


def _listing(folder: Path) -> str:
    names = sorted(f.name for f in folder.iterdir() if f.is_file() and not f.name.startswith("."))
    return f"; '{folder}' holds {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}" if names else ""


def sha256(file: Path) -> str:
    """SHA-256 of the file as it lies there (compressed, if it is)."""
    try:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise UsageError(f"Trace '{file}' cannot be read: {_reason(error)}.") from None


def numbered(file: Path) -> Iterator[tuple[int, str]]:
    """(line number from 1, text without its end) of every line that is not blank; a byte order mark is dropped."""
    number = 0
    try:
        with file.open("rb") as raw:
            packed = raw.read(2) == _GZIP
        with gzip.open(file, "rb") if packed else file.open("rb") as stream:
            while line := stream.readline(LONGEST_LINE_BYTES):
                number += 1
                text = _text(line, file, number)
                if text:
                    yield number, text
    except (OSError, EOFError, zlib.error) as error:  # gzip.BadGzipFile is an OSError
        raise UsageError(f"Trace '{file}' cannot be read after line {number}: {_reason(error)}.") from None


def _text(line: bytes, file: Path, number: int) -> str:
    if b"\0" in line or (number == 1 and line[:4] == b"PAR1"):
        raise UsageError(f"Trace '{file}', line {number}: this is a binary file; {_FORMATS}.")
    if len(line) == LONGEST_LINE_BYTES:
        raise UsageError(f"Trace '{file}', line {number}: longer than {LONGEST_LINE_BYTES >> 20} MiB; {_FORMATS}.")
    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
    except UnicodeDecodeError as error:
        byte = line[error.start]
        raise UsageError(f"Trace '{file}', line {number}: byte 0x{byte:02x} is not UTF-8 text; {_FORMATS}.") from None


def _reason(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return text[:1].lower() + text[1:].rstrip(".")

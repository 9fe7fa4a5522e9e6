"""Opens trace files, plain, gzip or Zstandard: every byte is read once, hashed, and given as whole lines."""

import gzip
import hashlib
import io
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import IO, NamedTuple, cast

from harness import untrusted
from harness.errors import UsageError

LONGEST_LINE_BYTES = 16 << 20  # a longer one is no line of a trace
FORMATS = "a trace is CSV, JSON lines or Parquet; text may be packed with gzip or zstd"
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_PIECE_BYTES = 256 << 10
BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Limits:
    """What is read of a trace at most; arguments of its reader, such as `csv:max_rows=200000000`, raise it.

    `max_expansion` is how many times its size a file may unpack to.
    """

    max_rows: int = 100_000_000
    max_expansion: float = untrusted.EXPANSION
    max_line_bytes: float = LONGEST_LINE_BYTES

    def __post_init__(self) -> None:
        for name in ("max_rows", "max_expansion", "max_line_bytes"):
            value = getattr(self, name)
            if not value > 0:
                raise ValueError(f"{name} must be above 0, got {value:g}.")


USUAL = Limits()


def more(argument: str) -> str:
    """The end of a sentence that names a limit: what raises it."""
    return f"; --reader NAME:{argument}=... allows more"


def checked(path: str) -> Path:
    """The path of an existing, non-empty, regular file; raises UsageError otherwise."""
    file = Path(path)
    try:
        if file.is_dir():
            what = f", and a trace is a file{_listing(file)}"
            if next(file.glob("chunk-*-trace.csv"), None) is not None:
                draw = f"draw from it with --arrivals servegen:{file}"
                what = f" of ServeGen clients, which hold rates and no requests; {draw}"
            raise UsageError(f"Trace '{path}' is a folder{what}.")
        if not file.exists():
            raise UsageError(_missing(file, path))
        if not file.is_file():
            raise UsageError(f"Trace '{path}' is not a regular file; {FORMATS}.")
        if file.stat().st_size == 0:
            raise UsageError(f"Trace '{path}' is empty; {FORMATS}.")
    except (OSError, ValueError) as error:  # a name too long, a NUL in it, no permission
        raise UsageError(f"Trace '{path}' cannot be read: {reason(error)}.") from None
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
    return f"; '{folder}' holds {', '.join(names[:5])}{' and others' if len(names) > 5 else ''}" if names else ""


class Hashed(io.RawIOBase):
    """A file that hashes what is read from it, in order; seeking is not possible. It closes an open one it is given."""

    def __init__(self, file: Path | IO[bytes]) -> None:
        self._file = cast("io.RawIOBase", file.open("rb", buffering=0) if isinstance(file, Path) else file)
        self._sha256 = hashlib.sha256()
        self.bytes_read = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # what BufferedReader hands over
        """Fill the buffer as far as the file goes."""
        count = self._file.readinto(buffer) or 0
        self._sha256.update(buffer[:count])
        self.bytes_read += count
        return count

    def digest(self) -> str:
        """SHA-256 of the whole file: what was not read yet is read now."""
        buffer = memoryview(bytearray(1 << 20))
        while self.readinto(buffer):
            pass
        return self._sha256.hexdigest()

    def close(self) -> None:
        self._file.close()
        super().close()


class Lines(NamedTuple):
    """Whole lines as they stand in the file; the last of the file may lack its end.

    `first` is the number of the first line, `at_byte` where it begins in the unpacked file.
    """

    first: int
    data: bytes
    at_byte: int = 0


def sha256(file: Path) -> str:
    """SHA-256 of the file as it lies there (compressed, if it is)."""
    try:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise UsageError(f"Trace '{file}' cannot be read: {reason(error)}.") from None


def unpacked(hashed: Hashed) -> IO[bytes]:
    """The text of a file, unpacked if it is gzip or Zstandard."""
    raw = io.BufferedReader(hashed, 64 << 10)  # what is read ahead counts as unpacked
    start = raw.peek(4)[:4]
    if start.startswith(_GZIP):
        return gzip.GzipFile(fileobj=raw)  # type: ignore[return-value]  # all that is used of it: read1
    if start == _ZSTD:
        import pyarrow as pa

        packed: IO[bytes] = pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd")
        return packed
    return raw


def is_plain(stream: IO[bytes]) -> bool:
    """Whether what `unpacked` opened is not packed, so that a place in the text is one in the file."""
    return isinstance(stream, io.BufferedReader)


def blocks(file: Path, hashed: Hashed, stream: IO[bytes], size: int, limits: Limits = USUAL) -> Iterator[Lines]:
    """Runs of whole lines of about `size` bytes; raises UsageError where the file is damaged, after what came before.

    `stream` unpacks what `hashed` reads. A byte order mark at the start is dropped.
    """
    line, rest, failure, unpacked_bytes, at_byte = 1, b"", "", 0, 0
    while not failure:
        pieces, length = [rest], len(rest)
        while length < size and not failure:
            piece, failure = _piece(stream, size - length)
            pieces.append(piece)
            length += len(piece)
        data = b"".join(pieces)
        unpacked_bytes += length - len(rest)
        most, hint = limits.max_expansion, more("max_expansion")
        untrusted.check_expansion(file, unpacked_bytes, hashed.bytes_read, most, hint)
        end = len(data) if failure == _END else data.rfind(b"\n") + 1
        rest = data[end:]
        if end:
            whole = data[:end] if rest else data
            _check_lengths(file, line, whole, limits)
            text = whole.removeprefix(BOM) if line == 1 else whole
            yield Lines(line, text, at_byte + len(whole) - len(text))
            line += whole.count(b"\n")
            at_byte += end
        elif len(rest) >= limits.max_line_bytes:
            raise _too_long(file, line, limits)
        else:
            size = max(size, 2 * len(rest))
    if failure != _END:
        raise UsageError(f"Trace '{file}' cannot be read after line {line - 1}: {failure}.")


_END = "end of file"


def _piece(stream: IO[bytes], size: int) -> tuple[bytes, str]:
    """The next bytes, and why there will be no more."""
    try:
        read1 = getattr(stream, "read1", stream.read)
        piece: bytes = read1(min(size, _PIECE_BYTES))
    except (OSError, EOFError, zlib.error, ValueError) as error:  # gzip.BadGzipFile is an OSError; Arrow's a ValueError
        return b"", reason(error).splitlines()[0].rstrip(".")[:200]
    return piece, "" if piece else _END


def _check_lengths(file: Path, line: int, data: bytes, limits: Limits) -> None:
    if len(data) < limits.max_line_bytes:
        return
    for number, text in enumerate(data.split(b"\n"), line):
        if len(text) >= limits.max_line_bytes:
            raise _too_long(file, number, limits)


def _too_long(file: Path, line: int, limits: Limits) -> UsageError:
    longest = f"longer than {limits.max_line_bytes / 2**20:g} MiB"
    return UsageError(f"Trace '{file}', line {line}: {longest}; {FORMATS}{more('max_line')}.")


def is_text(data: bytes) -> bool:
    """Whether it is UTF-8 without NUL."""
    try:
        return b"\0" not in data and (data.isascii() or bool(data.decode()))
    except UnicodeDecodeError:
        return False


def text_of(line: bytes, file: Path, number: int) -> str:
    """A line without its end and the blanks around it; raises UsageError for what is no text."""
    if b"\0" in line:
        raise UsageError(f"Trace '{file}', line {number}: this is a binary file; {FORMATS}.")
    try:
        return line.decode().strip()
    except UnicodeDecodeError as error:
        byte = line[error.start]
        raise UsageError(f"Trace '{file}', line {number}: byte 0x{byte:02x} is not UTF-8 text; {FORMATS}.") from None


def numbered(file: Path) -> Iterator[tuple[int, str]]:
    """(line number from 1, text without its end) of every line that is not blank; a byte order mark is dropped."""
    with Hashed(file) as hashed:
        for first, data, _ in blocks(file, hashed, unpacked(hashed), 1 << 20):
            for number, line in enumerate(data.split(b"\n"), first):
                if text := text_of(line, file, number):
                    yield number, text


def reason(error: Exception) -> str:
    """The reason given by the operating system or a decoder."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return text[:1].lower() + text[1:].rstrip(".")

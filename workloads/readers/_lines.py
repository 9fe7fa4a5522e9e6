"""Opens trace files, plain, gzip or Zstandard: every byte is read once, hashed, and given as whole lines."""

import codecs
import gzip
import hashlib
import io
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import IO, Any, NamedTuple

from harness import untrusted
from harness.bounds import AtLeastOne, Checked, Positive
from harness.errors import UsageError
from workloads.readers._cells import BadRow

LONGEST_LINE_BYTES = 16 << 20  # a longer one is no line of a trace
MOST_TOKENS = 10_000_000
"""Of a prompt, or of an answer; the largest context windows of models that are served have this many."""
FORMATS = "a trace is CSV, JSON lines or Parquet; text may be packed with gzip or zstd"
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_PIECE_BYTES = 256 << 10
_DAMAGED = (OSError, EOFError, zlib.error, ValueError)  # gzip.BadGzipFile is an OSError; Arrow's are ValueErrors
_PLAIN_TEXT = "; save it as CSV or JSON lines"
_OTHERS: tuple[tuple[bytes, str], ...] = (
    (b"version https://git-lfs", "a Git LFS pointer, not the file; run 'git lfs pull' for it"),
    (b"/annex/objects", "a git-annex pointer, not the file; run 'git annex get' for it"),
    (b"<!doctype html", "an HTML page, not a trace; download the file itself, not the page that shows it"),
    (b"<html", "an HTML page, not a trace; download the file itself, not the page that shows it"),
    (b"<?xml", "XML, not a trace; a server answers so when it has no such file"),
    (b"<error", "XML, not a trace; a server answers so when it has no such file"),
    (b"%pdf", "a PDF" + _PLAIN_TEXT),
    (b"sqlite format 3\0", "an SQLite database; export the table as CSV"),
    (b"par1", "Parquet inside of gzip or zstd; unpack it"),
    (b"arrow1", "Arrow IPC (Feather); write it as Parquet"),
    (b"\xff\xff\xff\xff", "an Arrow IPC stream; write it as Parquet"),
    (b"orc", "ORC; write it as Parquet"),
    (b"obj\x01", "Avro; write it as Parquet or JSON lines"),
    (b"pk\x03\x04", "a ZIP archive: unpack it, or save it as CSV where it is an Excel sheet"),
    (b"\xd0\xcf\x11\xe0", "an Excel or Office file; save it as CSV"),
    (b"bzh", "packed with bzip2; unpack it"),
    (b"\xfd7zxz\0", "packed with xz; unpack it"),
    (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive; unpack it"),
    (b"gguf", "a model (GGUF), not a trace"),
    (b"\x89hdf", "HDF5; write it as Parquet"),
    (b"\x93numpy", "a NumPy array; write it as CSV or Parquet"),
    (b"\x80\x04", "a Python pickle; write it as CSV or Parquet"),
    (b"\x80\x05", "a Python pickle; write it as CSV or Parquet"),
    (b"\x7felf", "a program, not a trace"),
    (b"\x89png", "a picture, not a trace"),
    (b"\xff\xd8\xff", "a picture, not a trace"),
)
"""How files begin, in lower case, that are taken for traces, and what they are. Source: the formats' own pages."""
BOM = b"\xef\xbb\xbf"
_END = "end of file"


@dataclass(frozen=True, slots=True)
class Limits(Checked):
    """What is read of a trace at most; arguments of its reader, such as `csv:max_rows=200000000`, raise it.

    `max_expansion` is how many times its size a file may unpack to. Rows of more than `max_tokens` tokens of prompt or
    answer are left out, as are others that cannot be used; the file is refused where they are `max_unusable` of all.
    """

    max_rows: AtLeastOne = 100_000_000
    max_expansion: Positive = untrusted.EXPANSION
    max_line_bytes: Positive = LONGEST_LINE_BYTES
    max_tokens: AtLeastOne = MOST_TOKENS
    max_unusable: Positive = 0.5


def more(argument: str) -> str:
    """The end of a sentence that names a limit: what raises it."""
    return f"; --reader NAME:{argument}=... allows more"


def checked(path: str) -> Path:
    """The path of an existing, non-empty, regular file; raises UsageError otherwise."""
    file = Path(path)
    with untrusted.readable(f"Trace '{path}'"):  # a name too long, a NUL in it, no permission
        if file.is_dir():
            what = f", and a trace is a file{_listing(file)}"
            if next(file.glob("chunk-*-trace.csv"), None) is not None:
                draw = f"draw from it with --workload servegen:{file}"
                what = f" of ServeGen clients, which hold rates and no requests; {draw}"
            raise UsageError(f"Trace '{path}' is a folder{what}.")
        if not file.exists():
            raise UsageError(_missing(file, path))
        if not file.is_file():
            raise UsageError(f"Trace '{path}' is not a regular file; {FORMATS}.")
        if file.stat().st_size == 0:
            raise UsageError(f"Trace '{path}' is empty; {FORMATS}.")
    return file


def _missing(file: Path, path: str) -> str:
    folder = file.parent
    if not folder.is_dir():
        return f"Trace '{path}' does not exist: there is no folder '{folder}'."
    matches = get_close_matches(file.name, [f.name for f in folder.iterdir()], n=1, cutoff=0.5)
    guess = f" Did you mean '{folder / matches[0]}'?" if matches else _listing(folder)
    return f"Trace '{path}' does not exist.{guess}" if matches else f"Trace '{path}' does not exist{guess}."


def _listing(folder: Path) -> str:
    names = sorted(f.name for f in folder.iterdir() if f.is_file() and not f.name.startswith("."))
    return f"; '{folder}' holds {', '.join(names[:5])}{' and others' if len(names) > 5 else ''}" if names else ""


class Hashed(io.RawIOBase):
    """A file that hashes what is read from it, in order; seeking is not possible."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._stream = file.open("rb", buffering=0)
        self._sha256 = hashlib.sha256()
        self.bytes_read = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # what BufferedReader hands over
        """Fill the buffer as far as the file goes."""
        count = self._stream.readinto(buffer) or 0
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
        self._stream.close()
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
    with untrusted.readable(f"Trace '{file}'"), file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def unpacked(hashed: Hashed) -> IO[bytes]:
    """The text of a file as UTF-8, unpacked if it is gzip or Zstandard; raises UsageError where it is damaged."""
    raw = io.BufferedReader(hashed, 64 << 10)  # what is read ahead counts as unpacked
    stream: Any = raw
    if raw.peek(2).startswith(_GZIP):
        stream = gzip.GzipFile(fileobj=raw)
    elif raw.peek(4).startswith(_ZSTD):
        import pyarrow as pa

        stream = io.BufferedReader(pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd"), _PIECE_BYTES)
    try:
        start = stream.peek(4)[:4]
    except _DAMAGED as error:
        raise UsageError(f"Trace '{hashed.file}' cannot be read after line 0: {reason(error)[:200]}.") from None
    encoding = _wide_encoding(start)
    return codecs.EncodedFile(stream, "utf-8", encoding) if encoding else stream


def _wide_encoding(start: bytes) -> str | None:
    """The encoding of a text in UTF-32, or in UTF-16 as Excel and PowerShell write it, by its first four bytes."""
    if start in (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE):
        return "utf-32"
    if start[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return "utf-16"
    zeros = [byte == 0 for byte in start]
    if zeros == [False, True, False, True]:
        return "utf-16-le"
    return "utf-16-be" if zeros == [True, False, True, False] else None


def other(stream: Any) -> str | None:
    """What a file that `unpacked` opened is, where it is known to be no trace by how it begins."""
    try:
        start: bytes = stream.peek(4096)[:4096]
    except _DAMAGED:  # the first block says so
        return None
    text = start.removeprefix(BOM).lstrip().lower()
    if start[7:10] == b'\0{"':
        return "a model (safetensors), not a trace"
    if start[257:262] == b"ustar":
        return "a tar archive; unpack it"
    return next((what for begin, what in _OTHERS if text.startswith(begin)), None)


def is_plain(stream: IO[bytes]) -> bool:
    """Whether what `unpacked` opened is not packed, so that a place in the text is one in the file."""
    return isinstance(stream, io.BufferedReader) and isinstance(stream.raw, Hashed)


def blocks(file: Path, hashed: Hashed, stream: IO[bytes], size: int, limits: Limits) -> Iterator[Lines]:
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
            run = data[:end] if rest else data
            _check_lengths(file, line, run, limits)
            text = run.removeprefix(BOM) if line == 1 else run
            yield Lines(line, text, at_byte + len(run) - len(text))
            line += run.count(b"\n")
            at_byte += end
        elif len(rest) >= limits.max_line_bytes:
            raise _too_long(file, line, limits)
        else:
            # Twice as much each time: with equal steps a line of n bytes would be copied n / size times.
            size = max(size, 2 * len(rest))
    if failure != _END:
        raise UsageError(f"Trace '{file}' cannot be read after line {line - 1}: {failure}.")


def _piece(stream: IO[bytes], size: int) -> tuple[bytes, str]:
    """The next bytes, and why there will be no more."""
    try:
        recoded = isinstance(stream, codecs.StreamRecoder)  # its `read1` is that of what it recodes
        read1 = stream.read if recoded else getattr(stream, "read1", stream.read)
        piece: bytes = read1(min(size, _PIECE_BYTES))
    except _DAMAGED as error:
        return b"", reason(error)[:200]
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


def no_row(error: UsageError) -> BadRow:
    """The error of a line that is no row of a trace."""
    return BadRow(str(error), None, str(error).partition(", ")[2].rstrip("."))


def numbered(file: Path) -> Iterator[tuple[int, str]]:
    """(line number from 1, text without its end) of every line that is not blank; a byte order mark is dropped."""
    with Hashed(file) as hashed:
        for first, data, _ in blocks(file, hashed, unpacked(hashed), 1 << 20, Limits()):
            for number, line in enumerate(data.split(b"\n"), first):
                if text := text_of(line, file, number):
                    yield number, text


def reason(error: Exception) -> str:
    """The reason given by the operating system or a decoder."""
    text = untrusted.reason(error)
    return text[:1].lower() + text[1:]

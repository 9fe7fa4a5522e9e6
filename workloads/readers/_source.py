"""Opens a trace as blocks of rows, whatever it is: CSV, JSON lines, a JSON list, Parquet, packed or not.

The JSON files of a folder, or of a ZIP or tar archive, are one trace: file after file.
"""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, Literal, NamedTuple, NoReturn, cast

from harness import untrusted
from harness.errors import UsageError
from workloads.readers import _csv, _json, _lines, _plain
from workloads.readers._block import Block
from workloads.readers._cells import shown_columns

Form = Literal["csv", "json", "parquet"]
FORMS: Mapping[str, str] = {"csv": "CSV with a header line", "json": "JSON lines", "parquet": "Parquet"}
BLOCK_BYTES = 8 << 20

ENDINGS = tuple(f".{form}{packed}" for form in ("json", "jsonl") for packed in ("", ".gz", ".zst"))
_TAR = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2", ".tar.zst")


@dataclass(frozen=True, slots=True)
class Source:
    """An open file: its columns, its rows in blocks (once), and its hash, for which the rest of it is read.

    `plain` are the files whose bytes the places of the blocks count, one behind the other; none where they are packed.
    """

    file: Path
    form: Form
    columns: tuple[str, ...]
    blocks: Iterator[Block]
    sha256: Callable[[], str]
    close: Callable[[], None]
    size_bytes: int
    metadata: Mapping[str, str] = field(default_factory=dict)
    plain: tuple[Path, ...] = ()
    where: str = ""  # ', line 1' of the names of the columns

    def require(self, needs: tuple[str, ...], reader: str, form: str) -> None:
        """Raise UsageError unless every column that the reader needs is there."""
        if form != self.form:
            self._refuse(f"reader '{reader}' needs {FORMS[form]}, this file seems to be {FORMS[self.form]}")
        missing = [n for n in needs if n not in self.columns]
        if missing:
            what = f"missing column '{missing[0]}'; found: {shown_columns(self.columns)}"
            self._refuse(f"{what}; reader '{reader}' needs {', '.join(needs)}")

    def _refuse(self, message: str) -> NoReturn:
        raise UsageError(f"Trace '{self.file}'{self.where}: {message}.")


def open_source(path: str, block_bytes: int, limits: _lines.Limits) -> Source:
    """The file, or the JSON files of a folder or archive; raises UsageError where it is none of the known forms."""
    if holds_files(path):
        return _open_files(Files(path, limits), block_bytes, limits)
    file = _lines.checked(path)
    size_bytes = file.stat().st_size
    try:
        hashed = _lines.Hashed(file)
    except OSError as error:
        raise UsageError(f"Trace '{path}' cannot be read: {_lines.reason(error)}.") from None
    with file.open("rb") as start:
        if start.read(4) == _plain.MAGIC:
            hashed.close()
            return _open_parquet(file, block_bytes, limits)
    stream = _lines.unpacked(hashed)
    if what := _lines.other(stream):
        raise UsageError(f"'{file}' is {what}.")
    number, text, runs = _first_line(file, _lines.blocks(file, hashed, stream, block_bytes, limits))

    def sha256() -> str:
        assert stream  # a stream that is forgotten closes the file
        return hashed.digest()

    if text[0] in "{[":
        first, objects = _json.open_objects(file, text, runs, limits)
        size = {"bench.block_tokens": str(first["block_tokens"])} if "block_tokens" in first else {}
        plain = (file,) if _lines.is_plain(stream) else ()
        columns = _json.columns_of(first)
        return Source(
            file, "json", columns, objects, sha256, hashed.close, size_bytes, size, plain, where=f", line {number}"
        )
    sign = None
    if match := re.fullmatch('"?sep=(.?)"?', text, re.IGNORECASE):  # the first line that Excel writes or reads
        sign = match[1] or "\t"  # a bare tab at the end of a line is gone with the blanks around it
        number, text, runs = _first_line(file, _after(runs), sign)
    columns = _csv.header(file, number, text, sign or _csv.separator(text))
    blocks = _csv.blocks(file, columns, _after(runs), block_bytes, sign or _csv.separator(text))
    return Source(file, "csv", columns, blocks, sha256, hashed.close, size_bytes, where=f", line {number}")


def _open_files(files: Files, block_bytes: int, limits: _lines.Limits) -> Source:
    """Members as one source; the columns are those of the first object of the first."""

    def blocks() -> Iterator[Block]:
        start = before_bytes = 0
        for file, hashed, stream in files:
            runs = _lines.blocks(file, hashed, stream, block_bytes, limits)
            number, text, runs = _first_line(file, runs)
            if text[0] not in "{[":
                raise UsageError(f"Trace '{file}', line {number}: in a folder or archive of traces all are JSON.")
            for block in _json.open_objects(file, text, runs, limits)[1]:
                yield replace(block.behind(before_bytes), start=start)
                start += block.size
            before_bytes += hashed.bytes_read

    try:
        rows = blocks()
        first = next(rows)
    except BaseException:
        files.close()
        raise
    rest = chain([first], rows)
    return Source(files.path, "json", first.columns, rest, files.sha256, files.close, files.size_bytes, {}, files.plain)


def _open_parquet(file: Path, block_bytes: int, limits: _lines.Limits) -> Source:
    table = _plain.open_table(file, limits)
    blocks = _plain.blocks(file, table, _plain.rows_of(table, block_bytes), limits)
    columns, metadata = _plain.columns(table), _plain.metadata(table)
    size_bytes = file.stat().st_size
    return Source(file, "parquet", columns, blocks, lambda: _lines.sha256(file), table.close, size_bytes, metadata)


def _first_line(
    file: Path, runs: Iterator[_lines.Lines], sign: str | None = None
) -> tuple[int, str, Iterator[_lines.Lines]]:
    """Number and text of the first line that is neither blank nor a comment, and the runs from that line on.

    The last comment that names the columns of the row of numbers behind it is the header, as NumPy writes it.
    """
    comments: list[tuple[int, str]] = []
    for first, data, at_byte in runs:
        begin = 0
        for number, line in enumerate(data.split(b"\n"), first):
            text = _lines.text_of(line, file, number)
            if text.startswith("#"):
                comments.append((number, text.lstrip("# ")))
            elif text:
                for named_at, names in reversed(comments):
                    if _csv.names_columns(names, text, sign or _csv.separator(names)):  # a blank line in its place
                        rows = _lines.Lines(number - 1, b"\n" + data[begin:], at_byte + begin - 1)
                        return named_at, names, chain([rows], runs)
                return number, text, chain([_lines.Lines(number, data[begin:], at_byte + begin)], runs)
            begin += len(line) + 1
    raise UsageError(f"Trace '{file}' holds only blank lines and comments; {_lines.FORMATS}.")


def _after(runs: Iterator[_lines.Lines]) -> Iterator[_lines.Lines]:
    """The same without the first line."""
    number, data, at_byte = next(runs)
    end = data.find(b"\n") + 1
    if end:
        yield _lines.Lines(number + 1, data[end:], at_byte + end)
    yield from runs


class Member(NamedTuple):
    """One file: its name under the folder or archive, and what opens it."""

    name: str
    open: Callable[[], IO[bytes] | None]


class Files:
    """The members of `path` with names that a JSON trace has, hidden ones left out: a folder's in order of their names,
    an archive's in its own order.

    Raises UsageError where there is none, and for an archive that is damaged or unpacks to far more than traces do.
    """

    def __init__(self, path: str, limits: _lines.Limits) -> None:
        self.path = Path(path)
        self._limits = limits
        self._unpacked_bytes = 0
        self._stack = ExitStack()
        try:
            self._members = [member for member in self._found() if _is_one(member.name)]
        except (OSError, tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error) as error:
            self._damaged(error)
        if not self._members:
            self.close()
            raise UsageError(f"Trace '{path}' holds no file that ends in {', '.join(ENDINGS)}.")
        self._sha256: dict[str, str] = {}

    def _found(self) -> Iterator[Member]:
        if self.path.is_dir():
            for file in sorted(self.path.rglob("*")):
                if file.is_file():
                    yield Member(str(file.relative_to(self.path)), partial(io.FileIO, file))
        elif zipfile.is_zipfile(self.path):
            archive = self._stack.enter_context(zipfile.ZipFile(self.path))
            for info in archive.infolist():
                self._check(info.file_size)
                if not info.is_dir():
                    yield Member(info.filename, partial(archive.open, info))
        else:
            packed = self._stack.enter_context(tarfile.open(self.path))  # noqa: SIM115  # the stack closes it
            for entry in packed:
                self._check(entry.size)
                if entry.isfile():
                    yield Member(entry.name, partial(packed.extractfile, entry))

    def _check(self, size_bytes: int) -> None:
        self._unpacked_bytes += size_bytes
        most, hint = self._limits.max_expansion, _lines.more("max_expansion")
        untrusted.check_expansion(self.path, self._unpacked_bytes, self.path.stat().st_size, most, hint)

    def __iter__(self) -> Iterator[tuple[Path, _lines.Hashed, IO[bytes]]]:
        """Every member with a path to name it by, open, and what unpacks it; one at a time."""
        for name, opened in self._members:
            try:
                with _lines.Hashed(cast("IO[bytes]", opened())) as hashed:
                    stream = _lines.unpacked(hashed)
                    yield self.path / name, hashed, stream
                    self._sha256[name] = hashed.digest()
            except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error) as error:
                self._damaged(error)

    @property
    def plain(self) -> tuple[Path, ...]:
        """The members of a folder where none is packed, in the order in which they are read; none of an archive."""
        names = [name for name, _ in self._members]
        packed = not self.path.is_dir() or any(name.lower().endswith((".gz", ".zst")) for name in names)
        return () if packed else tuple(self.path / name for name in names)

    @property
    def size_bytes(self) -> int:
        """Of the archive, or of all members of the folder."""
        if self.path.is_dir():
            return sum((self.path / name).stat().st_size for name, _ in self._members)
        return self.path.stat().st_size

    def sha256(self) -> str:
        """Of the archive; of a folder that of the lines 'SHA-256  name' of its members, as `sha256sum` prints them."""
        if not self.path.is_dir():
            return _lines.sha256(self.path)
        digests = self._sha256
        lines = (f"{digests.get(name) or _lines.sha256(self.path / name)}  {name}\n" for name, _ in self._members)
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def close(self) -> None:
        self._stack.close()

    def _damaged(self, error: Exception) -> NoReturn:
        self.close()
        raise UsageError(f"Trace '{self.path}' cannot be read: {_lines.reason(error)}.") from None


def holds_files(path: str) -> bool:
    """Whether it is a folder with JSON files, or an archive."""
    file = Path(path)
    try:
        if file.is_dir():
            return any(_is_one(member.name) for member in file.rglob("*.json*"))
        return file.name.lower().endswith(_TAR) or (file.is_file() and zipfile.is_zipfile(file))
    except (OSError, ValueError):  # the one who opens it says why
        return False


def _is_one(name: str) -> bool:
    parts = Path(name).parts
    return name.lower().endswith(ENDINGS) and not any(part.startswith((".", "__MACOSX")) for part in parts)

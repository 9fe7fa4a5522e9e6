"""Opens a trace as blocks of rows, whatever it is: CSV, JSON lines, a JSON list, Parquet, packed or not.

The JSON files of a folder are one trace: file after file.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np

from harness import untrusted
from harness.errors import UsageError
from workloads.readers import _csv, _json, _lines, _plain
from workloads.readers._block import MISSING, Block
from workloads.readers._cells import EmptyFile, shown_columns

Form = Literal["csv", "json", "parquet"]
FORMS: Mapping[str, str] = {"csv": "CSV with a header line", "json": "JSON lines", "parquet": "Parquet"}
BLOCK_BYTES = 8 << 20

ENDINGS = tuple(f".{form}{packed}" for form in ("json", "jsonl") for packed in ("", ".gz", ".zst"))


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
    block_tokens: str = ""  # as the file states them
    plain: tuple[Path, ...] = ()
    where: str = ""  # ', line 1' of the names of the columns

    def require(self, needs: tuple[str, ...], reader: str, form: str) -> None:
        """Raise UsageError unless every column that the reader needs is there."""
        missing = [n for n in needs if n not in self.columns]
        if form == self.form and not missing:
            return
        what = f"reader '{reader}' needs {FORMS[form]}, this file seems to be {FORMS[self.form]}"
        if form == self.form:
            found = f"missing column '{missing[0]}'; found: {shown_columns(self.columns)}"
            what = f"{found}; reader '{reader}' needs {', '.join(needs)}"
        raise UsageError(f"Trace '{self.file}'{self.where}: {what}.")


def open_source(path: str, block_bytes: int, limits: _lines.Limits) -> Source:
    """The file, or the JSON files of a folder; raises UsageError where it is none of the known forms."""
    if files := files_in(Path(path)):
        return _open_files(Path(path), files, block_bytes, limits)
    file = _lines.checked(path)
    size_bytes = file.stat().st_size
    with untrusted.readable(f"Trace '{path}'"):
        hashed = _lines.Hashed(file)
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
        stated = str(first.get("block_tokens", ""))
        plain = (file,) if _lines.is_plain(stream) else ()
        columns = _json.columns_of(first)
        return Source(
            file, "json", columns, objects, sha256, hashed.close, size_bytes, stated, plain, where=f", line {number}"
        )
    sign = None
    if match := re.fullmatch('"?sep=(.?)"?', text, re.IGNORECASE):  # the first line that Excel writes or reads
        sign = match[1] or "\t"  # a bare tab at the end of a line is gone with the blanks around it
        number, text, runs = _first_line(file, _after(runs), sign)
    columns = _csv.header(file, number, text, sign or _csv.separator(text))
    blocks = _csv.blocks(file, columns, _after(runs), block_bytes, sign or _csv.separator(text))
    return Source(file, "csv", columns, blocks, sha256, hashed.close, size_bytes, where=f", line {number}")


def _open_files(folder: Path, files: list[Path], block_bytes: int, limits: _lines.Limits) -> Source:
    """The JSON files of a folder as one source; the columns are those of the first object of the first."""
    digests: dict[Path, str] = {}  # of files that were read

    def blocks() -> Generator[Block]:
        start = before_bytes = 0
        empty: list[EmptyFile] = []
        block: Block | None = None
        for file in files:
            with _lines.Hashed(file) as hashed:
                stream = _lines.unpacked(hashed)  # held, for one that is forgotten closes the file
                runs = _lines.blocks(file, hashed, stream, block_bytes, limits)
                try:
                    number, text, runs = _first_line(file, runs)
                    if text[0] not in "{[":
                        raise UsageError(f"Trace '{file}', line {number}: in a folder of traces all are JSON.")
                    for block in _json.open_objects(file, text, runs, limits)[1]:
                        yield replace(block.behind(before_bytes), start=start)
                        start += block.size
                except EmptyFile as no_rows:
                    empty.append(no_rows)
                before_bytes += hashed.bytes_read
                digests[file] = hashed.digest()
        if block is None:
            raise empty[0]
        for error in empty:
            yield replace(
                block, file=error.file, size=1, cells=lambda _: [MISSING], bad={0: error}, start=start,
                places=lambda: np.zeros((1, 2), np.int64),
            )  # fmt: skip
            start += 1

    def sha256() -> str:
        """That of the lines 'SHA-256  name' of the files, as `sha256sum` prints them."""
        lines = (f"{digests.get(file) or _lines.sha256(file)}  {file.relative_to(folder)}\n" for file in files)
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    rows = blocks()
    first = next(rows)
    size_bytes = sum(file.stat().st_size for file in files)
    packed = any(file.suffix.lower() in (".gz", ".zst") for file in files)
    rest, plain = chain([first], rows), () if packed else tuple(files)
    return Source(folder, "json", first.columns, rest, sha256, rows.close, size_bytes, "", plain)


def _open_parquet(file: Path, block_bytes: int, limits: _lines.Limits) -> Source:
    table = _plain.open_table(file, limits)
    blocks = _plain.blocks(file, table, _plain.rows_of(table, block_bytes), limits)
    columns, size_bytes = tuple(table.schema_arrow.names), file.stat().st_size
    stated = (table.schema_arrow.metadata or {}).get(b"bench.block_tokens", b"").decode(errors="replace")
    return Source(file, "parquet", columns, blocks, lambda: _lines.sha256(file), table.close, size_bytes, stated)


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
    raise EmptyFile(file, f"holds only blank lines and comments; {_lines.FORMATS}")


def _after(runs: Iterator[_lines.Lines]) -> Iterator[_lines.Lines]:
    """The same without the first line."""
    number, data, at_byte = next(runs)
    end = data.find(b"\n") + 1
    if end:
        yield _lines.Lines(number + 1, data[end:], at_byte + end)
    yield from runs


def files_in(folder: Path) -> list[Path]:
    """The files of a folder with names that a JSON trace has, in order, hidden ones left out; none of anything else."""
    try:
        return [
            file for file in sorted(folder.rglob("*.[jJ][sS][oO][nN]*")) if file.is_file() and _is_one(file, folder)
        ]
    except (OSError, ValueError):  # the one who opens it says why
        return []


def _is_one(file: Path, folder: Path) -> bool:
    hidden = any(part.startswith((".", "__MACOSX")) for part in file.relative_to(folder).parts)
    return file.name.lower().endswith(ENDINGS) and not hidden

"""Reads files that others wrote: JSON, TOML, YAML and Parquet within limits, so that a small file does not take all
memory, or hours; and tokenizers.

A file beyond a limit is a UsageError that names the file and the limit. Other errors are those of the decoders:
OSError, ValueError, and Arrow's.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

MOST_LEVELS = 64
"""Objects and lists inside one another; result files of other tools have ten."""
MOST_JSON_BYTES = ContextVar("MOST_JSON_BYTES", default=64 << 20)
"""`bench --max-json` sets it for a command."""
OBJECT_BYTES, VALUE_BYTES = 32, 8
"""Of the limit that a file has for each object or list, and for each value: those of results take more in it. In memory
an empty object takes 64 bytes, a short text 50."""
PIECE_BYTES = 1 << 20
MOST_TOML_BYTES = 1 << 20
"""TOML is written by hand; with keys of 64 parts this much takes 5 s."""
MOST_COLUMNS = 10_000
SMALL_BYTES = 16 << 20
"""What a file may always unpack to, whatever its own size."""
EXPANSION = 300.0
"""Times its size that a larger one may unpack to: gzip of a trace has 3 to 150, of one line again and again 690, and
Parquet of a run 4 to 80."""

_TOML_TEXT = (
    r'"""(?:[^"\\]|\\.|"(?!""))*+(?:""")?|"(?:[^"\\\n]|\\.)*+"?' + "|" + r"'''(?:[^']|'(?!''))*+(?:''')?|'[^'\n]*+'?"
)
_TOML_TOKEN = re.compile(rf"{_TOML_TEXT}|[\w-]++|(#[^\n]*+|[ \t]++)", re.DOTALL)
_TEXT = re.compile(r'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_WIDTH_BYTES = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "BYTE_ARRAY": 4}  # text stays coded; others 8


def read_text(file: Path, most_bytes: int | None = None, encoding: str = "utf-8") -> str:
    """The text of a file, of a device as far as the limit (by default that of JSON)."""
    most, data = most_bytes or MOST_JSON_BYTES.get(), bytearray()
    with open(file, "rb", opener=_without_waiting) as stream:  # which Path.open does not take
        os.set_blocking(stream.fileno(), True)
        # in pieces: one read reserves as much memory as it asks for
        while len(data) <= most and (piece := stream.read(PIECE_BYTES)):
            data += piece
    if len(data) > most:
        hint = "" if most_bytes else "; 'bench --max-json SIZE' before the command raises it"
        raise UsageError(f"'{file}' is larger than {most >> 20:,} MiB, the most that is read of such a file{hint}.")
    return data.decode(encoding)


def _without_waiting(name: str, flags: int) -> int:
    """Open a file; a named pipe that nothing writes to is empty."""
    return os.open(name, flags | os.O_NONBLOCK)


@contextmanager
def readable(where: str, hint: str = "") -> Iterator[None]:
    """Raise UsageError where what the body reads is missing or damaged: `where` begins the sentence, `hint` ends it."""
    try:
        yield
    except MemoryError:  # an ArrowException too, where Arrow has no memory
        raise
    except (OSError, ValueError, KeyError, NotImplementedError) as error:  # those of Arrow are among them
        raise UsageError(f"{where} cannot be read: {reason(error)}{hint}.") from None


def reason(error: Exception) -> str:
    """Why a file cannot be read, as its decoder or the operating system says it."""
    if isinstance(error, UnicodeDecodeError):
        return "it is not text"
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    form = {json.JSONDecodeError: "JSON", tomllib.TOMLDecodeError: "TOML"}.get(type(error))
    return (
        f"it is not {form} ({text.rstrip('.')})"
        if form
        else (text.splitlines() or ["no reason given"])[0].rstrip(" .:")
    )


def read_json(file: Path) -> Any:
    """The JSON value in a file. Raises OSError, and ValueError for what is not JSON."""
    return parse_json(read_text(file), f"'{file}'")


def read_toml(file: Path) -> dict[str, Any]:
    """The TOML table in a file. Raises OSError, and ValueError for what is not TOML."""
    return parse_toml(read_text(file, MOST_TOML_BYTES), f"'{file}'")


def parse_json(text: str | bytes, where: str, decode: Callable[[Any], Any] = json.loads) -> Any:
    """The JSON value of a text; `where` begins the sentence of an error. Raises ValueError for what is not JSON."""
    most = MOST_JSON_BYTES.get()
    small = len(text) < most // VALUE_BYTES  # for which it need not be counted
    if not small and any(
        _more(text, marks, most // size) for marks, size in (("{[", OBJECT_BYTES), (",", VALUE_BYTES))
    ):
        raise UsageError(f"{where} holds more than {most // OBJECT_BYTES:,} objects or {most // VALUE_BYTES:,} values, "
                         "the most that is read; 'bench --max-json SIZE' before the command raises it.")  # fmt: skip
    return _within_levels(decode, text, where)


def _more(text: str | bytes, marks: str, most: int) -> bool:
    """Whether a JSON text holds more of these characters, without those in its texts."""
    if isinstance(text, bytes):
        text = text.decode(errors="replace")
    return sum(map(text.count, marks)) > most and sum(map(_TEXT.sub("", text).count, marks)) > most


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """The TOML table of a text. Raises tomllib.TOMLDecodeError, a ValueError, for what is not TOML."""
    # tomllib takes a time that grows with the square of the parts of a dotted key: count them before
    skeleton = _TOML_TOKEN.sub(lambda token: "" if token[1] else "x", text)
    if "x." * MOST_LEVELS in skeleton:
        raise too_deep(where)
    table: dict[str, Any] = _within_levels(tomllib.loads, text, where)
    return table


def parse_yaml(text: str, where: str) -> Any:
    """The one YAML document of a text. Raises ValueError for what is not YAML, and UsageError without PyYAML."""
    try:
        import yaml  # optional
    except ImportError:
        raise UsageError(f"{where} is YAML; install PyYAML to read it, or convert it to JSON.") from None

    def decode(text: str) -> Any:
        # an alias is small in the file, and everything that it stands for where the value is walked
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader)):
            raise UsageError(f"{where} has YAML aliases, which are not read; write it without them, or as JSON.")
        return yaml.safe_load(text)

    if len(text) > SMALL_BYTES:
        raise UsageError(f"{where} is larger than {SMALL_BYTES >> 20:,} MiB, the most that is read of YAML.")
    try:
        return _within_levels(decode, text, where)
    except yaml.YAMLError as error:
        raise ValueError(str(error).splitlines()[0]) from None


def _within_levels(decode: Callable[[Any], Any], text: str | bytes, where: str) -> Any:
    try:
        value = decode(text)
    except RecursionError:
        raise too_deep(where) from None
    except ValueError as error:
        if not str(error).startswith("Exceeds the limit"):
            raise
        # Python's own sentence names a function of its own
        raise tomllib.TOMLDecodeError(f"a number has more than {sys.get_int_max_str_digits():,} digits") from None
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MOST_LEVELS):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if type(inner) in (dict, list)
        ]
        if not level:
            return value
    raise too_deep(where)


def too_deep(where: str) -> UsageError:
    """The error for objects or lists inside one another without end."""
    return UsageError(f"{where} is nested more than {MOST_LEVELS} levels deep, the most that is read.")


def open_parquet(file: Path, max_expansion: float = EXPANSION, hint: str = "") -> pq.ParquetFile:
    """The open file, whose text columns are read as dictionaries: `decoded` unpacks them.

    Its footer is checked before anything is unpacked, and the sizes in it are believed. `hint` says what raises the
    limit.
    """
    import pyarrow.parquet as pq  # heavy

    with pq.ParquetFile(file) as source:
        footer = source.metadata
        columns = [footer.schema.column(i) for i in range(min(footer.num_columns, MOST_COLUMNS))]
        if footer.num_columns > MOST_COLUMNS:
            raise UsageError(f"'{file}' has {footer.num_columns:,} columns, and at most {MOST_COLUMNS:,} are read.")
        groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
        unpacked_bytes = 0
        for group in groups:
            for i, column in enumerate(columns):
                part = group.column(i)
                value_bytes = max(column.length, _WIDTH_BYTES.get(column.physical_type, 8))
                if _is_nested_text(column) and part.has_dictionary_page:  # which Arrow cannot read as codes
                    value_bytes = part.total_uncompressed_size
                unpacked_bytes += max(part.total_uncompressed_size, part.num_values * value_bytes)
        check_expansion(file, unpacked_bytes, file.stat().st_size, max_expansion, hint)
    texts = [c.path for c in columns if c.physical_type == "BYTE_ARRAY" and not _is_nested_text(c)]
    return pq.ParquetFile(file, metadata=footer, read_dictionary=texts)


def _is_nested_text(column: pq.ColumnSchema) -> bool:
    return bool(column.physical_type == "BYTE_ARRAY" and column.path != column.name)  # 'tags.list.element', 'element'


def check_expansion(file: Path, unpacked_bytes: int, packed_bytes: int, most: float, hint: str = "") -> None:
    """Raise UsageError where packed bytes become far more than data do."""
    if unpacked_bytes > max(SMALL_BYTES, most * packed_bytes):
        raise UsageError(
            f"'{file}' may unpack to {unpacked_bytes / 2**20:,.0f} MiB or more, over {most:g} times its size{hint}."
        )


def read_parquet(file: Path) -> pa.Table:
    """All rows of a Parquet file."""
    with open_parquet(file) as source:  # not read_table: it would import pyarrow.dataset
        return decoded(source.read(), file)


def decoded(table: pa.Table, file: Path) -> pa.Table:
    """The same with text instead of codes; one long text in many rows takes the memory of all of them."""
    import pyarrow as pa  # heavy

    check_expansion(file, sum(map(text_bytes, table.itercolumns())), file.stat().st_size, EXPANSION)
    for i, column in enumerate(table.columns):
        if pa.types.is_dictionary(column.type) and _is_text(column.type.value_type):
            field = table.schema.field(i)
            table = table.set_column(i, field.with_type(column.type.value_type), column.cast(column.type.value_type))
    return table


def text_bytes(column: pa.Array | pa.ChunkedArray) -> int:
    """What the text of a column takes that holds codes; 0 for all others."""
    import pyarrow as pa  # heavy

    if not (pa.types.is_dictionary(column.type) and _is_text(column.type.value_type)):
        return 0
    import pyarrow.compute as pc  # heavier

    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return sum(
        pc.sum(pc.binary_length(chunk.dictionary).cast(pa.int64()).take(chunk.indices)).as_py() or 0 for chunk in chunks
    )


def _is_text(kind: pa.DataType) -> bool:
    import pyarrow as pa  # heavy

    return any(is_one(kind) for is_one in (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary,
                                           pa.types.is_large_binary))  # fmt: skip


def open_tokenizer(path: str, wanted_by: str) -> tuple[Any, str]:
    """The tokenizer, which neither cuts nor pads, and the SHA-256 of its file.

    Raises UsageError without the library (`wanted_by` begins the sentence), and for a file that is none.
    """
    try:
        from tokenizers import Tokenizer  # an optional extra
    except ImportError:
        raise UsageError(
            f"{wanted_by} needs the library tokenizers; install it with pip install 'goodput-bench[tokenizers]'."
        ) from None
    with readable(f"Tokenizer '{path}'", "; give the path of a tokenizer.json"):
        stored = Path(path).read_bytes()
    try:
        tokenizer = Tokenizer.from_buffer(stored)
    except Exception as error:  # noqa: BLE001  # the library raises Exception itself
        first = (str(error).splitlines() or [""])[0]
        raise UsageError(f"'{path}' is not a tokenizer.json of Hugging Face tokenizers: {first}.") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer, hashlib.sha256(stored).hexdigest()

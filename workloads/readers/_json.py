"""Objects of a JSON lines file, or of a file that is one JSON list, in blocks."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from harness import untrusted
from harness.data.lists import Ints
from harness.errors import UsageError
from workloads.readers import _cells, _lines
from workloads.readers._block import MISSING, Block
from workloads.readers._cells import BadRow, EmptyFile
from workloads.readers._lines import Lines

_BLANKS = " \t\r\n"
_LINES = 16
_MOST_BLOCKS = 16  # before the first object, which tells the columns
_DECODER = json.JSONDecoder()
_scan: Callable[[str, int], tuple[Any, int]] = vars(_DECODER)["scan_once"]  # what its own methods call
_DEEPEST = 4  # keys of a path, such as response.body.usage.prompt_tokens


@dataclass(slots=True)
class _Objects:
    """Some objects with the line where each starts; `texts` are theirs as written, for finding equal ones.

    `places` gives where each begins in the file, and how long it is, in bytes: (n, 2).
    """

    lines: list[int] = field(default_factory=list)
    objects: list[dict[str, object]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    places: Callable[[], Ints] = lambda: np.zeros((0, 2), np.int64)
    bad: dict[int, BadRow] = field(default_factory=dict)


def open_objects(
    file: Path, start: str, runs: Iterator[Lines], limits: _lines.Limits
) -> tuple[dict[str, object], Iterator[Block]]:
    """The first object (whose line is `start`), and the blocks; raises UsageError for what is no object.

    A first line that ends with a bracket opened begins an object over many lines, which is all that the file holds.
    """
    listed = start[0] == "["
    lines = _one_line(file, runs, limits) if start[-1] in "{[" else runs
    groups = _of_list(file, runs) if listed else _of_lines(file, lines)
    read: list[_Objects] = []
    for group in islice(groups, _MOST_BLOCKS):
        if isinstance(group, UsageError):
            raise group
        read.append(group)
        sample = next((known for row, known in enumerate(group.objects) if row not in group.bad), None)
        if sample is not None:
            return sample, _blocks(file, columns_of(sample), chain(read, groups))
    if read:
        raise read[0].bad[0]
    what = "is an empty JSON list" if listed else f"holds no JSON object but {_cells.shown(start)}"
    raise EmptyFile(file, f"{what}; {_lines.FORMATS}")


def columns_of(known: Mapping[str, object]) -> tuple[str, ...]:
    """The keys of an object, then the paths of the values inside of its objects."""
    return (*known, *_inside(known))


def _inside(known: Mapping[str, object], path: str = "", depth: int = 1) -> Iterator[str]:
    """Paths of the values inside of the objects of an object."""
    for key, value in known.items():
        if path:
            yield f"{path}{key}"
        if isinstance(value, dict) and depth < _DEEPEST:
            yield from _inside(value, f"{path}{key}.", depth + 1)


def _cell(known: Mapping[str, object], column: str) -> object:
    """The value of a key or of a path."""
    if column in known or "." not in column:
        return known.get(column, MISSING)
    for key in known:
        inner = known[key]
        if column.startswith(f"{key}.") and isinstance(inner, dict):
            return _cell(inner, column[len(key) + 1 :])
    return MISSING


def _one_line(file: Path, runs: Iterator[Lines], limits: _lines.Limits) -> Iterator[Lines]:
    """The whole file as if it were one line; it may be as long as `_LINES` of the longest lines."""
    pieces: list[bytes] = []
    size, line, begin = 0, 1, 0
    for first, data, at_byte in runs:
        line, begin = (first, at_byte) if not pieces else (line, begin)
        pieces.append(data.replace(b"\n", b" "))
        size += len(data)
        if size > _LINES * limits.max_line_bytes:
            longest = f"longer than {_LINES * limits.max_line_bytes / 2**20:g} MiB"
            raise UsageError(f"Trace '{file}': one JSON object {longest}{_lines.more('max_line')}.")
    yield Lines(line, b"".join(pieces), begin)


def _blocks(file: Path, columns: tuple[str, ...], groups: Iterable[_Objects | UsageError]) -> Iterator[Block]:
    start = 0
    for group in groups:
        if isinstance(group, UsageError):
            raise group
        yield _block(file, columns, group, start)
        start += len(group.objects)


def _block(file: Path, columns: tuple[str, ...], group: _Objects, start: int) -> Block:
    lines = group.lines
    return Block(
        file,
        columns,
        len(group.objects),
        lambda column: [_cell(o, column) for o in group.objects],
        lambda: pa.table({"text": pa.array(group.texts, pa.string())}),
        lambda row: f"line {lines[row]}",
        start=start,
        places=group.places,
        bad=group.bad,
    )


def _of_lines(file: Path, runs: Iterator[Lines]) -> Iterator[_Objects | UsageError]:
    """The objects of each run; what stands for a line that is none is empty."""
    try:
        for first, data, at_byte in runs:
            group, spans, begin = _Objects(), list[tuple[int, int]](), 0
            text, all_text = data.decode(errors="surrogateescape"), _lines.is_text(data)
            group.places = partial(_places, text, at_byte, spans)
            for number, line in enumerate(text.split("\n"), first):
                span, begin = (begin, begin + len(line)), begin + len(line) + 1
                if not (stripped := line.strip()):
                    continue
                try:
                    if not all_text:
                        _lines.text_of(line.encode(errors="surrogateescape"), file, number)
                    group.objects.append(_object(file, number, stripped))
                except UsageError as error:
                    group.bad[len(group.objects)] = _lines.no_row(error)
                    group.objects.append({})
                    stripped = ""
                group.lines.append(number)
                group.texts.append(stripped)
                spans.append(span)
            if group.objects:
                yield group
    except UsageError as error:
        yield error


def _places(text: str, at_byte: int, spans: list[tuple[int, int]]) -> Ints:
    """(n, 2) first byte and bytes of the parts of a text that begins at `at_byte`; `spans` are in characters."""
    edges = np.array(spans, np.int64).reshape(-1)
    if not text.isascii():
        cuts = [0, *edges.tolist()]
        edges = np.cumsum([len(text[a:b].encode(errors="surrogateescape")) for a, b in pairwise(cuts)])
    first, end = edges.reshape(-1, 2).T
    return np.stack((at_byte + first, end - first), axis=1)


def _object(file: Path, line: int, text: str) -> dict[str, object]:
    """The JSON object of one line; raises UsageError naming the line."""
    try:
        value, end = _scan(text, 0)
        if end == len(text) and type(value) is dict:
            return value  # of nearly all lines
    except (StopIteration, ValueError, RecursionError):
        pass  # what is wrong with it is found below
    try:
        value = untrusted.parse_json(text, f"Trace '{file}', line {line}")
    except json.JSONDecodeError as error:
        raise UsageError(
            f"Trace '{file}', line {line}: not complete JSON ({error.msg} at character {error.pos + 1})."
        ) from None
    except ValueError:
        raise UsageError(f"Trace '{file}', line {line}: not JSON of a trace.") from None
    if not isinstance(value, dict):
        raise UsageError(f"Trace '{file}', line {line}: a JSON object expected, got {_cells.shown(value)}.")
    return value


def _of_list(file: Path, runs: Iterator[Lines]) -> Iterator[_Objects | UsageError]:
    """The elements of a JSON list, as many at a time as a run completes; the list is never whole in memory."""
    text, line, before, begin = "", 1, "[", 0
    try:
        for first, data, at_byte in runs:
            line, begin = (first, at_byte) if not text else (line, begin)
            more, failure = _decoded(file, first, data)
            text += more
            group, spans = _Objects(), list[tuple[int, int]]()
            group.places = partial(_places, text, begin, spans)
            try:
                text, line, before = _elements(file, text, line, before, group, spans)
            except UsageError as error:
                failure = error
            begin = at_byte + len(data) - len(text.encode())
            if group.objects:
                yield group
            if failure:
                yield failure
                return
        if before != "]":
            yield _cut(file, line, text)
    except UsageError as error:
        yield error


def _cut(file: Path, line: int, text: str) -> UsageError:
    try:
        _DECODER.raw_decode(text or "[")
    except ValueError as error:
        why = f" ({error.msg})" if isinstance(error, json.JSONDecodeError) and text else ""
        return UsageError(f"Trace '{file}', line {line}: not complete JSON{why}: the list has no end.")
    raise AssertionError("a complete element would have been taken")


def _elements(
    file: Path, text: str, line: int, before: str, group: _Objects, spans: list[tuple[int, int]]
) -> tuple[str, int, str]:
    """Takes complete elements off the text; returns what is left, its line, and what came before it.

    `before` is '[' at the start, 'first' behind that, ',' where an element is due, '}' after one, ']' after the list.
    """
    pos = 0
    if before == "[" and text.lstrip(_BLANKS)[:1] == "[":
        pos = text.index("[") + 1
        line += text.count("\n", 0, pos)
        before = "first"
    while True:
        begin = pos
        while pos < len(text) and text[pos] in _BLANKS:
            pos += 1
        line += text.count("\n", begin, pos)
        if pos == len(text):
            return "", line, before
        if before == "}" and text[pos] == ",":
            pos, before = pos + 1, ","
        elif before in ("}", "first") and text[pos] == "]":
            pos, before = pos + 1, "]"
        elif before in (",", "first") and text[pos] == "{":
            element = _element(file, line, text, pos)
            if element is None:
                return text[pos:], line, before
            value, end = element
            group.objects.append(value)
            group.lines.append(line)
            group.texts.append(text[pos:end])
            spans.append((pos, end))
            line += text.count("\n", pos, end)
            pos, before = end, "}"
        else:
            raise _unexpected(file, line, before, text[pos : pos + 20].split("\n")[0])


def _unexpected(file: Path, line: int, before: str, text: str) -> UsageError:
    if before == "]":
        return UsageError(f"Trace '{file}', line {line}: {_cells.shown(text)} after the end of the JSON list.")
    expected = "',' or ']'" if before == "}" else "a JSON object"
    return UsageError(f"Trace '{file}', line {line}: {expected} expected in the JSON list, got {_cells.shown(text)}.")


def _element(file: Path, line: int, text: str, at: int) -> tuple[dict[str, object], int] | None:
    """The object that starts at a character and where it ends; None if its end is yet to come."""
    try:
        value, end = _DECODER.raw_decode(text, at)
    except json.JSONDecodeError as error:
        # The end of the run may cut an element, so it is wrong only where it is longer than any element.
        if len(text) - at >= _lines.LONGEST_LINE_BYTES:
            raise UsageError(f"Trace '{file}', line {line}: not complete JSON ({error.msg}).") from None
        return None
    except RecursionError:
        raise untrusted.too_deep(f"Trace '{file}', line {line}") from None
    except ValueError:
        raise UsageError(f"Trace '{file}', line {line}: not JSON of a trace.") from None
    return value, end


def _decoded(file: Path, first: int, data: bytes) -> tuple[str, UsageError | None]:
    """The text up to the first line that is none, and what is wrong with that."""
    if _lines.is_text(data):
        return data.decode(), None
    good = 0
    for number, line in enumerate(data.split(b"\n"), first):
        try:
            _lines.text_of(line, file, number)
        except UsageError as error:
            return data[:good].decode(), error
        good += len(line) + 1
    raise AssertionError("some line is no text")

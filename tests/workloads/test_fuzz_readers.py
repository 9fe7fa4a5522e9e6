"""Hostile trace files: every reader against a slow, obviously right one, whatever is done to a file."""

import csv
import gzip
import json
import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.errors import UsageError
from workloads import traces
from workloads.readers import _plain

FUZZ = settings(suppress_health_check=list(HealthCheck), deadline=None, max_examples=100)
EPOCH, START = datetime.fromisoformat("1970-01-01"), datetime.fromisoformat("2023-11-16 18:15:46.680590")
WILD_S = 30 * 365.25 * 86_400  # s from the others: no stamp of the same trace
BLOCKS = (1 << 20, 70, 1)  # bytes of a block: the file at once, a few rows, not even one


class Refused(Exception):
    """The slow reader does not take the file."""


class Grouped(Exception):
    """A count such as 25.051, which other cells of its column tell to be 25,051: the slow reader leaves that open."""


@dataclass
class Slow:
    """What the slow reader found: (seconds, prompt, output, others) of each request, and the rows left out."""

    kept: list[tuple[Any, ...]] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)

    def add(self, at_s: float, prompt: int, output: int, dropped: str | None, *others: object) -> None:
        if dropped:
            self.dropped[dropped] += 1
        else:
            self.kept.append((at_s, prompt, output, *others))


# The slow readers: the csv and json modules, row by row


def text_of(data: bytes) -> str:
    try:
        text = data.removeprefix(b"\xef\xbb\xbf").decode()
    except UnicodeDecodeError:
        raise Refused from None
    if "\0" in text or not text.strip():
        raise Refused
    return text


def csv_rows(data: bytes) -> Iterator[dict[str, str]]:
    lines = [line.rstrip("\r") for line in text_of(data).split("\n")]
    while not lines[0].strip():
        lines.pop(0)
    lines[0] = lines[0].strip()
    try:
        header = next(csv.reader(lines[:1], strict=True, skipinitialspace=True))
        rows = list(csv.reader([f"{x}\n" for x in lines[1:]], strict=True))
    except csv.Error:
        raise Refused from None
    names = [name.strip() for name in header]
    if len(set(names)) < len(names):
        raise Refused
    for row in rows:
        if len(row) == 0 or (len(row) == 1 and not row[0].strip()):
            continue
        if len(row) != len(names):
            raise Refused
        yield dict(zip(names, row, strict=True))


def json_rows(data: bytes) -> Iterator[dict[str, Any]]:
    for line in text_of(data).split("\n"):
        if line.strip():
            try:
                row = json.loads(line.strip())
            except (ValueError, RecursionError):
                raise Refused from None
            if not isinstance(row, dict):
                raise Refused
            yield row


def list_rows(data: bytes) -> Iterator[dict[str, Any]]:
    text = text_of(data)
    if not text.lstrip().startswith("["):  # then each line is an object
        yield from json_rows(data)
        return
    try:
        rows = json.loads(text.strip())
    except (ValueError, RecursionError):
        raise Refused from None
    if any(not isinstance(row, dict) for row in rows):
        raise Refused
    yield from rows


def number(cell: object) -> float:
    if isinstance(cell, str):
        if not re.fullmatch(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?", cell.strip()):
            raise Refused
        cell = float(cell.strip())
    if type(cell) not in (int, float) or not abs(cell) < 1e300 or cell < 0:
        raise Refused
    return float(cell)


def count(cell: object) -> int:
    if isinstance(cell, str) and re.fullmatch(r"[1-9]\d{0,2}([. ']\d{3})+", cell.strip(), re.ASCII):
        raise Grouped
    value = number(cell)
    if value != math.floor(value) or value >= 2**31:
        raise Refused
    return int(value)


def stamp_s(cell: str, zoned: bool) -> float:
    form = r"(\d{4}-\d\d-\d\d)([ T](\d\d)(:(\d\d)(:(\d\d)(\.(\d{1,9}))?)?)?(Z|([+-])(\d\d):?(\d\d)?)?)?"
    m = re.fullmatch(form, cell.strip(), re.ASCII)
    if not m or bool(m[10]) != zoned or not 1678 <= int(m[1][:4]) <= 2261:
        raise Refused
    hour, minute, second = (int(m[i] or 0) for i in (3, 5, 7))
    off_h, off_m = int(m[12] or 0), int(m[13] or 0)
    if hour > 23 or minute > 59 or second > 59 or off_h > 23 or off_m > 59 or (m[10] or "").endswith(":"):
        raise Refused
    try:
        day = datetime.fromisoformat(m[1])  # naive, as the epoch is
    except ValueError:
        raise Refused from None
    since = day - EPOCH + timedelta(hours=hour, minutes=minute, seconds=second)
    offset = timedelta(hours=off_h, minutes=off_m)
    whole = since + offset if m[11] == "-" else since - offset
    return round(whole.total_seconds()) * 10**9 + int((m[9] or "0").ljust(9, "0"))


def ids(cell: object, prompt: int, block: int, fewer: bool = False) -> tuple[int, ...]:
    if not isinstance(cell, list) or any(type(i) is not int or not 0 <= i < 2**63 for i in cell):
        raise Refused
    if len(cell) > -(-prompt // block) or (len(cell) < -(-prompt // block) and not fewer):
        raise Refused
    return tuple(cell)


def zero(row: tuple[str, int], other: tuple[str, int]) -> str | None:
    return next((f"{name} is 0" for name, tokens in (row, other) if tokens == 0), None)


def key(row: dict[str, Any], name: str) -> Any:
    if name not in row:
        raise Refused
    return row[name]


def check_stamps(stamps: list[float]) -> None:
    if any(abs(at_s - statistics.median(stamps[:20])) > WILD_S for at_s in stamps):
        raise Refused


def azure(data: bytes) -> Slow:
    found, first_ns, stamps = Slow(), None, []
    for row in csv_rows(data):
        if first_ns is None:
            zoned = re.search(r"([ T].*[-+]|Z\s*$)", row["TIMESTAMP"].strip()) is not None
        at_ns = stamp_s(row["TIMESTAMP"], zoned)
        first_ns = at_ns if first_ns is None else first_ns
        stamps.append(at_ns / 1e9)
        prompt, output = count(row["ContextTokens"]), count(row["GeneratedTokens"])
        found.add(
            (at_ns - first_ns) / 1e9, prompt, output, zero(("ContextTokens", prompt), ("GeneratedTokens", output))
        )
    check_stamps(stamps)
    return found


def numbered(
    rows: Iterator[dict[str, Any]],
    stamp: str,
    prompt: str,
    output: str,
    per_s: float = 1,
    others: Callable[..., Any] = lambda *_: (),
) -> Slow:
    found, first, stamps = Slow(), None, []
    for row in rows:
        at = number(key(row, stamp))
        tokens, answer = count(key(row, prompt)), count(key(row, output))
        more = others(row, tokens, answer)
        first = at if first is None else first
        stamps.append(at / per_s)
        reason = zero((prompt, tokens), (output, answer))
        if output == "Response tokens" and not answer:
            reason = "failed (Response tokens is 0)"
        found.add((at - first) / per_s, tokens, answer, reason, *more)
    check_stamps(stamps)
    return found


def burstgpt(data: bytes) -> Slow:
    def others(row: dict[str, str], prompt: int, output: int) -> tuple[str | None, ...]:
        total = row.get("Total tokens", "")
        if total and count(total) != prompt + output:
            raise Refused
        if "Log Type" not in row:
            return ()
        log = row["Log Type"].strip() or None
        return ({"API log": "api", "Conversation log": "conversation"}.get(log or "", log),)

    return numbered(csv_rows(data), "Timestamp", "Request tokens", "Response tokens", others=others)


def plain(rows: list[dict[str, Any]]) -> Slow:
    """Columns go by their usual names, which a changed file may still have: 'at  s' is one, and so is 'ts'."""
    try:
        columns = _plain.resolved(Path("any"), tuple(rows[0] if rows else ()), None)
    except UsageError:
        raise Refused from None
    unit = next(unit for unit in _plain.UNITS if unit in columns)
    return numbered(iter(rows), columns[unit], columns["prompt"], columns["output"], _plain.UNITS[unit])


def plain_csv(data: bytes) -> Slow:
    if text_of(data).lstrip()[0] in "{[":  # then it is no CSV file
        raise Refused
    return plain(list(csv_rows(data)))


def plain_jsonl(data: bytes) -> Slow:
    return plain(list(json_rows(data)))


def timed_trace(data: bytes) -> Slow:
    return numbered(json_rows(data), "timestamp", "input_length", "output_length", 1000)


def mooncake_list(data: bytes) -> Slow:
    return mooncake(data, list_rows)


def mooncake(data: bytes, rows: Callable[[bytes], Iterator[dict[str, Any]]] = json_rows) -> Slow:
    def others(row: dict[str, Any], prompt: int, output: int) -> tuple[object, ...]:
        return (ids(key(row, "hash_ids"), prompt, 512),)

    return numbered(rows(data), "timestamp", "input_length", "output_length", 1000, others)


def name(cell: object) -> str | None:
    if cell is not None and type(cell) not in (int, str):
        raise Refused
    if isinstance(cell, int) and abs(cell) >= 2**63:
        raise Refused
    return None if cell is None else str(cell).strip() or None


def bailian(data: bytes) -> Slow:
    def others(row: dict[str, Any], prompt: int, output: int) -> tuple[object, ...]:
        for column in ("chat_id", "parent_chat_id"):
            name(key(row, column))
        if has_turn[0]:
            count(key(row, "turn"))
        tag = (name(key(row, "type")),) if has_type[0] else ()
        return (ids(key(row, "hash_ids"), prompt, 16, fewer=True), *tag)

    rows = iter(list(json_rows(data)))
    first = next(json_rows(data))
    has_turn, has_type = ["turn" in first], ["type" in first]
    return numbered(rows, "timestamp", "input_length", "output_length", 1, others)


# The files: rows as they should be, in every format


def stamps(row: int, step: float) -> str:
    return (START + timedelta(seconds=row * step)).isoformat(" ") + "0"


def lines_of(form: str, rows: list[tuple[int, int]]) -> list[str]:
    at, made = 0, []
    for i, (prompt, output) in enumerate(rows):
        at += (i * 7) % 3
        blocks = list(range(-(-prompt // 512))) if form != "bailian" else list(range(-(-prompt // 16)))[: 4 + i]
        made.append(
            {
                "azure": f"{stamps(at, 0.25)},{prompt},{output}",
                "azure-2024": f"{stamps(at, 0.5)[:-1]}+00:00,{prompt},{output}",
                "burstgpt": f"{at},ChatGPT,{prompt},{output},{prompt + output},{('API', 'Chat')[i % 2]} log",
                "burstgpt-3": f"{at}.0,,3,GPT-4,{prompt},{output},{prompt + output},API log",
                "csv": f"{at / 8},{prompt},{output}",
                "jsonl": json.dumps({"at_ms": at * 10, "prompt_tokens": prompt, "output_tokens": output}),
                "timed-trace": json.dumps({"timestamp": at, "input_length": prompt, "output_length": output}),
                "mooncake": json.dumps(
                    {"timestamp": at, "input_length": prompt, "output_length": output, "hash_ids": blocks}
                ),
                "bailian": json.dumps(
                    {"chat_id": i, "parent_chat_id": i - 2 if i % 3 else -1, "timestamp": at / 1000}
                    | {"input_length": prompt, "output_length": output, "type": "text", "turn": 1, "hash_ids": blocks}
                ),
            }[form]
        )
    return made


AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens"
FORMS: dict[str, tuple[str, str, Callable[[bytes], Slow], tuple[str, ...]]] = {
    # form: reader, header, the slow reader, columns that it gives beside stamp and lengths
    "azure": ("azure", AZURE, azure, ()),
    "azure-2024": ("azure", AZURE, azure, ()),
    "burstgpt": (
        "burstgpt",
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",
        burstgpt,
        ("tag",),
    ),
    "burstgpt-3": (
        "burstgpt",
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type",
        burstgpt,
        ("tag",),
    ),
    "csv": ("csv", "at_s,prompt_tokens,output_tokens", plain_csv, ()),
    "jsonl": ("jsonl", "", plain_jsonl, ()),
    "timed-trace": ("timed-trace", "", timed_trace, ()),
    "mooncake": ("mooncake", "", mooncake, ("prefix_ids",)),
    "mooncake-list": ("mooncake", "", mooncake_list, ("prefix_ids",)),
    "bailian": ("bailian", "", bailian, ("prefix_ids", "tag")),
}

ROWS = st.lists(st.tuples(st.integers(0, 1100), st.integers(0, 900)), min_size=1, max_size=9)
HOSTILE = [
    *(b"", b" ", b"\t", b"5", b"-1", b"+3", b"nan", b"inf", b"Infinity", b"1e999", b"1e5", b"1e-400", b".5", b"5."),
    *(
        b"-0",
        b"5\x1d",
        b"5.0",
        b"007",
        b"0x1F",
        b"1_0",
        b"9" * 400,
        b"99999999999999999999",
        "\uff12".encode(),
        b"\xe9",
    ),
    *(b'"', b'"7"', b'""', b"\0", b"\r", b"\r\n", b"\n", b"\n\n", b"  \n", b",", b"\xef\xbb\xbf", b"\x1f\x8b", b"PAR1"),
    *(b"null", b"true", b"[]", b"{}", b"NaN", b"[", b"\\ud800"),
    *(b"2023-11-16", b"2023-02-30 10:00:00", b"9999-01-01 00:00:00", b"0001-01-01 00:00:00", b"2024-05-12 00:00:00Z"),
    b"2024-05-12 00:00+01",
]
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 10_000), st.sampled_from(HOSTILE)),
        st.tuples(st.just("cell"), st.integers(0, 10_000), st.sampled_from(HOSTILE)),
        st.tuples(st.just("flip"), st.integers(0, 10_000), st.integers(1, 255)),
        st.tuples(st.just("cut"), st.integers(0, 10_000), st.integers(1, 60)),
        st.tuples(st.just("end"), st.integers(0, 10_000), st.none()),
        st.tuples(st.just("again"), st.integers(0, 20), st.none()),
        st.tuples(st.just("blank"), st.integers(0, 20), st.none()),
        st.tuples(st.just("crlf"), st.integers(0, 20), st.none()),
        st.tuples(st.just("quote"), st.integers(0, 20), st.integers(0, 5)),
        st.tuples(st.just("swap"), st.integers(0, 5), st.integers(0, 5)),
        st.tuples(st.just("drop"), st.integers(0, 5), st.none()),
        st.tuples(st.just("bom"), st.none(), st.none()),
    ),
    max_size=4,
)


def changed(data: bytes, change: tuple[str, Any, Any]) -> bytes:
    kind, at, more = change
    lines = data.split(b"\n")
    row = at % len(lines) if isinstance(at, int) else 0
    place = at % (len(data) + 1) if isinstance(at, int) else 0
    cells = [line.split(b",") for line in lines]
    if kind == "put":
        return data[:place] + more + data[place:]
    if kind == "flip":
        return data[:place] + bytes(b ^ more for b in data[place : place + 1]) + data[place + 1 :]
    if kind == "cut":
        return data[:place] + data[place + more :]
    if kind == "end":
        return data[:place]
    if kind == "bom":
        return b"\xef\xbb\xbf" + data
    if kind == "swap":  # columns in another order, the header with them
        for row_cells in cells:
            if max(at, more) < len(row_cells):
                row_cells[at], row_cells[more] = row_cells[more], row_cells[at]
        return b"\n".join(b",".join(c) for c in cells)
    if kind == "drop":
        return b"\n".join(b",".join(c[:at] + c[at + 1 :]) for c in cells)
    if kind == "cell":
        cells[row][at % len(cells[row])] = more
    elif kind == "quote" and more < len(cells[row]):
        cells[row][more] = b'"' + cells[row][more] + b'"'
    elif kind == "crlf":
        cells[row][-1] += b"\r"
    lines = [b",".join(c) for c in cells]
    extra = {"again": [lines[row]], "blank": [b""]}.get(kind, [])
    return b"\n".join(lines[: row + 1] + extra + lines[row + 1 :])


# What must hold


def outcome(path: Path, reader: str | None, block_bytes: int) -> tuple[pa.Table | None, dict[str, Any], str]:
    """Table and facts, or the sentence of the refusal."""
    try:
        trace = traces.read(str(path), reader, block_bytes=block_bytes)
    except UsageError as error:
        message = str(error)
        assert str(path) in message, message
        assert "\n" not in message, message
        assert message.endswith("."), message
        assert len(message) < 700 + 2 * len(str(path)), message
        return None, {}, message
    facts: dict[str, Any] = dict(trace.facts)
    assert facts["rows"] == len(trace) + sum(facts["dropped"].values())
    assert facts["requests"] == len(trace) > 0
    return trace.table, facts, ""


def compared(path: Path, form: str, data: bytes) -> int:
    """Compare a reader with the slow one, in blocks of any size; returns how many requests both find."""
    reader, _, slow, others = FORMS[form]
    known, expected = True, None
    try:
        expected = slow(data)
    except Grouped:
        known = False
    except (Refused, KeyError, StopIteration):
        pass
    table, facts, message = outcome(path, reader, BLOCKS[0])
    if not known:
        pass
    elif expected is None and table is not None:  # the slow one refuses a file for one bad row, which is left out here
        assert facts["dropped"], table
    elif expected is None or not expected.kept:
        assert table is None, table
    else:
        assert table is not None, message
        columns = ["prompt_tokens", "output_tokens", *(c for c in others if c in table.column_names)]
        found = list(zip(*(table[c].to_pylist() for c in columns), strict=True))
        expected.kept.sort(key=lambda row: row[0])  # logs are written as answers end
        wanted = [row[1:] for row in expected.kept]
        first_s = expected.kept[0][0]
        assert wanted == [tuple(tuple(v) if isinstance(v, list) else v for v in row) for row in found]
        assert [row[0] - first_s for row in expected.kept] == pytest.approx(
            table["at_s"].to_pylist(), rel=1e-12, abs=1e-7
        )
        assert dict(expected.dropped) == facts["dropped"]
    for size in BLOCKS[1:]:
        again, facts_again, message_again = outcome(path, reader, size)
        assert message == message_again
        assert (table is None) == (again is None)
        if table is not None and again is not None:
            assert table.equals(again.combine_chunks().cast(table.schema))
        assert facts == facts_again
    return 0 if table is None else len(table)


@pytest.mark.nightly
@pytest.mark.parametrize("form", FORMS)
@given(rows=ROWS, changes=CHANGES, end=st.booleans())
@FUZZ
def test_a_reader_finds_what_the_slow_one_finds(
    tmp_path: Path, form: str, rows: list[tuple[int, int]], changes: list[tuple[str, Any, Any]], end: bool
) -> None:
    """If this failed, some damage would end in a traceback, be overlooked, or cost uncounted rows."""
    header, lines = FORMS[form][1], lines_of(form.removesuffix("-list"), rows)
    listed = ",\n".join(lines)
    text = f"[{listed}]" if form.endswith("-list") else "\n".join(([header] if header else []) + lines)
    data = text.encode() + (b"\n" if end else b"")
    for change in changes:
        data = changed(data, change)
    path = tmp_path / "trace.txt"
    path.write_bytes(data)

    assert compared(path, form, data) <= len(rows) + len(changes)  # a change may repeat a row, or cut it in two


ANY = settings(FUZZ, max_examples=100)


def pack(data: bytes, how: str) -> bytes:
    if how == "gzip":
        return gzip.compress(data, mtime=0)
    if how == "zstd":
        out = pa.BufferOutputStream()
        with pa.CompressedOutputStream(out, "zstd") as packed:
            packed.write(data)
        return out.getvalue().to_pybytes()
    rows = list(csv.DictReader(data.decode().splitlines()))
    out = pa.BufferOutputStream()
    pq.write_table(pa.table({name: [float(r[name]) for r in rows] for name in rows[0]}), out)
    return out.getvalue().to_pybytes()


@pytest.mark.nightly
@pytest.mark.parametrize("how", ["gzip", "zstd", "parquet"])
@given(rows=ROWS, changes=CHANGES)
@ANY
def test_a_damaged_package_is_refused_or_read_whole(
    tmp_path: Path, how: str, rows: list[tuple[int, int]], changes: list[tuple[str, Any, Any]]
) -> None:
    """If this failed, a download that was cut would crash a run, or pass as a shorter trace."""
    good = pack("\n".join([FORMS["csv"][1], *lines_of("csv", rows), *lines_of("csv", rows)[-1:] * 50]).encode(), how)
    data = good
    for change in changes:
        data = changed(data, change)
    path = tmp_path / "packed"
    path.write_bytes(data)
    reader = "parquet" if how == "parquet" else "csv"
    table, facts, message = outcome(path, reader, 1 << 20)
    small = outcome(path, reader, 64)

    assert message == small[2] or "cannot be read after" in message
    if table is not None and how == "gzip":  # the others have no checksum here
        assert len(rows) + 50 == facts["rows"]
    if data == good and any(p and o for p, o in rows):
        assert table is not None, message


@given(
    data=st.binary(max_size=300), start=st.sampled_from([b"", b"[", b"{", b"PAR1", b"\x1f\x8b", b"\x28\xb5\x2f\xfd"])
)
@ANY
def test_no_bytes_give_a_traceback(tmp_path: Path, data: bytes, start: bytes) -> None:
    """If this failed, some file would crash a run instead of being refused."""
    path = tmp_path / "any"
    path.write_bytes(start + data)
    table, _, message = outcome(path, None, 1 << 20)

    assert (table is None) == bool(message)


KEYS, WORDS = st.sampled_from(["from", "value", "role", "content"]), ["human", "gpt", "a b", "", "\ud800", None]
CONVERSATIONS = st.lists(st.dictionaries(KEYS, st.sampled_from(WORDS)), max_size=4)


@given(
    conversations=st.lists(
        st.dictionaries(st.sampled_from(["conversations", "id"]), CONVERSATIONS | st.integers()), max_size=4
    ),
    changes=CHANGES,
    listed=st.booleans(),
)
@ANY
def test_no_conversation_gives_a_traceback(
    tmp_path: Path, conversations: list[dict[str, Any]], changes: list[tuple[str, Any, Any]], listed: bool
) -> None:
    """If this failed, some conversation would crash a run instead of being refused."""
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tmp_path / "tokenizer.json"
    if not tokenizer.exists():
        words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "?": 1}, unk_token="?"))
        words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
        words.save(str(tokenizer))
    data = (json.dumps(conversations, indent=0) if listed else "\n".join(map(json.dumps, conversations))).encode()
    for change in changes:
        data = changed(data, change)
    path = tmp_path / "conversations.json"
    path.write_bytes(data)
    once = outcome(path, f"sharegpt:tokenizer={tokenizer}", 1 << 20)
    again = outcome(path, f"sharegpt:tokenizer={tokenizer}", 16)

    assert once[1:2] == again[1:2]
    assert (once[0] is None) == (again[0] is None)

"""Files as strangers have them: other units of time, bad rows, other encodings, and files that are no trace."""

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from harness.errors import UsageError
from workloads import traces
from workloads.trace_tools import info

HEAD = "timestamp,prompt_tokens,output_tokens"
EPOCH_S = 1_715_299_200
AT_S = np.round(np.cumsum(np.linspace(0.1, 0.6, 60)), 3)  # 60 rows over 20.9 s
SPAN_S = float(AT_S[-1] - AT_S[0])


def table(stamps: list[str], head: str = HEAD) -> str:
    return "\n".join([head, *(f"{stamp},{100 + i},20" for i, stamp in enumerate(stamps))]) + "\n"


def read(folder: Path, content: str | bytes, name: str = "t.csv", **options: str) -> traces.Trace:
    file = folder / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return traces.read(str(file), **options)


EXACT = [round(at * 1000) for at in AT_S]  # ms
UNITS = {
    "seconds": ([f"{EPOCH_S + at}" for at in AT_S], None),
    "milliseconds": ([f"{EPOCH_S * 1000 + at}" for at in EXACT], "milliseconds since 1970"),
    "floats of milliseconds": ([f"{EPOCH_S * 1000 + at}.5" for at in EXACT], "milliseconds since 1970"),
    "microseconds": ([f"{EPOCH_S * 10**6 + at * 1000}" for at in EXACT], "microseconds since 1970"),
    "nanoseconds": ([f"{EPOCH_S * 10**9 + at * 10**6}" for at in EXACT], "nanoseconds since 1970"),
    "days of Excel": ([f"{45422 + at / 86400:.12f}" for at in AT_S], "days since 1899"),
    "dates of BigQuery": ([f"2024-05-10 00:00:{int(at):02}.{round(at % 1 * 1000):03} UTC" for at in AT_S], None),
    "dates with nanoseconds": (
        [f"2024-05-10T00:00:{int(at):02}.{round(at % 1 * 1000):03}000000Z" for at in AT_S],
        None,
    ),
    "dates of the USA": ([f"05/10/2024 12:00:{int(at):02}.{round(at % 1 * 1000):03} AM" for at in AT_S], None),
    "dates of Germany": ([f"10.05.2024 00:00:{int(at):02}.{round(at % 1 * 1000):03}" for at in AT_S], None),
    "dates of Japan": ([f"2024/05/10 00:00:{int(at):02}.{round(at % 1 * 1000):03}" for at in AT_S], None),
    "dates of RFC 1123": ([f"Fri 10 May 2024 00:00:{int(at):02}.{round(at % 1 * 1000):03} GMT" for at in AT_S], None),
    "dates of Apache": ([f"[10/May/2024:00:00:{int(at):02}.{round(at % 1 * 1000):03} +0000]" for at in AT_S], None),
    "dates of PostgreSQL": ([f"10-May-2024 00:00:{int(at):02}.{round(at % 1 * 1000):03}" for at in AT_S], None),
    "basic dates of ISO": ([f"20240510T0000{int(at):02}.{round(at % 1 * 1000):03}Z" for at in AT_S], None),
    "times since the start": ([f"00:00:{int(at):02}.{round(at % 1 * 1000):03}" for at in AT_S], None),
    "seconds with their unit": ([f"{at}s" for at in AT_S], None),
    "milliseconds with their unit": ([f"{at} ms" for at in EXACT], None),
    "relative seconds": ([f"{at}" for at in AT_S], None),
}


@pytest.mark.parametrize("name", UNITS)
def test_the_unit_of_stamps_is_recognised(tmp_path: Path, name: str) -> None:
    """60 requests of 21 s were replayed in 6 h or 252 days, without a warning."""
    stamps, note = UNITS[name]
    trace = read(tmp_path, table(stamps))

    assert SPAN_S == pytest.approx(float(trace.at_s[-1]), abs=2e-3)
    notes = [text for text in trace.facts["oddities"] if "is read as" in text]
    assert ([] if note is None else [f"timestamp is read as {note}"]) == [
        text[: 21 + len(note or "")] for text in notes
    ]


@pytest.mark.parametrize("form", ["jsonl", "mooncake", "parquet", "timestamp_ms"])
def test_the_unit_is_recognised_in_every_format(tmp_path: Path, form: str) -> None:
    """A format would keep its mistake."""
    if form == "parquet":
        columns = {"timestamp": [EPOCH_S * 10**9 + at * 10**6 for at in EXACT], "prompt_tokens": [9] * 60}
        parquet.write_table(pa.table({**columns, "output_tokens": [1] * 60}), tmp_path / "t.parquet")
        trace = traces.read(str(tmp_path / "t.parquet"))
    elif form == "timestamp_ms":  # microseconds in a column of milliseconds
        trace = read(tmp_path, table(UNITS["microseconds"][0], "timestamp_ms,prompt_tokens,output_tokens"))
    else:
        names = ("input_length", "output_length") if form == "mooncake" else ("prompt_tokens", "output_tokens")
        per_s = 1 if form == "mooncake" else 1000  # Mooncake's rows have milliseconds
        lines = [
            f'{{"timestamp": {EPOCH_S * per_s + at * per_s / 1000}, "{names[0]}": 9, "{names[1]}": 1}}' for at in EXACT
        ]
        trace = read(tmp_path, "\n".join(lines), "t.jsonl")

    assert SPAN_S == pytest.approx(float(trace.at_s[-1]), abs=2e-3)


def test_stamps_of_a_stated_unit_are_not_doubted(tmp_path: Path) -> None:
    """A trace in nanoseconds that begins after 20 minutes would be taken for one in milliseconds since 1970."""
    stamps = [f"{1_300_000_000_000 + at * 10**6}" for at in EXACT]
    trace = read(tmp_path, table(stamps), reader="at_ns=timestamp,prompt=prompt_tokens,output=output_tokens")

    assert SPAN_S == pytest.approx(float(trace.at_s[-1]))


def test_mixed_units_lose_no_row_in_silence(tmp_path: Path) -> None:
    """Half a file in milliseconds would be replayed after 54,000 years."""
    stamps = [*UNITS["seconds"][0][:50], *UNITS["milliseconds"][0][50:]]
    trace = read(tmp_path, table(stamps))

    assert 50 == len(trace)
    assert any("10 rows left out: no usable timestamp (line 52: a stamp decades" in t for t in trace.facts["oddities"])


@pytest.mark.parametrize(
    ("stamps", "words"),
    [
        ([f"{at}" for at in EXACT], "one every 354 s"),
        ([f"{at / 1e6:.9f}" for at in AT_S], "requests/s)"),
        ([f"{(11_644_473_600 + EPOCH_S) * 10**7 + at * 10**4}" for at in EXACT], "one every 3,542,373 s"),  # of Windows
    ],
)
def test_an_implausible_rate_is_a_warning(tmp_path: Path, stamps: list[str], words: str) -> None:
    """Milliseconds from zero on, or ticks from 1601 on, may be seconds, but the rate of such a trace is odd."""
    trace = read(tmp_path, table(stamps))
    doubt = next(text for text in trace.facts["oddities"] if "--reader at_ms=timestamp" in text)

    assert words in doubt
    assert doubt in info.check(str(tmp_path / "t.csv"))["odd"]


def test_one_far_stamp_takes_no_memory(tmp_path: Path) -> None:
    """Sixty rows took 162 GiB of bins."""
    trace = read(tmp_path, table([*(f"{at}" for at in AT_S[:59]), "900000000"]))

    assert 60 == len(trace)
    assert 899_999_999 < info.of(trace)["span_s"]


BAD_CELLS = ["", "nan", "None", "-5", "1e300", "99999999999999", "12abc", "1.5"]


@pytest.mark.parametrize("cell", BAD_CELLS)
@pytest.mark.parametrize("column", [0, 1, 2])
def test_a_row_with_a_bad_cell_is_left_out_and_counted(tmp_path: Path, cell: str, column: int) -> None:
    """One bad row refused a file of a million."""
    if (column, cell) == (0, "1.5"):
        pytest.skip("a good stamp")
    rows = [[f"{at}", "100", "20"] for at in AT_S]
    rows[7][column] = rows[8][column] = cell
    trace = read(tmp_path, "\n".join([HEAD, *map(",".join, rows)]))
    name = HEAD.split(",")[column]

    assert 58 == len(trace)
    assert f"2 rows left out: no usable {name} (line 9: " in " ".join(map(str, trace.facts["oddities"]))
    assert 60 == trace.facts["rows"]


@pytest.mark.parametrize("line", [b"1,2", b"1,2,3,4,5", b"\xff\xfe,1,1", b"\x00\x00\x00", b'"7.1,1,1'])
def test_a_line_that_is_no_row_is_left_out(tmp_path: Path, line: bytes) -> None:
    """A line cut by a crash refused the whole file."""
    lines = table([f"{at}" for at in AT_S]).encode().splitlines()
    trace = read(tmp_path, b"\n".join([*lines, line]) + b"\n")

    assert 60 == len(trace)
    assert "1 row left out: no row of a trace (line 62: " in " ".join(map(str, trace.facts["oddities"]))


@pytest.mark.parametrize("line", ["{", '{"timestamp": 5, "inp', "[]", "null", '{"timestamp": 5}', "\udcff"])
def test_a_json_line_that_cannot_be_used_is_left_out(tmp_path: Path, line: str) -> None:
    """A line cut by a crash refused the whole file."""
    lines = [f'{{"timestamp": {at}, "input_length": 9, "output_length": 1}}' for at in EXACT]
    for bad_first in (False, True):
        whole = "\n".join([line, *lines] if bad_first else [*lines[:30], line, *lines[30:]])
        if bad_first and not line.endswith("inp"):
            continue  # the first line tells the form of the file
        trace = read(tmp_path, whole.encode(errors="surrogateescape"), "t.jsonl")

        assert 60 == len(trace)
        assert 1 == sum(trace.facts["dropped"].values())


def test_a_file_of_mostly_bad_rows_is_refused_with_the_reason(tmp_path: Path) -> None:
    """A wrong column would be sent as the few rows that happen to have a number."""
    rows = "\n".join([HEAD, *(f"{at},100,{'20' if i < 25 else 'x'}" for i, at in enumerate(AT_S))])
    with pytest.raises(UsageError, match=r"line 27, column 'output_tokens'.*35 of 60 rows cannot be used"):
        read(tmp_path, rows)

    assert 25 == len(read(tmp_path, rows, reader="csv:max_unusable=0.9"))


def test_the_most_tokens_of_a_row_are_an_option(tmp_path: Path) -> None:
    """One row of 2 billion tokens would fill any server, or a long one could not be sent."""
    rows = table([f"{at}" for at in AT_S]) + "30,20000000,5\n"

    assert 60 == len(read(tmp_path, rows))
    assert 61 == len(read(tmp_path, rows, reader="csv:max_tokens=30000000"))
    assert 50 == len(read(tmp_path, rows, reader="csv:max_tokens=149"))


GERMAN = "Zeit;prompt_tokens;output_tokens\r\n0,5;1.000;20\r\n1,25;2.500;30\r\n2,75;300;40\r\n"
ENCODINGS: dict[str, Callable[[str], bytes]] = {
    "utf-16": lambda text: text.encode("utf-16"),
    "utf-16-le without a mark": lambda text: text.encode("utf-16-le"),
    "utf-16-be": lambda text: b"\xfe\xff" + text.encode("utf-16-be"),
    "utf-8 with a mark": lambda text: text.encode("utf-8-sig"),
    "UTF-16 in gzip": lambda text: gzip.compress(text.encode("utf-16")),
    "UTF-16 in zstd": lambda text: pa.Codec("zstd").compress(text.encode("utf-16"), asbytes=True),
    "UTF-32": lambda text: text.encode("utf-32"),
    "UTF-32 in gzip": lambda text: gzip.compress(b"\0\0\xfe\xff" + text.encode("utf-32-be")),
}


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("text", [GERMAN, GERMAN.replace(";", "\t"), GERMAN.replace("\r\n0,5;", '\r\n"0,5";')])
def test_the_german_form_of_excel_is_read(tmp_path: Path, encoding: str, text: str) -> None:
    """Excel's 'Unicode text' was a binary file, and a decimal comma a column."""
    trace = read(tmp_path, ENCODINGS[encoding](text), reader="at=Zeit,prompt=prompt_tokens,output=output_tokens")

    assert [0.0, 0.75, 2.25] == trace.at_s.tolist()
    assert [1000, 2500, 300] == trace.table["prompt_tokens"].to_pylist()


OTHERS = {
    "a Git LFS pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n",
    "an HTML page": b"\n<!DOCTYPE html>\n<html><body>404</body></html>\n",
    "XML": b'<?xml version="1.0"?><Error><Code>NoSuchKey</Code></Error>',
    "a PDF": b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n",
    "safetensors": (90).to_bytes(8, "little") + b'{"__metadata__":{"format":"pt"}}' + b"\0" * 70,
    "an SQLite database": b"SQLite format 3\0" + b"\x10\0" * 50,
    "Parquet inside of gzip": gzip.compress(b"PAR1" + b"\0" * 50),
    "Arrow IPC": b"ARROW1\0\0" + b"\xff" * 20,
    "an Excel or Office file": b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0" * 50,
    "a model (GGUF)": b"GGUF\3\0\0\0" + b"\0" * 50,
    "a Python pickle": b"\x80\x04\x95" + b"\0" * 50,
}


@pytest.mark.parametrize("what", OTHERS)
@pytest.mark.parametrize("name", ["t.csv", "t.jsonl"])
def test_a_file_that_is_no_trace_is_named(tmp_path: Path, what: str, name: str) -> None:
    """'No reader knows the columns version https://git-lfs' helps no reader."""
    with pytest.raises(UsageError) as caught:
        read(tmp_path, OTHERS[what], name)

    assert f"{what}" in str(caught.value)


LOGS = {
    "spend log of LiteLLM": '{{"startTime": "2024-05-10T00:00:{s:06.3f}", "endTime": "2024-05-10T00:01:00", '
    '"prompt_tokens": {p}, "completion_tokens": 20, "messages": {{}}, "response": {{}}}}',
    "responses of OpenAI's API": '{{"created": 17152992{s:06.3f}, "usage": {{"prompt_tokens": {p}, '
    '"completion_tokens": 20}}}}',
    "requests and responses": '{{"timestamp": 17152992{s:06.3f}, "request": {{"messages": []}}, "response": {{"body": '
    '{{"usage": {{"prompt_tokens": {p}, "completion_tokens": 20, "total_tokens": 5}}}}}}}}',
    "observations of Langfuse": '{{"id": "o", "startTime": "2024-05-10T00:00:{s:06.3f}Z", "usage": {{"input": {p}, '
    '"output": 20, "total": 9}}}}',
    "export of Helicone": '{{"request_created_at": "2024-05-10T00:00:{s:06.3f}+00:00", "prompt_tokens": {p}, '
    '"completion_tokens": 20}}',
    "log of Bedrock": '{{"timestamp": "2024-05-10T00:00:{s:06.3f}Z", "input": {{"inputTokenCount": {p}}}, '
    '"output": {{"outputTokenCount": 20}}}}',
    "log of Azure": '{{"TimeGenerated": "2024-05-10T00:00:{s:06.3f}Z", "PromptTokens": {p}, "CompletionTokens": 20}}',
    "OpenTelemetry attributes": '{{"start_time": "2024-05-10T00:00:{s:06.3f}Z", "gen_ai.usage.input_tokens": {p}, '
    '"gen_ai.usage.output_tokens": 20}}',
}


@pytest.mark.parametrize("name", LOGS)
def test_logs_of_proxies_are_read(tmp_path: Path, name: str) -> None:
    """The log that everybody has was refused: no reader knew its columns."""
    trace = read(tmp_path, "\n".join(LOGS[name].format(s=at, p=100 + i) for i, at in enumerate(AT_S)), "t.jsonl")

    assert SPAN_S == pytest.approx(float(trace.at_s[-1]), abs=2e-3)
    assert [*range(100, 160)] == trace.table["prompt_tokens"].to_pylist()
    assert [20] * 60 == trace.table["output_tokens"].to_pylist()


def test_empty_columns_at_the_end_are_none(tmp_path: Path) -> None:
    """A spreadsheet that once was wider was refused, because a column without a name appeared twice."""
    assert 60 == len(read(tmp_path, table([f"{at}" for at in AT_S]).replace("\n", ",,\n")))


@pytest.mark.parametrize("head", ["Start Time,Prompt Tokens,Completion Tokens", "ts,tokens_prompt,TokensCompletion"])
def test_usual_names_are_known_in_any_spelling(tmp_path: Path, head: str) -> None:
    """A space or a capital would hide a column."""
    assert 60 == len(read(tmp_path, table([f"{at}" for at in AT_S], head)))


@pytest.mark.parametrize("start", ["sep=,\n", '"SEP=,"\r\n', "# made by a script\n\n# second line\n", "# "])
def test_lines_before_the_header_are_no_header(tmp_path: Path, start: str) -> None:
    """Excel's separator, comments, or NumPy's '#' before the names were a table of other columns."""
    trace = read(tmp_path, start + table(UNITS["relative seconds"][0]))

    assert (60, SPAN_S) == (len(trace), pytest.approx(float(trace.at_s[-1])))
    dated = read(tmp_path, start + table(UNITS["dates of Apache"][0]))
    assert SPAN_S == pytest.approx(float(dated.at_s[-1]), abs=2e-3)


@pytest.mark.parametrize("sign", ["^", "\t", ";"])
def test_a_separator_that_is_named_holds(tmp_path: Path, sign: str) -> None:
    """A table of two columns and one of its own would be one column, and a tab at the end of a line is a blank."""
    assert 60 == len(read(tmp_path, f"sep={sign}\n" + table(UNITS["relative seconds"][0]).replace(",", sign)))


HEADERS = {  # comments and the first rows behind them
    "decimal commas": ("#zeit;prompt_tokens;output_tokens", "0,5;100;20\n1,5;100;20"),
    "another separator in a row": ("# at_s,prompt_tokens,output_tokens,tag", '0.5,100,20,"a|b"\n1.5,100,20,c'),
    "quoted dates": (
        "# timestamp,prompt_tokens,output_tokens",
        '"11/16/2023, 6:15:01 PM",100,20\n"11/16/2023, 6:15:02 PM",100,20',
    ),
    "HTTP dates": (
        "timestamp;prompt_tokens;output_tokens",
        "Thu, 16 Nov 2023 18:15:01 GMT;100;20\nThu, 16 Nov 2023 18:15:02 GMT;100;20",
    ),
    "a rule below": ("# at_s,prompt_tokens,output_tokens\n# ---", "0,100,20\n1,100,20"),
    "units below": ("# at_s,prompt_tokens,output_tokens\n# seconds, tokens, tokens", "0,100,20\n1,100,20"),
    "a year below": ("# at_s,prompt_tokens,output_tokens\n# made, by us, 2024", "0,100,20\n1,100,20"),
}


@pytest.mark.parametrize("name", HEADERS)
def test_the_names_of_columns_are_found(tmp_path: Path, name: str) -> None:
    """A header in a comment was lost behind another comment, or before a row with another separator within a cell."""
    trace = read(tmp_path, "\n".join(HEADERS[name]))

    assert [0.0, 1.0] == trace.at_s.tolist()
    assert [100, 100] == trace.table["prompt_tokens"].to_pylist()
    assert 2 == trace.facts["rows"]


def test_a_comment_before_json_is_no_header(tmp_path: Path) -> None:
    """A comment with as many commas as an object made CSV of it."""
    row = '{"timestamp": 0, "input_length": 600, "output_length": 9, "hash_ids": [1, 2]}'

    assert 1 == len(read(tmp_path, f"# Mooncake, converted, 2024, by us, v1\n{row}", "t.jsonl"))


def test_a_refusal_names_the_line_of_the_header(tmp_path: Path) -> None:
    """Line 1 is a comment."""
    with pytest.raises(UsageError, match="line 2: no reader knows the columns a, b, c"):
        read(tmp_path, "# made by us\n# a,b,c\n1,2,3")


CLOCKS = {
    "midnight": ("time", ["23:59:58", "23:59:59", "00:00:01", "00:00:02"], "without their date"),
    "noon": ("time", ["12:59:58", "01:00:02"], "without their date"),
    "two days": ("date,time", [f"2024-05-1{day},{hour:02}:00:00" for day in (0, 1) for hour in (9, 10)], "'date' has"),
    "later on the next day": ("Day,time", ["1,09:00:00", "2,10:00:00"], "column 'Day' has their date"),
}


@pytest.mark.parametrize("name", CLOCKS)
def test_times_of_day_are_not_sorted(tmp_path: Path, name: str) -> None:
    """A night was replayed as a day with its end first, and two days were laid over one another."""
    columns, stamps, words = CLOCKS[name]
    with pytest.raises(UsageError, match=f"these are times of day.*{words}"):
        read(tmp_path, table(stamps, f"{columns},prompt_tokens,output_tokens"))


@pytest.mark.parametrize("blank", ["n/a", "NaN", ""])
@pytest.mark.parametrize("unit", ["relative seconds", "dates of the USA"])
def test_cells_without_a_stamp_do_not_tell_the_form_of_stamps(tmp_path: Path, blank: str, unit: str) -> None:
    """20 such rows at the start ended in a crash, or in the loss of all numbers behind them."""
    trace = read(tmp_path, table([blank] * 20 + UNITS[unit][0][20:]))

    assert 40 == len(trace)
    assert float(AT_S[-1] - AT_S[20]) == pytest.approx(float(trace.at_s[-1]), abs=2e-3)
    with pytest.raises(UsageError, match="20 of 21 rows cannot be used"):
        read(tmp_path, table([blank] * 20 + ["05/06/2024 10:00:00"]))


def test_a_stamp_that_cannot_be_read_is_refused_with_those_that_can(tmp_path: Path) -> None:
    """'A finite number expected' does not say what to write."""
    with pytest.raises(UsageError, match=r"a finite number, or a stamp such as .* expected, got 'soon'"):
        read(tmp_path, table(["soon"] * 60))


def test_rows_with_the_text_of_a_prompt_are_read(tmp_path: Path) -> None:
    """AIPerf writes a text in place of a count, and a batch of one prompt is a prompt."""
    rows = "\n".join(f'{{"timestamp": {i}000, "text_input": "abcdefgh", "output_length": 7}}' for i in range(1, 4))
    trace = read(tmp_path, rows, "t.jsonl", reader="messages:tokenizer=bytes")
    batch = read(tmp_path, '{"prompt": ["abcdefgh"], "max_tokens": 7}', "t.jsonl", reader="messages:tokenizer=bytes")

    assert [0.0, 1.0, 2.0] == trace.at_s.tolist()
    assert [2] * 3 == trace.table["prompt_tokens"].to_pylist() and [7] * 3 == trace.table["output_tokens"].to_pylist()
    assert [(2, 7)] == [tuple(row.values())[1:3] for row in batch.table.to_pylist()]
    turns = f'{rows}\n{{"session_id": "a", "text_input": "abcd", "output_length": 7, "delay": 5}}'
    kept = read(tmp_path, turns, "t.jsonl", reader="messages:tokenizer=bytes")
    assert 3 == len(kept) and "rows with a delay and no timestamp are not read" in str(kept.facts["oddities"])
    with pytest.raises(UsageError, match="one prompt a row expected, got a batch of 2; write each into a row"):
        read(tmp_path, '{"prompt": ["a", "b"], "max_tokens": 7}', "t.jsonl", reader="messages:tokenizer=bytes")


@pytest.mark.parametrize("length", ["", ', "output_tokens": 20', ', "max_tokens": 20'])
def test_prompts_one_a_line_are_read(tmp_path: Path, length: str) -> None:
    """The most common prompt file was refused."""
    lines = "\n".join(f'{{"prompt": "How far do birds fly, {i}?"{length}}}' for i in range(6))
    trace = read(tmp_path, lines, "t.jsonl", reader="messages:tokenizer=bytes,output_tokens=7")

    assert [20 if length else 7] * 6 == trace.table["output_tokens"].to_pylist()
    with pytest.raises(UsageError, match="--reader messages:tokenizer=PATH"):
        read(tmp_path, lines, "t.jsonl")


DATES = {  # the first stamp, and one 24 h later
    "month first": ("5/31/2024 13:00", "6/1/2024 13:00"),
    "day first": ("31/05/2024 13:00:00", "01/06/2024 13:00:00"),
    "afternoon": ("5/31/2024, 1:00:00 PM", "6/1/2024, 1:00:00 PM"),
    "points": ("1.6.2024 13:00", "2.6.2024 13:00"),
    "slashes": ("2024/01/02 13:00", "2024/01/03 13:00"),
}


@pytest.mark.parametrize("name", DATES)
def test_a_date_is_read_where_the_rows_tell_its_order(tmp_path: Path, name: str) -> None:
    """A table of Excel's was refused."""
    rows = [f'"{stamp}",9,1' for stamp in DATES[name]]

    assert 86_400 == read(tmp_path, "\n".join([HEAD, *rows])).at_s[-1]


@pytest.mark.parametrize("second", ["06/10/2024 00:00:01", "13/05/2024 00:00:01"])
def test_a_date_that_may_be_two_is_refused(tmp_path: Path, second: str) -> None:
    """A day would be a month."""
    first = "05/13/2024 00:00:00" if second.startswith("13") else "05/10/2024 00:00:00"
    with pytest.raises(UsageError, match=r"'timestamp': '05/1.* begins with the day or .* write the year first"):
        read(tmp_path, table([first, second]))


@pytest.mark.parametrize("sign", [",", ".", "'", " ", "\u202f"])
@pytest.mark.parametrize("separator", [",", ";"])
def test_thousands_of_counts_may_be_parted(tmp_path: Path, sign: str, separator: str) -> None:
    """7,790 was no number, and 8,000 behind a semicolon were 8 tokens."""
    counts = [7790, 8000, 12, 1_234_567]
    rows = [separator.join((f"{i}", f'"{count:,}"'.replace(",", sign), "20")) for i, count in enumerate(counts)]
    trace = read(tmp_path, "\n".join([HEAD.replace(",", separator), *rows]))

    assert counts == trace.table["prompt_tokens"].to_pylist()


def test_decimals_of_counts_are_no_thousands(tmp_path: Path) -> None:
    """A count of 100.000, as a float is written, would be 100,000; and one of 1.500 is none."""
    rows = [f"{i},{count},20" for i, count in enumerate(["100.000", "20.000", "3.000", "1.500"])]
    trace = read(tmp_path, "\n".join([HEAD, *rows]))

    assert [100, 20, 3] == trace.table["prompt_tokens"].to_pylist()

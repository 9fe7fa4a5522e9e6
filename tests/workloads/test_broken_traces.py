"""Broken trace files: one sentence that names the file, and line and column where there is one."""

import gzip
from pathlib import Path

import pytest

from harness.errors import UsageError
from workloads import traces
from workloads.replay import load as load_trace

AZ = b"TIMESTAMP,ContextTokens,GeneratedTokens\n"
AZ_ROW = b"2023-11-16 18:15:46.6805900,374,44\n"
BU = b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
PL = b"at_s,prompt_tokens,output_tokens\n"
BA_ROW = (
    b'{"chat_id": 7, "parent_chat_id": -1, "timestamp": 1.5, "input_length": 9, "output_length": 5, "type": "text", '
    b'"turn": 1, "hash_ids": [4]}\n'
)
MO_ROW = b'{"timestamp": 3000, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}\n'

BROKEN = {
    "empty": (b"", "is empty"),
    "blank": (b"\n\n  \n", "holds only blank lines"),
    "header-only": (AZ, "has a header but no rows"),
    "binary": (b"\x7fELF\x00\x01\x02\x03", "is a program, not a trace"),
    "parquet-cut": (b"PAR1\x15\x04\x15\xff\n", "is not a complete Parquet file"),
    "latin-1": (AZ + b"2023\xe9,1,2\n", "line 2: byte 0xe9 is not UTF-8 text"),
    "unknown-header": (b"a,b,c\n1,2,3\n", "line 1: no reader knows the columns a, b, c; name others with --reader"),
    "no-header": (AZ_ROW, "line 1: no reader knows the columns 2023-11-16"),
    "missing-column": (b"TIMESTAMP,ContextTokens\nx,1\n", "line 1: no reader knows the columns TIMESTAMP, ContextTokens; azure needs CSV with TIMESTAMP, "),
    "column-twice": (b"TIMESTAMP,TIMESTAMP\n", "line 1: column 'TIMESTAMP' appears twice"),
    "short-row": (AZ + AZ_ROW + b"2023-11-16 18:15:47,3\n", "line 3: 3 columns expected, got 2"),
    "long-row": (AZ + b"2023-11-16 18:15:47,3,4,5\n", "line 2: 3 columns expected, got 4"),
    "open-quote": (AZ + b'"2023-11-16 18:15:47,3,4\n', "line 2: not a CSV row"),
    "not-a-stamp": (AZ + b"XXX,42,285\n", "line 2, column 'TIMESTAMP': a stamp such as .* got 'XXX'"),
    "no-such-date": (AZ + b"2023-02-30 10:00:00,3,4\n", "line 2, column 'TIMESTAMP': there is no such date"),
    "zone-mixed": (AZ + AZ_ROW + b"2023-11-16 18:15:47+00:00,3,4\n", "line 3, column 'TIMESTAMP': .* time zone"),
    "azure-negative": (AZ + b"2023-11-16 18:15:45,-3,4\n", "line 2, column 'ContextTokens': must not be negative, got '-3'"),
    "azure-nan": (AZ + b"2023-11-16 18:15:45,3,nan\n", "line 2, column 'GeneratedTokens': a finite number expected"),
    "azure-missing": (AZ + b"2023-11-16 18:15:45,,4\n", "line 2, column 'ContextTokens': a number is missing"),
    "azure-half": (AZ + b"2023-11-16 18:15:45,3.5,4\n", "line 2, column 'ContextTokens': a token count must be a whole"),
    "azure-huge": (AZ + b"2023-11-16 18:15:45,99999999999,4\n", "column 'ContextTokens': a token count must be between"),
    "azure-word": (AZ + b"2023-11-16 18:15:45,many,4\n", "line 2, column 'ContextTokens': a finite number .* got 'many'"),
    "azure-underscore": (AZ + b"2023-11-16 18:15:45,1_0,4\n", "line 2, column 'ContextTokens': a finite number expected"),
    "burst-total": (BU + b"5,X,472,18,491,API log\n", "line 2, column 'Total tokens': 490 expected"),
    "burst-infinite": (BU + b"inf,X,1,1,2,API log\n", "line 2, column 'Timestamp': a finite number expected"),
    "burst-negative": (BU + b"-5,X,1,1,2,API log\n", "line 2, column 'Timestamp': must not be negative"),
    "burst-all-failed": (BU + b"5,X,0,0,0,API log\n", r"no request is left \(1 failed \(Response tokens is 0\)"),
    "json-truncated": (MO_ROW + MO_ROW[:40], "line 2: not complete JSON"),
    "json-list": (MO_ROW + b"[1, 2]\n", "line 2: a JSON object expected"),
    "json-digits": (b'{"timestamp": ' + b"9" * 5000 + b"}\n", "line 1: not JSON of a trace"),
    "json-key-gone": (MO_ROW + b'{"timestamp": 1}\n', "line 2, column 'input_length': missing"),
    "json-nan": (MO_ROW.replace(b"3000", b"NaN"), "line 1, column 'timestamp': a finite number expected"),
    "json-text": (MO_ROW.replace(b"600", b'"x"'), "line 1, column 'input_length': a finite number expected, got 'x'"),
    "json-bool": (MO_ROW.replace(b"600", b"true"), "line 1, column 'input_length': a finite number expected, got True"),
    "json-ids": (MO_ROW.replace(b"[0, 1]", b"[0]"), "line 1, column 'hash_ids': 2 ids expected for 600 tokens"),
    "json-ids-text": (MO_ROW.replace(b"[0, 1]", b'"0"'), "line 1, column 'hash_ids': a list of ids expected"),
    "json-id-half": (MO_ROW.replace(b"[0, 1]", b"[0, 1.5]"), "line 1, column 'hash_ids': an id must be a whole number"),
    "json-unknown": (b'{"arrived_at": 1}\n', "line 1: no reader knows the columns arrived_at"),
    "json-list-cut": (b"[" + MO_ROW[:-1] + b",\n" + MO_ROW[:40], "line 2: not complete JSON .*: the list has no end"),
    "json-list-comma": (b"[" + MO_ROW[:-1] + MO_ROW[:-1] + b"]", "line 1: ',' or ']' expected in the JSON list"),
    "json-list-number": (b"[" + MO_ROW[:-1] + b", 7]", "line 1: a JSON object expected in the JSON list, got '7]'"),
    "json-list-more": (b"[" + MO_ROW[:-1] + b"]\nx", "line 2: 'x' after the end of the JSON list"),
    "json-list-empty": (b"[\n]\n", "is an empty JSON list"),
    "json-number": (b"7\n", "no reader knows the columns 7"),
    "bailian-ids": (BA_ROW.replace(b"[4]", b"[4, 5]"), "line 1, column 'hash_ids': at most 1 ids expected for 9 tokens"),
    "bailian-name": (BA_ROW.replace(b"-1", b"[7]"), "line 1, column 'parent_chat_id': a name .* expected, got"),
    "bailian-turn": (BA_ROW.replace(b'"turn": 1', b'"turn": 0.5'), "line 1, column 'turn': a token count must be a whole"),
    "timed-trace-stamp": (b'{"timestamp": null, "input_length": 1, "output_length": 1}', "line 1, column 'timestamp': a number is missing"),
    "session-without-start": (
        b'{"session_id": "a", "timestamp": null, "input_length": 9, "output_length": 1}',
        "line 1, column 'timestamp': the first turn of a session needs a stamp.",
    ),
    "sessions-without-starts": (
        b'{"session_id": "a", "input_length": 9, "output_length": 1}\n',
        "no column of stamps that is known: give --arrivals",
    ),
    "dialog": (b'[{"conversations": [{"from": "human", "value": "a"}]}]', "holds text, no token counts"),
    "plain-date": (PL + b"2024-05-12 00:00:00,1,1\n12,1,1\n", "line 3, column 'at_s': a stamp such as"),
    "plain-year": (PL + b"9999-05-12 00:00:00,1,1\n", "line 2, column 'at_s': a year between 1678 and 2261"),
    "plain-all-zero": (PL + b"1,0,1\n1,1,0\n", r"no request is left \(1 output_tokens is 0, 1 prompt_tokens is 0"),
    "plain-return": (PL + b"1,1\r,1\n", "line 2: not a CSV row .a carriage return within the line"),
    "plain-old-mac": (PL.replace(b"\n", b"\r") + b"1,1,1\r", "no reader knows|not a CSV row"),
    "plain-quoted-line-end": (PL + b'1,"1\n",1\n2,"x\ny",1\n', "line 4, column 'prompt_tokens': a finite number"),
    "zstd-rubbish": (b"\x28\xb5\x2f\xfdnothing of that kind", "cannot be read after line 0"),
    "gzip-cut": (gzip.compress(AZ + AZ_ROW * 1000)[:-20], "cannot be read after line"),
    "gzip-rubbish": (b"\x1f\x8bnothing of that kind", "cannot be read after line 0"),
}  # fmt: skip
# ruff: noqa: E501  # one row of the table is one line


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_one_sentence(tmp_path: Path, name: str) -> None:
    """If this failed, a damaged trace would end in a traceback, or worse, in a run."""
    content, words = BROKEN[name]
    path = tmp_path / f"{name}.trace"
    path.write_bytes(content)

    with pytest.raises(UsageError, match=words) as caught:
        load_trace(str(path))
    message = str(caught.value)
    assert str(path) in message
    assert message.endswith(".")
    assert "\n" not in message
    assert len(message) < 600 + len(str(path))


def test_a_missing_file_names_its_neighbour(tmp_path: Path) -> None:
    """If this failed, a typing mistake in a path would have to be found by hand."""
    (tmp_path / "conversation.csv").write_bytes(AZ + AZ_ROW)

    with pytest.raises(UsageError, match=r"does not exist. Did you mean '.*conversation.csv'"):
        load_trace(str(tmp_path / "conversaton.csv"))
    with pytest.raises(UsageError, match=r"does not exist; '.*' holds conversation.csv"):
        load_trace(str(tmp_path / "x"))
    with pytest.raises(UsageError, match="there is no folder"):
        load_trace(str(tmp_path / "nowhere" / "x.csv"))
    with pytest.raises(UsageError, match=r"is a folder, and a trace is a file; '.*' holds conversation.csv"):
        load_trace(str(tmp_path))


@pytest.mark.parametrize("path", ["", "\0", "x" * 5000, "/dev/null"])
def test_a_path_that_cannot_be_is_one_sentence(path: str) -> None:
    """If this failed, the operating system's error would reach the user as a traceback."""
    with pytest.raises(UsageError, match="Trace"):
        load_trace(path)


def test_a_separator_of_records_after_a_number_is_a_blank(tmp_path: Path) -> None:
    """Exports of old databases have them; the file ended in a traceback."""
    (tmp_path / "t.csv").write_bytes(AZ + AZ_ROW * 20 + AZ_ROW.replace(b"44", b"44\x1d"))

    assert 21 == len(traces.read(str(tmp_path / "t.csv")))

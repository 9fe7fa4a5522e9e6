"""Limits on traces: a bomb ends in one sentence that names the limit and what raises it, and real traces pass."""

import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.errors import UsageError
from workloads.replay import load
from workloads.traces import read

HEADER = "at_s,prompt_tokens,output_tokens\n"
MORE = r"; --reader NAME:max_{}=\.\.\. allows more\.$"


def packed(file: Path, text: str) -> str:
    with gzip.open(file, "wt", encoding="utf-8") as out:
        out.write(text)
    return str(file)


@pytest.fixture(scope="module")
def equal_lines(tmp_path_factory: pytest.TempPathFactory) -> str:
    """17 MiB of one line again and again, in 26 kB."""
    return packed(tmp_path_factory.mktemp("bomb") / "lines.csv.gz", HEADER + "0,1,1\n" * (3 << 20))


def test_a_file_that_unpacks_without_end_is_refused(equal_lines: str) -> None:
    with pytest.raises(
        UsageError, match=r"lines.csv.gz' may unpack to .* over 300 times its size" + MORE.format("expansion")
    ):
        read(equal_lines)


def test_zstandard_is_bounded_too(tmp_path: Path) -> None:
    file = tmp_path / "lines.csv.zst"
    with pa.CompressedOutputStream(str(file), "zstd") as out:
        out.write((HEADER + "0,1,1\n" * (3 << 20)).encode())

    with pytest.raises(UsageError, match=r"may unpack to .* over 300 times its size"):
        read(str(file))


def test_who_trusts_the_file_raises_the_limit(equal_lines: str) -> None:
    trace = read(equal_lines, "csv:max_expansion=1000")

    assert 3 << 20 == len(trace)
    assert "csv" == trace.facts["reader"]


def test_rows_are_bounded(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text(HEADER + "".join(f"{i},1,1\n" for i in range(100)), encoding="utf-8")

    with pytest.raises(UsageError, match=r"rows.csv' has more than 99 rows" + MORE.format("rows")):
        read(str(file), "csv:max_rows=99")
    assert 100 == len(read(str(file), "csv:max-rows=100"))
    assert 100 == len(load(str(file), reader="csv:max_rows=100").workload.trace)  # type: ignore[attr-defined]  # a Replay


@pytest.mark.parametrize("text", [HEADER + "1," + "2" * 3000, '{"at_s": 1, "x": "' + "y" * 3000 + '"}', "0" * 3000])
def test_a_line_is_bounded(text: str, tmp_path: Path) -> None:
    trace = packed(tmp_path / "line.gz", text)

    with pytest.raises(UsageError, match=r"line \d: longer than 0.000976562 MiB; .*" + MORE.format("line")):
        read(trace, "csv:max_line=1KiB", block_bytes=100)


def test_numbers_of_one_value_are_bounded(tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    columns = {"at_s": np.zeros, "prompt_tokens": np.ones, "output_tokens": np.ones}
    pq.write_table(pa.table({name: make(4_000_000) for name, make in columns.items()}), file, compression="zstd")

    with pytest.raises(UsageError, match=r"rows.parquet' may unpack to 92 MiB or more, .*" + MORE.format("expansion")):
        read(str(file))
    with pytest.raises(UsageError, match=r"has more than 1,000,000 rows"):
        read(str(file), "parquet:max_expansion=1e6,max_rows=1000000")
    assert 10 == len(load(str(file), reader="parquet:max_expansion=1e6", limit=10).workload.trace)  # type: ignore[attr-defined]  # a Replay


def test_one_long_tag_in_every_row_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    file = tmp_path / "tags.parquet"
    n = 100_000
    tags = pa.DictionaryArray.from_arrays(pa.array(np.zeros(n, np.int32)), pa.array(["x" * 100_000]))
    numbers = {name: np.arange(n) for name in ("at_s", "prompt_tokens", "output_tokens")}
    pq.write_table(pa.table({**numbers, "tag": tags}), file, store_schema=False)

    with pytest.raises(UsageError, match=r"tags.parquet' may unpack to [\d,]+ MiB or more"):
        read(str(file))


def test_a_header_of_commas_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "wide.csv"
    file.write_text("a," * 1_000_000 + "\n", encoding="utf-8")

    with pytest.raises(UsageError, match=r"wide.csv', line 1: 1,000,001 columns, and at most 10,000 are read"):
        read(str(file))

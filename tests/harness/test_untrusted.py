"""Files from outside are read within limits: a bomb ends in one sentence, before it takes time or memory."""

import os
import tomllib
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness import untrusted, values
from harness.configs import read as read_config
from harness.data import folder, large
from harness.data.schedule import Schedule
from harness.errors import UsageError
from harness.experiments import answers, imports

DEEP = {
    "lists": "[" * 100_000 + "]" * 100_000,
    "objects": '{"a":' * 100_000 + "1" + "}" * 100_000,
    "without end": "[" * 100_000,
    "one too many": "[" * 65 + "]" * 65,
}
DEEP_TOML = {
    "lists": "a = " + "[" * 100_000 + "]" * 100_000,
    "tables": "a = " + "{a = " * 100_000 + "1" + "}" * 100_000,
    "key": "a" + ".a" * 20_000 + " = 1",
    "key with blanks and quotes": "a" + ' . "b=\\"." . \'c"\'' * 10_000 + " = 1",
    "header": "[a" + ".a" * 20_000 + "]",
    "key behind a text of two lines": 'x = {y = """\n """, a' + ".a" * 20_000 + " = 1}",
}
FLAT_TOML = """
about = "www.a.b.c  # not a comment"  # 1.2.3
dots = "DOTS"
row = [0.1, 0.2, 3.4]
# DOTS
[a."b.c".d]
text = '''x
y.z'''
""".replace("DOTS", "a." * 100)
ENDLESS = r"nested more than 64 levels deep"
BOMB = r"may unpack to [\d,]+ MiB or more, over 300 times its size"


@pytest.fixture
def equal_rows(tmp_path: Path) -> Path:
    """A Parquet file of 8 kB with 80 MB of equal numbers."""
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"a": np.zeros(10_000_000, np.int64)}), file)
    assert file.stat().st_size < 200_000
    return file


@pytest.fixture
def equal_texts(tmp_path: Path) -> Path:
    """A Parquet file of some kB whose one long text stands in every row, 10 GB in all."""
    file = tmp_path / "texts.parquet"
    codes = pa.array(np.zeros(100_000, np.int32))
    column = pa.DictionaryArray.from_arrays(codes, pa.array(["x" * 100_000]))
    pq.write_table(pa.table({"status": column}), file, store_schema=False)
    assert file.stat().st_size < 20_000
    return file


@pytest.mark.parametrize("text", DEEP.values(), ids=DEEP)
def test_deep_json_is_one_sentence_in_every_file(text: str, tmp_path: Path) -> None:
    file = tmp_path / "deep.json"
    file.write_text(text, encoding="utf-8")
    (tmp_path / "run.json").write_text(text, encoding="utf-8")

    for read in (untrusted.read_json, answers.of, imports.open, lambda path: folder.load(path.parent)):
        with pytest.raises(UsageError, match=rf"json' is {ENDLESS}"):
            read(file)
    with pytest.raises(UsageError, match=rf"json' is {ENDLESS}"):
        read_config(str(file))


@pytest.mark.parametrize("text", DEEP_TOML.values(), ids=DEEP_TOML)
@pytest.mark.timeout(20)  # a key of 20,000 parts takes tomllib minutes
def test_deep_toml_is_one_sentence(text: str, tmp_path: Path) -> None:
    file = tmp_path / "deep.toml"
    file.write_text(text, encoding="utf-8")

    with pytest.raises(UsageError, match=rf"toml' is {ENDLESS}"):
        read_config(str(file))


def test_what_is_as_deep_as_allowed_is_read() -> None:
    assert untrusted.parse_json("[" * 64 + "]" * 64, "it") is not None
    assert untrusted.parse_toml("a" + ".a" * 63 + " = 1", "it")["a"]
    assert set(untrusted.parse_toml(FLAT_TOML, "it")) == {"about", "dots", "row", "a"}


def test_a_text_that_is_too_large_is_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "large.toml"
    file.write_text("#" * (untrusted.MOST_TOML_BYTES + 1), encoding="utf-8")

    with pytest.raises(UsageError, match=r"large.toml' is larger than 1 MiB, the most that is read of such a file"):
        untrusted.read_toml(file)


def test_a_device_without_end_is_read_as_far_as_the_limit() -> None:
    with pytest.raises(UsageError, match=r"'/dev/zero' is larger than 1 MiB"):
        untrusted.read_toml(Path("/dev/zero"))


def test_rows_that_unpack_to_far_more_than_their_file_are_refused_by_every_reader(equal_rows: Path) -> None:
    for read in (untrusted.read_parquet, Schedule.load, large.read, large.opened):
        with pytest.raises(UsageError, match=rf"rows.parquet' {BOMB}"):
            read(equal_rows)


def test_one_row_with_a_list_of_equal_numbers_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "list.parquet"
    pq.write_table(pa.table({"a": [np.zeros(10_000_000, np.int64)]}), file)

    with pytest.raises(UsageError, match=BOMB):
        untrusted.read_parquet(file)


def test_one_text_in_every_row_is_refused_before_it_is_unpacked(equal_texts: Path) -> None:
    before = pa.total_allocated_bytes()

    with pytest.raises(UsageError, match=rf"texts.parquet' {BOMB}"):
        untrusted.read_parquet(equal_texts)
    assert pa.default_memory_pool().max_memory() - before < 1 << 30


def test_one_text_in_every_list_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "nested.parquet"
    pq.write_table(pa.table({"a": [["x" * 100_000] * 3000]}), file, compression="zstd")

    with pytest.raises(UsageError, match=rf"nested.parquet' {BOMB}"):
        untrusted.read_parquet(file)


def test_texts_come_back_as_they_were_written(tmp_path: Path) -> None:
    file = tmp_path / "good.parquet"
    table = pa.table(
        {
            "status": pa.array(["ok", "error", None, "ok"]),
            "coded": pa.array(["a", "b", None, "a"]).dictionary_encode(),
            "bits": pa.array([b"\0", b"x", None, b"\0"]),
            "lists": pa.array([["a"], [], None, ["b", "a"]]),
            "a": [1, 2, 3, 4],
        }
    )
    pq.write_table(table, file, row_group_size=2)
    expected = table.set_column(1, "coded", table["coded"].cast(pa.string()))

    found = untrusted.read_parquet(file)

    assert expected.to_pylist() == found.to_pylist()
    assert [pa.string(), pa.string(), pa.binary(), pa.int64()] == [found.schema.field(i).type for i in (0, 1, 2, 4)]


def test_more_columns_than_any_table_has_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "wide.parquet"
    pq.write_table(pa.table({f"c{i}": [1] for i in range(untrusted.MOST_COLUMNS + 1)}), file)

    with pytest.raises(UsageError, match=r"wide.parquet' has 10,001 columns, and at most 10,000 are read"):
        untrusted.read_parquet(file)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[" + "{}," * 6000 + "{}]", "'x' holds more than 2,048 objects or 8,192 values"),
        ("[" + "1," * 15000 + "1]", "'x' holds more than 2,048 objects or 8,192 values"),
    ],
)
def test_objects_are_counted_before_they_are_made(text: str, sentence: str) -> None:
    """75 MB of small objects took 2.1 GB."""
    before = untrusted.MOST_JSON_BYTES.set(1 << 16)
    try:
        with pytest.raises(UsageError, match=f"^{sentence}, the most that is read; 'bench --max-json SIZE' before"):
            untrusted.parse_json(text, "'x'")
        assert ["{" * 10_000 + "," * 10_000] == untrusted.parse_json(f'["{"{" * 10_000 + "," * 10_000}"]', "'x'")
    finally:
        untrusted.MOST_JSON_BYTES.reset(before)


def test_reading_a_file_reserves_what_it_takes(tmp_path: Path) -> None:
    """Each read reserved 4 GiB of address space, and failed under 'ulimit -v' as if memory were exhausted."""
    file = tmp_path / "small.json"
    file.write_text("[1]", encoding="utf-8")
    tracemalloc.start()
    try:
        untrusted.read_json(file)

        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.timeout(20)
def test_a_pipe_that_nothing_writes_to_is_empty(tmp_path: Path) -> None:
    """The command would wait for ever for another one to begin."""
    os.mkfifo(tmp_path / "pipe")

    assert "" == untrusted.read_text(tmp_path / "pipe")


@pytest.mark.parametrize("read", [untrusted.parse_json, untrusted.parse_toml])
def test_a_number_of_5000_digits_is_a_sentence(read: Callable[[str, str], object]) -> None:
    """Python's own advice is to call a function of its."""
    text = "9" * 5000 if read is untrusted.parse_json else f"a = {'9' * 5000}"
    with pytest.raises(tomllib.TOMLDecodeError, match=r"^a number has more than 4,300 digits$"):
        read(text, "'x'")


def test_an_error_does_not_repeat_a_value_of_5000_digits() -> None:
    """The screen would be full of it, and the remedy above it."""
    with pytest.raises(UsageError, match=r"^--requests must be a whole number from 1 on, got '9{99}\d?\.\.\.$"):
        values.count("9" * 5000, "--requests")

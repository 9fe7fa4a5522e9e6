"""Anomalies of a trace are reported: grids, gaps, equal rows, idle heads, look-alikes; no row is lost (traces A1)."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.errors import UsageError
from workloads import traces
from workloads.readers import _known

BURST_1 = "burstgpt/BurstGPT_1.head379.csv"


def write(folder: Path, at_s: Any, name: str = "trace.csv", prompts: Any = None) -> str:
    """A plain table with these stamps."""
    prompts = [5] * len(at_s) if prompts is None else prompts
    rows = [f"{t},{p},2" for t, p in zip(at_s, prompts, strict=True)]
    path = folder / name
    path.write_text("at_s,prompt_tokens,output_tokens\n" + "\n".join(rows))
    return str(path)


def facts(path: str, **given: Any) -> dict[str, Any]:
    """The facts, which must not depend on where blocks end."""
    found = [dict(traces.read(path, block_bytes=size, **given).facts) for size in (64, 1000, 1 << 20)]

    assert found[0] == found[1] == found[2]
    return found[0]


def test_mooncake_ticks_are_found(shared_data: Path) -> None:
    """If this failed, bursts of ten every 3 s would pass as traffic, and jitter could not know its width."""
    found: Any = traces.read(str(shared_data / "traces/mooncake/conversation_trace.jsonl")).facts

    assert 3.0 == pytest.approx(found["grain_s"], abs=0.003)
    assert 1180 == found["distinct_stamps"]
    assert any("ticks about 3 s apart, 10.2 rows at each" in sentence for sentence in found["oddities"])


def test_an_even_trace_has_no_oddities(shared_data: Path) -> None:
    """If this failed, warnings would be printed for the cleanest trace there is, and soon not be read."""
    found: Any = traces.read(str(shared_data / "traces/azure2023/AzureLLMInferenceTrace_conv.csv")).facts

    assert [] == found["oddities"]
    assert 0 == found["duplicates"]
    assert found["grain_s"] <= 1e-6


@pytest.mark.nightly
def test_ticks_of_another_width_are_found_and_steady_arrivals_are_none(tmp_path: Path) -> None:
    """If this failed, the search for ticks would know one trace only, or jitter a constant rate away."""
    rng = np.random.default_rng(1)
    ticks = np.cumsum(rng.integers(3049, 3058, 400)) / 1000
    at_s = np.sort(np.repeat(ticks, rng.integers(1, 20, 400)))
    steady = np.cumsum(rng.integers(97, 104, 2000)) / 1000
    poisson = np.round(np.cumsum(rng.exponential(0.5, 3000)), 6)

    assert 3.053 == pytest.approx(facts(write(tmp_path, at_s))["grain_s"], abs=0.005)
    assert 0.001 == facts(write(tmp_path, steady))["grain_s"]
    assert 1e-6 == facts(write(tmp_path, poisson))["grain_s"]


@pytest.mark.parametrize(
    ("step", "note"), [(1.0, "multiples of 1 s"), (60.0, "multiples of 60 s"), (0.25, "multiples of 0.25 s")]
)
def test_a_grid_is_reported_whatever_its_width(tmp_path: Path, step: float, note: str) -> None:
    """If this failed, whole-second stamps would pass as simultaneous arrivals."""
    at_s = 7 + step * np.sort(np.random.default_rng(0).integers(0, 400, 500))
    found = facts(write(tmp_path, at_s))

    assert step == found["grain_s"]
    assert any(note in sentence for sentence in found["oddities"])


def test_equal_rows_are_kept_and_counted(tmp_path: Path) -> None:
    """If this failed, BurstGPT's 2 to 3 % of equal rows would vanish, or be counted once per block."""
    rng = np.random.default_rng(0)
    at_s, prompts = np.sort(rng.integers(0, 60, 900)), rng.integers(1, 4, 900)
    path = write(tmp_path, at_s, prompts=prompts)
    expected = int(pd.read_csv(path).duplicated().sum())
    found = facts(path)

    assert expected == found["duplicates"] > 0
    assert 900 == found["rows"] == found["requests"]
    assert any(
        sentence == f"equal to another row in every column, and kept: {expected} rows."
        for sentence in found["oddities"]
    )


def test_long_gaps_an_idle_head_and_large_prompts_are_reported(tmp_path: Path) -> None:
    """If this failed, the first hour of BurstGPT would be replayed for its traffic."""
    at_s = np.concatenate((np.linspace(0, 50_000, 50), 60_000 + np.arange(950)))
    found = facts(write(tmp_path, at_s, prompts=[2_000_000] + [9] * 999))

    assert any("1 gap of more than an hour, the longest of 10,000 s" in sentence for sentence in found["oddities"])
    assert any("first 5% of rows take" in sentence for sentence in found["oddities"])
    assert any("1 prompt of more than 1,000,000 tokens, the largest of 2,000,000" in s for s in found["oddities"])


def test_rows_with_one_stamp_are_reported(tmp_path: Path) -> None:
    """If this failed, a list of lengths would pass as traffic."""
    found = facts(write(tmp_path, [3] * 40))

    assert None is found["grain_s"]
    assert "all 40 rows have the same stamp." in found["oddities"]


def test_elapsed_times_that_cannot_be_are_reported(tmp_path: Path) -> None:
    """If this failed, a damaged column would pass unseen because it is not used."""
    header = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type"
    path = tmp_path / "b.csv"
    path.write_text(f"{header}\n5.0,,-3,X,2,2,4,API log\n6.0,,7,X,2,2,4,API log\n7.0,,,X,2,2,4,API log\n")
    odd: Any = traces.read(str(path)).facts["oddities"]

    assert any("Elapsed time is no number of seconds" in sentence and "2 rows" in sentence for sentence in odd)


def test_a_look_alike_is_called_one(tmp_path: Path, shared_data: Path) -> None:
    """If this failed, invented rows under an official name would pass as the real trace."""
    head = (shared_data / "traces" / BURST_1).read_bytes()
    for name, words in {
        "BurstGPT_1.csv": "not its content: SHA-256",
        "BurstGPT_1.csv.gz": "is packed, so its hash cannot be held against",
        "BurstGPT_3.csv": "it should have 5,344,021 rows, 379 were read",
        "mine.csv": "",
    }.items():
        path = tmp_path / name
        path.write_bytes(head)
        odd: Any = traces.read(str(path)).facts["oddities"]

        assert (words != "") == any(words in sentence for sentence in odd if words), odd


def test_the_lists_of_official_files_are_well_formed() -> None:
    """If this failed, a good file would be called unknown because of a slip in a list."""
    found, doubts = _known.facts(
        Path("x.csv"), "46fc9480ef0b748ecb2b51d512ff08c196b031782cbe6f78e28044d768e86d5a", 5, whole=True
    )
    assert "BurstGPT part 1, by another public note" == found["known"]
    assert ["prefer the file of the release" in doubts[0], "1,429,737 rows are expected" in doubts[1]] == [True, True]


def test_facts_come_with_the_last_block(tmp_path: Path) -> None:
    """If this failed, counts of half a file would be printed as those of the whole."""
    blocks = traces.blocks(write(tmp_path, range(500)), block_bytes=200)

    assert 500 == sum(table.num_rows for table in blocks)
    assert 500 == blocks.facts["rows"]


HEADER = "at_s,prompt_tokens,output_tokens\n"
ROWS = [f"{i},{i + 1},2\n" for i in range(30)]
OBJECTS = [f'{{"at_ms": {i}0, "prompt_tokens": 9, "output_tokens": 1}}\n' for i in range(10, 40)]
ANYWHERE = {
    "reasons, the most frequent first": (
        HEADER + "0,0,1\n0,x,1\n0,0,1\n0,1,0\n" + "".join(ROWS),
        ["2 rows left out: prompt_tokens is 0.", "1 row left out: no usable prompt_tokens (line 3: a finite",
         "1 row left out: output_tokens is 0.", "stamps are multiples of 1 s; 0 rows at the stamp of the row before."],
    ),
    "a first row without a stamp": (HEADER + "soon,1,1\n" + "".join(ROWS), ["1 row left out: no usable at_s (line 2"]),
    "a bad row twice is no equal row": (HEADER + ROWS[0] + "0.5,x,1\n" * 2 + "".join(ROWS[1:]), ["2 rows left out"]),
    "a bad row behind an earlier one": (
        HEADER + "".join(ROWS) + "3,1,1\n3,x,1\n",
        ["1 row left out: no usable prompt_tokens (line 33", "earlier than the row before, so all rows are sorted"],
    ),
    "a first line that is no JSON": ("{,\n" + "".join(OBJECTS), ["1 row left out: no row of a trace (line 1: not"]),
    "a zero byte before a quote": (
        HEADER + "0,\0,1\n" + "".join(ROWS) + '40,"1"1,2\n"40\n",1,2\n',
        ["2 rows left out: no row of a trace (line 2: this is a binary file"],
    ),
    "names behind comments": ("# made by hand\n#at_s,prompt_tokens,output_tokens\n" + "".join(ROWS), []),
    "too many": (HEADER + "1,x,1\n2,y,1\n" + ROWS[3], ["line 2, column 'prompt_tokens': .*2 of 3 rows cannot be used"]),
}  # fmt: skip


@pytest.mark.parametrize("name", ANYWHERE)
def test_where_blocks_end_changes_nothing(tmp_path: Path, name: str) -> None:
    """If this failed, the same rows would be read, or refused, by how many of them were read at once."""
    text, expected = ANYWHERE[name]
    path = tmp_path / "trace"
    path.write_text(text)

    def sentences(block_bytes: int) -> list[str]:
        try:
            odd: Any = traces.read(str(path), block_bytes=block_bytes).facts["oddities"]
        except UsageError as error:
            return [str(error)]
        return list(odd)

    once = sentences(1 << 20)

    assert once == sentences(70) == sentences(1)
    assert all(re.search(re.sub(r"[()]", ".", words), odd) for words, odd in zip(expected, once, strict=False)), once


def test_a_stamp_beyond_64_bit_nanoseconds_costs_its_own_row_only(tmp_path: Path) -> None:
    """The first row of the block was blamed for it, and then the first of each part that was read again."""
    seconds = pa.array([10**9 + i for i in range(30)] + [10**11, 10**9 + 40], pa.timestamp("s"))
    table = pa.table({"at": seconds, "prompt_tokens": [1] * 32, "output_tokens": [1] * 32})
    pq.write_table(table, tmp_path / "t.parquet", version="2.6")
    trace = traces.read(str(tmp_path / "t.parquet"))

    dropped: Any = trace.facts["dropped"]

    assert [1] == list(dropped.values())
    assert 31 == len(trace)

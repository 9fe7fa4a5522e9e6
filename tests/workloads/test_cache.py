"""How much of the prompts a prefix cache holds is counted as it would happen."""

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads import traces
from workloads.trace_tools.cache import Hits, distinct_blocks, from_spec, replay

PROMPTS = st.lists(st.lists(st.integers(0, 12), max_size=8, unique=True), min_size=1, max_size=40)


def blocks(*prompts: list[int]) -> pa.Table:
    """A trace table of prompts that name these blocks."""
    return pa.table({"prefix_ids": pa.array(prompts, pa.list_(pa.int64()))})


@pytest.fixture(scope="module")
def conversation() -> traces.Trace:
    """The Mooncake conversation trace."""
    file = Path(__file__).resolve().parents[3] / "shared/data/traces/mooncake/conversation_trace.jsonl"
    if not file.exists():
        pytest.skip("real traces (shared/data beside the project) are not on this machine")
    return traces.read(str(file))


@pytest.mark.parametrize(
    ("capacity", "ratio"),
    [(1_000, 0.0445), (8_000, 0.1776), (16_000, 0.2627), (32_000, 0.3320), (64_000, 0.3593), (None, 0.3664)],
)
def test_mooncake_hit_ratios(conversation: traces.Trace, capacity: int | None, ratio: float) -> None:
    """The published hit ratios of the conversation trace would come out differently."""
    found = replay(conversation.table, capacity)

    assert 288_500 == found.blocks
    assert ratio == round(found.ratio, 4)


@pytest.mark.parametrize(("spec", "share"), [("lru:tokens=3M", 0.371), ("lru:tokens=50M", 0.992)])
def test_mooncake_share_of_the_most(conversation: traces.Trace, spec: str, share: float) -> None:
    """A pool of 3 or 50 million tokens would look larger or smaller than it is (S41: half a point)."""
    most = replay(conversation.table)
    found = replay(conversation.table, from_spec(spec, conversation.block_tokens))

    assert share == pytest.approx(found.hits / most.hits, abs=0.005)
    assert 182_790 == distinct_blocks(conversation.table)


def test_a_hit_is_a_leading_block() -> None:
    """A block behind a missing one cannot be used, and would be counted."""
    table = blocks([1, 2, 3], [1, 9, 3], [1, 2, 3])

    assert Hits(9, 1 + 3) == replay(table)


def test_the_least_recently_used_goes_first() -> None:
    """Another block would be thrown away: by hand, with room for 2."""
    table = blocks([1], [2], [1], [3], [1], [2])  # 3 throws out 2, not 1

    assert Hits(6, 2) == replay(table, 2)


def test_a_prompt_longer_than_the_cache() -> None:
    """A prompt that does not fit would find its own head in the cache the next time."""
    table = blocks([1, 2, 3, 4], [1, 2, 3, 4], [3, 4])

    assert Hits(10, 2) == replay(table, 2)


@given(PROMPTS, st.integers(1, 15))
def test_more_room_is_never_worse(prompts: list[list[int]], capacity: int) -> None:
    """A larger pool would seem to hit less (K17.b)."""
    table = blocks(*prompts)
    small, large, endless = (replay(table, c) for c in (capacity, capacity + 1, None))

    assert small.hits <= large.hits <= endless.hits
    assert endless == replay(table, 13)


@given(PROMPTS, st.integers(1, 15))
def test_agrees_with_the_plainest_cache(prompts: list[list[int]], capacity: int) -> None:
    """The fast replay would not be that of a list that is searched block by block."""
    held: list[int] = []
    hits = 0
    for ids in prompts:
        missing = [i for i, block in enumerate(ids) if block not in held]
        hits += missing[0] if missing else len(ids)
        for block in ids:
            held = [b for b in held if b != block] + [block]
            held = held[-capacity:]

    assert Hits(sum(map(len, prompts)), hits) == replay(blocks(*prompts), capacity)


def test_no_blocks_no_ratio() -> None:
    """A trace without prefixes would divide by zero."""
    found = replay(blocks([], []), 4)

    assert (0, 0.0) == (found.blocks, found.ratio)


@pytest.mark.parametrize(
    ("spec", "capacity"),
    [
        ("lru:tokens=3M", 5859), ("lru:3M", 5859), ("lru:blocks=8000", 8000), ("lru:blocks=8k", 8000),
        ("lru:tokens=512", 1), ("lru:tokens=1.5G", 2_929_687),
    ],
)  # fmt: skip
def test_capacities(spec: str, capacity: int) -> None:
    """A cache of another size than requested would be replayed."""
    assert capacity == from_spec(spec, 512)

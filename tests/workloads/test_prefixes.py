"""Shared prefixes: ids that never collide, exact lengths, popularity as stated."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.api import Request
from workloads.content.tokens import Tokens
from workloads.prefixes import MOST_BLOCKS, MOST_OWNERS, Prefixes, Run, Space, first_ids, id_lists

owners = st.integers(0, MOST_OWNERS - 1)
blocks = st.integers(0, MOST_BLOCKS - 1)
names = st.tuples(st.sampled_from(list(Space)), owners, blocks)


def ids_of(prefixes: Prefixes, number: int) -> tuple[int, ...]:
    """The ids of the blocks of one prefix."""
    return tuple(id_lists(prefixes.run(np.array([number]), np.array([True])))[0].as_py())


@settings(deadline=None)
@given(names, names)
def test_two_blocks_never_have_one_id(one: tuple[Space, int, int], two: tuple[Space, int, int]) -> None:
    """If this failed, a session would hit the system prompt of another one in the prefix cache."""
    first, second = (
        int(first_ids(Run(space, np.array([owner]), np.ones(1, np.int64), block))[0])
        for space, owner, block in (one, two)
    )

    assert (one == two) == (first == second)
    assert 0 <= first < 2**63


@settings(deadline=None)
@given(st.lists(st.tuples(owners, st.integers(0, 5), owners, st.integers(0, 5), st.integers(0, 100)), max_size=8))
def test_lists_of_many_requests_are_those_of_each_alone(rows: list[tuple[int, int, int, int, int]]) -> None:
    """If this failed, a schedule drawn in columns would share other blocks than one made row by row."""
    columns = np.array(rows, np.int64).reshape(-1, 5).T
    lists = id_lists(Run(Space.SHARED, columns[0], columns[1]), Run(Space.SESSION, columns[2], columns[3], columns[4]))

    assert len(rows) == len(lists)
    for i, (shared, few, session, more, first) in enumerate(rows):
        starts = ((1 << 60) | (shared << 24), (2 << 60) | (session << 24) | first)
        expected = [start + number for start, count in zip(starts, (few, more), strict=True) for number in range(count)]
        assert expected == lists[i].as_py()


@pytest.mark.parametrize("zipf", [0.0, 0.8, 1.0, 2.0])
def test_popularity_follows_the_stated_law(zipf: float) -> None:
    """If this failed, a cache would be measured at a skew that was not requested."""
    drawn, _ = Prefixes(20, "80", zipf).draw(np.random.default_rng(1), 200_000)
    weights = np.arange(1, 21) ** -zipf
    expected = weights / weights.sum()
    error = np.sqrt(expected * (1 - expected) / len(drawn))

    assert np.all(np.abs(np.bincount(drawn, minlength=20) / len(drawn) - expected) < 4 * error)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_stated_share_of_requests_has_a_prefix(share: float) -> None:
    """If this failed, the hit rate would be bounded by a share that is not the one in the spec."""
    _, has_prefix = Prefixes(3, share=share).draw(np.random.default_rng(2), 50_000)

    assert abs(has_prefix.mean() - share) <= 4 * math.sqrt(share * (1 - share) / len(has_prefix))


@pytest.mark.parametrize("number", [0, 1])
def test_prompts_with_one_prefix_share_exactly_its_tokens(number: int) -> None:
    """If this failed, the cache would save more or fewer tokens than the prefix is long."""
    prefixes = Prefixes(2, "80/341")
    length, block = (int(f(np.array([number]))[0]) for f in (prefixes.length_tokens, prefixes.block_tokens_of))
    ids = ids_of(prefixes, number)
    one, two = (
        Tokens().token_ids(Request(i, 0.0, 900, 1, prefix_ids=ids, prefix_block_tokens=block), 32_000) for i in (1, 2)
    )

    np.testing.assert_array_equal(one[:length], two[:length])
    assert np.mean(one[length:] == two[length:]) < 0.01


def test_groups_of_prefixes_are_apart() -> None:
    """If this failed, two classes of a mix would share each other's system prompts."""
    one = Prefixes(5)
    here, there = ({i for k in range(5) for i in ids_of(each, k)} for each in (one, replace(one, group=1)))

    assert not here & there


@pytest.mark.parametrize(("owner", "count", "first"), [(-1, 1, 0), (MOST_OWNERS, 1, 0), (0, 2, MOST_BLOCKS - 1)])
def test_ids_outside_their_layout_are_refused(owner: int, count: int, first: int) -> None:
    """If this failed, ids would run into the next owner without a word."""
    with pytest.raises(ValueError, match="must be between 0 and"):
        id_lists(Run(Space.SESSION, np.array([owner]), np.array([count]), first))

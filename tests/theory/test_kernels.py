"""Weights of few bits and attention of unequal lengths against published numbers and rules that must hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.systems.flashinfer import Decodes, lengths_of, share_needed
from backends.systems.marlin import Weights, weights

INT4 = Weights(4, 128, 125e12 / 600e9)


def test_the_ideal_curve_of_marlin_comes_out():
    """Efficiencies would be those over another curve (K22.a)."""
    result = [INT4.speed_up(2**power) for power in range(8)]

    assert pytest.approx([3.878, 3.877, 3.876, 3.873, 3.867, 3.855, 3.269, 1.642], abs=5e-4) == result


def test_the_crossover_is_where_arithmetic_takes_as_long_as_reading():
    """A batch would be called compute-bound that is not (K24.b)."""
    batch = INT4.crossover

    assert 53.7 == pytest.approx(batch, abs=0.05)
    assert INT4.weight_bytes == pytest.approx(2 * batch / INT4.flops)


@given(st.integers(1, 7), st.integers(1, 512), st.integers(1, 4096))
def test_fewer_bits_are_never_slower(bits: int, group: int, batch: int):
    """A table of widths would advise the wider one (K24.a)."""
    narrow, wide = Weights(bits, group, 200.0), Weights(bits + 1, group, 200.0)

    assert narrow.bound > wide.bound
    assert narrow.speed_up(batch) >= wide.speed_up(batch)
    assert narrow.crossover < wide.crossover


def test_published_figures_belong_to_their_setting():
    """MARLIN on an A10 would be printed beside another GPU or width."""
    settings = ({}, {"batch": 32}, {"gpu": "h100"}, {"bits": 3}, {"group": 64}, {"inner": 4096})

    assert [3.89, None, None, None, None, None] == [weights(**setting)[0]["marlin_ratio"] for setting in settings]


@given(
    st.lists(st.integers(1, 600), min_size=1, max_size=40),
    st.sampled_from([1, 2, 8]),
    st.sampled_from([4, 64, 264]),
    st.sampled_from([1, 16, 64]),
)
def test_balance_is_between_an_even_share_and_no_balance(pages: list[int], heads: int, slots: int, page_tokens: int):
    """A plan would lose pages, start more chunks than run at once, or be slower than none (K23.b)."""
    one = Decodes(tuple(pages), heads, slots, page_tokens)

    assert sum(pages) == sum(one.chunks)
    assert one.ideal_pages <= one.balanced_pages <= one.unbalanced_pages
    if one.chunk_pages is not None:
        assert len(one.chunks) * heads <= slots
        assert one.chunk_pages * page_tokens >= min(128, max(pages) * page_tokens)


def test_the_chunk_is_the_smallest_that_fits():
    """Slots would be idle while others read twice as much."""
    one = Decodes((264, 132, 88, 66, 8), 8, 264)
    size = one.chunk_pages

    assert size is not None
    assert sum(-(-pages // size) for pages in one.pages) * 8 <= 264
    assert sum(-(-pages // (size - 1)) for pages in one.pages) * 8 > 264


def test_makespans_by_hand():
    """16 requests of 64 pages and 8 heads over 264 slots: two chunks of 32 pages, 2.0 times as fast."""
    one = Decodes((64,) * 16, 8, 264)

    assert (32, 64, 32, 2.0) == (one.chunk_pages, one.unbalanced_pages, one.balanced_pages, one.speed_up)
    assert 100 == Decodes((100, 60, 40), 1, 2).unbalanced_pages


def test_lengths_are_those_of_their_seed():
    """Two runs would compare other batches."""
    drawn = lengths_of("uniform", 50, 1024, 4224, seed=3)

    assert drawn == lengths_of("uniform", 50, 1024, 4224, seed=3)
    assert drawn != lengths_of("uniform", 50, 1024, 4224, seed=4)
    assert 512 <= min(drawn) < max(drawn) <= 1024
    assert [4224, 2112, 1408] == lengths_of("zipf", 3, 1024, 4224, seed=0)


def test_the_share_that_explains_a_reduction():
    """A reduction would be explained by more than the whole step."""
    assert 0.58 == pytest.approx(share_needed(0.29, 2.0))
    assert share_needed(0.69, 2.0) is None
    assert share_needed(0.1, 1.0) is None

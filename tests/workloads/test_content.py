"""Token ids: exact, shared where requested, the same everywhere."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from harness.api import Request
from workloads.content.tokens import Tokens


def request(prompt_tokens: int, ids: tuple[int, ...] = (), block: int = 512, number: int = 0) -> Request:
    return Request(number, 0.0, prompt_tokens, 1, prefix_ids=ids, prefix_block_tokens=block)


@given(
    st.integers(1, 3000),
    st.lists(st.integers(-(2**70), 2**70), max_size=5),
    st.integers(1, 600),
    st.integers(1, 2**32),
    st.integers(0, 2**40),
)
def test_count_is_exact_and_ids_are_in_the_vocabulary(
    count: int, ids: list[int], block: int, vocab: int, seed: int
) -> None:
    """If this failed, a prompt would be longer than its row says, or crash the embedding."""
    tokens = Tokens(seed).token_ids(request(count, tuple(ids), block), vocab)

    assert (count,) == tokens.shape
    assert np.int64 == tokens.dtype
    assert tokens.min() >= 0
    assert tokens.max() < vocab


def test_equal_prefix_ids_give_equal_tokens_and_nothing_else_does() -> None:
    """If this failed, a prefix cache would be measured on prompts that share more or less than the trace."""
    one = Tokens().token_ids(request(1500, (7, 8, 9), number=1), 32_000)
    two = Tokens().token_ids(request(1400, (7, 8, 5), number=2), 32_000)

    np.testing.assert_array_equal(one[:1024], two[:1024])
    assert np.mean(one[1024:1400] == two[1024:]) < 0.01


def test_a_shorter_last_block_is_the_beginning_of_the_longer_one() -> None:
    """If this failed, the partial block at the end of a shared prefix would not be shared."""
    short = Tokens().token_ids(request(700, (1, 2), number=1), 1000)
    full = Tokens().token_ids(request(1024, (1, 2), number=2), 1000)

    np.testing.assert_array_equal(short, full[:700])


def test_tokens_beyond_the_prefix_are_the_requests_own() -> None:
    """If this failed, requests without a common prefix would hit the prefix cache all the same."""
    one, two = (Tokens().token_ids(request(600, (), number=i), 32_000) for i in (1, 2))

    assert np.mean(one == two) < 0.01


def test_tokens_are_uniform_over_the_vocabulary() -> None:
    """If this failed, some ids would be favoured and prompts would resemble one another."""
    ids = np.concatenate([Tokens(5).token_ids(request(2000, (), number=i), 64) for i in range(50)])

    assert stats.chisquare(np.bincount(ids, minlength=64)).pvalue > 0.001


def test_tokens_never_change_between_versions() -> None:
    """If this failed, stored runs could not be repeated with the same prompts."""
    assert [13447, 14909, 18324, 8322] == Tokens().token_ids(request(4), 32_000).tolist()


@pytest.mark.parametrize("vocab", [0, -1, 2**33])
def test_a_vocabulary_that_cannot_be_is_refused(vocab: int) -> None:
    """If this failed, ids would wrap around without a word."""
    with pytest.raises(ValueError, match="vocab_size must be between"):
        Tokens().token_ids(request(3), vocab)

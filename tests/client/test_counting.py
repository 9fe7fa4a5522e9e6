"""How many tokens an answer has, and each of its events."""

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.client.counting import Counter, Recount, count, local, share
from backends.client.framing import Event, Stream, follow, take
from harness.api import CountedBy
from harness.errors import BackendError, UsageError


@given(st.integers(0, 10_000), st.lists(st.integers(0, 1000), min_size=1, max_size=50))
def test_no_token_is_lost_in_sharing_and_more_text_never_has_fewer(total: int, weights: list[int]) -> None:
    """Tokens would appear or vanish between the server's count and the table."""
    shares = share(total, weights)

    assert total == sum(shares) and len(weights) == len(shares) and min(shares) >= 0
    if total != len(weights):
        assert all(a <= b + 1 for a, b, v, w in zip(shares, shares[1:], weights, weights[1:], strict=False) if v <= w)


def test_shares_go_by_largest_remainder() -> None:
    """The rule in the documents would not be the rule in the tables."""
    assert [1, 1, 1] == share(3, [9, 1, 1])  # as many events as tokens: one each
    assert [4, 2, 1] == share(7, [50, 30, 10])
    assert [2, 2, 1] == share(5, [0, 0, 0])
    assert [] == share(5, [])


@given(st.lists(st.tuples(st.text("ab", max_size=3), st.integers(0, 3)), max_size=10), st.booleans())
def test_the_tokens_of_the_events_add_up_to_what_the_server_counts(parts: list[tuple[str, int]], every: bool) -> None:
    """Throughput would not be the server's."""
    stream, total = Stream(), 0
    for i, (text, grown) in enumerate(parts):
        total += max(grown, bool(text))
        more = {"usage": {"completion_tokens": total}} if every else {}
        take(stream, {"choices": [{"text": text}], **more}, i + 1)
    take(stream, {"choices": [], "usage": {"completion_tokens": total}}, 99)
    which, token_n, by, _, unseen = count(stream)

    if which and total:
        assert total == sum(token_n) + unseen and by in ("usage", "continuous usage")
    assert len(which) == len(token_n)


@pytest.mark.parametrize(
    ("claimed", "requested", "hidden", "used"),
    [(9, 8, 0, True), (10, 8, 0, False), (10_000_000, 8, 0, False), (10**30, 8, 0, False), (1011, 1000, 1000, True),
     (1012, 1000, 1000, False), (25, 256, 0, True), (256, 256, 0, True)],
)  # fmt: skip
def test_a_count_that_the_answer_cannot_have_is_not_used(claimed: int, requested: int, hidden: int, used: bool) -> None:
    """A server that claims ten million tokens for eight would be the fastest in the world.

    Of a request for 8 at most 9 are believed; as many as requested may leave little text, being special ones.
    """
    usage = {"completion_tokens": claimed, "completion_tokens_details": {"reasoning_tokens": hidden}}
    stream = follow([Event(json.dumps(chunk).encode(), i) for i, chunk in enumerate((
        {"choices": [{"text": "ab", "finish_reason": "length"}]}, {"choices": [], "usage": usage},
    ))], whole=True)  # fmt: skip

    _, token_n, by, refused, unseen = count(stream, requested)

    if used:
        assert (claimed, "usage", None) == (sum(token_n) + unseen, by, refused)
    else:
        assert ([1], "events", min(claimed, (1 << 63) - 1)) == (token_n, by, refused)


class Letters:
    """A tokenizer of letters."""

    by: CountedBy = "server tokenizer"

    async def tokens(self, text: str) -> int | None:
        return len(text)


class Gone:
    """A server that is no longer there."""

    by: CountedBy = "server tokenizer"
    queries = 0

    async def tokens(self, text: str) -> int | None:
        self.queries += 1
        raise BackendError(f"gone with {text}")


def counter(of: Letters | Gone) -> Counter:
    return of.by, of.tokens


def test_answers_are_counted_after_the_run_by_the_first_tokenizer_that_answers() -> None:
    """A server without usage would be measured in chunks."""
    kept = Recount()
    kept.keep(3, ["ab", "cd", "e"])
    kept.keep(4, [])

    assert {3: ("server tokenizer", [2, 2, 1])} == asyncio.run(kept.count([counter(Gone()), counter(Letters())]))
    assert {} == asyncio.run(kept.count([counter(Gone())])) == asyncio.run(kept.count([]))


def test_a_tokenizer_that_counts_more_than_a_text_can_have_is_not_believed() -> None:
    """The server that lies in its usage would lie in its tokenizer too."""

    class Liar(Letters):
        async def tokens(self, text: str) -> int | None:
            return 1000 * len(text)

    kept = Recount()
    kept.keep(3, ["ab", "cd", "e"])

    assert {} == asyncio.run(kept.count([counter(Liar())]))


def test_a_server_that_is_gone_is_not_queried_for_each_answer() -> None:
    """The report of a run whose server died would come hours later."""
    kept, gone = Recount(), Gone()
    for i in range(100):
        kept.keep(i, ["ab"])

    assert 100 == len(asyncio.run(kept.count([counter(gone), counter(Letters())])))
    assert 8 >= gone.queries


def test_a_tokenizer_that_is_none_is_refused_in_a_sentence(tmp_path) -> None:
    """The mistake would be found after the run."""
    (tmp_path / "tokenizer.json").write_text("{}")

    for path in (tmp_path, tmp_path / "none.json"):
        with pytest.raises(
            UsageError, match=r"Tokenizer '.*give the path of a tokenizer.json|is not a tokenizer.json of"
        ):
            local(str(path))

"""Tables that cannot have happened are found out."""

import sys

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harness.data.records import to_table
from harness.validity.physics import broken, little


def sentences(table):
    return [law.message for law in broken(table)]


def test_a_sound_table_breaks_nothing(table):
    """Every run would be called invalid."""
    assert [] == sentences(table(20))
    assert [] == sentences(table(0))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"output_tokens": [4, 5, 4]}, "Token conservation"),
        ({"token_n": [None, (1, 1, 1, 2), None], "output_tokens": 4}, "Token conservation"),
        ({"output_tokens_asked": [4, 9, 4]}, "has the requested number of tokens"),
        ({"sent_s": [0.0, 0.9, 2.0]}, "nothing is sent before it is scheduled"),
        ({"sent_s": [0.0, 1.2, 2.0]}, "no token comes before its request was sent"),
        ({"sent_s": [0.0, None, 2.0]}, "no token comes before its request was sent"),
        ({"tokens": [(0.1, 0.2), (1.3, 1.2), (2.1, 2.2)]}, "Token times never fall"),
        ({"tokens": [(0.1, 0.2), (1.3, float("nan")), (2.1, 2.2)]}, "Times are finite"),
        ({"tokens": [(0.1, 0.2), (1.3, float("inf")), (2.1, 2.2)]}, "Times are finite"),
    ],
)
def test_each_law_names_the_first_request_that_breaks_it(table, changes, sentence):
    """A corrupt table would be averaged, or refused without a place to look at."""
    found = [s for s in sentences(table(3, **changes)) if sentence in s]

    assert 1 == len(found)
    assert found[0].endswith("not so for request 1.")


def test_several_offenders_are_counted(table):
    """One bad row and a thousand would read the same."""
    found = sentences(table(10, output_tokens=[4] * 3 + [5] * 7, output_tokens_asked=[4] * 3 + [5] * 7))

    assert 1 == len(found)
    assert found[0].endswith("not so for 7 of 10 requests, first request 3.")


def test_offenders_beyond_the_first_piece_are_found(table, monkeypatch):
    """Only the first 65,536 requests would be checked, or the wrong one named."""
    monkeypatch.setattr("harness.data.lists.CHUNK", 4)
    rows = table(11, tokens=[(i + 0.2, i + 0.1) if i == 9 else (i + 0.1,) if i % 2 else () for i in range(11)])

    assert [s for s in sentences(rows) if s.endswith("not so for request 9.")]


def test_a_request_that_failed_may_have_fewer_tokens(table):
    """Every time-out would make a run invalid."""
    assert [] == sentences(table(2, status=["ok", "timeout"], output_tokens_asked=[4, 100]))


def test_equal_stamps_are_no_fall(table):
    """A chunk of several tokens with one stamp would be called corrupt."""
    assert [] == sentences(table(1, tokens=(0.1, 0.1, 0.1)))


@given(
    st.lists(st.tuples(st.floats(0, 1e4), st.lists(st.floats(0, 100), min_size=1, max_size=4)), min_size=1, max_size=30)
)
@example([(0.0, [0.0]), (0.0, [5e-324])])
@example([(0.0, [5e-324]), (1.0, [0.0])])
def test_littles_law_holds_on_every_table(record, requests):
    """E7: time-average number in the system = arrival rate x mean time in the system."""
    requests.sort(key=lambda r: r[0])
    rows = to_table(
        [
            record(i, scheduled_s=due, sent_s=due, tokens=list(due + np.cumsum(gaps)))
            for i, (due, gaps) in enumerate(requests)
        ]
    )
    found = little(rows)

    if found is not None:
        assert found[0] == pytest.approx(found[1], rel=1e-9, abs=sys.float_info.min)
    assert [] == sentences(rows)


def test_an_answer_after_no_time_at_all_does_not_overflow(record):
    """The smallest time that a float holds would end the judging of a run with an overflow."""
    assert pytest.approx((1.0, 1.0)) == little(to_table([record(0, scheduled_s=0.0, tokens=[5e-324])]))


def test_littles_law_by_hand(record):
    """Both sides could be the same wrong number."""
    rows = to_table([record(0, scheduled_s=0.0, tokens=[2.0]), record(1, scheduled_s=1.0, tokens=[4.0])])

    assert little(rows) == pytest.approx((5 / 4, 5 / 4))


def test_littles_law_needs_an_answer(table):
    """A run without an answer would end in a division by zero."""
    assert little(table(3, tokens=(), status="dropped")) is None

"""The change of time: arrivals along a rate, held against the definition."""

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import islice, repeat

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import UsageError
from harness.registry import make
from workloads.arrivals._operational import CHUNK, Gaps, Piece, chunks_along, times_along
from workloads.arrivals._path import Path, along, flat, rest_of

rates = st.one_of(st.just(0.0), st.floats(0.01, 1000.0))
pieces = st.lists(
    st.builds(lambda s, a, b, steady: Piece(s, a, a if steady else b), st.floats(0, 30), rates, rates, st.booleans()),
    max_size=6,
)


def gamma(seed: int, shape: float = 1.0) -> Gaps:
    rng = np.random.default_rng(seed)
    return lambda n: rng.gamma(shape, 1 / shape, n)


def equal(gap: float) -> Gaps:
    return lambda n: np.full(n, gap)


def exact_integral(along: Sequence[Piece], time_s: float) -> Fraction:
    """Arrivals expected until `time_s`, in whole numbers: the definition, without solving anything."""
    left, total = Fraction(time_s), Fraction(0)
    for piece in along:
        spent = min(left, Fraction(piece.duration_s))
        if spent > 0:
            start, end = Fraction(piece.start_rps), Fraction(piece.end_rps)
            total += spent * start + (end - start) / Fraction(piece.duration_s) * spent**2 / 2
        left -= spent
    return total


@settings(max_examples=60, deadline=None)
@given(pieces, st.integers(0, 100), st.sampled_from([0.1, 1.0, 20.0]))
def test_arrivals_lie_where_the_integral_of_the_rate_reaches_the_sum_of_the_gaps(
    stretch: list[Piece], seed: int, shape: float
) -> None:
    """If this failed, gaps would be lost or redrawn where the rate changes, and the rate would be wrong."""
    drawn, again = gamma(seed, shape), gamma(seed, shape)
    at_s = np.array(list(times_along(stretch, drawn)))
    total = float(sum((exact_integral([p], p.duration_s) for p in stretch), Fraction(0)))
    wanted = np.cumsum(np.concatenate([again(CHUNK) for _ in range(1 + len(at_s) // CHUNK)]))
    some = np.unique(np.linspace(0, len(at_s) - 1, 40).astype(int)) if len(at_s) else []

    assert np.all(np.diff(at_s) >= 0)
    for i in some:
        assert abs(float(exact_integral(stretch, at_s[i])) - wanted[i]) < 1e-9 * (1 + wanted[i])
    assert len(at_s) == len(wanted) or wanted[len(at_s)] > total - 1e-9 * (1 + total)
    assert not len(at_s) or wanted[len(at_s) - 1] < total + 1e-9 * (1 + total)


@settings(deadline=None)
@given(pieces, st.integers(0, 100))
def test_nothing_arrives_while_the_rate_is_zero(stretch: list[Piece], seed: int) -> None:
    """If this failed, an outage of the clients would have requests in it."""
    at_s = np.array(list(times_along(stretch, gamma(seed))))
    edges = np.cumsum([0.0, *(p.duration_s for p in stretch)])
    for piece, start_s, end_s in zip(stretch, edges, edges[1:], strict=False):
        inside = (at_s > start_s + 1e-9) & (at_s < end_s - 1e-9)

        assert piece.arrivals > 0 or not inside.any()


@settings(deadline=None)
@given(pieces, st.lists(st.floats(0, 200), min_size=1, max_size=20))
def test_operational_time_is_the_integral_of_the_rate(stretch: list[Piece], times_s: list[float]) -> None:
    """If this failed, the gap law of a report would accuse a schedule that keeps it."""
    stretch = [p for p in stretch if p.duration_s > 1e-3]
    once = Path(tuple(stretch), flat(math.inf, 2.0))
    expected = [float(exact_integral([*stretch, Piece(1e6, 2.0, 2.0)], t)) for t in times_s]

    np.testing.assert_allclose(once.operational_time(np.array(times_s)), expected, rtol=1e-9, atol=1e-9)


def test_a_cycle_is_integrated_turn_by_turn() -> None:
    """If this failed, the second day of a daily curve would not look like the first."""
    path = Path(flat(5.0, 7.0), along((0, 10, 20), (1, 3, 1)))

    np.testing.assert_allclose([0, 35, 55, 75, 85], path.operational_time(np.array([0, 5, 15, 25, 31.180340])))
    np.testing.assert_allclose(35 + 40 * 1000 + 20, path.operational_time(np.array([5 + 20 * 1000 + 10]))[0])
    assert 2.0 == path.mean_rate_rps


def test_a_gap_under_way_keeps_its_law_when_the_law_changes() -> None:
    """If this failed, every change of the gap law would add or lose an arrival."""
    stretch = [Piece(9.5, 1.0, 1.0, equal(1.0)), Piece(1.5, 1.0, 1.0, equal(0.25)), Piece(1.0, 0.0, 4.0)]
    at_s = np.array(list(times_along(stretch, equal(99.0))))

    np.testing.assert_allclose([*range(1, 11), 10.25, 10.5, 10.75], at_s[:13])
    np.testing.assert_allclose(11 + np.sqrt(np.arange(0, 2, 0.25) / 2), at_s[13:], atol=1e-12)


def test_taking_one_at_a_time_gives_the_times_of_taking_all_at_once() -> None:
    """If this failed, the number of requests that a caller takes at a time would change the schedule."""

    def stretch() -> list[Piece]:
        laws = [gamma(5, 0.5), gamma(6, 2.0)]
        return [Piece(3.0, float(i % 4), 900.0, laws[i // 5 % 2]) for i in range(40)]

    stream = times_along(stretch(), gamma(4))
    one_by_one = []
    while (time_s := next(stream, None)) is not None:
        one_by_one.append(time_s)
    whole = np.fromiter(times_along(stretch(), gamma(4)), float)

    assert 50_000 < len(whole)
    assert whole.tobytes() == np.array(one_by_one).tobytes()
    assert whole.tobytes() == np.concatenate(list(chunks_along(stretch(), gamma(4)))).tobytes()


def test_cutting_a_piece_in_two_changes_nothing() -> None:
    """If this failed, a rate per minute and the same rate per hour would give two schedules."""
    whole = (Piece(100.0, 5.0, 45.0),)
    cut = (Piece(30.0, 5.0, 17.0), *rest_of(whole, 30.0))
    one, two = (np.array(list(times_along(p, gamma(3)))) for p in (whole, cut))

    np.testing.assert_allclose(one, two, rtol=1e-12)


@pytest.mark.nightly
def test_a_million_pieces_do_not_drift() -> None:
    """If this failed, arrivals of a long run would slide away from the rate that they are to follow."""
    count = 1_000_000
    at_s = np.fromiter(islice(times_along(repeat(Piece(0.1, 1.0, 1.0)), equal(1.0)), count // 10), float)
    expected = np.arange(1, count // 10 + 1)

    assert np.abs(at_s - expected).max() < 1e-7


def test_ten_million_arrivals_of_one_piece_do_not_drift() -> None:
    """If this failed, the mean rate of a long run would be off by what its sums have lost."""
    last_s = 0.0
    for chunk in islice(chunks_along([Piece(math.inf, 3.0, 3.0)], equal(1.0)), 10_000_000 // CHUNK):
        last_s = chunk[-1]

    assert abs(last_s - 10_000_000 // CHUNK * CHUNK / 3) < 1e-7


def test_gaps_of_nothing_at_a_rate_of_nothing_are_at_the_start() -> None:
    """If this failed, a very bursty law on a ramp from 0 would give times that are not numbers."""
    at_s = list(islice(times_along([Piece(0.0, 1.0, 1.0), Piece(10.0, 0.0, 5.0)], equal(0.0)), 3))

    assert [0.0, 0.0, 0.0] == at_s


@pytest.mark.parametrize(
    ("most_idle", "arrivals"),
    [
        ("_operational.MOST_IDLE", "mmpp:levels=1/0,dwells=1ms/1ms,rate=1e-6"),
        ("_operational.MOST_IDLE", "diurnal:period=100s,rate=1e-6"),
        ("_exact.MOST_EMPTY", "azure:over=1ms,rate=1e-6"),
    ],
)
def test_a_rate_that_changes_far_more_often_than_requests_come_is_refused(
    most_idle: str, arrivals: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run with such arrivals never began."""
    monkeypatch.setattr(f"workloads.arrivals.{most_idle}", 1000)

    with pytest.raises(UsageError, match=r"changes 1,000 times without a request; give a higher --rate"):
        next(iter(make("arrivals", arrivals).times(np.random.default_rng(0))))

"""Where the mean share of independent runs crosses a goal: intervals hold the truth as often as they say."""

import math

import numpy as np
import pytest

from harness.stats.crossing import Shares, near, root, runs_needed

GOAL, SLOPE, CROSSING, APART = 0.9, 8.0, math.log(3.0), 0.1


def drawn(rng: np.random.Generator, seeds: int, *, load: float = 0.0, clumped: float = 60.0) -> Shares:
    """Runs of fresh seeds by turns at two rates, whose shares scatter as those of `clumped` requests; `load` is how
    much of the logit a control explains per standard deviation."""
    x = CROSSING + APART * np.where(np.arange(seeds) % 2, 1, -1)
    control = rng.normal(size=seeds)
    mean = 1 / (1 + np.exp(-(math.log(GOAL / (1 - GOAL)) - SLOPE * (x - CROSSING) - load * control)))
    share = rng.beta(clumped * mean, clumped * (1 - mean))
    return Shares(np.arange(seeds), x, share, control[:, None] if load else np.zeros((seeds, 0)), 1e-4)


def coverage(searches: int, seeds: int, **options: float) -> tuple[float, float]:
    """How often the interval of the line, and that of as many final runs, hold the crossing."""
    rng, held = np.random.default_rng(11), np.zeros(2)
    for _ in range(searches):
        pilot, final = (drawn(rng, seeds, **options) for _ in range(2))
        line = near(pilot, GOAL, CROSSING, 0.3)
        assert line is not None
        low, high = line.interval()
        answer = root(line, final, np.zeros((final.controls.shape[1],) * 2))
        held += low <= CROSSING <= high, abs(answer.x - CROSSING) <= answer.half
    return float(held[0] / searches), float(held[1] / searches)


@pytest.mark.parametrize("options", [{}, {"load": 0.4}, {"clumped": 25.0}])
def test_intervals_hold_the_crossing(options: dict[str, float]) -> None:
    of_line, of_final = coverage(100, 24, **options)

    assert 0.91 <= of_line
    assert 0.91 <= of_final


def test_a_control_takes_off_what_it_explains() -> None:
    rng = np.random.default_rng(6)
    runs = drawn(rng, 200, load=0.8, clumped=400.0)
    blind = Shares(runs.seed, runs.x, runs.share, np.zeros((len(runs), 0)), runs.half_a_miss)

    with_control, without = (near(each, GOAL, CROSSING, 0.3) for each in (runs, blind))

    assert with_control is not None and without is not None
    assert with_control.scatter < 0.6 * without.scatter


def test_an_error_of_the_centre_of_a_control_widens_the_answer() -> None:
    runs = drawn(np.random.default_rng(7), 40, load=0.8)
    line = near(runs, GOAL, CROSSING, 0.3)
    assert line is not None

    known, estimated = (root(line, runs, np.array([[variance]])) for variance in (0.0, 0.05))

    assert known.x == estimated.x
    assert known.half < estimated.half


def test_planned_runs_give_the_tolerance() -> None:
    rng = np.random.default_rng(8)
    line = near(drawn(rng, 200), GOAL, CROSSING, 0.3)
    assert line is not None

    planned = runs_needed(line, line.scatter, 0.03, 10)
    answer = root(line, drawn(rng, planned), np.zeros((0, 0)))

    assert 0.02 < answer.half < 0.036


def test_misses_in_few_runs_widen_the_interval() -> None:
    rng = np.random.default_rng(9)
    runs = drawn(rng, 40)
    line = near(runs, GOAL, CROSSING, 0.3)
    assert line is not None
    share = np.where(np.arange(40) < 2, 0.2, 0.999)
    clumped = Shares(runs.seed, runs.x, share, runs.controls, runs.half_a_miss)

    assert clumped.clumps < 2.5 < 8 < runs.clumps
    assert root(line, clumped, np.zeros((0, 0))).half > 2 * root(line, runs, np.zeros((0, 0))).half


def test_no_line_without_a_slope() -> None:
    flat = Shares(np.arange(8), np.full(8, CROSSING), np.full(8, 0.9), np.zeros((8, 0)), 1e-4)

    assert near(flat, GOAL, CROSSING, 0.3) is None

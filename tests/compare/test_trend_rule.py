"""The rule of the trend against drawn series and by hand."""

import math

import numpy as np
import pytest

from harness.stats.watch import EXACT, Rule, scatter, watch

RUNS = 60


def series(count, sd, seed, level=1.0, correlation=0.0):
    """Drawn series of sixty runs."""
    rng = np.random.default_rng(seed)
    noise = sd * rng.standard_normal((count, RUNS))
    for night in range(1, RUNS):
        noise[:, night] = correlation * noise[:, night - 1] + math.sqrt(1 - correlation**2) * noise[:, night]
    return level * (1 + noise)


def worse(values):
    """Share of series with a change for the worse on some night."""
    found = [watch(one.tolist(), Rule(), higher=False).changes for one in values]
    return sum(any(change.side == "worse" for change in changes) for changes in found) / len(found)


@pytest.mark.parametrize("sd", [0.01, 0.04])
def test_flat_series_are_steady_every_night(sd):
    """A nightly job cries wolf: each night is another look."""
    assert 0.02 >= worse(series(100, sd, seed=11))


def test_weekends_slow_waves_and_a_second_machine_are_no_loss():
    """A change that comes back each week or month, or a pool of two machines, is a regression."""
    night, rng = np.arange(RUNS), np.random.default_rng(31)
    weekend = series(40, 0.02, 32) + 0.03 * np.isin((night + 3) % 7, (5, 6))
    waves = series(40, 0.02, 33) + 0.02 * np.sin(2 * np.pi * (night / 30 + rng.random((40, 1))))
    machines = series(40, 0.02, 34) + 0.04 * (rng.random((40, RUNS)) < 0.5)

    assert [True] * 3 == [0.05 >= worse(values) for values in (weekend, waves, machines)]


def lost_gains(share):
    """Series that become 10 % faster for 25 runs, and lose that share of it again."""
    night = np.arange(RUNS)
    level = 1 - 0.1 * (night >= 15) + 0.1 * share * (night >= 40)
    return [watch(values.tolist(), Rule(), higher=False) for values in series(60, 0.01, seed=35, level=level)]


def test_a_gain_that_was_never_accepted_does_not_hide_a_later_loss():
    """Half of a gain is lost again, and nothing is worse than the accepted level: 60 of 60 were overlooked."""
    for share in (0.5, 1.0):
        opened = [rule.open for rule in lost_gains(share)]

        assert 60 == sum(change is not None and change.side == "worse" for change in opened)
        assert 57 <= sum(change is not None and abs(change.first - 40) <= 1 for change in opened)


def test_a_lasting_gain_is_the_reference_and_a_short_one_is_not():
    """A fast week makes every later week slow, or the level of a month is no measure of the next."""
    lasting = watch([10.0] * 10 + [9.0] * 21, Rule(), higher=False)
    short = watch([10.0] * 10 + [9.0] * 14 + [10.0] * 10, Rule(), higher=False)
    kept = watch([10.0] * 10 + [9.0] * 40, Rule(ratchet=False), higher=False)

    assert (9.0, None, lasting.changes[0]) == (lasting.level, lasting.open, lasting.gained)
    assert (10.0, 24, None) == (short.level, short.changes[0].ended, short.gained)
    assert (10.0, "better") == (kept.level, kept.open.side)


def test_a_loss_never_becomes_the_reference():
    """After three weeks a slower server is the measure of the next one."""
    slow = watch([10.0] * 10 + [11.0] * 60, Rule(), higher=False)

    assert (10.0, "worse", 10) == (slow.level, slow.open.side, slow.open.first)


def test_single_bad_runs_are_no_change():
    """A shared machine is slow on every twentieth night, by a fifth."""
    values = series(100, 0.01, seed=12) + 0.2 * (np.random.default_rng(12).random((100, RUNS)) < 0.05)

    assert 0.03 >= worse(values)


def test_steps_are_found_within_a_week():
    """A step is overlooked for weeks."""
    step = 1 + 0.1 * (np.arange(RUNS) >= 40)
    found = [watch(one.tolist(), Rule(), higher=False).changes for one in series(50, 0.02, seed=13, level=step)]

    assert 44 <= sum(any(abs(change.first - 40) <= 1 and change.called < 47 for change in one) for one in found)


def test_a_slow_loss_is_found_and_never_forgotten():
    """A creep of a fifth in two months is steady every night, because the reference follows it."""
    creep = 1 + 0.19 * np.arange(RUNS) / (RUNS - 1)
    found = [watch(one.tolist(), Rule(), higher=False) for one in series(50, 0.02, seed=14, level=creep)]

    assert 50 == sum(one.open is not None and one.open.side == "worse" for one in found)


def test_correlated_runs_allow_more():
    """Slow waves of a machine are regressions, week after week."""
    waves, noise = (
        [watch(one.tolist(), Rule(), higher=False).judged[-1].threshold for one in series(50, 0.02, 15, 1.0, rho)]
        for rho in (0.8, 0.0)
    )

    assert np.median(waves) > 1.1 * np.median(noise)
    assert 0.6 < np.median([scatter(one.tolist()).correlation for one in series(100, 0.02, 16, 1.0, 0.9)])
    assert 0.0 == np.median([scatter(one.tolist()).correlation for one in series(100, 0.02, 17)])


def test_steps_and_drift_are_no_scatter():
    """The step that is looked for hides in the noise that it makes."""
    night = np.arange(RUNS)
    for level in (1 + 0.1 * (night >= 30), 1 + 0.19 * night / 59):
        found = [scatter(one.tolist()).sd for one in series(50, 0.01, seed=18, level=level)]

        assert pytest.approx(0.011, abs=0.003) == np.median(found)


def test_the_interval_of_a_change_holds_its_size():
    """A change is printed with an interval that misses it."""
    step, held = 1 + 0.1 * (np.arange(RUNS) >= 40), 0
    for one in series(200, 0.01, seed=19, level=step):
        found = watch(one.tolist(), Rule(), higher=False)
        held += abs(found.loss(np.median(one[40:]), found.level) - 0.1) <= found.margin(20)

    assert 0.9 <= held / 200 <= 0.995


def test_the_accepted_level_does_not_follow():
    """After a week at a new level it is the reference, and nothing is wrong any more."""
    judged = watch([1.0] * 10 + [1.1] * 40, Rule(), higher=False).judged

    assert ["few"] * 7 + ["steady"] * 3 + ["suspect"] * 3 + ["worse"] * 37 == [one.state for one in judged]
    assert {1.0} == {one.reference for one in judged[7:]}


def test_higher_values_can_be_the_better_ones():
    """A rise of throughput is called a loss."""
    up, down = (watch([10.0] * 7 + [v] * 4, Rule(), higher=True).changes[0].side for v in (12.0, 8.0))

    assert ("better", "worse") == (up, down)


def test_a_change_ends_where_the_level_returns():
    """A bad week that has passed is flagged for ever, or a fall after a gain is none."""
    passed = watch([10.0] * 10 + [12.0] * 5 + [10.0] * 5, Rule(), higher=False).changes
    crossed = watch([10.0] * 10 + [9.0] * 10 + [11.0] * 10, Rule(), higher=False).changes

    assert [("worse", 10, 13, 15)] == [(s.side, s.first, s.called, s.ended) for s in passed]
    assert [("better", 10, 20), ("worse", 20, None)] == [(s.side, s.first, s.ended) for s in crossed]


def test_a_series_that_is_always_overloaded_is_no_change():
    """Infinity beside infinity is worse or better by nothing that is known."""
    assert [] == watch([math.inf] * 12, Rule(), higher=False).changes
    assert ["better"] == [s.side for s in watch([math.inf] * 8 + [1.0] * 4, Rule(), higher=False).changes]
    assert ["worse"] == [s.side for s in watch([1.0] * 8 + [math.inf] * 4, Rule(), higher=False).changes]


def test_an_exact_series_changes_with_every_difference():
    """A simulator's change needs a week."""
    changes = watch([1.0, 1.0, 1.1, 1.1, 1.0, 1.2, 1.3], EXACT, higher=False).changes

    assert [(2, 2, 4), (5, 5, None), (6, 6, None)] == [(one.first, one.called, one.ended) for one in changes]

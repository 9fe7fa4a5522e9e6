"""Statistics of paired losses, beside scipy and beside the tables of the literature that the rule was chosen from."""

import math
from itertools import product

import numpy as np
import pytest
from scipy import stats

from harness.stats import paired
from harness.stats.paired import Limits

LIMITS = Limits(-math.log(0.98), -math.log(0.95))


def spread(noise):
    """Standard deviation of a pair whose runs have this noise: what the traffic adds is 0.16 %."""
    return math.hypot(math.sqrt(2) * noise, 0.0016)


def test_bounds_and_p_are_those_of_scipy():
    """A wrong t quantile would call every second night a regression, or none."""
    losses = [0.031, 0.012, 0.044, 0.027, 0.019]
    by_scipy = stats.ttest_1samp(losses, 0.0, alternative="greater")
    low = by_scipy.confidence_interval(0.99).low

    found = paired.decide(losses, LIMITS)

    assert found.p == pytest.approx(by_scipy.pvalue, abs=1e-9)
    assert found.low == pytest.approx(low, abs=1e-9)
    assert found.high == pytest.approx(2 * np.mean(losses) - low, abs=1e-9)


def test_sign_flips_are_all_tried():
    """The exact p would be a lie if some of the sign flips were left out or counted twice."""
    losses = [0.03, 0.01, -0.004, 0.027, 0.019, 0.008, 0.002]
    every = [sum(s * x for s, x in zip(signs, losses, strict=True)) for signs in product((1, -1), repeat=7)]
    share = np.mean([total >= sum(losses) - 1e-12 for total in every])
    by_scipy = stats.permutation_test(
        (losses,), np.mean, permutation_type="samples", alternative="greater", n_resamples=np.inf
    )

    assert paired.sign_flip_p(losses) == share
    assert paired.sign_flip_p(losses) == pytest.approx(by_scipy.pvalue, abs=1e-9)


@pytest.mark.parametrize(
    ("noise", "percent"),
    [
        (0.002, [2.3, 1.2, 0.9, 0.7, 0.6, 0.6, 0.5, 0.4, 0.3]),
        (0.005, [5.0, 2.8, 2.0, 1.7, 1.4, 1.3, 1.1, 0.9, 0.7]),
        (0.01, [9.6, 5.3, 3.9, 3.2, 2.8, 2.5, 2.1, 1.7, 1.4]),
        (0.02, [18, 10, 7.7, 6.3, 5.5, 4.9, 4.1, 3.3, 2.7]),
        (0.03, [26, 15, 11, 9.3, 8.1, 7.2, 6.2, 4.9, 4.0]),
    ],
)
def test_detectable_effects_are_those_of_the_noncentral_t(noise, percent):
    """A detectable effect that is too small promises what the pairs cannot keep."""
    pairs = (3, 4, 5, 6, 7, 8, 10, 14, 20)
    found = [100 * -math.expm1(-paired.mde(spread(noise), k)) for k in pairs]

    assert percent == pytest.approx(found, abs=0.5 if noise > 0.01 and percent[0] > 10 else 0.06, rel=0.03)


def test_a_loss_of_the_detectable_effect_is_found_in_95_of_100():
    """The printed effect would be an empty number if pairs did not find it."""
    sd, k = 0.02, 5
    loss = paired.mde(sd, k)
    t = float(stats.t.ppf(0.99, k - 1))
    draws = np.random.default_rng(5).normal(loss, sd, (40_000, k))

    share = np.mean(draws.mean(1) > t * draws.std(1, ddof=1) / math.sqrt(k))

    assert share == pytest.approx(0.95, abs=0.005)


@pytest.mark.parametrize(("noise", "pairs"), [(0.002, 3), (0.01, 5), (0.02, 8), (0.03, 14)])
def test_pairs_needed_for_a_loss_of_five_percent(noise, pairs):
    """With too few pairs a night of runs would decide nothing."""
    assert pairs == paired.pairs_needed(spread(noise), -math.log(0.95))


def test_no_one_is_advised_to_run_a_million_pairs():
    """Where the noise drowns the loss, a number of pairs would be no advice."""
    assert paired.pairs_needed(5.0, 0.01) is None


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("pairs", "noise", "shares"),
    [
        (3, 0.01, [(0.1, 55), (10, 19), (24, 4), (55, 0), (87, 0)]),
        (5, 0.005, [(0, 100), (50, 50), (99.9, 0.1), (100, 0), (100, 0)]),
        (5, 0.01, [(0.04, 99.5), (32, 54), (77, 8), (99.5, 0), (100, 0)]),
        (5, 0.02, [(0.7, 63), (11, 23), (24, 9), (64, 0.3), (97, 0)]),
        (10, 0.02, [(0.5, 99), (31, 56), (70, 17), (99, 0.1), (100, 0)]),
    ],
)
def test_the_rule_errs_as_seldom_as_it_was_chosen_for(pairs, noise, shares):
    """False alarms wake people, missed losses reach users: (regressed, equivalent) in %, at 0, 2, 3, 5, 8 %."""
    rng = np.random.default_rng(11)
    for loss, (regressed, equivalent) in zip((0.0, 0.02, 0.03, 0.05, 0.08), shares, strict=True):
        draws = rng.normal(-math.log1p(-loss), spread(noise), (2000, pairs))
        verdicts = [paired.decide(row, LIMITS).verdict for row in draws]

        assert regressed == pytest.approx(100 * verdicts.count("regressed") / 2000, abs=3.5)
        assert equivalent == pytest.approx(100 * verdicts.count("equivalent") / 2000, abs=3.5)


@pytest.mark.parametrize(
    ("losses", "verdict"),
    [
        ([0.05, 0.06, 0.05, 0.055, 0.052], "regressed"),
        ([-0.05, -0.06, -0.05, -0.055, -0.052], "improved"),
        ([0.01, 0.012, 0.011, 0.009, 0.01], "equivalent"),
        ([0.04, -0.05, 0.06, 0.02, -0.01], "inconclusive"),
        ([0.0, 0.0, 0.0], "equivalent"),
        ([0.03, 0.03, 0.03], "regressed"),
        ([0.2], "inconclusive"),
    ],
)
def test_verdicts(losses, verdict):
    """Each of the four answers has its case."""
    assert verdict == paired.decide(losses, LIMITS).verdict


def test_the_adjustment_takes_back_what_many_gates_find_by_chance():
    """With ten gates one of them would be below p = 0.01 in every tenth night."""
    rng = np.random.default_rng(2)
    borderline = [0.028, 0.005, 0.05, 0.035, 0.04]
    quiet = {f"quiet{i}": rng.normal(0, 0.001, 5).tolist() for i in range(9)}
    alone = paired.decide(borderline, LIMITS)

    together = paired.decide_all(
        {name: (losses, LIMITS, ()) for name, losses in ({"loud": borderline} | quiet).items()}
    )

    assert alone.verdict == "regressed" and alone.p == pytest.approx(0.00694, abs=1e-5)
    assert together["loud"].verdict == "inconclusive" and together["loud"].p > 0.01


def test_p_is_adjusted_by_the_worst_set_of_gates():
    """Two gates that agree share a chance, and one that stands alone pays for those beside it: Wilson 2019."""
    found = paired.closed({"a": 0.001, "b": 0.004, "c": 0.5})
    sets = [[0.001], [0.001, 0.004], [0.001, 0.5], [0.001, 0.004, 0.5]]

    assert found["a"] == pytest.approx(max(stats.hmean(each) for each in sets))
    assert paired.closed({"a": 0.004, "b": 0.004}) == pytest.approx({"a": 0.004, "b": 0.004})
    assert paired.closed({"a": 0.004, "b": 1.0})["a"] == pytest.approx(0.008, rel=0.01)


def test_a_gate_that_never_differed_costs_no_power():
    """Where no request failed, the gate on failures would take a third of alpha from the others."""
    losses = [0.028, 0.005, 0.05, 0.035, 0.04]
    found = paired.decide_all({"tpot": (losses, LIMITS, ()), "failed": ([0.0] * 5, LIMITS, ())})

    assert found["tpot"].p == pytest.approx(paired.decide(losses, LIMITS).p)


def test_the_steady_test_is_that_of_yuen():
    """A wrong standard error of the trimmed mean finds differences that are not there."""
    losses = np.random.default_rng(3).normal(0.02, 0.02, 10)
    by_scipy = stats.ttest_ind(losses, [1e-12, -1e-12, 0.0, 0.0], trim=0.1, equal_var=False)  # the other side is 0
    found = paired.decide(losses.tolist(), LIMITS, steady=losses.tolist()).steady

    assert found.mean == pytest.approx(stats.trim_mean(losses, 0.1))
    assert (found.mean / (found.sd / math.sqrt(10))) == pytest.approx(by_scipy.statistic, rel=1e-6)


STALLS, EPISODES = [0.051, 0.049, 0.052, 0.048, 0.05], [0.05, 0.13, -0.03, 0.12, 0.05]


@pytest.mark.parametrize(
    ("losses", "steady", "verdict"),
    [
        (STALLS, [0.001, -0.001, 0.0, 0.002, -0.002], "regressed"),  # stalls that the median group does not see
        (EPISODES, STALLS, "regressed"),  # a neighbour in single runs
        (EPISODES, [0.0, 0.001, -0.001, 0.0, 0.001], "inconclusive"),
        (STALLS, [-x for x in STALLS], "regressed"),
        ([0.06, 0.02, 0.07, 0.04, 0.0], [-x for x in STALLS], "inconclusive"),  # a gain that the mean contradicts
        ([-x for x in STALLS], [-x for x in STALLS], "improved"),
    ],
)
def test_either_test_finds_a_loss_and_none_hides_it(losses, steady, verdict):
    """A robust value alone misses stalls, a mean alone misses a loss beside noisy neighbours."""
    found = paired.decide(losses, LIMITS, steady=steady)

    assert verdict == found.verdict
    assert (found.p <= 0.01) == (verdict == "regressed")


def test_the_combined_p_is_that_of_both_where_they_agree():
    """Two tests of nearly the same values would cost half of alpha."""
    assert paired.decide(STALLS, LIMITS, steady=STALLS).p == pytest.approx(paired.decide(STALLS, LIMITS).p)


def test_the_median_group_ignores_an_episode_and_its_scatter_shows_it():
    """Thirty slow seconds in one of two runs would be taken for a difference between the systems."""
    rng = np.random.default_rng(1)
    base = rng.lognormal(0, 0.1, 400)
    head = base * 1.05 * rng.lognormal(0, 0.02, 400)
    quiet, scatter = paired.steady_loss(base, head)
    head[40:160] *= 1.2
    hit, uneven = paired.steady_loss(base, head)

    assert math.log(1.05) == pytest.approx(quiet, abs=0.005) == pytest.approx(hit, abs=0.005)
    assert scatter < 0.01 and uneven > 0.08
    assert paired.steady_loss(base[:24], head[:24]) is None


def test_pairs_unlike_the_others_are_found_by_size_not_by_sign():
    """A rule that depends on signs, or at the distance from the median, makes alarms more frequent than alpha."""
    losses = [0.01, -0.011, 0.0105, 0.3, 0.0095]

    assert paired.outliers(losses, 0.05) == [3] == paired.outliers([-x for x in losses], 0.05)
    assert paired.outliers([0.01, -0.011, 0.0105, -0.3, 0.0095], 0.05) == [3]
    assert paired.outliers([0.01, 0.011, 0.04], 0.05) == []  # of no interest
    assert paired.outliers([0.2, 0.21, 0.19], 0.05) == []  # a loss
    assert paired.outliers([0.01, 0.3], 0.05) == []
    assert paired.uneven([0.02, 0.08, 0.025], 0.05) == [1]
    assert paired.uneven([0.06, 0.08, 0.07], 0.05) == []  # stalls in all pairs


@pytest.mark.parametrize("losses", [[], [0.1, math.nan], [math.inf, 0.0]])
def test_losses_that_are_none_are_refused(losses):
    """A NaN would make every bound NaN, and every verdict `inconclusive` for a wrong reason."""
    with pytest.raises(ValueError, match="finite"):
        paired.decide(losses, LIMITS)


def test_the_whole_is_the_worst():
    """One regressed gate is enough; an open one comes before an improvement."""
    assert paired.whole(["equivalent", "improved", "regressed"]) == "regressed"
    assert paired.whole(["improved", "inconclusive"]) == "inconclusive"
    assert paired.whole(["improved", "equivalent"]) == "improved"
    assert paired.whole(["equivalent"]) == "equivalent"

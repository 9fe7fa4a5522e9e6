"""Requests drawn from a fitted model: the same bytes in any chunks, at any rate."""

from itertools import islice

import numpy as np
import pyarrow as pa
import pytest

from harness import registry
from harness.stats import arrivals as stats_arrivals
from workloads.arrivals._operational import merged
from workloads.arrivals._services import Component
from workloads.fit import command
from workloads.fit.model import Model, Service
from workloads.fit.process import Cox, RateTracking
from workloads.lengths import _empirical

ROWS = 150_000  # three blocks, the last one short


def generated(model, **options):
    return pa.concat_tables(command.tables(model, **options))


def lengths(seed):
    rng = np.random.default_rng(seed)
    return _empirical.measure(rng.integers(1, 3000, 2000), rng.integers(1, 300, 2000))


def model():
    """Two services, one of each kind."""
    chat = Service("chat", Cox(40.0, 0.9, (Component(0.4, 60.0), Component(0.2, 2.0))), lengths(1))
    api = Service("api", RateTracking(10.0, 0.5, 20.0, (0.2, 3.0, 1.0, 0.0, 0.8)), lengths(2))
    return Model((chat, api), {"file": "made"}, {})


def plain(burst=0.5):
    return Model((Service(None, Cox(20.0, 0.5, (Component(burst, 50.0),)), lengths(3)),), {}, {})


@pytest.fixture(scope="module")
def whole():
    """Longer than two hours, over which a rate would be held."""
    return generated(model(), requests=ROWS, rate_rps=5.0, seed=11)


@pytest.mark.parametrize("rows", [65_536, 65_537, 131_072])
def test_fewer_requests_are_the_beginning_of_more(whole, rows):
    """The same seed would give other traffic for another length."""
    assert whole.slice(0, rows).equals(generated(model(), requests=rows, rate_rps=5.0, seed=11))


@pytest.mark.parametrize("limit", [{"duration_s": 600.0}, {"requests": 30_000}])
def test_a_draw_of_minutes_has_the_rate_of_its_model(limit):
    """The rate would be another one with each seed, as far off as it wanders."""
    at_s = [generated(model(), seed=seed, **limit)["at_s"].to_numpy() for seed in range(5)]

    assert [50.0] * 5 == pytest.approx([len(times) / times[-1] for times in at_s], rel=0.04)


def test_a_duration_cuts_the_same_stream(whole):
    """The end of a run would depend on how its length was given."""
    at_s = whole["at_s"].to_numpy()
    until_s = float(at_s[100_000])
    short = generated(model(), duration_s=until_s, rate_rps=5.0, seed=11)

    assert 100_000 == len(short)
    assert whole.slice(0, 100_000).equals(short)


def test_tables_for_a_file_are_bounded_pieces(whole):
    """Ten million rows would have to fit into memory before the first is written."""
    assert max(map(len, whole["at_s"].chunks)) <= 65_536


def test_another_seed_gives_other_arrivals_and_other_lengths():
    """Repetitions of a run would repeat themselves."""
    one, two = (generated(model(), requests=1000, seed=seed) for seed in (1, 2))

    assert not one["at_s"].equals(two["at_s"])
    assert not one["prompt_tokens"].equals(two["prompt_tokens"])


def test_another_rate_keeps_the_lengths_and_the_mix():
    """A sweep over rates would compare different requests."""
    one, two = (generated(plain(), requests=1000, seed=1, rate_rps=rate) for rate in (5.0, 50.0))

    assert one["prompt_tokens"].equals(two["prompt_tokens"])
    assert one["at_s"][-1].as_py() > 5 * two["at_s"][-1].as_py()


@pytest.mark.parametrize("rate_rps", [5.0, 80.0])
def test_the_rate_is_the_requested_one_and_gaps_keep_their_spread(rate_rps):
    """A higher rate would also make other bursts."""
    at_s = generated(plain(0.1), requests=200_000, seed=5, rate_rps=rate_rps)["at_s"].to_numpy()
    gaps_s = np.diff(at_s)
    pairs = np.diff(gaps_s) / (gaps_s[1:] + gaps_s[:-1])

    assert rate_rps == pytest.approx(len(at_s) / at_s[-1], rel=0.08)
    assert 3 / (2 * 0.5 + 1) == pytest.approx(3 * np.mean(pairs**2), rel=0.02)  # local variation of gamma gaps


def test_a_rate_scales_as_thinning_does_not_as_time_compression():
    """IDC - 1 of the rate must grow with the rate at equal widths: the two ways of scaling load would be mixed up."""
    slow, fast = (
        generated(plain(), duration_s=40_000.0, seed=3, rate_rps=rate)["at_s"].to_numpy() for rate in (5.0, 20.0)
    )
    local = 2.0  # of gamma gaps of shape 1/2
    excess = [stats_arrivals.dispersion(at_s, 10.0) - local for at_s in (slow, fast)]

    assert 4 == pytest.approx(excess[1] / excess[0], rel=0.15)


def test_times_never_fall_and_services_keep_their_shares(whole):
    """Two streams would be glued, not merged."""
    at_s = whole["at_s"].to_numpy()
    share = whole["tag"].to_pylist().count("api") / len(whole)

    assert (np.diff(at_s) >= 0).all()
    assert 0.2 == pytest.approx(share, abs=0.03)


def test_a_rate_that_follows_a_trace_starts_again_after_it():
    """Beyond the span of the trace there would be nothing, or something made up."""
    api = model().only("api")
    at_s = generated(api, duration_s=20_000.0, seed=0)["at_s"].to_numpy()
    by_window = np.bincount((at_s // 20 % 5).astype(int), minlength=5)

    assert [0.2, 3.0, 1.0, 0.0, 0.8] == pytest.approx(list(by_window / by_window.mean()), abs=0.1)


def test_merging_waits_for_the_slower_stream():
    """Arrivals of one service would come late, out of order."""
    one, other = (
        [np.array([1.0, 5.0]), np.array([9.0])],
        [np.zeros(0), np.array([2.0]), np.array([6.0, 7.0]), np.array([12.0])],
    )
    blocks = list(islice(merged([iter(one), iter(other)], 3.0), 3))
    times = np.concatenate([at_s for at_s, _ in blocks])
    which = np.concatenate([of for _, of in blocks])

    assert [1, 2, 5, 6, 7] == times.tolist()
    assert [0, 1, 0, 1, 1] == which.tolist()


def test_the_plug_ins_draw_what_the_model_says(tmp_path):
    """`--arrivals fitted:FILE` would be something else than `bench trace generate`."""
    model().save(tmp_path / "model.json")
    arrivals = registry.make("arrivals", f"fitted:{tmp_path / 'model.json'}", rate_rps=100.0)
    sampler = registry.make("lengths", f"fitted:{tmp_path / 'model.json'},service=api")
    at_s = np.array(list(islice(arrivals.times(np.random.default_rng(0)), 100_000)))
    pairs = np.array(list(islice(sampler.pairs(np.random.default_rng(0)), 20_000)))

    assert 100.0 == arrivals.mean_rate_rps
    assert 100.0 == pytest.approx(len(at_s) / at_s[-1], rel=0.1)
    np.testing.assert_allclose(sampler.mean_tokens, pairs.mean(axis=0), rtol=0.02)
    assert "made" == sampler.facts["file"]

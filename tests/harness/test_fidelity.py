"""Figures of how faithfully the client sent the schedule."""

import json

import numpy as np
import pytest
from scipy import stats

from harness.data.codec import encode
from harness.data.records import schedule_chunk, to_table
from harness.data.run_json import Burstiness, FollowUps
from harness.data.schedule import Schedule
from harness.stats.arrivals import Law, dispersion, kolmogorov_smirnov
from harness.validity.fidelity import fidelity, reasons, warnings


def exponential(rate_rps):
    return lambda gaps_s: 1 - np.exp(-rate_rps * gaps_s)


@pytest.fixture(scope="module")
def sent(traffic, record):
    """`sent(seed, n, late_s)`: a drawn schedule and records sent `late_s(rng, n)` after their times."""

    def make(seed=0, n=2000, late_s=lambda _, n: np.full(n, 0.0002)):
        schedule = Schedule.draw(traffic(), seed=seed, requests=n)
        late = late_s(np.random.default_rng(seed), n)
        rows = [
            record(r.id, scheduled_s=r.scheduled_s, sent_s=r.scheduled_s + late[i], tokens=())
            for i, r in enumerate(schedule)
        ]
        return schedule.table, to_table(rows)

    return make


def test_a_faithful_client_is_called_faithful(sent):
    """A good run would be suspected."""
    found = fidelity(*sent(), Law(2.0, exponential(2.0)))

    assert found.achieved_rps == pytest.approx(2.0, rel=0.08)
    assert found.achieved_rps == pytest.approx(found.drawn_rps, rel=1e-6)
    assert found.gap_cv == pytest.approx(1.0, rel=0.1)
    assert found.dispersion["1"] == pytest.approx(1.0, abs=0.2)
    assert found.ks_p > 0.01
    assert found.lateness_max_s == pytest.approx(0.0002)
    assert found.late_share == 0.0
    assert (2000, 2000) == (found.scheduled, found.sent)


def schedule_of(times_s, **columns):
    """A schedule of requests at these times, of one token each."""
    n = len(times_s)
    columns = {"id": np.arange(n), "prompt_tokens": np.ones(n, int), "output_tokens": np.ones(n, int)} | columns
    return schedule_chunk(n, scheduled_s=np.asarray(times_s, float), **columns)


@pytest.fixture
def judged(record):
    """`judged(gaps_s, law)`: fidelity of a schedule with these gaps (or `times_s`), sent in time."""

    def make(gaps_s, law, times_s=None):
        times = np.cumsum(gaps_s) if times_s is None else times_s
        rows = to_table([record(i, scheduled_s=t, sent_s=t, tokens=()) for i, t in enumerate(times)])
        return fidelity(schedule_of(times), rows, law)

    return make


def test_gaps_used_ten_times_are_found_out(judged):
    """guidellm's ten workers share one seed: its Poisson has an index of dispersion of 9, and no test found it."""
    gaps_s = np.repeat(np.random.default_rng(0).exponential(0.5, 200), 10)
    found = judged(gaps_s, Law(2.0, exponential(2.0)))

    assert found.dispersion["10"] > 3
    assert found.ks_p < 1e-6


def test_a_poisson_with_its_tail_cut_is_found_out(judged):
    """vidur draws long gaps anew, so its rate is 5% too high and its bursts too mild."""
    gaps_s = np.random.default_rng(0).exponential(0.5, 20_000)
    found = judged(gaps_s[gaps_s < 1.5], Law(2.0, exponential(2.0)))

    assert found.ks_p < 1e-6


@pytest.mark.parametrize("start_s", [0.0, 1e6])
@pytest.mark.parametrize("seed", range(5))
def test_gaps_below_the_resolution_of_time_do_not_accuse_a_correct_schedule(judged, seed, start_s):
    """Half of the gaps of gamma:cv=4 at 100 req/s are below a microsecond, and some are 0 as differences of times."""
    law = stats.gamma(a=1 / 16, scale=0.16)
    gaps_s = np.random.default_rng(seed).gamma(1 / 16, 0.16, 3000)
    gaps_s[0] += start_s
    found = judged(gaps_s, Law(100.0, law.cdf))

    assert found.ks < 0.03
    assert found.ks_p > 0.01


def test_a_law_is_held_against_too_many_gaps_of_nothing(judged):
    """Requests in bunches of three would pass, because gaps below a microsecond are not distinguished."""
    gaps_s = np.random.default_rng(0).exponential(1.5, 3000)
    gaps_s[np.arange(3000) % 3 > 0] = 0.0
    found = judged(gaps_s, Law(2.0, exponential(2.0)))

    assert found.ks > 0.5


def test_the_gap_law_judges_what_was_drawn_and_not_how_late_it_was_sent(sent):
    """Late sending would be reported as a wrong gap law; it has its own figure."""
    law = Law(2.0, exponential(2.0))
    in_time, late = (fidelity(*sent(late_s=late_s), law) for late_s in (lambda _, n: np.zeros(n), _clumps))

    assert in_time.ks == late.ks
    assert late.lateness_p50_s > 1.0


def _clumps(rng, n):
    return 5 * rng.random(n)


def test_a_stalling_client_is_found_out(sent):
    """A client that sends in clumps would offer another load than it says."""
    found = fidelity(*sent(late_s=lambda rng, n: 5 * rng.random(n)), Law(2.0, exponential(2.0)))

    assert found.late_share > 0.9
    assert found.lateness_p99_s > 4
    assert found.lateness_p50_s < found.lateness_p99_s <= found.lateness_max_s


@pytest.mark.parametrize(("span_s", "known"), [(9.5, False), (10.5, True)])
def test_short_runs_have_no_index_of_dispersion(span_s, known):
    """A variance of three counts would be printed with two digits."""
    assert known == (dispersion(np.linspace(0, span_s, 50), 1.0) is not None)


@pytest.mark.parametrize("n", [10, 50, 1000])
@pytest.mark.parametrize("true_rate", [1.0, 1.3])
def test_distances_to_the_law_are_scipys(n, true_rate):
    """A home-made test would reject good runs or accept bad ones."""
    values = np.random.default_rng(n).exponential(1 / true_rate, n)
    expected = stats.kstest(values, exponential(1.0))
    distance, p = kolmogorov_smirnov(values, exponential(1.0))

    assert distance == pytest.approx(expected.statistic)
    assert p == pytest.approx(expected.pvalue, abs=0.03)


def test_burstiness_is_computed_of_the_schedule_and_of_the_sending(sent):
    """A client that smooths bursts, or makes some, could not be distinguished from a bursty workload."""
    schedule, rows = sent(late_s=lambda _, n: np.zeros(n))
    same = fidelity(schedule, rows, Law(2.0))
    late = fidelity(*sent(late_s=_clumps), Law(2.0))

    assert (
        Burstiness(gap_cv=same.gap_cv, dispersion=same.dispersion, autocorrelation=same.autocorrelation) == same.drawn
    )
    assert same.drawn == late.drawn
    assert late.dispersion["1"] != pytest.approx(late.drawn.dispersion["1"])


def test_counts_and_their_memory_by_hand(judged):
    """The statistics would be something else under known names: 4 arrivals in every second second, none between."""
    times = np.array([second + part for second in range(0, 40, 2) for part in (0.0, 0.2, 0.4, 0.6)] + [40.0])
    found = judged(None, Law(None), times)

    assert 2 * 40 / 39 == pytest.approx(found.drawn.dispersion["1"])  # mean 2, variance 4 * 40 / 39
    assert -39 / 40 == pytest.approx(found.drawn.autocorrelation["1"])  # 39 products of -4 by 40 squares
    assert np.std(np.diff(times), ddof=1) / np.mean(np.diff(times)) == pytest.approx(found.gap_cv)
    assert found.dispersion["10"] is None  # four bins only


RAMP_S = 400.0


def ramp_time(times_s):
    """Expected arrivals of a rate that goes from 1 to 9 req/s in 400 s."""
    times_s = np.asarray(times_s)
    return times_s + 8.0 / RAMP_S * times_s**2 / 2


def ramp(seed, gaps=None):
    """Arrival times whose gaps in operational time are exponential of mean 1, or the given ones."""
    along = np.cumsum(np.random.default_rng(seed).exponential(1.0, 3000) if gaps is None else gaps)
    along = along[along < ramp_time(RAMP_S)]
    return (np.sqrt(1 + 2 * 8.0 / RAMP_S * along) - 1) / (8.0 / RAMP_S)


@pytest.mark.parametrize("seed", range(5))
def test_a_changing_rate_is_taken_out_of_the_gaps(judged, seed):
    """A correct ramp would be accused, because its gaps in seconds have no one law."""
    law = Law(5.0, exponential(1.0), ramp_time)
    found = judged(None, law, ramp(seed))

    assert found.ks_p > 0.005
    assert "operational" == found.law
    assert found.expected_rps == pytest.approx(5.0, rel=0.02)
    assert abs(found.rate_z) < 3
    assert list(warnings(found)) == []


def test_a_wrong_law_is_found_in_operational_time(judged):
    """Gaps of another law than the declared one would pass, because the ramp hides them."""
    gamma = np.random.default_rng(0).gamma(0.5, 2.0, 3000)
    wrong_gaps = judged(None, Law(5.0, exponential(1.0), ramp_time), ramp(0, gamma))
    no_ramp = judged(None, Law(5.0, exponential(5.0)), ramp(0))

    assert wrong_gaps.ks_p < 1e-6
    assert no_ramp.ks_p < 1e-6
    assert ["gap-law"] == [reason.code for reason in reasons(no_ramp)]


def test_the_course_of_the_declared_rate_is_kept(judged):
    """The picture could not show the ramp that was wanted beside the one that was drawn."""
    found = judged(None, Law(5.0, exponential(1.0), ramp_time), ramp(0))
    steady = judged(None, Law(2.0, exponential(1.0), lambda times_s: 2.0 * times_s), ramp(0))

    assert found.rate_curve.rps[0] == pytest.approx(1.0, abs=0.1)
    assert found.rate_curve.rps[-1] == pytest.approx(9.0, abs=0.2)
    assert steady.rate_curve is None


@pytest.mark.parametrize("true_rps", [2.0, 1.6])
def test_a_rate_is_judged_by_its_own_dispersion(judged, true_rps):
    """A rate 20% off would pass, or a bursty process be accused of chance: both draw 1,000 requests."""
    poisson = np.random.default_rng(1).exponential(1 / true_rps, 1000)
    found = judged(poisson, Law(2.0, exponential(true_rps)))

    assert (true_rps != 2.0) == ("drawn-rate" in [warning.code for warning in warnings(found)])


@pytest.mark.parametrize("seed", range(20))
def test_a_rate_with_a_long_memory_is_not_accused(judged, seed):
    """Traffic that is busy for minutes and quiet for minutes would be called wrong for each run that is short."""
    rng = np.random.default_rng(seed)
    rates = np.repeat(np.exp(rng.normal(0, 0.8, 40)), 60) / np.exp(0.32)  # a new rate per minute, mean 1
    times = np.flatnonzero(rng.random(2400) < rates / 5).astype(float) + rng.random()
    found = judged(None, Law(0.2), np.sort(times + 0.01 * rng.random(len(times))))

    assert list(warnings(found)) == []


def test_stamps_on_a_grid_are_counted_in_ticks(judged):
    """Stamps of three seconds would seem to make bursts: in bins of 1 s two of three are empty."""
    ticks = np.random.default_rng(0).poisson(4.0, 1000)
    times = np.repeat(np.arange(1000) * 3.0, ticks)
    found = judged(None, Law(None), times)

    assert 3.0 == found.tick_s
    assert ["3", "9", "60"] == list(found.dispersion)
    assert found.dispersion["3"] == pytest.approx(1.0, abs=0.15)
    assert found.dispersion["60"] == pytest.approx(1.0, abs=0.5)


@pytest.mark.parametrize("times_s", [np.arange(0, 100, 0.5), np.cumsum(np.random.default_rng(0).exponential(1, 500))])
def test_stamps_without_shared_ones_are_on_no_grid(judged, times_s):
    """Constant arrivals would be called coarse stamps."""
    assert judged(None, Law(None), times_s).tick_s is None


def follow_up_schedule(session):
    """Two arrivals, each followed by three requests; `session` numbers them or leaves them without."""
    after = [[], [], [0], [1], [2], [3], [4], [5]]
    sessions = [0, 1] * 4 if session else [None] * 8
    return schedule_of([0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0], after=after, session=sessions)


def test_follow_ups_are_counted_apart(record):
    """Turns that wait for answers would be called arrivals of the law, or be lost without a word."""
    rows = [record(i, scheduled_s=float(i), sent_s=float(i) + (0.5 if i > 1 else 0.001)) for i in range(5)]
    rows.append(record(5, sent_s=None, tokens=(), status="dropped"))
    found = fidelity(follow_up_schedule(True), to_table(rows), Law(1.0))

    assert (2, 2) == (found.scheduled, found.sent)
    assert FollowUps(planned=6, sent=3, dropped=1, not_sent=2, closed=False) == found.follow_ups
    assert found.lateness_max_s == pytest.approx(0.001)
    assert 5 == found.all.sent


def test_a_closed_loop_has_no_requested_rate(record):
    """The highest possible rate of its users would be reported as requested, and the loop as too slow."""
    rows = to_table([record(i, scheduled_s=float(i), sent_s=float(i)) for i in range(8)])
    found = fidelity(follow_up_schedule(False), rows, Law(640.0))

    assert found.requested_rps is None
    assert found.rate_z is None
    assert (2, True) == (found.scheduled, found.follow_ups.closed)


def test_no_law_is_named_and_a_lost_one_is_not(judged):
    """A reader would ask in vain why there is no KS; and of a killed run a law would be denied that there was."""
    gaps_s = np.random.default_rng(0).exponential(0.5, 100)

    assert "none" == judged(gaps_s, Law(2.0)).law
    assert "none" != judged(gaps_s, Law(2.0, known=False)).law


def test_follow_ups_and_unsent_requests_do_not_count_as_sending(sent, record):
    """The next turn of a session comes when its answer comes: it would be called late, or burst the gap law."""
    schedule, rows = sent(n=100)
    extra = to_table([record(1000 + i, scheduled_s=1.0, sent_s=9.0, turn=1) for i in range(50)])
    dropped = to_table([record(99, sent_s=None, tokens=(), status="dropped")])
    mixed = to_table([]).from_batches([*rows.slice(0, 99).to_batches(), *dropped.to_batches(), *extra.to_batches()])
    found = fidelity(schedule, mixed, Law(2.0))

    assert (99, 100) == (found.sent, found.scheduled)
    assert found.lateness_max_s == pytest.approx(0.0002)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_tiny_runs_tell_what_they_can_in_valid_json(sent, n):
    """The first try of a newcomer, with three requests, would end in a traceback."""
    schedule, rows = sent(n=n)
    found = fidelity(schedule, rows, Law(2.0, exponential(2.0)))

    assert encode(found) == json.loads(json.dumps(encode(found), allow_nan=False))
    assert found.ks is None
    assert {"1": None, "10": None, "60": None} == found.dispersion


def test_nothing_sent_at_all(sent):
    """A run that was stopped before its first request would end in a traceback."""
    schedule, rows = sent(n=5)
    found = fidelity(schedule, rows.slice(0, 0), Law(2.0, exponential(2.0)))

    assert (0, 5, None) == (found.sent, found.scheduled, found.lateness_max_s)


def test_requests_at_one_instant_have_no_rate_and_say_so(record):
    """A list of requests that all wait from the start would be reported as 'rate - of 0 req/s'."""
    rows = to_table([record(i, scheduled_s=0.0, sent_s=0.0, tokens=[0.1]) for i in range(7)])
    found = fidelity(schedule_of(np.zeros(7)), rows, Law(0.0))

    assert (None, None, 0.0) == (found.requested_rps, found.achieved_rps, found.lateness_max_s)

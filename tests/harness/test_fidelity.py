"""Whether the client kept its promise, told in figures."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from harness.fidelity import Law, dispersion, fidelity, kolmogorov_smirnov, line
from harness.records import SCHEDULE, to_table
from harness.schedule import Schedule


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


def test_a_faithful_client_looks_faithful(sent):
    """A good run would be suspected."""
    found = fidelity(*sent(), Law(2.0, exponential(2.0)))

    assert found["achieved_rps"] == pytest.approx(2.0, rel=0.08)
    assert found["achieved_rps"] == pytest.approx(found["drawn_rps"], rel=1e-6)
    assert found["gap_cv"] == pytest.approx(1.0, rel=0.1)
    assert found["dispersion"]["1"] == pytest.approx(1.0, abs=0.2)
    assert found["ks_p"] > 0.01
    assert found["lateness_max_s"] == pytest.approx(0.0002)
    assert found["late_share"] == 0.0
    assert (2000, 2000) == (found["scheduled"], found["sent"])


def schedule_of(times_s):
    """A schedule of requests at these times, and records of a client that sent each of them in time."""
    rows = [
        {"id": i, "scheduled_s": t, "prompt_tokens": 1, "output_tokens": 1, "prefix_ids": [], "prefix_block_tokens": 1,
         "turn": 0, "priority": 0}
        for i, t in enumerate(times_s)
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=SCHEDULE)


@pytest.fixture
def judged(record):
    """`judged(gaps_s, law)`: fidelity of a schedule with these gaps, sent in time."""

    def make(gaps_s, law):
        times = np.cumsum(gaps_s)
        rows = to_table([record(i, scheduled_s=t, sent_s=t, tokens=()) for i, t in enumerate(times)])
        return fidelity(schedule_of(times), rows, law)

    return make


def test_gaps_used_ten_times_are_found_out(judged):
    """guidellm's ten workers share one seed: its Poisson has an index of dispersion of 9, and no test found it."""
    gaps_s = np.repeat(np.random.default_rng(0).exponential(0.5, 200), 10)
    found = judged(gaps_s, Law(2.0, exponential(2.0)))

    assert found["dispersion"]["10"] > 3
    assert found["ks_p"] < 1e-6


def test_a_poisson_with_its_tail_cut_is_found_out(judged):
    """vidur draws long gaps anew, so its rate is 5% too high and its bursts too mild."""
    gaps_s = np.random.default_rng(0).exponential(0.5, 20_000)
    found = judged(gaps_s[gaps_s < 1.5], Law(2.0, exponential(2.0)))

    assert found["ks_p"] < 1e-6


@pytest.mark.parametrize("start_s", [0.0, 1e6])
@pytest.mark.parametrize("seed", range(5))
def test_gaps_below_the_resolution_of_time_do_not_accuse_a_correct_schedule(judged, seed, start_s):
    """Half of the gaps of gamma:cv=4 at 100 req/s are below a microsecond, and some are 0 as differences of times."""
    law = stats.gamma(a=1 / 16, scale=0.16)
    gaps_s = np.random.default_rng(seed).gamma(1 / 16, 0.16, 3000)
    gaps_s[0] += start_s
    found = judged(gaps_s, Law(100.0, law.cdf))

    assert found["ks"] < 0.03
    assert found["ks_p"] > 0.01


def test_a_law_is_held_against_too_many_gaps_of_nothing(judged):
    """Requests in bunches of three would pass, because gaps below a microsecond are not told apart."""
    gaps_s = np.random.default_rng(0).exponential(1.5, 3000)
    gaps_s[np.arange(3000) % 3 > 0] = 0.0
    found = judged(gaps_s, Law(2.0, exponential(2.0)))

    assert found["ks"] > 0.5


def test_the_gap_law_judges_what_was_drawn_and_not_how_late_it_was_sent(sent):
    """A client that is late would be told that its Poisson process is none: lateness is told on its own."""
    law = Law(2.0, exponential(2.0))
    in_time, late = (fidelity(*sent(late_s=late_s), law) for late_s in (lambda _, n: np.zeros(n), _clumps))

    assert in_time["ks"] == late["ks"]
    assert late["lateness_p50_s"] > 1.0


def _clumps(rng, n):
    return 5 * rng.random(n)


def test_a_stalling_client_is_found_out(sent):
    """A client that sends in clumps would offer another load than it says."""
    found = fidelity(*sent(late_s=lambda rng, n: 5 * rng.random(n)), Law(2.0, exponential(2.0)))

    assert found["late_share"] > 0.9
    assert found["lateness_p99_s"] > 4
    assert found["lateness_p50_s"] < found["lateness_p99_s"] <= found["lateness_max_s"]


def test_constant_arrivals_have_no_spread(record):
    """Equal gaps would be called bursty."""
    found = dispersion(np.arange(0, 100, 0.5), 1.0)

    assert found == pytest.approx(0.0, abs=0.02)


@pytest.mark.parametrize(("span_s", "told"), [(9.5, False), (10.5, True)])
def test_short_runs_have_no_index_of_dispersion(span_s, told):
    """A variance of three counts would be printed with two digits."""
    assert told == (dispersion(np.linspace(0, span_s, 50), 1.0) is not None)


def test_dispersion_is_variance_by_mean_of_counts():
    """The figure would be something else under a known name."""
    times = np.array([0.0, 0.1, 1.5, 2.5, 2.6, 2.7] + [float(k) + 0.5 for k in range(3, 10)] + [10.0])
    counts = [2, 1, 3, 1, 1, 1, 1, 1, 1, 1]

    assert np.var(counts, ddof=1) / np.mean(counts) == pytest.approx(dispersion(times, 1.0))


@pytest.mark.parametrize("n", [10, 50, 1000])
@pytest.mark.parametrize("true_rate", [1.0, 1.3])
def test_distances_to_the_law_are_scipys(n, true_rate):
    """A home-made test would reject good runs or accept bad ones."""
    values = np.random.default_rng(n).exponential(1 / true_rate, n)
    expected = stats.kstest(values, exponential(1.0))
    distance, p = kolmogorov_smirnov(values, exponential(1.0))

    assert distance == pytest.approx(expected.statistic)
    assert p == pytest.approx(expected.pvalue, abs=0.03)


def test_follow_ups_and_unsent_requests_do_not_count_as_sending(sent, record):
    """The next turn of a session comes when its answer comes: it would be called late, or burst the gap law."""
    schedule, rows = sent(n=100)
    extra = to_table([record(1000 + i, scheduled_s=1.0, sent_s=9.0, turn=1) for i in range(50)])
    dropped = to_table([record(99, sent_s=None, tokens=(), status="dropped")])
    mixed = to_table([]).from_batches([*rows.slice(0, 99).to_batches(), *dropped.to_batches(), *extra.to_batches()])
    found = fidelity(schedule, mixed, Law(2.0))

    assert 99 == found["sent"]
    assert found["lateness_max_s"] == pytest.approx(0.0002)
    assert found["line"].endswith(", 1 not sent")


@pytest.mark.parametrize("n", [1, 2, 3])
def test_tiny_runs_tell_what_they_can_in_valid_json(sent, n):
    """The first try of a newcomer, with three requests, would end in a traceback."""
    schedule, rows = sent(n=n)
    found = fidelity(schedule, rows, Law(2.0, exponential(2.0)))

    assert found == json.loads(json.dumps(found, allow_nan=False))
    assert found["ks"] is None
    assert {"1": None, "10": None, "60": None} == found["dispersion"]


def test_nothing_sent_at_all(sent):
    """A run that was stopped before its first request would end in a traceback."""
    schedule, rows = sent(n=5)
    found = fidelity(schedule, rows.slice(0, 0), Law(2.0, exponential(2.0)))

    assert "sending: nothing sent, 5 not sent" == found["line"]


def test_the_line_says_it_all():
    """The one line under every result would change its meaning unnoticed."""
    facts = {
        "requested_rps": 2.0, "achieved_rps": 2.0234, "scheduled": 100, "sent": 100, "ks": 0.0412, "ks_p": 0.81,
        "dispersion": {"1": 0.972, "10": 1.049, "60": None}, "lateness_p50_s": 0.0002, "lateness_p99_s": 0.0009,
        "lateness_max_s": 0.0031,
    }  # fmt: skip
    expected = (
        "sending: rate 2.02 of 2 req/s, dispersion 0.97 / 1.05 (1, 10 s bins, Poisson 1), gaps KS 0.041 (p 0.81), "
        "lateness p50 0.2 ms p99 0.9 ms max 3.1 ms"
    )

    assert expected == line(facts)


def test_requests_at_one_instant_have_no_rate_and_say_so(record):
    """A list of requests that all wait from the start would be told as 'rate - of 0 req/s'."""
    rows = to_table([record(i, scheduled_s=0.0, sent_s=0.0, tokens=[0.1]) for i in range(7)])
    found = fidelity(schedule_of(np.zeros(7)), rows, Law(0.0))

    assert "sending: all 7 at one instant, lateness p50 0.0 ms p99 0.0 ms max 0.0 ms" == found["line"]
    assert found["requested_rps"] is None

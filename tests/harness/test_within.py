"""Where one run gives no interval of itself, it says why."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

from harness.data.records import to_table
from harness.metrics.objective import parse_slo
from harness.options import RunSpec
from harness.runner.plan import plan
from harness.stats.within_run import at_least, within


@pytest.mark.parametrize("seed", range(10))
def test_a_busy_queue_gets_no_interval(record, seed):
    """Near the knee an interval of one run covers the truth half of the time, although it claims 95%."""
    rng = np.random.default_rng(seed)
    steps = np.cumsum(rng.exponential(1, 2000) - rng.exponential(1 / 0.9, 2000))
    waited_s = steps - np.minimum.accumulate(steps) + 0.1
    rows = to_table([record(i, tokens=[i + w, i + w + 0.1, i + w + 0.2]) for i, w in enumerate(waited_s)])
    found = within(rows, parse_slo("ttft=10"))

    assert "one run: no interval" in found.why_not
    assert "repeat with other seeds (bench sweep --seeds 5)" in found.why_not
    assert (None, {}) == (found.attainment, found.metrics)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"overloaded": True}, "no interval, because the queue grew all through the run"),  # not: lower the load
        ({"valid": False}, "no interval, because the run is not valid"),
    ],
)
def test_a_run_that_proves_nothing_gets_no_interval(table, given, why):
    """Numbers that mean nothing would get error bars."""
    found = within(table(300), parse_slo("ttft=0.2"), **given)

    assert why == found.why_not
    assert ({}, None) == (found.metrics, found.at_least)


def test_few_requests_get_no_interval(table):
    """Sixty requests would get an interval as if that were a sample; and a p99 of two values one of its own."""
    few, some = within(table(99), parse_slo("")), within(table(200), parse_slo(""))

    assert "fewer than 100 requests" in few.why_not
    assert some.why_not is None
    assert some.metrics["ttft"].mean == pytest.approx([0.1, 0.1])
    assert some.metrics["ttft"].p99 is None


@pytest.mark.parametrize("seed", range(5))
def test_no_interval_within_a_run_is_negative(record, seed):
    """'TTFT mean -2.1 to 36.8 s': a few long waits decide the mean, and blocks with and without them scatter."""
    rng = np.random.default_rng(seed)
    waits_s = rng.lognormal(-1, 0.5, 300)
    waits_s[150] = rng.lognormal(6, 1)
    rows = to_table([record(i, tokens=[i + w, i + w + 0.1, i + w + 0.2]) for i, w in enumerate(waits_s)])
    found = within(rows, parse_slo("ttft=0.6"))
    low, high = found.metrics["ttft"].mean
    share = found.attainment

    assert 0.0 < low < waits_s.mean() < high
    assert 0.0 < share.low < (waits_s <= 0.6).mean() < share.high < 1.0


def test_a_least_share_is_of_independent_requests(record):
    """'at least 99.8 %' of a run without a miss was false under bursts in five of five runs."""
    rng = np.random.default_rng(0)
    waits_s = {"alone": 0.1 + rng.uniform(0, 0.01, 200), "queued": 0.1 + np.cumsum(rng.uniform(0, 1e-4, 200))}
    alone, queued = (
        to_table([record(i, tokens=[i + w, i + w + 0.1, i + w + 0.2]) for i, w in enumerate(each)])
        for each in waits_s.values()
    )
    wilson = stats.binomtest(200, 200).proportion_ci(method="wilson").low

    assert wilson == pytest.approx(within(alone, parse_slo("ttft=0.2"), bursts=False).at_least, rel=1e-9)
    assert [None, None] == [
        within(alone, parse_slo("ttft=0.2")).at_least,
        within(queued, parse_slo("ttft=0.2"), bursts=False).at_least,
    ]
    assert at_least(10) < at_least(1000)


@pytest.mark.parametrize(
    ("arrivals", "bursts"),
    [("poisson", False), ("gamma:cv=0.5", False), ("gamma:cv=2", True),
     ("mmpp:levels=1/0,dwells=10s/100s", True), ("spike:factor=0,at=10s,for=100s,every=110s", True),
     ("burstgpt", True)],
)  # fmt: skip
def test_arrivals_with_rare_bursts_are_known_by_their_law(arrivals, bursts):
    """A run that happened to fall between two bursts would speak for both."""
    assert bursts is plan(RunSpec(workload="chatbot", arrivals=arrivals, rate=2.0, backend="sim")).law.has_bursts


def test_a_share_near_all_gets_no_interval(record):
    """The bootstrap of a share of 99.5 % says that it cannot be lower, as most samples have no miss."""
    rows = to_table([record(i, tokens=[i + (0.5 if i % 200 == 0 else 0.1), i + 1]) for i in range(600)])

    assert within(rows, parse_slo("ttft=0.2")).attainment is None


def test_missing_values_are_left_out(record):
    """Answers of one token have no TPOT; as zeros they would halve its mean."""
    tokens = [[i + 0.1] if i % 2 else [i + 0.1, i + 0.15] for i in range(400)]
    found = within(to_table([record(i, tokens=t) for i, t in enumerate(tokens)]), parse_slo(""))

    assert [0.05, 0.05] == pytest.approx(found.metrics["tpot"].mean)


def test_requests_of_a_session_are_alike_however_far_apart(record):
    """Sessions that come mixed look independent to blocks of time, whose intervals are far too narrow for agents."""
    held, wider = 0, []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        session = np.repeat(np.arange(40), 30)
        waits_s = np.exp(rng.standard_normal(40)[session] + 0.3 * rng.standard_normal(1200))
        order = rng.permutation(1200)
        rows = [record(i, tokens=[i + w, i + w + 0.1], session=int(s))
                for i, (w, s) in enumerate(zip(waits_s[order], session[order], strict=True))]  # fmt: skip
        found = within(to_table(rows), parse_slo("ttft=2"))
        alone = within(to_table([dataclasses.replace(row, session=None) for row in rows]), parse_slo("ttft=2"))
        held += found.attainment.low <= stats.norm.cdf(np.log(2) / np.sqrt(1.09)) <= found.attainment.high
        wider.append((found.attainment.high - found.attainment.low) / (alone.attainment.high - alone.attainment.low))
        assert (40.0, None) == (pytest.approx(found.sessions), alone.sessions)

    assert held >= 6
    assert {float} == {type(found.attainment.low), type(found.attainment.high)}  # else run.json could not be read
    assert np.median(wider) > 3


def test_few_sessions_get_no_interval(record):
    """Five agents would pass for a thousand independent requests."""
    rows = to_table([record(i, tokens=[i + 0.1, i + 0.2], session=i % 5) for i in range(600)])

    assert "there are fewer than 6 sessions (as many as 5.0 of one length)" in within(rows, parse_slo("ttft=2")).why_not

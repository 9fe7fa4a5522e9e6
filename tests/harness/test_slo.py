"""SLOs: how they are written, and how tables score under them."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.api import Bound, Slo
from harness.data.records import to_table
from harness.errors import UsageError
from harness.metrics.objective import parse_slo, restored_key, score

SECONDS = st.floats(1e-6, 1e6, allow_nan=False)
METRICS = st.sampled_from(["ttft", "ttft_sent", "tpot", "itl", "itl_p99", "e2e", "lateness"])


@st.composite
def slos(draw, metrics=METRICS, tags=(None, "long", "a-b"), percentiles=(None, 50.0, 99.0, 99.9)):
    keys = st.tuples(metrics, st.sampled_from(tags), st.sampled_from(percentiles))
    limit = st.floats(0.01, 2.0) if tags == (None,) else SECONDS
    found = draw(st.dictionaries(keys, limit, min_size=1, max_size=5))
    return Slo(tuple(Bound(m, v, t, p) for (m, t, p), v in found.items()), draw(st.floats(0.01, 1.0)))


@st.composite
def tables(draw, record):
    """Any mixture of answers, failures, empty and one-token answers."""
    rows = []
    for i in range(draw(st.integers(1, 12))):
        gaps = draw(st.lists(st.floats(0, 1), max_size=5))
        rows.append(
            record(
                i,
                tokens=list(i + np.cumsum(gaps)),
                status=draw(st.sampled_from(["ok", "ok", "ok", "error", "rejected", "truncated"])),
                tag=draw(st.sampled_from([None, "long"])),
                slo_ttft_s=draw(st.sampled_from([None, None, 0.5])),
            )
        )
    return to_table(rows)


@pytest.mark.parametrize(
    ("given_text", "bounds"),
    [
        ("ttft=0.25,tpot=250ms", [Bound("ttft", 0.25), Bound("tpot", 0.25)]),
        ("e2e=30s, itl_p99=.2", [Bound("e2e", 30.0), Bound("itl_p99", 0.2)]),
        ("ttft@long=2", [Bound("ttft", 2.0, tag="long")]),
        ("p99:tpot=0.1", [Bound("tpot", 0.1, percentile=99.0)]),
        ("p99.9:ttft@long=1min", [Bound("ttft", 60.0, "long", 99.9)]),
        ("TTFT-sent=1", [Bound("ttft_sent", 1.0)]),
        ("ttft=1,p50:ttft=0.5", [Bound("ttft", 1.0), Bound("ttft", 0.5, percentile=50.0)]),
        ("", []),
    ],
)
def test_slos_are_read(given_text, bounds):
    """A user would ask for one thing and be judged by another."""
    assert Slo(tuple(bounds)) == parse_slo(given_text)


def test_what_cannot_be_read_gets_one_sentence(refusals):
    """A mistyped SLO would be ignored, or end in a traceback."""
    refusals("wrong-slo.txt", "--requests", "2")


@pytest.mark.parametrize("goal", [0.0, 1.1, float("nan")])
def test_goals_are_shares(goal):
    """A goal of 90 instead of 0.9 could never be met, without any error."""
    with pytest.raises(UsageError, match="goal must be a share"):
        parse_slo("ttft=1", goal=goal)


@given(slos())
def test_texts_round_trip(slo):
    """A stored run would be scored again under another SLO."""
    assert slo == parse_slo(str(slo), goal=slo.goal)
    for key in ("joint", Bound("ttft", float("inf")), *slo.bounds):
        assert key == restored_key(str(key))


def test_joint_attainment_is_met_by_requests_that_meet_all(table):
    """Two bounds with 50% each would be reported as 50%, even if a request meets both."""
    rows = table(4, tokens=[[0.1, 0.2], [1.9, 2.0], [2.1, 3.0], [3.9, 5.0]])
    found = score(rows, parse_slo("ttft=0.2,tpot=0.3"))

    assert [True, False, False, False] == found.met.tolist()
    assert 0.25 == found.attainment
    assert [0.5, 0.5] == [b.attainment for b in found.bounds]


def test_equal_meets_and_nothing_measured_meets(table):
    """A one-token answer would count as infinitely slow, or a bound as exclusive."""
    rows = table(2, tokens=[[0.25], [1.25, 1.35]])

    assert [True, True] == score(rows, parse_slo("ttft=0.25,tpot=0.2,itl=0.2,itl_p99=0.2")).met.tolist()


@pytest.mark.parametrize("status", ["rejected", "timeout", "cancelled", "error", "truncated", "dropped"])
def test_whatever_fails_misses_every_bound(table, status):
    """A server could better its score by turning requests away."""
    found = score(table(2, status=["ok", status]), parse_slo("ttft=9,tpot@other=9,p50:e2e=9"))

    assert 0.5 == found.attainment
    assert [[True, False]] * 3 == [b.met.tolist() for b in found.bounds]


def test_a_bound_for_a_class_takes_the_place_of_the_bound_for_all(table):
    """`ttft=0.25,ttft@long=2` would hold long prompts to the bound of the short ones."""
    rows = table(4, tag=["long", None, "long", None], tokens=[[1.0], [1.1], [5.0], [4.0]])
    found = score(rows, parse_slo("ttft=0.25,ttft@long=2"))

    assert [True, True, False, False] == found.met.tolist()
    assert [0.5, 0.5] == [b.attainment for b in found.bounds]
    assert {"long": 0.5, "(untagged)": 0.5} == found.by_class


def test_a_request_may_bring_its_own_bound(table):
    """A workload of mixed SLO classes would be judged by one bound."""
    rows = table(3, tokens=[[0.5], [1.5], [2.5]], slo_ttft_s=[0.6, 0.4, None])

    assert [True, False, False] == score(rows, parse_slo("ttft=0.45")).met.tolist()
    assert [True, False, True] == score(rows, Slo()).met.tolist()
    assert ["ttft (per request)"] == [
        str(b.bound) for b in score(rows, parse_slo("e2e=9")).bounds if b.bound.metric == "ttft"
    ]


def test_a_bound_for_one_class_leaves_the_others_to_their_own(table):
    """`ttft@long=2` would let every other request pass, whatever bound it brings along."""
    own_s = [9.0, 0.6, None, 0.4]
    rows = table(4, tag=["long", None, None, "short"], tokens=[[1.0], [1.5], [9.0], [3.5]], slo_ttft_s=own_s)
    scored = score(rows, parse_slo("ttft@long=2"))

    assert [True, True, True, False] == scored.met.tolist()
    assert [("ttft@long=2", 1), ("ttft (per request)", 2)] == [(str(b.bound), b.applies.sum()) for b in scored.bounds]
    assert 2 == len(score(rows, parse_slo("ttft@long=2,ttft=5")).bounds)


def test_a_pooled_metric_binds_the_largest_gap_of_each_request(table):
    """One long stall would hide among the gaps of others."""
    rows = table(2, tokens=[[0.1, 0.2, 0.9], [1.1, 1.2, 1.3]])

    assert [False, True] == score(rows, parse_slo("itl=0.5")).met.tolist()


def test_percentile_bounds_judge_the_run_not_the_request(table):
    """`p90:ttft=0.4` would fail a run of which 95% are fast."""
    tokens = [[i + (5.0 if i == 7 else 0.1)] for i in range(20)]
    found = score(table(20, tokens=tokens), parse_slo("p90:ttft=0.4"))
    worse = score(table(20, tokens=tokens), parse_slo("p99:ttft=0.4"))

    assert found.passed
    assert not worse.passed
    assert np.isnan(found.attainment)
    assert 1.0 == score(table(20, tokens=tokens), parse_slo("p90:ttft=0.4,tpot=1")).attainment
    assert 0.95 == found.bounds[0].attainment


@pytest.mark.parametrize(("failed", "passed"), [(1, True), (11, False)])
def test_percentiles_alone_decide_without_an_attainment(table, failed, passed):
    """The share of requests that were answered would be called the share within the SLO."""
    rows = table(21, status=["error"] * failed + ["ok"] * (21 - failed))
    found = score(rows, parse_slo("p50:ttft=1"))

    assert np.isnan(found.attainment)
    assert ({}, passed) == (found.by_class, found.passed)


@pytest.mark.parametrize(("failed", "passed"), [(0, True), (2, True), (3, False)])
@pytest.mark.parametrize("metric", ["ttft", "itl"])
def test_failures_count_as_infinitely_slow_in_percentile_bounds(table, metric, failed, passed):
    """A server could keep p90 by dropping the slow ones."""
    rows = table(21, status=["error"] * failed + ["ok"] * (21 - failed))

    assert passed == score(rows, parse_slo(f"p90:{metric}=1")).passed


def test_the_binding_bound_has_the_least_room(table):
    """A user would tune what does not limit."""
    rows = table(4, tokens=[[0.1, 0.2], [1.9, 2.0], [2.9, 3.0], [3.1, 4.9]])
    found = score(rows, parse_slo("ttft=0.2,tpot=0.3"))

    assert "ttft=0.2" == str(found.binding.bound)


def test_no_requests_give_no_share(table):
    """An empty run would be reported as 0% or 100%."""
    found = score(table(0), parse_slo("ttft=1,p99:tpot=1"))

    assert np.isnan(found.attainment)
    assert not found.passed
    assert found.binding is None


@given(data=st.data())
@settings(max_examples=60)
def test_shares_are_shares_and_the_joint_one_is_the_smallest(record, data):
    """Attainment above one of its bounds would promise what no bound keeps."""
    rows = data.draw(tables(record))
    found = score(rows, data.draw(slos(percentiles=(None,))))

    assert 0 <= found.attainment <= 1
    for bound in found.bounds:
        assert found.attainment <= bound.met.mean() <= 1
        assert not (found.met & ~bound.met).any()
        if bound.applies.any():
            assert 0 <= bound.attainment <= 1


@given(data=st.data())
@settings(max_examples=60)
def test_tightening_a_bound_never_helps(record, data):
    """K30.c: a search over SLO scales would find a capacity that is not there."""
    rows = data.draw(tables(record))
    loose = data.draw(slos(tags=(None,)))
    which = data.draw(st.integers(0, len(loose.bounds) - 1))
    tight = list(loose.bounds)
    tight[which] = dataclasses.replace(tight[which], limit=tight[which].limit * data.draw(st.floats(0.01, 1.0)))
    before, after = score(rows, loose), score(rows, Slo(tuple(tight), loose.goal))

    assert np.isnan(after.attainment) if np.isnan(before.attainment) else after.attainment <= before.attainment
    assert after.passed <= before.passed
    assert not (after.met & ~before.met).any()

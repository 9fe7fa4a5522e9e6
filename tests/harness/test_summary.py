"""The numbers of a run."""

import json
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.data.codec import encode
from harness.data.large import thinned
from harness.data.records import to_table
from harness.data.run_json import Described
from harness.metrics import quantiles as exact
from harness.metrics.measure import metrics
from harness.metrics.objective import parse_slo, score
from harness.metrics.quantiles import quantile, with_failures
from harness.metrics.summary import describe, summarize, vllm_keys, window_of


def test_throughput_ten_and_goodput_three_are_both_reported(table):
    """S20: a server that answers everything too late would look like a fast one."""
    tokens = [[i / 10 + (0.2 if i % 10 < 3 else 0.6)] for i in range(100)]
    rows = table(100, scheduled_s=[i / 10 for i in range(100)], tokens=tokens)
    found = summarize(rows, parse_slo("ttft=0.25,tpot=0.1"))

    assert 10.0 == found.throughput_rps
    assert 3.0 == found.goodput_rps
    assert 0.3 == found.attainment
    assert [0.3, 1.0] == [b.attainment for b in found.bounds]
    assert "ttft=0.25" == found.binding
    assert found.passed is False


@given(
    gaps_s=st.lists(st.floats(0, 10), min_size=1, max_size=20),
    status=st.lists(st.sampled_from(["ok", "error"]), min_size=21, max_size=21),
)
@settings(max_examples=60)
def test_a_small_run_does_not_carry_more_than_was_sent(table, gaps_s, status):
    """5 requests, one per second, would be reported as 1.25 per second: n requests have n - 1 gaps."""
    times = np.concatenate([[0.0], np.cumsum(gaps_s)])
    n, span_s = len(times), float(times[-1])
    found = summarize(table(n, scheduled_s=times.tolist(), status=status[:n]), parse_slo("ttft=150ms"))

    assert found.goodput_rps is None or found.goodput_rps <= found.throughput_rps
    if span_s > 1e-6:
        achieved = (n - 1) / span_s
        assert found.throughput_rps <= achieved
        assert found.throughput_rps == pytest.approx(status[:n].count("ok") / n * achieved)
        assert found.output_tps == pytest.approx(4 * found.throughput_rps)
        assert found.window_s == span_s


def test_one_request_has_the_window_of_its_own_answer(table):
    """A rate would be infinite, or the run end in a division by zero."""
    assert window_of(table(1)) == pytest.approx(0.25)
    assert window_of(table(2, scheduled_s=0.0, tokens=[[1.0], [2.0]])) == 2.0
    assert math.isnan(window_of(table(1, tokens=(), status="error")))
    assert math.isnan(window_of(table(0)))


@pytest.mark.parametrize("n", [0, 1, 2])
@pytest.mark.parametrize("changes", [{}, {"tokens": (), "status": "dropped", "sent_s": None}])
def test_whatever_was_not_measured_is_none_in_valid_json(table, n, changes):
    """NaN in run.json cannot be read by any other language, and 0 would be a lie."""
    rows, slo = table(n, **changes), parse_slo("ttft=1,p99:tpot=0.1")
    found = summarize(rows, slo)
    read = json.loads(json.dumps(encode(found), allow_nan=False))

    assert encode(found) == read
    if n == 0 or changes:
        assert found.metrics["ttft"].p99 is None
        assert 0 == found.metrics["ttft"].n
        assert vllm_keys(rows, slo, found)["p99_ttft_ms"] is None


def test_percentiles_alone_leave_no_attainment_and_no_goodput(table):
    """`request_goodput` and 100% of answered requests would stand beside a broken p99."""
    slo = parse_slo("p99:tpot=0.01")
    only, mixed = summarize(table(20), slo), summarize(table(20), parse_slo("p99:tpot=0.01,ttft=1"))
    names = ("attainment", "goodput_rps", "token_goodput_tps")

    assert [None] * 3 == [getattr(only, name) for name in names]
    assert None not in [getattr(mixed, name) for name in names]
    assert (False, None) == (only.passed, vllm_keys(table(20), slo, only)["request_goodput"])


def test_statuses_are_counted_all(table):
    """A status that did not occur would be missing instead of zero."""
    found = summarize(table(3, status=["ok", "timeout", "ok"]), parse_slo("ttft=1"))

    expected = {"ok": 2, "rejected": 0, "timeout": 1, "cancelled": 0, "error": 0, "truncated": 0, "dropped": 0,
                "empty": 0}  # fmt: skip

    assert expected == found.status
    assert found.failed == pytest.approx(1 / 3)


def test_latencies_are_those_of_requests_that_ended_well(table):
    """A request cut off early would make the server look fast."""
    rows = table(3, tokens=[[0.1, 0.2], [1.01], [2.3, 2.5]], status=["ok", "truncated", "ok"])
    found = summarize(rows, parse_slo("ttft=1")).metrics

    assert 2 == found["ttft"].n
    assert found["ttft"].p50 == pytest.approx(0.2)
    assert 2 == found["itl"].n
    assert found["itl"].max == pytest.approx(0.2)


def test_preemptions_are_added_up_where_known(table):
    """A backend that cannot see them would report none."""
    assert 3 == summarize(table(2, preemptions=[1, 2]), parse_slo("ttft=1")).preemptions
    assert summarize(table(2), parse_slo("ttft=1")).preemptions is None


def test_a_summary_agrees_with_the_score(table):
    """The screen and run.json would tell two stories."""
    rows = table(5, tag=["a", "b", "a", None, "b"], tokens=[[i + 0.1 * i] for i in range(5)])
    slo = parse_slo("ttft=0.25,ttft@b=0.2,p50:e2e=0.2")
    found, scored = summarize(rows, slo), score(rows, slo)

    assert scored.attainment == found.attainment
    assert scored.by_class == found.classes
    assert ["ttft=0.25", "ttft@b=0.2", "p50:e2e=0.2"] == [b.text for b in found.bounds]
    assert [3, 2, 5] == [b.requests for b in found.bounds]


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.floats(0, 1))
def test_quantile_is_numpys(values, q):
    """Percentiles would differ from those of other tools on the same data."""
    assert quantile(np.array(values), q) == np.quantile(np.array(values), q)


@pytest.mark.parametrize("shape", ["spread", "equal", "few values", "a period", "rising", "heavy tail"])
def test_quantiles_of_many_values_are_numpys(shape):
    """A percentile of many values would differ from that of other tools on the same data."""
    rng, n = np.random.default_rng(7), (1 << 17) + 11
    values = {
        "spread": rng.gamma(4, 0.01, n),
        "equal": np.full(n, 0.5),
        "few values": rng.integers(0, 3, n) * 0.3,
        "a period": np.resize(np.arange(16.0), n),
        "rising": np.arange(n) / 7,
        "heavy tail": 1 / rng.random(n) ** 3,
    }[shape]
    qs = [0.0, 1e-5, 0.25, 0.5, 0.9, 0.99, 0.99999, 1.0]

    assert np.quantile(values, qs).tolist() == exact.quantiles(values.copy(), qs)


def test_quantiles_leave_undefined_values_out():
    """One null TPOT would turn every percentile into NaN."""
    assert 2.0 == quantile(np.array([np.nan, 1.0, 3.0]), 0.5)
    assert math.isnan(quantile(np.array([np.nan]), 0.5))


@given(
    values=st.lists(st.floats(0, 1e6), max_size=30),
    failed=st.integers(0, 10),
    percent=st.integers(0, 100),
)
def test_failures_stand_at_the_end_of_the_order(values, failed, percent):
    """A percentile with failures would be finite, or not a number, where it is infinite."""
    found = with_failures(np.array(values, float), failed, percent / 100)
    place = (len(values) + failed - 1) * percent / 100

    if not values and not failed:
        assert math.isnan(found)
    elif place > len(values) - 1:
        assert math.inf == found
    else:
        filled = np.array(values + [1e300] * failed)
        expected = np.quantile(filled, percent / 100)

        assert found == pytest.approx(expected, rel=1e-9) or expected > 1e250


def test_describe_keeps_only_what_was_there():
    """An empty column would crash the summary of a failed run."""
    assert Described(n=0) == describe(np.empty(0))
    assert 1.0 == describe(np.array([1.0])).p99


def test_summaries_do_not_depend_on_chunks(table, monkeypatch):
    """A run of a million requests would have other numbers than its parts."""
    rows = table(50, status=["ok", "error"] * 25, tokens=[[i + 0.1 * k for k in range(i % 7)] for i in range(50)])
    slo = parse_slo("ttft=0.25,itl=0.05,itl_p99=0.15")
    whole = summarize(rows, slo)
    monkeypatch.setattr("harness.data.lists.CHUNK", 7)
    cut = summarize(to_table([]).from_batches(rows.to_batches(max_chunksize=11)), slo)

    assert whole == cut


def test_memory_stays_near_the_size_of_the_tokens(table, monkeypatch):
    """A run of a million requests would not fit where its data does."""
    monkeypatch.setattr("harness.data.lists.CHUNK", 200)
    rows = table(4000, tokens=tuple(range(5000, 5100)))
    slo = parse_slo("ttft=1,tpot=1,itl_p99=1")
    summarize(rows, slo)
    tracemalloc.start()
    summarize(rows, slo)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 2 * rows.select(["token_s", "token_n"]).nbytes


def test_an_answer_that_came_whole_has_no_time_per_token(record):
    """A server that does not stream would be reported with a TPOT of 0, and would meet every bound on it."""
    assert np.isnan(metrics()["tpot"].of(to_table([record(0, tokens=[0.5], token_n=[20])]))).all()


@given(
    values=st.lists(
        st.one_of(st.floats(-1e3, 1e3), st.sampled_from([0.0, 0.01, 0.02]), st.floats(0, 1e-300)), max_size=60
    ),
    cuts=st.lists(st.integers(0, 60), max_size=4),
    held=st.sampled_from([1, 5, 1 << 22]),
    q=st.floats(0, 1),
)
def test_quantiles_of_values_that_are_not_held_are_exact(values, cuts, held, q):
    """The ITL of a million requests would be that of a histogram."""
    all_of_them = np.array(values)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact, "HELD", held)
        found = exact.selected(lambda: np.split(all_of_them, sorted(cuts)), [q, 0.5, 1.0])

    expected = exact.quantiles(all_of_them.copy(), [q, 0.5, 1.0])
    assert len(values) == found.n
    np.testing.assert_array_equal(expected, found.quantiles)
    if values:
        assert all_of_them.max() == found.largest
        assert all_of_them.mean() == pytest.approx(found.mean, abs=1e-9)
        assert all_of_them.std() == pytest.approx(found.std, abs=1e-9)


def test_a_table_without_its_gaps_has_no_itl(table):
    """The time from the first to the last token would be taken for a gap."""
    thin = thinned(table(3))

    with pytest.raises(ValueError, match="no gaps"):
        summarize(thin, parse_slo(""))

"""Every metric of the registry keeps the contract."""

from array import array

import numpy as np
import pyarrow as pa
import pytest

from harness import registry
from harness.api import RequestRecord
from harness.data.records import to_table
from harness.errors import UsageError
from harness.metrics.measure import metrics, per_request, sample, succeeded

NAMES = registry.names("metrics")


def rows(n):
    """Requests with 0, 1, 2, ... token events, every fifth failed."""
    found = []
    for i in range(n):
        tokens = array("d", i + 0.5 + np.cumsum(np.random.default_rng(i).exponential(0.1, i % 8)))
        status = "error" if i % 5 == 4 else "ok"
        found.append(RequestRecord(i, float(i), i + 0.25, tokens, None, 5, i % 8, i % 8, status))
    return to_table(found)


@pytest.fixture(params=NAMES)
def metric(request):
    return registry.make("metrics", request.param)


@pytest.mark.parametrize("name", NAMES)
def test_an_slo_names_it(name):
    """`run.json` would name a metric that is not found again."""
    made = registry.make("metrics", name)

    assert made is metrics()[made.name]
    with pytest.raises(UsageError, match="takes no arguments"):
        registry.make("metrics", f"{name}:no_such_argument=1")


def test_it_says_what_it_is(metric):
    """A column of a report would have no unit, or be sorted the wrong way."""
    assert metric.unit
    assert metric.better in ("higher", "lower")
    assert "nothing" == metric.assume
    assert metric.name.replace("_", "-") in NAMES
    assert "Source:" in metric.about
    assert "seconds" in metric.about


def test_values_are_float64_one_per_request_or_pooled(metric):
    """An integer or a short column would break percentiles, far from the metric."""
    table = rows(40)
    values = metric.of(table)

    assert np.float64 == values.dtype
    assert 1 == values.ndim
    if not metric.pooled:
        assert len(table) == len(values)


@pytest.mark.parametrize("n", [0, 1])
def test_small_tables_are_no_special_case(metric, n):
    """A run of one request would end in a traceback."""
    assert metric.of(rows(n)).dtype == np.float64
    assert len(per_request(metric, rows(n))) == n


def test_pieces_give_what_the_whole_gives(metric, monkeypatch):
    """A million requests, worked on in pieces, would have other values than a thousand."""
    table = rows(50)
    whole = metric.of(table)
    cut = pa.Table.from_batches(table.to_batches(max_chunksize=7))
    monkeypatch.setattr("harness.data.lists.CHUNK", 9)

    assert np.array_equal(whole, metric.of(cut), equal_nan=True)
    assert np.array_equal(per_request(metric, table), per_request(metric, cut), equal_nan=True)
    assert np.array_equal(sample(metric, table, succeeded(table)), sample(metric, cut, succeeded(cut)))


def test_rows_in_the_middle_of_a_table_give_their_own_values(metric):
    """A slice shares its buffers with the whole: a metric that forgets the offset reads another request's tokens."""
    table = rows(30)

    if not metric.pooled and not metric.whole:
        assert np.array_equal(metric.of(table)[11:20], metric.of(table.slice(11, 9)), equal_nan=True)
    assert np.array_equal(metric.of(rows(30).slice(11, 9)), metric.of(table.take(list(range(11, 20)))), equal_nan=True)


def by_hand(name, r):
    """Definitions in plain Python; `task` has a test of its own, with sessions."""
    if name == "task":
        return np.nan if r["session"] is None else by_hand("e2e", r)
    t, n = r["token_s"], r["output_tokens"]
    if name == "lateness":
        return r["sent_s"] - r["scheduled_s"]
    if name == "scheduling_delay":
        return np.nan
    if not t:
        return np.nan
    return {
        "ttft": lambda: t[0] - r["scheduled_s"],
        "ttft_sent": lambda: t[0] - r["sent_s"],
        "e2e": lambda: t[-1] - r["scheduled_s"],
        "tpot": lambda: (t[-1] - t[0]) / (n - 1) if n > 1 and len(t) > 1 else np.nan,
        "normalized_latency": lambda: (t[-1] - r["scheduled_s"]) / n,
        "itl_p99": lambda: float(np.quantile(np.diff(t), 0.99)) if len(t) > 1 else np.nan,
        "itl": lambda: float(np.diff(t).max()) if len(t) > 1 else np.nan,
    }[name]()


def test_values_are_those_of_the_definition(metric):
    """The definitions are fixed: another value under the same name would be a lie."""
    table = rows(40)
    expected = [by_hand(metric.name, r) for r in table.to_pylist()]

    assert np.array_equal(expected, per_request(metric, table), equal_nan=True)


def test_gaps_are_pooled_event_by_event():
    """TPOT would be printed under the name of ITL, or tokens of one chunk make gaps of zero."""
    record = RequestRecord(0, 0.0, 0.0, [1.0, 1.5, 3.5], [1, 5, 2], 5, 8, 8, "ok")

    assert [0.5, 2.0] == metrics()["itl"].of(to_table([record])).tolist()


def test_tpot_divides_by_tokens_not_by_events():
    """A server that sends four tokens a chunk would look four times as slow."""
    record = RequestRecord(0, 0.0, 0.0, [1.0, 3.0], [1, 4], 5, 5, 5, "ok")

    assert [0.5] == metrics()["tpot"].of(to_table([record])).tolist()

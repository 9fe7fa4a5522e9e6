"""Definition profiles against the rules of the tools they name, in plain loops."""

import dataclasses
import math

import numpy as np
import pytest

from harness import registry
from harness.api import RequestRecord
from harness.data.records import to_table
from harness.errors import UsageError
from harness.experiments import imports
from harness.experiments.rescore import side_by_side
from harness.experiments.rescore.objectives import outcome, read
from harness.experiments.rescore.reading import of_run
from harness.metrics.objective import parse_slo
from harness.metrics.profiles._base import Gaps, step_quantile
from harness.metrics.summary import per_second_of, summarize, vllm_keys

LIMITS = "ttft=0.25,tpot=0.045"


def column(source, name, slo=LIMITS):
    found = side_by_side.side_by_side(source, parse_slo(slo), side_by_side.made([name]))
    return next(c for c in found.columns if c.name.replace(".", "-") == name)


@pytest.fixture
def rows(mixture):
    return mixture().to_pylist()


@pytest.fixture
def source(mixture, run):
    return of_run(run(mixture()))


def sent(row):
    return row["token_s"][0] - row["sent_s"]


def later(row, tokens):
    return (row["token_s"][-1] - row["token_s"][0]) / tokens if tokens > 0 else None


BY_HAND = {
    # ttft, tpot, e2e of a request that ended well; None where the tool lists none
    "vllm": lambda r, n: (sent(r), later(r, n - 1), r["token_s"][-1] - r["sent_s"]),
    "sglang": lambda r, n: (sent(r), later(r, n - 1), r["token_s"][-1] - r["sent_s"]),
    "guidellm": lambda r, n: (sent(r), later(r, n - 1), r["token_s"][-1] - r["sent_s"]),
    "aiperf": lambda r, n: (sent(r), later(r, n - r["token_n"][0] if n > 1 else 0), r["token_s"][-1] - r["sent_s"]),
    "inference-perf": lambda r, n: (sent(r) if n > 1 else None, later(r, n - 1), r["token_s"][-1] - r["sent_s"]),
    "mlperf": lambda r, n: (r["token_s"][0] - r["scheduled_s"], later(r, n - 1), r["token_s"][-1] - r["scheduled_s"]),
}  # fmt: skip


@pytest.mark.parametrize("name", BY_HAND)
def test_latencies_are_those_that_the_tool_lists(name, source, rows):
    """The column of a tool would not be what the tool prints."""
    listed = [BY_HAND[name](r, r["output_tokens"]) for r in rows if r["status"] == "ok"]
    values = column(source, name).values

    for i, metric in enumerate(("ttft", "tpot", "e2e")):
        known = [times[i] for times in listed if times[i] is not None]
        assert len(known) == values[f"{metric}_n"]
        if (name, metric) != ("guidellm", "tpot"):  # it weighs them
            assert math.isclose(np.mean(known), values[f"{metric}_mean_s"], rel_tol=1e-12)


def test_guidellm_counts_a_tpot_once_per_later_token_and_takes_an_element_of_the_list(source, rows):
    """Short answers would weigh as much as long ones, which moved its mean by a tenth."""
    ok = [r for r in rows if r["status"] == "ok"]
    each = [[later(r, r["output_tokens"] - 1)] * (r["output_tokens"] - 1) for r in ok if r["output_tokens"] > 1]
    per_token = np.concatenate(each)
    values = column(source, "guidellm").values

    assert per_token.mean() == pytest.approx(values["tpot_mean_s"], rel=1e-12)
    for q in (50, 99):
        assert np.quantile(per_token, q / 100, method="inverted_cdf") == values[f"tpot_p{q}_s"]
        assert np.quantile([sent(r) for r in ok], q / 100, method="inverted_cdf") == values[f"ttft_p{q}_s"]


@pytest.mark.parametrize("n", [1, 2, 3, 29, 99, 100, 101, 1000])
def test_a_step_quantile_is_numpys(n):
    """A rounding error of the share would take the next element of the list."""
    values = np.random.default_rng(n).permutation(n).astype(float)

    for q in (0.01, 0.29, 0.5, 0.57, 0.9, 0.99, 1.0):
        assert np.quantile(values, q, method="inverted_cdf") == step_quantile(values, q)


@pytest.mark.parametrize(
    ("file", "tool", "metrics"),
    [
        ("vllm-detailed.json", "vllm", ("ttft", "tpot", "e2e", "itl")),
        ("sglang-detailed.jsonl", "sglang", ("ttft", "itl")),  # the others run to the end of the stream
        ("guidellm.json", "guidellm", ("ttft", "tpot", "e2e")),
        ("aiperf", "aiperf", ("ttft", "tpot", "e2e", "itl")),
        ("inference-perf", "inference-perf", ("ttft", "tpot", "itl")),  # its E2E runs to the end of its own work
    ],
)
def test_the_column_of_a_tool_is_what_it_printed_itself(file, foreign, tool, metrics):
    """A profile would be of a tool that does not exist."""
    (run,) = imports.open(foreign / file)
    values = column(of_run(run), tool).values

    for metric in metrics:
        for statistic in ("p50", "p99") if metric == "itl" else ("mean", "p50", "p99"):
            if (found := values.get(f"{metric}_{statistic}_s")) is not None:
                assert run.info.aggregates[metric][statistic] == pytest.approx(found, rel=1e-6, abs=1e-12)
            else:
                assert ("e2e", "p50") == (metric, statistic)


def test_what_a_file_cannot_tell_is_in_no_column(foreign):
    """The first and the last token of guidellm's answers would pass for gaps of 0 ms and deadlines that were kept."""
    (run,) = imports.open(foreign / "guidellm.json")
    found = side_by_side.side_by_side(of_run(run), parse_slo(LIMITS), side_by_side.made(["all"]))
    columns = {c.name: c for c in found.columns}

    assert {None} == {c.values["itl_p50_s"] for c in columns.values()}
    with pytest.raises(UsageError, match="cannot tell 'itl'"):
        outcome(of_run(run).seen, read("fastgen:rate=4"), 0.9)


def test_our_column_is_what_every_report_says(mixture, source):
    """The column that the others are compared with would be of other definitions than the summary."""
    summary = summarize(mixture(), parse_slo(LIMITS))
    values = column(source, "bench").values

    for metric in ("ttft", "tpot", "e2e"):
        assert summary.metrics[metric].n == values[f"{metric}_n"]
        assert summary.metrics[metric].mean == pytest.approx(values[f"{metric}_mean_s"], rel=1e-12)
        assert summary.metrics[metric].p99 == pytest.approx(values[f"{metric}_p99_s"], rel=1e-12)
    assert per_second_of(mixture())(values["good"]) == pytest.approx(values["goodput_rps"], rel=1e-12)
    assert summary.metrics["itl"].p99 == pytest.approx(values["itl_p99_s"], rel=1e-12)


def test_tokens_of_one_instant_in_two_events_have_a_tpot_of_zero(run):
    """Two chunks read at once would count as one event, and the request would be left out of TPOT."""
    record = RequestRecord(0, 0.0, 0.0, [1.0, 1.0], None, 5, 2, 2, "ok")
    one = RequestRecord(1, 0.0, 0.0, [1.0], [2], 5, 2, 2, "ok")

    values = column(of_run(run(to_table([record, one]))), "bench").values
    assert 1 == values["tpot_n"]
    assert 0.0 == values["tpot_mean_s"]


def test_vllms_column_is_vllms_keys(mixture, source):
    """run.json and the table of profiles would tell two numbers of one tool."""
    table, slo = mixture(), parse_slo(LIMITS)
    keys = vllm_keys(table, slo, summarize(table, slo))
    values = column(source, "vllm").values

    assert keys["mean_ttft_ms"] == pytest.approx(values["ttft_mean_s"] * 1000)
    assert keys["p99_ttft_ms"] == pytest.approx(values["ttft_p99_s"] * 1000)
    assert keys["mean_tpot_ms"] == pytest.approx(values["tpot_mean_s"] * 1000)
    assert keys["mean_e2el_ms"] == pytest.approx(values["e2e_mean_s"] * 1000)
    assert keys["request_goodput"] == pytest.approx(values["goodput_rps"])


def good_of(name, rows):
    """Good requests and the denominator by each tool's rule."""
    limits = (0.25, 0.045)
    ok = [r for r in rows if r["status"] == "ok"]
    times = [BY_HAND[name](r, r["output_tokens"])[:2] for r in ok]
    missing = [any(t is None for t in pair) for pair in times]
    kept = [all(t is None or t <= limit for t, limit in zip(p, limits, strict=True)) for p in times]
    if name in ("vllm", "sglang"):  # a missing TPOT counts as 0
        return sum(kept), (None if name == "vllm" else len(rows))
    if name == "guidellm":  # undetermined: left out
        cut = sum(r["status"] in ("cancelled", "dropped") for r in rows)
        return sum(k and not m for k, m in zip(kept, missing, strict=True)), len(rows) - cut - sum(missing)
    good = sum(k and not m for k, m in zip(kept, missing, strict=True))
    return good, (len(rows) if name == "aiperf" else len(ok))


@pytest.mark.parametrize("name", ["vllm", "sglang", "guidellm", "aiperf", "inference-perf"])
def test_good_requests_are_counted_by_the_rule_of_the_tool(name, source, rows):
    """One-token answers, or failures, would count otherwise than the tool counts them."""
    good, of = good_of(name, rows)
    values = column(source, name).values

    assert (good, of) == (values["good"], values["of"])


def test_mlperf_takes_the_element_of_the_list(source, rows):
    """A percentile of MLPerf would be interpolated."""
    ttft = sorted(r["token_s"][0] - r["scheduled_s"] for r in rows if r["status"] == "ok")
    found = column(source, "mlperf", "ttft=9,tpot=0.001")

    assert ttft[math.floor(len(ttft) * 0.99)] == found.values["ttft_p99_s"]
    assert {"ttft p99 within the bound": 1.0, "tpot p99 within the bound": 0.0} == found.more
    assert found.values["attainment"] is None


def test_gaps_inside_events_are_zeros_where_the_tool_has_them():
    """inference-perf's median ITL of 0 would not be shown to come from its definition."""
    gaps = Gaps(np.array([0.1, 0.2]), 3)

    assert [0.1, 0.2, 0, 0, 0] == registry.make("profiles", "inference-perf").itl(gaps).tolist()
    assert [0.1, 0.2] == registry.make("profiles", "vllm").itl(gaps).tolist()
    assert registry.make("profiles", "guidellm").itl(gaps) is None


def test_vllm_0_32_takes_a_role_chunk_for_a_token(source):
    """The defect that made TTFT 3 ms instead of 203 would not be seen."""
    seen = side_by_side.events_of_run(source)
    role = dataclasses.replace(seen, opened_s=seen.sent_s + 0.003)
    times = registry.make("profiles", "vllm-0-32").times(role)
    later = (seen.last_s - role.opened_s)[seen.ok & (seen.tokens > 1)] / (seen.tokens - 1)[seen.ok & (seen.tokens > 1)]

    assert np.allclose(0.003, times.ttft[seen.ok])
    assert np.allclose(later, times.tpot[seen.ok & (seen.tokens > 1)])


@pytest.mark.parametrize("name", registry.names("profiles"))
def test_every_profile_says_whose_it_is_and_takes_any_run(name, run, mixture):
    """A run without requests, or without one that ended well, would end in a traceback."""
    profile = registry.make("profiles", name)

    assert profile.tool
    assert name == profile.name.replace(".", "-")
    for n in (0, 1, 2):  # none, one that failed, one that ended well
        source = of_run(run(mixture(n)))
        found = side_by_side.side_by_side(source, parse_slo(LIMITS), [profile])
        assert [profile.name] == [c.name for c in found.columns]


def test_ours_stands_first_and_all_means_all():
    """The table would have no column to compare with."""
    assert ["bench", "sglang", "vllm-0.32"] == [p.name for p in side_by_side.made(["sglang", "vllm-0.32"])]
    assert set(registry.names("profiles")) == {p.name.replace(".", "-") for p in side_by_side.made(["all"])}
    assert "bench" == side_by_side.made(["all"])[0].name

"""vLLM's keys mean what vLLM means by them."""

import numpy as np
import pytest

from harness.metrics.objective import parse_slo
from harness.metrics.summary import summarize, vllm_keys


def vllm(rows, slo="ttft=1,tpot=0.1,e2e=2"):
    return vllm_keys(rows, parse_slo(slo), summarize(rows, parse_slo(slo)))


def test_keys_are_those_that_users_parse(table):
    """Dashboards made for `vllm bench serve` would find nothing."""
    expected = {"duration", "completed", "failed", "total_input_tokens", "total_output_tokens", "request_throughput",
                "request_goodput", "output_throughput", "total_token_throughput", "max_output_tokens_per_s",
                "max_concurrent_requests"} | {f"{s}_{m}_ms" for m in ("ttft", "tpot", "itl", "e2el")
                                              for s in ("mean", "median", "std", "p50", "p90", "p99")}  # fmt: skip

    assert expected == set(vllm(table(3)))


def test_numbers_follow_vllms_own_arithmetic(table):
    """A comparison with a vLLM run would compare two definitions."""
    rng = np.random.default_rng(0)
    n = 40
    sent = [i + 0.01 * (i % 3) for i in range(n)]
    tokens = [list(sent[i] + 0.05 + np.cumsum(rng.exponential(0.1, i % 6 + 1))) for i in range(n)]
    status = ["error" if i % 9 == 4 else "ok" for i in range(n)]
    found = vllm(table(n, sent_s=sent, tokens=tokens, status=status), "ttft=0.2,tpot=0.1,e2e=0.6")

    ok = [i for i in range(n) if status[i] == "ok"]
    ttft = np.array([tokens[i][0] - sent[i] for i in ok])
    e2el = np.array([tokens[i][-1] - sent[i] for i in ok])
    lens = np.array([len(tokens[i]) for i in ok])
    all_tpot = np.array([(e - t) / (k - 1) if k > 1 else 0.0 for e, t, k in zip(e2el, ttft, lens, strict=True)])
    itl = np.concatenate([np.diff(tokens[i]) for i in ok])
    good = int(((ttft <= 0.2) & (all_tpot <= 0.1) & (e2el <= 0.6)).sum())
    duration = max(t[-1] for t in tokens)

    assert (len(ok), n - len(ok)) == (found["completed"], found["failed"])
    assert duration == found["duration"]
    assert (10 * len(ok), int(lens.sum())) == (found["total_input_tokens"], found["total_output_tokens"])
    assert good / duration == pytest.approx(found["request_goodput"])
    assert len(ok) / duration == pytest.approx(found["request_throughput"])
    assert lens.sum() / duration == pytest.approx(found["output_throughput"])
    assert (10 * len(ok) + lens.sum()) / duration == pytest.approx(found["total_token_throughput"])
    for name, values in {"ttft": ttft, "tpot": all_tpot[lens > 1], "itl": itl, "e2el": e2el}.items():
        assert np.mean(values) * 1000 == pytest.approx(found[f"mean_{name}_ms"])
        assert np.std(values) * 1000 == pytest.approx(found[f"std_{name}_ms"])
        assert np.median(values) * 1000 == pytest.approx(found[f"median_{name}_ms"])
        for p in (50, 90, 99):
            assert np.percentile(values, p) * 1000 == pytest.approx(found[f"p{p}_{name}_ms"])


def test_latencies_count_from_sending(table):
    """A late client would change a number that vLLM does not count."""
    found = vllm(table(1, scheduled_s=0.0, sent_s=1.0, tokens=(1.5, 2.0)))

    assert 500.0 == found["mean_ttft_ms"]
    assert 1000.0 == found["mean_e2el_ms"]


def test_goodput_without_a_bound_that_vllm_knows_is_none(table):
    """vLLM writes null there, and 0 would read as total failure."""
    assert vllm(table(3), "itl=0.1")["request_goodput"] is None


def test_peaks_are_counted_as_vllm_counts_them(table):
    """The peak would hold failed requests, or one that ended as another began."""
    tokens = [[0.5, 1.0], [1.2, 1.9, 1.95], [2.5]]
    found = vllm(table(3, scheduled_s=[0.0, 1.0, 1.5], tokens=tokens))
    failed = vllm(table(3, scheduled_s=[0.0, 1.0, 1.5], tokens=tokens, status=["ok", "error", "ok"]))

    assert (4, 2) == (found["max_output_tokens_per_s"], found["max_concurrent_requests"])
    assert (1, 1) == (failed["max_output_tokens_per_s"], failed["max_concurrent_requests"])

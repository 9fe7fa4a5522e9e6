"""What `GET /metrics` tells, as vLLM would."""

from __future__ import annotations

import re
from array import array
from typing import TYPE_CHECKING

import pytest

from backends.client.stamps import Lags
from backends.server.metrics import GAP_S, Histogram, lateness_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import ByHand, Play

LINE = re.compile(r"([a-z_:0-9]+)\{([^}]*)\} (\S+)")
NAMES = """time_to_first_token_seconds inter_token_latency_seconds request_time_per_output_token_seconds
e2e_request_latency_seconds request_queue_time_seconds request_prefill_time_seconds request_decode_time_seconds
request_inference_time_seconds num_requests_running num_requests_waiting kv_cache_usage_perc
prefix_cache_queries_total prefix_cache_hits_total num_preemptions_total iteration_tokens_total prompt_tokens_total
generation_tokens_total request_success_total"""


def read(page: str) -> dict[tuple[str, str], float]:
    """(name, labels) -> value."""
    return {(m[1], m[2]): float(m[3]) for m in map(LINE.fullmatch, page.splitlines()) if m}


@pytest.mark.parametrize("name", NAMES.split())
async def test_every_name_of_vllm_is_there(play: Play, name: str) -> None:
    """A client that compares its view with the server's would find nothing."""
    async with play() as stage:
        page = (await stage.get("/metrics"))[2]

        assert f"# TYPE vllm:{name} " in page
        assert any(metric.startswith(f"vllm:{name}") for metric, _ in read(page))


async def test_every_line_is_a_comment_or_a_value(play: Play) -> None:
    """Prometheus refuses a page for one bad line."""
    async with play(name='a"b') as stage:
        _, headers, page = await stage.get("/metrics")

        assert all(line.startswith("# ") or LINE.fullmatch(line) for line in page.splitlines())
        assert headers["Content-Type"].startswith("text/plain; version=0.0.4")


async def test_answers_are_counted_with_their_times(play: Play) -> None:
    """Sums and counts are what clients are checked against."""
    async with play(backend="null:ttft=2ms") as stage:
        for stream in (True, False, True):
            await stage.post("/v1/completions", {"prompt": [1, 2], "max_tokens": 5, "stream": stream})
        values = read((await stage.get("/metrics"))[2])
        labels = 'engine="0",model_name="null"'

        for name, count in (("time_to_first_token_seconds", 3), ("inter_token_latency_seconds", 12),
                            ("request_time_per_output_token_seconds", 3), ("e2e_request_latency_seconds", 3),
                            ("request_queue_time_seconds", 3)):  # fmt: skip
            assert count == values[f"vllm:{name}_count", labels]
            assert count == values[f"vllm:{name}_bucket", f'{labels},le="+Inf"']
        assert (6, 15) == (values["vllm:prompt_tokens_total", labels], values["vllm:generation_tokens_total", labels])
        assert 3 == values["vllm:request_success_total", f'{labels},finished_reason="length"']
        assert 3 * 0.002 <= values["vllm:time_to_first_token_seconds_sum", labels]
        assert 15 == values["bench:token_lateness_seconds_count", labels]
        assert 0 <= values["bench:token_lateness_seconds_sum", labels] < 15.0


async def test_what_the_service_says_is_passed_on(play: Play, by_hand: Callable[..., ByHand]) -> None:
    """Queue, memory and preemptions of the system under test would be invisible."""
    service = by_hand(waiting=2)

    async with play(service) as stage:
        values = read((await stage.get("/metrics"))[2])
        labels = 'engine="0",model_name="by-hand"'

        assert (2, 0.25, 3) == tuple(
            values[f"vllm:{name}", labels]
            for name in ("num_requests_waiting", "kv_cache_usage_perc", "num_preemptions_total")
        )
        assert 24 <= values["vllm:iteration_tokens_total_sum", labels]


def test_a_value_on_a_bound_belongs_below_it() -> None:
    """Prometheus' buckets include their upper bound."""
    histogram = Histogram(GAP_S)
    for value in (0.01, 0.0100001, 100.0):
        histogram.observe(value)
    lines = list(histogram.lines("x", 'a="b"'))

    assert 'x_bucket{a="b",le="0.01"} 1' == lines[0]
    assert 'x_bucket{a="b",le="0.025"} 2' == lines[1]
    assert 'x_bucket{a="b",le="80.0"} 2' == lines[-4]
    assert ['x_bucket{a="b",le="+Inf"} 3', 'x_sum{a="b"} 100.0200001', 'x_count{a="b"} 3'] == lines[-3:]


def test_lateness_is_that_of_every_token() -> None:
    """The line that says how far a comparison can be trusted would itself be wrong."""
    lateness = Lags()
    lateness.add(array("d", [7.0 + i * 1e-5 for i in range(1001)]), array("d", [7.0] * 1001), 0)

    assert "Tokens left p50 5.00 ms, p99 9.90 ms, at worst 10.00 ms after their time (1001)." == lateness_line(lateness)


def test_no_tokens_have_no_lateness() -> None:
    """A server without requests would claim to be on time."""
    assert "No tokens left." == lateness_line(Lags())

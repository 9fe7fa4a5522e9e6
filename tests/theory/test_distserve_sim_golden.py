"""The compatibility mode `sim:compat=distserve_sim` against numbers of DistServe's own simulator.

Set-up: OPT-13B on one A100-80G, 512 tokens in and 64 out, N requests, gaps from numpy's legacy generator seeded with
0 as gamma(1, 1/rate), the first request at 0. Milliseconds.
"""

from typing import Any

import numpy as np
import pytest

from harness.api import Request, RequestRecord
from harness.errors import UsageError
from harness.registry import make

TOLERANCE = 1e-3


def arrivals(rate_rps: float, requests: int, seed: int = 0) -> list[Request]:
    """Requests of 512 in and 64 out, arriving as DistServe's simulator draws them."""
    legacy = np.random.RandomState(seed)
    gaps = legacy.gamma(1, 1 / rate_rps, size=requests - 1)
    return [Request(i, float(at), 512, 64) for i, at in enumerate(np.cumsum([0.0, *gaps]))]


def latencies(spec: str, requests: list[Request]) -> tuple[np.ndarray, np.ndarray]:
    """(requests,) TTFT and TPOT in milliseconds, by their usual definitions."""
    sim = make("backends", spec)
    records = list(sim.simulate(iter(requests)))
    sim.cluster.check()
    assert len(records) == len(requests)
    ttft = np.array([r.token_s[0] - r.scheduled_s for r in records])
    tpot = np.array([(r.token_s[-1] - r.token_s[0]) / (len(r.token_s) - 1) for r in records])
    return ttft * 1e3, tpot * 1e3


@pytest.mark.parametrize(
    ("rate_rps", "ttft_ms", "tpot_ms", "attainment"),
    [
        (1.0, (111.73, 125.52, 196.13), (29.760, 33.814, 40.187), 98.9),
        (3.0, (119.91, 194.55, 330.49), (41.859, 52.903, 65.791), 39.8),
    ],
)
def test_colocated_with_the_constants_of_vllm(
    rate_rps: float, ttft_ms: tuple[float, ...], tpot_ms: tuple[float, ...], attainment: float
) -> None:
    """P50, P90, P99 and the joint attainment at 400 / 40 ms are those of DistServe's simulator (GN1)."""
    ttft, tpot = latencies("sim:compat=distserve_sim", arrivals(rate_rps, 1000))

    assert ttft_ms == pytest.approx(np.percentile(ttft, [50, 90, 99]), rel=TOLERANCE)
    assert tpot_ms == pytest.approx(np.percentile(tpot, [50, 90, 99]), rel=TOLERANCE)
    assert attainment == pytest.approx(100 * np.mean((ttft <= 400) & (tpot <= 40)))


@pytest.mark.parametrize(("rate_rps", "ttft_ms", "tpot_ms"), [(1.6, 104, 31.4), (4.0, 148, 47.4)])
def test_colocated_with_the_constants_of_distserve(rate_rps: float, ttft_ms: float, tpot_ms: float) -> None:
    """P90 of TTFT and TPOT are those of DistServe's simulator, to the digits that are published (GN1)."""
    ttft, tpot = latencies("sim:compat=distserve_sim,latency=abc:distserve", arrivals(rate_rps, 1000))

    assert ttft_ms == pytest.approx(np.percentile(ttft, 90), abs=0.5)
    assert tpot_ms == pytest.approx(np.percentile(tpot, 90), abs=0.05)


@pytest.mark.parametrize(("seed", "tpot_ms"), [(0, 38.4), (1, 38.6), (2, 39.0)])
def test_spread_over_seeds(seed: int, tpot_ms: float) -> None:
    """P90 TPOT of 3,000 requests at 1.6 a second differs between seeds as it does there (GN1)."""
    _, tpot = latencies("sim:compat=distserve_sim", arrivals(1.6, 3000, seed))

    assert tpot_ms == pytest.approx(np.percentile(tpot, 90), abs=0.05)


@pytest.mark.parametrize("rate_rps", [2.5, 6.0, 7.0, 9.0, 12.0])
def test_any_rate_agrees_with_a_plain_loop(rate_rps: float) -> None:
    """Beyond the published points, also where the cap of 50,000 context tokens makes sequences take turns."""
    requests = arrivals(rate_rps, 400)
    expected_ttft, expected_tpot = plain_loop([r.scheduled_s * 1e3 for r in requests])

    ttft, tpot = latencies("sim:compat=distserve_sim", requests)

    assert np.sort(expected_ttft) == pytest.approx(np.sort(ttft), rel=1e-9)
    assert np.sort(expected_tpot) == pytest.approx(np.sort(tpot), rel=1e-9)


def plain_loop(arrived_ms: list[float], prompt: int = 512, output: int = 64) -> tuple[np.ndarray, np.ndarray]:
    """TTFT and TPOT in ms of the rules of DistServe's simulator, written down without the serving core."""
    a, b, c = 22.052204789310185, 0.14050923870128956, 8.076584822611088e-06  # prefill of vLLM, OPT-13B
    small = (23.475041008414784, 0.000592934466077393, 0.060726861260369455)
    large = (20.206356173691958, 0.0004907727036234946, 0.1200031385587413)
    now, arrived = 0.0, 0
    queued: list[int] = []
    decoding: list[tuple[int, int]] = []  # (request, decode steps done), in order of turn
    first, last = [0.0] * len(arrived_ms), [0.0] * len(arrived_ms)
    while arrived < len(arrived_ms) or queued or decoding:
        if not queued and not decoding:
            now = max(now, arrived_ms[arrived])
        while arrived < len(arrived_ms) and arrived_ms[arrived] <= now:
            queued.append(arrived)
            arrived += 1
        if queued:
            batch, queued = queued[: 66144 // prompt], queued[66144 // prompt :]
            tokens = prompt * len(batch)
            now += a + b * tokens + c * prompt * tokens + 1 + 2 + 1e-4 * tokens
            for request in batch:
                first[request] = now
            decoding += [(request, 0) for request in batch]
        elif decoding:
            context, size = 0, 0
            for _, done in decoding:
                if context + prompt + done + 1 > 50_000:
                    break
                context += prompt + done + 1
                size += 1
            base, per_token, per_sequence = small if size < 95 else large
            now += base + per_token * context + per_sequence * size + 2 + 1e-4 * (context - size)
            turn = [(request, done + 1) for request, done in decoding[:size]]
            for request, done in turn:
                last[request] = now if done == output else last[request]
            decoding = decoding[size:] + [(request, done) for request, done in turn if done < output]
    ttft = np.array(first) - np.array(arrived_ms)
    return ttft, (np.array(last) - np.array(first)) / output


@pytest.mark.parametrize("rate_rps", [3.0, 9.0])
def test_leaps_give_the_records_of_single_steps(rate_rps: float) -> None:
    """Leaping and stepping must agree to the last bit, taking turns included."""

    def records(leap: bool) -> list[Any]:
        sim = make("backends", f"sim:compat=distserve_sim,leap={leap}")
        return [(r.request_id, list(r.token_s), r.decode_start_s) for r in sim.simulate(arrivals(rate_rps, 300))]

    assert records(leap=False) == records(leap=True)


def test_an_answer_to_a_follow_up_has_the_further_token_too() -> None:
    """Later turns of a conversation would be a step shorter than the first."""
    sim = make("backends", "sim:compat=distserve_sim")

    def follow_ups(record: RequestRecord) -> list[Request]:
        later = Request(1, record.token_s[-1], 512, 64, after=(0,))
        return [later] if record.request_id == 0 else []

    records = list(sim.simulate(iter([Request(0, 0.0, 512, 64)]), follow_ups))

    assert [65, 65] == [len(r.token_s) for r in records]


def test_a_sequence_that_sits_out_can_be_cancelled() -> None:
    """A cancelled request must give back its memory whatever it was doing."""
    sim = make("backends", "sim:policy=distserve-sim:max_decode_tokens=600,kv=paged:blocks=500")
    replica = sim.cluster.replicas[0]
    for i in range(4):
        replica.add(Request(i, 0.0, 400, 9), 0.0)
    replica.commit(replica.schedule(0.0), [1.0])
    replica.commit(replica.schedule(1.0), [2.0])

    assert len(replica.parked) == 3
    replica.check()
    assert replica.cancel(2, 2.0) is not None
    assert len(replica.parked) == 2
    replica.check()
    assert replica.running == 3


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("sim:compat=distserv_sim", "No compatibility mode named 'distserv_sim'. Did you mean 'distserve_sim'?"),
        ("sim:compat=distserve_sim,latency=linear", "needs latency=abc:vllm or abc:distserve, got 'linear'"),
        ("sim:compat=distserve_sim,model=llama2-7b", "No abc constants for vllm, llama2-7b"),
        ("sim:policy=distserve-sim:max_decode_tokens=0", "max_decode_tokens must be at least 1"),
    ],
)
def test_what_the_mode_cannot_do_is_reported_in_one_sentence(spec: str, message: str) -> None:
    """A user must learn which settings the mode takes."""
    with pytest.raises(UsageError) as error:
        make("backends", spec)

    assert message in str(error.value)


def test_prompts_that_never_fit_are_refused() -> None:
    """The original would loop for ever on them."""
    sim = make("backends", "sim:compat=distserve_sim")
    records = list(
        sim.simulate([Request(0, 0.0, 66_145, 1), Request(1, 0.0, 49_000, 1002), Request(2, 0.0, 49_000, 1000)])
    )

    assert [r.status for r in sorted(records, key=lambda r: r.request_id)] == ["rejected", "rejected", "ok"]

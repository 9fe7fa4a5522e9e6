"""Where theory exists it is the judge: the simulated queue is the queue of the textbook."""

from math import exp, factorial

import numpy as np
import pytest

from backends.sim import Sim
from harness.api import Request

ONE_AT_A_TIME = {"policy": "vllm-v0:max_seqs=1", "kv_blocks": 4, "latency": "linear:base_s=1,prefill_token_s=0"}


def md1(rho: float, count: int, seed: int) -> np.ndarray:
    """Simulated times in system of fixed service time 1 and Poisson arrivals at rate rho, one token a request."""
    at_s = np.cumsum(np.random.default_rng(seed).exponential(1 / rho, count))
    requests = (Request(i, t, 16, 1) for i, t in enumerate(at_s.tolist()))
    sim = Sim(**ONE_AT_A_TIME)
    return np.array([record.token_s[0] - record.scheduled_s for record in sim.simulate(requests)])


def wait_cdf(rho: float, wait: float) -> float:
    """P(waiting time <= wait) of M/D/1 with service time 1 (Crommelin 1932)."""
    terms = ((-rho * (wait - k)) ** k / factorial(k) * exp(rho * (wait - k)) for k in range(int(wait) + 1))
    return (1 - rho) * sum(terms)


def quantile(rho: float, q: float) -> float:
    """Time in system that a share q does not exceed."""
    low, high = 0.0, 40.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if wait_cdf(rho, middle) < q else (low, middle)
    return 1 + low


@pytest.mark.parametrize(
    ("rho", "seed"), [pytest.param(*p, marks=pytest.mark.nightly) for p in ((0.5, 1), (0.7, 2), (0.8, 3))]
)
def test_prefill_without_batching_is_an_m_d_1_queue(rho: float, seed: int):
    """A wrong queue would shift every TTFT that the simulator reports (E5)."""
    times = md1(rho, 200_000, seed)

    assert 1 + rho / (2 * (1 - rho)) == pytest.approx(times.mean(), rel=0.02)
    for q in (0.9, 0.99):
        assert quantile(rho, q) == pytest.approx(float(np.quantile(times, q)), rel=0.03)


def test_the_judge_gives_the_known_quantiles():
    """The formula is checked against the values that the specification derives, or it could judge nothing."""
    assert pytest.approx([2.516, 4.336], abs=2e-3) == [quantile(0.5, 0.9), quantile(0.5, 0.99)]
    assert pytest.approx([6.012, 11.356], abs=2e-3) == [quantile(0.8, 0.9), quantile(0.8, 0.99)]


@pytest.mark.parametrize("policy", ["static", "orca", "vllm-v0", "sarathi"])
def test_littles_law_holds_in_every_simulation(policy: str, draw):
    """Time-average number in system = arrival rate x mean time in system, from two different countings (E7)."""
    requests = draw(400, rate_rps=8.0)
    records = list(Sim(policy=policy, kv_blocks=300).simulate(requests))
    starts = np.array([r.scheduled_s for r in records])
    ends = np.array([r.token_s[-1] for r in records])
    events = sorted([(t, 1) for t in starts] + [(t, -1) for t in ends])
    area, inside, before = 0.0, 0, 0.0
    for at_s, change in events:
        area += inside * (at_s - before)
        inside, before = inside + change, at_s

    assert inside == 0
    assert float((ends - starts).sum()) == pytest.approx(area, rel=1e-9)


@pytest.mark.parametrize("policy", ["static", "orca", "vllm-v0", "sarathi"])
def test_busy_time_is_the_sum_of_the_steps_and_no_step_overlaps_another(policy: str, draw):
    """One executor cannot do two things at a time; it idles only when no request is there (E8, I5)."""
    sim = Sim(policy=policy, kv_blocks=300, latency="operators:front_s=0")
    records = list(sim.simulate(draw(300, rate_rps=3.0)))
    steps = sim.steps_table()
    start, end = steps["start_s"].to_numpy(), steps["end_s"].to_numpy()
    gaps = [(e, s) for e, s in zip(end[:-1], start[1:], strict=True) if s > e]
    lives = [(r.scheduled_s, r.token_s[-1]) for r in records]

    assert (start[1:] >= end[:-1]).all()
    assert gaps, "the test needs idle time"
    for idle_from, idle_to in gaps:
        assert not [1 for born, died in lives if born < idle_to and died > idle_from]


def test_halving_all_costs_and_doubling_the_rate_halves_all_latencies(draw):
    """Only ratios of times matter; a constant hidden in the core would break this (E21)."""
    slow = draw(200, rate_rps=4.0)
    fast = [Request(r.id, r.scheduled_s / 2, r.prompt_tokens, r.output_tokens) for r in slow]
    full = "linear:base_s=0.016,prefill_token_s=0.0001220703125,decode_seq_s=0.0009765625"
    half = "linear:base_s=0.008,prefill_token_s=0.00006103515625,decode_seq_s=0.00048828125"
    one, other = (
        [np.array(r.token_s) - r.scheduled_s for r in Sim(latency=latency, kv_blocks=500).simulate(requests)]
        for latency, requests in ((full, slow), (half, fast))
    )

    assert all(np.allclose(a, 2 * b, rtol=1e-9) for a, b in zip(one, other, strict=True))


def test_equal_requests_arriving_together_are_interchangeable():
    """Which of two equal requests is called the first must not change any percentile (E21)."""
    requests = [Request(i, float(i // 4), 100, 20) for i in range(40)]
    swapped = [Request(39 - i, float(i // 4), 100, 20) for i in range(40)]
    times = [
        sorted(t - r.scheduled_s for r in Sim(kv_blocks=200).simulate(q) for t in r.token_s)
        for q in (requests, swapped)
    ]

    assert times[0] == times[1]


def test_the_same_input_gives_the_same_tables(draw):
    """A simulator that is not deterministic cannot be compared with itself (I6)."""
    runs = []
    for _ in range(2):
        sim = Sim(replicas=3, router="least-requests", kv_blocks=200)
        records = list(sim.simulate(draw(200, rate_rps=20.0)))
        runs.append(([(r.request_id, list(r.token_s), r.replica) for r in records], sim.steps_table()))

    assert runs[0][0] == runs[1][0]
    assert runs[0][1].equals(runs[1][1])

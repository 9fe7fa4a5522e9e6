"""The compatibility mode with prefill and decode apart, and with pipeline stages: numbers of DistServe's simulator.

Set-up as in `test_distserve_sim_golden`. The search halves the rate per GPU between 0 and 8 until the rest is 0.0625
wide; a rate is kept where P90 TTFT and P90 TPOT of 300 requests each are below their bound.
"""

from typing import Any

import numpy as np
import pytest

from backends.sim import Sim
from harness.api import Request

VLLM, DISTSERVE = "abc:vllm", "abc:distserve"


def latencies(requests: int, rate_rps: float, **fields: Any) -> tuple[np.ndarray, np.ndarray]:
    """(requests,) TTFT and TPOT in milliseconds."""
    legacy = np.random.RandomState(0)
    at_s = np.cumsum([0.0, *legacy.gamma(1, 1 / rate_rps, size=requests - 1)])
    sim = Sim(compat="distserve_sim", log_steps=False, **fields)
    records = list(sim.simulate(Request(i, float(at), 512, 64) for i, at in enumerate(at_s)))
    assert {"ok"} == {r.status for r in records}
    assert len(records) == requests
    ttft = np.array([r.token_s[0] - r.scheduled_s for r in records])
    tpot = np.array([(r.token_s[-1] - r.token_s[0]) / (len(r.token_s) - 1) for r in records])
    return ttft * 1e3, tpot * 1e3


def keeps(rate_rps: float, bounds_ms: tuple[float, float], **fields: Any) -> bool:
    """Whether both P90 are below their bound."""
    ttft, tpot = latencies(300, rate_rps, **fields)
    return bool(np.percentile(ttft, 90) < bounds_ms[0] and np.percentile(tpot, 90) < bounds_ms[1])


def test_two_prefill_replicas_and_one_for_decode() -> None:
    """GN2: P50, P90 and P99 of TTFT and TPOT at 5.6 requests a second."""
    ttft, tpot = latencies(1000, 5.6, prefill="2", decode="1")

    assert [99.16, 116.55, 195.39] == pytest.approx(np.percentile(ttft, [50, 90, 99]).tolist(), rel=1e-3)
    assert [30.931, 32.786, 34.747] == pytest.approx(np.percentile(tpot, [50, 90, 99]).tolist(), rel=1e-3)


@pytest.mark.parametrize(
    ("fields", "gpus", "bounds_ms", "per_gpu_rps"),
    [
        ({"latency": DISTSERVE, "prefill": "1:tp=2", "decode": "1"}, 3, (200, 100), 4.75),
        ({"latency": DISTSERVE, "prefill": "1:pp=2", "decode": "1"}, 3, (200, 100), 4.6875),
        ({"latency": DISTSERVE, "prefill": "1", "decode": "1"}, 2, (200, 100), 3.3125),
        ({"latency": VLLM, "pp": 2}, 2, (200, 100), 3.625),
        ({"latency": VLLM, "tp": 2}, 2, (200, 100), 3.375),
        ({"latency": DISTSERVE, "prefill": "1:pp=2", "decode": "1:tp=2"}, 4, (400, 40), 6.25),
        ({"latency": DISTSERVE, "prefill": "1", "decode": "1"}, 2, (400, 40), 5.8125),
    ],
)
def test_the_rates_of_its_search(
    fields: dict[str, Any], gpus: int, bounds_ms: tuple[float, float], per_gpu_rps: float
) -> None:
    """GN3: the rate found meets both bounds, and the next one that its search tries does not."""
    assert keeps(per_gpu_rps * gpus, bounds_ms, **fields)
    assert not keeps((per_gpu_rps + 0.0625) * gpus, bounds_ms, **fields)


def test_one_stage_in_the_loop_of_stages_is_the_shared_core() -> None:
    """The two ways in which the mode is executed must be one mode."""
    from backends.simulator.simdistserve import Rings

    legacy = np.random.RandomState(1)
    at_s = np.cumsum(legacy.gamma(1, 1 / 7.0, size=200)).tolist()
    requests = [Request(i, at, 300 + i, 40) for i, at in enumerate(at_s)]
    for sides in ({}, {"prefill": "2", "decode": "1"}):
        sim = Sim(compat="distserve_sim", **sides)
        core = {r.request_id: list(r.token_s) for r in sim.simulate(iter(requests))}
        served, _ = sim._as_served(requests, None)
        rings = {r.request_id: list(r.token_s) for r in Rings(sim._parts, iter(served), None).records()}

        assert core.keys() == rings.keys()
        assert all(core[i] == pytest.approx(rings[i], rel=1e-12) for i in core)

"""P/D-Serve: requests queue at the gateway, none is lost, and old reports herd them (K14.a, K14.b)."""

import numpy as np
import pytest

from backends.sim import Sim
from backends.systems.pd_serve import RejectForwardRouter
from harness.api import Request


def poisson(rate_rps, count=600, seed=0):
    rng = np.random.default_rng(seed)
    at_s = np.cumsum(rng.exponential(1 / rate_rps, count)).tolist()
    return [Request(i, at, int(rng.integers(64, 1024)), 16) for i, at in enumerate(at_s)]


def served(router, requests, **fields):
    """Simulation of 4 prefill and 4 decode replicas, whose prompts take 0.1 ms a token: 73 requests a second."""
    sim = Sim(prefill="4", decode="4", link="none", router=router,
              latency="linear:base_s=0.0009765625,prefill_token_s=0.0001", **fields)  # fmt: skip
    return sim, list(sim.simulate(requests))


def ttft_s(router, requests):
    return np.array([r.token_s[0] - r.scheduled_s for r in served(router, requests)[1]])


def test_with_fresh_reports_both_are_alike():
    """K14.a: a gain without any delay would come from something else than old reports."""
    means = [
        [ttft_s(router, poisson(50, seed=seed)).mean() for seed in range(5)]
        for router in ("reject-forward:retry_s=0", "reported-queue:report_s=0")
    ]

    assert np.mean(means[0]) == pytest.approx(np.mean(means[1]), rel=0.1)


@pytest.mark.parametrize("router", ["reject-forward", "reject-forward:retry_s=0", "reject-forward:budget_s=0.2"])
def test_no_request_waits_at_a_replica_and_none_is_lost(router):
    """K14.b: all waiting is at the gateway, which answers each request once, late ones with a rejection."""
    requests = poisson(90)
    sim, records = served(router, requests)
    late = [record for record in records if record.status == "rejected"]

    assert {0} == set(sim.steps_table()["waiting"].to_pylist())
    assert [r.id for r in requests] == sorted(record.request_id for record in records)
    assert ("budget_s" in router) == bool(late)
    for record in records:
        if record.status == "ok":
            assert len(record.token_s) == 16
            assert "budget_s" not in router or record.prefill_start_s - record.scheduled_s < 0.21


def test_what_is_held_waits_its_turn(monkeypatch):
    """Each step of each replica would ask for all that is held: the square of an overload."""
    decided, decide = [], RejectForwardRouter.decide
    monkeypatch.setattr(RejectForwardRouter, "decide", lambda *given: decided.append(1) or decide(*given))
    sim, _ = served("reject-forward:retry_s=0,budget_s=60", poisson(200))
    steps = sim.steps_table().num_rows

    assert len(decided) < 600 + 2 * steps, "once on arrival, and for the first of the queue after a step"


def test_old_reports_herd_requests():
    """The longer a report is believed, the more requests go the same way; a gateway that counts what it sends does
    not."""
    requests = poisson(50)
    means = [ttft_s(f"reported-queue:report_s={report_s}", requests).mean() for report_s in (0, 0.1, 1)]
    counting = ttft_s("reported-queue:report_s=1,counts=on", requests).mean()

    assert means == sorted(means)
    assert counting < means[1] < means[2]

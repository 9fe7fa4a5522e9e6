"""Simulations that are laid over closed forms: the simulator itself, on traffic for which the forms are exact."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness import registry
from harness.api import Request

if TYPE_CHECKING:
    import numpy as np

    from harness.theory.queueing import Prefill


def prefill_times_s(form: Prefill, rate_rps: float, requests: int, seed: int = 0) -> np.ndarray:
    """(requests,) TTFT in seconds of prompts of equal length, one at a time, on a simulated replica.

    With several replicas each gets its share of the rate, of which one is simulated.
    """
    import numpy as np

    gaps_s = np.random.default_rng(seed).exponential(form.replicas / rate_rps, requests)
    stages = {"pp": form.pp} if form.pp > 1 else {}
    simulator = registry.make(
        "backends", "sim", policy="vllm-v0:max_seqs=1", kv_blocks=4 * form.pp, log_steps=False, **stages,
        latency=f"linear:base_s={form.between_s!r},prefill_token_s=0,decode_seq_s=0,context_token_s=0",
    )  # fmt: skip
    asked = (Request(i, at_s, 16, 1) for i, at_s in enumerate(np.cumsum(gaps_s).tolist()))
    times = np.empty(requests)
    for record in simulator.simulate(asked):
        times[record.request_id] = record.token_s[0] - record.scheduled_s
    return times

"""Simulations that are laid over closed forms: the simulator itself, on traffic for which the forms are exact."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness import registry
from harness.api import Request
from harness.theory.queueing import Prefill

if TYPE_CHECKING:
    import numpy as np


_ANSWER = 200
"""Tokens of an answer, over which the context grows."""

_DRAWN = 64
"""Requests at least, over which the speed-up of drafts is a mean."""


def prefill_times_s(form: Prefill, rate_rps: float, requests: int, seed: int = 0) -> np.ndarray:
    """(requests,) TTFT in seconds of prompts of equal length, one at a time, on a simulated replica.

    With several replicas each gets its share of the rate, of which one is simulated. Gaps are exponential and scaled so
    that their mean is that of the rate: most of the noise of a mean wait is noise of the rate.
    """
    import numpy as np

    gaps_s = _gaps_s(form, rate_rps, requests, seed)
    simulator = registry.make(
        "backends", f"sim:pp={form.pp}" if form.pp > 1 else "sim", policy="vllm-v0:max_seqs=1", kv_blocks=4 * form.pp,
        log_steps=False,
        latency=f"linear:base_s={form.between_s!r},prefill_token_s=0,decode_seq_s=0,context_token_s=0",
    )  # fmt: skip
    asked = (Request(i, at_s, 16, 1) for i, at_s in enumerate(np.cumsum(gaps_s).tolist()))
    times = np.empty(requests)
    for record in simulator.simulate(asked):
        times[record.request_id] = record.token_s[0] - record.scheduled_s
    return times


def recursion_times_s(form: Prefill, rate_rps: float, requests: int, seed: int = 0) -> np.ndarray:
    """(requests,) TTFT of the same prompts by Lindley's recursion, without any simulator: for millions of them."""
    import numpy as np

    gaps_s = _gaps_s(form, rate_rps, requests, seed)
    walk_s = np.concatenate([[0.0], np.cumsum(form.between_s - gaps_s[1:])])
    waits_s: np.ndarray = walk_s - np.minimum.accumulate(walk_s)
    return waits_s + form.own_s


def _gaps_s(form: Prefill, rate_rps: float, requests: int, seed: int) -> np.ndarray:
    import numpy as np

    gaps_s = np.random.default_rng(seed).standard_exponential(requests)
    gaps_s *= form.replicas / rate_rps / gaps_s.mean()
    return gaps_s


def chunked_prompt_s(prompt: int, chunk: int, **system: object) -> float:
    """TTFT of one prompt on a simulated replica (of this `system`) whose steps hold at most `chunk` tokens."""
    simulator = registry.make(
        "backends", "sim", policy=f"sarathi:budget={chunk}", kv_blocks=prompt // 8 + 64, log_steps=False, **system
    )
    (record,) = simulator.simulate(iter([Request(0, 0.0, prompt, 1)]))
    first_s: float = record.token_s[0]
    return first_s


def drafted_speed_up(batch: int, context: int, speculate: str, **system: object) -> float:
    """How many times as fast `batch` equal requests of `context` tokens decode with drafts, on a simulated replica.

    Small batches come in several waves, far apart, since what is accepted is drawn.
    """
    tpot_s = []
    asked = [Request(i, 1e4 * (i // batch), context, _ANSWER) for i in range(batch * -(-_DRAWN // batch))]
    for drafts in (None, speculate):
        simulator = registry.make(
            "backends", "sim", policy="vllm-v0:max_seqs=100000", speculate=drafts, log_steps=False,
            kv_blocks=batch * (context + 2 * _ANSWER) // 8 + 64, **system,
        )  # fmt: skip
        tpot_s.append(sum(r.token_s[-1] - r.token_s[0] for r in simulator.simulate(iter(asked))))
    return float(tpot_s[0] / tpot_s[1])

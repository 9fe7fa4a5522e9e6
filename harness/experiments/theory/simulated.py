"""Simulations that are laid over closed forms: the simulator itself, on traffic for which the forms are exact.

A replica whose KV memory never runs empty: how much of what is given out holds tokens, under each memory mode.

The comparison is that of Kwon et al., vLLM, SOSP 2023 (figures 2 and 13). A long queue waits from the start, every
running sequence is in every step, and the means are taken while the queue lasts and the first fifth is over.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness import registry
from harness.api import Request
from harness.errors import UsageError
from harness.experiments.theory.queueing import Prefill

if TYPE_CHECKING:
    import numpy as np


_ANSWER = 200
"""Tokens of an answer, over which the context grows."""

_DRAWN = 64
"""Requests at least, over which the speed-up of drafts is a mean."""
MODES = {
    "paged": "paged",
    "oracle": "reserve-oracle:buddy=true",
    "pow2": "reserve-pow2:buddy=true",
    "max": "reserve-max",
}
"""Short names of the modes as vLLM compared them: contiguous memory comes from a buddy allocator."""
LONGEST_TOKENS = 2048
"""Of prompt and output: what OPT takes, and what `max` reserves."""
_ROUNDS = 50


def prefill_times_s(form: Prefill, rate_rps: float, requests: int, seed: int = 0) -> np.ndarray:
    """(requests,) TTFT in seconds of prompts of equal length, one at a time, on a simulated replica.

    With several replicas each gets its share of the rate, of which one is simulated. Gaps are exponential and scaled so
    that their mean is that of the rate: most of the noise of a mean wait is noise of the rate.
    """
    import numpy as np

    own_gaps_s = gaps_s(form, rate_rps, requests, seed)
    simulator = registry.make(
        "backends", f"sim:pp={form.pp}" if form.pp > 1 else "sim", policy="vllm-v0:max_seqs=1", kv_blocks=4 * form.pp,
        log_steps=False,
        latency=f"linear:base_s={form.between_s!r},prefill_token_s=0,decode_seq_s=0,context_token_s=0",
    )  # fmt: skip
    generated = (Request(i, at_s, 16, 1) for i, at_s in enumerate(np.cumsum(own_gaps_s).tolist()))
    times = np.empty(requests)
    for record in simulator.simulate(generated):
        times[record.request_id] = record.token_s[0] - record.scheduled_s
    return times


def gaps_s(form: Prefill, rate_rps: float, requests: int, seed: int = 0) -> np.ndarray:
    """(requests,) exponential gaps, whose mean is that of the rate of one replica."""
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
    generated = [Request(i, 1e4 * (i // batch), context, _ANSWER) for i in range(batch * -(-_DRAWN // batch))]
    for drafts in (None, speculate):
        simulator = registry.make(
            "backends", "sim", policy="vllm-v0:max_seqs=100000", speculate=drafts, log_steps=False,
            kv_blocks=batch * (context + 2 * _ANSWER) // 8 + 64, **system,
        )  # fmt: skip
        tpot_s.append(sum(r.token_s[-1] - r.token_s[0] for r in simulator.simulate(iter(generated))))
    return float(tpot_s[0] / tpot_s[1])


@dataclass(frozen=True, slots=True)
class Traffic:
    """Lognormal lengths of this coefficient of variation; longer ones than OPT takes are left out.

    The means, of what is left, are ShareGPT's in vLLM; the variation is ours (outputs of two public preparations have
    0.6 and 1.2).
    """

    prompt_tokens: float = 161.31
    output_tokens: float = 337.99
    variation: float = 1.0
    requests: int = 1500
    seed: int = 0

    def requests_at_once(self) -> Iterator[Request]:
        """All requests, waiting from the start."""
        for i, (prompt, output) in enumerate(self._lengths().tolist()):
            yield Request(i, 0.0, prompt, output)

    def _lengths(self) -> np.ndarray:
        """(requests, 2) tokens of prompts and outputs."""
        import numpy as np

        sigma = float(np.sqrt(np.log(1 + self.variation**2)))
        shape = np.exp(sigma * np.random.default_rng(self.seed).standard_normal((2 * self.requests, 2)))
        wanted = np.array([self.prompt_tokens, self.output_tokens])
        scale, lengths = wanted.copy(), np.empty((0, 2), np.int64)
        for _ in range(_ROUNDS):  # what is left out would lower the means
            lengths = np.maximum(1, np.rint(scale * shape)).astype(np.int64)
            lengths = lengths[lengths.sum(axis=1) <= LONGEST_TOKENS][: self.requests]
            scale *= wanted / lengths.mean(axis=0)
        return lengths


@dataclass(frozen=True, slots=True)
class Filled:
    """What a memory mode reached: `used` of the memory that is given out and `of_all` of the whole hold tokens.

    `batch` is the mean number of sequences in a step.
    """

    mode: str
    used: float
    of_all: float
    batch: float


def filled(mode: str, slots: int, traffic: Traffic, **system: object) -> Filled:
    """Simulate `slots` token slots of a `system` under a memory mode: a short name of `MODES`, or a spec of its own."""
    import numpy as np

    spec = MODES.get(mode, mode)
    # pages of bytes hold as many tokens as the model and its parallelism make them, which the simulator knows
    size = registry.make("backends", "sim", kv=spec, kv_blocks=1, **system).cluster.replicas[0].blocks.size
    total = slots // size
    if total * size < LONGEST_TOKENS:
        raise UsageError(f"{slots:,} slots hold no sequence of {LONGEST_TOKENS:,} tokens; give more memory.")
    simulator = registry.make(
        "backends", "sim", policy="orca:max_batch=100000", kv=spec, kv_blocks=total, leap=False,
        latency="linear:base_s=0.02,prefill_token_s=0.0001,decode_seq_s=0,context_token_s=0", **system,
    )  # fmt: skip
    for _ in simulator.simulate(traffic.requests_at_once()):
        pass
    table = simulator.steps_table()
    steps = {name: table[name].to_numpy() for name in table.column_names}
    lasting = np.flatnonzero(steps["waiting"] > 0)
    kept = lasting[len(lasting) // 5 :]
    if not len(kept):
        raise UsageError(f"{traffic.requests} requests never filled {slots:,} slots; give more requests.")
    stored = (steps["context_tokens"] + steps["decode_seqs"] + steps["prefill_tokens"])[kept].sum()
    given = ((simulator.cluster.replicas[0].blocks.total - steps["free_blocks"]) * size)[kept].sum()
    whole = len(kept) * simulator.cluster.replicas[0].blocks.total * size
    return Filled(mode, float(stored / given), float(stored / whole), float(steps["running"][kept].mean()))

"""A replica whose KV memory never runs empty: how much of what is given out holds tokens, under each memory mode.

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

if TYPE_CHECKING:
    import numpy as np

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


def filled(mode: str, slots: int, traffic: Traffic) -> Filled:
    """Simulate `slots` token slots under a memory mode: a short name of `MODES`, or a spec of its own."""
    import numpy as np

    spec = MODES.get(mode, mode)
    size = registry.make("kv", spec).block_tokens
    total = slots // size
    if total * size < LONGEST_TOKENS:
        raise UsageError(f"{slots:,} slots hold no sequence of {LONGEST_TOKENS:,} tokens; give more --memory.")
    simulator = registry.make(
        "backends", "sim", policy="orca:max_batch=100000", kv=spec, kv_blocks=total, leap=False,
        latency="linear:base_s=0.02,prefill_token_s=0.0001,decode_seq_s=0,context_token_s=0",
    )  # fmt: skip
    for _ in simulator.simulate(traffic.requests_at_once()):
        pass
    table = simulator.steps_table()
    steps = {name: table[name].to_numpy() for name in table.column_names}
    lasting = np.flatnonzero(steps["waiting"] > 0)
    kept = lasting[len(lasting) // 5 :]
    if not len(kept):
        raise UsageError(f"{traffic.requests} requests never filled {slots:,} slots; give more --requests.")
    stored = (steps["context_tokens"] + steps["decode_seqs"] + steps["prefill_tokens"])[kept].sum()
    given = ((simulator.cluster.replicas[0].blocks.total - steps["free_blocks"]) * size)[kept].sum()
    whole = len(kept) * simulator.cluster.replicas[0].blocks.total * size
    return Filled(mode, float(stored / given), float(stored / whole), float(steps["running"][kept].mean()))

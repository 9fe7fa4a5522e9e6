"""A server under a fixed number of clients, simulated: what a benchmark of fixed lengths and concurrency measures."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import numpy as np

from harness.api import Request, RequestRecord, Simulator
from harness.registry import make

MOST = 6000
"""Requests of one simulation at most: a mean over more says no more."""

BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Load:
    """`clients` that send the next request when the last is answered, all at once at first, `rounds` times each.

    Lengths are drawn evenly from the share `spread` below `prompt` and `output` tokens up to them.
    """

    prompt: int
    output: int
    clients: int
    rounds: int = 10
    spread: float = 0.2


@dataclass(frozen=True, slots=True)
class Server:
    """One replica: a latency spec, its memory, its policy, and how memory is given out."""

    latency: str
    kv_tokens: int
    policy: str
    model: str
    hardware: str
    tp: int
    kv: str = "paged"

    def simulator(self) -> Simulator:
        """The simulator of it."""
        made = make(
            "backends", "sim", model=self.model, hardware=self.hardware, tp=self.tp, latency=self.latency,
            policy=self.policy, kv=self.kv, kv_blocks=max(2, self.kv_tokens // BLOCK_TOKENS), log_steps=False,
        )  # fmt: skip
        return cast("Simulator", made)


@dataclass(frozen=True, slots=True, eq=False)
class Times:
    """(requests,) seconds, and tokens of prompts and answers per second over the whole load."""

    ttft_s: np.ndarray
    tpot_s: np.ndarray
    tokens_per_s: float


def run(load: Load, server: Simulator, seed: int = 0, most: int = MOST) -> Times:
    """TTFT and TPOT of all requests of a load, of which `most` are simulated."""
    count = min(load.rounds * load.clients, max(most, load.clients))
    rng = np.random.default_rng(seed)
    prompts = _drawn(rng, load.prompt, load.spread, count, 1)
    outputs = _drawn(rng, load.output, load.spread, count, 2)
    left = iter(range(min(load.clients, count), count))

    def follow(record: RequestRecord) -> Iterator[Request]:
        at_s = record.token_s[-1] if len(record.token_s) else record.scheduled_s
        for i in left:
            yield Request(i, at_s, prompts[i], outputs[i])
            return

    first = [Request(i, 0.0, prompts[i], outputs[i]) for i in range(min(load.clients, count))]
    records = [r for r in server.simulate(first, follow) if len(r.token_s) > 1]
    ttft_s = np.array([r.token_s[0] - r.scheduled_s for r in records])
    tpot_s = np.array([(r.token_s[-1] - r.token_s[0]) / (len(r.token_s) - 1) for r in records])
    ended_s = max((r.token_s[-1] for r in records), default=np.nan)
    return Times(ttft_s, tpot_s, float((sum(prompts) + sum(outputs)) / ended_s))


def _drawn(rng: np.random.Generator, most: int, spread: float, count: int, least: int) -> list[int]:
    drawn: list[int] = np.maximum(least, (most * (1 - spread * rng.random(count))).astype(int)).tolist()
    return drawn

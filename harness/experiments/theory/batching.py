"""What a latency model says of batches: throughput of a step, chunks of a prompt, drafts, and decode steps of an SLO.

Sources: Leviathan et al., "Fast Inference from Transformers via Speculative Decoding", ICML 2023 (drafts that are
accepted independently); Agrawal et al., Sarathi-Serve, OSDI 2024, section 5.1 and table 3 (SLOs).
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from harness.api import LatencyModel
from harness.data.codec import Number, Part

BATCH, CONTEXT_TOKENS = 32, 4096
"""The decode step that is counted: sequences, and tokens of context of each (Sarathi-Serve, section 5.1)."""


def prefill_tokens_per_s(latency: LatencyModel, batch: int, length: int) -> float:
    """Prompt tokens per second of steps that prefill `batch` prompts of `length` tokens, a pipeline one per stage."""
    return batch * length / latency.step_s([(length, 0)] * batch, 0, 0)


def decode_tokens_per_s(latency: LatencyModel, batch: int, context: int) -> float:
    """Output tokens per second of decode steps of `batch` sequences with `context` cached tokens each."""
    return batch / latency.decode_s(batch, batch * context)


@dataclass(frozen=True, slots=True)
class Chunked:
    """A prompt of `prompt` tokens in `chunks` pieces: `reloads` chunk-loads of KV that earlier pieces wrote."""

    prompt: int
    chunk: int
    chunks: int
    reloads: int
    whole_s: float
    chunked_s: float

    @property
    def ratio(self) -> float:
        """How many times as long as in one piece."""
        return self.chunked_s / self.whole_s


def chunked(latency: LatencyModel, prompt: int, chunk: int) -> Chunked:
    """A prompt alone on a replica, in pieces of at most `chunk` tokens and in one.

    Each piece reads the KV of all before it, N (N - 1) / 2 chunk-loads in N pieces (DistServe, section 2.3).
    """
    starts: Sequence[int] = range(0, prompt, chunk)
    pieces = [(min(chunk, prompt - start), start) for start in starts]
    return Chunked(
        prompt, chunk, len(pieces), len(pieces) * (len(pieces) - 1) // 2, latency.step_s([(prompt, 0)], 0, 0),
        sum(latency.step_s([piece], 0, 0) for piece in pieces),
    )  # fmt: skip


def tokens_per_step(drafts: int, accepted: float) -> float:
    """Mean tokens of a step that verifies `drafts` tokens, each accepted with probability `accepted`."""
    return drafts + 1.0 if accepted == 1 else (1 - accepted ** (drafts + 1)) / (1 - accepted)


def speed_up(drafts: int, accepted: float, cost: float) -> float:
    """Of one sequence, where verification takes as long as a decode and a draft `cost` of it."""
    return tokens_per_step(drafts, accepted) / (1 + drafts * cost)


def batched_speed_up(
    latency: LatencyModel, batch: int, context: int, drafts: int, accepted: float, cost: float
) -> float:
    """Of `batch` sequences by a latency model: each step verifies drafts + 1 tokens of every sequence."""
    plain_s = latency.decode_s(batch, batch * context)
    verify_s = latency.step_s([(drafts + 1, context)] * batch, 0, 0)
    return tokens_per_step(drafts, accepted) * plain_s / (verify_s + drafts * cost * plain_s)


class Published(Part, frozen=True):
    """The SLOs of a model and its hardware as they were published: p99 of ITL in seconds."""

    title: str
    strict_s: Number
    relaxed_s: Number


@cache
def published() -> Mapping[str, Published]:
    """Sarathi-Serve's table 3 by model."""
    rows = tomllib.loads(Path(__file__).with_name("sarathi.toml").read_text(encoding="utf-8"))
    return MappingProxyType({model: Published(**row) for model, row in rows.items()})


def decode_step_s(
    latency: LatencyModel, *, batch: int = BATCH, context: int = CONTEXT_TOKENS, stages: int = 1
) -> float:
    """Seconds from token to token of `batch` sequences with `context` tokens each, with nothing else in the batch.

    A batch passes `stages` pipeline stages, each as long as the latency model says.
    """
    return stages * latency.decode_s(batch, batch * context)

"""What a latency model says of batches: the knee of prefill and decode, and what chunks cost."""

from collections.abc import Sequence
from dataclasses import dataclass

from harness.api import LatencyModel


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

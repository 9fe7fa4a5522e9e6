"""Speculative decoding: tokens per step and speed-up of drafts that are accepted independently.

Source: Leviathan et al., "Fast Inference from Transformers via Speculative Decoding", ICML 2023.
"""

from harness.api import LatencyModel


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

"""Predicted memory: the peak of a set of sequences with estimated output lengths."""

from collections.abc import Iterable, Iterator

from backends.serving.batch import Sequence
from backends.serving.replica import Replica


def with_candidate(replica: Replica, candidate: Sequence) -> Iterator[Sequence]:
    """The candidate, and all that hold memory already."""
    yield candidate
    yield from replica.all_holders()


def held_tokens(seq: Sequence) -> int:
    """Tokens of prompt and output so far: what is stored, or will be once the prompt has run."""
    return seq.prompt + seq.emitted


def peak_tokens(futures: Iterable[tuple[int, int]], rounding: int = 0) -> int:
    """Most tokens stored at any time by sequences of (tokens held, tokens still to come) that all go on together.

    Memory is fullest just before a sequence ends; `rounding` is what the last block of each may waste. Source: the
    documentation of LightLLM (ModelTC/lightllm), Past-Future scheduler.
    """
    held = peak = 0
    for count, (own, rest) in enumerate(sorted(futures, key=_rest, reverse=True), 1):
        held += own
        peak = max(peak, held + count * (rest + rounding))
    return peak


def _rest(future: tuple[int, int]) -> int:
    return future[1]


def capacity_tokens(replica: Replica) -> int:
    """Tokens that fit the KV memory."""
    return replica.blocks.total * replica.blocks.size


def peak_fits(replica: Replica, futures: Iterable[tuple[int, int]], share: float = 1.0) -> bool:
    """Whether the peak stays within `share` of the memory."""
    return peak_tokens(futures, replica.blocks.size - 1) <= capacity_tokens(replica) * share

"""What several steps run, for latency models that know the parts of steps."""

from collections.abc import Sequence

import numpy as np

from harness.api import StepLoads


def loads_of(*steps: tuple[Sequence[tuple[int, int]], int, int]) -> StepLoads:
    """Steps as `step_s` takes them."""
    prefills, seqs, context = zip(*steps, strict=True)
    step = np.repeat(np.arange(len(steps)), [len(pieces) for pieces in prefills])
    new, stored = np.array([piece for pieces in prefills for piece in pieces], np.int64).reshape(-1, 2).T
    return StepLoads(np.array(seqs), np.array(context), step, new, stored)


def total(loads: StepLoads, of_pieces: np.ndarray) -> np.ndarray:
    """(n,) sums over the pieces of each step, of their type."""
    return np.bincount(loads.step, of_pieces, len(loads.decode_seqs)).astype(of_pieces.dtype, copy=False)


def largest(loads: StepLoads, of_pieces: np.ndarray) -> np.ndarray:
    """(n,) the largest of the pieces of each step, 0 where it has none."""
    found = np.zeros(len(loads.decode_seqs), of_pieces.dtype)
    np.maximum.at(found, loads.step, of_pieces)
    return found

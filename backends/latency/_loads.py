"""What several steps run, for latency models that know the parts of steps."""

import numpy as np

from harness.api import StepLoads


def total(loads: StepLoads, of_pieces: np.ndarray) -> np.ndarray:
    """(n,) sums over the pieces of each step, of their type."""
    return np.bincount(loads.step, of_pieces, len(loads.decode_seqs)).astype(of_pieces.dtype, copy=False)


def largest(loads: StepLoads, of_pieces: np.ndarray) -> np.ndarray:
    """(n,) the largest of the pieces of each step, 0 where it has none."""
    found = np.zeros(len(loads.decode_seqs), of_pieces.dtype)
    np.maximum.at(found, loads.step, of_pieces)
    return found

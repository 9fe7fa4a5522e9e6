"""Steps in the form that latency models with parts of steps take."""

from collections.abc import Sequence

import numpy as np

from harness.api import StepLoads


def loads_of(*steps: tuple[Sequence[tuple[int, int]], int, int]) -> StepLoads:
    """Steps as `step_s` takes them."""
    prefills, seqs, context = zip(*steps, strict=True)
    step = np.repeat(np.arange(len(steps)), [len(pieces) for pieces in prefills])
    new, stored = np.array([piece for pieces in prefills for piece in pieces], np.int64).reshape(-1, 2).T
    return StepLoads(np.array(seqs), np.array(context), step, new, stored)

"""Arrival times from independent gaps."""

from collections.abc import Callable, Iterator

import numpy as np

CHUNK = 4096  # gaps drawn at once, whatever the caller takes, so that nobody's chunks change the stream


def times_from(gaps: Callable[[int], np.ndarray]) -> Iterator[float]:
    """Endless arrival times (s): running sums of `gaps(n)`; the first gap comes before the first arrival."""
    last_s = 0.0
    while True:
        chunk = gaps(CHUNK)
        chunk[0] += last_s
        times = np.cumsum(chunk).tolist()
        last_s = times[-1]
        yield from times

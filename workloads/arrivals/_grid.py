"""Arrivals whose rate is given on a grid of equal steps: a renewal process in operational time, many steps at once.

The same idea as `_operational.py` (a gap under way when the rate changes is stretched or shortened), for rates that
change every few seconds: whole blocks of steps are turned into times together, so that a million arrivals take a
fraction of a second.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from workloads.arrivals._operational import CHUNK, Gaps


def times_on_grid(step_s: float, rates_rps: Iterable[np.ndarray], gaps: Gaps) -> Iterator[np.ndarray]:
    """Blocks of arrival times (s), one for each block of rates; each rate holds for `step_s`, 0 is allowed.

    Ends when the rates do. `gaps(n)` draws n gaps of mean 1. The stream does not depend on how much is taken.
    """
    steps = 0  # before this block
    waiting = np.cumsum(gaps(CHUNK))  # operational times of the next arrivals, from the start of the block
    for rates in rates_rps:
        reached = np.concatenate([[0.0], np.cumsum(rates)]) * step_s  # (N + 1,) operational time at each edge
        while waiting[-1] <= reached[-1]:
            waiting = np.concatenate([waiting, waiting[-1] + np.cumsum(gaps(CHUNK))])
        inside = int(np.searchsorted(waiting, reached[-1]))
        edges = (steps + np.arange(len(rates) + 1)) * step_s
        yield np.interp(waiting[:inside], reached, edges)
        waiting = waiting[inside:] - reached[-1]
        steps += len(rates)

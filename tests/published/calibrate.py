"""Constants of a latency model found through the simulator, from what was measured of whole runs."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from scipy.optimize import least_squares

STEPS = (0.1, 0.03)
"""Relative steps over which slopes are taken, one search after the other. Note: a simulated mean jumps a little where
a request slips into another batch; slopes over 0.1 % see the jumps and stop the search anywhere."""
TRIES = 10


def calibrated(
    start: Mapping[str, float],
    errors: Callable[[dict[str, float]], Sequence[float]],
    most: Mapping[str, float],
    steps: Sequence[float] = STEPS,
) -> dict[str, float]:
    """The constants, all above 0 and at most `most` where it names them, with the least sum of squared `errors`.

    The search begins at `start` and is over the logarithm of each constant.
    """
    names = [*start]

    def constants(logs: np.ndarray) -> dict[str, float]:
        values = (start[name] * float(np.exp(log)) for name, log in zip(names, logs, strict=True))
        return {name: min(value, most.get(name, value)) for name, value in zip(names, values, strict=True)}

    def residuals(logs: np.ndarray) -> np.ndarray:
        return np.array(errors(constants(logs)))

    found = np.zeros(len(names))
    for step in steps:
        slopes = partial(_slopes, residuals, step)
        found = least_squares(residuals, found, jac=slopes, xtol=1e-4, ftol=1e-4, max_nfev=TRIES).x
    return constants(found)


def _slopes(residuals: Callable[[np.ndarray], np.ndarray], step: float, at: np.ndarray) -> np.ndarray:
    """(errors, constants) slopes over `step` to both sides."""
    columns = []
    for place in range(len(at)):
        moved = np.zeros(len(at))
        moved[place] = step
        columns.append((residuals(at + moved) - residuals(at - moved)) / (2 * step))
    return np.array(columns).T

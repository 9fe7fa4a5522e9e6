"""Least squares with constants that are not negative: relative errors, few outliers, and a word on what is not known.

A constant that the rows do not tell from the others is refused, never guessed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.errors import UsageError

ROUNDS = 8
"""Rounds of weights: one over the prediction, less for rows that are far off."""

FAR = 10.0
"""A row that is off by more usual errors than this counts less (Huber, 1964); fewer would lose the mean of a machine
that is now and then late."""

USUAL = 0.02
"""The smallest usual relative error that is assumed, so that steps which no form meets still pull at it."""

BLIND = 1e-4
"""Smallest singular value, of the largest, at which columns of length 1 still count as different."""


@dataclass(frozen=True, slots=True)
class Solution:
    """Constants by name, half the width of their 95 % intervals, and the mean squared relative error."""

    values: Mapping[str, float]
    plus_minus: Mapping[str, float]
    loss: float


def solve(columns: Mapping[str, np.ndarray], seconds: np.ndarray, fixed: Mapping[str, float]) -> Solution:
    """The constants for which the columns, each times its constant, add up to `seconds`; `fixed` are known before.

    Raises UsageError where the rows do not identify a constant.
    """
    free = {name: column for name, column in columns.items() if name not in fixed}
    known = sum((columns[name] * value for name, value in fixed.items() if name in columns), np.zeros(len(seconds)))
    matrix = np.stack([*free.values()], axis=1) if free else np.zeros((len(seconds), 0))  # (rows, constants)
    identify([*free], matrix / seconds[:, None])
    found, weights = _weighted(matrix, seconds - known, seconds)
    predicted = np.maximum(matrix @ found + known, 1e-12)
    errors = (predicted - seconds) / predicted
    spread = _spread(matrix * weights[:, None], (seconds - known - matrix @ found) * weights)
    values = {**dict(zip(free, found.tolist(), strict=True)), **{n: v for n, v in fixed.items() if n in columns}}
    loss = float(np.mean(np.minimum(np.abs(errors), FAR * _usual(np.abs(errors))) ** 2))
    return Solution(values, dict(zip(free, spread.tolist(), strict=True)), loss)


def estimate(matrix: np.ndarray, seconds: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(constants,) as `solve` finds them, and their half widths, also where rows do not identify them.

    `known` is the part of each row's seconds that comes of constants that are given.
    """
    identified = np.flatnonzero(np.abs(matrix).sum(axis=0))
    found, spread = np.zeros(matrix.shape[1]), np.full(matrix.shape[1], np.nan)
    found[identified], weights = _weighted(matrix[:, identified], seconds - known, seconds)
    left = (seconds - known - matrix @ found) * weights
    spread[identified] = _spread(matrix[:, identified] * weights[:, None], left)
    return found, spread


def _weighted(matrix: np.ndarray, target: np.ndarray, seconds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    from scipy.optimize import nnls  # heavy

    weights = 1 / seconds
    found = np.zeros(matrix.shape[1])
    for _ in range(ROUNDS if matrix.shape[1] else 0):
        scale = np.linalg.norm(matrix * weights[:, None], axis=0)
        q, r = np.linalg.qr(matrix * weights[:, None] / scale)
        found = nnls(r, q.T @ (target * weights))[0] / scale
        predicted = np.maximum(matrix @ found + (seconds - target), 1e-3 * seconds)
        errors = np.abs(predicted - seconds) / predicted
        usual = FAR * _usual(errors)
        weights = np.sqrt(np.minimum(1, usual / np.maximum(errors, 1e-12))) / predicted
    return found, weights


def _usual(errors: np.ndarray) -> float:
    """A robust standard deviation of relative errors without sign."""
    return max(float(np.median(errors)) / 0.6745, USUAL)


def _spread(matrix: np.ndarray, left: np.ndarray) -> np.ndarray:
    """(constants,) 1.96 standard errors of a least-squares solution with these weighted columns and what they left."""
    rows, count = matrix.shape
    if not count or rows <= count:
        return np.full(count, np.nan)
    lengths = np.linalg.norm(matrix, axis=0)
    scaled = matrix / lengths  # units differ by many orders of magnitude
    covariance = np.linalg.pinv(scaled.T @ scaled) * float(left @ left) / (rows - count)
    spread: np.ndarray = 1.96 * np.sqrt(np.maximum(np.diag(covariance), 0)) / lengths
    return spread


def identify(names: Sequence[str], matrix: np.ndarray) -> None:
    """Raise UsageError unless the columns of (rows, constants) are there and differ from one another."""
    if len(matrix) < len(names) + 1:
        raise UsageError(
            f"{len(matrix)} rows cannot tell {len(names)} constants; give more steps, or fix some constants."
        )
    lengths = np.linalg.norm(matrix, axis=0)
    for name, length in zip(names, lengths, strict=True):
        if length == 0:
            raise UsageError(
                f"No row tells {name}: what it multiplies is 0 everywhere. Add rows that have it, or give it with "
                f"--fix {name}=VALUE."
            )
    if len(names) < 2:
        return
    _, values, directions = np.linalg.svd(matrix / lengths, full_matrices=False)
    if values[-1] < BLIND * values[0]:
        mixed = [name for name, share in zip(names, np.abs(directions[-1]), strict=True) if share > 0.1]
        raise UsageError(
            f"The rows do not tell {' and '.join(mixed)} apart: what they multiply moves together. Add rows with other "
            f"loads (batch sizes, lengths), or give one of them, such as --fix {mixed[-1]}=VALUE."
        )

"""Least squares with constants that are not negative: relative errors, few outliers, and a word on what is not known.

How far a fit is off on rows that it did not see.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from harness.api import LatencyModel
from harness.errors import UsageError
from harness.experiments.fit.fit_json import Score
from harness.experiments.fit.steps import LEAST_KNOWN, Rows

ROUNDS = 8
"""Rounds of weights: one over the prediction, less for rows that are far off."""
FAR = 10.0
"""A row that is off by more usual errors than this counts less (Huber, 1964); fewer would lose the mean of a machine
that is now and then late."""
USUAL = 0.02
"""The smallest usual relative error that is assumed, so that steps which no form meets still pull at it."""
BLIND = 1e-4
"""Smallest singular value, of the largest, at which columns of length 1 still count as different."""

BLOCK = 20
"""Neighbouring steps, much alike, are held out together."""
MOST = 40_000
"""Most rows that are fitted, and that are scored: a sample beyond."""


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
    fixed_s = sum((columns[name] * value for name, value in fixed.items() if name in columns), np.zeros(len(seconds)))
    matrix = np.stack([*free.values()], axis=1) if free else np.zeros((len(seconds), 0))  # (rows, constants)
    identify([*free], matrix / seconds[:, None])
    fitted, weights = _weighted(matrix, seconds - fixed_s, seconds)
    predicted = np.maximum(matrix @ fitted + fixed_s, 1e-12)
    errors = (predicted - seconds) / predicted
    spread = _spread(matrix * weights[:, None], (seconds - fixed_s - matrix @ fitted) * weights)
    values = {**dict(zip(free, fitted.tolist(), strict=True)), **{n: v for n, v in fixed.items() if n in columns}}
    loss = float(np.mean(np.minimum(np.abs(errors), FAR * _usual(np.abs(errors))) ** 2))
    return Solution(values, dict(zip(free, spread.tolist(), strict=True)), loss)


def estimate(matrix: np.ndarray, seconds: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(constants,) as `solve` finds them, and their half widths, also where rows do not identify them.

    `known` is the part of each row's seconds that comes of constants that are given.
    """
    identified = np.flatnonzero(np.abs(matrix).sum(axis=0))
    fitted, spread = np.zeros(matrix.shape[1]), np.full(matrix.shape[1], np.nan)
    fitted[identified], weights = _weighted(matrix[:, identified], seconds - known, seconds)
    residuals = (seconds - known - matrix @ fitted) * weights
    spread[identified] = _spread(matrix[:, identified] * weights[:, None], residuals)
    return fitted, spread


def _weighted(matrix: np.ndarray, target: np.ndarray, seconds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    from scipy.optimize import nnls  # heavy

    weights = 1 / seconds
    fitted = np.zeros(matrix.shape[1])
    for _ in range(ROUNDS if matrix.shape[1] else 0):
        scale = np.linalg.norm(matrix * weights[:, None], axis=0)
        q, r = np.linalg.qr(matrix * weights[:, None] / scale)
        fitted = nnls(r, q.T @ (target * weights))[0] / scale
        predicted = np.maximum(matrix @ fitted + (seconds - target), 1e-3 * seconds)
        errors = np.abs(predicted - seconds) / predicted
        usual = FAR * _usual(errors)
        weights = np.sqrt(np.minimum(1, usual / np.maximum(errors, 1e-12))) / predicted
    return fitted, weights


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


def split(rows: Rows, share: float, seed: int) -> tuple[Rows, Rows]:
    """(seen, unseen) rows: a `share` of the blocks of neighbouring rows is held out, drawn with `seed`."""
    block = BLOCK if len(rows) >= 10 * BLOCK else 1
    count = -(-len(rows) // block)
    held = np.random.default_rng(seed).permutation(count)[: max(1, round(share * count))]
    unseen = np.isin(np.arange(len(rows)) // block, held)
    if unseen.all():
        raise UsageError(f"{len(rows)} rows are too few to hold some out; give more steps.")
    return rows.take(~unseen), rows.take(unseen)


def sample(rows: Rows, seed: int) -> Rows:
    """At most `MOST` of the rows, drawn with `seed`."""
    if len(rows) <= MOST:
        return rows
    return rows.take(np.sort(np.random.default_rng(seed).choice(len(rows), MOST, replace=False)))


def scores(rows: Rows, model: LatencyModel, seed: int, front_s: float = 0.0) -> list[Score]:
    """The errors of a latency model on all rows, on steps of decodes alone, and on steps with prompts.

    `front_s` is what steps with prompts take beyond the model.
    """
    rows = sample(with_pairs(rows), seed)
    predicted = predict(rows, model) + front_s * (rows.tokens > 0)
    kinds = (("all", rows.tokens >= 0), ("decodes alone", rows.tokens == 0), ("with prompts", rows.tokens > 0))
    by_kind = [score(kind, rows.seconds[mask], predicted[mask]) for kind, mask in kinds]
    return [scored for scored in by_kind if scored is not None]


def with_pairs(rows: Rows) -> Rows:
    """The rows whose pairs are known; where few are, all, each with one prompt (such a fit has no square term)."""
    has_pairs = np.isfinite(rows.pairs)
    prompts = rows.tokens > 0
    if not prompts.any() or has_pairs[prompts].mean() >= LEAST_KNOWN:
        return rows.take(has_pairs)
    return replace(rows, pairs=np.where(has_pairs, rows.pairs, rows.tokens**2))


def predict(rows: Rows, model: LatencyModel) -> np.ndarray:
    """(rows,) seconds of a latency model, with pieces of prompt that have the rows' tokens and pairs."""
    columns = (rows.tokens.tolist(), rows.pairs.tolist(), rows.seqs.tolist(), rows.context.tolist())
    times = [
        model.step_s(pieces(tokens, pairs), int(seqs), context)
        for tokens, pairs, seqs, context in zip(*columns, strict=True)
    ]
    return np.array(times)


def pieces(tokens: float, pairs: float) -> Any:
    """Some (new, stored) with these sums: one piece after a prefix, or several prompts of which one differs in size."""
    if not tokens:
        return ()
    if pairs >= tokens * tokens:
        return [(tokens, (pairs / tokens - tokens) / 2)]
    count = math.ceil(tokens * tokens / pairs)
    mean = tokens / count
    more = math.sqrt(max(0.0, (pairs - tokens * mean) * (count - 1) / count))
    return [(mean + more, 0.0)] + [(mean - more / (count - 1), 0.0)] * (count - 1)


def score(kind: str, measured: np.ndarray, predicted: np.ndarray) -> Score | None:
    """The errors of predicted beside measured seconds, None where there are none."""
    if not len(measured):
        return None
    errors = np.abs(predicted - measured) / measured
    bias = float(predicted.sum() / measured.sum() - 1)
    return Score(kind, len(measured), float(errors.mean()), float(np.quantile(errors, 0.9)), bias)

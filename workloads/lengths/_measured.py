"""What the sampler of empirical lengths needs, measured on raw prompt and output lengths: see `_empirical.py`."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from workloads.lengths._empirical import EDGES, Copula, Marginal


def side_of(values: np.ndarray, stored: list[int] | None = None) -> dict[str, Any]:
    """Quantiles (inverted empirical CDF) and the means between them, of prompts or of outputs."""
    ordered = np.sort(values)
    knots = np.quantile(ordered, EDGES, method="inverted_cdf").astype(int)
    quantiles = np.delete(knots, 100)
    if stored is not None and quantiles.tolist() != stored:
        raise ValueError("the raw rows and the stored quantiles disagree")
    raw = _raw_means(ordered)
    means = _segment_means(raw, knots)
    return {
        "mean": round(float(ordered.mean()), 3),
        "quantiles": quantiles.tolist(),
        "quantile_99_9": int(knots[100]),
        "segment_means": np.round(raw if means is None else means, 6).tolist(),
        **({"shared_knots": True} if means is None else {}),
    }


def _raw_means(ordered: np.ndarray) -> np.ndarray:
    """(101,) mean of the values between neighbouring ranks."""
    sums = np.interp(EDGES * len(ordered), np.arange(len(ordered) + 1), np.concatenate([[0], np.cumsum(ordered)]))
    return np.asarray(np.diff(sums) / (np.diff(EDGES) * len(ordered)))


def _segment_means(raw: np.ndarray, knots: np.ndarray) -> np.ndarray | None:
    """(101,) mean between neighbouring knots, moved as little as needed into what the sampler can draw there.

    A segment holds the whole numbers above its lower knot up to its upper one, so that the CDF at a stored
    quantile is exact; what that moves the means is taken back from the other segments in proportion to their room.
    None where they have not room enough (few different values).
    """
    weights = np.diff(EDGES)
    low, high = np.minimum(knots[:-1] + 1, knots[1:]), knots[1:]
    low[0] = knots[0]
    means = np.clip(raw, low, high)
    excess = float(weights @ (means - raw))
    room = means - low if excess > 0 else high - means
    total = float(weights @ room)
    if total == 0 and abs(excess) > 1e-9:
        return None
    if total > 0:
        means = means - excess * room / total
    if not (np.all(means >= low - 1e-9) and np.all(means <= high + 1e-9)):
        return None
    return np.asarray(np.clip(means, low, high))


def joint_of(prompt: np.ndarray, output: np.ndarray) -> dict[str, Any]:
    """Spearman's rho and the 10 x 10 table of rank deciles, where equal values share their ranks evenly."""
    from scipy.stats import spearmanr

    rows, cols = _decile_shares(prompt), _decile_shares(output)
    return {
        "spearman": round(float(spearmanr(prompt, output).statistic), 4),
        "rank_decile_table_rows_prompt_cols_output": np.round(rows.T @ cols / len(prompt) * 1000, 3).tolist(),
    }


def _decile_shares(values: np.ndarray) -> np.ndarray:
    """(N, 10) how much of each value's rank interval lies in each decile."""
    ordered = np.sort(values)
    low = np.searchsorted(ordered, values, "left") / len(values)
    high = np.searchsorted(ordered, values, "right") / len(values)
    start = np.arange(10) / 10
    overlap = np.minimum(high[:, None], start + 0.1) - np.maximum(low[:, None], start)
    return np.asarray(np.clip(overlap, 0, None) / (high - low)[:, None])


def tilt_of(sides: Mapping[str, Any], deciles: list[list[float]], limit: int | None, spearman: float) -> float:
    """The tilt of the copula that gives the rank correlation of the list, by bisection."""
    prompt, output = Marginal.from_figures(sides["prompt"]), Marginal.from_figures(sides["output"])
    low, high = -50.0, 50.0
    for _ in range(40):
        middle = (low + high) / 2
        reached = Copula.fit(deciles, prompt, output, limit, middle).spearman(prompt, output)
        low, high = (middle, high) if reached < spearman else (low, middle)
    return round((low + high) / 2, 6)

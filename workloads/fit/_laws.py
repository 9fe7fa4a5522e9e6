"""Laws of numbers as quantiles, alone or by cells of another number, and how much of their ranks a session decides."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from harness.data.lists import Floats

_TAIL = (0.99, 0.995, 0.998, 0.999, 1.0)
_FINE = (0.0, 0.01, *np.round(np.arange(0.02, 0.99, 0.02), 2).tolist(), *_TAIL)
_COARSE = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
_RANKS = {len(grid): np.array(grid) for grid in (_FINE, _COARSE)}
LEAST_FINE = 400
"""Values from which on a law has 56 quantiles; of fewer it has 13, so that it does not hold single rows."""
LEAST_CELL = 50
"""Values in a cell, of which there are at most ten."""


def law(values: npt.NDArray[Any], weights: Floats | None = None, digits: int = 3) -> list[float]:
    """Quantiles of the values, for `at`."""
    order = np.argsort(values, kind="stable")
    mass = np.ones(len(values)) if weights is None else weights[order]
    middle = (np.cumsum(mass) - mass / 2) / mass.sum()
    ranks = np.array(_FINE if len(values) >= LEAST_FINE else _COARSE)
    return [round(float(x), digits) for x in np.interp(ranks, middle, values[order].astype(np.float64))]


def counted(reached: Floats) -> list[float]:
    """The law of a whole number of which `reached` is the share up to 0, 1, 2, ...; what is drawn has to be rounded."""
    steps = np.maximum.accumulate(reached + np.arange(len(reached)) * 1e-12)
    return [round(float(x), 3) for x in np.interp(_FINE, steps, np.arange(len(reached)) + 0.5)]


def at(knots: Sequence[float], ranks: npt.ArrayLike) -> Floats:
    """Values at ranks between 0 and 1: between quantiles linear in the inverse hyperbolic sine, so nearly log-linear.

    Raises ValueError for a list that `law` did not make.
    """
    if len(knots) not in _RANKS or (np.diff(knots) < 0).any():
        raise ValueError(f"a law must have {' or '.join(map(str, _RANKS))} quantiles that do not fall.")
    asinh = np.interp(np.asarray(ranks), _RANKS[len(knots)], np.arcsinh(np.asarray(knots, np.float64)))
    return np.asarray(np.sinh(asinh))


def by_cells(by: npt.NDArray[Any], values: npt.NDArray[Any], edges: Floats, digits: int = 3) -> dict[str, Any]:
    """Laws of the values in the cells of `by` that `edges` part."""
    cells = np.searchsorted(edges, by, side="right")
    return {"edges": edges.tolist(), "laws": [law(values[cells == i], digits=digits) for i in range(len(edges) + 1)]}


def in_cells(cells: Mapping[str, Any], by: npt.NDArray[Any], ranks: Floats) -> Floats:
    """(n,) values at ranks, by the cells of `by_cells` in which each `by` is."""
    numbers, values = np.searchsorted(cells["edges"], by, side="right"), np.zeros(len(by))
    for i, knots in enumerate(cells["laws"]):
        values[numbers == i] = at(knots, ranks[numbers == i])
    return values


def edges_of(by: Floats) -> Floats:
    """What parts the values into cells of as many each, at least 50; equal values are in one."""
    cells = max(min(len(by) // LEAST_CELL, 10), 1)
    edges = np.unique(np.quantile(by, np.arange(1, cells) / cells))
    return edges[edges > by.min()] if len(by) else edges


def wide_enough(by: npt.NDArray[Any], edges: Sequence[float]) -> Floats:
    """Those of the edges that part the values into cells of at least 50 each."""
    chosen: list[float] = []
    for edge in edges:
        inside, beyond = int(((by < edge) & (by >= (chosen[-1] if chosen else -np.inf))).sum()), int((by >= edge).sum())
        if inside >= LEAST_CELL <= beyond:
            chosen.append(edge)
    return np.array(chosen, np.float64)


def normal_scores(values: npt.NDArray[Any]) -> Floats:
    """Standard normal variates with the ranks of the values; equal values share theirs."""
    ordered = np.sort(values)
    middle = (np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right")) / 2
    return np.asarray(ndtri((middle + 0.5) / (len(values) + 1)))


def scores_in(cells: npt.NDArray[np.int64], values: npt.NDArray[Any]) -> Floats:
    """The same among the values of the same cell."""
    scores = np.zeros(len(values))
    for cell in np.unique(cells):
        scores[cells == cell] = normal_scores(values[cells == cell])
    return scores


def by_session(scores: Floats, session: npt.NDArray[np.int64], sessions: int) -> tuple[dict[str, float], Floats]:
    """How scores (N,) vary between sessions and within one (one-way analysis of variance), and the mean of each.

    `mean` is that of the sessions: scores of all rows have the mean 0, and long sessions may have others than short
    ones. Means (sessions,) are NaN where a session has no score.
    """
    counts = np.bincount(session, minlength=sessions)
    with np.errstate(invalid="ignore", divide="ignore"):
        means = np.bincount(session, scores, minlength=sessions) / counts
    inside = float(((scores - means[session]) ** 2).sum() / max((counts - 1)[counts > 1].sum(), 1))
    repeated = counts > 1
    spread = float(np.var(means[repeated]) - inside * np.mean(1 / counts[repeated])) if repeated.sum() > 2 else 0.0
    session_means = means[counts > 0]
    effect = {"mean": float(session_means.mean()) if len(session_means) else 0.0, "between": max(spread, 0.0) ** 0.5}
    return {**{k: round(v, 4) for k, v in effect.items()}, "within": round(inside**0.5, 4)}, means

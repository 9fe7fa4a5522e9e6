"""Turns and think times of the conversations of a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from harness.quantiles import quantiles

if TYPE_CHECKING:
    import pyarrow as pa


def of(table: pa.Table) -> dict[str, Any]:
    """Number of conversations, their turns, and the time (s) from one request of a conversation to the next."""
    turns, think_s = series(table)
    return {
        "conversations": len(turns),
        "requests": int(turns.sum()),
        "single_share": float((turns == 1).mean()) if len(turns) else None,
        "turns": _at(turns, (0.5, 0.75, 0.9, 0.99, 1.0)) | {"mean": float(turns.mean())} if len(turns) else None,
        "think_s": _at(think_s, (0.1, 0.5, 0.9, 0.99)) if len(think_s) else None,
        "think_below_300_s": float((think_s < 300).mean()) if len(think_s) else None,
    }


def series(table: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """(conversations,) requests of each, and (pairs,) seconds from each request to the next of its conversation."""
    known = np.asarray(table["session"].is_valid())
    session = np.asarray(table["session"].fill_null(0))[known]
    at_s = np.asarray(table["at_s"])[known]
    order = np.argsort(session, kind="stable")  # rows are in order of time, and stay so inside a conversation
    session, at_s = session[order], at_s[order]
    _, turns = np.unique(session, return_counts=True)
    return turns, np.diff(at_s)[session[1:] == session[:-1]]


def _at(values: np.ndarray, qs: tuple[float, ...]) -> dict[str, float]:
    found = quantiles(values.astype(np.float64), list(qs))
    return {"max" if q == 1 else f"p{100 * q:g}": value for q, value in zip(qs, found, strict=True)}

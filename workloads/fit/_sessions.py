"""Turns, times between turns and growth of the prompt in the sessions of a trace."""

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

LEAST = 20  # sessions of two turns or more, below which nothing is reported
MOST_TURNS = 1000  # that are distinguished
RANKS = np.arange(101) / 100


class Series(NamedTuple):
    """Sessions of a trace: turns of each, and over all of them times between turns, growth, prompts and answers."""

    sizes: np.ndarray  # (S,)
    think_s: np.ndarray  # (P,) from a request to the next of its session
    growth_tokens: np.ndarray  # (P,) prompt less the prompt before it
    start_s: np.ndarray  # (S,) in order of time
    new_tokens: np.ndarray  # (N,) prompt less the prompt and the answer before it; of a first turn the prompt
    output_tokens: np.ndarray  # (N,)


def series(table: pa.Table) -> Series | None:
    """The sessions of a trace's table; None for fewer than 20 with two turns or more."""
    if "session" not in table.column_names:
        return None
    rows = np.flatnonzero(table["session"].is_valid().to_numpy())
    session = np.asarray(table["session"].take(pa.array(rows)).to_numpy())
    order = np.argsort(session, kind="stable")  # rows of a session stay in order of time
    rows, session = rows[order], session[order]
    at_s, prompt, output = (np.asarray(table[name])[rows] for name in ("at_s", "prompt_tokens", "output_tokens"))
    again = session[1:] == session[:-1]
    _, sizes = np.unique(session, return_counts=True)
    if (sizes > 1).sum() < LEAST:
        return None
    first = np.concatenate([[True], ~again])
    before = np.concatenate([[0], (prompt + output)[:-1]])
    new = prompt - np.where(first, 0, before)
    return Series(sizes, np.diff(at_s)[again], np.diff(prompt)[again], np.sort(at_s[first]), new, output)


def measure(found: Series) -> dict[str, Any]:
    """Plain data on sessions.

    `turns` [share of sessions with 1, 2, ... turns], `mean_turns`, `sessions`, and quantiles 0 to 100 % of `think_s`
    (from a request to the next of its session: a trace does not tell when answers ended), of `growth_tokens` (prompt
    less the prompt before it), and `cut_share`: turns whose prompt is no longer than the prompt and the answer before
    it, so that history was dropped. Lengths and arrivals of sessions are fitted elsewhere.
    """
    turns = np.bincount(np.minimum(found.sizes, MOST_TURNS))[1:]
    return {
        "sessions": len(found.sizes),
        "mean_turns": round(float(found.sizes.mean()), 4),
        "turns": [round(float(x), 6) for x in turns / turns.sum()],
        "think_s": _quantiles(found.think_s, 3),
        "growth_tokens": _quantiles(found.growth_tokens, 0),
        "cut_share": round(float((found.new_tokens < 1).mean()), 6),
        "think_is": "from a request to the next of its session",
    }


def _quantiles(values: np.ndarray, digits: int) -> dict[str, Any]:
    found = np.quantile(values.astype(np.float64), RANKS)
    return {"mean": round(float(values.mean()), 3), "quantiles": [round(float(x), digits) for x in found]}

"""Prompt and output lengths of a trace, as quantiles and a copula of ranks: what `workloads/lengths/` draws from."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from workloads.lengths._empirical import EDGES, Empirical, joint_of, side_of, tilt_of

MOST_JOINT = 1_000_000  # rows that the rank correlation is measured on; of more, evenly spaced ones
SPLIT = 100  # quantiles of a side, and one more at 99.9 %
_EVEN: Mapping[str, Any] = {"spearman": 0.0, "rank_decile_table_rows_prompt_cols_output": [[10.0] * 10] * 10}


def measure(prompt: np.ndarray, output: np.ndarray) -> dict[str, Any]:
    """Figures of (N,) prompts and (N,) outputs, all at least 1 token, as plain data."""
    step = -(-len(prompt) // MOST_JOINT)
    joint = joint_of(prompt[::step], output[::step]) if _vary(prompt) and _vary(output) else _EVEN
    deciles, spearman = joint["rank_decile_table_rows_prompt_cols_output"], joint["spearman"]
    sides = {"prompt": side_of(prompt), "output": side_of(output)}
    tilt = tilt_of(sides, deciles, None, spearman) if spearman else 0.0
    return {"rows": len(prompt), "spearman": spearman, "rank_deciles": deciles, "tilt": tilt, **sides}


def _vary(values: np.ndarray) -> bool:
    return bool(values.min() < values.max())


def sampler(figures: Mapping[str, Any]) -> Empirical:
    """The sampler of `measure`'s figures. Raises KeyError, TypeError or ValueError for anything else."""
    for name in ("prompt", "output"):
        _check(name, figures[name])
    deciles = np.asarray(figures["rank_deciles"], np.float64)
    if deciles.shape != (10, 10) or not np.isfinite(deciles).all() or (deciles < 0).any():
        raise ValueError("rank_deciles must be 10 x 10 numbers, none negative.")
    return Empirical.of(figures, {"rows": figures["rows"], "spearman": figures["spearman"]})


def _check(name: str, side: Mapping[str, Any]) -> None:
    knots = np.asarray([*side["quantiles"], side["quantile_99_9"]], np.float64)
    means = np.asarray(side["segment_means"], np.float64)
    if len(side["quantiles"]) != SPLIT + 1 or len(means) != len(EDGES) - 1:
        raise ValueError(f"{name} must have {SPLIT + 1} quantiles and {len(EDGES) - 1} segment_means.")
    if not (np.isfinite(knots).all() and np.isfinite(means).all() and knots.min() >= 1):
        raise ValueError(f"quantiles and segment_means of {name} must be at least 1 token.")
    if (np.diff(np.sort(knots[:-1]) - knots[:-1]) != 0).any():
        raise ValueError(f"quantiles of {name} must not fall.")


def mixed(samplers: Sequence[Empirical], which: np.ndarray, uniforms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(N,) prompt and output tokens, row i from sampler which[i], from (5, N) uniform numbers."""
    prompt, output = np.empty(len(which), np.int64), np.empty(len(which), np.int64)
    for i, figures in enumerate(samplers):
        mine = which == i
        prompt[mine], output[mine] = figures.draw(uniforms[:, mine])
    return prompt, output

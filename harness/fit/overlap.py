"""A first guess of linear constants from results of requests: who decoded beside whom was measured.

The time from the first token to the last is so many steps, each with the sequences and the context that were there on
the average, and with the prompts that came between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from harness.fit.solve import estimate, identify

if TYPE_CHECKING:
    from harness.fit.requests import Measured

NAMES = ("base_s", "prefill_token_s", "decode_seq_s", "context_token_s", "front_end_s")


@dataclass(frozen=True, slots=True)
class Guess:
    """Constants of `linear`, and half the width of the 95 % interval of each that was not given."""

    values: Mapping[str, float]
    plus_minus: Mapping[str, float]


def guess(runs: Sequence[Measured], fixed: Mapping[str, float], replicas: int = 1, *, strict: bool = False) -> Guess:
    """The constants of `linear`, not negative; `fixed` are known before.

    They are off by what an average hides. With `strict` raises UsageError where the requests do not tell a constant.
    """
    parts = [_rows(run.take(np.isfinite(run.ttft_s)), replicas) for run in runs]
    matrix, seconds = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
    there = np.isfinite(seconds) & (seconds > 0)
    matrix, seconds = matrix[there], seconds[there]
    free = [i for i, name in enumerate(NAMES) if name not in fixed]
    known = matrix @ np.array([fixed.get(name, 0.0) for name in NAMES])
    if strict:
        identify([NAMES[i] for i in free], matrix[:, free] / seconds[:, None])
    found, spread = estimate(matrix[:, free], seconds, known)
    values = {**dict(zip([NAMES[i] for i in free], found.tolist(), strict=True)), **fixed}
    widths = dict(zip([NAMES[i] for i in free], spread.tolist(), strict=True))
    return Guess({name: values[name] for name in NAMES}, widths)


def _rows(run: Measured, replicas: int) -> tuple[np.ndarray, np.ndarray]:
    """((rows, constants), (rows,) seconds): a row for the answer of each request, and one for its first token."""
    first_s = run.arrival_s + run.ttft_s
    steps = np.maximum(run.output_tokens - 1, 0)
    last_s = first_s + np.nan_to_num(run.tpot_s) * steps
    long_s = np.maximum(last_s - first_s, 1e-9)
    context = run.prompt_tokens + run.output_tokens / 2
    beside = _mean(first_s, last_s, np.ones(len(run)), first_s, last_s) / long_s / replicas
    read = _mean(first_s, last_s, context, first_s, last_s) / long_s / replicas
    between = _prompts(first_s, run.prompt_tokens, first_s, last_s) / replicas
    zeros, ones = np.zeros(len(run)), np.ones(len(run))
    answers = np.stack([steps, between, steps * beside, steps * read, zeros], axis=1)
    ahead = _prompts(first_s, run.prompt_tokens, run.arrival_s, first_s) / replicas
    firsts = np.stack([ones, np.maximum(ahead, run.prompt_tokens), zeros, zeros, ones], axis=1)
    return np.concatenate([answers, firsts]), np.concatenate(
        [np.where(steps > 0, run.tpot_s * steps, np.nan), run.ttft_s]
    )


def _mean(
    start_s: np.ndarray, end_s: np.ndarray, weight: np.ndarray, low_s: np.ndarray, high_s: np.ndarray
) -> np.ndarray:
    """(rows,) integral from low to high of the summed weights of the intervals that are open."""
    at_s = np.concatenate([start_s, end_s])
    order = np.argsort(at_s, kind="stable")
    at_s, level = at_s[order], np.cumsum(np.concatenate([weight, -weight])[order])
    area = np.concatenate([[0.0], np.cumsum(level[:-1] * np.diff(at_s))])
    both: np.ndarray = np.interp(high_s, at_s, area) - np.interp(low_s, at_s, area)
    return both


def _prompts(first_s: np.ndarray, tokens: np.ndarray, low_s: np.ndarray, high_s: np.ndarray) -> np.ndarray:
    """(rows,) prompt tokens of the requests whose first token came after low, and not after high."""
    order = np.argsort(first_s, kind="stable")
    total = np.concatenate([[0.0], np.cumsum(tokens[order])])
    places = [np.searchsorted(first_s[order], at_s, side="right") for at_s in (low_s, high_s)]
    between: np.ndarray = total[places[1]] - total[places[0]]
    return between

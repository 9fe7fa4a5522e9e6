"""Which prompts ran in which step: found again from the stamps of the requests, where a policy takes them in order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa


def pairs_of_run(columns: Mapping[str, np.ndarray], requests: pa.Table) -> np.ndarray:
    """(steps,) sum of (p+n)^2 - p^2 over the pieces of n prompt tokens after p stored ones; nan where it is not sure.

    `columns` are those of the steps, by replica and start. Prompts are laid into the steps in the order in which they
    began; a step is sure if every prompt in it began and ended when its stamps say.
    """
    pairs = np.where(columns["prefill_tokens"] > 0, np.nan, 0.0)
    names = ("replica", "prompt_tokens", "prefill_start_s", "prefill_end_s")
    asked = {name: requests[name].to_numpy(zero_copy_only=False) for name in names}
    for replica in np.unique(columns["replica"]):
        places = np.flatnonzero((columns["replica"] == replica) & (columns["prefill_tokens"] > 0))
        mine = np.flatnonzero((asked["replica"] == replica) & np.isfinite(asked["prefill_start_s"].astype(float)))
        order = mine[np.lexsort((asked["prefill_end_s"][mine], asked["prefill_start_s"][mine]))]
        steps = [columns[name][places].tolist() for name in ("prefill_tokens", "start_s", "end_s")]
        prompts = [asked[name][order].tolist() for name in names[1:]]
        pairs[places] = _laid(steps, prompts)
    return pairs


def _laid(steps: list[list[float]], prompts: list[list[float]]) -> list[float]:
    """The pairs of the steps of one replica: (tokens, start, end) and (prompt, start, end) as columns."""
    found: list[float] = []
    touched: list[list[int]] = []  # prompts of each step
    sure: dict[int, bool] = {}
    asked, started, ended = prompts
    index = stored = 0
    for tokens, start_s, end_s in zip(*steps, strict=True):
        index, stored = _resumed(index, stored, started, ended, start_s)
        left, pairs, mine = int(tokens), 0, []
        while left > 0 and index < len(asked) and (stored or started[index] <= start_s):
            if not stored:
                sure[index] = started[index] == start_s
            piece = min(left, int(asked[index]) - stored)
            pairs += piece * (piece + 2 * stored)
            left, stored = left - piece, stored + piece
            mine.append(index)
            if stored == asked[index]:
                sure[index] = sure[index] and ended[index] == end_s
                index, stored = index + 1, 0
        found.append(pairs if not left else np.nan)
        touched.append(mine)
    return [pairs if all(sure[i] for i in mine) else np.nan for pairs, mine in zip(found, touched, strict=True)]


def _resumed(index: int, stored: int, started: list[float], ended: list[float], start_s: float) -> tuple[int, int]:
    """Where to go on: after a step that was not understood, at the first prompt that begins now or later."""
    lost = index < len(started) and (ended[index] < start_s if stored else started[index] < start_s)
    if not lost:
        return index, stored
    while index < len(started) and started[index] < start_s:
        index += 1
    return index, 0

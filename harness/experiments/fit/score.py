"""How far a fit is off on rows that it did not see."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from harness.api import LatencyModel
from harness.errors import UsageError
from harness.experiments.fit.fit_json import Score
from harness.experiments.fit.steps import LEAST_KNOWN, Rows

BLOCK = 20
"""Neighbouring steps, much alike, are held out together."""

MOST = 40_000
"""Most rows that are fitted, and that are scored: a sample beyond."""


def split(rows: Rows, share: float, seed: int) -> tuple[Rows, Rows]:
    """(seen, unseen) rows: a `share` of the blocks of neighbouring rows is held out, drawn with `seed`."""
    if not 0 < share < 1:
        raise UsageError(f"--holdout must be a share between 0 and 1, got {share:g}.")
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
    rows = sample(_with_pairs(rows), seed)
    predicted = predict(rows, model) + front_s * (rows.tokens > 0)
    kinds: Mapping[str, Callable[[Rows], np.ndarray]] = {
        "all": lambda r: np.ones(len(r), bool),
        "decodes alone": lambda r: r.tokens == 0,
        "with prompts": lambda r: r.tokens > 0,
    }
    found = [score(kind, rows.seconds[mask(rows)], predicted[mask(rows)]) for kind, mask in kinds.items()]
    return [one for one in found if one is not None]


def _with_pairs(rows: Rows) -> Rows:
    """The rows whose pairs are known; where few are, all, each with one prompt (such a fit has no square term)."""
    known = np.isfinite(rows.pairs)
    prompts = rows.tokens > 0
    if not prompts.any() or known[prompts].mean() >= LEAST_KNOWN:
        return rows.take(known)
    return replace(rows, pairs=np.where(known, rows.pairs, rows.tokens**2))


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

"""From logits to the next token: greedy, or drawn with a generator of the token's own."""

from collections.abc import Sequence

import numpy as np

from harness.api import Piece

_WORD = (1 << 64) - 1


def sample(logits: np.ndarray, pieces: Sequence[Piece]) -> list[int]:
    """One token per row of `logits` (N, V), which belong to `pieces` (N,)."""
    for row, piece in enumerate(pieces):
        if piece.forbidden:
            logits[row, list(piece.forbidden)] = -np.inf
    tokens: list[int] = logits.argmax(axis=1).tolist()
    for row, piece in enumerate(pieces):
        if piece.temperature > 0:
            tokens[row] = _draw(logits[row], piece)
    return tokens


def _draw(logits: np.ndarray, piece: Piece) -> int:
    """A token of probability softmax(logits / temperature), by inversion of its distribution.

    The generator is counter-based (Philox; Salmon et al., SC 2011) and keyed by (seed, position of the new
    token): the same request gets the same random number whatever else is in the batch.
    """
    position = piece.position + len(piece.token_ids)
    key = np.array([piece.seed & _WORD, position], np.uint64)
    scaled = logits.astype(np.float64)
    scaled -= scaled.max()
    with np.errstate(over="ignore"):  # nearly greedy: far less likely tokens are minus infinity
        scaled /= piece.temperature
    weights = np.exp(scaled)
    if piece.top_p < 1:
        _keep_nucleus(weights, piece.top_p)
    total = np.cumsum(weights)
    point = np.random.Generator(np.random.Philox(key=key)).random() * total[-1]
    return min(int(np.searchsorted(total, point, side="right")), len(total) - 1)


def _keep_nucleus(weights: np.ndarray, top_p: float) -> None:
    """Set to 0 all but the likeliest tokens that together reach a share of `top_p`; ties in order of ids.

    Source: Holtzman et al., The Curious Case of Neural Text Degeneration, ICLR 2020.
    """
    order = np.argsort(-weights, kind="stable")
    reached = np.cumsum(weights[order])
    kept = int(np.searchsorted(reached, top_p * reached[-1])) + 1
    weights[order[kept:]] = 0

"""How long the requests of the clients of a ServeGen pool are.

The tokens of prompt and output are drawn each on its own, given client and time, because the pool tells no more; their
correlation is that between clients. ServeGen's own generator draws both from one number, and so pairs them perfectly.
Source: Xiang et al., ServeGen (arXiv 2505.09999), and alibaba/ServeGen @ f891d118, servegen/construct.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from harness.errors import UsageError

if TYPE_CHECKING:
    from workloads.readers._servegen import Client


@dataclass(frozen=True, slots=True)
class TokenLaws:
    """Laws of prompt and output tokens by client and window, laid end to end: law k stands in (k, k + 1]."""

    starts_s: np.ndarray  # (windows,) of all clients together
    law: np.ndarray  # (clients, windows) index
    prompt: tuple[np.ndarray, np.ndarray]  # k + cumulative probability, tokens
    output: tuple[np.ndarray, np.ndarray]
    left_out: float  # largest probability of 0 tokens that a law had; such requests are not drawn

    @classmethod
    def of(cls, clients: Sequence[Client]) -> TokenLaws:
        """Those of the clients; a window without one has that of the nearest window before, in turn.

        Raises UsageError where a client has none.
        """
        sides = ("input_tokens", "output_tokens")
        starts = sorted({w.start_s for client in clients for w in client.lengths})
        laws: list[tuple[tuple[np.ndarray, np.ndarray], ...]] = []
        index = np.zeros((len(clients), max(1, len(starts))), int)
        zeros = 0.0
        for i, client in enumerate(clients):
            known = {w.start_s: w for w in client.lengths if all(side in w.fields for side in sides)}
            if not known:
                raise UsageError(
                    f"ServeGen client {client.number} has no token counts (chunk-{client.number}-dataset.json); "
                    "take its times alone with --arrivals servegen:FOLDER and lengths with --lengths."
                )
            at = np.searchsorted(sorted(known), starts, side="right") - 1  # -1 is the last: the window before, in turn
            index[i] = len(laws) + np.where(at < 0, len(known) - 1, at)
            for start in sorted(known):
                histograms = [known[start].fields[side] for side in sides]
                pairs, zero = zip(*(_tokens(client, h.values, h.probabilities) for h in histograms), strict=True)
                laws.append(pairs)
                zeros = max(zeros, *zero)
        return cls(np.array(starts), index, _end_to_end([p for p, _ in laws]), _end_to_end([o for _, o in laws]), zeros)

    def of_requests(self, client: np.ndarray, pool_time_s: np.ndarray) -> np.ndarray:
        """(n,) law of requests of `client` (index) at this time of the pool."""
        window = np.searchsorted(self.starts_s, pool_time_s, side="right") - 1  # -1 is the last: before the first
        return np.asarray(self.law[client, window])

    def draw(self, law: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """(n,) prompts and (n,) outputs in tokens."""
        uniforms = rng.random((2, len(law)))
        sides = []
        for (edges, tokens), u in zip((self.prompt, self.output), uniforms, strict=True):
            sides.append(tokens[np.searchsorted(edges, law + u, side="right")])
        return sides[0], sides[1]

    def means(self) -> np.ndarray:
        """(laws, 2) mean prompt and output tokens of every law."""
        return np.stack([_means(*self.prompt), _means(*self.output)], axis=1)


def _tokens(
    client: Client, values: np.ndarray, probabilities: np.ndarray
) -> tuple[tuple[np.ndarray, np.ndarray], float]:
    """((cumulative, tokens), probability of 0 tokens) of one law, without the 0."""
    if np.any(values % 1):
        raise UsageError(f"ServeGen client {client.number}: token counts must be whole numbers.")
    kept = (values >= 1) & (probabilities > 0)
    if not kept.any():
        raise UsageError(f"ServeGen client {client.number}: a window holds no token count above 0.")
    cumulative = np.cumsum(probabilities[kept])
    zero = 1 - float(cumulative[-1]) if not kept.all() else 0.0
    return (cumulative / cumulative[-1], values[kept].astype(np.int64)), zero


def _end_to_end(laws: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    edges = np.concatenate([k + cumulative for k, (cumulative, _) in enumerate(laws)])
    return edges, np.concatenate([tokens for _, tokens in laws])


def _means(edges: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    law = np.ceil(edges).astype(int) - 1
    return np.bincount(law, np.diff(edges, prepend=0.0) * tokens)

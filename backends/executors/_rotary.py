"""Rotary position embedding (Su et al., RoFormer, 2021), and its stretched forms for long contexts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from backends.executors._config import Config, RopeScaling


def frequencies(config: Config) -> np.ndarray:
    """(d/2,) float64 angles per position."""
    half = np.arange(0, config.head_dim, 2) / config.head_dim
    plain: np.ndarray = config.rope_theta**-half
    scaling = config.rope_scaling
    if scaling is None:
        return plain
    return plain / scaling.factor if scaling.kind == "linear" else _llama3(plain, scaling)


def _llama3(plain: np.ndarray, scaling: RopeScaling) -> np.ndarray:
    """Slow frequencies divided by the factor, fast ones kept, those between blended (Llama 3.1, 2024)."""
    turns = scaling.original_tokens * plain / (2 * math.pi)  # over the original context
    span = scaling.high_freq_factor - scaling.low_freq_factor
    keep = np.clip((turns - scaling.low_freq_factor) / span, 0.0, 1.0)
    blended: np.ndarray = (1 - keep) * plain / scaling.factor + keep * plain
    return blended


class Rotary:
    """Rotations exp(i * position * frequency); the table grows with the longest position seen."""

    def __init__(self, config: Config, dtype: np.dtype) -> None:
        self._frequencies = frequencies(config)
        self._complex = np.dtype(np.complex64 if dtype == np.float32 else np.complex128)
        self._table = self._rows(0, 0)

    def at(self, positions: np.ndarray) -> np.ndarray:
        """(N, 1, d/2) complex rotations of `positions` (N,)."""
        have, need = len(self._table), int(positions.max()) + 1
        if need > have:
            self._table = np.concatenate([self._table, self._rows(have, max(need, 2 * have, 2048))])
        rotations: np.ndarray = self._table[positions, None]
        return rotations

    def _rows(self, start: int, stop: int) -> np.ndarray:
        angles = np.arange(start, stop)[:, None] * self._frequencies
        rows: np.ndarray = np.exp(1j * angles).astype(self._complex)
        return rows

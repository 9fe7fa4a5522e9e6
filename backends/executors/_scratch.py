"""Work arrays that are made once and used again in every step."""

import math

import numpy as np


class Scratch:
    """Named buffers that only grow; `get` hands out the front of one, with whatever it held before."""

    def __init__(self, dtype: np.dtype) -> None:
        self._dtype = dtype
        self._buffers: dict[str, np.ndarray] = {}

    def __repr__(self) -> str:
        held = sum(b.nbytes for b in self._buffers.values())
        return f"<Scratch {len(self._buffers)} buffers, {held / 2**20:.1f} MiB>"

    def get(self, name: str, *shape: int) -> np.ndarray:
        """An array of `shape` that is valid until `name` is asked for again."""
        size = math.prod(shape)
        buffer = self._buffers.get(name)
        if buffer is None or buffer.size < size:
            buffer = self._buffers[name] = np.zeros(size + size // 4, self._dtype)
        return buffer[:size].reshape(shape)

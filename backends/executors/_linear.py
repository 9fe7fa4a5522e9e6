"""Matrix products whose rows do not depend on how many rows there are.

BLAS picks its kernel, and with it the order of its sums, by the shape of the product; then the last bits of a
token's logits would depend on the batch. Three rules avoid that on OpenBLAS for x86 (tests/engine checks it):
at least two rows, sums over at most `_DEPTH` inputs at a time, and few rows times narrow strips of the matrix.
The strips also make products of few rows up to four times as fast, since OpenBLAS does not repack them.
"""

import numpy as np

from backends.executors._scratch import Scratch

_DEPTH = 256
_SMALL = 1_000_000  # OpenBLAS: up to this many multiplications a product takes the kernel without packing
_STRIPS = (256, 128, 64)


def multiply(rows: np.ndarray, matrix: np.ndarray, out: np.ndarray, scratch: Scratch) -> np.ndarray:
    """`rows` (R, K) times `matrix` (K, N) into `out` (R, N); R >= 2."""
    depth = len(matrix)
    _strips(rows[:, :_DEPTH], matrix[:_DEPTH], out)
    for start in range(_DEPTH, depth, _DEPTH):
        part = scratch.get("part", *out.shape)
        _strips(rows[:, start : start + _DEPTH], matrix[start : start + _DEPTH], part)
        out += part
    return out


def _strips(rows: np.ndarray, matrix: np.ndarray, out: np.ndarray) -> None:
    count, (depth, width) = len(rows), matrix.shape
    for strip in _STRIPS:
        if width % strip == 0 and count * depth * strip <= _SMALL:
            cut = matrix.reshape(depth, -1, strip).swapaxes(0, 1)
            np.matmul(rows, cut, out=out.reshape(count, -1, strip).swapaxes(0, 1))
            return
    np.matmul(rows, matrix, out=out)

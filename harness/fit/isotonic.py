"""Measured times by load, made to not fall: more work never takes less time."""

import numpy as np

from harness.fit.solve import FAR

MOST = 24
"""Most points of a table."""


def points(x: np.ndarray, seconds: np.ndarray) -> list[list[float]]:
    """At most `MOST` points (x, seconds), x rising and seconds not falling: means of bins, pooled where they fall."""
    cuts = np.unique(np.quantile(x, np.linspace(0, 1, MOST + 1)))
    which = np.searchsorted(cuts, x, side="right").clip(max=len(cuts) - 1) if len(cuts) > 1 else np.zeros(len(x), int)
    bins = [which == i for i in np.unique(which)]
    places = [float(np.mean(x[one])) for one in bins]
    means = []
    for one in bins:  # what is far off is brought nearer
        middle = float(np.median(seconds[one]))
        usual = float(np.median(np.abs(seconds[one] - middle))) / 0.6745
        means.append(float(np.clip(seconds[one], middle - FAR * usual, middle + FAR * usual).mean()))
    heights = _not_falling(means, [int(one.sum()) for one in bins])
    return [[place, max(height, 1e-9)] for place, height in zip(places, heights, strict=True)]


def _not_falling(values: list[float], weights: list[int]) -> list[float]:
    """Pooled adjacent violators: the nearest values that do not fall (Ayer et al., 1955)."""
    blocks: list[tuple[float, int, int]] = []  # mean, weight, values
    for value, weight in zip(values, weights, strict=True):
        mean, total, count = value, weight, 1
        while blocks and blocks[-1][0] > mean:
            before, more, values_before = blocks.pop()
            mean = (mean * total + before * more) / (total + more)
            total, count = total + more, count + values_before
        blocks.append((mean, total, count))
    return [mean for mean, _, count in blocks for _ in range(count)]

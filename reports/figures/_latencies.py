"""The latencies of requests that figures draw: names, looks and values, the same in every figure of them."""

from itertools import cycle
from typing import NamedTuple

import numpy as np

from harness.data.folder import Run
from harness.metrics.measure import in_summary
from harness.metrics.quantiles import quantile
from reports import _data
from reports.figures import _style as style


class Look(NamedTuple):
    """Name, colour, dash and marker."""

    name: str
    color: str
    dash: str
    symbol: str


_LOOKS = (
    (style.VERMILLION, "dot", "square"),
    (style.GREEN, "dash", "diamond"),
    (style.BLUE, "longdash", "cross"),
    (style.PURPLE, "solid", "circle"),
    (style.GREY, "dashdot", "triangle-up"),
    (style.VERMILLION, "longdashdot", "x"),
    (style.BLUE, "dot", "star"),
)
_LEAST = 10
"""Requests that a stretch must have for a percentile of its own."""


def looks() -> dict[str, Look]:
    """Those of the metrics that every run shows in seconds, in their order; of gaps it is the worst of each request."""
    shown = [metric for metric in in_summary() if metric.unit == "s"]
    return {m.name: Look(m.worst_title or m.label, *look) for m, look in zip(shown, cycle(_LOOKS), strict=False)}


def of_requests(run: Run, metric: str) -> np.ndarray:
    """Sorted values of the requests that ended well: of gaps the worst of each request, not each single one."""
    if not _data.pooled(metric):
        return _data.sample(run, metric)

    def worst() -> np.ndarray:
        values = _data.metric(run, metric)
        return np.sort(values[_data.answered(run) & np.isfinite(values)])

    return _data.kept(run, f"worst {metric}", worst)


def limits(run: Run, metrics: list[str]) -> dict[str, float]:
    """Bounds on every request of all classes, by metric (s)."""
    bounds = [b for b in _data.slo(run).bounds if b.tag is None and b.percentile is None and np.isfinite(b.limit)]
    return {b.metric: b.limit for b in bounds if b.metric in metrics}


def stretches(at: np.ndarray, values: np.ndarray, qs: tuple[float, ...], most: int) -> list[np.ndarray]:
    """Of stretches of equally many requests, in the order of `at`: the middle of each, then its quantiles `qs`.

    There are at most `most`, each of at least ten requests; fewer than three are none.
    """
    parts = np.array_split(np.arange(len(at)), min(most, len(at) // _LEAST)) if len(at) >= 3 * _LEAST else []
    middle = np.array([float(np.mean(at[part])) for part in parts])
    return [middle, *(np.array([quantile(values[part], q) for part in parts]) for q in qs)]

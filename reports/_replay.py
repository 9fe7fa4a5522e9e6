"""Stored requests under other bounds, for a figure of a run over the plane of two of them."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from harness.api import Slo
from harness.data.folder import Run
from harness.errors import BenchError
from harness.experiments.rescore.scale import Plane, plane
from harness.metrics.measure import missing
from harness.metrics.objective import Seen
from reports import _data

METRICS = ("ttft", "tpot")
FINE = (1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.8, 2, 2.2, 2.5, 2.8, 3, 3.5, 4, 4.5, 5, 5.5, 6, 7, 8, 9)
COARSE = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
MOST = 46
"""Bounds beyond which an axis takes the coarse steps."""
AROUND = 10.0
"""How far to both sides of the SLO's own bound an axis goes, at most, as a factor."""
WIDEST = 300.0
"""Greatest ratio of the ends of an axis that has no bound of the SLO to lie around."""


class Axis(NamedTuple):
    """One metric: rising bounds in seconds, and that of the SLO on every request of no class of its own."""

    metric: str
    limits_s: tuple[float, ...]
    own_s: float | None = None

    @property
    def place(self) -> int:
        """The position of the SLO's own bound; that behind the last one, without a bound, where it has none."""
        return len(self.limits_s) if self.own_s is None else self.limits_s.index(self.own_s)


def series(low: float, high: float, steps: Sequence[float]) -> list[float]:
    """The numbers of `steps` times powers of ten from the one below `low` to the one above `high`."""
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    numbers = [float(f"{step * 10.0**exponent:.6g}") for exponent in decades for step in steps]
    first = max(i for i, value in enumerate(numbers) if value <= low * (1 + 1e-9))
    last = min(i for i, value in enumerate(numbers) if value >= high * (1 - 1e-9))
    return numbers[first : last + 1]


def axis(seen: Seen, metric: str, own_s: float | None) -> Axis:
    """Readable bounds over all but the first and the last hundredth of the values, around the SLO's own bound."""
    values = np.empty(0) if metric in missing(seen.table) else seen.values(metric)[seen.ok]
    values = values[np.isfinite(values) & (values > 0)]
    if not len(values) and own_s is None:
        return Axis(metric, ())
    low, high = np.quantile(values, (0.01, 0.99)).tolist() if len(values) else (own_s or 1.0, own_s or 1.0)
    if own_s is None:
        low = max(low, high / WIDEST)
    else:
        low = min(max(low, own_s / AROUND), own_s / 2)
        high = max(min(high, own_s * AROUND), own_s * 2)
    fine = series(low, high, FINE)
    limits_s = {*(fine if len(fine) <= MOST else series(low, high, COARSE))} | ({own_s} if own_s else set())
    return Axis(metric, tuple(sorted(limits_s)), own_s)


@_data.once
def of_run(run: Run) -> tuple[tuple[Axis, Axis], Plane] | str:
    """A run over bounds on TTFT and TPOT, or the sentence that says why there is no such plane; kept with the run."""
    if run.requests.num_rows == 0:
        return _data.EMPTY
    seen = _data.seen(run)
    if seen.unknown("ttft") is not None:
        return "Something between held the stream back, so TTFT and TPOT are unknown."
    bounds = [bound for bound in _data.slo(run).bounds if bound.percentile is None]
    by_metric = {bound.metric: bound for bound in bounds if bound.metric in METRICS and bound.tag is None}
    ttft, tpot = (axis(seen, metric, by_metric[metric].limit if metric in by_metric else None) for metric in METRICS)
    if lacking := [_data.label(side.metric) for side in (ttft, tpot) if len(side.limits_s) < 2]:
        return f"The plane needs TTFT and TPOT of the requests; not known: {' and '.join(lacking)}."
    held = Slo(tuple(bound for bound in bounds if by_metric.get(bound.metric) != bound))
    try:
        return (ttft, tpot), plane(seen, {side.metric: side.limits_s for side in (ttft, tpot)}, held)
    except BenchError as error:
        return str(error)

"""Stored requests counted over the positions of sliders, so that a page can score a run again and come out equal.

Each request falls into the cell of the first bound on TTFT and the first on TPOT that it keeps; how many keep a pair
of bounds is then a sum of cells. What else the SLO asks, by class or on other metrics, is held as it is.
"""

from dataclasses import dataclass, replace

import numpy as np

from harness.api import Bound
from harness.errors import BenchError
from harness.folder import Run
from harness.rescore.scale import curve, first_within
from harness.slo import Seen, bound_text, score
from harness.summary import per_second_of
from reports import _data
from reports._grid import Axis, Grid, grid


@dataclass(frozen=True, slots=True, eq=False)
class Alone:
    """One axis by itself: `counts` (positions,) requests by the first bound that they keep, of `requests` it binds.

    `scaled` (factors,) is how many keep the SLO's own bound at each factor; None where the SLO has none.
    """

    requests: int
    counts: np.ndarray
    scaled: np.ndarray | None

    def shares(self) -> np.ndarray:
        """(positions,) the share of requests that keep each bound."""
        found: np.ndarray = self.counts.cumsum() / max(1, self.requests)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """A run over a grid: `counts` (TTFT positions + 1, TPOT positions + 1) of requests that keep the rest of the SLO.

    The last row and column are those that keep no bound of their axis. `scaled` (factors,) is how many keep every
    bound at each factor. `per_s` is the rate, in requests per second, that all `requests` make.
    """

    requests: int
    per_s: float
    counts: np.ndarray
    alone: tuple[Alone, Alone]
    scaled: np.ndarray

    def met(self) -> np.ndarray:
        """As `counts`, how many requests keep each pair of bounds; last row and column are without a bound."""
        found: np.ndarray = self.counts.cumsum(axis=0).cumsum(axis=1)
        return found

    def goodput_rps(self, met: np.ndarray) -> np.ndarray:
        """Counts as rates."""
        found: np.ndarray = met / max(1, self.requests) * self.per_s
        return found


def of_run(run: Run) -> tuple[Grid, Cells] | str:
    """The grid of a run and its requests over it, or the sentence that says why there are none; kept with the run."""
    if "replay" not in run.memo:
        run.memo["replay"] = _of_run(run)
    found: tuple[Grid, Cells] | str = run.memo["replay"]
    return found


def _of_run(run: Run) -> tuple[Grid, Cells] | str:
    if run.requests.num_rows == 0:
        return _data.EMPTY
    seen = _data.seen(run)
    try:
        found = grid([seen], _data.slo(run))
        return found, cells(seen, found)
    except BenchError as error:
        return str(error)


def cells(seen: Seen, grid: Grid) -> Cells:
    """A run counted over the grid. Raises UsageError for a bound on a metric that the run cannot tell."""
    gate = score(seen.table, grid.rest, seen).met
    applies = [_applies(seen, grid, axis) for axis in grid.axes]
    rows, columns = (_places(seen, axis, among) for axis, among in zip(grid.axes, applies, strict=True))
    shape = (len(grid.axes[0].limits_s) + 1, len(grid.axes[1].limits_s) + 1)
    flat = rows[gate] * shape[1] + columns[gate]
    counts = np.bincount(flat, minlength=shape[0] * shape[1]).reshape(shape)
    scaled, bounds = _scaled(seen, grid)
    first, second = (
        _alone(axis, places[among & seen.ok], int(np.count_nonzero(among)), bounds)
        for axis, places, among in zip(grid.axes, (rows, columns), applies, strict=True)
    )
    n = len(seen.ok)
    return Cells(n, per_second_of(seen.table)(n) if n else 0.0, counts, (first, second), scaled)


def _applies(seen: Seen, grid: Grid, axis: Axis) -> np.ndarray:
    """(requests,) whom the slider binds: those of no class that has a bound of its own on the metric."""
    if not axis.limits_s:
        return np.zeros(len(seen.ok), bool)
    bound = Bound(axis.metric, axis.limits_s[-1])
    found = score(seen.table, replace(grid.rest, bounds=(*grid.rest.bounds, bound)), seen)
    return next(one.applies for one in found.bounds if one.bound == bound)


def _places(seen: Seen, axis: Axis, applies: np.ndarray) -> np.ndarray:
    """(requests,) the first position whose bound each keeps, their number for none; its own bound is as it is."""
    beyond = len(axis.limits_s)
    values, own = seen.values(axis.metric), seen.own(axis.metric)
    places = first_within(values, 1.0, np.asarray(axis.limits_s, np.float64))
    if own is not None:
        places = np.where(np.isnan(own), places, np.where(values > own, beyond, 0))
    return np.where(applies, places, 0)


def _alone(axis: Axis, places: np.ndarray, requests: int, scaled: dict[str, np.ndarray]) -> Alone:
    counts = np.bincount(places, minlength=len(axis.limits_s) + 1)[: len(axis.limits_s)]
    own_s = axis.own_s
    found = None if own_s is None or not requests else scaled.get(bound_text(Bound(axis.metric, own_s)))
    return Alone(requests, counts, None if found is None else np.rint(found * requests).astype(np.int64))


def _scaled(seen: Seen, grid: Grid) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """How many requests keep everything at each factor, and the share that keeps each bound."""
    if not grid.factors or not len(seen.ok):
        return np.zeros(len(grid.factors), np.int64), {}
    found = curve(seen, grid.slo, grid.factors)
    return np.rint(found.attainment * len(seen.ok)).astype(np.int64), found.bounds

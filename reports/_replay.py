"""Stored requests counted over a grid of bounds, for figures that equal what `bench slo` prints.

Each request falls into the cell of the first bound on TTFT and the first on TPOT that it meets; how many meet a pair
of bounds is then a sum of cells. What else the SLO asks, by class or on other metrics, is held as it is.
The grid has readable bounds on TTFT and on TPOT over the range of what was measured, and SLO scales.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from harness.api import Bound, Slo
from harness.data.folder import Run
from harness.errors import BenchError, UsageError
from harness.experiments.rescore.reading import Source, sources
from harness.experiments.rescore.scale import curve, first_within
from harness.metrics.measure import missing
from harness.metrics.objective import Seen, parse_slo, restored_slo, score
from harness.metrics.summary import per_second_of
from harness.stats.curves import Crossing, crossing
from reports import _data
from reports._format import clean
from reports.study.runs import Study, System

METRICS = ("ttft", "tpot")
FINE = (1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.8, 2, 2.2, 2.5, 2.8, 3, 3.5, 4, 4.5, 5, 5.5, 6, 7, 8, 9)
COARSE = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
MOST = 46
"""Bounds beyond which an axis takes the coarse steps."""
AROUND = 10.0
"""How far to both sides of the SLO's own bound an axis goes, at most, as a factor."""
WIDEST = 300.0
"""Greatest ratio of the ends of an axis that has no bound of the SLO to lie around."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One metric: rising bounds in seconds, and after them one position without a bound.

    `start` is the position of the SLO's own bound, or the one without a bound.
    """

    metric: str
    limits_s: tuple[float, ...]
    start: int

    @property
    def own_s(self) -> float | None:
        """The bound of the SLO on every request of no class of its own; None where it has none."""
        return self.limits_s[self.start] if self.start < len(self.limits_s) else None


@dataclass(frozen=True, slots=True)
class Grid:
    """Two axes of bounds, and factors of the whole SLO.

    `slo` is the SLO without its bounds on percentiles; `rest` is what of it has no axis.
    """

    slo: Slo
    rest: Slo
    axes: tuple[Axis, Axis]
    factors: tuple[float, ...]


def grid(seen: Sequence[Seen], slo: Slo) -> Grid:
    """The positions for these runs under an SLO; its own bounds are among them."""
    bounds = tuple(b for b in slo.bounds if b.percentile is None)
    ttft, tpot = (_axis(seen, metric, _own(bounds, metric)) for metric in METRICS)
    moved = {_own(bounds, metric) for metric in METRICS}
    rest = tuple(b for b in bounds if b not in moved)
    factors = series(1 / AROUND, AROUND, FINE) if bounds else ()
    return Grid(Slo(bounds, slo.goal), Slo(rest, slo.goal), (ttft, tpot), tuple(factors))


def series(low: float, high: float, steps: Sequence[float]) -> list[float]:
    """The numbers of `steps` times powers of ten from the one below `low` to the one above `high`."""
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    every = [float(f"{step * 10.0**exponent:.6g}") for exponent in decades for step in steps]
    first = max(i for i, value in enumerate(every) if value <= low * (1 + 1e-9))
    last = min(i for i, value in enumerate(every) if value >= high * (1 - 1e-9))
    return every[first : last + 1]


def _own(bounds: Sequence[Bound], metric: str) -> Bound | None:
    """The bound on all requests that are of no class with a bound of its own."""
    return next((b for b in bounds if b.metric == metric and b.tag is None), None)


def _axis(seen: Sequence[Seen], metric: str, own: Bound | None) -> Axis:
    ends = None if any(metric in missing(s.table) for s in seen) else _ends(seen, metric)
    limit_s = None if own is None else own.limit
    if ends is None and limit_s is None:
        return Axis(metric, (), 0)
    low, high = ends or (limit_s or 1.0, limit_s or 1.0)
    if limit_s is None:
        low = max(low, high / WIDEST)
    else:
        low = min(max(low, limit_s / AROUND), limit_s / 2)
        high = max(min(high, limit_s * AROUND), limit_s * 2)
    fine = series(low, high, FINE)
    found = {*(fine if len(fine) <= MOST else series(low, high, COARSE))} | ({limit_s} if limit_s else set())
    rising = tuple(sorted(found))
    return Axis(metric, rising, len(rising) if limit_s is None else rising.index(limit_s))


def _ends(seen: Sequence[Seen], metric: str) -> tuple[float, float] | None:
    """Where all but the first and the last hundredth of the values of the runs lie; None where there are none."""
    known = []
    for s in seen:
        values = s.values(metric)
        values = values[s.ok & np.isfinite(values) & (values > 0)]
        if len(values):
            known.append(values)
    if not known:
        return None
    quantiles = np.array([np.quantile(values, (0.01, 0.99)) for values in known])
    return float(quantiles[:, 0].min()), float(quantiles[:, 1].max())


@dataclass(frozen=True, slots=True, eq=False)
class Alone:
    """One axis by itself: of the `requests` it binds `scaled` (factors,) meet the SLO's own bound at each factor.

    None where the SLO has none.
    """

    requests: int
    scaled: np.ndarray | None


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


@_data.once
def of_run(run: Run) -> tuple[Grid, Cells] | str:
    """The grid of a run and its requests over it, or the sentence that says why there are none; kept with the run."""
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
    if seen.unknown("ttft") is not None:
        raise UsageError("Something between held the stream back, so TTFT and TPOT are unknown.")
    gate = score(seen.table, grid.rest, seen).met
    applies = [_applies(seen, grid, axis) for axis in grid.axes]
    rows, columns = (_places(seen, axis, among) for axis, among in zip(grid.axes, applies, strict=True))
    shape = (len(grid.axes[0].limits_s) + 1, len(grid.axes[1].limits_s) + 1)
    flat = rows[gate] * shape[1] + columns[gate]
    counts = np.bincount(flat, minlength=shape[0] * shape[1]).reshape(shape)
    scaled, bounds = _scaled(seen, grid)
    first, second = (
        _alone(axis, int(np.count_nonzero(among)), bounds) for axis, among in zip(grid.axes, applies, strict=True)
    )
    n = len(seen.ok)
    return Cells(n, per_second_of(seen.table)(n) if n else 0.0, counts, (first, second), scaled)


def _applies(seen: Seen, grid: Grid, axis: Axis) -> np.ndarray:
    """(requests,) which the axis bounds: those whose class does not have a bound of its own on the metric."""
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


def _alone(axis: Axis, requests: int, scaled: dict[Bound, np.ndarray]) -> Alone:
    own_s = axis.own_s
    found = None if own_s is None or not requests else scaled.get(Bound(axis.metric, own_s))
    return Alone(requests, None if found is None else np.rint(found * requests).astype(np.int64))


def _scaled(seen: Seen, grid: Grid) -> tuple[np.ndarray, dict[Bound, np.ndarray]]:
    """How many requests keep everything at each factor, and the share that keeps each bound."""
    if not grid.factors or not len(seen.ok):
        return np.zeros(len(grid.factors), np.int64), {}
    found = curve(seen, grid.slo, grid.factors)
    return np.rint(found.attainment * len(seen.ok)).astype(np.int64), found.bounds


NONE = (
    "Nothing can be scored again here, because the tables of the runs are not below this folder; "
    "bench sweep keeps them in points/."
)
PERCENTILE = "A bound on a percentile of the run is not part of these shares."


@dataclass(frozen=True, slots=True, eq=False)
class Rate:
    """The runs at one rate (requests per second of the whole system), one per seed."""

    rate_rps: float
    runs: tuple[Cells, ...]

    @property
    def requests(self) -> int:
        """Measured requests of all runs: their weight."""
        return sum(run.requests for run in self.runs)

    def mean(self, of: Callable[[Cells], float | None]) -> float | None:
        """The mean over the seeds that have a value; None of none."""
        known = [value for run in self.runs if (value := of(run)) is not None]
        return math.fsum(known) / len(known) if known else None


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """A system with its rates, rising; `share` is what they are divided by for a rate per GPU."""

    name: str
    share: float
    rates: tuple[Rate, ...]

    def crossing(self, met: Callable[[Cells], int], goal: float) -> Crossing:
        """Where the mean attainment falls below a goal, as `bench sweep` and `bench slo` find it."""
        means = [rate.mean(lambda run: met(run) / run.requests) or 0.0 for rate in self.rates]
        return crossing([rate.rate_rps for rate in self.rates], means, [rate.requests for rate in self.rates], goal)


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """Systems with stored runs over one grid, to be `named` where the study has several; `slo` is the whole SLO."""

    slo: Slo
    goals: tuple[float, ...]
    grid: Grid
    systems: tuple[Scored, ...]
    unit: str
    named: bool = False

    @property
    def open(self) -> bool:
        """Whether the SLO bounds a percentile of a run, so that shares of requests do not tell whether it is kept."""
        return any(bound.percentile is not None for bound in self.slo.bounds)


@_data.once
def of_study(study: Study) -> Replay | str:
    """The runs of a study over the grid, or the sentence that says why there are none; kept with it."""
    lines = _lines(study)
    read = [(i, rate, _sources(folders)) for i, (_, points) in enumerate(lines) for rate, folders in points]
    every = [source for _, _, found in read for source in found]
    if not every:
        return NONE
    try:
        objective = restored_slo(every[0].info)
        if study.slo and clean(str(objective), 400) != study.slo:  # the runs have another SLO, or one each
            objective = parse_slo(study.slo, goal=objective.goal)
        places = grid([source.seen for source in every], objective)
        counted = [(i, Rate(rate, tuple(cells(s.seen, places) for s in found))) for i, rate, found in read]
    except BenchError as error:
        return str(error)
    systems = tuple(
        Scored(system.name, study.share(system), tuple(rate for j, rate in counted if i == j and rate.runs))
        for i, (system, _) in enumerate(lines)
    )
    named = sum(not system.again for system in study.systems) > 1
    drawn = tuple(system for system in systems if system.rates)
    return Replay(objective, study.goals or (objective.goal,), places, drawn, study.rate_unit, named)


def _lines(study: Study) -> list[tuple[System, tuple[tuple[float, tuple[Path, ...]], ...]]]:
    """Each system with its rates and the folders of its runs, where they can be read; the same runs once."""
    points = [
        (system, tuple((point.rate_rps, point.folders) for point in system.points if point.folders))
        for system in study.systems
        if not system.again
    ]
    return [(system, rates) for system, rates in points if rates]


def _sources(folders: Iterable[Path]) -> list[Source]:
    """The runs that can be read and have measured requests."""
    found = []
    for folder in folders:
        try:
            found += [source for source in sources(folder) if len(source.table)]
        except BenchError:  # the page says how many are missing
            continue
    return found

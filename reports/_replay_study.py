"""The stored runs of a study counted over the positions of sliders: read once, for all figures that ask."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from harness import slo as slos
from harness.api import Slo
from harness.errors import BenchError
from harness.rescore.reading import Source, sources
from harness.sweep.crossing import Crossing, crossing
from reports._clean import clean
from reports._facts import part
from reports._grid import Grid, grid
from reports._replay import Cells, cells
from reports._study import Study, System

KEPT = "replay"
NONE = (
    "Nothing can be scored again here, because the tables of the runs are not below this folder; "
    "bench sweep keeps them in points/."
)
PERCENTILE = "A bound on a percentile of the run is not part of these shares."


@dataclass(frozen=True, slots=True, eq=False)
class Rate:
    """The runs at one rate (requests per second of the whole system), one per seed; the queue of some grew all through.

    Of those, `overloaded` in number, a longer run would keep less.
    """

    rate_rps: float
    runs: tuple[Cells, ...]
    overloaded: int = 0

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
    """Systems over one grid, to be `named` where the study has several.

    `asked` is the whole SLO; `unread` runs could not be read and `invalid` ones prove nothing: both play no part, nor
    do systems `without` stored runs.
    """

    asked: Slo
    goals: tuple[float, ...]
    grid: Grid
    systems: tuple[Scored, ...]
    unit: str
    named: bool = False
    unread: int = 0
    invalid: int = 0
    without: int = 0

    @property
    def open(self) -> bool:
        """Whether the SLO bounds a percentile of a run, so that shares of requests do not tell whether it is kept."""
        return any(bound.percentile is not None for bound in self.asked.bounds)


def of_study(study: Study) -> Replay | str:
    """The runs of a study over the grid of sliders, or the sentence that says why there are none; kept with it."""
    if KEPT not in study.told:
        study.told[KEPT] = _read(study)
    found: Replay | str = study.told[KEPT]
    return found


def _read(study: Study) -> Replay | str:
    lines = _lines(study)
    read = [(i, rate, _sources(folders)) for i, (_, points) in enumerate(lines) for rate, folders in points]
    every = [source for _, _, found in read for source in found]
    if not every:
        return NONE
    try:
        asked = slos.restored(every[0].info)
        if study.slo and clean(slos.text(asked), 400) != study.slo:  # the runs have another SLO, or one each
            asked = slos.parse(study.slo, goal=asked.goal)
        places = grid([source.seen for source in every], asked)
        counted = [
            (i, Rate(rate, tuple(cells(s.seen, places) for s in found), _grown(found))) for i, rate, found in read
        ]
    except BenchError as error:
        return str(error)
    systems = tuple(
        Scored(system.name, study.share(system), tuple(rate for j, rate in counted if i == j and rate.runs))
        for i, (system, _) in enumerate(lines)
    )
    planned = sum(len(folders) for _, points in lines for _, folders in points)
    invalid = sum(point.invalid for system in study.systems for point in system.points)
    kept = tuple(system for system in systems if system.rates)
    named = sum(not system.again for system in study.systems) > 1
    goals, unread = study.goals or (asked.goal,), planned - len(every)
    without = sum(not system.again for system in study.systems) - len(kept)
    return Replay(asked, goals, places, kept, study.rate_unit, named, unread, invalid, without)


def _lines(study: Study) -> list[tuple[System, tuple[tuple[float, tuple[Path, ...]], ...]]]:
    """Each system with its rates and the folders of its runs, where they can be read; the same runs once."""
    points = [
        (system, tuple((point.rate_rps, point.folders) for point in system.points if point.folders))
        for system in study.systems
        if not system.again
    ]
    return [(system, rates) for system, rates in points if rates]


def _grown(found: Iterable[Source]) -> int:
    """In how many runs the queue grew all through."""
    verdicts = [part(source.info, "verdict") for source in found]
    return sum(bool(verdict.get("queue_grew", verdict.get("overloaded"))) for verdict in verdicts)


def _sources(folders: Iterable[Path]) -> list[Source]:
    """The runs that can be read and have measured requests."""
    found = []
    for folder in folders:
        try:
            found += [source for source in sources(folder) if len(source.table)]
        except BenchError:  # the page says how many are missing
            continue
    return found


def scaled(run: Cells, factor: int) -> int:
    """Requests that keep every bound times a factor of the grid."""
    return int(run.scaled[factor])


def at(run: Cells, first: int, second: int) -> int:
    """Requests that keep a bound on TTFT and one on TPOT, by position."""
    return int(np.sum(run.counts[: first + 1, : second + 1]))

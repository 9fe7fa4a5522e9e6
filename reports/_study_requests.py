"""What the requests of a study tell, beyond what its answer holds: latencies, phases and causes of misses per point."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from harness import thin
from harness.errors import BenchError
from reports import _data, _misses, _numbers, _stages
from reports._study import Point, Study

ENOUGH = 20_000
"""Requests of a point after which no further seed of it is read."""

GONE = (
    "The runs of the points are not where they were, so nothing is known of single requests; "
    "keep the folder of the sweep whole."
)
SAMPLES = ("ttft", "tpot")


@dataclass(frozen=True, slots=True, eq=False)
class Told:
    """A run after the cut of its warm-up: sorted latencies by metric, phases, and causes of misses under its SLO."""

    requests: int
    samples: Mapping[str, np.ndarray]
    shares: _stages.Shares | None
    causes: Mapping[str, int] | None


def of(study: Study, point: Point) -> list[Told]:
    """The runs of a point, seed by seed, until `ENOUGH` requests; empty where none can be read."""
    found: list[Told] = []
    for folder in point.folders:
        told = _told(study, folder)
        if told is not None:
            found.append(told)
        if sum(one.requests for one in found) >= ENOUGH:
            break
    return found


def pooled(told: Sequence[Told], metric: str) -> np.ndarray:
    """Sorted values of a metric over the runs."""
    return np.sort(np.concatenate([one.samples[metric] for one in told] or [np.empty(0)]))


def phases(told: Sequence[Told]) -> _stages.Shares | None:
    """The phases over the runs: the mean of theirs, each run counting as often as it has requests."""
    shares = [one.shares for one in told if one.shares is not None]
    if not shares or any(one.keys != shares[0].keys for one in shares):
        return None
    weights = [one.requests for one in shares]
    mean_s, percent, summed = (
        tuple(np.average([getattr(one, name) for one in shares], axis=0, weights=weights).tolist())
        for name in ("mean_s", "percent", "summed_percent")
    )
    return _stages.Shares(shares[0].keys, mean_s, percent, summed, sum(weights))


def seeds_note(study: Study, points: Sequence[Point]) -> str:
    """The sentence on seeds that were not read."""
    if all(len(point.folders) <= len(of(study, point)) for point in points):
        return ""
    return f"Of each point the first seeds are read, until {_numbers.count(ENOUGH, 'request')}."


def _told(study: Study, folder: Path) -> Told | None:
    if folder not in study.told:
        study.told[folder] = _read(folder)
    found: Told | None = study.told[folder]
    return found


def _read(folder: Path) -> Told | None:
    try:
        run = _data.measured(thin.load(folder, large=0))  # no gap between tokens is looked at
    except (BenchError, OSError, ValueError, KeyError):
        return None
    samples = {name: _data.sample(run, name) for name in SAMPLES}
    return Told(run.requests.num_rows, samples, _stages.shares(run), _misses.causes(run))

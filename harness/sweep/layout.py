"""Where the runs of a sweep stand in its folder, and which of them belong to which point of its curve."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.sweep.axes import RESCORED, SCALE, SLO, Axis, Values, points
from harness.sweep.values import plain

LONGEST = 100
"""Letters in the name of a folder; a longer one is cut."""


@dataclass(frozen=True, slots=True)
class Rescoring:
    """How a point looks at its runs: an SLO in the place of theirs (None: theirs), every bound times `scale`."""

    slo: str | None = None
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Point:
    """One combination of values; `folder` (of the sweep) holds its runs, one per seed."""

    values: Values
    folder: str
    look: Rescoring


@dataclass(frozen=True, slots=True)
class Layout:
    """The points of a sweep and the seeds of each; all of it follows from what sweep.json tells of the plan."""

    points: tuple[Point, ...]
    seeds: tuple[int, ...]

    @classmethod
    def of(cls, axes: Sequence[Axis], seeds: Sequence[int]) -> Layout:
        """The layout over these axes, the last one counting fastest."""
        found = []
        for values in points(axes):
            at = dict(values)
            look = Rescoring(at.get(SLO), float(at[SCALE]) if SCALE in at else 1.0)
            found.append(Point(values, point_folder(values), look))
        return cls(tuple(found), tuple(seeds))

    @classmethod
    def restored(cls, stored: Mapping[str, Any]) -> Layout:
        """The layout of a sweep.json."""
        axes = [Axis(axis["name"], tuple(plain(str(value)) for value in axis["values"])) for axis in stored["axes"]]
        return cls.of(axes, stored["seeds"])

    @property
    def looks(self) -> tuple[Rescoring, ...]:
        """All looks at one run."""
        return tuple(dict.fromkeys(point.look for point in self.points))

    @property
    def runs(self) -> list[str]:
        """The folders of all runs, each once."""
        return list(dict.fromkeys(run_folder(point.folder, seed) for seed in self.seeds for point in self.points))


def point_folder(values: Values) -> str:
    """Where the runs of a point stand: points/rate=1.5,policy=static; odd characters make way for dashes and a hash."""
    told = ",".join(f"{name}={text}" for name, text in values if name not in RESCORED) or "base"
    name = "".join(c if c.isascii() and (c.isalnum() or c in "-_.,=+") else "-" for c in told)[:LONGEST]
    if name != told:
        name = f"{name}-{hashlib.sha256(told.encode()).hexdigest()[:6]}"
    return f"points/{name}"


def run_folder(folder: str, seed: int) -> str:
    """Where the run of one seed stands."""
    return f"{folder}/seed-{seed}"

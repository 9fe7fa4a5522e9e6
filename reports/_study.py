"""What a curve over the rate is drawn of: systems, each with points; `reports.study` reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Info = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Spread:
    """A value over seeds: mean, 95 % interval (None where the seeds do not give one), least and greatest."""

    n: int
    mean: float
    low: float | None
    high: float | None
    least: float
    most: float

    @classmethod
    def of(cls, told: Info | None) -> Spread | None:
        """The spread that an answer tells; None of none."""
        return None if told is None else cls(*(told[name] for name in cls.__slots__))

    @property
    def ends(self) -> tuple[float, float]:
        """The interval where there is one, else the range over the seeds."""
        if self.low is None or self.high is None:
            return self.least, self.most
        return self.low, self.high


@dataclass(frozen=True, slots=True)
class Kept:
    """One bound of the SLO at a point and the share of requests that keep it.

    Of a bound on a percentile there is no share; `passed` says whether it was kept.
    """

    text: str
    metric: str
    limit_s: float
    tag: str | None
    percentile: float | None
    attainment: Spread | None
    passed: bool | None = None


@dataclass(frozen=True, slots=True)
class Point:
    """What came of all seeds at one rate (req/s for the whole system, not per GPU; of users who wait that achieved).

    `metrics` is metric -> mean, p50, p90, p99 -> spread in seconds; empty where every run was overloaded. `folders`
    are those of its runs that can still be read.
    """

    rate_rps: float
    seeds: int
    requests: int
    overloaded: int
    invalid: int
    attainment: Spread | None
    bounds: tuple[Kept, ...]
    goodput_rps: Spread | None = None
    throughput_rps: Spread | None = None
    output_tps: Spread | None = None
    metrics: Mapping[str, Mapping[str, Spread]] = field(default_factory=dict)
    folders: tuple[Path, ...] = ()

    def keeps(self, goal: float) -> bool:
        """Whether so many requests kept the SLO, no bound on a percentile broke, and no queue grew."""
        if self.overloaded or any(kept.passed is False for kept in self.bounds):
            return False
        if self.attainment is None:  # nothing was scored, or all bounds are on percentiles
            return any(kept.percentile is not None for kept in self.bounds)
        return self.attainment.mean >= goal


@dataclass(frozen=True, slots=True)
class Capacity:
    """The highest rate (req/s) that reaches a goal: `searched`, with its interval, or `interpolated`, without one.

    `rps` is None where the goal is not crossed; `said` tells why, and `side` on which side of it all rates lie.
    """

    goal: float
    rps: float | None
    low_rps: float | None
    high_rps: float | None
    how: Literal["searched", "interpolated"]
    said: str = ""
    side: Literal["above", "below"] | None = None


@dataclass(frozen=True, slots=True)
class System:
    """One line of a curve: what distinguishes it from the others, its GPUs, its points by rising rate.

    `gpus` is None where nobody tells (a server elsewhere). `slo` is what its points were scored under. `made` names it
    by what was run alone; `again` says that another system has the same runs, which were only scored otherwise.
    """

    name: str
    gpus: int | None
    points: tuple[Point, ...]
    capacities: tuple[Capacity, ...]
    slo: str = ""
    made: str = ""
    again: bool = False

    def carried(self, goal: float) -> Capacity | None:
        """What is known of its capacity at a goal."""
        return next((c for c in self.capacities if c.goal == goal), None)


@dataclass(frozen=True, slots=True)
class Study:
    """Systems to be seen together. `sources` are the stored answers (sweep.json, capacity.json).

    `slo` is empty where they were scored under several. `told` keeps what was once read of a run.
    """

    slo: str
    goals: tuple[float, ...]
    systems: tuple[System, ...]
    sources: tuple[Info, ...]
    told: dict[Path | str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def per_gpu(self) -> bool:
        """Whether rates are to be divided by GPUs: the number of each system is known."""
        return all(system.gpus for system in self.systems)

    def share(self, system: System) -> float:
        """What the rates of a system are divided by: its GPUs, or 1 where those of some system are not known."""
        return float(system.gpus or 1) if self.per_gpu else 1.0

    @property
    def rate_unit(self) -> str:
        """The unit of those rates."""
        return "req/s per GPU" if self.per_gpu else "req/s"

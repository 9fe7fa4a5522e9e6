"""What a curve over the rate is drawn of: systems, each with points; from sweeps, capacity searches or several runs."""

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


@dataclass(frozen=True, slots=True)
class Kept:
    """One bound of the SLO at a point and the share of requests that keep it; None of a bound on a percentile."""

    text: str
    metric: str
    limit_s: float
    tag: str | None
    percentile: float | None
    attainment: Spread | None


@dataclass(frozen=True, slots=True)
class Point:
    """What came of all seeds at one rate (req/s for the whole system, not per GPU).

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


@dataclass(frozen=True, slots=True)
class Capacity:
    """The highest rate (req/s) that reaches a goal: `searched`, with its interval, or `interpolated`, without one.

    `rps` is None where the goal is not crossed, and `said` tells why.
    """

    goal: float
    rps: float | None
    low_rps: float | None
    high_rps: float | None
    how: Literal["searched", "interpolated"]
    said: str = ""


@dataclass(frozen=True, slots=True)
class System:
    """One line of a curve: what distinguishes it from the others, its GPUs, its points by rising rate."""

    name: str
    gpus: float
    points: tuple[Point, ...]
    capacities: tuple[Capacity, ...]


@dataclass(frozen=True, slots=True)
class Study:
    """Systems under one SLO. `sources` are the stored answers (sweep.json, capacity.json) and run.json objects."""

    slo: str
    goals: tuple[float, ...]
    systems: tuple[System, ...]
    sources: tuple[Info, ...]

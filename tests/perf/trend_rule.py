"""The rule of `bench compare --trend` on drawn series: what it flags, when, and false alarms.

    python tests/perf/trend_rule.py [--series 100] [--flat 1000] [--length 60,180] [--seed 1]

Each series is judged every night, as a nightly job does. `ever` is the share that was flagged as worse on some night,
`end` on the last one. Last comes the median number of runs from the begin of the change to its first flag.

`gain lost` is a gain of 6 to 15 % that was never accepted, lasts 21 to 29 runs, and of which half to all is lost again;
its `end` is that of the loss. Noise `t2` has scale sd, `outliers` +20 % on 5 % of the runs, `weekend` +3 % on Saturdays
and Sundays, `sine` 2 % up and down in 30 runs, `two machines` one of them 4 % slower, each run on either.

    --series       series of each line with a change
    --flat         series of each line without one
    --length       runs of a series
"""

import argparse
import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from _options import parsed  # beside this file

from harness.experiments.compare.compare_json import TrendMetric
from harness.experiments.compare.history import METRICS, NightlyRun
from harness.experiments.compare.trend import MetricHistory, Span

NOISES = ("iid", "ar 0.5", "ar 0.8", "t2", "outliers", "weekend", "sine", "two machines")
SDS = (0.01, 0.02, 0.04)
SHAPES = ("flat", "step 5%", "step 10%", "stairs", "ramp", "creep", "episode", "gain lost")
FLAT_ONLY = ("weekend", "sine", "two machines")
TPOT = next(metric for metric in METRICS if metric.name == "tpot mean")
FIRST = dt.date(2026, 1, 1)
YEAR = 365


@dataclass(frozen=True, slots=True)
class Case:
    """A series, and the night on which its change begins."""

    values: npt.NDArray[np.float64]
    begin: int


def draw(rng: np.random.Generator, noise: str, sd: float, shape: str, length: int) -> Case:
    """One series of mean TPOT in seconds."""
    night = np.arange(length)
    at = int(rng.integers(length // 4, 3 * length // 4))
    level = np.ones(length)
    if shape.startswith("step"):
        level[at:] += float(shape.split()[1].rstrip("%")) / 100
    elif shape == "stairs":  # four of 4 %
        stairs = [length // 5 * (i + 1) + int(rng.integers(-2, 3)) for i in range(4)]
        at, level = stairs[0], np.prod([1 + 0.04 * (night >= each) for each in stairs], axis=0)
    elif shape == "ramp":  # 10 % over 20 length
        at = int(rng.integers(length // 4, length // 2))
        level += 0.1 * np.clip((night - at) / 20, 0, 1)
    elif shape == "creep":  # 19 % over 60 length
        at = 0 if length == 60 else int(rng.integers(length // 8, length // 2))
        level += 0.19 * np.clip((night - at) / 59, 0, 1)
    elif shape == "episode":  # 5 length of 15 %
        level[at : at + 5] += 0.15
    elif shape == "gain lost":
        gained = int(rng.integers(length // 4, length // 3))
        at = gained + int(rng.integers(21, 30))
        gain = rng.uniform(0.06, 0.15)
        level[gained:] -= gain
        level[at:] += gain * rng.uniform(0.5, 1)
    e = sd * (rng.standard_t(2, length) if noise == "t2" else rng.standard_normal(length))
    if noise.startswith("ar"):
        rho = float(noise.split()[1])
        for i in range(1, length):
            e[i] = rho * e[i - 1] + np.sqrt(1 - rho**2) * e[i]
    if noise == "outliers":
        e += 0.2 * (rng.random(length) < 0.05)
    if noise == "weekend":
        e += 0.03 * np.isin((night + FIRST.weekday()) % 7, (5, 6))
    if noise == "sine":
        e += 0.02 * np.sin(2 * np.pi * (night / 30 + rng.random()))
    if noise == "two machines":
        e += 0.04 * (rng.random(length) < 0.5)
    return Case(0.1 * level * np.maximum(1 + e, 0.05), at)


def answer(values: npt.NDArray[np.float64]) -> TrendMetric:
    """What the product says of it."""
    runs = [
        NightlyRun(
            name=str(night), at=(FIRST + dt.timedelta(days=night)).isoformat(), commit=None, path=Path(), exact=False,
            values={TPOT.name: float(value)}, within={}, why=None, overloaded=False, facts={}, marks={},
        )
        for night, value in enumerate(values)
    ]  # fmt: skip
    return MetricHistory(TPOT, runs, [Span(runs)]).summary()


def row(rng: np.random.Generator, noise: str, sd: float, shape: str, length: int, count: int) -> str:
    """One line of the table."""
    ever, end, until, alarms = 0, 0, [], 0
    for _ in range(count):
        case = draw(rng, noise, sd, shape, length)
        metric = answer(case.values)
        flags = [night for night, run in enumerate(metric.runs) if run.state == "worse"]
        alarms += sum(metric.runs[night - 1].state != "worse" for night in flags)
        ever += bool(flags)
        end += metric.state == "regressed"
        after = [night for night in flags if night >= case.begin]
        until += [after[0] - case.begin + 1] if after else []
    last = (
        f"{alarms * YEAR / count / length:6.2f} a year" if shape == "flat" else f"{np.median(until or [np.nan]):6.0f}"
    )
    shares = " ".join(f"{100 * each / count:6.1f}" for each in (ever, end))
    return f"{length:>4} {noise:12} {sd:4.0%}  {shape:9} {shares}  {last}"


def lines(options: argparse.Namespace) -> Iterator[str]:
    """The table; each line has random numbers of its own."""
    for length in map(int, options.length.split(",")):
        for noise in NOISES:
            for sd in SDS:
                for place, shape in enumerate(SHAPES if noise not in FLAT_ONLY else ("flat",)):
                    rng = np.random.default_rng([options.seed, length, place, NOISES.index(noise), round(100 * sd)])
                    count = options.flat if shape == "flat" else options.series
                    yield row(rng, noise, sd, shape, length, count)


def main() -> None:
    options = parsed(__doc__, series=100, flat=1000, length="60", seed=1)
    print("runs noise          sd  shape       ever    end  runs until found, or false alarms")
    for line in lines(options):
        print(line, flush=True)


if __name__ == "__main__":
    main()

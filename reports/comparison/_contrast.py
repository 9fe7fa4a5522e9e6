"""The requests of one pair of runs: curves of both sides, and which requests changed sides."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from harness.api import Bound, Slo
from harness.data.lists import number
from harness.experiments.compare.compare_json import CompareAnswer, ComparedPair
from harness.experiments.rescore import scale
from harness.experiments.rescore.reading import Source
from harness.metrics.objective import Seen, parse_slo, restored_slo
from harness.stats.seeds import CONFIDENCE, LEAST_SEEDS, student

Floats: TypeAlias = npt.NDArray[np.float64]

SCALES: Floats = np.unique(np.concatenate([np.geomspace(1 / 16, 16, 257), [1.0]]))
"""SLO scales at which attainment is taken; 1 is among them."""

TIMES_S: Floats = np.geomspace(1e-4, 1e4, 3201)
"""Latencies (s) at which shares are taken: 400 a decade, so that two of them are 0.6 % apart."""

METRICS = ("ttft", "tpot")


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """Shares of the requests of a run: within every bound, and within each, at `SCALES`; at or below `TIMES_S`.

    `crossing` is the smallest scale at which the goal is reached, None where none does. A request that failed is within
    nothing; one without a TPOT is not among those of TPOT.
    """

    attainment: Floats
    bounds: Mapping[Bound, Floats]
    crossing: float | None
    within: Mapping[str, Floats]


@dataclass(frozen=True, slots=True, eq=False)
class Contrast:
    """Both sides of pair number `pair`, and the `requests` that are the same on both.

    Of these `both`, only `base`, only `head` and `neither` met the SLO.
    """

    pair: int
    sides: tuple[Side, Side]
    requests: int
    met: Mapping[str, int]


def of(pair: ComparedPair, base: Source, head: Source, info: CompareAnswer) -> Contrast:
    """The contrast of a pair under the SLO of the comparison; of runs with SLOs of their own each under its own."""
    both = [_seen(source, float(pair.cut_s or 0.0)) for source in (base, head)]
    objectives = [
        parse_slo(info.slo, goal=info.goal) if info.slo else restored_slo(source.info) for source in (base, head)
    ]
    curves = [scale.curve(seen, slo, SCALES.tolist()) for seen, slo in zip(both, objectives, strict=True)]
    sides = [_side(seen, slo, curve) for seen, slo, curve in zip(both, objectives, curves, strict=True)]
    _, first, second = np.intersect1d(_ids(both[0]), _ids(both[1]), return_indices=True)
    base_met, head_met = curves[0].ratio[first] <= 1.0, curves[1].ratio[second] <= 1.0
    met = {
        "both": base_met & head_met,
        "base": base_met & ~head_met,
        "head": head_met & ~base_met,
        "neither": ~base_met & ~head_met,
    }
    return Contrast(pair.pair, (sides[0], sides[1]), len(first), {which: int(of.sum()) for which, of in met.items()})


def _ids(seen: Seen) -> Floats:
    return number(seen.table, "request_id")


def _seen(source: Source, cut_s: float) -> Seen:
    """The requests that count: those due from the cut of the pair on."""
    if not cut_s:
        return source.seen
    return Seen(_from(source.table, cut_s), lambda: (_from(piece, cut_s) for piece in source.seen.pieces()))


def _from(table: pa.Table, cut_s: float) -> pa.Table:
    return table.filter(pc.greater_equal(table["scheduled_s"], cut_s))


def _side(seen: Seen, slo: Slo, curve: scale.Curve) -> Side:
    ok = seen.ok
    within = {}
    for metric in METRICS:
        values = seen.values(metric)
        found = np.sort(values[ok & np.isfinite(values)])
        count = len(found) + int((~ok).sum())
        within[metric] = (
            np.searchsorted(found, TIMES_S, side="right") / count if count else np.full(len(TIMES_S), np.nan)
        )
    return Side(curve.attainment, curve.bounds, curve.crossing(slo.goal), within)


@dataclass(frozen=True, slots=True, eq=False)
class Band:
    """Mean of the curves of several pairs, both ends of its band, and what the band is (empty of one curve)."""

    mean: Floats
    low: Floats
    high: Floats
    label: str


def band(curves: Sequence[Floats]) -> Band:
    """The band is the 95 % interval of the mean from 5 pairs on (Student's t), else the range."""
    every = np.stack([np.asarray(curve, np.float64) for curve in curves])
    mean, n = every.mean(axis=0), len(every)
    if n < 2:
        return Band(mean, mean, mean, "")
    if n < LEAST_SEEDS:
        return Band(mean, every.min(axis=0), every.max(axis=0), f"range of {n} pairs")
    half = student(n) * every.std(axis=0, ddof=1) / np.sqrt(n)
    return Band(mean, mean - half, mean + half, f"{CONFIDENCE:.0%} interval of the mean of {n} pairs")

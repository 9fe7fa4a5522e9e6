"""The numbers of runs as one tidy table: a row for each run, class of traffic, metric and statistic.

Which phase made each request miss the SLO, by one rule that gives every miss one cause.

The rule: a request that failed has its status as its cause. Of any other the bound that is broken worst decides. Where
the work that the bound spans (prefill for TTFT, decode for TPOT and gaps, both for E2E) would break it by its own
share of the time, the work is the cause; otherwise the longest wait among the others that it spans.

Positions of sliders: readable bounds on TTFT and on TPOT over the range of what was measured, and SLO scales.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness.api import Bound, Slo
from harness.data.folder import Run
from harness.data.run_json import Described, Intervals, RunInfo, Summary
from harness.experiments.compare.gates import quantity
from harness.metrics.measure import metrics, missing
from harness.metrics.slo import OWN, Seen
from harness.metrics.summary import describe
from harness.validity.conclude import completed
from reports import _data, _stages
from reports._format import clean
from reports._sending import floors

MOST_CLASSES = 100
"""Classes of traffic that are listed, the largest first."""

_RATES = ("throughput_rps", "goodput_rps", "output_tps", "token_goodput_tps")
_SENT = ("requested_rps", "drawn_rps", "achieved_rps")
_STATISTICS = ("n", "mean", "std", "p50", "p90", "p99", "max")


class Row(NamedTuple):
    """One number; `traffic` is the class that it is of, None of all requests. `low` and `high` are its 95 % interval
    within the run, where the run tells one."""

    run: str
    traffic: str | None
    metric: str
    unit: str
    statistic: str
    value: float | None
    low: float | None = None
    high: float | None = None


HEADS = ("run", "class", *Row._fields[2:])
SCHEMA = pa.schema(
    [
        pa.field("run", pa.string(), nullable=False),
        pa.field("class", pa.string()),
        *(pa.field(name, pa.string(), nullable=False) for name in ("metric", "unit", "statistic")),
        *(pa.field(name, pa.float64()) for name in ("value", "low", "high")),
    ],
    metadata={"bench.table": "metrics", "bench.schema_version": "1"},
)


def rows(runs: Sequence[Run]) -> list[Row]:
    """All numbers of the runs, in their order; a killed run gives those of what it recorded."""
    return [row for run in runs for row in _of(completed(run))]


def table(runs: Sequence[Run]) -> pa.Table:
    """The same as an Arrow table."""
    columns = zip(*rows(runs), strict=True)
    return pa.Table.from_arrays([pa.array(v, f.type) for v, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def _of(run: Run) -> Iterator[Row]:
    # as it was given to the command, or the name that another tool's file has for it
    name = clean(run.info.source.name or run.path.as_posix(), None)
    summary = run.info.summary
    yield Row(name, None, "finished", "", "flag", float(run.complete))
    yield from _counts(name, run.info, summary)
    yield from _shares(name, run.info, summary)
    for metric, values in summary.metrics.items():
        within = run.info.within.metrics.get(metric, Intervals())
        yield from _statistics(name, None, metric, values, within)
    # the client's own error against a remote endpoint: half, and 99 %, of all stamps are nearer to the truth
    for metric, floor in floors(run.info).items():
        yield Row(name, None, f"client floor of {metric}", "s", "p50", floor.p50_s)
        yield Row(name, None, f"client floor of {metric}", "s", "p99", floor.p99_s)
    yield from _classes(name, _data.measured(run), summary)


def _counts(name: str, info: RunInfo, summary: Summary) -> Iterator[Row]:
    for flag, value in (("valid", info.verdict.valid), ("overloaded", info.verdict.overloaded)):
        if value is not None:
            yield Row(name, None, flag, "", "flag", float(value))
    yield Row(name, None, "requests", "requests", "count", _number(summary.requests))
    for status, n in summary.status.items():
        yield Row(name, None, f"requests {clean(status, 40)}", "requests", "count", float(n))
    for rate in _RATES:
        yield Row(name, None, rate, quantity(rate).unit, "mean", _number(getattr(summary, rate)))
    for rate in _SENT:
        if (found := _number(getattr(info.fidelity, rate))) is not None:
            yield Row(name, None, rate, "req/s", "mean", found)
    if summary.preemptions is not None:
        yield Row(name, None, "preemptions", "preemptions", "count", float(summary.preemptions))


def _shares(name: str, info: RunInfo, summary: Summary) -> Iterator[Row]:
    """Failures, attainment with its interval, and what is met of each bound."""
    yield Row(name, None, "failed", "share", "mean", _number(summary.failed))
    if not summary.bounds:
        return
    within = info.within.attainment
    ends = (None, None) if within is None else (float(within.low), float(within.high))
    yield Row(name, None, "attainment", "share", "mean", _number(summary.attainment), *ends)
    for bound in summary.bounds:
        text = clean(bound.text, 80)
        if bound.percentile is None:
            yield Row(name, None, f"met {text}", "share", "mean", _number(bound.attainment))
        else:
            yield Row(name, None, f"value of {text}", "s", f"p{bound.percentile:g}", _number(bound.value_s))


def _statistics(name: str, traffic: str | None, metric: str, values: Described, within: Intervals) -> Iterator[Row]:
    for statistic in _STATISTICS if values.n else _STATISTICS[:1]:
        low, high = getattr(within, statistic, None) or (None, None)
        of = "values" if statistic == "n" else values.unit or "s"
        yield Row(name, traffic, clean(metric, 60), of, statistic, _number(getattr(values, statistic)), low, high)


def _classes(name: str, run: Run, summary: Summary) -> Iterator[Row]:
    """Every class of traffic, where there are several: its counts, attainment, and metrics that are one a request."""
    tags = run.requests.column("tag")
    counted = Counter({row["values"]: row["counts"] for row in pc.value_counts(tags).to_pylist()})
    measured = {k: v for k, v in summary.metrics.items() if not _data.pooled(k)}
    for tag, n in counted.most_common(MOST_CLASSES) if len(counted) > 1 else []:
        traffic = "(without a class)" if tag is None else clean(tag, 80)
        ours = (pc.is_null(tags) if tag is None else pc.fill_null(pc.equal(tags, tag), False)).to_numpy()
        ok = ours & _data.answered(run)
        yield Row(name, traffic, "requests", "requests", "count", float(n))
        yield Row(name, traffic, "failed", "share", "mean", float(n - ok.sum()) / n)
        if (kept := _number(None if tag is None else summary.classes.get(tag))) is not None:
            yield Row(name, traffic, "attainment", "share", "mean", kept)
        for metric, whole in measured.items():
            values = _data.metric(run, metric)[ok]
            measured_of = describe(values[~np.isnan(values)], whole.unit)
            yield from _statistics(name, traffic, metric, measured_of, Intervals())


def _number(value: float | None) -> float | None:
    return None if value is None else float(value)


PREEMPTED = "preempted"
RULE = (
    "The bound that is broken worst decides; where the work it spans (prefill for TTFT, decode for TPOT and gaps, both "
    "for E2E) breaks it by its own share of the time, that is the cause, otherwise the longest wait; a preempted "
    "request that decoded too slowly counts as preempted."
)
_WORK = (_stages.PREFILL, _stages.FIRST, _stages.DECODE)


def causes(run: Run) -> dict[str, int] | None:
    """How many requests missed for each cause, most first: a phase, PREEMPTED, or the status of those that failed.

    None where the SLO bounds no single request. The counts add up to the requests that missed.
    """
    margins = _data.margins(run)
    if not margins:
        return None
    found = np.full(run.requests.num_rows, "", dtype=object)
    missed = _data.joint(margins) > 1.0
    failed = ~_data.answered(run)
    found[failed] = run.requests.column("status").to_numpy(zero_copy_only=False)[failed]
    stages = _stages.of(run)
    if stages is not None:
        worst = np.argmax([margin.ratio for margin in margins], axis=0)
        for i, margin in enumerate(margins):
            ours = np.flatnonzero(missed & _data.answered(run) & stages.known & (worst == i))
            found[ours] = _of_bound(run, stages, margin, ours)
    names, counts = np.unique(found[missed].astype(str), return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return {str(names[i]) or UNKNOWN: int(counts[i]) for i in order}


UNKNOWN = "unknown"
"""Cause of the requests whose stamps tell no phases."""


def _of_bound(run: Run, stages: _stages.Stages, margin: _data.Margin, ours: np.ndarray) -> np.ndarray:
    """(ours,) the cause of each of the requests `ours`, which break this bound worst."""
    spans = [key for key in metrics()[margin.bound.metric].phases or stages.keys if key in stages.keys]
    work, waits = ([key for key in spans if (key in _WORK) == is_work] for is_work in (True, False))
    seconds = {key: stages.seconds[stages.keys.index(key)][ours] for key in spans}
    total = np.maximum(sum(seconds.values()), 1e-12)
    waited, worked = (np.sum([seconds[key] for key in keys] or [0.0 * total], axis=0) for keys in (waits, work))
    enough = (margin.ratio[ours] * worked / total > 1.0) | (waited <= 0.0)
    named = np.where(enough, _longest(seconds, work or waits), _longest(seconds, waits or work))
    if _stages.DECODE in spans and "preemptions" in run.requests.column_names:
        again = _data.column(run, "preemptions")[ours] > 0
        late = np.isin(named, (_stages.HANDOFF, _stages.STALL, _stages.DECODE))
        named = np.where(again & late, PREEMPTED, named)
    found: np.ndarray = named.astype(object)
    return found


def _longest(seconds: dict[str, np.ndarray], keys: Sequence[str]) -> np.ndarray:
    """(ours,) the key of the greatest of these phases."""
    found: np.ndarray = np.array(keys)[np.argmax([seconds[key] for key in keys], axis=0)]
    return found


METRICS = ("ttft", "tpot")
FINE = (1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.8, 2, 2.2, 2.5, 2.8, 3, 3.5, 4, 4.5, 5, 5.5, 6, 7, 8, 9)
COARSE = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
MOST = 46
"""Positions beyond which a slider takes the coarse steps."""
AROUND = 10.0
"""How far to both sides of the SLO's own bound a slider goes, at most, as a factor."""
WIDEST = 300.0
"""Greatest ratio of the ends of a slider that has no bound of the SLO to lie around."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One slider: rising bounds in seconds, and after them one position without a bound.

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
    """The positions of all sliders: two axes of bounds, and factors of the whole SLO.

    `slo` is what the sliders start from, without its bounds on percentiles; `rest` is what of it no slider moves. `own`
    says that requests bring bounds along, which no slider moves either.
    """

    slo: Slo
    rest: Slo
    axes: tuple[Axis, Axis]
    factors: tuple[float, ...]
    own: bool = False


def grid(seen: Sequence[Seen], slo: Slo) -> Grid:
    """The positions for these runs under an SLO; its own bounds are among them."""
    bounds = tuple(b for b in slo.bounds if b.percentile is None)
    ttft, tpot = (_axis(seen, metric, _own(bounds, metric)) for metric in METRICS)
    moved = {_own(bounds, metric) for metric in METRICS}
    rest = tuple(b for b in bounds if b not in moved)
    factors = series(1 / AROUND, AROUND, FINE) if bounds else ()
    own = any(s.own(metric) is not None for s in seen for metric in OWN)
    return Grid(Slo(bounds, slo.goal), Slo(rest, slo.goal), (ttft, tpot), tuple(factors), own)


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

"""The numbers of runs as one tidy table: a row for each run, class of traffic, metric and statistic."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from msgspec import UNSET

from harness.data.folder import Run
from harness.data.run_json import Described, Intervals, RunInfo, Stages, Summary
from harness.metrics.summary import describe, percentiles_of
from harness.validity.conclude import completed
from reports import _data
from reports._format import clean
from reports._sending import floors
from reports._system import part

MOST_CLASSES = 100
"""Classes of traffic that are listed, the largest first."""

_RATES = ("throughput_rps", "goodput_rps", "output_tps", "token_goodput_tps")
_SENT = ("requested_rps", "drawn_rps", "achieved_rps")
SCHEMA = pa.schema(
    [
        pa.field("run", pa.string(), nullable=False),
        pa.field("class", pa.string()),
        *(pa.field(name, pa.string(), nullable=False) for name in ("metric", "unit", "statistic")),
        *(pa.field(name, pa.float64()) for name in ("value", "low", "high")),
    ],
    metadata={"bench.table": "metrics", "bench.schema_version": "1"},
)


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
    yield Row(name, None, "finished", "", "flag", int(run.complete))
    yield from _counts(name, run.info, summary)
    yield from _shares(name, run.info, summary)
    for metric, values in (*summary.metrics.items(), *summary.run_metrics.items()):
        within = run.info.within.metrics.get(metric, Intervals())
        yield from _statistics(name, None, metric, values, within)
    yield from _stages(name, _data.stages(_data.measured(run)))
    yield from _cluster(name, run.info.backend)
    # the client's own error against a remote endpoint: half, and 99 %, of all stamps are nearer to the truth
    for metric, floor in floors(run.info).items():
        yield Row(name, None, f"client floor of {metric}", "s", "p50", floor.p50_s)
        yield Row(name, None, f"client floor of {metric}", "s", "p99", floor.p99_s)
    yield from _classes(name, _data.measured(run), summary)


def _stages(name: str, stages: Stages) -> Iterator[Row]:
    """The time of the requests by stage, and the misses by cause."""
    for stage, time in stages.times.items():
        yield Row(name, None, f"stage {stage}", "s", "mean", time.mean_s)
        yield Row(name, None, f"stage {stage} share", "share", "mean", time.share)
    for cause, n in (stages.misses or {}).items():
        yield Row(name, None, f"missed by {clean(cause, 40)}", "requests", "count", n)


def _cluster(name: str, backend: Mapping[str, Any]) -> Iterator[Row]:
    """What the router of a simulated cluster did, where it acts."""
    entries = [(f"actions {clean(kind, 40)}", "actions", "count", n) for kind, n in part(backend, "actions").items()]
    for fact, metric in (("migration_downtime_s", "migration downtime"), ("router_held_s", "held by the router")):
        entries += [(metric, "s", clean(statistic, 40), value) for statistic, value in part(backend, fact).items()]
    for metric, unit, statistic, value in (*entries, ("GPU time", "s", "sum", backend.get("gpu_s"))):
        if isinstance(value, int | float):
            yield Row(name, None, metric, unit, statistic, value)


def _counts(name: str, info: RunInfo, summary: Summary) -> Iterator[Row]:
    for flag, value in (("valid", info.verdict.valid), ("overloaded", info.verdict.overloaded)):
        if value is not None:
            yield Row(name, None, flag, "", "flag", int(value))
    yield Row(name, None, "requests", "requests", "count", summary.requests)
    for status, n in summary.status.items():
        yield Row(name, None, f"requests {clean(status, 40)}", "requests", "count", n)
    for rate in _RATES:
        unit = "tokens/s" if rate.endswith("_tps") else "req/s"
        yield Row(name, None, rate, unit, "mean", getattr(summary, rate))
    for rate in _SENT:
        if (rate_rps := getattr(info.fidelity, rate)) is not None:
            yield Row(name, None, rate, "req/s", "mean", rate_rps)
    if summary.preemptions is not None:
        yield Row(name, None, "preemptions", "preemptions", "count", summary.preemptions)


def _shares(name: str, info: RunInfo, summary: Summary) -> Iterator[Row]:
    """Failures, attainment with its interval, and what is met of each bound."""
    yield Row(name, None, "failed", "share", "mean", summary.failed)
    if not summary.bounds:
        return
    within = info.within.attainment
    ends = (None, None) if within is None else (within.low, within.high)
    yield Row(name, None, "attainment", "share", "mean", summary.attainment, *ends)
    for bound in summary.bounds:
        text = clean(bound.text, 80)
        if bound.percentile is None:
            yield Row(name, None, f"met {text}", "share", "mean", bound.attainment)
        else:
            yield Row(name, None, f"value of {text}", "s", f"p{bound.percentile:g}", bound.value_s)


def _statistics(name: str, traffic: str | None, metric: str, values: Described, within: Intervals) -> Iterator[Row]:
    ranks = ("p50", "p90", "p99") if values.percentiles is UNSET else values.percentiles
    for statistic in ("n", "mean", "std", *ranks, "max") if values.n else ("n",):
        low, high = getattr(within, statistic, None) or (None, None)
        value_unit = "values" if statistic == "n" else values.unit or "s"
        yield Row(name, traffic, clean(metric, 60), value_unit, statistic, values.at(statistic), low, high)


def _classes(name: str, run: Run, summary: Summary) -> Iterator[Row]:
    """Every class of traffic, where there are several: its counts, attainment, and metrics that are one a request."""
    measured = {k: v for k, v in summary.metrics.items() if not _data.pooled(k)}
    for tag, in_class in _data.classes(run, MOST_CLASSES):
        traffic = "(without a class)" if tag is None else clean(tag, 80)
        n, ok = int(in_class.sum()), in_class & _data.answered(run)
        yield Row(name, traffic, "requests", "requests", "count", n)
        yield Row(name, traffic, "failed", "share", "mean", float(n - ok.sum()) / n)
        if (attainment := None if tag is None else summary.classes.get(tag)) is not None:
            yield Row(name, traffic, "attainment", "share", "mean", attainment)
        for metric, overall in measured.items():
            values = _data.metric(run, metric)[ok]
            measured_of = describe(values[~np.isnan(values)], overall.unit, percentiles_of(run.info.spec))
            yield from _statistics(name, traffic, metric, measured_of, Intervals())

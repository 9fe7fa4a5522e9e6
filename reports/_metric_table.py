"""The numbers of runs as one tidy table: a row for each run, class of traffic, metric and statistic."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness.compare.gates import quantity
from harness.conclude import completed
from harness.folder import Run
from harness.summary import describe
from reports import _data
from reports._clean import clean
from reports._facts import part
from reports._remote import floors

MOST_CLASSES = 100
"""Classes of traffic that are told, the largest first."""

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
    name = clean(part(run.info, "source").get("name") or run.path.as_posix(), None)
    summary = part(run.info, "summary")
    yield Row(name, None, "finished", "", "flag", float(run.complete))
    yield from _counts(name, run.info, summary)
    yield from _shares(name, run.info, summary)
    for metric, values in part(summary, "metrics").items():
        within = part(part(part(run.info, "within"), "metrics"), metric)
        yield from _statistics(name, None, metric, values, within)
    # the client's own error against a server elsewhere: half, and 99 %, of all stamps are nearer to the truth
    for metric, floor in floors(run.info).items():
        yield Row(name, None, f"client floor of {metric}", "s", "p50", floor.p50_s)
        yield Row(name, None, f"client floor of {metric}", "s", "p99", floor.p99_s)
    yield from _classes(name, _data.measured(run), summary)


def _counts(name: str, info: Mapping[str, Any], summary: Mapping[str, Any]) -> Iterator[Row]:
    verdict = part(info, "verdict")
    for flag in ("valid", "overloaded"):
        if isinstance(verdict.get(flag), bool):
            yield Row(name, None, flag, "", "flag", float(verdict[flag]))
    yield Row(name, None, "requests", "requests", "count", _number(summary.get("requests")))
    for status, n in part(summary, "status").items():
        yield Row(name, None, f"requests {clean(status, 40)}", "requests", "count", _number(n))
    for rate in _RATES:
        yield Row(name, None, rate, quantity(rate).unit, "mean", _number(summary.get(rate)))
    for rate in _SENT:
        if (value := _number(part(info, "fidelity").get(rate))) is not None:
            yield Row(name, None, rate, "req/s", "mean", value)
    if (value := _number(summary.get("preemptions"))) is not None:
        yield Row(name, None, "preemptions", "preemptions", "count", value)


def _shares(name: str, info: Mapping[str, Any], summary: Mapping[str, Any]) -> Iterator[Row]:
    """Failures, attainment with its interval, and what is met of each bound."""
    yield Row(name, None, "failed", "share", "mean", _number(summary.get("failed")))
    bounds = summary.get("bounds") or []
    if not bounds:
        return
    within = part(part(info, "within"), "attainment")
    ends = (_number(within.get("low")), _number(within.get("high")))
    yield Row(name, None, "attainment", "share", "mean", _number(summary.get("attainment")), *ends)
    for bound in bounds:
        text = clean(bound.get("text"), 80)
        if bound.get("percentile") is None:
            yield Row(name, None, f"met {text}", "share", "mean", _number(bound.get("attainment")))
        else:
            yield Row(name, None, f"value of {text}", "s", f"p{bound['percentile']:g}", _number(bound.get("value_s")))


def _statistics(
    name: str, traffic: str | None, metric: str, values: Mapping[str, Any], within: Mapping[str, Any]
) -> Iterator[Row]:
    unit = str(values.get("unit") or "s")
    for statistic in _STATISTICS if values.get("n") else _STATISTICS[:1]:
        low, high = within.get(statistic) or (None, None)
        of = "values" if statistic == "n" else unit
        yield Row(name, traffic, clean(metric, 60), of, statistic, _number(values.get(statistic)), low, high)


def _classes(name: str, run: Run, summary: Mapping[str, Any]) -> Iterator[Row]:
    """Every class of traffic, where there are several: its counts, attainment, and metrics that are one a request."""
    tags = run.requests.column("tag")
    counted = Counter({row["values"]: row["counts"] for row in pc.value_counts(tags).to_pylist()})
    measured = {k: v for k, v in part(summary, "metrics").items() if not _data.pooled(k)}
    for tag, n in counted.most_common(MOST_CLASSES) if len(counted) > 1 else []:
        traffic = "(without a class)" if tag is None else clean(tag, 80)
        ours = (pc.is_null(tags) if tag is None else pc.fill_null(pc.equal(tags, tag), False)).to_numpy()
        ok = ours & _data.answered(run)
        yield Row(name, traffic, "requests", "requests", "count", float(n))
        yield Row(name, traffic, "failed", "share", "mean", float(n - ok.sum()) / n)
        if (kept := _number(part(summary, "classes").get(tag))) is not None:
            yield Row(name, traffic, "attainment", "share", "mean", kept)
        for metric, whole in measured.items():
            values = _data.metric(run, metric)[ok]
            told = {**describe(values[~np.isnan(values)]), "unit": whole.get("unit")}
            yield from _statistics(name, traffic, metric, told, {})


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)

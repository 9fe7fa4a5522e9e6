"""What figures and pages ask of a run: arrays of its tables, its SLO, and how far each request is from it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from harness import fidelity, measure
from harness import slo as slos
from reports._clean import clean

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from harness.api import Bound, Slo
    from harness.folder import Run

LABELS = {
    "ttft": "TTFT",
    "tpot": "TPOT",
    "itl": "ITL",
    "e2e": "E2E",
    "itl_p99": "ITL p99 (request)",
    "lateness": "lateness",
}
EMPTY = "No request was recorded, so there is nothing to draw; run it longer or with more --requests."


@dataclass(frozen=True, slots=True)
class Sending:
    """Times in seconds, sorted: of the requests that wait for no answer as planned and as sent, and of all as sent.

    `everything` is None where no request waits for an answer; `closed` says that users ask again and again, so that
    nothing but their first requests is planned.
    """

    planned: np.ndarray
    sent: np.ndarray
    everything: np.ndarray | None
    closed: bool


@dataclass(frozen=True, slots=True)
class Margin:
    """One bound of the SLO and, per request, value / limit: at most 1 meets, inf misses at any scale."""

    bound: Bound
    name: str
    ratio: np.ndarray


def measured(run: Run) -> Run:
    """The run without the requests before the cut of its warm-up."""
    return dataclasses.replace(run, requests=run.measured)


def label(metric: str) -> str:
    """The printed name of a metric."""
    return LABELS.get(metric, metric)


def bound_label(metric: str, percentile: float | None = None, tag: str | None = None) -> str:
    """The printed name of what a bound asks: of a metric with many values a request the largest of each request."""
    if percentile is not None:
        name = f"{label(metric)} p{percentile:g} (run)"
    else:
        name = f"{label(metric)} max (request)" if pooled(metric) else label(metric)
    return name if tag is None else f"{name} @{clean(tag, 40)}"


def pooled(metric: str) -> bool:
    """Whether the metric has a value per token and not one per request."""
    found = measure.metrics().get(metric)
    return found is not None and measure.is_pooled(found)


def metric(run: Run, name: str) -> np.ndarray:
    """A metric per request, float64, NaN where undefined (of a pooled metric the worst value of each request)."""
    return measure.per_request(measure.metrics()[name], run.requests)


def sample(run: Run, name: str) -> np.ndarray:
    """Sorted values of a metric over the requests that ended well: what the percentiles are taken of."""
    return np.sort(measure.sample(measure.metrics()[name], run.requests, answered(run)))


def column(run: Run, name: str) -> np.ndarray:
    """A numeric column of the requests table as float64, NaN where null."""
    values: np.ndarray = run.requests.column(name).to_numpy(zero_copy_only=False).astype(np.float64)
    return values


def sending(run: Run) -> Sending:
    """When requests were due and when they left; of the schedule where it is stored, which also holds the unsent."""
    sent_s = column(run, "sent_s")
    left = np.isfinite(sent_s)
    everything = np.sort(sent_s[left])
    if run.schedule is None:
        return Sending(np.sort(column(run, "scheduled_s")), everything, None, closed=False)
    planned_s = run.schedule.column("scheduled_s").to_numpy()
    alone = fidelity.by_itself(run.schedule)
    if alone.all():
        return Sending(np.sort(planned_s), everything, None, closed=False)
    ours = np.isin(column(run, "request_id"), run.schedule.column("id").to_numpy()[alone])
    closed = run.schedule.column("session").null_count == run.schedule.num_rows
    return Sending(np.sort(planned_s[alone]), np.sort(sent_s[left & ours]), everything, closed=closed)


def slo(run: Run) -> Slo:
    """The SLO that the run was asked to keep; without bounds when it had none."""
    return slos.restored(run.info)


def answered(run: Run) -> np.ndarray:
    """Per request whether it ended well (status ok)."""
    return measure.succeeded(run.requests)


def margins(run: Run) -> list[Margin]:
    """Per request-level bound of the SLO, how far each request is from it; bounds on a percentile are left out."""
    bounds = slos.score(run.requests, slo(run)).bounds
    return [_margin(run, scored) for scored in bounds if scored.bound.percentile is None]


def joint(found: list[Margin]) -> np.ndarray:
    """Per request the greatest ratio of all bounds: the SLO scale from which on the request meets everything."""
    ratio: np.ndarray = np.max([m.ratio for m in found], axis=0)
    return ratio


def _margin(run: Run, scored: slos.BoundScore) -> Margin:
    bound = scored.bound
    limit = np.full(run.requests.num_rows, bound.limit)
    if bound.metric in slos.OWN:
        own = column(run, slos.OWN[bound.metric])
        limit = np.where(np.isnan(own), limit, own)
    values = metric(run, bound.metric)
    ratio = np.where(np.isnan(values) | ~scored.applies, 0.0, values / limit)
    return Margin(bound, bound_label(bound.metric, tag=bound.tag), np.where(answered(run), ratio, np.inf))


def pieces(run: Run) -> Iterator[pa.Table]:
    """The requests with all their token times, in pieces that bound memory: for what looks at every gap."""
    return measure.pieces(run.requests)

"""What figures and pages ask of a run: arrays of its tables, its SLO, and how far each request is from it."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow.compute as pc

from harness.api import Slo
from harness.data import large, run_json
from harness.data.folder import Run
from harness.data.lists import ascending, number
from harness.data.mapped import stored
from harness.data.run_json import Described
from harness.metrics import measure
from harness.metrics import stages as by_stage
from harness.metrics.objective import Score, Seen, restored_slo, score
from harness.metrics.stages import (
    CAP_WAIT,
    DECODE,
    DIVIDED,
    FRONT,
    HANDOFF,
    LATENESS,
    PREEMPTED,
    PREFILL,
    QUEUE,
    QUEUE_PREFILL,
    STALL,
    UNKNOWN,
)
from harness.metrics.summary import percentiles_of, summarize
from harness.validity import fidelity
from harness.validity.server_metrics import queue_shares
from reports import _counted
from reports._counted import GapCounts, Gaps, Stretches
from reports._format import clean

T = TypeVar("T")
EMPTY = "No request was recorded, so there is nothing to draw; run it longer or with more --requests."
AGGREGATES = "The file holds aggregates and no single requests, so there is nothing to draw; the verdict says more."
S = TypeVar("S", bound="Remembering")
NAMES = {
    CAP_WAIT: "wait to be sent", LATENESS: "client lateness", FRONT: "front end", QUEUE: "queue",
    QUEUE_PREFILL: "queue and prefill", PREFILL: "prefill", HANDOFF: "hand-off", STALL: "stall", DECODE: "decode",
    PREEMPTED: "preempted", UNKNOWN: "unknown (no stamps)",
}  # fmt: skip
FRONTED = "Front end is the time outside steps, before the scheduler and after the step of the first token."
STALLED = (
    "Stall is the time after the first token in which the request waits to decode or its replica works on prompts "
    "alone."
)
UNSTAMPED = (
    "This backend stamps no stages, so queue and prefill are not separate; --backend engine and --backend sim do."
)
BY_SERVER = (
    "The time before the first token is divided between queue and prefill as in the server's answer, or as in the mean "
    "of its histograms over the second in which the request ended."
)
RULE = (
    "The bound that is broken worst decides; where the work it spans (prefill for TTFT, decode for TPOT and gaps, both "
    "for E2E) breaks it by its own share of the time, that is the cause, otherwise the longest wait; a preempted "
    "request that decoded too slowly counts as preempted."
)


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


class Remembering(Protocol):
    """What keeps what was computed of it."""

    @property
    def memo(self) -> dict[str, Any]: ...


def once(make: Callable[[S], T]) -> Callable[[S], T]:
    """A function of a run or a study that is computed once of each; do not change what it returns."""
    name = f"{make.__module__}.{make.__qualname__}"

    @wraps(make)
    def made(of: S) -> T:
        return kept(of, name, lambda: make(of))

    return made


@once
def measured(run: Run) -> Run:
    """The run without the requests before the cut of its warm-up."""
    trimmed = large.measured(run)
    if trimmed is not run:
        trimmed.memo["of"] = run, number(run.requests, "scheduled_s") >= run.info.warmup.at_s
    return trimmed


def summarized(run: Run) -> Run:
    """The run with a summary: of one that was killed before it had one, made now."""
    if run.info.summary:
        return run
    summary = summarize(run.measured, slo(run), percentiles=percentiles_of(run.info.spec))
    return dataclasses.replace(run, info=run.info.change(summary=summary))


def warmed_up(run: Run) -> str:
    """What a figure over time says where its run has requests of a warm-up; empty where it has none."""
    return "" if run.info.warmup.since_s is None else "The requests of the warm-up are among them."


def percentiles(run: Run) -> tuple[str, ...]:
    """The percentiles of its latencies that are shown: 'p50', ..."""
    return tuple(f"p{percentile:g}" for percentile in percentiles_of(run.info.spec))


def label(metric: str) -> str:
    """The printed name of a metric."""
    definition = measure.metrics().get(metric)
    return metric if definition is None else definition.label


def bound_label(metric: str, percentile: float | None = None, tag: str | None = None) -> str:
    """The printed name of what a bound asks: of a metric with many values a request the largest of each request."""
    if percentile is not None:
        name = f"{label(metric)} p{percentile:g} (run)"
    else:
        name = f"{label(metric)} max (request)" if pooled(metric) else label(metric)
    return name if tag is None else f"{name} @{clean(tag, 40)}"


def pooled(metric: str) -> bool:
    """Whether the metric has a value per token and not one per request."""
    definition = measure.metrics().get(metric)
    return definition is not None and definition.pooled


def metric(run: Run, name: str) -> np.ndarray:
    """A metric per request, float64, NaN where undefined or unknown (of a pooled one the worst of each request).

    The array is kept for the next who asks: do not change it.
    """
    if name != "itl" or run.whole is None:
        values, unknown = seen(run).values(name), seen(run).unknown(name)
        return values if unknown is None else np.where(unknown, np.nan, values)
    if "of" in run.memo and "gaps" not in run.memo:
        full_run, rows = run.memo["of"]
        return kept(run, "worst", lambda: metric(full_run, name)[rows])
    return run.aggregate(GapCounts).largest()


def sample(run: Run, name: str) -> np.ndarray:
    """Sorted values of a metric over the requests that ended well: what the percentiles are taken of.

    The array is kept for the next who asks: do not change it. Of a pooled metric of a large run there are too many
    values to hold: ask `quantiles` and `gaps`.
    """
    if pooled(name) and run.whole is not None:
        raise ValueError(f"all values of {name} do not fit into memory; ask quantiles() and gaps()")

    def made() -> np.ndarray:
        if pooled(name):
            return np.sort(seen(run).sample(name, answered(run)))
        values = metric(run, name)
        return ascending(values, answered(run) & np.isfinite(values))

    return kept(run, f"sample {name}", made)


def quantiles(run: Run, name: str, qs: Sequence[float] = (0.5, 0.9, 0.99)) -> list[float]:
    """Exact quantiles of `sample`; of a pooled metric of a large run those that its summary has (p50, p90, p99)."""
    if pooled(name) and run.whole is not None:
        stored = run.info.summary.metrics.get(name, Described())
        return [float(getattr(stored, f"p{q * 100:g}") or np.nan) for q in qs]
    values = sample(run, name)
    return [float(v) for v in np.quantile(values, qs)] if len(values) else [float("nan")] * len(qs)


@once
def seen(run: Run) -> Seen:
    """The requests with what SLOs ask of them, computed once: to score under as many SLOs as one likes."""
    return Seen(run.requests, None if run.whole is None else run.pieces)


def gaps(run: Run) -> Gaps:
    """Every gap between token events of the requests that ended well, counted by time and length (one pass)."""
    return kept(run, "gaps", run.aggregate(GapCounts).gaps)


@once
def end_s(run: Run) -> float:
    """When the last token came, in seconds since the start; 0 without one."""
    return float(np.nanmax(measure.first_last(run.requests)[1], initial=0.0))


def has_steps(run: Run) -> bool:
    """Whether the backend showed its steps."""
    return run.steps is not None or (run.whole is not None and run.whole.steps is not None)


def stretches(run: Run, most: int = 300) -> Stretches | None:
    """The steps of a run in at most `most` stretches, with the totals of all; None where there are none."""
    return kept(run, f"steps {most}", lambda: _counted.steps(run, most))


def kept(of: Remembering, name: str, make: Callable[[], T]) -> T:
    """What was computed of a run or a study before under that name, or now; do not change it."""
    if name not in of.memo:
        made: Any = make()
        of.memo[name] = stored(made) if isinstance(made, np.ndarray) else lambda: made
    cached: T = of.memo[name]()
    return cached


def sending(run: Run) -> Sending:
    """When requests were due and when they left; of the schedule where it is stored, which also holds the unsent."""
    was_sent = np.isfinite(number(run.requests, "sent_s"))
    everything = ascending(number(run.requests, "sent_s"), was_sent)
    if run.schedule is None:
        return Sending(np.sort(number(run.requests, "scheduled_s")), everything, None, closed=False)
    independent = fidelity.by_itself(run.schedule, recorded=bool(run.info.workload.recorded))
    planned_s = ascending(number(run.schedule, "scheduled_s"), independent)
    if independent.all():
        return Sending(planned_s, everything, None, closed=False)
    rows = np.isin(number(run.requests, "request_id"), run.schedule.column("id").to_numpy()[independent])
    closed = run.schedule.column("session").null_count == run.schedule.num_rows
    return Sending(planned_s, ascending(number(run.requests, "sent_s"), was_sent & rows), everything, closed=closed)


def slo(run: Run) -> Slo:
    """The SLO of the run; without bounds when it had none."""
    return restored_slo(run.info)


def answered(run: Run) -> np.ndarray:
    """Per request whether it ended well (status ok)."""
    return seen(run).ok


def classes(run: Run, most: int) -> Iterator[tuple[str | None, np.ndarray]]:
    """The classes of traffic, where there are several, the largest first: (requests,) which are in it."""
    tags = run.requests.column("tag")
    counted = Counter({row["values"]: row["counts"] for row in pc.value_counts(tags).to_pylist()})
    for tag, _ in counted.most_common(most) if len(counted) > 1 else ():
        yield tag, (pc.is_null(tags) if tag is None else pc.fill_null(pc.equal(tags, tag), False)).to_numpy()


@once
def scored(run: Run) -> Score:
    """The score under the bounds of the SLO on single requests."""
    objective = slo(run)
    bounds = tuple(bound for bound in objective.bounds if bound.percentile is None)
    return score(run.requests, dataclasses.replace(objective, bounds=bounds), seen(run))


def met(run: Run) -> np.ndarray | None:
    """(requests,) whether each meets every bound on single requests; None where there is no such bound."""
    known = [bound.met for bound in scored(run).bounds if bound.room == bound.room]
    return np.logical_and.reduce(known) if known else None


@once
def stages(run: Run) -> run_json.Stages:
    """The time of the requests by stage and their misses by cause, as stored; of an older run computed now."""
    return run.info.stages or by_stage.summed(run, seen(run), scored(run), queue_shares)


def note(keys: tuple[str, ...]) -> str:
    """Where these phases are from."""
    if STALL not in keys:
        return BY_SERVER if PREFILL in keys else UNSTAMPED
    return f"{STALLED} {FRONTED}" if FRONT in keys else STALLED


def missed(run: Run) -> str:
    """How many requests missed the SLO, and what each of the client and the phases of the server caused; '-' where the
    server does not tell. Empty where none missed, or the SLO bounds no single request."""
    causes = stages(run).misses
    if not causes:
        return ""
    silent = (QUEUE, PREFILL) if QUEUE_PREFILL in causes else ()
    counts = {**dict.fromkeys(DIVIDED, 0), **causes}
    each = [f"{NAMES.get(key, f'failed ({clean(key)})')} {'-' if key in silent else f'{n:,}'}"
            for key, n in counts.items()]  # fmt: skip
    return f"{sum(causes.values()):,} of {run.requests.num_rows:,} requests: {', '.join(each)}"

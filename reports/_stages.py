"""Where the time of each request went: client lateness, queue, prefill, hand-off, stall, decode, from the stage stamps.

The stages of DistServe (OSDI 2024, figure 10) with two more: lateness is separate from the queue, and stall from
decode. They add up to E2E.

A bounded part of a run for a timeline: some requests with their times, and the steps of the replicas meanwhile.

Which phase made each request miss the SLO, by one rule that gives every miss one cause: a request that failed has its
status as its cause. Of any other the bound that is broken worst decides. Where the work that the bound spans (prefill
for TTFT, decode for TPOT and gaps, both for E2E) would break it by its own share of the time, the work is the cause;
otherwise the longest wait among the others that it spans.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from harness.data.folder import Run
from harness.data.lists import number
from harness.metrics.measure import first_last, metrics
from harness.validity.remote import of_held_back
from harness.validity.server_metrics import queue_shares
from reports import _data
from reports._format import clean, count, option

Floats: TypeAlias = npt.NDArray[np.float64]

LATENESS, QUEUE, PREFILL, HANDOFF, STALL, DECODE = "lateness", "queue", "prefill", "handoff", "stall", "decode"
FIRST = "first"
"""All between sending and the first token, where the backend does not tell queue and prefill apart."""

_ROWS = 65_536

DIVIDED = (LATENESS, QUEUE, PREFILL, DECODE)
APART = (LATENESS, QUEUE, PREFILL, HANDOFF, STALL, DECODE)
TOGETHER = (LATENESS, FIRST, DECODE)
NAMES = {
    LATENESS: "client lateness", QUEUE: "queue", FIRST: "queue and prefill", PREFILL: "prefill", HANDOFF: "hand-off",
    STALL: "stall", DECODE: "decode", "preempted": "preempted", "unknown": "unknown (no stamps)",
}  # fmt: skip
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


@dataclass(frozen=True, slots=True, eq=False)
class Stages:
    """`seconds` (phases, requests) in each phase of `keys`, NaN where a request did not end well."""

    keys: tuple[str, ...]
    seconds: Floats

    @property
    def known(self) -> npt.NDArray[np.bool_]:
        """(requests,) whether the phases of a request are known."""
        found: npt.NDArray[np.bool_] = np.all(np.isfinite(self.seconds), axis=0)
        return found

    def of_known(self) -> Floats:
        """(phases, known requests) seconds, not copied where all are known."""
        known = self.known
        return self.seconds if known.all() else self.seconds[:, known]

    @property
    def apart(self) -> bool:
        """Whether every phase is stamped."""
        return self.keys == APART


def note(keys: tuple[str, ...]) -> str:
    """Where these phases are from."""
    return {APART: STALLED, DIVIDED: BY_SERVER}.get(keys, UNSTAMPED)


@dataclass(frozen=True, slots=True)
class Shares:
    """Per phase the mean in seconds, the mean of the requests' own percentages, and the percent of all their time."""

    keys: tuple[str, ...]
    mean_s: tuple[float, ...]
    percent: tuple[float, ...]
    summed_percent: tuple[float, ...]
    requests: int


@_data.once
def of(run: Run) -> Stages | None:
    """The phases of every request; None where no request ended well."""
    stamped = np.isfinite(_data.column(run, "prefill_start_s")) & np.isfinite(_data.column(run, "prefill_end_s"))
    apart = bool(np.any(stamped & _data.answered(run)))
    queued = None if apart else queue_shares(run)
    keys = APART if apart else TOGETHER if queued is None else DIVIDED
    first, last = (_data.metric(run, name) for name in ("ttft", "e2e"))  # both from the scheduled time
    alone = prompts_alone(run) if apart else {}
    seconds = np.empty((len(keys), run.requests.num_rows))
    for at in range(0, run.requests.num_rows, _ROWS):  # large runs: little memory at one time
        here = slice(at, at + _ROWS)
        rows = _Rows(run.requests.slice(at, _ROWS), first[here], last[here])
        if apart:
            seconds[:, here] = _apart(rows, alone)
        else:
            sent = rows.column("sent_s")
            before, decode = rows.first - sent, rows.last - rows.first
            share = None if queued is None else queued[here]
            parts = [before] if share is None else [before * share, before * (1.0 - share)]
            seconds[:, here] = np.stack([sent, *parts, decode])
    seconds[:, ~_data.answered(run)] = np.nan
    found = Stages(keys, seconds)
    return found if np.any(found.known) else None


def shares(run: Run) -> Shares | None:
    """What the phases are of the time of all requests; None where no request ended well."""
    found = of(run)
    return None if found is None else shares_of(found.keys, found.of_known())


def shares_of(keys: tuple[str, ...], seconds: Floats) -> Shares:
    """The same of some requests, all of them known: (phases, requests) seconds, one request or more."""
    total = np.maximum(seconds.sum(axis=0), 1e-12)
    own = np.array([(row / total).mean() for row in seconds]) * 100.0  # phase by phase: little memory at one time
    summed = seconds.sum(axis=1) / total.sum() * 100.0
    mean_s, percent, all_of_it = (tuple(float(v) for v in row) for row in (seconds.mean(axis=1), own, summed))
    return Shares(keys, mean_s, percent, all_of_it, seconds.shape[1])


def prompts_alone(run: Run) -> dict[int, tuple[Floats, Floats]]:
    """Per replica the steps in which nothing decoded: (steps,) starts and ends in seconds, in order."""
    steps = _data.prompts_alone(run)
    names, at = np.unique(steps.replica, return_index=True)
    edges = [*at.tolist(), len(steps.replica)]
    return {int(n): (steps.start_s[a:b], steps.end_s[a:b]) for n, a, b in zip(names, edges, edges[1:], strict=False)}


class _Rows(NamedTuple):
    """Some requests, and (requests,) when their first and last token came, in seconds since they were due."""

    table: pa.Table
    first: Floats
    last: Floats

    def column(self, name: str) -> Floats:
        """(requests,) seconds since the request was due; NaN where there is none."""
        return number(self.table, name) - number(self.table, "scheduled_s")


def _apart(rows: _Rows, alone: Mapping[int, tuple[Floats, Floats]]) -> Floats:
    sent, begun, done, decodes = (
        rows.column(f"{n}_s") for n in ("sent", "prefill_start", "prefill_end", "decode_start")
    )
    decodes = np.where(np.isfinite(decodes), decodes, rows.last)  # a single token: nothing is decoded
    handoff = np.nan_to_num(rows.column("handoff_end_s") - rows.column("handoff_start_s"))
    inside = np.minimum(_alone(rows, decodes, alone), np.maximum(rows.last - decodes, 0.0))
    waits = decodes - done - handoff + inside
    return np.stack([sent, begun - sent, done - begun, handoff, waits, rows.last - decodes - inside])


def _alone(rows: _Rows, decodes: Floats, alone: Mapping[int, tuple[Floats, Floats]]) -> Floats:
    """(requests,) seconds of prompts alone on the replica of each request from its first decode to its last token."""
    replica, due = number(rows.table, "replica"), number(rows.table, "scheduled_s")
    found = np.zeros(len(due))
    for name, (start, end) in alone.items():
        ours = replica == name
        since, until = (due + decodes)[ours], (due + rows.last)[ours]
        found[ours] = _so_far(start, end, until) - _so_far(start, end, since)
    return np.maximum(np.nan_to_num(found), 0.0)


def _so_far(start: Floats, end: Floats, at_s: Floats) -> Floats:
    """Summed length of the intervals, which lie in order, before each time."""
    lengths = np.concatenate([[0.0], np.cumsum(end - start)])
    i = np.searchsorted(start, at_s, side="right")
    last = np.maximum(i - 1, 0)
    found: Floats = lengths[last] + np.where(i > 0, np.minimum(at_s, end[last]) - start[last], 0.0)
    return found


MOST_STEPS = 100_000
ENDS = ("ended_s", "prefill_end_s", "handoff_end_s", "sent_s", "scheduled_s")
"""Columns of which the latest is when a request without a token was over."""

_COLUMNS = (
    "request_id", "session", "turn", "tag", "scheduled_s", "sent_s", "arrived_s", "ended_s", "prefill_start_s",
    "prefill_end_s", "handoff_start_s", "handoff_end_s", "decode_start_s", "prompt_tokens", "cached_tokens",
    "output_tokens", "status", "error", "replica", "preemptions",
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """The part: `rows` of requests in the order in which they were due (with `first_s`, `last_s` of their tokens and
    `met`, whether they met the SLO), the `steps` that overlap it, sorted by replica and time, and a sentence."""

    run: Run
    rows: list[dict[str, Any]]
    steps: pa.Table | None
    from_s: float
    to_s: float
    note: str


def shown(run: Run, most: int, start_s: float, window_s: float | None) -> Shown:
    """The first `most` requests that are due, or still under way, from `start_s` on, within `window_s`."""
    until_s = np.inf if window_s is None else start_s + window_s
    due, ended = _data.column(run, "scheduled_s"), over_s(run)
    there = np.flatnonzero((ended >= start_s) & (due < until_s))
    order = there[np.lexsort((there, due[there]))]
    kept = order[:most]
    rows = _rows(run, kept)
    to_s = float(min(until_s, np.max(ended[kept], initial=start_s)))
    steps, left_out = _steps(run, start_s, to_s)
    note = _note(len(kept), len(order), run, span(start_s, window_s))
    cut = f"; {count(left_out, 'later step')} left out" if left_out else ""
    return Shown(run, rows, steps, start_s, to_s, note + cut)


def span(start_s: float, window_s: float | None) -> str:
    """A window of the run in words."""
    end = "on" if window_s is None else f"to {option(start_s + window_s)} s"
    return f"from {option(start_s)} s {end}"


def _note(kept: int, there: int, run: Run, where: str) -> str:
    """How much of the run it is."""
    total = run.requests.num_rows
    which = f"all {there:,}" if kept == there else f"the first {kept:,} of {there:,}"
    if there == total:
        return f"{which} requests"
    return f"{which} requests due or under way {where}, of {total:,} in all"


def over_s(run: Run) -> np.ndarray:
    """When a request is over, in seconds: its last token, its end, or, of one that was never sent, when it was due."""
    last = first_last(run.requests)[1]
    columns = [last, *(_data.column(run, name) for name in ENDS if name in run.requests.column_names)]
    found: np.ndarray = np.fmax.reduce(columns)
    return found


def _rows(run: Run, kept: np.ndarray) -> list[dict[str, Any]]:
    table = run.requests.take(pa.array(kept))
    first, last = first_last(table)
    columns = [name for name in _COLUMNS if name in table.column_names]
    met = _met(run, kept)
    rows: list[dict[str, Any]] = table.select(columns).to_pylist()
    for row, first_s, last_s, kept_slo in zip(rows, first.tolist(), last.tolist(), met, strict=True):
        row["first_s"] = first_s if np.isfinite(first_s) else None
        row["last_s"] = last_s if np.isfinite(last_s) else None
        row["met"] = kept_slo
    return rows


def _met(run: Run, kept: np.ndarray) -> list[bool | None]:
    """Whether these requests met every bound that is on single requests; None where there is no such bound."""
    margins = _data.margins(run)
    if not margins:
        return [None] * len(kept)
    met: list[bool | None] = (_data.joint(margins)[kept] <= 1.0).tolist()
    return met


def _steps(run: Run, from_s: float, to_s: float) -> tuple[pa.Table | None, int]:
    """The steps that overlap a time, the first of them, and how many more there would be."""
    if not _data.has_steps(run):
        return None, 0
    within = []
    for piece in step_tables(run):
        ends, starts = piece.column("end_s"), piece.column("start_s")
        within.append(piece.filter(pc.and_(pc.greater_equal(ends, from_s), pc.less_equal(starts, to_s))))
    found = pa.concat_tables(within)
    found = found.sort_by([("start_s", "ascending"), ("replica", "ascending")])
    kept = found.slice(0, MOST_STEPS).sort_by([("replica", "ascending"), ("start_s", "ascending")])
    return kept, found.num_rows - kept.num_rows


def step_tables(run: Run) -> Iterator[pa.Table]:
    """The steps of a run, of a large one in pieces."""
    if run.steps is not None:
        yield run.steps
    elif run.whole is not None and run.whole.steps is not None:
        for piece in run.whole.steps:
            yield from piece()


PREEMPTED = "preempted"
RULE = (
    "The bound that is broken worst decides; where the work it spans (prefill for TTFT, decode for TPOT and gaps, both "
    "for E2E) breaks it by its own share of the time, that is the cause, otherwise the longest wait; a preempted "
    "request that decoded too slowly counts as preempted."
)
_WORK = (PREFILL, FIRST, DECODE)


def causes(run: Run) -> dict[str, int] | None:
    """How many requests missed for each cause, most first: a phase, PREEMPTED, or the status of those that failed.

    None where the SLO bounds no single request. The counts add up to the requests that missed.
    """
    margins = _data.margins(run)
    if not margins:
        return None
    found = np.full(run.requests.num_rows, "", dtype=object)
    missed = _data.joint(margins) > 1.0
    if (held := of_held_back(run)) is not None:  # unknown whether these missed
        missed &= ~held
    failed = ~_data.answered(run)
    found[failed] = run.requests.column("status").to_numpy(zero_copy_only=False)[failed]
    stages = of(run)
    if stages is not None:
        worst = np.argmax([margin.ratio for margin in margins], axis=0)
        for i, margin in enumerate(margins):
            ours = np.flatnonzero(missed & _data.answered(run) & stages.known & (worst == i))
            found[ours] = _of_bound(run, stages, margin, ours)
    names, counts = np.unique(found[missed].astype(str), return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return {str(names[i]) or UNKNOWN: int(counts[i]) for i in order}


def missed(run: Run) -> str:
    """How many requests missed the SLO, and what each of the client and the phases of the server caused; '-' where the
    server does not tell. Empty where none missed, or the SLO bounds no single request."""
    found = causes(run)
    if not found:
        return ""
    silent = (QUEUE, PREFILL) if FIRST in found else ()
    counts = {**dict.fromkeys(DIVIDED, 0), **found}
    each = [f"{NAMES.get(key, f'failed ({clean(key)})')} {'-' if key in silent else f'{n:,}'}"
            for key, n in counts.items()]  # fmt: skip
    return f"{sum(found.values()):,} of {run.requests.num_rows:,} requests: {', '.join(each)}"


UNKNOWN = "unknown"
"""Cause of the requests whose stamps tell no phases."""


def _of_bound(run: Run, stages: Stages, margin: _data.Margin, ours: np.ndarray) -> np.ndarray:
    """(ours,) the cause of each of the requests `ours`, which break this bound worst."""
    spans = [key for key in metrics()[margin.bound.metric].phases or stages.keys if key in stages.keys]
    work, waits = ([key for key in spans if (key in _WORK) == is_work] for is_work in (True, False))
    seconds = {key: stages.seconds[stages.keys.index(key)][ours] for key in spans}
    total = np.maximum(sum(seconds.values()), 1e-12)
    waited, worked = (np.sum([seconds[key] for key in keys] or [0.0 * total], axis=0) for keys in (waits, work))
    enough = (margin.ratio[ours] * worked / total > 1.0) | (waited <= 0.0)
    named = np.where(enough, _longest(seconds, work or waits), _longest(seconds, waits or work))
    if DECODE in spans and "preemptions" in run.requests.column_names:
        again = _data.column(run, "preemptions")[ours] > 0
        late = np.isin(named, (HANDOFF, STALL, DECODE))
        named = np.where(again & late, PREEMPTED, named)
    found: np.ndarray = named.astype(object)
    return found


def _longest(seconds: dict[str, np.ndarray], keys: Sequence[str]) -> np.ndarray:
    """(ours,) the key of the greatest of these phases."""
    found: np.ndarray = np.array(keys)[np.argmax([seconds[key] for key in keys], axis=0)]
    return found

"""A bounded part of a run for a timeline: some requests with their times, and the steps of the replicas meanwhile."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness.data.folder import Run
from harness.data.lists import number
from harness.metrics.measure import first_last
from harness.metrics.stages import joint
from reports import _data
from reports._format import count, option

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
    due, ended = number(run.requests, "scheduled_s"), over_s(run)
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
    columns = [last, *(number(run.requests, name) for name in ENDS if name in run.requests.column_names)]
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
    met: list[bool | None] = (joint(margins)[kept] <= 1.0).tolist()
    return met


def _steps(run: Run, from_s: float, to_s: float) -> tuple[pa.Table | None, int]:
    """The steps that overlap a time, the first of them, and how many more there would be."""
    if not _data.has_steps(run):
        return None, 0
    within = []
    for piece in run.step_pieces():
        ends, starts = piece.column("end_s"), piece.column("start_s")
        within.append(piece.filter(pc.and_(pc.greater_equal(ends, from_s), pc.less_equal(starts, to_s))))
    found = pa.concat_tables(within)
    found = found.sort_by([("start_s", "ascending"), ("replica", "ascending")])
    kept = found.slice(0, MOST_STEPS).sort_by([("replica", "ascending"), ("start_s", "ascending")])
    return kept, found.num_rows - kept.num_rows

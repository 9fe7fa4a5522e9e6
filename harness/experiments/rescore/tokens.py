"""Goodput in tokens: which tokens came in time, when token k is due at TTFT bound + k times the TPOT bound.

A bound on the whole answer (e2e), on a task, or any other, counts for all tokens of a request at once. Sources: the
deadline line of Etalon (Agrawal et al. 2024); the SLO classes and the service goodput of JITServe (NSDI 2026).

Tasks: requests that belong together are of use only if all of them met the objective.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from harness.api import Slo
from harness.data.lists import number
from harness.experiments.rescore.slo_json import TaskScore
from harness.metrics.deadlines import events_of
from harness.metrics.measure import first_last
from harness.metrics.objective import Score, Seen, score

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

LINE = ("ttft", "tpot")
"""The metrics whose bounds make the line."""


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """(requests,) good output tokens, good prompt tokens, and the output tokens that there should have been.

    A request that failed has no good token; the requested tokens are those that there should have been.
    """

    output: Ints
    prompt: Ints
    due: Ints


def tokens(seen: Seen, slo: Slo, scored: Score | None = None) -> Tokens:
    """The good tokens of each request. Bounds on percentiles play no part."""
    scored = score(seen.table, slo, seen) if scored is None else scored
    others = [b.met for b in scored.bounds if b.bound.percentile is None and b.bound.metric not in LINE]
    gate = seen.ok & np.logical_and.reduce([np.ones(len(seen.ok), bool), *others])
    ttft_s, tpot_s = (scored.limits_s(metric) for metric in LINE)
    in_time = gate & ~(seen.values("ttft") > ttft_s)
    requested, made = (number(seen.table, c) for c in ("output_tokens_asked", "output_tokens"))
    return Tokens(
        _on_line(seen, gate, in_time, ttft_s, tpot_s),
        np.where(in_time, number(seen.table, "prompt_tokens"), 0).astype(np.int64),
        np.where(seen.ok, made, requested).astype(np.int64),
    )


def _on_line(seen: Seen, gate: Mask, in_time: Mask, ttft_s: Floats, tpot_s: Floats) -> Ints:
    """(requests,) output tokens on the line. Without a bound on TPOT all are good if the first one is.

    Without a bound on TTFT the line begins at the first token.
    """
    made = number(seen.table, "output_tokens")
    lined = gate & np.isfinite(tpot_s)
    good = np.where(in_time & ~lined, made, 0)
    if not lined.any():
        return good.astype(np.int64)
    due_s, first_s = number(seen.table, "scheduled_s"), first_last(seen.table)[0]
    from_s = np.where(np.isfinite(ttft_s), due_s, first_s)
    base_s = np.where(np.isfinite(ttft_s), ttft_s, 0.0)
    at = 0
    for piece in seen.pieces():
        rows = slice(at, at + len(piece))
        found = _piece(piece, from_s[rows], base_s[rows], np.where(lined[rows], tpot_s[rows], 0.0))
        good[rows] = np.where(lined[rows], found, good[rows])
        at += len(piece)
    return np.minimum(good, made).astype(np.int64)  # a file of another tool may have an event more than tokens


def _piece(piece: pa.Table, from_s: Floats, base_s: Floats, step_s: Floats) -> Ints:
    """(requests,) tokens j of a piece with time - from <= base + j * step; tokens of an event share its time."""
    events, counts = events_of(piece)
    plain = not len(counts) or int(counts.max()) == 1
    times = events.values if plain else np.repeat(events.values, counts)
    ends = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=ends[1:])
    offsets = events.offsets if plain else ends[events.offsets]
    lengths = np.diff(offsets)
    row = np.repeat(np.arange(len(lengths)), lengths)
    j = np.arange(len(times)) - offsets[row]
    in_time = times - from_s[row] <= base_s[row] + j * step_s[row]
    return np.bincount(row, in_time, minlength=len(lengths)).astype(np.int64)


def tasks(seen: Seen, met: Mask, per_second: Callable[[int], float | None]) -> TaskScore | None:
    """How many sessions had every request meet the objective; None where no request is part of a session.

    The first goodput counts those, the second also the requests that stand alone: a task counts once.
    """
    if seen.table["session"].null_count == len(seen.table):
        return None
    session = number(seen.table, "session")
    inside = ~np.isnan(session)
    known, group = np.unique(session[inside], return_inverse=True)
    missed = np.bincount(group, ~met[inside], len(known))
    good, alone = int(np.count_nonzero(missed == 0)), int(np.count_nonzero(met & ~inside))
    return TaskScore(len(known), good, good / len(known), per_second(good), per_second(good + alone))

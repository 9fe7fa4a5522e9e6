"""Rules that look at the tokens of a request one after the other, for many requests at a time.

The rows are ordered by length, so that at each place the requests that still have a token stand together: the loop is
over places, the arithmetic over requests, in the order in which a loop over one request would do it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from harness.data.lists import Floats, Ints, Lists, gap_lists, lists

if TYPE_CHECKING:
    import pyarrow as pa


PACE_SPAN = 16
"""Tokens of the moving average in FastGen's success rule (plot_effective_throughput.py, --ema_span)."""


class Deadlines(NamedTuple):
    """(requests,) deadlines that passed without their token, and all deadlines; of Etalon's fluidity index."""

    missed: Ints
    total: Ints


def worst_moving_average(gaps: Lists, span: int = PACE_SPAN) -> Floats:
    """(requests,) largest exponential moving average of the gaps, NaN for no gap; equal to pandas' ewm(span).mean().

    Source: deepspeedai/DeepSpeedExamples, benchmarks/inference/mii/src/plot_effective_throughput.py.
    """
    order, alive = _by_length(gaps)
    mean, worst = np.zeros(len(order)), np.full(len(order), -np.inf)
    keep, weight = 1.0 - 1.0 / (1.0 + (span - 1) / 2), 0.0
    for place, n in enumerate(alive):
        gap = gaps.values[gaps.offsets[order[:n]] + place]
        if place:
            old = mean[:n]
            mean[:n] = np.where(old == gap, old, (weight * old + gap) / (weight + 1.0))
        else:
            mean[:n] = gap
        np.maximum(worst[:n], mean[:n], out=worst[:n])
        weight = (weight + 1.0) * keep
    return _back(np.where(np.isinf(worst), np.nan, worst), order)


def worst_lag(gaps: Lists, step_s: float) -> Floats:
    """(requests,) largest (sum of the first i gaps) - i * step_s over all i, NaN for no gap; above 0 is late."""
    order, alive = _by_length(gaps)
    total, worst = np.zeros(len(order)), np.full(len(order), -np.inf)
    for place, n in enumerate(alive):
        total[:n] += gaps.values[gaps.offsets[order[:n]] + place]
        np.maximum(worst[:n], total[:n] - step_s * (place + 1), out=worst[:n])
    return _back(np.where(np.isinf(worst), np.nan, worst), order)


def deadlines(first_s: Floats, gaps: Lists, ttft_s: float, tpot_s: float) -> Deadlines:
    """Etalon's count: a token before its deadline banks slack; a late one misses every deadline that passed meanwhile,
    and deadlines start anew.

    `first_s` (requests,) is the time of the first token since sending. Source: project-etalon/etalon,
    metrics/metric_utils.py (get_request_level_deadline_miss_rate).
    """
    order, alive = _by_length(gaps)
    missed, total, slack = (np.zeros(len(order)) for _ in range(3))
    _due(first_s[order], ttft_s, tpot_s, slack, missed, total, first=True)
    for place, n in enumerate(alive):
        gap = gaps.values[gaps.offsets[order[:n]] + place]
        _due(gap, tpot_s, tpot_s, slack[:n], missed[:n], total[:n])
    return Deadlines(*(_back(x, order).astype(np.int64) for x in (missed, total)))


def _due(
    took_s: Floats,
    within_s: float,
    every_s: float,
    slack: Floats,
    missed: Floats,
    total: Floats,
    *,
    first: bool = False,
) -> None:
    """One token of each request: on time, it adds to the slack; late, it has missed a deadline every `every_s`."""
    on_time = took_s <= within_s + slack
    beyond = 1 + (took_s - slack - within_s) // every_s if first else (took_s - slack) // every_s
    late = np.where(on_time, 0.0, np.trunc(beyond))
    missed += late
    total += np.where(on_time, 1.0, late)
    slack[:] = np.where(on_time, slack + (within_s - took_s), 0.0)


def token_gaps(table_lists: Lists, counts: Ints) -> Lists:
    """The gaps of every token after the first: those of an event's further tokens are 0."""
    if len(counts) == 0 or counts.max() == 1:
        return gap_lists(table_lists)
    ends = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=ends[1:])
    return gap_lists(Lists(ends[table_lists.offsets], np.repeat(table_lists.values, counts)))


def events_of(piece: pa.Table) -> tuple[Lists, Ints]:
    """Token times of a piece of the requests table, and (events,) how many tokens each event holds."""
    return lists(piece, "token_s"), lists(piece, "token_n").values.astype(np.int64)


def _by_length(rows: Lists) -> tuple[Ints, Ints]:
    """Rows from the longest to the shortest, and at each place how many of them reach it."""
    lengths = np.diff(rows.offsets)
    order = np.argsort(-lengths, kind="stable")
    longest = int(lengths.max(initial=0))
    alive = np.searchsorted(-lengths[order], -np.arange(1, longest + 1), side="right")
    return order, alive


def _back(values: Floats, order: Ints) -> Floats:
    found = np.empty_like(values)
    found[order] = values
    return found

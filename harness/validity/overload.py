"""Whether the queue grew all through a run: then latencies depend on the length of the run, not on the system."""

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from harness.data.lists import first, lists, number, pieces
from harness.metrics.measure import first_last, joined, succeeded

Floats: TypeAlias = npt.NDArray[np.float64]

GROWTH = 2.0
"""Growth of the queue that is overload, in units of what its own fluctuation adds up to by chance."""

WINDOWS = 20
"""Parts of a run whose growth is compared. A queue that jumps in one or two of them has not grown all through."""

FILLS = 0.1
"""The first part of a run is not compared: until then no queue has formed."""

MIN_REQUESTS = 30
"""Fewest arrivals among which growth is distinguishable from chance."""


@dataclass(frozen=True, slots=True)
class Overload:
    """The queue grew by `requests` of the `arrivals` in `seconds`; the last third waited `waiting_s` (median)."""

    requests: int
    arrivals: int
    seconds: float
    waiting_s: float


def overload(table: pa.Table) -> Overload | None:
    """How the queue grew; None for a system that kept up, or too short a run to tell.

    The queue at a time are the requests that are due and not yet being decoded: without their second token, so that a
    queue between prefill and decode replicas counts too. Requests under way tell less: they also grow while a system
    fills, which lasts as long as its longest answers. Requests that failed are left out: a system that turns them away
    has no queue of them. After the last request that waits for no answer the load falls, so nothing is compared there.
    """
    started_s, due_s = started(table), number(table, "scheduled_s")
    ok = succeeded(table) & np.isfinite(started_s)
    opening = due_s[ok & (table["turn"].to_numpy() == 0)]
    return grown(due_s[ok], started_s[ok], float(opening.max(initial=-math.inf)))


def started(table: pa.Table) -> Floats:
    """When the decode of each request had begun, (requests,) s: its second token, its first where no more is known."""
    if "second_s" in table.column_names:  # of a thin table
        first_s, second_s = first_last(table)[0], number(table, "second_s")
        return np.where(np.isnan(second_s), first_s, second_s)
    return joined((_started(piece) for piece in pieces(table)), len(table))


def _started(piece: pa.Table) -> Floats:
    rows = lists(piece, "token_s")
    at_s = first(rows)
    known = np.diff(rows.offsets) > 2  # of two times the second may be the last token of many
    at_s[known] = rows.values[rows.offsets[:-1][known] + 1]
    return at_s


def grown(due_s: Floats, started_s: Floats, until_s: float) -> Overload | None:
    """The same of when requests were due and began to be decoded, both (requests,), up to the last that opens a task.

    The rule: over 20 equal parts of the time, the queue grows by more than twice the square root of the arrivals, which
    is the scatter of independent ones, and by more than twice what its growth in one part scatters, times the square
    root of 20: bursts and long requests make that larger, and a queue that comes and goes is in it.
    """
    if len(due_s) < MIN_REQUESTS:
        return None
    order = np.argsort(due_s, kind="stable")
    due_s, started_s = due_s[order], started_s[order]
    waited_s = started_s - due_s
    waiting_s = float(np.median(waited_s[-(len(due_s) // 3) :]))
    if due_s[0] == due_s[-1]:  # all at once: a queue where those behind wait longer
        late = waiting_s > np.median(waited_s[: len(due_s) // 3])
        return Overload(int((started_s > started_s.min()).sum()), len(due_s), 0.0, waiting_s) if late else None
    from_s = float(due_s[0]) + FILLS * (until_s - float(due_s[0]))
    arrivals = int(((due_s > from_s) & (due_s <= until_s)).sum())
    if arrivals < MIN_REQUESTS:
        return None
    at_s = np.linspace(from_s, until_s, WINDOWS + 1)
    queue = np.searchsorted(due_s, at_s, side="right") - np.searchsorted(np.sort(started_s), at_s, side="right")
    growth = int(queue[-1] - queue[0])
    chance = max(math.sqrt(arrivals), math.sqrt(WINDOWS) * float(np.diff(queue).std(ddof=1)))
    return Overload(growth, arrivals, until_s - from_s, waiting_s) if growth > GROWTH * chance else None

"""Whether the queue grew all through a run: then latencies depend on the length of the run, not on the system."""

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from harness.data.lists import number
from harness.metrics.measure import first_last, succeeded
from harness.metrics.quantiles import quantile

Floats: TypeAlias = npt.NDArray[np.float64]

GROWTH = 2.0
"""Growth of the requests in flight, in units of the square root of the arrivals meanwhile, that is overload.

Counts of independent arrivals scatter by that root, so a system that keeps up stays below: of 100 runs of 2,000
requests on 16 servers none is flagged at 0.9 of saturation and at least 95 are at 1.15 of it; of short runs, with
about 100 requests, up to 5% are flagged at 0.9.
"""

MIN_ARRIVALS = 50
"""Fewest arrivals, after the system has filled, for which growth in flight is distinguishable from chance."""

WINDOWS = 20
"""Parts of a run whose arrivals are counted to see how bursty they are."""

MIN_REQUESTS = 30
"""Fewest requests whose thirds are compared."""


@dataclass(frozen=True, slots=True)
class Overload:
    """The queue grew by `requests` in `seconds`, up to `waiting_s` of waiting for a first token."""

    requests: int
    seconds: float
    waiting_s: float


def overload(table: pa.Table, *, after_s: float = 0.0, bursty: bool = False) -> Overload | None:
    """How the queue grew; None for a system that kept up, or too short a run to tell.

    The rule: from the time when the system has filled (p90 of E2E after the start, or the cut of the warm-up at
    `after_s`, whichever is later) to the last arrival, requests in flight grow by more than twice the square root of
    the arrivals. Where that leaves fewer than 50 arrivals, because requests take about as long as the run: the median
    TTFT rises from third to third, by more than the time in which such a number of requests arrives. Requests that
    failed are left out: a system that turns them away has no queue of them. With `bursty` the root is that of the
    arrivals times their index of dispersion, because bursts make queues that soon drain again.
    """
    kept = succeeded(table)
    due_s, (first_s, end_s) = number(table, "scheduled_s"), first_last(table)
    kept &= np.isfinite(end_s)
    order = np.argsort(due_s[kept], kind="stable")
    return grown(due_s[kept][order], first_s[kept][order], end_s[kept][order], after_s=after_s, bursty=bursty)


def grown(
    due_s: Floats, first_s: Floats, end_s: Floats, *, after_s: float = 0.0, bursty: bool = False
) -> Overload | None:
    """The same of when requests were due, in order, and had their first and last token; all (requests,)."""
    if len(due_s) < MIN_REQUESTS:
        return None
    waiting_s = float(np.median((first_s - due_s)[-(len(due_s) // 3) :]))
    filled_s = max(float(due_s[0]) + quantile(end_s - due_s, 0.9), after_s)
    stop_s = float(due_s[-1])
    arrivals = int((due_s > filled_s).sum())
    growth = _in_flight(due_s, end_s, stop_s) - _in_flight(due_s, end_s, min(filled_s, stop_s))
    if arrivals >= MIN_ARRIVALS:
        dispersion = 1.0  # variance over mean of the arrivals in each part of the run: that of a Poisson process
        if bursty:
            counts = np.histogram(due_s, WINDOWS)[0]
            dispersion = max(1.0, float(counts.var(ddof=1) / counts.mean()))
        chance = math.sqrt(arrivals * dispersion)
        return Overload(growth, stop_s - filled_s, waiting_s) if growth > GROWTH * chance else None
    if _ttft_rises(due_s, first_s - due_s):
        return Overload(_in_flight(due_s, end_s, stop_s), stop_s - float(due_s[0]), waiting_s)
    return None


def _in_flight(due_s: Floats, end_s: Floats, at_s: float) -> int:
    return int((due_s <= at_s).sum() - (end_s <= at_s).sum())


def _ttft_rises(due_s: Floats, ttft_s: Floats) -> bool:
    medians = [float(np.median(part)) for part in np.array_split(ttft_s, 3)]
    arrivals = len(due_s) * 2 / 3  # between the middles of the first and the last third
    rate_rps = (len(due_s) - 1) / max(float(due_s[-1] - due_s[0]), 1e-9)
    growth = rate_rps * (medians[2] - medians[0])  # Little: requests that wait more than before
    return medians[0] < medians[1] < medians[2] and growth > GROWTH * math.sqrt(arrivals)

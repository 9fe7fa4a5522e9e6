"""Which phase made each request miss the SLO, by one rule that gives every miss one cause.

The rule: a request that failed has its status as its cause. Of any other the bound that is broken worst decides. Where
the work that the bound spans (prefill for TTFT, decode for TPOT and gaps, both for E2E) would break it by its own
share of the time, the work is the cause; otherwise the longest wait among the others that it spans.
"""

from collections.abc import Sequence

import numpy as np

from harness.folder import Run
from harness.measure import metrics
from reports import _data, _stages

PREEMPTED = "preempted"
RULE = (
    "The bound that is broken worst decides; where the work it spans (prefill for TTFT, decode for TPOT and gaps, both "
    "for E2E) breaks it by its own share of the time, that is the cause, otherwise the longest wait; a preempted "
    "request that decoded too slowly counts as preempted."
)
_WORK = (_stages.PREFILL, _stages.FIRST, _stages.DECODE)


def causes(run: Run) -> dict[str, int] | None:
    """How many requests missed for each cause, most first: a phase, PREEMPTED, or the status of those that failed.

    None where the SLO bounds no single request. The counts add up to the requests that missed.
    """
    margins = _data.margins(run)
    if not margins:
        return None
    found = np.full(run.requests.num_rows, "", dtype=object)
    missed = _data.joint(margins) > 1.0
    failed = ~_data.answered(run)
    found[failed] = run.requests.column("status").to_numpy(zero_copy_only=False)[failed]
    stages = _stages.of(run)
    if stages is not None:
        worst = np.argmax([margin.ratio for margin in margins], axis=0)
        for i, margin in enumerate(margins):
            ours = np.flatnonzero(missed & _data.answered(run) & stages.known & (worst == i))
            found[ours] = _of_bound(run, stages, margin, ours)
    names, counts = np.unique(found[missed].astype(str), return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return {str(names[i]) or UNKNOWN: int(counts[i]) for i in order}


UNKNOWN = "unknown"
"""Cause of the requests whose stamps tell no phases."""


def _of_bound(run: Run, stages: _stages.Stages, margin: _data.Margin, ours: np.ndarray) -> np.ndarray:
    """(ours,) the cause of each of the requests `ours`, which break this bound worst."""
    spans = [key for key in metrics()[margin.bound.metric].phases or stages.keys if key in stages.keys]
    work, waits = ([key for key in spans if (key in _WORK) == is_work] for is_work in (True, False))
    seconds = {key: stages.seconds[stages.keys.index(key)][ours] for key in spans}
    total = np.maximum(sum(seconds.values()), 1e-12)
    waited, worked = (np.sum([seconds[key] for key in keys] or [0.0 * total], axis=0) for keys in (waits, work))
    enough = (margin.ratio[ours] * worked / total > 1.0) | (waited <= 0.0)
    named = np.where(enough, _longest(seconds, work or waits), _longest(seconds, waits or work))
    if _stages.DECODE in spans and "preemptions" in run.requests.column_names:
        again = _data.column(run, "preemptions")[ours] > 0
        late = np.isin(named, (_stages.HANDOFF, _stages.STALL, _stages.DECODE))
        named = np.where(again & late, PREEMPTED, named)
    found: np.ndarray = named.astype(object)
    return found


def _longest(seconds: dict[str, np.ndarray], keys: Sequence[str]) -> np.ndarray:
    """(ours,) the key of the greatest of these phases."""
    found: np.ndarray = np.array(keys)[np.argmax([seconds[key] for key in keys], axis=0)]
    return found

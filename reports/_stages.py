"""Where the time of each request went: client lateness, queue, prefill, hand-off, stall, decode, from the stage stamps.

The stages of DistServe (OSDI 2024, figure 10) with two of ours: lateness is told apart from the queue, and stall from
decode. They add up to E2E.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from reports import _data

if TYPE_CHECKING:
    from harness.folder import Run

Floats: TypeAlias = npt.NDArray[np.float64]

LATENESS, QUEUE, PREFILL, HANDOFF, STALL, DECODE = "lateness", "queue", "prefill", "handoff", "stall", "decode"
FIRST = "first"
"""All between sending and the first token, where the backend does not tell queue and prefill apart."""

APART = (LATENESS, QUEUE, PREFILL, HANDOFF, STALL, DECODE)
TOGETHER = (LATENESS, FIRST, DECODE)
RULE = (
    "Stall is the time after the first token in which the request waits to decode or its replica works on prompts "
    "alone."
)
UNTOLD = (
    "This backend stamps no stages, so queue and prefill are not told apart; --backend engine and --backend sim do."
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

    @property
    def apart(self) -> bool:
        """Whether queue and prefill are told apart."""
        return self.keys == APART


@dataclass(frozen=True, slots=True)
class Shares:
    """Per phase the mean in seconds, the mean of the requests' own percentages, and the percent of all their time."""

    keys: tuple[str, ...]
    mean_s: tuple[float, ...]
    percent: tuple[float, ...]
    summed_percent: tuple[float, ...]
    requests: int


def of(run: Run) -> Stages | None:
    """The phases of every request; None where no request ended well."""
    first, last = (_data.metric(run, name) for name in ("ttft", "e2e"))  # both from the scheduled time
    due, sent = (_data.column(run, name) for name in ("scheduled_s", "sent_s"))
    ended = _data.answered(run) & np.isfinite(first) & np.isfinite(last) & np.isfinite(sent)
    if not np.any(ended):
        return None
    begun, prefilled = (_data.column(run, f"prefill_{end}_s") for end in ("start", "end"))
    told = np.isfinite(begun) & np.isfinite(prefilled)
    if np.any(ended & told):
        rows = [sent - due, begun - sent, prefilled - begun, *_after(run, prefilled, due + last)]
        return Stages(APART, _where(np.stack(rows), ended & told))
    return Stages(TOGETHER, _where(np.stack([sent - due, first - (sent - due), last - first]), ended))


def shares(run: Run) -> Shares | None:
    """What the phases are of the time of all requests; None where no request ended well."""
    found = of(run)
    return None if found is None else shares_of(found.keys, found.seconds[:, found.known])


def shares_of(keys: tuple[str, ...], seconds: Floats) -> Shares:
    """The same of some requests, all of them known: (phases, requests) seconds, one request or more."""
    total = np.maximum(seconds.sum(axis=0), 1e-12)
    own = (seconds / total).mean(axis=1) * 100.0
    summed = seconds.sum(axis=1) / total.sum() * 100.0
    mean_s, percent, all_of_it = (tuple(float(v) for v in row) for row in (seconds.mean(axis=1), own, summed))
    return Shares(keys, mean_s, percent, all_of_it, seconds.shape[1])


def prompts_alone(run: Run) -> dict[int, tuple[Floats, Floats]]:
    """Per replica the steps in which nothing decoded: (steps,) starts and ends in seconds, in order."""
    steps = run.steps
    if steps is None or steps.num_rows == 0:
        return {}
    alone = (steps["decode_seqs"].to_numpy() == 0) & (steps["prefill_tokens"].to_numpy() > 0)
    replica, start, end = (steps[name].to_numpy()[alone] for name in ("replica", "start_s", "end_s"))
    order = np.lexsort((start, replica))
    replica, start, end = replica[order], start[order], end[order]
    names, at = np.unique(replica, return_index=True)
    edges = [*at.tolist(), len(replica)]
    return {int(n): (start[a:b], end[a:b]) for n, a, b in zip(names, edges, edges[1:], strict=False)}


def _after(run: Run, prefilled: Floats, last_s: Floats) -> tuple[Floats, Floats, Floats]:
    """Hand-off, stall and decode of each request."""
    begun = _data.column(run, "decode_start_s")
    begun = np.where(np.isfinite(begun), begun, last_s)  # a single token: nothing is decoded
    handoff = np.nan_to_num(_data.column(run, "handoff_end_s") - _data.column(run, "handoff_start_s"))
    inside = np.minimum(_alone(run, begun, last_s), np.maximum(last_s - begun, 0.0))
    return handoff, begun - prefilled - handoff + inside, last_s - begun - inside


def _alone(run: Run, since_s: Floats, until_s: Floats) -> Floats:
    """(requests,) seconds of prompts alone on the replica of each request between the two times."""
    replica = _data.column(run, "replica")
    found = np.zeros(len(since_s))
    for name, (start, end) in prompts_alone(run).items():
        ours = replica == name
        found[ours] = _so_far(start, end, until_s[ours]) - _so_far(start, end, since_s[ours])
    return np.maximum(np.nan_to_num(found), 0.0)


def _so_far(start: Floats, end: Floats, at_s: Floats) -> Floats:
    """Summed length of the intervals, which lie in order, before each time."""
    lengths = np.concatenate([[0.0], np.cumsum(end - start)])
    i = np.searchsorted(start, at_s, side="right")
    before = np.where(i > 0, np.minimum(at_s, end[np.maximum(i - 1, 0)]) - start[np.maximum(i - 1, 0)], 0.0)
    found: Floats = lengths[np.maximum(i - 1, 0)] + before
    return found


def _where(rows: Floats, known: npt.NDArray[np.bool_]) -> Floats:
    return np.where(known, rows, np.nan)

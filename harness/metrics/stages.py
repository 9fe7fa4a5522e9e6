"""Where the time of each request went, from the stage stamps: client lateness, front end, queue, prefill, hand-off,
stall, decode.

The stages of DistServe (OSDI 2024, figure 10) with three more: lateness and the front end are separate from the queue,
and stall from decode. The front end is what a request takes outside steps: from its sending to the scheduler, and from
the step of its first token to the stamp of that. They add up to E2E. Of a run with --max-in-flight the wait for a place
comes first.

Which stage made each request miss the SLO, by one rule that gives every miss one cause: a request that failed has its
status as its cause. Of any other the bound that is broken worst decides. Where the work that the bound spans (prefill
for TTFT, decode for TPOT and gaps, both for E2E) would break it by its own share of the time, the work is the cause;
otherwise the longest wait among the others that it spans.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from harness.api import Bound
from harness.data import run_json
from harness.data.folder import Aggregate, Run
from harness.data.lists import Floats, Mask, number
from harness.metrics.measure import metrics
from harness.metrics.objective import BoundScore, Score, Seen

QueueShares: TypeAlias = Callable[[Run], Floats | None]
"""Returns (requests,) the share of the queue in the time from sending to the first token; None where nothing tells."""

LATENESS, QUEUE, PREFILL, HANDOFF, STALL, DECODE = "lateness", "queue", "prefill", "handoff", "stall", "decode"
CAP_WAIT = "cap_wait"
"""Before all others, where the run allows no more than so many requests in flight and some waited for a place."""
FRONT = "front_s"
"""Where the backend tells when its scheduler saw a request; elsewhere this time is part of the queue."""
QUEUE_PREFILL = "queue_prefill"
"""All between sending and the first token, where the backend does not tell queue and prefill apart."""
PREEMPTED = "preempted"
UNKNOWN = "unknown"
"""Cause of the requests whose stamps tell no stages."""

DIVIDED = (LATENESS, QUEUE, PREFILL, DECODE)
APART = (LATENESS, FRONT, QUEUE, PREFILL, HANDOFF, STALL, DECODE)
TOGETHER = (LATENESS, QUEUE_PREFILL, DECODE)
_WORK = (PREFILL, QUEUE_PREFILL, DECODE)
_ROWS = 65_536


@dataclass(frozen=True, slots=True, eq=False)
class Margin:
    """One bound of the SLO and, per request, value / limit: at most 1 meets, inf misses at any scale."""

    bound: Bound
    ratio: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Stages:
    """`seconds` (stages, requests) in each stage of `keys`, not all of them finite where a request did not end well."""

    keys: tuple[str, ...]
    seconds: Floats

    @property
    def known(self) -> Mask:
        """(requests,) whether the stages of a request are known."""
        finite: Mask = np.all(np.isfinite(self.seconds), axis=0)
        return finite

    def of_known(self) -> Floats:
        """(stages, known requests) seconds, not copied where all are known."""
        mask = self.known
        return self.seconds if mask.all() else self.seconds[:, mask]


def margins(seen: Seen, scored: Score, rows: slice = slice(None)) -> list[Margin]:
    """Per request-level bound of the score, how far each request of some `rows`, or of all, is from it; bounds on a
    percentile are left out, and those on what answers that were all held back hide."""
    singles = [row for row in scored.bounds if row.bound.percentile is None and row.room == row.room]
    return [_margin(seen, row, rows) for row in singles]


def _margin(seen: Seen, scored: BoundScore, rows: slice) -> Margin:
    bound, brought = scored.bound, seen.own(scored.bound.metric)
    limit_s = bound.limit if brought is None else np.where(np.isnan(brought[rows]), bound.limit, brought[rows])
    values = seen.values(bound.metric)[rows]  # infinite where unknown
    binds = scored.applies[rows] & ~np.isnan(values)  # elsewhere both may be infinite
    ratio = np.divide(values, limit_s, out=np.zeros(len(values)), where=binds)
    ratio[~seen.ok[rows]] = np.inf
    return Margin(bound, ratio)


def summed(run: Run, seen: Seen, scored: Score, queue_shares: QueueShares) -> run_json.Stages:
    """The time of all requests by stage, and how many missed for each cause, most first."""
    held_back, bounds = seen.unknown("ttft"), list[Margin]()
    keys: tuple[str, ...] = ()
    total_s, requests, causes = np.zeros(1), 0, Counter[str]()
    for rows, stages in in_pieces(run, seen, queue_shares):
        seconds = stages.of_known()
        keys, total_s, requests = stages.keys, total_s + seconds.sum(axis=1), requests + seconds.shape[1]
        if bounds := margins(seen, scored, rows):
            unknown = None if held_back is None else held_back[rows]
            causes.update(_causes(run.requests[rows], seen.ok[rows], bounds, stages, unknown))
    all_s = max(float(total_s.sum()), 1e-12)
    times = {
        key: run_json.StageTime(mean_s=sum_s / requests, share=sum_s / all_s)
        for key, sum_s in zip(keys, total_s.tolist(), strict=True)
        if requests
    }
    most_first = dict(sorted(causes.items(), key=lambda item: (-item[1], item[0])))
    return run_json.Stages(requests=requests, times=times, misses=most_first if bounds else None)


def in_pieces(run: Run, seen: Seen, queue_shares: QueueShares) -> Iterator[tuple[slice, Stages]]:
    """The stages of every request of the run, which `seen` is of: some after the others, one piece or more, so that
    those of a large run take little memory."""
    answered = seen.ok if (unknown := seen.unknown("ttft")) is None else seen.ok & ~unknown
    capped = run.requests["cap_wait_s"].null_count < run.requests.num_rows
    begun, done = (np.isfinite(number(run.requests, name)) for name in ("prefill_start_s", "prefill_end_s"))
    stamped = bool(np.any(begun & done & answered))
    fronted = bool(np.isfinite(number(run.requests, "arrived_s")).any())
    shares = None if stamped else queue_shares(run)
    divided = APART if stamped else TOGETHER if shares is None else DIVIDED
    keys = tuple(key for key in divided if fronted or key != FRONT)
    prompt_steps = prompts_alone(run) if stamped else {}
    for start in range(0, max(1, run.requests.num_rows), _ROWS):
        rows = slice(start, min(start + _ROWS, run.requests.num_rows))
        ends_s = (seen.values(name)[rows] for name in ("ttft", "e2e"))  # both from the scheduled time
        part = _Rows(run.requests[rows], *(np.where(answered[rows], end_s, np.nan) for end_s in ends_s))
        seconds = _apart(part, prompt_steps, fronted=fronted) if stamped else _together(part, shares, rows)
        if capped:
            wait_s = np.nan_to_num(number(part.table, "cap_wait_s"))
            seconds[0] -= wait_s  # is no lateness
            yield rows, Stages((CAP_WAIT, *keys), np.concatenate([wait_s[None], seconds]))
        else:
            yield rows, Stages(keys, seconds)


class _Rows(NamedTuple):
    """Some requests, and (requests,) when their first and last token came, in seconds since they were due."""

    table: pa.Table
    first: Floats
    last: Floats

    def column(self, name: str) -> Floats:
        """(requests,) seconds since the request was due; NaN where there is none."""
        return number(self.table, name) - number(self.table, "scheduled_s")


def _together(part: _Rows, shares: Floats | None, rows: slice) -> Floats:
    sent = part.column("sent_s")
    before, decode = part.first - sent, part.last - part.first
    share = None if shares is None else shares[rows]
    return np.stack([sent, *([before] if share is None else [before * share, before * (1.0 - share)]), decode])


def _apart(part: _Rows, alone: Mapping[int, tuple[Floats, Floats]], *, fronted: bool) -> Floats:
    sent, begun, done, decodes = (
        part.column(f"{n}_s") for n in ("sent", "prefill_start", "prefill_end", "decode_start")
    )
    arrived = part.column("arrived_s")
    known = np.isfinite(arrived)
    arrived = np.where(known, np.clip(arrived, sent, begun), sent)
    # Every token takes this way to the client, so the server is done so much before the last stamp.
    answer = np.where(known, np.maximum(part.first - done, 0.0), 0.0)
    part = part._replace(last=part.last - answer)
    decodes = np.where(np.isfinite(decodes), decodes, part.last)  # a single token: nothing is decoded
    handoff = np.nan_to_num(part.column("handoff_end_s") - part.column("handoff_start_s"))
    inside = np.minimum(_alone(part, decodes, alone), np.maximum(part.last - decodes, 0.0))
    waits = decodes - done - handoff + inside
    front = [arrived - sent + answer] if fronted else []
    return np.stack([sent, *front, begun - arrived, done - begun, handoff, waits, part.last - decodes - inside])


class PromptSteps(Aggregate):
    """The steps in which nothing decoded, as they pass."""

    table = "steps"
    columns = ("replica", "start_s", "end_s", "decode_seqs", "prefill_tokens")

    def __init__(self) -> None:
        self.parts = [np.empty((3, 0))]

    def add(self, piece: pa.Table) -> None:
        """Aggregate at the next steps."""
        prefill_only = (piece["decode_seqs"].to_numpy() == 0) & (piece["prefill_tokens"].to_numpy() > 0)
        self.parts.append(np.stack([number(piece, name)[prefill_only] for name in ("replica", "start_s", "end_s")]))


def prompts_alone(run: Run) -> dict[int, tuple[Floats, Floats]]:
    """Per replica the steps in which nothing decoded: (steps,) starts and ends in seconds, in order."""
    replica, start_s, end_s = np.concatenate(run.aggregate(PromptSteps).parts, axis=1)
    order = np.lexsort((start_s, replica))
    names, begins = np.unique(replica[order], return_index=True)
    groups = zip(names, np.split(order, begins[1:]), strict=False)  # no names without such steps, but one empty split
    return {int(name): (start_s[steps], end_s[steps]) for name, steps in groups}


def _alone(part: _Rows, decodes: Floats, alone: Mapping[int, tuple[Floats, Floats]]) -> Floats:
    """(requests,) seconds of prompts alone on the replica of each request from its first decode to its last token."""
    replica, due = number(part.table, "replica"), number(part.table, "scheduled_s")
    spent_s = np.zeros(len(due))
    for name, (start, end) in alone.items():
        on_replica = replica == name
        since, until = (due + decodes)[on_replica], (due + part.last)[on_replica]
        spent_s[on_replica] = _so_far(start, end, until) - _so_far(start, end, since)
    return np.maximum(np.nan_to_num(spent_s), 0.0)


def _so_far(start: Floats, end: Floats, at_s: Floats) -> Floats:
    """Summed length of the intervals, which lie in order, before each time."""
    lengths = np.concatenate([[0.0], np.cumsum(end - start)])
    i = np.searchsorted(start, at_s, side="right")
    last = np.maximum(i - 1, 0)
    length: Floats = lengths[last] + np.where(i > 0, np.minimum(at_s, end[last]) - start[last], 0.0)
    return length


def _causes(
    requests: pa.Table, ok: Mask, bounds: Sequence[Margin], stages: Stages, held_back: Mask | None
) -> Counter[str]:
    """How many of these requests missed for each cause: a stage, PREEMPTED, or the status of those that failed."""
    cause = np.full(len(ok), UNKNOWN, dtype=object)
    cause[~ok] = requests["status"].to_numpy()[~ok]
    missed = np.max([margin.ratio for margin in bounds], axis=0) > 1.0
    if held_back is not None:  # unknown whether these missed
        missed &= ~held_back
    worst = np.argmax([margin.ratio for margin in bounds], axis=0)
    for i, margin in enumerate(bounds):
        rows = np.flatnonzero(missed & ok & stages.known & (worst == i))
        cause[rows] = _of_bound(requests, stages, margin, rows)
    return Counter(cause[missed].tolist())


def _of_bound(requests: pa.Table, stages: Stages, margin: Margin, rows: npt.NDArray[np.intp]) -> np.ndarray:
    """(rows,) the cause of each of the requests in `rows`, which break this bound worst."""
    spans = [key for key in metrics()[margin.bound.metric].phases or stages.keys if key in stages.keys]
    work, waits = ([key for key in spans if (key in _WORK) == is_work] for is_work in (True, False))
    seconds = {key: stages.seconds[stages.keys.index(key)][rows] for key in spans}
    total = np.maximum(sum(seconds.values()), 1e-12)
    waited, worked = (np.sum([seconds[key] for key in keys] or [0.0 * total], axis=0) for keys in (waits, work))
    with np.errstate(invalid="ignore"):  # what took for ever, without work
        enough = (margin.ratio[rows] * worked / total > 1.0) | (waited <= 0.0)
    cause = np.where(enough, _longest(seconds, work or waits), _longest(seconds, waits or work))
    if DECODE in spans and "preemptions" in requests.column_names:
        preempted = number(requests, "preemptions")[rows] > 0
        late = np.isin(cause, (HANDOFF, STALL, DECODE))
        cause = np.where(preempted & late, PREEMPTED, cause)
    causes: np.ndarray = cause.astype(object)
    return causes


def _longest(seconds: dict[str, Floats], keys: Sequence[str]) -> np.ndarray:
    """(rows,) the key of the greatest of these stages."""
    longest: np.ndarray = np.array(keys)[np.argmax([seconds[key] for key in keys], axis=0)]
    return longest

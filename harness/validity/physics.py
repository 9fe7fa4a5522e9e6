"""What must hold in every table of records, whatever the system: conservation, causality, order, Little's law.

The tables of stored runs are looked at again when they are read: those changed or damaged since prove nothing.
"""

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET, structs

from harness.api import RunWarning, Status
from harness.data.folder import Aggregate, Run
from harness.data.lists import BLOCK, Lists, first, gap_lists, last, lists, number, pieces, streamed_tokens
from harness.data.records import since
from harness.data.run_json import Ending
from harness.data.schedule import digest, links
from harness.metrics.measure import first_last, succeeded
from harness.validity.rules import sentences

Mask: TypeAlias = npt.NDArray[np.bool_]
Floats: TypeAlias = npt.NDArray[np.float64]

CLOCK_S = 1e-6
"""Stamps of two clocks of one machine (event loop, kernel) may differ by this much; causality allows for it."""

LITTLE = 1e-9
"""Relative difference that rounding may make between the two sides of Little's law."""

RECORDS, TOKENS, CAUSALITY, LITTLE_S = "records", "tokens", "causality", "littles-law"
"""Names of the checks, as run.json lists them."""

_LOST = "the backend lost or duplicated records: fix it, or report the bug with the run folder"
_MEMO = "what cannot be true of the stored tables"

_REMEDY = "the files are not as the run wrote them: restore them, or run it again"


_BACKEND = "the records are wrong: fix the backend that produced them, or report the bug with the run folder"
_CLOCKS = f"{_BACKEND}; on two clocks, keep them from being set while measuring"


class Laws(Aggregate):
    """The requests that break each law, as they pass."""

    def __init__(self) -> None:
        self._rows = 0
        self._broken: list[list[npt.NDArray[np.int64]]] = [[] for _ in _LAWS]

    def add(self, piece: pa.Table) -> None:
        """Aggregate at the next requests."""
        for law, rows in zip(_LAWS, self._broken, strict=True):
            bad = np.flatnonzero(law.breaks(piece))
            if len(bad):
                rows.append(bad + self._rows)
        self._rows += len(piece)

    def masks(self) -> Iterator[Mask]:
        """(requests,) whether each breaks it, of every law."""
        for rows in self._broken:
            bad = np.zeros(self._rows, bool)
            bad[np.concatenate([np.zeros(0, np.int64), *rows])] = True
            yield bad


def broken(table: pa.Table, *, as_requested: bool = True, laws: Laws | None = None) -> Iterator[RunWarning]:
    """Each law that the table breaks, under the name of its check, with the first request that breaks it.

    `as_requested` is off for systems that may end an answer early or late, such as remote endpoints. `laws` have seen
    the same requests with all their tokens, where `table` has only the first and the last of each.
    """
    if laws is None:
        laws = Laws()
        for piece in pieces(table):
            laws.add(piece)
    for law, bad in zip(_LAWS, laws.masks(), strict=True):
        if bad.any() and (as_requested or law.breaks is not _not_as_requested):
            remedy = _CLOCKS if law.check == CAUSALITY else _BACKEND
            yield RunWarning(law.check, f"{law.text}: not so for {which(table, bad)}.", remedy)
    pair = little(table)
    if pair is not None and not math.isclose(*pair, rel_tol=LITTLE, abs_tol=sys.float_info.min):
        yield RunWarning(
            LITTLE_S,
            f"Little's law: {pair[0]:.12g} requests in the system on average, but arrival rate times mean time "
            f"in the system gives {pair[1]:.12g}.",
            _BACKEND,
        )


def which(table: pa.Table, bad: Mask) -> str:
    """'request 7', or '3 of 1,000 requests, first request 7': those of the table that are `bad` (requests,)."""
    count, first_id = int(bad.sum()), table["request_id"][int(np.argmax(bad))].as_py()
    return f"request {first_id}" if count == 1 else f"{count:,} of {len(bad):,} requests, first request {first_id}"


def little(table: pa.Table) -> tuple[float, float] | None:
    """Both sides of Little's law over the requests that got a token: time-mean number in the system, rate x time.

    The first is the area under the count of requests between `scheduled_s` and last token, the second comes from
    the mean of E2E; the horizon runs from the first arrival to the last departure. None without such a horizon.
    """
    leave_s = first_last(table)[1]
    departed = np.isfinite(leave_s)
    arrive_s = number(table, "scheduled_s")[departed]
    leave_s = leave_s[departed]
    if not len(arrive_s) or leave_s.max() <= arrive_s.min():
        return None
    horizon_s = leave_s.max() - arrive_s.min()
    shares = float(((leave_s - arrive_s) / horizon_s).sum())  # each at most 1: a rate of requests alone may overflow
    arrive_s.sort()
    leave_s.sort()
    area, left = 0.0, 0  # requests x seconds; how many have left before a block of arrivals
    for start in range(0, len(arrive_s), BLOCK):
        came_s = arrive_s[start : start + BLOCK + 1]  # up to the first of the next block, or to the last departure
        until = np.searchsorted(leave_s, came_s[-1]) if start + BLOCK < len(arrive_s) else len(leave_s)
        times_s = np.concatenate([came_s, leave_s[left:until]])
        order = np.argsort(times_s, kind="stable")
        present = start - left + np.cumsum(np.repeat([1, -1], [len(came_s), until - left])[order])
        area += float((present[:-1] * np.diff(times_s[order])).sum())
        left = int(until)
    return area / horizon_s, shares


def _tokens_lost(table: pa.Table) -> Mask:
    counts = lists(table, "token_n")
    total = np.concatenate(([0], np.cumsum(counts.values, dtype=np.int64)))
    lost: Mask = total[counts.offsets[1:]] - total[counts.offsets[:-1]] != streamed_tokens(table)
    return lost


def _not_as_requested(table: pa.Table) -> Mask:
    other: Mask = number(table, "output_tokens") != number(table, "output_tokens_asked")
    return succeeded(table) & other


def _not_finite(table: pa.Table) -> Mask:
    stamps = lists(table, "token_s")
    bad = ~np.isfinite(number(table, "scheduled_s"))
    if not np.isfinite(stamps.values).all():
        bad |= _any(stamps, ~np.isfinite(stamps.values))
    return bad


def _token_before_sending(table: pa.Table) -> Mask:
    first_s, sent_s = first(lists(table, "token_s")), number(table, "sent_s")
    return (first_s < sent_s - CLOCK_S) | (~np.isnan(first_s) & np.isnan(sent_s))


def _not_as_ended(table: pa.Table) -> Mask:
    sent, status = ~np.isnan(number(table, "sent_s")), table["status"]
    unknown = ~pc.is_in(status, pa.array(get_args(Status))).to_numpy()
    bad: Mask = unknown | (succeeded(table) & ~sent) | (pc.equal(status, "dropped").to_numpy() & sent)
    return bad


def _token_after_end(table: pa.Table) -> Mask:
    return last(lists(table, "token_s")) > number(table, "ended_s") + CLOCK_S


def _stamps_fall(table: pa.Table) -> Mask:
    gaps = gap_lists(lists(table, "token_s"))
    if not len(gaps.values) or gaps.values.min() >= 0:
        return np.zeros(len(table), bool)
    return _any(gaps, gaps.values < 0)


def _any(rows: Lists, marked: Mask) -> Mask:
    """(requests,) whether any item of each row is marked."""
    any_marked = np.zeros(len(rows.offsets) - 1, bool)
    any_marked[np.searchsorted(rows.offsets, np.flatnonzero(marked), side="right") - 1] = True
    return any_marked


@dataclass(frozen=True, slots=True)
class _Law:
    """What must hold of every request, as text, and the mask (requests,) of those that break it."""

    check: str
    text: str
    breaks: Callable[[pa.Table], Mask]


_LAWS = (
    _Law(CAUSALITY, "Times are finite", _not_finite),
    _Law(
        TOKENS,
        "Every token event has a time and a count",
        lambda table: np.diff(lists(table, "token_s").offsets) != np.diff(lists(table, "token_n").offsets),
    ),
    _Law(
        TOKENS,
        "Token conservation (the tokens of a request's events and those unseen add up to its output_tokens)",
        _tokens_lost,
    ),
    _Law(TOKENS, "A request that ended well has the requested number of tokens", _not_as_requested),
    _Law(
        CAUSALITY,
        "Causality (nothing is sent before it is scheduled)",
        lambda table: number(table, "sent_s") < number(table, "scheduled_s") - CLOCK_S,
    ),
    _Law(CAUSALITY, "Causality (no token comes before its request was sent)", _token_before_sending),
    _Law(CAUSALITY, "Token times never fall", _stamps_fall),
    _Law(CAUSALITY, "Causality (no token comes after its request ended)", _token_after_end),
    _Law(RECORDS, "Each status is known, a request that ended well was sent, and a dropped one was not", _not_as_ended),
)


def impossible(
    requests: pa.Table,
    schedule: pa.Table | None,
    *,
    interrupted: bool,
    window_s: float | None,
    as_requested: bool,
    laws: Laws | None = None,
) -> Iterator[RunWarning]:
    """What cannot be true of a table of records and the schedule that was to be sent; arguments as those of `judge`."""
    if (np.diff(np.sort(requests["request_id"].to_numpy())) == 0).any():
        ids, counts = np.unique(requests["request_id"].to_numpy(), return_counts=True)
        message = f"Every request ends in exactly one record: request {ids[counts > 1][0]} has {counts.max()}."
        yield RunWarning(RECORDS, message, _LOST)
    if schedule is not None and not interrupted:
        yield from _unsent(requests, schedule, window_s)
    yield from broken(requests, as_requested=as_requested, laws=laws)


def without_record(requests: pa.Table, schedule: pa.Table) -> npt.NDArray[np.int64]:
    """Return the ids of scheduled requests that have no record."""
    if np.array_equal(np.sort(schedule["id"]), np.sort(requests["request_id"])):  # as in a run without trouble
        return np.zeros(0, np.int64)
    missing: npt.NDArray[np.int64] = np.setdiff1d(schedule["id"], requests["request_id"])
    return missing


def _unsent(requests: pa.Table, schedule: pa.Table, window_s: float | None) -> Iterator[RunWarning]:
    missing = without_record(requests, schedule)
    if len(missing) and "after" in schedule.column_names:
        missing = np.setdiff1d(missing, _after_given_up(requests, schedule, missing))
    if len(missing) and window_s is not None:
        missing = np.intersect1d(missing, schedule["id"].to_numpy()[due_times_s(requests, schedule) < window_s])
    if len(missing):
        message = (
            f"{len(missing):,} of {len(schedule):,} scheduled requests have no record, first request {missing[0]}."
        )
        yield RunWarning(RECORDS, message, _LOST)


def rows_of(requests: pa.Table, schedule: pa.Table) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """(requests,) the row of each request in the schedule, and whether it is there at all."""
    ids, rows = schedule["id"].to_numpy(), np.zeros(len(requests), np.int64)
    order, matched = np.argsort(ids, kind="stable"), np.zeros(len(requests), bool)
    for start in range(0, len(requests), BLOCK):
        part = slice(start, start + BLOCK)
        request_ids = requests[part]["request_id"].to_numpy()
        rows[part] = order[np.minimum(np.searchsorted(ids, request_ids, sorter=order), len(ids) - 1)]
        matched[part] = ids[rows[part]] == request_ids
    return rows, matched


def due_times_s(requests: pa.Table, schedule: pa.Table) -> Floats:
    """(rows,) when each request of the schedule was due; never, where an answer that it waits for has no record."""
    last_s, ended_s = first_last(requests)[1], number(requests, "ended_s")
    end_s = np.where(np.isnan(ended_s), np.where(np.isnan(last_s), number(requests, "scheduled_s"), last_s), ended_s)
    row, matched = rows_of(requests, schedule)
    end_of = np.full(len(schedule) + 1, np.inf)  # of a row that is not there too
    end_of[row[matched]] = end_s[matched]
    due_s = number(schedule, "scheduled_s").copy()
    child, parent = links(schedule)
    np.maximum.at(due_s, child, end_of[parent] + number(schedule, "delay_s")[child])
    return due_s


def _after_given_up(requests: pa.Table, schedule: pa.Table, missing: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Ids of missing follow-ups of requests that were given up at the end of the run, after which nothing is sent."""
    ids = schedule["id"].to_numpy()
    given_up = np.isin(ids, requests["request_id"].to_numpy()[pc.equal(requests["status"], "timeout").to_numpy()])
    lost = np.isin(ids, missing)
    for child, parent in zip(*links(schedule), strict=True):  # a parent stands above its follow-ups
        if lost[child] and parent < len(ids) and given_up[parent]:
            given_up[child] = True
    dropped: npt.NDArray[np.int64] = ids[given_up & lost]
    return dropped


def rechecked(run: Run) -> Run:
    """The run, not valid where its tables cannot be true, or are not of the schedule that its run.json names.

    They are read once for a run, with all tokens; what was found at the end of the run is not repeated.
    """
    if _MEMO not in run.memo:
        run.memo[_MEMO] = _found(run)
    info, flaws = run.info, run.memo[_MEMO]
    new = [flaw for flaw in flaws if not any(text.startswith(flaw.message) for text in info.verdict.reasons)]
    if not new:
        return run
    reasons = [*info.verdict.reasons, *sentences(new)]
    verdict = structs.replace(info.verdict, valid=False, reasons=reasons, text=f"not valid: {' '.join(reasons)}")
    checks = info.checks if info.checks is UNSET else [
        structs.replace(check, state="failed", text=flaw.message, remedy=_REMEDY)
        if (flaw := next((flaw for flaw in new if flaw.code == check.check), None)) is not None
        else check
        for check in info.checks
    ]  # fmt: skip
    updated = replace(run, info=info.change(verdict=verdict, checks=checks))
    updated.memo[_MEMO] = flaws
    return updated


def _found(run: Run) -> list[RunWarning]:
    """What is impossible, with the remedy for files that were sound when they were written."""
    info, schedule = run.info, run.schedule
    flaws: list[RunWarning] = []
    if schedule is not None and info.schedule.sha256 not in (None, sha256 := digest(schedule)):
        text = f"its hash is {sha256[:12]}, and {info.schedule.sha256[:12]} in run.json"
        flaws.append(RunWarning(RECORDS, f"schedule.parquet is not what the run was to send: {text}."))
        schedule = None
    ended = info.outcome.ended if isinstance(info.outcome, Ending) else None
    window_s = info.spec.get("duration")
    flaws += impossible(
        run.requests,
        schedule,
        interrupted=not run.complete or ended not in (None, "finished"),
        window_s=window_s if isinstance(window_s, int | float) else None,
        as_requested=run.http is None,
        laws=run.aggregate(Laws),
    )
    if schedule is not None:
        flaws += _not_as_scheduled(run.requests, schedule)
    return [replace(flaw, remedy=_REMEDY) for flaw in [*flaws, *_not_as_counted(run)]]


def _not_as_scheduled(requests: pa.Table, schedule: pa.Table) -> Iterator[RunWarning]:
    row_of, matched = rows_of(requests, schedule)
    waiting = pc.list_value_length(schedule["after"]).to_numpy() > 0  # for an answer, which may come later
    due_s = due_times_s(requests, schedule) if waiting.any() else number(schedule, "scheduled_s")
    answers = pc.fill_null(pc.struct_field(schedule["extra"], "n"), 1)
    bad = ~matched
    for start in range(0, len(requests), BLOCK):  # what is compared has ten times the memory of a column
        part, row = requests[start : start + BLOCK], row_of[start : start + BLOCK]
        scheduled_s, planned_s = number(part, "scheduled_s"), number(schedule, "scheduled_s")[row]
        waits, sent = waiting[row], ~np.isnan(number(part, "sent_s"))
        early = scheduled_s < np.where(waits & sent, due_s[row] - CLOCK_S, planned_s)
        requested = schedule["output_tokens"].to_numpy()[row] * answers.take(row).to_numpy()
        bad[start : start + BLOCK] |= (
            early | (~waits & (scheduled_s > planned_s)) | (number(part, "output_tokens_asked") != requested)
            | (number(part, "prompt_tokens") != schedule["prompt_tokens"].to_numpy()[row])
        )  # fmt: skip
    if bad.any():
        text = "Each record is that of a scheduled request (id, time, tokens of prompt and output)"
        yield RunWarning(RECORDS, f"{text}: not so for {which(requests, bad)}.")


def _not_as_counted(run: Run) -> Iterator[RunWarning]:
    counted = {status: count for status, count in run.info.summary.status.items() if count}
    measured = since(run.requests.select(["scheduled_s", "status"]), run.info.warmup.since_s)
    ends = measured["status"].value_counts().to_pylist()
    recorded = {row["values"]: row["counts"] for row in ends}
    if counted and counted != recorded:
        text, other = (
            ", ".join(f"{count:,} {status}" for status, count in sorted(side.items())) for side in (counted, recorded)
        )
        yield RunWarning(RECORDS, f"run.json counts {text}, and requests.parquet has {other or 'no request'}.")

"""What must hold in every table of records, whatever the system: conservation, causality, order, Little's law."""

import math
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from harness.api import RunWarning, Status
from harness.data.lists import Lists, first, gap_lists, last, lists, number, pieces, streamed_tokens
from harness.metrics.measure import first_last, succeeded

Mask: TypeAlias = npt.NDArray[np.bool_]

CLOCK_S = 1e-6
"""Stamps of two clocks of one machine (event loop, kernel) may differ by this much; causality allows for it."""

LITTLE = 1e-9
"""Relative difference that rounding may make between the two sides of Little's law."""

RECORDS, TOKENS, CAUSALITY, LITTLE_S = "records", "tokens", "causality", "littles-law"
"""Names of the checks, as run.json lists them."""


def broken(
    table: pa.Table, *, as_requested: bool = True, whole: Iterable[pa.Table] | None = None
) -> Iterator[RunWarning]:
    """Each law that the table breaks, under the name of its check, with the first request that breaks it.

    `as_requested` is off for systems that may end an answer early or late, such as remote endpoints. `whole` has the
    same requests with all their tokens, in pieces, where `table` has only the first and the last of each.
    """
    laws = [law for law in _LAWS if as_requested or law.breaks is not _not_as_requested]
    found: list[list[Mask]] = [[] for _ in laws]
    for piece in pieces(table) if whole is None else whole:
        for law, masks in zip(laws, found, strict=True):
            masks.append(law.breaks(piece))
    for law, masks in zip(laws, found, strict=True):
        bad = np.concatenate([np.zeros(0, bool), *masks])
        if bad.any():
            yield RunWarning(law.check, f"{law.text}: not so for {which(table, bad)}.", _REMEDIES[law.check])
    pair = little(table)
    if pair is not None and not math.isclose(*pair, rel_tol=LITTLE, abs_tol=sys.float_info.min):
        yield RunWarning(
            LITTLE_S,
            f"Little's law: {pair[0]:.12g} requests in the system on average, but arrival rate times mean time "
            f"in the system gives {pair[1]:.12g}.",
            _REMEDIES[LITTLE_S],
        )


def which(table: pa.Table, bad: Mask) -> str:
    """'request 7', or '3 of 1,000 requests, first request 7': those of the table that are `bad` (requests,)."""
    count, one = int(bad.sum()), table["request_id"][int(np.argmax(bad))].as_py()
    return f"request {one}" if count == 1 else f"{count:,} of {len(bad):,} requests, first request {one}"


def little(table: pa.Table) -> tuple[float, float] | None:
    """Both sides of Little's law over the requests that got a token: time-mean number in the system, rate x time.

    The first is the area under the count of requests between `scheduled_s` and last token, the second comes from
    the mean of E2E; the horizon runs from the first arrival to the last departure. None without such a horizon.
    """
    arrive_s, leave_s = number(table, "scheduled_s"), first_last(table)[1]
    known = np.isfinite(leave_s)
    arrive_s, leave_s = arrive_s[known], leave_s[known]
    if not len(arrive_s) or leave_s.max() <= arrive_s.min():
        return None
    horizon_s = leave_s.max() - arrive_s.min()
    times_s = np.concatenate([arrive_s, leave_s])
    order = np.argsort(times_s, kind="stable")
    present = np.cumsum(np.repeat([1, -1], len(arrive_s))[order])
    mean_present = float((present[:-1] * np.diff(times_s[order])).sum() / horizon_s)
    shares = (leave_s - arrive_s) / horizon_s  # each at most 1: a rate of requests alone may overflow
    return mean_present, float(shares.sum())


def _tokens_lost(table: pa.Table) -> Mask:
    counts = lists(table, "token_n")
    total = np.concatenate(([0], np.cumsum(counts.values, dtype=np.int64)))
    found: Mask = total[counts.offsets[1:]] - total[counts.offsets[:-1]] != streamed_tokens(table)
    return found


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
    found: Mask = unknown | (succeeded(table) & ~sent) | (pc.equal(status, "dropped").to_numpy() & sent)
    return found


def _token_after_end(table: pa.Table) -> Mask:
    return last(lists(table, "token_s")) > number(table, "ended_s") + CLOCK_S


def _stamps_fall(table: pa.Table) -> Mask:
    gaps = gap_lists(lists(table, "token_s"))
    if not len(gaps.values) or gaps.values.min() >= 0:
        return np.zeros(len(table), bool)
    return _any(gaps, gaps.values < 0)


def _any(rows: Lists, marked: Mask) -> Mask:
    """(requests,) whether any item of each row is marked."""
    found = np.zeros(len(rows.offsets) - 1, bool)
    found[np.searchsorted(rows.offsets, np.flatnonzero(marked), side="right") - 1] = True
    return found


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

_BACKEND = "the records are wrong: fix the backend that produced them, or report the bug with the run folder"

_REMEDIES = {
    RECORDS: _BACKEND,
    TOKENS: _BACKEND,
    CAUSALITY: f"{_BACKEND}; on two clocks, keep them from being set while measuring",
    LITTLE_S: _BACKEND,
}

"""Whether a run is in its steady state: where its measured part begins, and whether its queue grew all through it.

A system that starts empty is faster than one that serves. `none` cuts nothing, `30s` and `200` cut a time and a number
of requests, `mser5` finds the cut.
Source of MSER-5: K. P. White, M. J. Cobb, S. C. Spratt, "A comparison of five steady-state truncation heuristics for
simulation", Winter Simulation Conference 2000.

Where the queue grew all through a run, latencies depend on the length of the run, not on the system.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from harness.data.codec import inner
from harness.data.lists import first, lists, number, pieces
from harness.data.run_json import Cut
from harness.data.schedule import Schedule
from harness.errors import UsageError
from harness.metrics.measure import first_last, joined, succeeded
from harness.metrics.quantiles import quantile
from harness.validity.rules import Rule

Floats: TypeAlias = npt.NDArray[np.float64]

BATCH = 5
"""Requests in a batch of MSER-5."""

FILLED = 0.9
"""The cut of `mser5` is not before this quantile of E2E after the start: until then the system fills."""

LAST_TENTH = 0.9
"""A cut of `mser5` beyond this part of the first half of the requests, which is all it may take, is none."""

GROWTH = 2.0
"""Growth of the queue that is overload, in units of what its own fluctuation adds up to by chance."""

WINDOWS = 20
"""Parts of a run whose growth is compared. A queue that jumps in one or two of them has not grown all through."""

FILLS = 0.1
"""The first part of a run is not compared: until then no queue has formed."""

MIN_REQUESTS = 30
"""Fewest arrivals among which growth is distinguishable from chance."""

PREEMPTED, HELD = 0.01, 0.9
"""Share of requests that lost their place in memory, and share of its tokens that are held, beyond either of which the
memory is what is full: policies that ask for room before they admit fill it without a preemption. Of 60 systems drawn
at random and overloaded one is then named wrongly, where twice the memory shows it; at 0.85 five, at 0.96 two."""

HELD_UP = 0.05
"""Share of those waiting that wait behind prefill, beyond which decode holds prefill up: its queue grows as well."""


def check_leaves(rule: str | None, schedule: Schedule) -> None:
    """Raises UsageError for a cut that is given as a time or a number and leaves nothing of the schedule to measure."""
    if rule is None or rule in ("none", "mser5"):
        return
    if rule.isdecimal() and int(rule) >= len(schedule):
        amount = f"{len(schedule):,} requests that are sent"
    elif not rule.isdecimal() and not schedule.has_follow_ups and float(rule.removesuffix("s")) > _last_s(schedule):
        amount = f"{_last_s(schedule):.3g} s of sending"
    else:
        return
    raise UsageError(
        f"--warmup {rule} leaves nothing of the {amount} to measure; cut less, or send more (--requests, --duration)."
    )


def _last_s(schedule: Schedule) -> float:
    return float(schedule.table["scheduled_s"][-1].as_py())


def rules(cut: Cut) -> Iterator[Rule]:
    """The rule that a place to cut was found."""
    yield Rule(
        not cut.stationary, "not-stationary",
        "the run never settled: its E2E still changed where at most half of the requests would have been left out, so "
        f"{cut.rule} cut nothing",
        "send more requests (--requests, --duration), lower the load, or name the cut (--warmup 30s)",
    )  # fmt: skip


def find(table: pa.Table, rule: str | None) -> Cut:
    """The cut of a `requests` table by a rule that `harness.options.warmup_rule` gave; None cuts nothing."""
    due_s = number(table, "scheduled_s")
    if rule is None or rule == "none" or not len(due_s):
        return Cut("none", 0.0, 0)
    if rule == "mser5":
        return _mser5(table, due_s)
    if rule.isdecimal():
        count = min(int(rule), len(due_s) - 1)
        return _at(rule, float(np.sort(due_s)[count]), due_s)
    return _at(rule, float(rule.removesuffix("s")), due_s)


def _mser5(table: pa.Table, due_s: Floats) -> Cut:
    """The cut that makes the mean E2E of what is left most certain; of requests that ended well."""
    end_s = np.where(succeeded(table), first_last(table)[1], np.nan)
    ended = np.isfinite(end_s)
    order = np.argsort(due_s[ended], kind="stable")
    started_s, e2e_s = due_s[ended][order], (end_s - due_s)[ended][order]
    batches = len(e2e_s) // BATCH
    if batches < 4:
        return Cut("mser5", 0.0, 0)
    means = e2e_s[: batches * BATCH].reshape(-1, BATCH).mean(axis=1)
    filled_s = float(due_s.min()) + quantile(e2e_s, FILLED)
    at_s = max(float(started_s[_least_error(means) * BATCH]), filled_s)
    if at_s >= started_s[int(LAST_TENTH * (batches // 2)) * BATCH]:
        return Cut("mser5", 0.0, 0, stationary=False)
    return _at("mser5", at_s, due_s)


def _least_error(means: Floats) -> int:
    """The d in 0..m/2 that minimises sum over i >= d of (y_i - mean)^2 / (m - d)^2."""
    m = len(means)
    remaining = m - np.arange(m // 2 + 1)
    total = np.cumsum(means[::-1])[::-1][: len(remaining)]
    squares = np.cumsum(means[::-1] ** 2)[::-1][: len(remaining)]
    return int(np.argmin((squares - total**2 / remaining) / remaining.astype(float) ** 2))


def _at(rule: str, at_s: float, due_s: Floats) -> Cut:
    """A cut at a time; at least the last request stays."""
    at_s = min(at_s, float(due_s.max()))
    return Cut(rule, at_s, int((due_s < at_s).sum()))


@dataclass(frozen=True, slots=True)
class Overload:
    """The queue grew by `requests` of the `arrivals` in `seconds`."""

    requests: int
    arrivals: int
    seconds: float


def overload(table: pa.Table) -> Overload | None:
    """How the queue grew; None for a system that kept up, or too short a run to tell.

    The queue at a time are the requests that are due and not yet being decoded: without their second token, so that a
    queue between prefill and decode replicas counts too. Requests under way tell less: they also grow while a system
    fills, which lasts as long as its longest answers. Requests that failed are left out: a system that turns them away
    has no queue of them. After the last request that waits for no answer the load falls, so nothing is compared there.
    """
    started_s = started(table)
    ok = succeeded(table) & np.isfinite(started_s)
    started_s = started_s[ok]
    due_s = number(table, "scheduled_s")[ok]
    until_s = np.max(due_s, where=table["turn"].to_numpy()[ok] == 0, initial=-math.inf)
    return grown(due_s, started_s, float(until_s))


def started(table: pa.Table) -> Floats:
    """When the decode of each request had begun, (requests,) s: its second token, its first where no more is known."""
    return joined((_started(piece) for piece in pieces(table)), len(table))


def _started(piece: pa.Table) -> Floats:
    rows = lists(piece, "token_s")
    at_s = first(rows)
    if "second_s" in piece.column_names:  # of a thin table
        second_s = number(piece, "second_s")
        return np.where(np.isnan(second_s), at_s, second_s)
    several = np.diff(rows.offsets) > 2  # of two times the second may be the last token of many
    at_s[several] = rows.values[rows.offsets[:-1][several] + 1]
    return at_s


def grown(due_s: Floats, started_s: Floats, until_s: float) -> Overload | None:
    """The same of when requests were due and began to be decoded, both (requests,), up to the last that opens a task.

    The rule: over 20 equal parts of the time, the queue grows by more than twice the square root of the arrivals, which
    is the scatter of independent ones, and by more than twice what its growth in one part scatters, times the square
    root of 20: bursts and long requests make that larger, and a queue that comes and goes is in it.
    """
    if len(due_s) < MIN_REQUESTS:
        return None
    begin_s = float(due_s.min())
    if begin_s == due_s.max():  # all at once: a queue where those behind wait longer
        third, waited_s = len(due_s) // 3, started_s - due_s
        late = np.median(waited_s[-third:]) > np.median(waited_s[:third])
        return Overload(int((started_s > started_s.min()).sum()), len(due_s), 0.0) if late else None
    from_s = begin_s + FILLS * (until_s - begin_s)
    arrivals = int(((due_s > from_s) & (due_s <= until_s)).sum())
    if arrivals < MIN_REQUESTS:
        return None
    at_s = np.linspace(from_s, until_s, WINDOWS + 1)
    came, began = (np.searchsorted(np.sort(times_s), at_s, side="right") for times_s in (due_s, started_s))
    queue = came - began
    growth = int(queue[-1] - queue[0])
    chance = max(math.sqrt(arrivals), math.sqrt(WINDOWS) * float(np.diff(queue).std(ddof=1)))
    return Overload(growth, arrivals, until_s - from_s) if growth > GROWTH * chance else None


def saturated(table: pa.Table, at_s: float, backend: Mapping[str, Any]) -> str:
    """What was full at a time at which a queue had grown: `prefill`, `decode`, the `memory` of KV blocks or `decode
    memory`, and `batch` where prefill and decode share replicas and neither lacked memory. `backend` are its facts.

    Where decode is full, finished prompts wait, keep the memory of prefill and hold it up: so the last queue tells.
    """
    ended_s = number(table, "ended_s")
    ended_s = np.where(np.isnan(ended_s), math.inf, ended_s)
    decode_s = _at_least(number(table, "decode_start_s"), ended_s)
    prefilled_s = _at_least(number(table, "prefill_end_s"), decode_s)
    prefill_s = _at_least(number(table, "prefill_start_s"), prefilled_s)
    before, behind = (
        int(((from_s <= at_s) & (until_s > at_s)).sum())
        for from_s, until_s in ((number(table, "scheduled_s"), prefill_s), (prefilled_s, decode_s))
    )
    preempted = float((number(table, "preemptions") > 0).mean()) > PREEMPTED
    if not np.isfinite(number(table, "handoff_start_s")).any():
        return "memory" if preempted or _fills(table, prefill_s, at_s, backend, backend) else "batch"
    if behind <= HELD_UP * (before + behind):
        return "prefill"
    full = preempted or _fills(table, decode_s, at_s, backend, inner(backend, "decode"))
    return "decode memory" if full else "decode"


def _fills(table: pa.Table, from_s: Floats, at_s: float, backend: Mapping[str, Any], pool: Mapping[str, Any]) -> bool:
    """Whether the requests that are held at a time, `from_s` (requests,) on, fill the KV memory of a pool of replicas.

    Answers are taken to have grown steadily. False where blocks are shared or reserved, or replicas unlike: then tokens
    do not tell.
    """
    room, replicas = pool.get("kv_tokens"), pool.get("replicas")
    unlike = backend.get("prefix_cache") or backend.get("groups")
    if unlike or str(backend.get("kv")).partition(":")[0] != "paged" or not room or not replicas:
        return False
    first_s, last_s = first_last(table)
    held = (from_s <= at_s) & (last_s > at_s)
    first_s, last_s = first_s[held], last_s[held]
    with np.errstate(invalid="ignore", divide="ignore"):
        grown_by = np.nan_to_num(np.clip((at_s - first_s) / (last_s - first_s), 0, 1))
    tokens = number(table, "prompt_tokens")[held] + grown_by * number(table, "output_tokens_asked")[held]
    return float(tokens.sum()) > HELD * float(room) * float(replicas)


def _at_least(stamps_s: Floats, later_s: Floats) -> Floats:
    """The stamps, and where one is missing that of the next stage."""
    return np.where(np.isnan(stamps_s), later_s, stamps_s)

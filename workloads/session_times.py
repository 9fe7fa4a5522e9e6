"""When the requests of a trace come within their sessions: as recorded, after answers, or with other times between."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from harness.bounds import Checked, NotNegative, Positive
from harness.errors import no_such
from harness.spec import build, parse
from workloads.trace_rows import conversations
from workloads.traces import Trace

Turns: TypeAlias = "Recorded | Answered | ThinkOnly | ApiScaled"


@dataclass(frozen=True, slots=True)
class Recorded:
    """Requests come at their recorded times after the start of the session, whatever the answers."""

    name: ClassVar[str] = "recorded"


@dataclass(frozen=True, slots=True)
class Answered:
    """Requests come at their recorded times, but not before the answers that they wait for."""

    name: ClassVar[str] = "answered"


@dataclass(frozen=True, slots=True)
class ThinkOnly(Checked):
    """Requests come their think time after the answers that they wait for; none lasts longer than `cap_s`."""

    name: ClassVar[str] = "think-only"
    cap_s: NotNegative | None = None


@dataclass(frozen=True, slots=True)
class ApiScaled(Checked):
    """Requests come as if answers took `scale` times their recorded time, whatever the answers; `cap_s` as above."""

    name: ClassVar[str] = "api-scaled"
    scale: Positive = 1.0
    cap_s: NotNegative | None = None


def turns_of(text: str) -> Turns:
    """The timing of a spec such as 'think-only:cap=60s'. Raises UsageError."""
    spec = parse(text)
    kinds: Mapping[str, type[Turns]] = {kind.name: kind for kind in (Recorded, Answered, ThinkOnly, ApiScaled)}
    if spec.name not in kinds:
        raise no_such("way to time turns", spec.name, kinds)
    timing: Turns = build(kinds[spec.name], spec)
    return timing


class Links(NamedTuple):
    """Rows that each row waits for, all in one list: those of row i are `items[starts[i]:starts[i + 1]]`."""

    starts: np.ndarray  # (N + 1,)
    items: np.ndarray

    def of(self, row: int) -> np.ndarray:
        return self.items[self.starts[row] : self.starts[row + 1]]


@dataclass(frozen=True, slots=True, eq=False)
class SessionTimes:
    """When the requests of a trace come within their sessions, as if answers took no time."""

    links: Links
    waits: bool  # for answers; otherwise requests come at their times whatever the answers
    offset_s: np.ndarray  # (N,) after the start of the session
    recorded_s: np.ndarray  # (N,) after the start of the session, answers as long as recorded
    delay_s: np.ndarray  # (N,) after the answers that a request waits for
    cut_s: np.ndarray | None  # (N,) what the cap takes off each delay; None without a cap
    facts: Mapping[str, object]


def times_of(trace: Trace, turns: Turns) -> SessionTimes:
    """When the requests of a trace come, and what they wait for."""
    table, rows = trace.table, len(trace)
    links = links_of(table)
    roots = np.diff(links.starts) == 0
    of_session = conversations(table)[0]
    _, first = np.unique(of_session, return_index=True)  # rows are in order of time
    at_s = trace.at_s - trace.at_s[first][of_session]
    api_s = np.asarray(table["api_s"].fill_null(0.0)) if "api_s" in table.column_names else np.zeros(rows)
    delay_s, facts = _delays(table, at_s, api_s, links)
    cap_s = turns.cap_s if isinstance(turns, ThinkOnly | ApiScaled) else None
    cut_s = None
    if cap_s is not None:
        cut_s = np.where(roots, 0.0, np.maximum(delay_s - cap_s, 0.0))
        delay_s = np.where(cut_s > 0, cap_s, delay_s)
    start_s = np.where(roots, at_s, 0.0)
    recorded_s = at_s if isinstance(turns, Recorded | Answered) else _longest(start_s, delay_s, api_s, links)
    if isinstance(turns, ThinkOnly):
        offset_s = _longest(start_s, delay_s, np.zeros(rows), links)
    elif isinstance(turns, ApiScaled):
        offset_s = _longest(start_s, delay_s, turns.scale * api_s, links)
    else:
        offset_s = at_s
    if isinstance(turns, Answered):
        delay_s = np.zeros(rows)
    return SessionTimes(links, isinstance(turns, Answered | ThinkOnly), offset_s, recorded_s, delay_s, cut_s, facts)


def links_of(table: pa.Table) -> Links:
    """What each row waits for: the turn before first, then the others."""
    rows = len(table)
    if "parent" not in table.column_names:
        return Links(np.zeros(rows + 1, np.int64), np.zeros(0, np.int64))
    parent = np.asarray(table["parent"].fill_null(-1))
    child, items = np.flatnonzero(parent >= 0), parent[parent >= 0]
    if "joins" in table.column_names:
        lists = table["joins"].combine_chunks()
        child = np.concatenate((child, np.repeat(np.arange(rows), np.asarray(lists.value_lengths()))))
        items = np.concatenate((items, np.asarray(lists.flatten())))
    order = np.argsort(child, kind="stable")
    return Links(np.concatenate(([0], np.cumsum(np.bincount(child, minlength=rows)))), items[order])


def _delays(
    table: pa.Table, at_s: np.ndarray, api_s: np.ndarray, links: Links
) -> tuple[np.ndarray, dict[str, object]]:  # fmt: skip
    """(N,) think times: recorded, or from the recorded end of the answers waited for, or from their requests."""
    if "delay_s" in table.column_names:
        return np.asarray(table["delay_s"], np.float64), {}
    child = np.repeat(np.arange(len(table)), np.diff(links.starts))
    ended_s = np.full(len(table), -np.inf)
    np.maximum.at(ended_s, child, (at_s + api_s)[links.items])
    delay_s = np.where(np.isfinite(ended_s), np.maximum(at_s - ended_s, 0.0), 0.0)
    timed = "api_s" in table.column_names
    return delay_s, {} if timed else {"think_times": "from request to request, so they hold the answers"}


def _longest(start_s: np.ndarray, delay_s: np.ndarray, lasts_s: np.ndarray, links: Links) -> np.ndarray:
    """(N,) the longest way to each row, over the time that each row before it lasts and its own delay."""
    ways = start_s.tolist()
    lasts, delays, starts, items = (x.tolist() for x in (lasts_s, delay_s, links.starts, links.items))
    # Rows are in order of time, so what a row waits for comes before it.
    for row in np.flatnonzero(np.diff(links.starts)).tolist():
        ways[row] = max(ways[i] + lasts[i] for i in items[starts[row] : starts[row + 1]]) + delays[row]
    return np.array(ways, np.float64)

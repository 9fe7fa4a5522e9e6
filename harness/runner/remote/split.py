"""The part of one stored schedule that each of several senders sends."""

import math
import os

import numpy as np
import pyarrow as pa

from harness.data.schedule import Schedule, links

TTFT_S, ITL_S = 0.2, 0.05
"""What a server is expected to do while nothing better is known: 20 tokens a second, as people read."""
EVENTS_PER_SENDER = 25_000
"""Token events a second that one sender takes well: half of what a core can, at 20 us an event."""


def hosts(option: str | None) -> tuple[str, ...]:
    """Where each sender runs, 'ssh:HOST' or a command that starts one; empty for processes of this machine."""
    return tuple(option.split(",")) if option is not None and (":" in option or " " in option) else ()


def sender_count(option: str | None, events_rps: float) -> int:
    """How many senders: a number, one a host, or with "auto" as many as these token events a second need.

    One core is left for the rest. Raises ValueError for anything else.
    """
    if places := hosts(option):
        return len(places)
    if option is not None and option != "auto":
        count = int(option)
        if count < 1:
            raise ValueError(option)
        return count
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(math.ceil(events_rps / EVENTS_PER_SENDER), cores - 1))


def events_rps(schedule: Schedule) -> float:
    """Output tokens a second that a schedule asks for, over its span; all of them where it has none."""
    return float(schedule.table["output_tokens"].to_numpy().sum()) / max(1.0, schedule.span_s)


def requests_rps(schedule: Schedule, lasts_s: float) -> float:
    """Requests a second that a schedule asks for, over its span, if each lasts so long.

    Those that wait for answers come no faster than answers do, however early the schedule allows them.
    """
    rate_rps, most = len(schedule) / max(1.0, schedule.span_s), most_at_once(schedule.table)
    return rate_rps if most == len(schedule) else min(rate_rps, most / max(lasts_s, 0.001))


def most_at_once(table: pa.Table) -> int:
    """No more requests than this can be under way together, because the others wait for answers to them.

    It is a number of chains that hold all requests, each after the one before (Dilworth): of closed loops the users.
    """
    child, parent = links(table)
    present = parent < len(table)
    child, parent = child[present], parent[present]
    _, one_each = np.unique(child, return_index=True)
    return len(table) - len(np.unique(parent[one_each]))


def share(schedule: Schedule, index: int, count: int) -> Schedule:
    """The rows of sender `index` of `count`: in turn, but whatever waits for answers stays with what it waits for.

    All turns of a session and all requests of a task or of a waiting user go to one sender. With one sender it is the
    schedule itself. Its hash stays that of the whole schedule.
    """
    if count == 1:
        return schedule
    return Schedule(schedule.table.filter(_groups(schedule.table) % count == index), schedule.sha256)


def _groups(table: pa.Table) -> np.ndarray:
    """(rows,) number of the group of each row, counted in order of their first rows."""
    rows = len(table)
    child, parent = links(table)
    present = parent < rows
    tails, heads = child[present], parent[present]
    sessions = table["session"]
    if sessions.null_count < rows:
        in_session = np.flatnonzero(sessions.is_valid().to_numpy())
        _, first, which = np.unique(sessions.drop_null().to_numpy(), return_index=True, return_inverse=True)
        tails, heads = np.concatenate((tails, in_session)), np.concatenate((heads, in_session[first][which]))
    label = np.arange(rows)  # of each row the first row that it is known to be connected with
    while ((one := label[tails]) != (other := label[heads])).any():
        first = np.minimum(one, other)
        np.minimum.at(label, one, first)
        np.minimum.at(label, other, first)
        label = label[label]
    return np.asarray(np.unique(label, return_inverse=True)[1])

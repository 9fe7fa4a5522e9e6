"""What a cluster did as trace events: roles and states of its replicas, migrations, held and rejected requests."""

from collections.abc import Iterator
from typing import Any

from reports import _cluster
from reports._cluster import Stay
from reports._format import clean
from reports._stages import Shown
from reports._trace_requests import us
from reports._trace_steps import FIRST_REPLICA, replicas

Event = dict[str, Any]

ROUTER = 3
"""Process of the router."""

_STATES = 1000
"""Thread of a replica that shows its roles and states, after those of its batches."""

_LASTING = ("migrate", "requeue", "abort", "replicate", "hold")
"""Kinds that are drawn from begin to end; others are instants."""


def names(shown: Shown) -> Iterator[Event]:
    """What the tracks of the router and of the states of replicas are called."""
    if not _cluster.shown(shown.run):
        return
    stays = {stay.replica for stay in _stays(shown)}
    for replica in sorted(stays - {*replicas(shown)}):  # it ran no step
        yield _name("process_name", FIRST_REPLICA + replica, 1, f"replica {replica}")
    for replica in sorted(stays):
        yield _name("thread_name", FIRST_REPLICA + replica, _STATES, "role and state")
    if _cluster.done(shown.run):
        yield _name("process_name", ROUTER, 1, "router")
        yield {"ph": "M", "pid": ROUTER, "tid": 1, "name": "process_sort_index", "args": {"sort_index": 1}}


def events(shown: Shown) -> Iterator[Event]:
    """Slices of every role and state, and of what the router did; instants of failures and rejections."""
    if not _cluster.shown(shown.run):
        return
    for stay in _stays(shown):
        start, end = us(max(stay.from_s, shown.from_s)), us(min(stay.to_s, shown.to_s))
        what = clean(stay.role, 40) if stay.state == "up" else f"{clean(stay.role, 40)}, {stay.state}"
        where = {"pid": FIRST_REPLICA + stay.replica, "tid": _STATES}
        yield {"ph": "X", "name": what, "cat": "state", **where, "ts": start, "dur": round(end - start, 3)}
    for kind, one in _cluster.done(shown.run).items():
        for number, row in enumerate(one.rows.to_pylist()):
            if row["end_s"] < shown.from_s or row["at_s"] > shown.to_s:
                continue
            own = {"name": one.name, "args": _arguments(row)}
            if kind in _LASTING:
                yield from _slice(f"{kind} {number}", row, own)
            elif kind == "reject" or row["replica"] is None:
                yield {"ph": "i", "s": "p", "cat": kind, "pid": ROUTER, "tid": 1, "ts": us(row["at_s"]), **own}
            else:
                pid = FIRST_REPLICA + row["replica"]
                yield {"ph": "i", "s": "p", "cat": kind, "pid": pid, "tid": _STATES, "ts": us(row["at_s"]), **own}


def _stays(shown: Shown) -> list[Stay]:
    return [stay for stay in _cluster.stays(shown.run) if stay.to_s > shown.from_s and stay.from_s < shown.to_s]


def _name(kind: str, pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "pid": pid, "tid": tid, "name": kind, "args": {"name": name}}


def _slice(key: str, row: Event, own: Event) -> Iterator[Event]:
    """From begin to end; of a migration the part in which the request does not decode inside."""
    common = {"cat": "router", "id2": {"local": key}, "pid": ROUTER, "tid": 1}
    stopped_s = row["stop_s"]
    yield {"ph": "b", "ts": us(row["at_s"]), **common, **own}
    if stopped_s is not None and stopped_s < row["end_s"]:
        yield {"ph": "b", "ts": us(stopped_s), **common, "name": "stopped"}
        yield {"ph": "e", "ts": us(row["end_s"]), **common, "name": "stopped"}
    yield {"ph": "e", "ts": us(row["end_s"]), **common, "name": own["name"]}


def _arguments(row: Event) -> Event:
    found = {
        "request": row["request_id"], "replica": row["replica"], "target": row["target"], "tokens": row["tokens"],
        "detail": None if row["detail"] is None else clean(row["detail"]),
    }  # fmt: skip
    return {name: value for name, value in found.items() if value is not None}

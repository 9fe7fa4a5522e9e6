"""A cluster over time: the roles and states of its replicas, and what the router did."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness.data.folder import Run
from harness.data.lists import number
from harness.data.records import ACTIONS
from harness.metrics.measure import first_last
from harness.metrics.quantiles import quantiles
from reports import _data, _format
from reports._format import clean
from reports._system import first, part
from reports.document import Table

State: TypeAlias = Literal["up", "starting", "draining", "down"]
"""`starting`: the replica loads its weights, or takes up another role, and runs nothing."""

ENDS = ("ended_s", "prefill_end_s", "handoff_end_s", "sent_s", "scheduled_s")
"""Columns of which the latest is when a request without a token was over."""
_STATES: dict[str, State] = {"scale": "starting", "drain": "draining", "up": "up", "down": "down"}
_NAMES = {
    "migrate": "migration", "requeue": "move between queues", "abort": "aborted migration", "copy": "KV copied",
    "role": "role change",
    "scale": "replica added", "drain": "replica drained", "failed": "replica failed", "up": "replica up",
    "replicate": "prefix copied", "lend": "memory lent", "hold": "request held", "reject": "request rejected",
    "retime": "experts lost or back",
}  # fmt: skip
"""Kinds of actions, as they are printed: `requeue` is a migration of a request that waited, so that nothing was copied,
`failed` a replica that went down unless it was drained."""


class Stay(NamedTuple):
    """A replica in one role and state, from one time of the run to another (s)."""

    replica: int
    role: str
    state: State
    from_s: float
    to_s: float


def shown(run: Run) -> bool:
    """Whether there is more to tell than of replicas alike behind a router that only routes."""
    roles = _first_roles(run)
    return actions(run).num_rows > 0 or (len(roles) > 1 and {*roles} != {"mixed"})


def actions(run: Run, *kinds: str) -> pa.Table:
    """The rows of the `actions` table, those of some kinds or all."""
    table = ACTIONS.empty_table() if run.actions is None else run.actions
    return table.filter(pc.is_in(table.column("kind"), pa.array(kinds, pa.string()))) if kinds else table


@_data.once
def end_s(run: Run) -> float:
    """When the last request was over (s)."""
    return float(np.max(over_s(run), initial=0.0))


def over_s(run: Run) -> np.ndarray:
    """When a request is over, in seconds: its last token, its end, or, of one that was never sent, when it was due."""
    ends_s: np.ndarray = first_last(run.requests)[1]
    for name in ENDS:
        if name in run.requests.column_names:
            np.fmax(ends_s, number(run.requests, name), out=ends_s)
    return ends_s


def _first_roles(run: Run) -> list[str]:
    """The role of each replica that the run began with."""
    backend = run.info.backend
    sides = [(role, part(backend, role).get("replicas")) for role in ("prefill", "decode")]
    replicas = backend.get("replicas")
    roles = [role for role, n in sides if isinstance(n, int) for _ in range(n)]
    return roles or ["mixed"] * (replicas if isinstance(replicas, int) else 0)


def stays(run: Run) -> list[Stay]:
    """Every replica in each of its roles and states, by replica and time; nothing before it was added."""
    first_roles = _first_roles(run)
    changes: dict[int, list[tuple[float, State | None, str | None]]] = {i: [] for i in range(len(first_roles))}
    for row in actions(run, "scale", "role", "drain", "up", "down").to_pylist():
        if row["replica"] is None:
            continue
        takes = row["end_s"] > row["at_s"]
        history = changes.setdefault(row["replica"], [])
        if row["kind"] == "role":
            history.append((row["at_s"], "starting" if takes else "up", row["detail"]))
            if takes:
                history.append((row["end_s"], None, None))  # up, unless something happened meanwhile
        else:
            history.append((row["at_s"], _STATES[row["kind"]], row["detail"] if row["kind"] == "scale" else None))
    return [stay for i in sorted(changes) for stay in _stays(i, changes[i], first_roles[i : i + 1], end_s(run))]


def _stays(
    replica: int, changes: list[tuple[float, State | None, str | None]], first_role: list[str], until_s: float
) -> Iterator[Stay]:
    role, since_s = (*first_role, "")[0], 0.0
    state: State | None = "up" if first_role else None
    for at_s, following, new_role in [*sorted(changes, key=lambda change: change[0]), (until_s, "up", None)]:
        if following is None and state != "starting":
            continue
        if state is not None and min(at_s, until_s) > since_s:
            yield Stay(replica, role, state, since_s, min(at_s, until_s))
        role, state, since_s = new_role or role, following or "up", at_s


@dataclass(frozen=True, slots=True, eq=False)
class Done:
    """Actions of one kind: the name of one of them, their rows, and (rows,) how long each took (s)."""

    name: str
    rows: pa.Table
    took_s: np.ndarray


@_data.once
def done(run: Run) -> dict[str, Done]:
    """What the router did and what happened to replicas, by kind; only kinds of which there is one."""
    table, by_kind = actions(run), {}
    kinds = np.array(table.column("kind").to_pylist(), object)
    kinds[(kinds == "migrate") & ~(np.nan_to_num(number(table, "tokens")) > 0)] = "requeue"
    drained = np.array([detail == "drained" for detail in table.column("detail").to_pylist()], bool)
    kinds[(kinds == "down") & ~drained] = "failed"
    for kind, name in _NAMES.items():
        rows = table.filter(pa.array(kinds == kind, pa.bool_()))
        if rows.num_rows:
            by_kind[kind] = Done(name, rows, number(rows, "end_s") - number(rows, "at_s"))
    return by_kind


def line(run: Run) -> str:
    """The router with the age of its views, and the GPU time; empty where it only routes."""
    backend = run.info.backend
    gpu_s, report_s = (backend.get(name) for name in ("gpu_s", "router_report_s"))
    if gpu_s is None and done(run).keys() <= {"copy"}:  # of one replica and its tiers
        return ""
    parts = [(first(backend, "router") or "one router").partition(":")[0]]
    if isinstance(report_s, int | float):
        parts.append(f"views {_format.limit(report_s)} old")
    if isinstance(gpu_s, int | float):
        hours = gpu_s >= 3600
        parts.append(f"GPU time {_format.number(gpu_s / 3600 if hours else gpu_s)} {'h' if hours else 's'}")
    return ", ".join(parts)


def table(run: Run) -> Table:
    """A row for each kind of action."""
    rows = []
    for kind, action in done(run).items():
        took_s = (float(action.took_s.mean()), float(action.took_s.max())) if action.took_s.any() else ()
        times = [_format.seconds(value) for value in took_s] or ["", ""]
        rows.append((action.name, f"{action.rows.num_rows:,}", *times, "; ".join(_notes(kind, action))))
    heads = ("action", "count", "mean time", "max time", "")
    return Table("actions by kind", heads, tuple(rows), words=1, narrow=heads[3:1:-1])


def _notes(kind: str, one: Done) -> Iterator[str]:
    if kind == "migrate":
        stopped_s = number(one.rows, "end_s") - number(one.rows, "stop_s")  # in which the requests did not decode
        yield f"downtime mean {_format.seconds(float(stopped_s.mean()))}, max {_format.seconds(float(stopped_s.max()))}"
    elif kind == "hold":
        yield "p50 {}, p99 {}".format(*map(_format.seconds, quantiles(one.took_s.copy(), (0.5, 0.99))))
    if tokens := np.nansum(number(one.rows, "tokens")):
        yield f"{tokens:,.0f} tokens copied"
    details = Counter(detail for detail in one.rows.column("detail").to_pylist() if detail and kind != "failed")
    if details:
        yield ", ".join(f"{clean(detail, 80)}: {n:,}" for detail, n in details.most_common(3))

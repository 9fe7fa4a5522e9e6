"""Steps of the replicas as trace events, with the arrows that lead to them; counters of queue, batch and KV memory."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from harness.validity import server_metrics
from reports._format import clean
from reports._stages import Shown
from reports._trace_requests import arrow, us

Event = dict[str, Any]
Columns = Mapping[str, np.ndarray]

FIRST_REPLICA, SERVER = 10, 2
"""Process of replica 0, after which the others follow, and of a remote endpoint."""

_ARGS = ("prefill_tokens", "decode_seqs", "context_tokens", "running", "waiting", "free_blocks")
_GAUGES = (("running", "requests", "running", 1.0), ("waiting", "requests", "waiting", 1.0),
           ("kv_use", "KV memory", "in use (%)", 100.0))  # fmt: skip


def names(shown: Shown) -> Iterator[Event]:
    """What the tracks of the replicas are called, and on what they run."""
    backend = shown.run.info.backend
    labels = ", ".join(clean(backend[key], 60) for key in ("model", "hardware", "policy") if backend.get(key))
    for replica in replicas(shown):
        pid = FIRST_REPLICA + replica
        yield {"ph": "M", "pid": pid, "tid": 1, "name": "process_name", "args": {"name": f"replica {replica}"}}
        yield {"ph": "M", "pid": pid, "tid": 1, "name": "process_sort_index", "args": {"sort_index": pid}}
        if labels:
            yield {"ph": "M", "pid": pid, "tid": 1, "name": "process_labels", "args": {"labels": labels}}
        for lane in range(_lanes(_of(shown, replica)).max(initial=0) + 1):
            name = "batches" if lane == 0 else f"batches, {lane + 1}"
            yield {"ph": "M", "pid": pid, "tid": lane + 1, "name": "thread_name", "args": {"name": name}}
    if shown.steps is None and shown.run.server_metrics is not None:
        yield {"ph": "M", "pid": SERVER, "tid": 1, "name": "process_name", "args": {"name": "server, by its metrics"}}


def events(shown: Shown) -> Iterator[Event]:
    """Steps, arrows and counters of every replica; of a remote endpoint its gauges."""
    steps = {replica: _of(shown, replica) for replica in replicas(shown)}
    for replica, columns in steps.items():
        yield from _slices(replica, columns)
        yield from _counters(replica, columns, shown.run.info.backend.get("kv_blocks"))
    yield from _arrows(shown, steps)
    if shown.steps is None:
        yield from _gauges(shown)


def replicas(shown: Shown) -> list[int]:
    """The replicas that ran a step."""
    return [] if shown.steps is None else [int(r) for r in np.unique(shown.steps.column("replica").to_numpy())]


def _of(shown: Shown, replica: int) -> Columns:
    assert shown.steps is not None
    mine = shown.steps.column("replica").to_numpy() == replica
    return {name: shown.steps.column(name).to_numpy()[mine] for name in ("start_s", "end_s", *_ARGS)}


def _lanes(steps: Columns) -> np.ndarray:
    """(steps,) a lane for each, such that those of a lane do not overlap: viewers only draw what nests."""
    start, end = steps["start_s"], steps["end_s"]
    lanes = np.zeros(len(start), np.int64)
    if np.all(start[1:] >= end[:-1]):
        return lanes
    free: list[float] = []
    for i, (begin, stop) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        lane = next((at for at, until in enumerate(free) if until <= begin), len(free))
        free[lane : lane + 1] = [stop]
        lanes[i] = lane
    return lanes


def _slices(replica: int, steps: Columns) -> Iterator[Event]:
    """A slice for each step, called by what its batch held."""
    lanes = _lanes(steps).tolist()
    starts, ends = steps["start_s"].tolist(), steps["end_s"].tolist()
    args = list(zip(*(steps[name].tolist() for name in _ARGS), strict=True))
    for lane, start, end, values in zip(lanes, starts, ends, args, strict=True):
        held = dict(zip(_ARGS, values, strict=True))
        kinds = [kind for kind, key in (("prefill", "prefill_tokens"), ("decode", "decode_seqs")) if held[key]]
        yield {
            "ph": "X", "name": " and ".join(kinds) or "decode", "cat": "step", "pid": FIRST_REPLICA + replica,
            "tid": lane + 1, "ts": us(start), "dur": max(0.0, round(us(end) - us(start), 3)), "args": held,
        }  # fmt: skip


def _counters(replica: int, steps: Columns, blocks: object) -> Iterator[Event]:
    """Requests running and waiting, and blocks of KV memory, wherever they change."""
    where = {"ph": "C", "cat": "counter", "pid": FIRST_REPLICA + replica, "tid": 1}
    at = steps["start_s"]
    yield from _changes(where, "requests", at, {name: steps[name] for name in ("running", "waiting")})
    free = steps["free_blocks"]
    if isinstance(blocks, int) and not isinstance(blocks, bool) and blocks >= free.max(initial=0) and blocks > 0:
        use = np.round(100.0 * (blocks - free) / blocks, 3)
        yield from _changes(where, "KV memory", at, {"in use (%)": use})
    else:
        yield from _changes(where, "KV memory", at, {"free (blocks)": free})


def _changes(where: Event, name: str, at_s: np.ndarray, values: Mapping[str, np.ndarray]) -> Iterator[Event]:
    if not len(at_s):
        return
    stacked = np.stack([np.asarray(column, np.float64) for column in values.values()])
    new = np.concatenate([[True], np.any(np.diff(stacked, axis=1) != 0, axis=0)])
    for i in np.flatnonzero(new).tolist():
        args = {key: column[i].item() for key, column in values.items()}
        yield {**where, "name": name, "ts": us(float(at_s[i])), "args": args}


def _arrows(shown: Shown, steps: Mapping[int, Columns]) -> Iterator[Event]:
    """From the sending of each request to the batch that began its prefill, and to the one that gave its last token."""
    found = {replica: (columns, _lanes(columns)) for replica, columns in steps.items()}
    for row in shown.rows:
        start = row.get("prefill_start_s")
        own = row.get("replica")
        there = [own] if own in found else list(found)
        if row["sent_s"] is None or start is None:
            continue
        first = next((at for r in there if (at := _step(r, *found[r], start, ends=False))), None)
        last = next(
            (at for r in there if row["last_s"] and (at := _step(r, *found[r], row["last_s"], ends=True))), None
        )
        ends = [at for at in (first, last) if at is not None]
        for at in ends[:1] if len(ends) == 2 and ends[0] != ends[1] else []:
            yield {"ph": "t", **arrow(row), **at}
        for at in ends[-1:]:
            yield {"ph": "f", "bp": "e", **arrow(row), **at}


def _step(replica: int, steps: Columns, lanes: np.ndarray, time_s: float, *, ends: bool) -> Event | None:
    """Where the step is that began at a time, or held it, or that ended then; None where it is not shown."""
    at = int(np.searchsorted(steps["start_s"], time_s, "left" if ends else "right")) - 1
    if at < 0 or time_s > steps["end_s"][at]:
        return None
    return {"pid": FIRST_REPLICA + replica, "tid": int(lanes[at]) + 1, "ts": us(float(steps["start_s"][at]))}


def _gauges(shown: Shown) -> Iterator[Event]:
    """What a remote endpoint reported of itself, reading by reading."""
    metrics = server_metrics.view(shown.run)
    if metrics is None:
        return
    at_s = metrics.read_s[(metrics.read_s >= shown.from_s) & (metrics.read_s <= shown.to_s)]
    for word, name, unit, scale in _GAUGES:
        values = metrics.gauge(word, at_s, mean=word == "kv_use") if len(at_s) else None
        if values is not None:
            yield from _changes(
                {"ph": "C", "cat": "counter", "pid": SERVER, "tid": 1}, name, at_s, {unit: scale * values}
            )

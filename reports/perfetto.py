"""The timeline of a run as trace events (JSON) for ui.perfetto.dev and chrome://tracing: requests, batches, memory, and
what routers did.

Requests share two names, so that viewers pack those that met their SLO, and those that missed it, on common tracks;
their number stands in the arguments.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness.data.folder import Run
from harness.data.lists import number
from harness.errors import UsageError
from harness.metrics.measure import first_last, missing
from harness.validity import server_metrics
from reports import _cluster, _data
from reports._cluster import ENDS, Stay, over_s
from reports._format import clean, count, option

Event = dict[str, Any]

Row = Mapping[str, Any]

Columns = Mapping[str, np.ndarray]

CLIENT, SERVER, ROUTER, FIRST_REPLICA = 1, 2, 3, 10
"""Processes of the client, of a remote endpoint, of the router, and of replica 0, after which the others follow."""

_STATES = 1000
"""Thread of a replica that shows its roles and states, after those of its batches."""

REQUEST, MISSED = "request", "request, missed its SLO"

CATEGORY = "request"

_LASTING = ("migrate", "requeue", "abort", "replicate", "hold")
"""Kinds of what a router did that are drawn from begin to end; others are instants."""

_ARGS = ("prefill_tokens", "decode_seqs", "context_tokens", "running", "waiting", "free_blocks")

MOST_STEPS = 100_000

_COLUMNS = (
    "request_id", "session", "turn", "tag", "scheduled_s", "sent_s", "arrived_s", "ended_s", "prefill_start_s",
    "prefill_end_s", "handoff_start_s", "handoff_end_s", "decode_start_s", "prompt_tokens", "cached_tokens",
    "output_tokens", "status", "error", "replica", "preemptions",
)  # fmt: skip

_GAUGES = (("running", "requests", "running", 1.0), ("waiting", "requests", "waiting", 1.0),
           ("kv_use", "KV memory", "in use (%)", 100.0))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Perfetto:
    """The first `requests` that are due from `start_s` on (and within `window_s`), and the steps until they ended.

    Requests that were under way at `start_s` are among them. The file says how many of how many it holds.
    """

    requests: int = 1000
    start_s: float = 0.0
    window_s: float | None = None

    def __post_init__(self) -> None:
        if self.requests < 1:
            raise ValueError(f"requests must be 1 or more, got {self.requests}")
        if self.window_s is not None and not self.window_s > 0:
            raise ValueError(f"window must be above 0 s, got {self.window_s:g}")

    def render(self, run: Run) -> str:
        """The JSON text, an event a line. Raises UsageError for a run whose file tells no times."""
        if run.requests.num_rows == 0:
            raise UsageError(f"'{run.path}' holds no single requests; there is no timeline of it.")
        if "sent_s" in missing(run.requests):
            raise UsageError(f"'{run.path}' does not tell when requests were sent; there is no timeline of it.")
        part = shown_part(run, self.requests, self.start_s, self.window_s)
        if not len(part.rows):
            when = span(self.start_s, self.window_s)
            raise UsageError(f"No request of '{run.path}' is due or under way {when}; choose another start.")
        timed = sorted(_events(part), key=lambda event: event["ts"])  # stable: at one instant as they were made
        events = [*_names(part), *timed]
        lines = ",\n".join(json.dumps(event, allow_nan=False, separators=(",", ":")) for event in events)
        other = json.dumps(_other(run, part), allow_nan=False)
        return f'{{"displayTimeUnit":"ms","otherData":{other},"traceEvents":[\n{lines}\n]}}\n'


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """The part: `rows` of requests in the order in which they were due (with `first_s`, `last_s` of their tokens and
    `met`, whether they met the SLO), the `steps` that overlap it, sorted by replica and time, and a sentence."""

    run: Run
    rows: list[dict[str, Any]]
    steps: pa.Table | None
    from_s: float
    to_s: float
    note: str


def _other(run: Run, shown: Shown) -> dict[str, str]:
    """What the viewer shows about the trace: what was run, and what of it is here."""
    info, backend = run.info, run.info.backend
    facts = {
        "made by": f"bench {info.versions.get('bench', '')}",
        "workload": info.workload.name,
        "arrivals": info.workload.arrivals,
        "backend": backend.get("backend") or backend.get("name"),
        **{name: backend.get(name) for name in ("model", "hardware", "policy")},
        "SLO": info.slo.text,
        "started": info.started,
        "shown": shown.note,
        "times": "microseconds since the start of the run",
    }
    return {name: clean(value) for name, value in facts.items() if value not in (None, "")}


def _names(shown: Shown) -> Iterator[Event]:
    """What the tracks of the client, the replicas, their states and the router are called."""
    yield _name(CLIENT, 1, "process_name", "client: requests")
    yield _name(CLIENT, 1, "process_sort_index", 0, "sort_index")
    for replica in _replicas(shown):
        pid = FIRST_REPLICA + replica
        yield _name(pid, 1, "process_name", f"replica {replica}")
        yield _name(pid, 1, "process_sort_index", pid, "sort_index")
        for lane in range(_lanes(_of(shown, replica)).max(initial=0) + 1):
            yield _name(pid, lane + 1, "thread_name", "batches" if lane == 0 else f"batches, {lane + 1}")
    if shown.steps is None and shown.run.server_metrics is not None:
        yield _name(SERVER, 1, "process_name", "server, by its metrics")
    if not _cluster.shown(shown.run):
        return
    stays = {stay.replica for stay in _stays(shown)}
    for replica in sorted(stays - {*_replicas(shown)}):  # it ran no step
        yield _name(FIRST_REPLICA + replica, 1, "process_name", f"replica {replica}")
    for replica in sorted(stays):
        yield _name(FIRST_REPLICA + replica, _STATES, "thread_name", "role and state")
    if _cluster.done(shown.run):
        yield _name(ROUTER, 1, "process_name", "router")
        yield _name(ROUTER, 1, "process_sort_index", 1, "sort_index")


def _name(pid: int, tid: int, kind: str, value: object, key: str = "name") -> Event:
    return {"ph": "M", "pid": pid, "tid": tid, "name": kind, "args": {key: value}}


def _events(shown: Shown) -> Iterator[Event]:
    """Every request, every step with its counters, and what the router did."""
    for row in shown.rows:
        common = {"cat": CATEGORY, "id2": {"local": f"0x{int(row['request_id']) + 1:x}"}, "pid": CLIENT, "tid": 1}
        begin, end, name = row["scheduled_s"], _over(row), MISSED if row["met"] is False else REQUEST
        yield {"ph": "b", "ts": _us(begin), "name": name, **common, "args": _of_request(row)}
        for phase, start, stop in _phases(row):
            yield {"ph": "b", "ts": _us(start), "name": phase, **common}
            yield {"ph": "e", "ts": _us(stop), "name": phase, **common}
        yield {"ph": "e", "ts": _us(end), "name": name, **common}
    for replica in _replicas(shown):
        columns = _of(shown, replica)
        yield from _slices(replica, columns)
        yield from _counters(replica, columns, shown.run.info.backend.get("kv_blocks"))
    if shown.steps is None:
        yield from _gauges(shown)
    if _cluster.shown(shown.run):
        yield from _actions(shown)


def _us(time_s: float) -> float:
    """Seconds as microseconds, to the nanosecond: more the viewers do not keep."""
    return round(time_s * 1e6, 3)


def _phases(row: Row) -> list[tuple[str, float, float]]:
    """(name, from, to) in seconds, one after the other, as far as the backend stamped them."""
    sent, first, last = row["sent_s"], row["first_s"], row["last_s"]
    phases = [("late", row["scheduled_s"], sent)] if sent is not None and sent > row["scheduled_s"] else []
    if sent is None:
        return phases
    start, end = row.get("prefill_start_s"), row.get("prefill_end_s")
    if start is None or end is None:
        phases.append(("to first token", sent, first if first is not None else _over(row)))
    else:
        arrived = sent if row.get("arrived_s") is None else min(max(sent, row["arrived_s"]), start)
        phases += [("front end", sent, arrived), ("queue", arrived, start), ("prefill", start, end)]
        if first is not None:  # slices of a request lie one after the other
            moved = row.get("handoff_start_s")
            phases.append(("front end", end, first if moved is None else min(first, moved)))
    if row.get("handoff_start_s") is not None and row.get("handoff_end_s") is not None:
        phases.append(("hand-off", row["handoff_start_s"], row["handoff_end_s"]))
    if first is not None and last is not None and last > first:
        phases.append(("decode", max(first, phases[-1][2]), last))
    over = _over(row)
    return [(name, a, min(b, over)) for name, a, b in phases if min(b, over) > a]


def _over(row: Row) -> float:
    """When a request was over, whatever became of it."""
    times = [row[name] for name in ("last_s", *ENDS) if row.get(name) is not None]
    return float(max(times))


def _of_request(row: Row) -> Event:
    """What is known of a request; texts from outside as one harmless line."""
    args = {
        "request": row["request_id"],
        "status": clean(row["status"], 40),
        "prompt_tokens": row["prompt_tokens"],
        "output_tokens": row["output_tokens"],
        "cached_tokens": row.get("cached_tokens"),
        "replica": row.get("replica"),
        "preemptions": row.get("preemptions"),
        "session": row.get("session"),
        "turn": row.get("turn") if row.get("session") is not None else None,
        "class": None if row.get("tag") is None else clean(row["tag"], 80),
        "error": None if row.get("error") is None else clean(row["error"]),
        "TTFT (ms)": _ms(row["first_s"], row["scheduled_s"]),
        "E2E (ms)": _ms(row["last_s"], row["scheduled_s"]),
        "kept its SLO": None if row["met"] is None else "yes" if row["met"] else "no",
    }
    return {name: value for name, value in args.items() if value is not None}


def _ms(end_s: float | None, start_s: float) -> float | None:
    return None if end_s is None else round((end_s - start_s) * 1e3, 6)


def _replicas(shown: Shown) -> list[int]:
    """The replicas that ran a step."""
    return [] if shown.steps is None else [int(r) for r in np.unique(shown.steps.column("replica").to_numpy())]


def _of(shown: Shown, replica: int) -> Columns:
    assert shown.steps is not None
    rows = shown.steps.column("replica").to_numpy() == replica
    return {name: shown.steps.column(name).to_numpy()[rows] for name in ("start_s", "end_s", *_ARGS)}


def _lanes(steps: Columns) -> np.ndarray:
    """(steps,) a lane for each, such that those of a lane do not overlap: viewers only draw what nests."""
    start, end = steps["start_s"], steps["end_s"]
    lanes = np.zeros(len(start), np.int64)
    if np.all(start[1:] >= end[:-1]):
        return lanes
    free: list[float] = []
    for i, (begin, stop) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        lane = next((index for index, until in enumerate(free) if until <= begin), len(free))
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
            "tid": lane + 1, "ts": _us(start), "dur": max(0.0, round(_us(end) - _us(start), 3)), "args": held,
        }  # fmt: skip


def _counters(replica: int, steps: Columns, blocks: object) -> Iterator[Event]:
    """Requests running and waiting, and blocks of KV memory, wherever they change."""
    track = {"ph": "C", "cat": "counter", "pid": FIRST_REPLICA + replica, "tid": 1}
    start_s = steps["start_s"]
    yield from _changes(track, "requests", start_s, {name: steps[name] for name in ("running", "waiting")})
    free = steps["free_blocks"]
    if isinstance(blocks, int) and not isinstance(blocks, bool) and blocks >= free.max(initial=0) and blocks > 0:
        use = np.round(100.0 * (blocks - free) / blocks, 3)
        yield from _changes(track, "KV memory", start_s, {"in use (%)": use})
    else:
        yield from _changes(track, "KV memory", start_s, {"free (blocks)": free})


def _changes(where: Event, name: str, at_s: np.ndarray, values: Mapping[str, np.ndarray]) -> Iterator[Event]:
    if not len(at_s):
        return
    stacked = np.stack([np.asarray(column, np.float64) for column in values.values()])
    new = np.concatenate([[True], np.any(np.diff(stacked, axis=1) != 0, axis=0)])
    for i in np.flatnonzero(new).tolist():
        args = {key: column[i].item() for key, column in values.items()}
        yield {**where, "name": name, "ts": _us(float(at_s[i])), "args": args}


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


def _actions(shown: Shown) -> Iterator[Event]:
    """Slices of every role and state, and of what the router did; instants of failures and rejections."""
    for stay in _stays(shown):
        start, end = _us(max(stay.from_s, shown.from_s)), _us(min(stay.to_s, shown.to_s))
        what = clean(stay.role, 40) if stay.state == "up" else f"{clean(stay.role, 40)}, {stay.state}"
        track = {"pid": FIRST_REPLICA + stay.replica, "tid": _STATES}
        yield {"ph": "X", "name": what, "cat": "state", **track, "ts": start, "dur": round(end - start, 3)}
    for kind, action in _cluster.done(shown.run).items():
        for place, row in enumerate(action.rows.to_pylist()):
            if row["end_s"] < shown.from_s or row["at_s"] > shown.to_s:
                continue
            event = {"name": action.name, "args": _of_action(row)}
            if kind in _LASTING:
                yield from _slice(f"{kind} {place}", row, event)
            elif kind == "reject" or row["replica"] is None:
                yield {"ph": "i", "s": "p", "cat": kind, "pid": ROUTER, "tid": 1, "ts": _us(row["at_s"]), **event}
            else:
                pid = FIRST_REPLICA + row["replica"]
                yield {"ph": "i", "s": "p", "cat": kind, "pid": pid, "tid": _STATES, "ts": _us(row["at_s"]), **event}


def _stays(shown: Shown) -> list[Stay]:
    return [stay for stay in _cluster.stays(shown.run) if stay.to_s > shown.from_s and stay.from_s < shown.to_s]


def _slice(key: str, row: Event, own: Event) -> Iterator[Event]:
    """From begin to end; of a migration the part in which the request does not decode inside."""
    common = {"cat": "router", "id2": {"local": key}, "pid": ROUTER, "tid": 1}
    stopped_s = row["stop_s"]
    yield {"ph": "b", "ts": _us(row["at_s"]), **common, **own}
    if stopped_s is not None and stopped_s < row["end_s"]:
        yield {"ph": "b", "ts": _us(stopped_s), **common, "name": "stopped"}
        yield {"ph": "e", "ts": _us(row["end_s"]), **common, "name": "stopped"}
    yield {"ph": "e", "ts": _us(row["end_s"]), **common, "name": own["name"]}


def _of_action(row: Event) -> Event:
    args = {
        "request": row["request_id"], "replica": row["replica"], "target": row["target"], "tokens": row["tokens"],
        "detail": None if row["detail"] is None else clean(row["detail"]),
    }  # fmt: skip
    return {name: value for name, value in args.items() if value is not None}


def shown_part(run: Run, most: int, start_s: float, window_s: float | None) -> Shown:
    """The first `most` requests that are due, or still under way, from `start_s` on, within `window_s`."""
    until_s = np.inf if window_s is None else start_s + window_s
    due, ended = number(run.requests, "scheduled_s"), over_s(run)
    within = np.flatnonzero((ended >= start_s) & (due < until_s))
    order = within[np.lexsort((within, due[within]))]
    chosen = order[:most]
    rows = _rows(run, chosen)
    to_s = float(min(until_s, np.max(ended[chosen], initial=start_s)))
    steps, left_out = _steps(run, start_s, to_s)
    note = _note(len(chosen), len(order), run, span(start_s, window_s))
    cut = f"; {count(left_out, 'later step')} left out" if left_out else ""
    return Shown(run, rows, steps, start_s, to_s, note + cut)


def span(start_s: float, window_s: float | None) -> str:
    """A window of the run in words."""
    end = "on" if window_s is None else f"to {option(start_s + window_s)} s"
    return f"from {option(start_s)} s {end}"


def _note(kept: int, there: int, run: Run, where: str) -> str:
    """How much of the run it is."""
    total = run.requests.num_rows
    which = f"all {there:,}" if kept == there else f"the first {kept:,} of {there:,}"
    if there == total:
        return f"{which} requests"
    return f"{which} requests due or under way {where}, of {total:,} in all"


def _rows(run: Run, kept: np.ndarray) -> list[dict[str, Any]]:
    table = run.requests.take(pa.array(kept))
    first, last = first_last(table)
    columns = [name for name in _COLUMNS if name in table.column_names]
    met = _data.met(run)
    rows: list[dict[str, Any]] = table.select(columns).to_pylist()
    for row, index, first_s, last_s in zip(rows, kept.tolist(), first.tolist(), last.tolist(), strict=True):
        row["first_s"] = first_s if np.isfinite(first_s) else None
        row["last_s"] = last_s if np.isfinite(last_s) else None
        row["met"] = None if met is None else bool(met[index])  # None: no bound is on single requests
    return rows


def _steps(run: Run, from_s: float, to_s: float) -> tuple[pa.Table | None, int]:
    """The steps that overlap a time, the first of them, and how many more there would be."""
    if not _data.has_steps(run):
        return None, 0
    within = []
    for piece in run.step_pieces():
        ends, starts = piece.column("end_s"), piece.column("start_s")
        within.append(piece.filter(pc.and_(pc.greater_equal(ends, from_s), pc.less_equal(starts, to_s))))
    steps = pa.concat_tables(within)
    steps = steps.sort_by([("start_s", "ascending"), ("replica", "ascending")])
    first = steps.slice(0, MOST_STEPS).sort_by([("replica", "ascending"), ("start_s", "ascending")])
    return first, steps.num_rows - first.num_rows

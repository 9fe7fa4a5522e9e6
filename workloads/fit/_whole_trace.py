"""Traces of whole sessions drawn from a model: so many sessions, requests or seconds, at the times of its requests."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from harness.errors import UsageError
from workloads.fit import _draw
from workloads.fit._whole import FROM_REQUESTS
from workloads.fit._whole_draw import Drawing, Session, table
from workloads.traces import Trace

if TYPE_CHECKING:
    import pyarrow as pa

    from workloads.fit.model import Model

_STARTS, _SESSIONS = 10, 11  # of the seed's children, beside those that other draws of the same seed take


def drawn(
    model: Model,
    *,
    sessions: int | None = None,
    requests: int | None = None,
    duration_s: float | None = None,
    rate_rps: float | None = None,
    whole: bool = False,
    seed: int = 0,
) -> Trace:
    """The first so many `sessions`, `requests` or seconds, whatever ends first; a `rate_rps` is that of requests.

    Requests come at the rate and with the bursts of the model: a session begins with an arrival of the model, unless a
    turn of an earlier one has taken its place. The last ones are cut when the last session begins, as in a recorded
    trace; `whole` ones are not. Sessions with clocks of their own follow one another. Raises UsageError for a rate that
    they do not have, and where nothing is drawn.
    """
    assert model.whole is not None
    own_clocks = model.whole["own_clocks"]
    if rate_rps is not None and own_clocks:
        raise UsageError(
            f"The sessions of '{model.source.get('file')}' have clocks of their own, so their model has no rate; leave "
            "the rate out."
        )
    own, begins = (np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(k,))) for k in (_SESSIONS, _STARTS))
    made = Drawing(model.whole, own).sessions()
    arrivals = None if own_clocks else _arrivals(model, begins, rate_rps)
    found: list[Session] = []
    starts_s: list[float] = []
    turns: list[float] = []  # times of later turns that are not due yet, a heap
    due = taken = 0  # turns that are due, and those of them that have taken the place of an arrival
    next_s = 0.0
    while sessions is None or len(found) < sessions:
        at_s = next_s if arrivals is None else next(arrivals)
        while turns and turns[0] <= at_s:
            heapq.heappop(turns)
            due += 1
        if (duration_s is not None and at_s >= duration_s) or (requests is not None and len(found) + due >= requests):
            break
        if arrivals is not None and taken < due:
            taken += 1
            continue
        found.append(next(made))
        starts_s.append(at_s)
        next_s = at_s + found[-1].lasts_s
        for later_s in (found[-1].at_s[1:] + at_s).tolist():
            heapq.heappush(turns, later_s)
    if not found:
        raise UsageError("No session begins in that time; give a longer duration or a higher rate.")
    rows = table(found, starts_s)
    ends_s = [] if whole or own_clocks else [starts_s[-1]]
    ends_s += [] if duration_s is None else [float(np.nextafter(duration_s, 0.0))]
    if ends_s:
        rows = rows.slice(0, int(np.searchsorted(rows["at_s"], min(ends_s), side="right")))
    return _trace(model, rows.slice(0, requests), seed)


def _arrivals(model: Model, rng: np.random.Generator, rate_rps: float | None) -> Iterator[float]:
    """Times (s) of the requests of all services, at the rate of those that are in sessions."""
    assert model.whole is not None
    times = _draw.arrivals(model, rng, rate_rps or model.whole["rate_rps"])
    return (at_s for block, _ in times for at_s in block.tolist())


def _trace(model: Model, rows: pa.Table, seed: int) -> Trace:
    assert model.whole is not None
    file = model.source.get("file")
    unknown = [name for name, part in (("api_s", "answer_s"), ("common_tokens", "common_tokens"))
               if model.whole[part] is None]  # fmt: skip
    at_s, from_requests = np.asarray(rows["at_s"]), model.whole["pause_is"] == FROM_REQUESTS
    facts = {
        "file": f"model of {file}", "sha256": model.source.get("sha256"), "reader": "model", "drawn_with_seed": seed,
        **({"clock": "session"} if model.whole["own_clocks"] else {}), "rows": len(rows), "requests": len(rows),
        "dropped": {}, "time_0": "the first session", "start_s": None, "stop_s": None, "limit": None,
        "span_s": float(at_s[-1] - at_s[0]), "grain_s": None, "duplicates": 0, "oddities": [],
        **({"think_times": FROM_REQUESTS} if from_requests else {}),
    }  # fmt: skip
    return Trace(rows.drop_columns(unknown), int(model.whole["block_tokens"]), facts)

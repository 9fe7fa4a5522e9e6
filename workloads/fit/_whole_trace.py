"""Traces of whole sessions drawn from a model: so many sessions, requests or seconds, at the model's times."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from harness.errors import UsageError
from workloads.fit._whole import FROM_REQUESTS
from workloads.fit._whole_draw import Drawing, Session, mean_turns, table
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

    Sessions begin at the times of the model and are cut where the trace ends, when the last one begins; `whole` ones
    are not cut. Sessions with clocks of their own follow one another. Raises UsageError for a rate that they do not
    have, and where nothing is drawn.
    """
    assert model.whole is not None
    file = model.source.get("file")
    if rate_rps is not None and model.starts is None:
        raise UsageError(
            f"The sessions of '{file}' have clocks of their own, so their model has no rate; leave the rate out."
        )
    own, begins = (np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(k,))) for k in (_SESSIONS, _STARTS))
    made = Drawing(model.whole, own).sessions()
    found: list[Session] = []
    starts_s: list[float] = []
    waiting: list[float] = []  # times of requests that are not due yet, a heap
    due, next_s = 0, 0.0
    times_s = _times(model, begins, rate_rps)
    while True:
        start_s = next_s if times_s is None else next(times_s)
        end_s = start_s
        while waiting and waiting[0] < start_s:
            heapq.heappop(waiting)
            due += 1
        if (sessions is not None and len(found) >= sessions) or (duration_s is not None and start_s >= duration_s):
            break
        if requests is not None and due >= requests:
            break
        found.append(next(made))
        starts_s.append(start_s)
        for at_s in (found[-1].at_s + start_s).tolist():
            heapq.heappush(waiting, at_s)
        next_s = start_s + found[-1].lasts_s
    if not found:
        raise UsageError("No session begins in that time; give a longer duration or a higher rate.")
    whole_table = table(found, starts_s)
    if not (whole or model.starts is None):
        whole_table = whole_table.slice(0, max(int(np.searchsorted(whole_table["at_s"], end_s)), 1))
    if duration_s is not None:
        whole_table = whole_table.slice(0, max(int(np.searchsorted(whole_table["at_s"], duration_s)), 1))
    return _trace(model, whole_table.slice(0, requests), seed)


def _times(model: Model, rng: np.random.Generator, rate_rps: float | None) -> Iterator[float] | None:
    """When sessions begin; None where one follows another."""
    if model.starts is None:
        return None
    assert model.whole is not None
    each_rps = model.starts.rate_rps if rate_rps is None else rate_rps / mean_turns(model.whole)
    return (at_s for block in model.starts.times(rng, each_rps) for at_s in block.tolist())


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

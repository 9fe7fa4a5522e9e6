"""A search that has minutes: a few requests alone and one closed loop of rising load tell where it begins.

The search itself is that of `bench capacity` on a wall clock. Its ramp takes several answers for each doubling of the
rate; a closed loop whose users become more meets every load on its way, and never floods a server.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness import termination
from harness.api import Remote, RequestRecord
from harness.data.folder import load
from harness.data.lists import number
from harness.data.run_json import Floor
from harness.errors import BackendError, BenchError
from harness.experiments.capacity.blocks import ALONE
from harness.experiments.capacity.capacity_json import CapacityAnswer
from harness.experiments.capacity.conditions import Condition, shares
from harness.experiments.capacity.execute import Setup, TrialFactory, run_search, tell_load
from harness.experiments.capacity.search_spec import plain
from harness.experiments.capacity.store import Store
from harness.experiments.capacity.trials import TICK_S, TRIALS_FOLDER, Key, Runs, Task, Trial, ended_s
from harness.experiments.trial import at_rate
from harness.metrics.measure import first_last, headline, metrics, succeeded
from harness.runner.plan import Plan, plan
from harness.runner.progress import QUIET, Display
from harness.runner.remote import calibration
from harness.runner.remote.split import events_rps, sender_count
from harness.runner.run import execute

if TYPE_CHECKING:
    from harness.runner.live import Live

ALONE_S, ALONE_MOST_S = 5.0, 40.0
"""Requests go one after the other for so long, and the last answer is awaited until the second."""
USERS = 64
RISE = 4.0, 8.0, 20.0
"""The users of the closed loop start over so many answers, within these limits in seconds."""
LOOP_SHARE = 0.3
"""Of the time that is left, what the loop may take; on a busy machine a run takes long to begin and to conclude."""
MISSES = 8
"""So many show that the load is too high, and end the loop."""
NEAR = 12
"""Requests before the crossing whose latencies give the rate there."""
FIRST_TOKENS = 5
"""So many first tokens tell how fast answers begin."""
BELOW = 0.8
"""The search begins so far below that rate."""
LOOP_FOLDER = "closed-loop"
FLOOR_S, FLOOR_REQUESTS = 2.0, 100
"""How long the client is measured, and the requests whose rate and lengths it is measured with."""


def quick_search(
    setup: Setup, store: Store, ends_s: float, tell: Callable[[str], None] = lambda _: None, display: Display = QUIET
) -> CapacityAnswer:
    """The answer of a search that is over at `ends_s` of the monotonic clock. Raises as `run_search`."""
    assert store.path is not None  # every search under the wall clock has a folder
    tell_load(setup, tell)
    with tempfile.TemporaryDirectory() as folder:
        shared = Path(folder, "probe.json")
        runs = Runs(store.path, lambda note: tell(note) if note.startswith("warning: ") else None, shared, display)
        make: TrialFactory = runs
        settings, backend = setup.settings, setup.planned.backend
        try:
            if isinstance(backend, Remote) and setup.alone_rps == 0 and settings.from_rps is None:
                with store.opened(setup):
                    unloaded = _alone(setup, store, runs, ends_s, tell)
                    first_rps = None
                    left_s = ends_s - time.monotonic()
                    if unloaded.e2e_s and _rise_s(unloaded) + unloaded.more_s < LOOP_SHARE * left_s:
                        first_rps = _loaded(setup, store.path, unloaded, shared, ends_s, tell, display)
                settings = replace(settings, from_rps=first_rps)
                if (limit := settings.max_requests) is not None and first_rps is not None:
                    settings = replace(settings, max_requests=max(1, limit - limit // 2))
        except KeyboardInterrupt:  # what was measured by then is in the store
            make = _interrupted
        settings = replace(settings, budget_s=max(1.0, ends_s - time.monotonic()))
        return run_search(replace(setup, settings=settings), store, make, tell=tell)


def _wanted(setup: Setup) -> tuple[Condition, ...]:
    return setup.search_spec(setup.settings.goals[0]).wanted


def _interrupted(tasks: Iterable[Task]) -> Iterator[Trial]:  # noqa: ARG001  # a TrialFactory
    raise KeyboardInterrupt


def _alone(setup: Setup, store: Store, runs: Runs, ends_s: float, tell: Callable[[str], None]) -> Trial:
    """The first trial of the search: requests one after the other, as many as there is time for."""
    assert store.path is not None
    key = Key(setup.spec.seed, 0.0, ALONE)
    if (before := store.ledger.get(key)) is not None:
        return before
    task = Task(
        replace(setup.spec, duration=ALONE_S), setup.own_rps, setup.slo, key, _wanted(setup),
        ends_s=min(ends_s, time.monotonic() + ALONE_S + ALONE_MOST_S),
    )  # fmt: skip
    (unloaded,) = runs([task])
    table = load(store.path / TRIALS_FOLDER / task.folder).requests
    table = table.filter(pa.array(succeeded(table)))
    if unloaded.e2e_s and len(table):
        unloaded = replace(unloaded, e2e_s=_answer_s(table, setup))
        latencies = [(metric.label, metric.of(table)) for metric in headline()]
        medians = (f"{label} {np.nanmedian(values):.3g} s" for label, values in latencies if np.isfinite(values).any())
        tell(f"one request at a time: {', '.join(medians)} (medians of {len(table)})")
    store.ledger.add(unloaded)
    return unloaded


def _answer_s(table: pa.Table, setup: Setup) -> float:
    """How long an answer of mean length takes, by TTFT and TPOT of a few requests, whose own lengths differ widely."""
    ttft_s, tpot_s = (metrics()[name].of(table) for name in ("ttft", "tpot"))
    tokens = float(setup.planned.schedule.table["output_tokens"].to_numpy().mean())
    each_s = float(np.nanmean(tpot_s)) if np.isfinite(tpot_s).any() else 0.0
    return max(1e-3, float(np.mean(ttft_s)) + (tokens - 1) * each_s)


def _loaded(
    setup: Setup, path: Path, alone: Trial, shared: Path, ends_s: float, tell: Callable[[str], None], display: Display
) -> float | None:
    """Where the search begins, in requests per second, by a closed loop whose users become more until requests miss."""
    rise_s, limit = _rise_s(alone), setup.settings.max_requests
    loop_requests = None if limit is None else max(1, limit // 2)
    tell(f"looking for the load that is too much: up to {USERS} requests at once, about {rise_s:.0f} s")
    spec = replace(
        setup.spec, arrivals=f"closed:users={USERS},think_s=0,ramp_s={rise_s:.4g}", rate=None, requests=loop_requests,
        duration=rise_s, warmup="none", calibrate=0.0,
    )  # fmt: skip
    watch = _TooMuch(rise_s + (alone.e2e_s or 0.0), ends_s)
    try:
        result = execute(spec, out=path / LOOP_FOLDER, force=True, watch=watch, shared=shared, display=display)
    finally:
        watch.over.set()
    result.outcome.check()
    if result.outcome.error is not None:
        raise BackendError(result.outcome.error)
    if termination.received() or (result.outcome.ended != "finished" and not watch.stopped):
        raise KeyboardInterrupt
    return first_rate(result.run.requests, setup)


def _rise_s(alone: Trial) -> float:
    answers, least_s, most_s = RISE
    return min(most_s, max(least_s, answers * (alone.e2e_s or 0.0)))


class _TooMuch:
    """Ends a loop once enough requests have missed the SLO, or its time is over: `lasts_s` of traffic, or `ends_s` of
    the monotonic clock."""

    def __init__(self, lasts_s: float, ends_s: float) -> None:
        self._lasts_s, self._ends_s = lasts_s, ends_s
        self.over = Event()
        self.stopped = False

    def begin(self, _: Plan, live: Live) -> None:
        """Look several times a second."""

        def look() -> None:
            while not self.over.wait(TICK_S):
                over = live.elapsed_s() > self._lasts_s or time.monotonic() > self._ends_s
                if over or live.scored - live.met >= MISSES:
                    self.stopped = True
                    live.stop(at_once=True)  # without effect before the run has begun: look again

        Thread(target=look, name="bench-quick", daemon=True).start()

    def take(self, _: Sequence[RequestRecord]) -> bool:
        """The counters of the run tell all."""
        return False


def first_rate(table: pa.Table, setup: Setup) -> float | None:
    """Where to begin a search, in requests per second, from a loop in which more and more requests were under way.

    The load is too high from the request on after which the sum of (met - goal) only falls. By Little's law a steady
    state has there as many requests a second as are under way, over the time of an answer of mean length (those that
    had ended are short ones). While users are added more begin than that, and the capacity is between both rates: the
    geometric mean. It is not above the rate at which answers began: where requests queue, as on a server of one slot,
    both of the others tell mostly how fast users are added. None where nothing ended.
    """
    table = table.sort_by("scheduled_s")
    due_s, end_s = number(table, "scheduled_s"), ended_s(table)
    ended = table.filter(pc.field("status") != "cancelled")
    good = {share.key: share.mask for share in shares(ended, setup.slo)}
    conditions = _wanted(setup)
    masks = [mask for c in conditions if (mask := good[c.key]) is not None]
    if not len(ended) or not masks:
        return None
    goal = max(condition.goal for condition in conditions)
    sums = np.cumsum(np.logical_and.reduce(masks) - goal)
    last = int(sums.argmax()) if sums.max() > 0 else 0
    window = ended.slice(max(0, last + 1 - NEAR), NEAR)
    window = window.filter(pa.array(succeeded(window)))
    if not len(window):
        return None
    middle_s = (number(window, "scheduled_s") + ended_s(window)) / 2  # of each request, when others slow it down
    under_way = [(due_s <= at_s).sum() - (end_s <= at_s).sum() for at_s in middle_s]
    steady_rps = float(np.mean(under_way)) / _answer_s(window, setup)
    begun_s = number(window, "scheduled_s")
    begun_rps = float(((due_s >= begun_s[0]) & (due_s <= begun_s[-1])).sum() / max(begun_s[-1] - begun_s[0], 0.1))
    if last + 1 == len(ended):
        return plain(max(1e-3, steady_rps))
    first_s = np.sort(first_last(table)[0])
    first_s = first_s[np.isfinite(first_s)]
    most_rps = (len(first_s) - 1) / max(np.ptp(first_s), 1e-3) if len(first_s) >= FIRST_TOKENS else math.inf
    return plain(max(1e-3, min(most_rps, BELOW * math.sqrt(steady_rps * max(steady_rps, begun_rps)))))


def client_floor(setup: Setup, info: CapacityAnswer) -> Floor | None:
    """The error of the client's times at the rate that was found, or the highest one tried; None where it has none that
    can be measured."""
    backend = setup.planned.backend
    rates = [rate for answer in info.answers for rate in (answer.capacity_rps, *answer.bracket_rps) if rate]
    rate_rps = next(iter(rates), max((point.rate_rps for point in info.curve), default=0.0))
    if not isinstance(backend, Remote) or not backend.stream or not rate_rps:
        return None
    planned = plan(at_rate(replace(setup.spec, requests=FLOOR_REQUESTS, duration=None), rate_rps, setup.own_rps))
    senders = sender_count(setup.spec.senders, events_rps(planned.schedule))
    try:
        floor = termination.run(calibration.measure(backend, planned.schedule, senders, FLOOR_S))
    except (BenchError, OSError, KeyboardInterrupt):  # an answer without a floor is better than none
        return None
    return calibration.combined(floor, floor)

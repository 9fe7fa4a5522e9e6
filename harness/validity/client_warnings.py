"""Warnings of a run against a remote server whose client or network may have distorted the measurement.

The thresholds are choices of this project unless a source is named; each warning has its remedy.
"""

import os
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from harness.api import Bound, RunWarning, Slo
from harness.data.folder import Run
from harness.data.lists import number
from harness.data.run_json import Described, Fidelity, RunInfo
from harness.metrics.objective import score
from harness.metrics.quantiles import quantile
from harness.validity import answer_warnings, server_metrics
from harness.validity.checks import LATENESS
from harness.validity.fidelity import LATE_S
from harness.validity.remote import (
    Floats,
    Senders,
    column,
    floors_s,
    most,
    ms,
    of_each,
    of_held_back,
    ratio,
    shared_share,
    stamps_of,
    total,  # fmt: skip
)
from harness.validity.rules import Rule, applying, plural

LATE_BOUND_SHARE = 0.05
"""Lateness (p99) above this share of the tightest bound on TTFT or E2E, of which it is a part, is a warning."""

SPOILT_BOUND_SHARE, SPOILT_SHARE = 0.10, 0.01
"""A request that left later than this share of its TTFT bound is spoilt; more than the second share: not valid."""

LEAST_RATE = 0.99
"""Share of the drawn rate that the sending must reach."""

LAG_SHARE = 0.10
"""Read lag (p99) above this share of the median ITL is a warning."""

SHARED_SHARE = 0.05
"""Share of token events that may be read together with a later one, whose time they then get."""

CPU_SHARE, RUN_WAIT_SHARE = 0.80, 0.05
"""Share of a core that a sender may use in any second, and share of the time that it may wait for one."""

STALL_S, PAUSE_S = 0.020, 0.005
"""Longest time that an event loop may be late, and that a collection of garbage may take."""

OTHER_CORES = 0.2
"""Cores that other processes may use, per sender."""

CONNECT_S = 0.010
RETRANSMITS = 0.001
FILES_SHARE = 0.80
SLOPE_PPM = 100.0
HOST_CLOCK_S = 0.001
FLOOR_SHARE = 0.10


FELL_BACK_SHARE = 0.01

QUIETER = "quiet the machine, or send from another one"


def warnings(run: Run, objective: Slo, fidelity: Fidelity) -> Iterator[RunWarning]:
    """Warnings of a run against a remote server."""
    senders = run.info.client.per_sender
    remedy = _remedy(run.info, senders)
    yield from applying((*_sending(run, objective, fidelity, remedy), *_reading(run, senders, remedy)))
    yield from applying((*_busy(senders, remedy), *_network(run, senders), *_clock(run, senders)))
    yield from applying(_floor(run.info, objective, remedy, held=of_held_back(run) is not None))
    yield from answer_warnings.answer_warnings(run)
    yield from server_metrics.warnings(run.info.server.compared or [])


def _remedy(info: RunInfo, senders: Senders) -> str:
    """What helps a client that is too slow: more processes only where one is busy, not waiting, and cores are free."""
    if most(senders, "cpu_share_max") <= CPU_SHARE:
        return QUIETER
    waits = most(senders, "run_wait_share") > RUN_WAIT_SHARE
    if any(sender.host for sender in senders):
        return "lower --rate, or send from more hosts"
    count, cores = info.client.senders or len(senders), info.host.get("cores")
    cores = cores if isinstance(cores, int) else os.cpu_count() or 1
    if waits or count >= cores:
        return "lower --rate, quiet the machine, or send from another one"
    return "take more senders (--senders), or lower --rate"


def reasons(run: Run, objective: Slo) -> Iterator[RunWarning]:
    """Why a run against a remote server is not valid."""
    bounds = (replace(bound, percentile=None) for bound in objective.bounds if bound.metric in ("ttft", "ttft_sent"))
    scored = score(run.requests, replace(objective, bounds=tuple(bounds)))
    limit_s = np.minimum(*(scored.limits_s(metric) for metric in ("ttft", "ttft_sent")))
    late_s = _late_s(run.requests)
    share = float((late_s > SPOILT_BOUND_SHARE * limit_s).mean()) if len(late_s) else 0.0
    return applying([
        Rule(share > SPOILT_SHARE, LATENESS,
             f"The client sent {share:.1%} of the requests later than {SPOILT_BOUND_SHARE:.0%} of their TTFT bound "
             f"(allowed: {SPOILT_SHARE:.0%}), so TTFT measures the client and not the server.",
             _remedy(run.info, run.info.client.per_sender)),
    ])  # fmt: skip


def _late_s(requests: pa.Table) -> Floats:
    """(requests,) lateness; a request that never left is not late."""
    late_s = number(requests, "sent_s") - number(requests, "scheduled_s")
    return np.nan_to_num(late_s, nan=0.0)


def _sending(run: Run, objective: Slo, fidelity: Fidelity, remedy: str) -> Iterator[Rule]:
    bounds = [bound for bound in objective.bounds if bound.metric in ("ttft", "e2e")]
    tightest = min(bounds, key=lambda bound: bound.limit, default=Bound("ttft", np.inf))
    p99_s = quantile(_late_s(run.requests), 0.99)
    drawn, sent = fidelity.drawn_rps or 0.0, fidelity.achieved_rps
    whole = fidelity.scheduled == fidelity.sent and sent is not None
    return iter([
        Rule(LATE_BOUND_SHARE * tightest.limit < p99_s <= LATE_S,  # above LATE_S the warning `late-client` covers it
             "late-for-bound",
             f"lateness p99 is {ms(p99_s)}, {p99_s / tightest.limit:.0%} of the bound {tightest}, which counts from "
             "the time a request was due", remedy),
        Rule(whole and (sent or 0.0) < LEAST_RATE * drawn, "achieved-rate",
             f"{sent or 0.0:.4g} req/s left of {drawn:.4g} in the schedule ({ratio(sent, drawn):.1%})", remedy),
    ])  # fmt: skip


def _reading(run: Run, senders: Senders, remedy: str) -> Iterator[Rule]:
    gaps = run.info.summary.metrics.get("itl", Described())
    lag_s, shared, late_s = most(senders, "read_lag_p99_s"), shared_share(run), most(senders, "stall_p90_s")
    yield Rule(
        gaps.p50 and lag_s > LAG_SHARE * gaps.p50, "slow-reader",
        f"bytes were read {ms(lag_s)} after they came (p99 of the slowest sender), {ratio(lag_s, gaps.p50):.0%} of the "
        "median gap between tokens", remedy,
    )  # fmt: skip
    text = f"{shared or 0.0:.1%} of the token events were read together with a later one and have its time"
    if of_each(senders, "stall_p90_s") and late_s < (gaps.mean or 0.0):
        text += f", although the client was late by no more than {ms(late_s)} (p90)"
        remedy = "read ITL as the time between groups of events: the server sends several at once, or a proxy does"
    yield Rule(shared is not None and shared > SHARED_SHARE, "shared-reads", text, remedy)


def _busy(senders: Senders, remedy: str) -> Iterator[Rule]:
    fewer = "lower --rate, or take more senders (--senders) where cores are free"
    cpu, wait = most(senders, "cpu_share_max"), most(senders, "run_wait_share")
    stall_s, pause_s = most(senders, "stall_max_s"), most(senders, "gc_max_s")
    other = most(senders, "other_load_cores") / max(1, len(senders))
    return iter([
        Rule(cpu > CPU_SHARE, "busy-sender", f"a sender used {cpu:.0%} of a core in its busiest second", remedy),
        Rule(wait > RUN_WAIT_SHARE, "waiting-sender",
             f"a sender was ready and waited for a core {wait:.1%} of the time", QUIETER),
        Rule(stall_s > STALL_S, "stalled-sender", f"the event loop of a sender was {ms(stall_s)} late once", QUIETER),
        Rule(pause_s > PAUSE_S, "collected-garbage",
             f"a sender collected garbage for {ms(pause_s)} while it was sending", fewer),
        Rule(other > OTHER_CORES, "other-load",
             f"other processes used {other:.2g} cores per sender on this machine (a server that runs here too)",
             QUIETER),
    ])  # fmt: skip


def _network(run: Run, senders: Senders) -> Iterator[Rule]:
    waited_s, resent = column(run.http, "connect_s"), total(senders, "resent")
    p99_s = quantile(waited_s, 0.99)
    lost = max((ratio(sender.retransmits, sender.segments) for sender in senders), default=0.0)
    full = [s for s in senders if ratio(s.open_files, s.open_files_limit) > FILES_SHARE]
    files, limit = max(zip(of_each(full, "open_files"), of_each(full, "open_files_limit"), strict=True), default=(0, 0))
    return iter([
        Rule(p99_s > CONNECT_S, "slow-connect",
             f"{len(waited_s):,} of {len(run.requests):,} requests had to open a connection first, which took "
             f"{ms(p99_s)} (p99) and is part of their TTFT", "look at the network, and at the backlog of the server"),
        Rule(lost > RETRANSMITS, "retransmits", f"{lost:.2%} of the segments were sent again by the network stack",
             "look at the network between client and server"),
        Rule(resent > 0.01 * len(run.requests), "resent",
             f"{resent:,.0f} {plural(resent, 'request was', 'requests were')} sent again because the server had just "
             "closed the connection", "let the server keep idle connections for longer than 2 s"),
        Rule(full, "open-files", f"a sender had {files:,.0f} files open of the {limit:,.0f} that it may have",
             "raise the limit (ulimit -n), or take more senders (--senders)"),
    ])  # fmt: skip


def _clock(run: Run, senders: Senders) -> Iterator[Rule]:
    steps, slope = total(senders, "clock_steps"), max(map(abs, of_each(senders, "clock_slope_ppm")), default=0.0)
    error_s, by_process = most(senders, "clock_error_s"), stamps_of(run.info) == "process"
    fell_back = total(senders, "process_stamps") or float(column(run.http, "process_stamps").sum())
    share = ratio(fell_back, float(column(run.http, "reads").sum()))
    return iter([
        Rule(steps or slope > SLOPE_PPM, "clock",
             f"the clock of this machine was set {steps:,.0f} times during the run and ran {slope:,.0f} ppm off; "
             "stamps taken at a step are those of the process",
             "let the clock be slewed, not stepped, while measuring"),
        Rule(error_s > HOST_CLOCK_S, "host-clocks",
             f"the clocks of the hosts that sent are known to {ms(error_s)} only: requests of two hosts may be "
             "in another order; times within a request are not affected",
             "send from hosts with shorter round trips, and have their clocks synchronized"),
        Rule(by_process, "process-stamps",
             "this platform does not report when bytes arrived, so tokens are stamped when the process reads them",
             "measure from Linux, or keep this machine idle and check the client's own error (client-floor)"),
        Rule(not by_process and share > FELL_BACK_SHARE, "fallen-back-stamps",
             f"{share:.1%} of the reads had no plausible kernel time and are stamped by the process",
             "keep the clock of this machine from being set while measuring"),
    ])  # fmt: skip


def _floor(info: RunInfo, objective: Slo, remedy: str, *, held: bool) -> Iterator[Rule]:
    errors_s = floors_s(info.floor)
    for bound in objective.bounds:
        error_s = errors_s.get(bound.metric, 0.0)
        yield Rule(
            error_s > FLOOR_SHARE * bound.limit, "floor",
            f"the client's own error ({ms(error_s)}, p99) is more than {FLOOR_SHARE:.0%} of the bound {bound}", remedy,
        )  # fmt: skip
    unresolved = info.resolution.unresolved
    yield Rule(
        unresolved and not held, "unresolved",
        f"the client's own error leaves open whether {' and '.join(unresolved)} {plural(len(unresolved), 'is', 'are')} "
        "met", f"{remedy}; or choose a looser bound",
    )  # fmt: skip

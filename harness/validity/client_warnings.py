"""Warnings of a run against a remote server whose client or network may have distorted the measurement.

The thresholds are choices of this project unless a source is named; each warning has its remedy.
"""

import os
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness.api import RunWarning, Slo
from harness.data.folder import Run
from harness.data.lists import number
from harness.data.run_json import Described, Fidelity, RunInfo
from harness.metrics.objective import BROUGHT
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
    yield from _late(run, objective, remedy)
    yield from _rate(fidelity, remedy)
    yield from _reading(run, senders, remedy)
    yield from _busy(senders, remedy)
    yield from _network(run, senders)
    yield from _clock(run, senders)
    yield from _floor(run.info, objective, remedy, held=of_held_back(run) is not None)
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
    limit_s = _ttft_limit_s(run.requests, objective)
    late_s = _late_s(run.requests)
    spoilt = late_s > SPOILT_BOUND_SHARE * limit_s
    share = float(spoilt.mean()) if len(spoilt) else 0.0
    if share > SPOILT_SHARE:
        yield RunWarning(
            LATENESS,
            f"The client sent {share:.1%} of the requests later than {SPOILT_BOUND_SHARE:.0%} of their TTFT bound "
            f"(allowed: {SPOILT_SHARE:.0%}), so TTFT measures the client and not the server.",
            _remedy(run.info, run.info.client.per_sender),
        )


def _late_s(requests: pa.Table) -> Floats:
    """(requests,) lateness; a request that never left is not late."""
    late_s = number(requests, "sent_s") - number(requests, "scheduled_s")
    return np.nan_to_num(late_s, nan=0.0)


def _ttft_limit_s(requests: pa.Table, objective: Slo) -> Floats:
    """(requests,) the tightest bound on TTFT of each request, infinite where it has none; that of a class stands in
    the place of that for all, and that of a request in the place of both."""
    limits: dict[str | None, float] = {}
    for bound in objective.bounds:
        if bound.metric in ("ttft", "ttft_sent"):
            limits[bound.tag] = min(bound.limit, limits.get(bound.tag, np.inf))
    limit_s = np.full(len(requests), limits.pop(None, np.inf))
    for tag, limit in limits.items():
        limit_s[pc.fill_null(pc.equal(requests["tag"], tag), False).to_numpy()] = limit
    own = number(requests, BROUGHT["ttft"])
    return np.where(np.isnan(own), limit_s, own)


def _late(run: Run, objective: Slo, remedy: str) -> Iterator[RunWarning]:
    bounds = [bound for bound in objective.bounds if bound.metric in ("ttft", "e2e")]
    late_s = _late_s(run.requests)
    if not bounds or not len(late_s):
        return
    tightest = min(bounds, key=lambda bound: bound.limit)
    p99_s = quantile(late_s, 0.99)
    if LATE_BOUND_SHARE * tightest.limit < p99_s <= LATE_S:  # above LATE_S the warning `late-client` covers it
        yield RunWarning(
            "late-for-bound",
            f"lateness p99 is {ms(p99_s)}, {p99_s / tightest.limit:.0%} of the bound {tightest}, which counts from "
            "the time a request was due",
            remedy,
            {"p99_s": p99_s, "limit_s": tightest.limit},
        )


def _rate(fidelity: Fidelity, remedy: str) -> Iterator[RunWarning]:
    drawn, sent = fidelity.drawn_rps, fidelity.achieved_rps
    if fidelity.scheduled == fidelity.sent and drawn is not None and sent is not None and sent < LEAST_RATE * drawn:
        yield RunWarning(
            "achieved-rate",
            f"{sent:.4g} req/s left of {drawn:.4g} in the schedule ({sent / drawn:.1%})",
            remedy,
            {"drawn_rps": drawn, "achieved_rps": sent},
        )


def _reading(run: Run, senders: Senders, remedy: str) -> Iterator[RunWarning]:
    gap_s = run.info.summary.metrics.get("itl", Described()).p50 or 0.0
    lag_s = most(senders, "read_lag_p99_s")
    if gap_s > 0 and lag_s > LAG_SHARE * gap_s:
        yield RunWarning(
            "slow-reader",
            f"bytes were read {ms(lag_s)} after they came (p99 of the slowest sender), {lag_s / gap_s:.0%} of the "
            "median gap between tokens",
            remedy,
            {"read_lag_p99_s": lag_s, "itl_p50_s": gap_s},
        )
    shared = shared_share(run)
    if shared is None or shared <= SHARED_SHARE:
        return
    text = f"{shared:.1%} of the token events were read together with a later one and have its time"
    late_s, mean_gap_s = most(senders, "stall_p90_s"), run.info.summary.metrics.get("itl", Described()).mean or 0.0
    if of_each(senders, "stall_p90_s") and late_s < mean_gap_s:
        text += f", although the client was late by no more than {ms(late_s)} (p90)"
        remedy = "read ITL as the time between groups of events: the server sends several at once, or a proxy does"
    yield RunWarning("shared-reads", text, remedy, {"shared_share": shared})


def _busy(senders: Senders, remedy: str) -> Iterator[RunWarning]:
    fewer = "lower --rate, or take more senders (--senders) where cores are free"
    cpu, wait = most(senders, "cpu_share_max"), most(senders, "run_wait_share")
    stall_s, pause_s = most(senders, "stall_max_s"), most(senders, "gc_max_s")
    other = most(senders, "other_load_cores") / max(1, len(senders))
    for code, fact, value, limit, message, helps in (
        ("busy-sender", "cpu_share_max", cpu, CPU_SHARE,
         f"a sender used {cpu:.0%} of a core in its busiest second", remedy),
        ("waiting-sender", "run_wait_share", wait, RUN_WAIT_SHARE,
         f"a sender was ready and waited for a core {wait:.1%} of the time", QUIETER),
        ("stalled-sender", "stall_max_s", stall_s, STALL_S,
         f"the event loop of a sender was {ms(stall_s)} late once", QUIETER),
        ("collected-garbage", "gc_max_s", pause_s, PAUSE_S,
         f"a sender collected garbage for {ms(pause_s)} while it was sending", fewer),
        ("other-load", "other_load_cores", other, OTHER_CORES,
         f"other processes used {other:.2g} cores per sender on this machine (a server that runs here too)", QUIETER),
    ):  # fmt: skip
        if value > limit:
            yield RunWarning(code, message, helps, {fact: value})


def _network(run: Run, senders: Senders) -> Iterator[RunWarning]:
    waited_s = column(run.http, "connect_s")
    if len(waited_s) and (p99_s := quantile(waited_s, 0.99)) > CONNECT_S:
        yield RunWarning(
            "slow-connect",
            f"{len(waited_s):,} of {len(run.requests):,} requests had to open a connection first, which took "
            f"{ms(p99_s)} (p99) and is part of their TTFT",
            "look at the network, and at the backlog of the server",
            {"requests": len(waited_s), "p99_s": p99_s},
        )
    lost = max((ratio(sender.retransmits, sender.segments) for sender in senders), default=0.0)
    if lost > RETRANSMITS:
        yield RunWarning(
            "retransmits",
            f"{lost:.2%} of the segments were sent again by the network stack",
            "look at the network between client and server",
            {"share": lost},
        )
    resent = total(senders, "resent")
    if resent > 0.01 * len(run.requests):
        yield RunWarning(
            "resent",
            f"{resent:,.0f} request{' was' if resent == 1 else 's were'} sent again because the server had just closed "
            "the connection",
            "let the server keep idle connections for longer than 2 s",
            {"resent": resent},
        )
    full = [s for s in senders if ratio(s.open_files, s.open_files_limit) > FILES_SHARE]
    if full:
        files, limit = max(zip(of_each(full, "open_files"), of_each(full, "open_files_limit"), strict=True))
        yield RunWarning(
            "open-files",
            f"a sender had {files:,.0f} files open of the {limit:,.0f} that it may have",
            "raise the limit (ulimit -n), or take more senders (--senders)",
            {"open_files": files, "limit": limit},
        )


def _clock(run: Run, senders: Senders) -> Iterator[RunWarning]:
    steps, slope = total(senders, "clock_steps"), max(map(abs, of_each(senders, "clock_slope_ppm")), default=0.0)
    if steps or slope > SLOPE_PPM:
        yield RunWarning(
            "clock",
            f"the clock of this machine was set {steps:,.0f} times during the run and ran {slope:,.0f} ppm off; stamps "
            "taken at a step are those of the process",
            "let the clock be slewed, not stepped, while measuring",
            {"clock_steps": steps, "clock_slope_ppm": slope},
        )
    if (error_s := most(senders, "clock_error_s")) > HOST_CLOCK_S:
        yield RunWarning(
            "host-clocks",
            f"the clocks of the hosts that sent are known to {ms(error_s)} only: requests of two hosts may be in "
            "another order; times within a request are not affected",
            "send from hosts with shorter round trips, and have their clocks synchronized",
            {"clock_error_s": error_s},
        )
    if stamps_of(run.info) == "process":
        yield RunWarning(
            "process-stamps",
            "this platform does not report when bytes arrived, so tokens are stamped when the process reads them",
            "measure from Linux, or keep this machine idle and check the client's own error (client-floor)",
        )
        return
    reads = column(run.http, "reads").sum()
    fell_back = total(senders, "process_stamps") or column(run.http, "process_stamps").sum()
    if reads and fell_back > FELL_BACK_SHARE * reads:
        yield RunWarning(
            "fallen-back-stamps",
            f"{fell_back / reads:.1%} of the reads had no plausible kernel time and are stamped by the process",
            "keep the clock of this machine from being set while measuring",
            {"share": float(fell_back / reads)},
        )


def _floor(info: RunInfo, objective: Slo, remedy: str, *, held: bool) -> Iterator[RunWarning]:
    errors_s = floors_s(info.floor)
    near = {str(b): errors_s[b.metric] for b in objective.bounds
            if errors_s.get(b.metric, 0.0) > FLOOR_SHARE * b.limit}  # fmt: skip
    for name, error_s in near.items():
        yield RunWarning(
            "floor",
            f"the client's own error ({ms(error_s)}, p99) is more than {FLOOR_SHARE:.0%} of the bound {name}",
            remedy,
            {"floor_s": error_s},
        )
    unresolved = info.resolution.unresolved
    if unresolved and not held:
        verb = "is" if len(unresolved) == 1 else "are"
        yield RunWarning(
            "unresolved",
            f"the client's own error leaves open whether {' and '.join(unresolved)} {verb} met",
            f"{remedy}; or choose a looser bound",
        )

"""Whether the client sent what it promised: rate, burstiness at three time scales, gap law, lateness.

Only requests that wait for no answer count as arrivals: follow-ups come when answers come, and are only counted, and
so are those of sessions that were under way at first.
Burstiness is computed twice: of the schedule as drawn, and of the sending, which is what the system under test saw.
The gap law is tested on the schedule alone; what the client adds to the gaps is lateness.
"""

import math
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from msgspec.structs import asdict, replace

from harness.api import RunWarning
from harness.data.lists import ascending, lateness, number
from harness.data.run_json import AllSent, Burstiness, Fidelity, FollowUps
from harness.data.schedule import links
from harness.metrics.quantiles import quantiles
from harness.stats import arrivals
from harness.stats.arrivals import Floats, Law, judged
from harness.validity.physics import rows_of
from harness.validity.rules import Rule, applying, digits

SCALES_S = (1.0, 10.0, 60.0)
"""Widths of the bins in which arrivals are counted: bursts live at different time scales."""

LATE_S = 0.010
"""A request sent later than this is late: aiperf gives up its schedule at the same 10 ms (MAX_CATCHUP_SECONDS)."""

RARE_P = 1e-6
"""A gap law is only doubted when chance would do so in one good schedule of a million: seeds are few and often the
same, and a law that is really another one gives far smaller probabilities."""

GAP_LAW = "gap-law"
"""Name of the check of the gaps, as run.json lists it."""

LEAST_P = 1e-4
"""Smaller probabilities are printed as below this."""

FAR_Z = 5.0
"""Standard errors from which a rate is called another than the one declared; more than for a normal law, because the
dispersion they come from is itself estimated from twenty counts."""


FAR_SHARE = 0.05
"""Share of the requested rate that may be missing without a word."""

SHORT_Z = 2.0
"""Standard errors by which the requests of sessions may be fewer than their mean without a word."""


def fidelity(schedule: pa.Table, requests: pa.Table, law: Law, *, recorded: bool = False) -> Fidelity:
    """How the sending agreed with the schedule and the schedule with its law; `recorded` says that it is of a trace."""
    first = by_itself(schedule, recorded=recorded)
    follow_ups = _follow_ups(schedule, requests, first)
    if follow_ups is not None and follow_ups.closed:
        law = Law(None, known=law.known)
    all_sent = None
    if follow_ups is not None:
        all_s = ascending(number(requests, "sent_s"), ~np.isnan(number(requests, "sent_s")))
        all_sent = AllSent(sent=len(all_s), rps=_rate(all_s), scatter=_scatter(requests), **asdict(_burstiness(all_s)))
    planned_s = ascending(number(schedule, "scheduled_s"), first)
    tick_s = arrivals.tick_s(planned_s)
    drawn = replace(
        judged(planned_s, law),
        requested_rps=law.rate_rps or None,
        drawn_rps=_rate(planned_s),
        scheduled=len(planned_s),
        drawn=_burstiness(planned_s, tick_s),
        tick_s=tick_s,
        follow_ups=follow_ups,
        all=all_sent,
    )
    del planned_s  # as large as what follows
    row, sent = rows_of(requests, schedule)
    sent &= first[row] & ~np.isnan(number(requests, "sent_s"))
    del row
    drawn = replace(drawn, **_lateness(lateness(requests)[sent]))
    sent_s = ascending(number(requests, "sent_s"), sent)
    return replace(drawn, achieved_rps=_rate(sent_s), sent=len(sent_s), **asdict(_burstiness(sent_s, tick_s)))


def reasons(found: Fidelity) -> Iterator[RunWarning]:
    """The reason that makes a run not valid: the gaps do not follow the law that the arrivals declare."""
    ks, p = found.ks or 0.0, 1.0 if found.ks_p is None else found.ks_p
    printed = f"{p:.2g}" if p >= LEAST_P else f"<{LEAST_P:g}"
    return applying([Rule(
        found.ks is not None and p < RARE_P, GAP_LAW,
        f"The gaps drawn do not follow the law that the arrivals declare (Kolmogorov-Smirnov {ks:.2g}, p {printed}).",
        "use other --arrivals, and report the bug to the author of these",
    )])  # fmt: skip


def warnings(found: Fidelity) -> Iterator[RunWarning]:
    """Where the drawn rate is further from what was declared than chance explains."""
    z, declared_rps = found.rate_z or 0.0, found.expected_rps or found.requested_rps or 0.0
    return applying([Rule(
        abs(z) > FAR_Z and declared_rps, "drawn-rate",
        f"the drawn rate of {digits(found.drawn_rps or 0.0)} req/s is {abs(z):.1f} standard errors from the "
        f"{digits(declared_rps)} req/s declared, also by the dispersion of its own counts",
        "draw a longer schedule (--duration), or check the rate that the arrivals declare",
    )])  # fmt: skip


def short_of(found: Fidelity, rate_rps: float | None) -> Iterator[RunWarning]:
    """Where sessions go on after the end of a run, so that the run does not have the rate of their requests.

    What they lack at its end is counted as far as it was scheduled, and is otherwise (sessions of a trace begin with
    none under way) what those that began fall short of their mean number of requests, beyond its chance. A rate that is
    within two standard errors of the one requested is no word either.
    """
    after, everything = found.follow_ups, found.all
    if after is None or after.closed or everything is None or not everything.rps or not rate_rps:
        return
    not_sent, sent = after.not_sent or 0, (everything.sent or 0) + (after.dropped or 0)
    cut = not_sent > FAR_SHARE * (sent + not_sent)
    if not cut and sent and found.sent and found.requested_rps:
        share = sent / (found.sent * rate_rps / found.requested_rps)
        # the deviance of a mean of so many exponential values: numbers of turns scatter about as much as their mean
        cut = share < 1 - FAR_SHARE and math.sqrt(2 * found.sent * (share - 1 - math.log(share))) > SHORT_Z
    if everything.rps < rate_rps * min(1 - FAR_SHARE, 1 - SHORT_Z * (everything.scatter or 0.0)) and cut:
        what = f"{digits(everything.rps)} req/s were sent of {digits(rate_rps)} requested"
        remedy = "run longer (--duration), so that sessions end within the run, or read the rate that was sent"
        yield RunWarning("sessions-cut", f"{what}: sessions that had begun go on after the end", remedy)


def _scatter(requests: pa.Table) -> float | None:
    """Standard error of the number of requests sent, as a share of it: sessions are independent of one another, and so
    are requests of none (a Poisson cluster process).
    """
    session = number(requests, "session")[~np.isnan(number(requests, "sent_s"))]
    counts = np.unique(session[~np.isnan(session)], return_counts=True)[1].astype(float)
    return float(np.sqrt((counts**2).sum() + np.isnan(session).sum()) / len(session)) if len(session) else None


def by_itself(schedule: pa.Table, *, recorded: bool = False) -> np.ndarray:
    """(rows,) whether a request waits for no answer.

    Unless times are `recorded`, later turns of sessions that were under way at time 0 wait for answers before it.
    """
    lengths = [chunk.value_lengths().fill_null(0).to_numpy() for chunk in schedule["after"].chunks]
    alone = np.concatenate([np.zeros(0, np.int32), *lengths]) == 0
    if not (recorded or _of_users(schedule)):
        alone &= number(schedule, "turn") == 0
    return np.asarray(alone)


def _follow_ups(schedule: pa.Table, requests: pa.Table, first: np.ndarray) -> FollowUps | None:
    """How many there were and what became of them; None without any."""
    if first.all():
        return None
    is_follow_up = np.isin(number(requests, "request_id"), number(schedule, "id")[~first])
    sent = int((is_follow_up & ~np.isnan(number(requests, "sent_s"))).sum())
    dropped = int((is_follow_up & (requests["status"].to_numpy() == "dropped")).sum())
    planned = int((~first).sum())
    return FollowUps(planned=planned, sent=sent, dropped=dropped, not_sent=planned - sent - dropped,
                     closed=_of_users(schedule))  # fmt: skip


def _of_users(schedule: pa.Table) -> bool:
    """Whether users send one thing after the other: requests without sessions, or one session behind another."""
    if schedule["session"].null_count == schedule.num_rows:
        return True
    session = schedule["session"].fill_null(-1).to_numpy()
    child, parent = links(schedule)
    present = parent < len(session)
    return bool((session[child[present]] != session[parent[present]]).any())


def _burstiness(times_s: Floats, tick_s: float | None = None) -> Burstiness:
    found = Burstiness(gap_cv=arrivals.gap_cv(times_s), dispersion={}, autocorrelation={})
    for scale_s in SCALES_S:
        counts, scale = arrivals.counts(times_s, scale_s, tick_s), _scale(scale_s, tick_s)
        found.dispersion[scale] = arrivals.spread(counts)
        found.autocorrelation[scale] = arrivals.autocorrelation(counts)
    return found


def _scale(scale_s: float, tick_s: float | None) -> str:
    """The width of the bins: of stamps on a grid, of whole ticks."""
    return f"{scale_s:g}" if tick_s is None else f"{max(1, round(scale_s / tick_s)) * tick_s:.3g}"


def _lateness(lateness_s: Floats) -> dict[str, float]:
    if not len(lateness_s):
        return {}
    late = float((lateness_s > LATE_S).mean())
    p50, p99, most = quantiles(lateness_s, [0.5, 0.99, 1.0])
    return {"lateness_p50_s": p50, "lateness_p99_s": p99, "lateness_max_s": most, "late_share": late}


def _rate(times_s: Floats) -> float | None:
    span_s = float(times_s[-1] - times_s[0]) if len(times_s) > 1 else 0.0
    return (len(times_s) - 1) / span_s if span_s > 0 else None

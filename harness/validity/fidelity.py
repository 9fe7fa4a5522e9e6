"""Whether the client sent what it promised: rate, burstiness at three time scales, gap law, lateness.

Only requests that wait for no answer count as arrivals: follow-ups come when answers come, and are only counted.
Burstiness is told twice, of the schedule as drawn and of the sending, which is what the system under test really saw.
The gap law judges the schedule: what the client added to it is lateness.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.api import Caution
from harness.data.lists import number
from harness.metrics.quantiles import quantiles
from harness.stats import arrivals
from harness.stats.arrivals import Floats, Law, judged

if TYPE_CHECKING:
    import pyarrow as pa


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
"""Probabilities below this are only told to be below it."""

FAR_Z = 5.0
"""Standard errors from which a rate is called another than the one declared; more than for a normal law, because the
dispersion they come from is itself estimated from twenty counts."""


def fidelity(schedule: pa.Table, requests: pa.Table, law: Law) -> dict[str, Any]:
    """How the sending agreed with the schedule and the schedule with its law, fit for JSON.

    Rates are gaps per second; `gap_cv`, `dispersion` (variance by mean of counts) and `autocorrelation` (of
    neighbouring counts) are those of the sending, under `drawn` those of the schedule, by the width of the bins in
    seconds. Stamps on a grid (`tick_s`) are counted in whole ticks. None stands for what cannot be told: fewer than 10
    bins, no law declared, no rate asked. What `stats.arrivals.judged` gives is among the facts. `follow_ups` counts
    what waited for answers, `all` tells of everything that was sent, where there are any. `line` is `line()`.
    """
    first = by_itself(schedule)
    planned_s = np.sort(number(schedule, "scheduled_s")[first])
    sent_s, lateness_s = _sent(number(schedule, "id")[first], requests)
    tick_s = arrivals.tick_s(planned_s)
    follow_ups = _follow_ups(schedule, requests, first)
    if follow_ups is not None and follow_ups["closed"]:
        law = Law(None, known=law.known)
    whole: dict[str, Any] | None = None
    if follow_ups is not None:
        all_s = number(requests, "sent_s")
        all_s = np.sort(all_s[~np.isnan(all_s)])
        whole = {"sent": len(all_s), "rps": _rate(all_s), **_burstiness(all_s, None)}
    facts: dict[str, Any] = {
        "requested_rps": law.rate_rps or None,
        "drawn_rps": _rate(planned_s),
        "achieved_rps": _rate(sent_s),
        "scheduled": len(planned_s),
        "sent": len(sent_s),
        **_burstiness(sent_s, tick_s),
        "drawn": _burstiness(planned_s, tick_s),
        "tick_s": tick_s,
        **judged(planned_s, law),
        "follow_ups": follow_ups,
        "all": whole,
        **_lateness(lateness_s),
    }
    return facts | {"line": line(facts)}


def reasons(facts: Mapping[str, Any]) -> Iterator[Caution]:
    """Why what was sent proves nothing: gaps of another law than the arrivals declare."""
    p = facts.get("ks_p")
    if p is not None and p < RARE_P:
        yield Caution(
            GAP_LAW,
            f"The gaps drawn are not of the law that the arrivals declare (Kolmogorov-Smirnov {facts['ks']:.2g}, "
            f"p {_p(p)}).",
            "take other --arrivals, and tell who wrote these",
            {"ks": facts["ks"], "ks_p": p},
        )


def cautions(facts: Mapping[str, Any]) -> Iterator[Caution]:
    """Where the drawn rate is further from what was declared than chance explains."""
    z = facts.get("rate_z")
    wanted = facts.get("expected_rps") or facts.get("requested_rps")
    if z is not None and abs(z) > FAR_Z and wanted:
        yield Caution(
            "drawn-rate",
            f"the drawn rate of {facts['drawn_rps']:.3g} req/s is {abs(z):.1f} standard errors from the {wanted:.3g} "
            "req/s declared, also by the dispersion of its own counts",
            "draw a longer schedule (--duration), or check the rate that the arrivals declare",
            {"rate_z": z},
        )


def line(facts: Mapping[str, Any]) -> str:
    """The facts of `fidelity` in one line."""
    parts = [_rates(facts), *_spread(facts)]
    if facts["ks"] is not None:
        parts.append(f"gaps KS {facts['ks']:.2g} (p {_p(facts['ks_p'])})")
    elif facts.get("law") == "none" and facts["achieved_rps"] and not _closed(facts):
        parts.append("no gap law declared")
    if facts["lateness_max_s"] is not None:
        p50, p99, most = (1000 * facts[f"lateness_{k}_s"] for k in ("p50", "p99", "max"))
        parts.append(f"lateness p50 {p50:.1f} ms p99 {p99:.1f} ms max {most:.1f} ms")
    unsent = facts["scheduled"] - facts["sent"]
    parts += [f"{unsent} not sent"] if unsent else []
    after = facts.get("follow_ups")
    if after is not None:
        parts.append(f"{after['sent']} of {after['planned']} follow-ups sent")
        parts += [f"{after[key]} {said}" for key, said in _LOST if after[key]]
    return "sending: " + ", ".join(parts)


def by_itself(schedule: pa.Table) -> np.ndarray:
    """(rows,) whether a request comes by itself; schedules of before there were follow-ups have none."""
    if "after" not in schedule.column_names:
        return np.ones(schedule.num_rows, bool)
    lengths = [chunk.value_lengths().fill_null(0).to_numpy() for chunk in schedule["after"].chunks]
    return np.asarray(np.concatenate([np.zeros(0, np.int32), *lengths]) == 0)


_LOST = (("dropped", "dropped after a failure"), ("not_sent", "not due before the end"))


def _spread(facts: Mapping[str, Any]) -> Iterator[str]:
    known = {scale: value for scale, value in facts["dispersion"].items() if value is not None}
    if facts.get("tick_s") is not None:
        yield f"stamps on a grid of {facts['tick_s']:.3g} s, so gaps tell little"
    elif facts.get("gap_cv") is not None:
        yield f"gap CV {facts['gap_cv']:.2f}"
    if known:
        shown = " / ".join(f"{value:.2f}" for value in known.values())
        yield f"dispersion {shown} ({', '.join(known)} s bins, Poisson 1)"
    memory = [value for value in (facts.get("autocorrelation") or {}).values() if value is not None]
    if memory:
        yield f"lag-1 autocorrelation {' / '.join(f'{value:.2f}' for value in memory)}"


def _rates(facts: Mapping[str, Any]) -> str:
    asked, achieved = facts.get("expected_rps") or facts["requested_rps"], facts["achieved_rps"]
    if not facts["sent"]:
        return "nothing sent"
    if _closed(facts):
        everything = facts["all"]["rps"]
        return f"closed loop of {facts['scheduled']:,} users, " + (
            f"{everything:.3g} req/s" if everything else "no rate"
        )
    if asked is None:
        return f"all {facts['sent']:,} at one instant" if achieved is None else f"rate {achieved:.3g} req/s"
    return f"rate {'-' if achieved is None else f'{achieved:.3g}'} of {asked:.3g} req/s"


def _closed(facts: Mapping[str, Any]) -> bool:
    return bool((facts.get("follow_ups") or {}).get("closed"))


def _p(p: float) -> str:
    return f"{p:.2g}" if p >= LEAST_P else f"<{LEAST_P:g}"


def _sent(ids: Floats, requests: pa.Table) -> tuple[Floats, Floats]:
    """Sorted sending times of the requests with these ids that left, and how late each was, in no order."""
    ours = np.isin(number(requests, "request_id"), ids)
    sent_s, due_s = number(requests, "sent_s"), number(requests, "scheduled_s")
    left = ours & ~np.isnan(sent_s)
    return np.sort(sent_s[left]), (sent_s - due_s)[left]


def _follow_ups(schedule: pa.Table, requests: pa.Table, first: np.ndarray) -> dict[str, Any] | None:
    """How many there were, left, were dropped with their session, or never came to be due; None without any.

    `closed` says that they are those of users who ask again and again, and not of sessions.
    """
    if first.all():
        return None
    ours = np.isin(number(requests, "request_id"), number(schedule, "id")[~first])
    sent = int((ours & ~np.isnan(number(requests, "sent_s"))).sum())
    dropped = int((ours & (requests["status"].to_numpy() == "dropped")).sum())
    planned = int((~first).sum())
    return {
        "planned": planned,
        "sent": sent,
        "dropped": dropped,
        "not_sent": planned - sent - dropped,
        "closed": schedule["session"].null_count == schedule.num_rows,
    }


def _burstiness(times_s: Floats, tick_s: float | None) -> dict[str, Any]:
    """Spread of the gaps; dispersion and memory of the counts by the width of their bins in seconds."""
    counted = dict(_counts(times_s, tick_s))
    return {
        "gap_cv": arrivals.gap_cv(times_s),
        "dispersion": {scale: arrivals.spread(counts) for scale, counts in counted.items()},
        "autocorrelation": {scale: arrivals.autocorrelation(counts) for scale, counts in counted.items()},
    }


def _counts(times_s: Floats, tick_s: float | None) -> Iterator[tuple[str, np.ndarray]]:
    """Width of the bins and arrivals in each; of stamps on a grid, bins of whole ticks about as wide."""
    for scale_s in SCALES_S:
        if tick_s is None:
            yield f"{scale_s:g}", arrivals.counts(times_s, scale_s)
        else:
            ticks = arrivals.per_tick(times_s, tick_s)
            per = max(1, round(scale_s / tick_s))
            whole = len(ticks) // per * per
            yield f"{per * tick_s:.3g}", ticks[:whole].reshape(-1, per).sum(axis=1)


def _lateness(lateness_s: Floats) -> dict[str, float | None]:
    if not len(lateness_s):
        return {"lateness_p50_s": None, "lateness_p99_s": None, "lateness_max_s": None, "late_share": None}
    late = float((lateness_s > LATE_S).mean())
    p50, p99, most = quantiles(lateness_s, [0.5, 0.99, 1.0])
    return {"lateness_p50_s": p50, "lateness_p99_s": p99, "lateness_max_s": most, "late_share": late}


def _rate(times_s: Floats) -> float | None:
    span_s = float(times_s[-1] - times_s[0]) if len(times_s) > 1 else 0.0
    return (len(times_s) - 1) / span_s if span_s > 0 else None

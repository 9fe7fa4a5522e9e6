"""Whether the client sent what it promised: rate, burstiness at three time scales, gap law, lateness.

Only requests of the schedule count: follow-ups come when answers come. Rates, dispersion and lateness are those of
sending, so they tell what the system under test really saw. The gap law judges the schedule, that is, what was drawn:
what the client added to it is lateness.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from harness.metrics._lists import number
from harness.quantiles import quantiles

if TYPE_CHECKING:
    import pyarrow as pa

Floats: TypeAlias = npt.NDArray[np.float64]
GapCdf: TypeAlias = "Callable[[np.ndarray], np.ndarray]"

SCALES_S = (1.0, 10.0, 60.0)
"""Widths of the bins of the index of dispersion: bursts live at different time scales."""

MIN_BINS = 10
"""Fewest bins of an index of dispersion; with 10 its standard error is already about 0.5 for Poisson."""

LATE_S = 0.010
"""A request sent later than this is late: aiperf gives up its schedule at the same 10 ms (MAX_CATCHUP_SECONDS)."""

MIN_GAPS = 10
"""Fewest gaps that are compared with a law."""

SHORTEST_S = 1e-6
"""Gaps below this are only counted, not told apart: a very bursty law (gamma with cv 4) puts up to half of its gaps
there, where a running sum of times in float64 rounds them away and no network can tell them apart."""


class Declared(Protocol):
    """What the workload promised: mean rate, and the law of its gaps where it has one."""

    @property
    def rate_rps(self) -> float | None:
        """Mean rate, requests per second; None where all requests come at one instant."""
        ...

    @property
    def gap_cdf(self) -> GapCdf | None:
        """Probability that a gap is at most each of its arguments, seconds."""
        ...


@dataclass(frozen=True, slots=True)
class Law:
    """The plainest `Declared`."""

    rate_rps: float | None
    gap_cdf: GapCdf | None = None


def fidelity(schedule: pa.Table, requests: pa.Table, declared: Declared) -> dict[str, Any]:
    """How the sending agreed with the schedule and the schedule with its law, fit for JSON.

    Rates are gaps per second. None stands for what cannot be told: an index of dispersion with fewer than 10 bins,
    a gap law where the workload declares none. `ks` compares the gaps of the schedule with their law, at gaps from
    1 us on. `line` is the sentence of `line()`.
    """
    planned_s = np.sort(number(schedule, "scheduled_s"))
    sent_s, lateness_s = _sent(schedule, requests)
    gaps_s = np.diff(sent_s)
    ks, p = _law(np.diff(planned_s), declared.gap_cdf)
    facts: dict[str, Any] = {
        "requested_rps": declared.rate_rps or None,
        "drawn_rps": _rate(planned_s),
        "achieved_rps": _rate(sent_s),
        "scheduled": len(planned_s),
        "sent": len(sent_s),
        "gap_cv": _cv(gaps_s),
        "dispersion": {f"{scale:g}": dispersion(sent_s, scale) for scale in SCALES_S},
        "ks": ks,
        "ks_p": p,
        **_lateness(lateness_s),
    }
    return facts | {"line": line(facts)}


def line(facts: Mapping[str, Any]) -> str:
    """The facts of `fidelity` in one line."""
    spread = {scale: f"{value:.2f}" for scale, value in facts["dispersion"].items() if value is not None}
    parts = [_rates(facts)]
    if spread:
        parts.append(f"dispersion {' / '.join(spread.values())} ({', '.join(spread)} s bins, Poisson 1)")
    if facts["ks"] is not None:
        parts.append(f"gaps KS {facts['ks']:.2g} (p {facts['ks_p']:.2g})")
    if facts["lateness_max_s"] is not None:
        p50, p99, most = (1000 * facts[f"lateness_{k}_s"] for k in ("p50", "p99", "max"))
        parts.append(f"lateness p50 {p50:.1f} ms p99 {p99:.1f} ms max {most:.1f} ms")
    unsent = facts["scheduled"] - facts["sent"]
    return "sending: " + ", ".join(parts) + (f", {unsent} not sent" if unsent else "")


def _rates(facts: Mapping[str, Any]) -> str:
    asked, achieved = facts["requested_rps"], facts["achieved_rps"]
    if not facts["sent"]:
        return "nothing sent"
    if asked is None:
        return f"all {facts['sent']:,} at one instant" if achieved is None else f"rate {achieved:.3g} req/s"
    return f"rate {'-' if achieved is None else f'{achieved:.3g}'} of {asked:.3g} req/s"


def dispersion(times_s: Floats, width_s: float) -> float | None:
    """Index of dispersion of counts: variance by mean of the arrivals per bin of `width_s` (Poisson: 1).

    Whole bins from the first to the last time; None with fewer than 10 of them.
    """
    bins = int((times_s[-1] - times_s[0]) / width_s) if len(times_s) else 0
    if bins < MIN_BINS:
        return None
    index = ((times_s - times_s[0]) / width_s).astype(np.int64)
    counts = np.bincount(index[index < bins], minlength=bins)
    return float(counts.var(ddof=1) / counts.mean())


def kolmogorov_smirnov(values: Floats, cdf: GapCdf, *, least: float = 0.0) -> tuple[float, float]:
    """Largest distance between the values and their law, and how probable one as large is if the law holds.

    The two distribution functions are compared at values from `least` on; smaller ones count, but where they lie
    below it makes no difference (and the probability is an upper bound). The probability is Kolmogorov's limit with
    the correction of Stephens (JRSS B 32, 1970) for finite samples, within 0.03 of the exact one from 10 values on,
    and closer where it is small.
    """
    from scipy.special import kolmogorov  # heavy: only where a law is declared

    n = len(values)
    shown = np.maximum(np.sort(values), least)  # those below stand at `least`, where both functions are compared
    at = np.asarray(cdf(shown), np.float64)
    above, below = np.arange(1, n + 1) / n - at, at - np.arange(n) / n
    distance = float(max(above.max(), below[shown > least].max(initial=0.0)))
    root = math.sqrt(n)
    return distance, float(kolmogorov((root + 0.12 + 0.11 / root) * distance))


def _sent(schedule: pa.Table, requests: pa.Table) -> tuple[Floats, Floats]:
    """Sorted sending times of the requests of the schedule that left, and how late each was, in no order."""
    ours = np.isin(number(requests, "request_id"), number(schedule, "id"))
    sent_s, due_s = number(requests, "sent_s"), number(requests, "scheduled_s")
    left = ours & ~np.isnan(sent_s)
    return np.sort(sent_s[left]), (sent_s - due_s)[left]


def _lateness(lateness_s: Floats) -> dict[str, float | None]:
    if not len(lateness_s):
        return {"lateness_p50_s": None, "lateness_p99_s": None, "lateness_max_s": None, "late_share": None}
    late = float((lateness_s > LATE_S).mean())
    p50, p99, most = quantiles(lateness_s, [0.5, 0.99, 1.0])
    return {"lateness_p50_s": p50, "lateness_p99_s": p99, "lateness_max_s": most, "late_share": late}


def _law(gaps_s: Floats, cdf: GapCdf | None) -> tuple[float | None, float | None]:
    if cdf is None or len(gaps_s) < MIN_GAPS:
        return None, None
    return kolmogorov_smirnov(gaps_s, cdf, least=SHORTEST_S)


def _rate(times_s: Floats) -> float | None:
    span_s = float(times_s[-1] - times_s[0]) if len(times_s) > 1 else 0.0
    return (len(times_s) - 1) / span_s if span_s > 0 else None


def _cv(gaps_s: Floats) -> float | None:
    return float(gaps_s.std(ddof=1) / gaps_s.mean()) if len(gaps_s) > 1 and gaps_s.mean() > 0 else None

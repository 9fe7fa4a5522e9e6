"""Whether the client sent what it promised: rate, burstiness at three time scales, gap law, lateness.

Only requests of the schedule count: follow-ups come when answers come. Times are those of sending, so every figure
tells what the system under test really saw.
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


class Declared(Protocol):
    """What the workload promised: mean rate, and the law of its gaps where it has one."""

    @property
    def rate_rps(self) -> float:
        """Mean rate, requests per second."""
        ...

    @property
    def gap_cdf(self) -> GapCdf | None:
        """Probability that a gap is at most each of its arguments, seconds."""
        ...


@dataclass(frozen=True, slots=True)
class Law:
    """The plainest `Declared`."""

    rate_rps: float
    gap_cdf: GapCdf | None = None


def fidelity(schedule: pa.Table, requests: pa.Table, declared: Declared) -> dict[str, Any]:
    """How the sending agreed with the schedule and the schedule with its law, fit for JSON.

    Rates are gaps per second. None stands for what cannot be told: an index of dispersion with fewer than 10 bins,
    a gap law where the workload declares none. `line` is the sentence of `line()`.
    """
    planned_s = np.sort(number(schedule, "scheduled_s"))
    sent_s, lateness_s = _sent(schedule, requests)
    gaps_s = np.diff(sent_s)
    ks, p = _law(gaps_s, declared.gap_cdf)
    facts: dict[str, Any] = {
        "requested_rps": float(declared.rate_rps),
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
    scales = ", ".join(facts["dispersion"])
    spread = " / ".join("-" if v is None else f"{v:.2f}" for v in facts["dispersion"].values())
    rate = "-" if facts["achieved_rps"] is None else f"{facts['achieved_rps']:.3g}"
    parts = [f"rate {rate} of {facts['requested_rps']:.3g} req/s", f"dispersion {spread} ({scales} s)"]
    if facts["ks"] is not None:
        parts.append(f"gaps KS {facts['ks']:.2g} (p {facts['ks_p']:.2g})")
    if facts["lateness_max_s"] is not None:
        p50, p99, most = (1000 * facts[f"lateness_{k}_s"] for k in ("p50", "p99", "max"))
        parts.append(f"lateness p50 {p50:.1f} ms p99 {p99:.1f} ms max {most:.1f} ms")
    unsent = facts["scheduled"] - facts["sent"]
    return "sending: " + ", ".join(parts) + (f", {unsent} not sent" if unsent else "")


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


def kolmogorov_smirnov(values: Floats, cdf: GapCdf) -> tuple[float, float]:
    """Largest distance between the values and their law, and how probable one as large is if the law holds.

    The probability is Kolmogorov's limit with the correction of Stephens (JRSS B 32, 1970) for finite samples,
    within 0.03 of the exact one from 10 values on, and closer where it is small.
    """
    from scipy.special import kolmogorov  # heavy: only where a law is declared

    n = len(values)
    at = np.asarray(cdf(np.sort(values)), np.float64)
    above, below = np.arange(1, n + 1) / n - at, at - np.arange(n) / n
    distance = float(max(above.max(), below.max()))
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
    return kolmogorov_smirnov(gaps_s, cdf)


def _rate(times_s: Floats) -> float | None:
    span_s = float(times_s[-1] - times_s[0]) if len(times_s) > 1 else 0.0
    return (len(times_s) - 1) / span_s if span_s > 0 else None


def _cv(gaps_s: Floats) -> float | None:
    return float(gaps_s.std(ddof=1) / gaps_s.mean()) if len(gaps_s) > 1 and gaps_s.mean() > 0 else None

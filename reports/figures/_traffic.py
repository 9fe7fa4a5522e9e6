"""What the pictures of traffic are drawn from: streams of arrivals and lengths, laws, rates and curves as arrays."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from harness.stats import arrivals as stats_arrivals

Floats: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Stream:
    """Arrivals and lengths under one name: sorted times, or counts per bin where they are too many to hold."""

    name: str
    times_s: Floats | None = None  # (n,) sorted
    counts: Floats | None = None  # (bins,) of bin_s seconds
    bin_s: float | None = None
    prompt_tokens: Floats | None = None  # (m,)
    output_tokens: Floats | None = None  # (m,)

    @property
    def arrivals(self) -> int:
        """How many there are."""
        if self.times_s is not None:
            return len(self.times_s)
        return 0 if self.counts is None else int(self.counts.sum())

    @property
    def span_s(self) -> float:
        """Seconds from the first arrival to the last."""
        if self.times_s is not None:
            return float(self.times_s[-1] - self.times_s[0]) if len(self.times_s) else 0.0
        return 0.0 if self.counts is None or self.bin_s is None else len(self.counts) * self.bin_s

    def dispersion(self, width_s: float, tick_s: float | None = None) -> float | None:
        """Index of dispersion at a width; None where it cannot be told. Stamps on ticks are counted in whole ones."""
        if self.times_s is not None and tick_s is not None:
            return _in_groups(stats_arrivals.per_tick(self.times_s, tick_s), round(width_s / tick_s))
        if self.times_s is not None:
            return stats_arrivals.dispersion(self.times_s, width_s)
        if self.counts is None or self.bin_s is None or width_s < self.bin_s:
            return None
        per = round(width_s / self.bin_s)
        return _in_groups(self.counts, per) if abs(per * self.bin_s - width_s) <= 0.01 * width_s else None

    def per_bin(self, width_s: float) -> tuple[Floats, Floats]:
        """(bins + 1,) edges in seconds, and (bins,) arrivals per bin of about `width_s` seconds."""
        if self.times_s is not None:
            bins = int(self.times_s[-1] / width_s) + 1 if len(self.times_s) else 1
            first = int(np.floor(self.times_s[0] / width_s)) if len(self.times_s) else 0
            index = np.floor(self.times_s / width_s).astype(np.int64) - first
            found = np.bincount(index, minlength=max(1, bins - first)).astype(np.float64)
            edges = np.asarray((first + np.arange(len(found) + 1)) * width_s, np.float64)
            return edges, found
        counts, bin_s = (np.zeros(1), 1.0) if self.counts is None or not self.bin_s else (self.counts, self.bin_s)
        per = max(1, round(width_s / bin_s))
        starts = np.arange(0, len(counts), per)
        found = np.add.reduceat(counts, starts)
        return np.asarray(np.arange(len(found) + 1) * per * bin_s, np.float64), found


def _in_groups(counts: npt.NDArray[np.int64] | Floats, per: int) -> float | None:
    """Index of dispersion of counts that are added up `per` at a time."""
    whole = len(counts) // per * per
    return stats_arrivals.spread(counts[:whole].reshape(-1, per).sum(axis=1))


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate that was wanted: straight lines between (at_s, rps)."""

    name: str
    at_s: Floats
    rps: Floats


@dataclass(frozen=True, slots=True)
class Band:
    """Lower and upper end of what a fit gives, at the widths of its `Curves`."""

    name: str
    low: Floats
    high: Floats


@dataclass(frozen=True, slots=True)
class Curves:
    """Dispersion curves that somebody has computed: of the stream itself, of a fit, of toys."""

    widths_s: Floats | None = None
    found: Floats | None = None
    band: Band | None = None
    toys: Mapping[str, Floats] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Law:
    """A declared law of gaps: of those in seconds, or of those in operational time where there is one."""

    name: str
    cdf: Callable[[Floats], Floats]
    operational_time: Callable[[Floats], Floats] | None = None

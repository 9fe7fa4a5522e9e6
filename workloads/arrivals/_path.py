"""A rate that is known beforehand: straight pieces, first those of `lead`, then those of `cycle` again and again."""

import math
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise, repeat
from typing import NamedTuple

import numpy as np

from harness.spec import joined
from workloads.arrivals._operational import GapCv, Piece, gamma_cdf, gamma_gaps, times_along


class Path(NamedTuple):
    """Rate over time, in requests per second; it ends with `lead` where `cycle` is empty."""

    lead: tuple[Piece, ...]
    cycle: tuple[Piece, ...]

    @property
    def mean_rate_rps(self) -> float:
        """Long-run mean: of the cycle, or of the whole where there is none."""
        part = self.cycle or self.lead
        if math.isinf(part[-1].duration_s):
            return part[-1].start_rps
        return math.fsum(p.arrivals for p in part) / math.fsum(p.duration_s for p in part)

    def times(self, rng: np.random.Generator, cv: float) -> Iterator[float]:
        """Arrival times (s) along the rate, with gamma gaps of coefficient of variation `cv` in operational time."""
        endless = chain.from_iterable(repeat(self.cycle)) if self.cycle else ()
        return times_along(chain(self.lead, endless), gamma_gaps(rng, cv))

    def operational_time(self, times_s: np.ndarray) -> np.ndarray:
        """(N,) arrivals expected from 0 to each of `times_s`: there the gaps have mean 1 and one law."""
        times_s = np.asarray(times_s, np.float64)
        lead_s, cycle_s = (math.fsum(p.duration_s for p in part) for part in self)
        if not self.cycle:
            return _integral(self.lead, np.minimum(times_s, lead_s))
        before = _integral(self.lead, np.minimum(times_s, lead_s)) if self.lead else 0.0
        after_s = np.maximum(times_s - lead_s, 0)
        if math.isinf(cycle_s):
            return np.asarray(before + _integral(self.cycle, after_s))
        turns, within_s = np.divmod(after_s, cycle_s)
        return np.asarray(before + turns * math.fsum(p.arrivals for p in self.cycle) + _integral(self.cycle, within_s))


class AlongPath:
    """Arrivals along a `_path` of the rate, with gamma gaps of coefficient of variation `cv` in operational time."""

    __slots__ = ()
    cv: GapCv

    def times(self, rng: np.random.Generator) -> Iterator[float]:
        """Return the arrival times (s), endless unless the path has an end."""
        return self._path().times(rng, self.cv)

    def gap_cdf(self, gaps: np.ndarray) -> np.ndarray:
        """Return the probability that a gap in operational time (mean 1) is at most each of `gaps` (N,)."""
        return gamma_cdf(gaps, self.cv)

    def operational_time(self, times_s: np.ndarray) -> np.ndarray:
        return self._path().operational_time(times_s)

    def _path(self) -> Path:
        raise NotImplementedError


def levels(text: str, name: str = "levels") -> tuple[float, ...]:
    """Rates or relative rates, all >= 0 and not all 0, joined by '/': `levels=1/2/4`. Raises ValueError otherwise."""
    rates = joined(text, name, float, "1/2/4")
    if not all(0 <= level < math.inf for level in rates) or not any(rates):
        raise ValueError(f"{name} must be >= 0 and not all 0, got '{text}'.")
    return rates


def flat(duration_s: float, rate_rps: float) -> tuple[Piece, ...]:
    """One piece at a constant rate; none where it has no duration."""
    return (Piece(duration_s, rate_rps, rate_rps),) if duration_s > 0 else ()


def along(points_s: Sequence[float], rates_rps: Sequence[float]) -> tuple[Piece, ...]:
    """Pieces that join the points (time, rate) by straight lines."""
    knots = list(zip(points_s, rates_rps, strict=True))
    return tuple(Piece(b - a, rate, to) for (a, rate), (b, to) in pairwise(knots) if b > a)


def rest_of(pieces: Sequence[Piece], after_s: float) -> tuple[Piece, ...]:
    """What is left of finite `pieces` when their first `after_s` seconds are gone."""
    rest = []
    for piece in pieces:
        gone_s = min(after_s, piece.duration_s)
        after_s -= gone_s
        if gone_s < piece.duration_s:
            rate_rps = piece.start_rps + (piece.end_rps - piece.start_rps) * gone_s / piece.duration_s
            rest.append(Piece(piece.duration_s - gone_s, rate_rps, piece.end_rps))
    return tuple(rest)


def _integral(pieces: Sequence[Piece], times_s: np.ndarray) -> np.ndarray:
    """(N,) integral of the rate from 0 to `times_s`, all within the pieces."""
    durations, starts, ends = (np.array(column) for column in zip(*(p[:3] for p in pieces), strict=True))
    edges = np.concatenate(([0.0], np.cumsum(durations[:-1])))
    areas = np.concatenate(([0.0], np.cumsum([p.arrivals for p in pieces[:-1]])))
    k = np.maximum(np.searchsorted(edges, times_s, side="right") - 1, 0)
    since = times_s - edges[k]
    return np.asarray(areas[k] + since * (starts[k] + (ends - starts)[k] / durations[k] * since / 2))

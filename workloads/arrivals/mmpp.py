"""MMPP arrivals: a Poisson process whose rate jumps at random between a few states."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from harness.bounds import Positive, check
from harness.errors import UsageError
from harness.spec import seconds
from workloads.arrivals._operational import Piece, times_along
from workloads.arrivals._path import levels
from workloads.arrivals._renewal import AtRate, GapCv, gamma_gaps


@dataclass(frozen=True, slots=True)
class Mmpp(AtRate):
    """A Markov-modulated Poisson process of long-run mean `rate_rps` requests per second.

    State i has the relative rate `levels`[i] and lasts an exponential time of mean `dwells`[i] seconds (both joined by
    '/', two states or more); then each of the other states is as likely as any. So state i has the share p_i =
    dwells[i] / sum(dwells) of the time and the rate r_i = rate_rps levels[i] / sum_j p_j levels[j]. The first state is
    drawn with those shares, so the process is stationary.

    The index of dispersion of counts (`dispersion`) is 1 + (2 / rate_rps) int_0^T (1 - u/T) c(u) du, c being the
    covariance of the rate; for two states it grows to 1 + 2 (r_1 - r_2)**2 p_1 p_2 tau / rate_rps with tau = 1 /
    (1/dwell_1 + 1/dwell_2) seconds. Inside, gamma gaps of coefficient of variation `cv` in operational time; only
    cv = 1 is Poisson, and only for it does the formula hold. The rate is random, so its gaps have no law to be tested
    against. Source: Fischer and Meier-Hellstern, The Markov-modulated Poisson process (MMPP) cookbook, Performance
    Evaluation 18 (1993).
    """

    rate_rps: Positive = 1.0
    levels: str = "1/10"
    dwells: str = "90s/10s"
    cv: GapCv = 1.0

    def __post_init__(self) -> None:
        check(self)
        states, times = len(levels(self.levels)), len(durations_s(self.dwells, "dwells"))
        if states != times or states < 2:
            raise ValueError(
                f"levels and dwells must have one value for each of 2 or more states, got {states} and {times}."
            )

    @property
    def shares(self) -> np.ndarray:
        """(states,) share of the time."""
        dwells_s = np.array(durations_s(self.dwells, "dwells"))
        return np.asarray(dwells_s / dwells_s.sum())

    @property
    def rates_rps(self) -> np.ndarray:
        """(states,) rate of each state, requests per second."""
        relative = np.array(levels(self.levels))
        return np.asarray(self.rate_rps * relative / (self.shares @ relative))

    def times(self, rng: np.random.Generator) -> Iterator[float]:
        gaps, chain = rng.spawn(2)  # a stream each, so that another rate has the same states
        return times_along(self._states(chain), gamma_gaps(gaps, self.cv))

    def dispersion(self, width_s: float) -> float:
        """Index of dispersion of counts in bins of `width_s` seconds (`math.inf`: its limit), for cv = 1.

        The chain is reversible, so its generator has real eigenvalues -1/tau_k; c(u) is a sum of exp(-u / tau_k).
        """
        dwells_s = np.array(durations_s(self.dwells, "dwells"))
        states = len(dwells_s)
        generator = np.ones((states, states)) / (dwells_s[:, None] * (states - 1))
        np.fill_diagonal(generator, -1 / dwells_s)
        root = np.sqrt(self.shares)
        falls, modes = np.linalg.eigh(root[:, None] * generator / root)
        weights = ((root * self.rates_rps) @ modes)[:-1] ** 2  # the last mode, of eigenvalue 0, is the mean
        taus_s = -1 / falls[:-1]
        seen = 1.0 if math.isinf(width_s) else 1 + taus_s / width_s * np.expm1(-width_s / taus_s)
        return float(1 + 2 / self.rate_rps * np.sum(weights * taus_s * seen))

    def _states(self, rng: np.random.Generator) -> Iterator[Piece]:
        rates, dwells_s = self.rates_rps.tolist(), durations_s(self.dwells, "dwells")
        state = int(rng.choice(len(rates), p=self.shares))
        while True:
            yield Piece(rng.exponential(dwells_s[state]), rates[state], rates[state])
            other = int(rng.integers(len(rates) - 1))
            state = other + (other >= state)


def durations_s(text: str, name: str) -> tuple[float, ...]:
    """Durations in seconds, all > 0, written like '90s/5min'. Raises ValueError otherwise."""
    try:
        found = tuple(seconds(part, name) for part in text.split("/"))
    except UsageError:
        raise ValueError(f"{name} must be durations joined by '/', such as 90s/10s, got '{text}'.") from None
    if not all(duration_s > 0 for duration_s in found):
        raise ValueError(f"{name} must be > 0, got '{text}'.")
    return found

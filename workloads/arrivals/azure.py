"""Arrivals like those of the Azure conversation trace: almost exponential gaps along a rate that wanders."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from harness.bounds import Positive, check
from workloads.arrivals import _exact
from workloads.arrivals._operational import Stretch, gamma, wandering
from workloads.arrivals._services import Component, LogRate


@dataclass(frozen=True, slots=True)
class Azure:
    """A Cox process fitted to the Azure 2023 conversation trace: three numbers, and `rate_rps` requests per second.

    The log-rate is a stationary Ornstein-Uhlenbeck process (standard deviation 0.24, correlation falling to 1/e in
    285 s); along it run gamma gaps of shape 0.90. Another rate keeps both: the ups and downs take as many seconds, the
    gaps keep their law. The trace is one hour, so this has no daily curve. None is the rate of the trace, 5.53
    requests/s.

    With `over_s` each window of so many seconds has `rate_rps` within 1 %, and the rate wanders inside it as in windows
    of the trace. A run of at most two hours is such a window unless `mean=long-run`: then the rate of a run of minutes
    is itself drawn. Source: AzureLLMInferenceTrace_conv.csv, CC-BY-4.0; method in `tools/fit_azure.py`.
    """

    rate_rps: Positive | None = None
    mean: _exact.Mean = "exact"
    over_s: Positive | None = None
    figures: Mapping[str, Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check(self)
        _exact.check(self.mean, self.over_s)
        path = Path(__file__).with_name("figures") / "azure.json"
        object.__setattr__(self, "figures", json.loads(path.read_text(encoding="utf-8")))

    @property
    def mean_rate_rps(self) -> float:
        return float(self.figures["rate_rps"]) if self.rate_rps is None else self.rate_rps

    @property
    def settles_s(self) -> float:
        """Shortest time in which the mean rate must show: twenty times what the rate remembers."""
        settles_s = 20 * max(part.tau_s for part in self.rate_law.components)
        return settles_s if self.over_s is None else min(settles_s, self.over_s)

    @property
    def facts(self) -> dict[str, object]:
        """Source and licence of the trace behind the figures."""
        return {key: self.figures[key] for key in ("source", "licence")}

    @property
    def rate_law(self) -> LogRate:
        """The law of the rate, by its mean."""
        return LogRate(tuple(Component(*part) for part in self.figures["components"]), self.figures["step_s"])

    def for_run(self, span_s: float) -> Self:
        return replace(self, over_s=_exact.window(self.mean, self.over_s, span_s))

    def times(self, rng: np.random.Generator, draws: int = _exact.MOST_DRAWS) -> Iterator[float]:
        """Endless arrival times in seconds; `draws` as of `_exact.times`."""
        if self.over_s is not None:
            return _exact.times(self._path, self.mean_rate_rps, self.over_s, rng, draws)
        rate_rng, gaps_rng = rng.spawn(2)
        gaps = gamma(float(self.figures["gamma_shape"]), gaps_rng, running=True)
        return self.rate_law.times(self.mean_rate_rps, gaps, rate_rng)

    def rate_windows(self, span_s: float, rng: np.random.Generator) -> tuple[Iterator[tuple[float, None]], float]:
        """Factors of the rate over `span_s`, of mean 1, as windows of `wandering`, and how many seconds each holds."""
        low, high = self.figures["window_spread"]
        factors = self.rate_law.window(span_s, (low, high), rng).tolist()
        return ((factor, None) for factor in factors), self.rate_law.step_s

    def _path(self, start_s: float, rng: np.random.Generator) -> Iterator[Stretch]:  # noqa: ARG002  # stationary
        assert self.over_s is not None
        even = iter([Stretch(math.inf, 1.0, float(self.figures["gamma_shape"]))])
        return wandering(even, *self.rate_windows(self.over_s, rng))

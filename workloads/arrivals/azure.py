"""Arrivals like those of the Azure conversation trace: almost exponential gaps along a rate that wanders."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from workloads._checks import positive
from workloads.arrivals._services import Component, LogRate
from workloads.arrivals._stationary import gamma


@dataclass(frozen=True, slots=True)
class Azure:
    """A Cox process fitted to the Azure 2023 conversation trace: three numbers, and `rate_rps` requests per second.

    The log-rate is a stationary Ornstein-Uhlenbeck process (standard deviation 0.24, correlation falling to 1/e in
    285 s); along it run gamma gaps of shape 0.90. Another rate keeps both: the ups and downs take as many seconds, the
    gaps keep their law. The trace is one hour, so this has no daily curve. None is the rate of the trace, 5.53
    requests/s. Source: AzureLLMInferenceTrace_conv.csv, CC-BY-4.0; method in `tools/fit_azure.py`.
    """

    rate_rps: float | None = None
    figures: Mapping[str, Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.rate_rps is not None:
            positive(rate_rps=self.rate_rps)
        path = Path(__file__).with_name("figures") / "azure.json"
        object.__setattr__(self, "figures", json.loads(path.read_text(encoding="utf-8")))

    @property
    def mean_rate_rps(self) -> float:
        """Long-run mean rate in requests per second."""
        return float(self.figures["rate_rps"]) if self.rate_rps is None else self.rate_rps

    @property
    def settles_s(self) -> float:
        """Shortest time in which the mean rate must show: twenty times what the rate remembers."""
        return 20 * max(part.tau_s for part in self.rate_law.components)

    @property
    def facts(self) -> dict[str, object]:
        """Source and licence of the trace behind the figures."""
        return {key: self.figures[key] for key in ("source", "licence")}

    @property
    def rate_law(self) -> LogRate:
        """The law of the rate, by its mean."""
        return LogRate(tuple(Component(*part) for part in self.figures["components"]), self.figures["step_s"])

    def times(self, rng: np.random.Generator) -> Iterator[float]:
        """Endless arrival times in seconds."""
        rate_rng, gaps_rng = rng.spawn(2)
        gaps = gamma(float(self.figures["gamma_shape"]), gaps_rng, running=True)
        return self.rate_law.times(self.mean_rate_rps, gaps, rate_rng)

"""What a run needs of a workload, and what its report says about it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.api import Content, Workload

if TYPE_CHECKING:
    import numpy as np


GapCdf = Callable[["np.ndarray"], "np.ndarray"]
OperationalTime = Callable[["np.ndarray"], "np.ndarray"]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A workload ready to draw from, and what a report says about it.

    `rate_rps` is the long-run rate of requests, None where answers decide it (closed loop); `arrivals_rps` that of
    the arrivals alone where each starts a session of several requests. `slo` holds default bounds in seconds,
    `requests` the default number (None: as many as asked). `gap_cdf` is the law of the gaps between arrivals where
    there is one: in seconds, or in `operational_time` (s -> expected arrivals) where there is that. `provenance`
    holds source, preparation, tokenizer, licence, and for a trace its hash and what was left out. A run shorter than
    `settles_s` need not have the mean rate, because the arrivals draw their rate at random.
    """

    name: str
    workload: Workload
    content: Content
    arrivals_text: str
    lengths_text: str
    rate_rps: float | None
    slo: Mapping[str, float] = field(default_factory=dict)
    requests: int | None = None
    gap_cdf: GapCdf | None = None
    provenance: Mapping[str, object] = field(default_factory=dict)
    operational_time: OperationalTime | None = None
    arrivals_rps: float | None = None
    settles_s: float = 0.0

    @property
    def slo_text(self) -> str:
        """The default SLO as a spec, such as 'ttft=0.25,tpot=0.1' or 'ttft@chat=2'."""
        return ",".join(f"{metric}={bound:g}" for metric, bound in self.slo.items())

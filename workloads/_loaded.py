"""What a run needs of a workload, and what its report says about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from harness.api import Content, Workload

GapCdf = Callable[["np.ndarray"], "np.ndarray"]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A workload ready to draw from, and what a report says about it.

    `slo` holds default bounds in seconds, `requests` the default number (None: as many as asked), `gap_cdf` the
    law of the gaps (s) where the arrivals have one, `provenance` source, preparation, tokenizer, licence, and
    for a trace its hash and what was left out.
    """

    name: str
    workload: Workload
    content: Content
    arrivals_text: str
    lengths_text: str
    rate_rps: float
    slo: Mapping[str, float] = field(default_factory=dict)
    requests: int | None = None
    gap_cdf: GapCdf | None = None
    provenance: Mapping[str, object] = field(default_factory=dict)

    @property
    def slo_text(self) -> str:
        """The default SLO as a spec, such as 'ttft=0.25,tpot=0.1'."""
        return ",".join(f"{metric}={bound:g}" for metric, bound in self.slo.items())

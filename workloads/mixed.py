"""A workload mixed from arrivals and lengths, each with a random stream of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.api import Arrivals, Lengths, Request, RequestRecord

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True)
class Mixed:
    """Requests at the times of `arrivals` with the `lengths`, which do not depend on one another.

    Changing the arrivals leaves the lengths of a seed as they are. `tag` names the class of traffic. `slo` sets
    bounds in seconds for every request itself (keys `ttft`, `tpot`), which no SLO of a run can relax; leave it
    empty for one that can be scored again.
    """

    arrivals: Arrivals
    lengths: Lengths
    tag: str | None = None
    slo: Mapping[str, float] = field(default_factory=dict)
    facts: Mapping[str, object] = field(default_factory=dict)

    def start(self, rng: np.random.Generator) -> Iterator[Request]:
        """Requests in order of time; as many as the arrivals have, which may be without end."""
        arrivals_rng, lengths_rng, _content_rng = rng.spawn(3)
        tag, ttft_s, tpot_s = self.tag, self.slo.get("ttft"), self.slo.get("tpot")
        stream = zip(self.arrivals.times(arrivals_rng), self.lengths.pairs(lengths_rng), strict=False)
        for i, (at_s, (prompt, output)) in enumerate(stream):
            yield Request(i, at_s, prompt, output, tag=tag, slo_ttft_s=ttft_s, slo_tpot_s=tpot_s)

    def follow_ups(self, record: RequestRecord) -> Iterable[Request]:  # noqa: ARG002  # an open loop
        """None: nobody waits for an answer."""
        return ()

    def describe(self) -> Mapping[str, object]:
        """Preparation, tokenizer, source and licence of the lengths."""
        return self.facts

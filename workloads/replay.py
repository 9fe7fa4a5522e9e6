"""A recorded trace as a workload: its stamps, lengths, sessions and shared prefixes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.api import Request, RequestRecord
from workloads.readers.mooncake import BLOCK_TOKENS

if TYPE_CHECKING:
    import numpy as np

    from workloads.traces import Trace


@dataclass(frozen=True, slots=True)
class Replay:
    """The requests of a trace, in its order, at its times (s), whatever the seed.

    Later turns of a session come at the recorded times too: they do not wait for the answer before.
    """

    trace: Trace

    def start(self, rng: np.random.Generator) -> Iterator[Request]:  # noqa: ARG002  # nothing is random here
        """All requests of the trace."""
        trace = self.trace
        for i, at_s in enumerate(trace.at_s):
            session = trace.sessions[i] if trace.sessions else None
            yield Request(
                i,
                at_s,
                trace.prompt_tokens[i],
                trace.output_tokens[i],
                prefix_ids=trace.prefix_ids[i] if trace.prefix_ids else (),
                prefix_block_tokens=BLOCK_TOKENS,
                session=session[0] if session else None,
                turn=session[1] if session else 0,
                tag=trace.tags[i] if trace.tags else None,
            )

    def follow_ups(self, record: RequestRecord) -> Iterable[Request]:  # noqa: ARG002  # an open loop
        """None: the trace holds every request."""
        return ()

    def describe(self) -> Mapping[str, object]:
        """File, hash, format, rows, and what was left out."""
        return self.trace.facts

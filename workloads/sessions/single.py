"""No sessions: every arrival is one request and belongs to nothing (the default)."""

from dataclasses import dataclass

import numpy as np

from workloads.mixed import Streams, Tasks
from workloads.sessions._conversation import BLOCK_TOKENS, conversations


@dataclass(frozen=True, slots=True)
class Single:
    """One request an arrival, with the tokens of the lengths. Source: nothing is drawn."""

    @property
    def block_tokens(self) -> int:
        """Nothing is shared."""
        return BLOCK_TOKENS

    @property
    def mean_requests(self) -> float:
        """One."""
        return 1.0

    def tasks(self, count: int, streams: Streams) -> Tasks:
        """The next `count` tasks of one request each."""
        return conversations(np.ones(count, np.int64), streams, np.zeros, None, self.block_tokens)

"""How long a prompt and its answer may be together, as clients are told."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from harness.api import Request

if TYPE_CHECKING:
    from backends.serving.cluster import Cluster
    from backends.serving.replica import Replica


def longest_tokens(serving: Replica | Cluster, most: int) -> int:
    """Tokens of the longest prompt and answer that are served, at most `most` (what the model takes).

    Memory and policy judge a request of one token of prompt, for which nothing else refuses what is shorter.
    """
    return 1 + bisect_left(
        range(2, most + 1), True, key=lambda total: serving.refusal(Request(0, 0.0, 1, total - 1)) is not None
    )

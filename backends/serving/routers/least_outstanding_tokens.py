"""Least outstanding tokens: the replica whose unanswered requests have the fewest prompt tokens; the first of equals.

As a gateway does that counts the tokens it sent and has had no last token for; long prompts weigh what they are.
"""

from __future__ import annotations

from collections.abc import Sequence as ListOf
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.api import Request

if TYPE_CHECKING:
    from backends.serving.replica import Replica


@dataclass(frozen=True, slots=True)
class LeastOutstandingTokens:
    """Knows the prompt tokens of the requests at each replica that are not over."""

    def route(self, request: Request, replicas: ListOf[Replica]) -> int:  # noqa: ARG002  the load is what it was
        """Index of the replica with the fewest tokens to answer."""
        return min(range(len(replicas)), key=lambda i: replicas[i].prompt_tokens)

"""What a policy, a router and a KV memory mode must offer; each is one file in the folder of its kind.

These protocols speak of replicas and batches, which only this package knows; those without such words are in
`harness.api`.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as ListOf
from typing import TYPE_CHECKING, Protocol

from backends.serving.batch import Batch
from harness.api import Request

if TYPE_CHECKING:
    from backends.serving.batch import Sequence
    from backends.serving.replica import Replica


class Policy(Protocol):
    """What runs next on a replica."""

    @property
    def pads(self) -> bool:
        """Whether finished rows stay in the batch, at its cost, until its last row ends."""
        ...

    def refusal(self, prompt: int, output: int) -> str | None:
        """Why a request of these lengths can never run under this policy, or None."""
        ...

    def fill(self, replica: Replica, batch: Batch) -> None:
        """Fill the batch through `replica.decode`, `replica.admit` and `replica.run`; leave it empty to idle.

        Sets `batch.repeats` when it would form the same decode-only batch again until a sequence ends, a request
        arrives or blocks run short. Knows no clock and no randomness.
        """
        ...


class Memory(Protocol):
    """How KV memory is given out."""

    @property
    def block_tokens(self) -> int:
        """Tokens per block."""
        ...

    @property
    def watermark(self) -> float:
        """Share of all blocks that admission leaves free."""
        ...

    @property
    def reserves(self) -> bool:
        """True: a sequence gets all its memory at admission. False: on demand."""
        ...

    def reserved_tokens(self, prompt: int, output: int) -> int:
        """Tokens reserved at admission (only asked if `reserves`)."""
        ...

    def refusal(self, prompt: int, output: int) -> str | None:
        """Why a request of these lengths never fits this mode, or None."""
        ...


class Admission(Protocol):
    """Whom memory admits, beyond what the memory mode says. An object of its own for every replica."""

    @property
    def steadfast(self) -> bool:
        """Whether a no stays a no until a sequence ends, arrives or leaves; else it is asked before every step."""
        ...

    def admits(self, replica: Replica, seq: Sequence, chance: Callable[[], float]) -> bool:
        """Whether the head of the queue may start now. `chance` draws from [0, 1), the same for the same seed.

        Memory has room for it, and something is running: an idle replica admits without asking.
        """
        ...

    def finished(self, output_tokens: int) -> None:
        """An answer ended with so many tokens."""
        ...


class Router(Protocol):
    """Which replica gets a request.

    One that looks at what decoding changes step by step (free blocks, context, what is stored) has an attribute
    `watches` that is True; the simulator then leaps over no arrival, so that it sees what it would see step by step.
    """

    def route(self, request: Request, replicas: ListOf[Replica]) -> int:
        """Index into `replicas`."""
        ...

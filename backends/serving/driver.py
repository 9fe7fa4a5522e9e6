"""What drives a loop: requests that come, batches and transfers that are run, replicas that fail."""

from collections import deque
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

from backends.serving.batch import Batch, Sequence
from backends.serving.handoff import Transfer
from backends.serving.migration import Migration
from backends.serving.replica import Replica
from harness.api import Request

T = TypeVar("T")


class Arrivals(Protocol):
    """The requests that are still to come, in order of time."""

    @property
    def next_s(self) -> float:
        """When the next one arrives; inf when none is known."""
        ...

    @property
    def over(self) -> bool:
        """Whether none will be added but those that answers bring about."""
        ...

    def pop(self) -> Request:
        """The request that arrives at `next_s`."""
        ...


class Driver(Protocol[T]):
    """Runs what the loop decides. `results` is what the loop yields, in this order."""

    @property
    def results(self) -> deque[T]: ...

    def start(self, replica: Replica, batch: Batch, now_s: float, horizon_s: float) -> list[float] | None:
        """The batch runs from `now_s`. The ends of its steps: one, or as many as start before `horizon_s` while it
        repeats; None where only `Loop.ended` will tell.
        """
        ...

    def end(self, seq: Sequence, replica: int, error: str | None, now_s: float) -> None:
        """A sequence is answered, or ended by this error."""
        ...

    def reject(self, request: Request, reason: str, replica: int | None, now_s: float) -> None:
        """A request is not served."""
        ...


@runtime_checkable
class Committer(Protocol):
    """A driver that commits batches itself, to see what each brings; `Driver.end` does not hear of what they end."""

    def commit(self, replica: Replica, end_s: list[float]) -> list[Sequence]:
        """Commit the batch in flight (`Replica.commit`)."""
        ...


class Mover(Protocol):
    """Moves KV itself; without one it has arrived when the link is through with it."""

    def move(self, transfer: Transfer, end_s: float) -> None:
        """KV begins to move over a link that is through with it at `end_s` at the earliest; tell `Loop.landed`."""
        ...

    def copy(self, migration: Migration, first_token: int, end_s: float) -> None:
        """A stage of a live migration begins: its KV from `first_token` on, as above; tell `Loop.copied`."""
        ...


@dataclass(frozen=True, slots=True)
class Fail:
    """A replica goes down; its requests end with an error, or go back to the router (`requeue`)."""

    replica: int
    requeue: bool = False


@dataclass(frozen=True, slots=True)
class Up:
    """A replica is up, empty."""

    replica: int

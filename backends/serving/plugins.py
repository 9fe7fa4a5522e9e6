"""What a policy, a router and a KV memory mode must offer, and what some can do beyond that; what a driver must.

Each plug-in is one file in the folder of its kind, or a class in the `builtin.py` there. `draw` and `unit` are chance
for those of them that may hold no generator.

These protocols speak of replicas and batches, which only this package knows; those without such words are in
`harness.api`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as ListOf
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar, runtime_checkable

from backends.serving.batch import Batch, VisibleRequest
from harness.api import LatencyModel, Request

if TYPE_CHECKING:
    from _typeshed import SupportsRichComparison

    from backends.serving.batch import Sequence
    from backends.serving.handoff import Transfer
    from backends.serving.migration import Migration
    from backends.serving.replica import Replica, Role

_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 / golden ratio
_WORD = (1 << 64) - 1
T = TypeVar("T")


class Policy(Protocol):
    """What runs next on a replica."""

    def fill(self, replica: Replica, batch: Batch) -> None:
        """Fill the batch through `replica.decode`, `replica.admit` and `replica.run`; leave it empty to idle.

        Sets `batch.repeats` when it would form the same decode-only batch again until a sequence ends, a request
        arrives or blocks run short: True, or for how many steps at most. It may set `batch.repeats_until_s`, when the
        first step starts that may differ. Without randomness; its only clock is that of `Clocked`. Not called for a
        replica without sequences.
        """
        ...


@runtime_checkable
class Padding(Policy, Protocol):
    """A policy that may keep finished rows in the batch; without it they leave at once."""

    @property
    def pads(self) -> bool:
        """Whether they stay, at the cost of the batch, until its last row ends."""
        ...


@runtime_checkable
class LengthLimit(Protocol):
    """A policy or memory mode that takes some lengths only; without it the size of the memory is the only limit."""

    def refusal(self, prompt: int, output: int) -> str | None:
        """Why a request of these lengths can never run here, or None."""
        ...


@runtime_checkable
class Clocked(Policy, Protocol):
    """A policy that knows the time."""

    def on_step_start(self, now_s: float) -> None:
        """A batch is about to be formed: `fill` follows. Of the steps of a leap only the first is announced.

        What the policy decides must follow from the time, not from how often it is called.
        """
        ...


@runtime_checkable
class StepFeedback(Protocol):
    """A policy that learns how long steps take."""

    def on_step_end(self, batch: Batch, seconds: float) -> None:
        """A step took so long from its start to its end; called for every step in order, each of a leap too.

        `prefills`, `decode_seqs`, `context_tokens` and `start_s` of the batch are those of this step. Leaping equals
        stepping for a policy that uses nothing else here: at the end of a leap the replica has all its steps behind it.
        """
        ...


@runtime_checkable
class FinishFeedback(Protocol):
    """A policy that learns from answers that ended."""

    def on_finish(self, seq: Sequence) -> None:
        """An answer ended with `seq.emitted` tokens, after the step of its last one; not called where it is withdrawn.

        Of those that end with one step the first to arrive goes first.
        """
        ...


@runtime_checkable
class Polling(Protocol):
    """A policy of an engine that forms each batch while the one before it runs.

    A request that arrives during a step is not in the next batch, but at the earliest in the one after it. An idle
    replica takes it in at once. In a pipeline it makes no difference.
    """

    @property
    def poll_steps(self) -> int:
        """New requests are taken in every so many steps; 0: as they arrive."""
        ...


@runtime_checkable
class Predicting(Protocol):
    """A policy that estimates the lengths of answers."""

    @property
    def predictor(self) -> str:
        """Spec of its length predictor, which stands in run.json beside the policy."""
        ...


@runtime_checkable
class StepTimes(Protocol):
    """A policy that must know how long steps take before they run."""

    def use_model(self, model: LatencyModel) -> None:
        """Use this latency model; never called where none says how long the steps of the replica take."""
        ...


class Predictor(Protocol):
    """Estimates how long answers will be. One instance per policy."""

    def output_tokens(self, seq: Sequence) -> float:
        """Tokens of the whole answer, more than are out; the same until one more is out or an answer ends."""
        ...

    def on_finish(self, seq: Sequence) -> None:
        """An answer ended with `seq.emitted` tokens."""
        ...


@runtime_checkable
class OneRole(Protocol):
    """A policy that is made for replicas of one role; without it a policy runs prompts and decodes alike."""

    @property
    def serves(self) -> Role:
        """That role."""
        ...


@runtime_checkable
class HandOffRoom(Protocol):
    """A policy that bounds how many sequences a decode replica holds; without it memory alone is the bound."""

    def has_room(self, replica: Replica) -> bool:
        """Whether one more sequence may be handed on to this replica now."""
        ...


@runtime_checkable
class Simulated(Protocol):
    """A policy or memory mode of a system that no engine here can run, such as one that sets `Batch.takes_s`."""

    @property
    def simulated(self) -> str:
        """What an engine would have to do: 'runs batches side by side'."""
        ...


@runtime_checkable
class Sharing(Policy, Simulated, Protocol):
    """A policy that has several batches under way at a time, each in a lane, on shares of the GPUs of its replica.

    Lanes have one memory and one queue. `fill` is that of a driver without lanes, which refuses the policy.
    """

    def lanes(self) -> ListOf[Policy]:
        """What decides in each lane what runs next; fresh ones, once for each replica.

        The first lane is for decodes and takes memory first, the others are for prompts: a sequence whose prompt is
        computed is in the next batch of the first, without a copy.
        """
        ...

    def rates(self, lanes: ListOf[int]) -> ListOf[float]:
        """How fast each of these lanes works while they all, and no others, have a batch under way: seconds of work at
        full speed in a second, above 0.
        """
        ...


class Memory(Protocol):
    """How KV memory is given out: on demand, unless it is `Reserving`."""

    @property
    def block_tokens(self) -> int:
        """Tokens per block."""
        ...

    @property
    def watermark(self) -> float:
        """Share of all blocks that admission leaves free."""
        ...


@runtime_checkable
class Reserving(Memory, Protocol):
    """A memory mode that may reserve."""

    @property
    def reserves(self) -> bool:
        """Whether a sequence gets all its memory at admission."""
        ...

    def reserved_tokens(self, prompt: int, output: int) -> int:
        """Tokens reserved at admission (only called if `reserves`)."""
        ...


@runtime_checkable
class MapTime(Protocol):
    """A memory mode that maps blocks while a step waits; without it mapping takes no time."""

    @property
    def step_map_s(self) -> float:
        """Seconds to map a block, at least 0."""
        ...

    @property
    def maps_ahead(self) -> bool:
        """Whether the blocks of a step are mapped beside the step before; then it pays only what exceeds that one."""
        ...


class Tier(Protocol):
    """A memory below that of the GPUs, which stores KV blocks by what they hold; the least recently used ones go."""

    @property
    def size_bytes(self) -> float:
        """What one memory of it holds."""
        ...

    @property
    def load_bytes_per_s(self) -> float:
        """Rate of all loads under way over one link."""
        ...

    @property
    def store_bytes_per_s(self) -> float:
        """The same of writes."""
        ...

    @property
    def latency_s(self) -> float:
        """Seconds that each transfer takes besides."""
        ...

    @property
    def replicas(self) -> int | None:
        """How many replicas share a memory and its link; None: all share the memory, each over a link of its own."""
        ...

    @property
    def write(self) -> Literal["through", "back"]:
        """Whether blocks are written as the GPU fills them, or when the tier above it (the GPU's) gives them up."""
        ...


class Admission(Protocol):
    """Admission rule, applied after the check of the memory mode. One instance per replica."""

    @property
    def decision_is_stable(self) -> bool:
        """Whether a rejection holds until a sequence ends, arrives or leaves; else `admits` is called every step."""
        ...

    def admits(self, replica: Replica, seq: Sequence, chance: Callable[[], float]) -> bool:
        """Whether the head of the queue may start now. `chance` draws from [0, 1), the same for the same seed.

        Memory has room for it, and something is running: an idle replica admits without asking.
        """
        ...


@runtime_checkable
class LengthFeedback(Admission, Protocol):
    """An admission rule that learns from answers that ended."""

    def finished(self, output_tokens: int) -> None:
        """An answer ended with so many tokens."""
        ...


@runtime_checkable
class Router(Protocol):
    """Which replica gets a request."""

    def route(self, request: VisibleRequest, replicas: ListOf[Replica]) -> int:
        """Index into `replicas`."""
        ...


@runtime_checkable
class LoadRouter(Protocol):
    """A router that sends every request to the replica with the least load; the first of equals."""

    def load(self, replica: Replica) -> SupportsRichComparison:
        """What it compares, which follows from the state of the replica alone: it is worked out where that changed.

        Where the router watches steps it must not fall with those of a leap: it grows as memory fills.
        """
        ...


@runtime_checkable
class StepRouter(Protocol):
    """A router that may look at what decoding changes step by step: free blocks, context, what is stored."""

    @property
    def watches(self) -> bool:
        """Whether it does; the simulator then leaps over no arrival, so that it sees what it would see step by step."""
        ...


def draw(seed: int, number: int) -> int:
    """Draw number `number` of the stream `seed`, an integer of 64 bits, without a generator: a hash of both.

    Source: Steele, Lea, Flood, OOPSLA 2014 (SplitMix64).
    """
    return _mix(_mix(seed) + number * _GOLDEN)


def unit(seed: int, number: int) -> float:
    """The same draw as a number in [0, 1)."""
    return (draw(seed, number) >> 11) / (1 << 53)


def _mix(z: int) -> int:
    z &= _WORD
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _WORD
    return z ^ (z >> 31)


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

    def pop(self) -> Request | None:
        """The request that arrives at `next_s`; None where something before the cluster answers it, or takes time."""
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

    def move(self, transfer: Transfer, end_s: float) -> float | None:
        """KV begins to move over a link that is through with it at `end_s`. When it has arrived; None where only
        `Loop.landed` will tell.
        """
        ...

    def copy(self, migration: Migration, first_token: int, end_s: float) -> float | None:
        """A stage of a live migration begins: its KV from `first_token` on, as above; or `Loop.copied` will tell."""
        ...

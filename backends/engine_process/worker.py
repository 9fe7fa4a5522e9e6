"""The engine's process: `python -m backends.engine_process.worker FD` serves one client over an inherited socket."""

import contextlib
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

from backends.engine_process.core import EngineCore, GenerationParams, Pacer
from backends.simulator.core import FREE, Core
from harness import termination
from harness.api import Executor, Prompts, Request
from harness.errors import BenchError, UsageError
from harness.ipc import Inbox, frame
from harness.registry import find, make
from harness.spec import parse

KV_BLOCKS = 4096
"""Blocks of KV memory of a real model where the user does not say how many."""

NICE = 5
"""Priority of a real model where the user does not say: below that of the load generator."""

MOST_KV_BYTES = 16 * 2**30
"""KV memory that an engine may ask for: a slip in a spec must not take the machine down."""


@dataclass(frozen=True, slots=True)
class Open:
    """First message: build the model and get ready. `given` are the fields of the executor that the user set."""

    executor: str
    given: Mapping[str, object]
    core: Core
    kv_blocks: int | None
    temperature: float
    nice: int | None
    prompts: Prompts | None  # None: every request brings its own


@dataclass(frozen=True, slots=True)
class Clock:
    """The run starts: stamps are `time.monotonic() - epoch_s`."""

    epoch_s: float


@dataclass(frozen=True, slots=True)
class Add:
    """A request arrives, sent at `sent_s` of the monotonic clock; without params it has the prompt of its content."""

    request: Request
    sent_s: float
    params: GenerationParams | None = None


@dataclass(frozen=True, slots=True)
class Cancel:
    """A request is withdrawn."""

    request_id: int


@dataclass(frozen=True, slots=True)
class Forget:
    """Clear unreferenced blocks from the prefix cache."""


@dataclass(frozen=True, slots=True)
class Ready:
    """Answer to `Open`: facts of the engine, or why it cannot serve."""

    facts: Mapping[str, object]
    error: BenchError | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """Last message: the engine broke in the middle of its work."""

    message: str


class Worker:
    """Reads messages, takes turns, answers."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._inbox = Inbox(sock)
        self._epoch_s = 0.0

    def serve(self) -> None:
        """Until the client closes the socket."""
        first = next(self._inbox.take(wait=True), None)
        if not isinstance(first, Open):
            return  # the client left before the first message
        try:
            core = self._open(first)
        except BenchError as error:
            self._sock.sendall(frame(Ready({}, error)))
            return
        try:
            self._turns(core)
        except OSError:
            return  # the client is gone
        except Exception as error:  # noqa: BLE001  whatever broke, the client must hear of it
            *_, frame_ = traceback.extract_tb(error.__traceback__)
            where = f"{Path(frame_.filename).name}, line {frame_.lineno}"
            self._sock.sendall(frame(Failed(f"{type(error).__name__} in {where}: {error}")))

    def _turns(self, core: EngineCore) -> None:
        idle = True
        while not self._inbox.closed:
            arrived: dict[int, Add] = {}
            cancelled: list[int] = []
            for message in self._inbox.take(wait=idle):
                if isinstance(message, Clock):
                    self._epoch_s = message.epoch_s
                elif isinstance(message, Add):
                    arrived[message.request.id] = message
                elif isinstance(message, Forget):
                    core.replica.forget_prefixes(self._now_s())
                elif isinstance(message, Cancel) and arrived.pop(message.request_id, None) is None:
                    cancelled.append(message.request_id)
            params = {i: add.params for i, add in arrived.items() if add.params is not None}
            adds = arrived.values()
            sent_s = max((add.sent_s - self._epoch_s for add in adds), default=None)
            turn = core.turn([add.request for add in adds], cancelled, params, sent_s)
            idle = turn.step is None
            if turn.step is not None or turn.ended:
                self._sock.sendall(frame(turn))

    def _open(self, message: Open) -> EngineCore:
        core, facts = engine_core(message, self._now_s)
        nice = message.nice
        if nice is None:  # the load generator must get a core the moment it wakes up, and so must one that only waits
            nice = NICE if core.computes else 0
        os.nice(nice)
        self._sock.sendall(frame(Ready(facts)))
        return core

    def _now_s(self) -> float:
        return time.monotonic() - self._epoch_s


def engine_core(
    message: Open, clock: Callable[[], float], sleep: Callable[[float], None] = time.sleep
) -> tuple[EngineCore, dict[str, object]]:
    """The loop that a first message asks for, with its model and memory, and its facts. Raises UsageError."""
    executor = _executor(message)
    facts = dict(executor.describe())
    memory = message.core.memory(token_bytes(facts))
    blocks = memory.blocks or message.kv_blocks
    if isinstance(executor, Pacer):
        blocks = blocks or executor.blocks_that_fit(memory.block_tokens)
        cost = executor.block_cost(memory.block_tokens)
    else:
        blocks = blocks or KV_BLOCKS
        _check_room(facts, blocks * memory.block_tokens)
        executor.allocate(blocks, memory.block_tokens)
        kv_bytes = facts.get("kv_bytes_per_token")
        cost = replace(FREE, bytes=kv_bytes * memory.block_tokens if isinstance(kv_bytes, int) else 1)
    replica = message.core.replica(memory, blocks, cost=cost)
    facts |= {"kv_blocks": blocks, "kv_tokens": blocks * memory.block_tokens}
    return EngineCore(replica, executor, message.prompts, clock, message.temperature, sleep), facts


def _executor(message: Open) -> Executor | Pacer:
    """The executor of a first message. Raises UsageError for what it cannot do with what it is given."""
    spec = parse(message.executor)
    known = {field.name for field in fields(find("executors", spec.name)) if field.init}
    without = next((name for name in message.given if name not in known | {"seed"}), None)  # chance has a seed as well
    if without is not None:
        raise UsageError(
            f"{without} does not apply to the executor '{spec.name}' of the engine; its arguments are: "
            f"{', '.join(sorted(known))}."
        )
    executor: Executor | Pacer = make("executors", spec, **message.given)
    if isinstance(executor, Pacer) and message.temperature:
        raise UsageError(f"temperature does not apply to the executor '{spec.name}': its tokens are arbitrary.")
    return executor


def token_bytes(facts: Mapping[str, object]) -> int | None:
    """Bytes of the keys of one token in one layer, where the executor has the facts."""
    if isinstance(own := facts.get("layer_token_bytes"), int):
        return own
    per_token, layers = facts.get("kv_bytes_per_token"), facts.get("layers")
    if not isinstance(per_token, int) or not isinstance(layers, int):
        return None
    return per_token // (2 * layers)


def _check_room(facts: Mapping[str, object], tokens: int) -> None:
    """Raise UsageError for KV memory that no machine for tests has."""
    per_token = facts.get("kv_bytes_per_token")
    if isinstance(per_token, int) and tokens * per_token > MOST_KV_BYTES:
        raise UsageError(
            f"KV memory for {tokens:,} tokens takes {tokens * per_token / 2**30:.0f} GiB, the engine has at most "
            f"{MOST_KV_BYTES / 2**30:.0f} GiB; lower kv_blocks, or the size of a page."
        )


def main() -> None:
    """Serve the socket whose descriptor is the first argument."""
    termination.led()  # by the client: it drains, then closes the socket
    sock = socket.socket(fileno=int(sys.argv[1]))
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        Worker(sock).serve()


if __name__ == "__main__":
    from backends.engine_process.worker import (
        main as serve,  # messages must unpickle to the classes of the module's real name
    )

    serve()

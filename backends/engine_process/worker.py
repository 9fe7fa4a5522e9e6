"""The engine's process: `python -m backends.engine_process.worker FD` serves one client over an inherited socket."""

import contextlib
import os
import socket
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from backends.engine_process.core import EngineCore, GenerationParams
from backends.simulator.core import FREE, Core
from harness import termination
from harness.api import Executor, Prompts, Request
from harness.errors import BenchError, UsageError
from harness.ipc import Inbox, frame
from harness.registry import make

MOST_KV_BYTES = 16 * 2**30
"""KV memory that an engine may ask for: a slip in a spec must not take the machine down."""


@dataclass(frozen=True, slots=True)
class Open:
    """First message: build the model and get ready."""

    executor: str
    given: Mapping[str, object]
    core: Core
    kv_blocks: int
    temperature: float
    nice: int
    prompts: Prompts | None  # None: every request brings its own


@dataclass(frozen=True, slots=True)
class Clock:
    """The run starts: stamps are `time.monotonic() - epoch_s`."""

    epoch_s: float


@dataclass(frozen=True, slots=True)
class Add:
    """A request arrives; without a wish it has the prompt of its content."""

    request: Request
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
            turn = core.turn([add.request for add in arrived.values()], cancelled, params)
            idle = turn.step is None
            if turn.step is not None or turn.ended:
                self._sock.sendall(frame(turn))

    def _open(self, message: Open) -> EngineCore:
        os.nice(message.nice)  # the load generator must get a core the moment it wakes up
        executor: Executor = make("executors", message.executor, **message.given)
        facts = dict(executor.describe())
        memory = message.core.memory(token_bytes(facts))
        blocks = memory.blocks or message.kv_blocks
        _check_room(facts, blocks * memory.block_tokens)
        executor.allocate(blocks, memory.block_tokens)
        kv_bytes = facts.get("kv_bytes_per_token")
        size = kv_bytes * memory.block_tokens if isinstance(kv_bytes, int) else 1
        replica = message.core.replica(memory, blocks, cost=replace(FREE, bytes=size))
        facts |= {"kv_blocks": blocks, "kv_tokens": blocks * memory.block_tokens}
        self._sock.sendall(frame(Ready(facts)))
        return EngineCore(replica, executor, message.prompts, self._now_s, message.temperature)

    def _now_s(self) -> float:
        return time.monotonic() - self._epoch_s


def token_bytes(facts: Mapping[str, object]) -> int | None:
    """Bytes of the keys of one token in one layer, where the executor has the facts."""
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

"""The executors of a cluster, a process each, and what the engine's process sends to them; or one without a process.

The arguments of a process are FD INDEX MEMORY...: it computes what comes over the socket FD. Each executor has its KV
blocks in shared memory, in the file of its number among the descriptors MEMORY, so that another one copies them from
there.
"""

import contextlib
import mmap
import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, fields
from typing import Protocol, TypeVar, runtime_checkable

from backends.engine_process.cluster import Copy, Message, Offload
from backends.engine_process.generation import Work, execute
from backends.executors.paced import Paced
from harness import termination
from harness.api import Executor
from harness.errors import BackendError, BenchError, UsageError
from harness.ipc import Inbox, frame, python, where
from harness.registry import find, make
from harness.spec import parse

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Build:
    """First message: make the executor of this spec; `given` are the fields of it that the user set besides."""

    executor: str
    given: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Built:
    """Answer to `Build`: facts of the executor, and whether others can copy its KV."""

    facts: Mapping[str, object]
    shares_memory: bool


@dataclass(frozen=True, slots=True)
class Allocate:
    """Second message: make KV memory of so many blocks, and take this priority; `shared`: others will read it."""

    blocks: int
    block_tokens: int
    nice: int
    shared: bool


@dataclass(frozen=True, slots=True)
class Allocated:
    """Answer to `Allocate`: it is there."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Answer to either, and the last message: why it cannot be."""

    error: BenchError


@dataclass(frozen=True, slots=True)
class Ran:
    """A step ended at `end_s` of the monotonic clock; a token for each piece that samples."""

    sampled: list[int | None]
    end_s: float


@dataclass(frozen=True, slots=True)
class Copied:
    """The copy of this number was made at `at_s` of the monotonic clock."""

    number: int
    at_s: float


@dataclass(frozen=True, slots=True)
class Broken:
    """Last message: the executor broke in the middle of its work."""

    message: str


@runtime_checkable
class SharesMemory(Protocol):
    """An executor whose KV blocks may lie in memory that it is given, for executors of equal shape to copy from."""

    def kv_bytes(self, num_blocks: int, block_size: int) -> int:
        """Bytes of so many blocks."""
        ...

    def allocate_in(self, memory: mmap.mmap, num_blocks: int, block_size: int) -> None:
        """As `allocate`, in this memory, which is zero."""
        ...

    def copy_from(self, memory: mmap.mmap, source_blocks: Sequence[int], blocks: Sequence[int]) -> None:
        """Copy blocks of the executor that was allocated in `memory`, with as many blocks, into these."""
        ...

    def copy_out_of(self, memory: mmap.mmap, source_blocks: Sequence[int]) -> Sequence[object]:
        """What `copy_out` of that executor gives."""
        ...


class StepRunner:
    """Runs the steps of an executor and makes its copies; `memory(replica)` has the KV blocks of a replica."""

    def __init__(self, executor: Executor | Paced, memory: Callable[[int], mmap.mmap] | None = None) -> None:
        self._executor = executor
        self._memory = memory
        self._host: dict[int, Sequence[object]] = {}  # KV of who is swapped out, block by block
        self._tiers: dict[int, object] = {}  # KV of blocks by their keys

    def perform(self, message: Message) -> Ran | Copied | None:
        """Do what this message asks for."""
        executor = self._executor
        if isinstance(message, Work):
            if not isinstance(executor, Paced):
                return Ran(execute(executor, self._host, message), time.monotonic())
            assert message.end_s is not None
            if (left_s := message.end_s - time.monotonic()) > 0:
                time.sleep(left_s)
            return Ran([], time.monotonic())
        if isinstance(message, Copy):
            assert isinstance(executor, SharesMemory)
            assert self._memory is not None
            source = self._memory(message.source)
            if message.blocks is None:
                self._host[message.request_id] = executor.copy_out_of(source, message.source_blocks)
            else:
                executor.copy_from(source, message.source_blocks, message.blocks)
            return Copied(message.number, time.monotonic())
        if isinstance(message, Offload):
            assert not isinstance(executor, Paced)
            for key, block in message.stored:  # before what is loaded takes its place
                (self._tiers[key],) = executor.copy_out([block])  # an array of its own, which is freed alone
            executor.copy_in([self._tiers[key] for key, _ in message.loaded], [block for _, block in message.loaded])
            for key in message.evicted:
                self._tiers.pop(key)
            return Copied(message.number, time.monotonic())
        self._host.pop(message.request_id, None)
        return None


class ExecutorWorker:
    """Builds an executor, then does what the engine's process asks for, in this order."""

    def __init__(self, sock: socket.socket, index: int, memory: Sequence[int]) -> None:
        self._sock = sock
        self._inbox = Inbox(sock)
        self._index = index
        self._memory = memory
        self._mapped: dict[int, mmap.mmap] = {}  # by replica

    def serve(self) -> None:
        """Until the engine closes the socket."""
        messages = self._messages()
        build = next(messages, None)
        if not isinstance(build, Build):
            return  # the engine left before the first message
        try:
            executor = make_executor(build.executor, build.given)
            self._answer(built(executor))
            allocate = next(messages, None)
            if not isinstance(allocate, Allocate):
                return
            self._allocate(executor, allocate)
        except BenchError as error:
            self._answer(Refused(error))
            return
        self._answer(Allocated())
        runner = StepRunner(executor, self._map)
        try:
            for message in messages:
                assert isinstance(message, Message)
                answer = runner.perform(message)
                if answer is not None:
                    self._answer(answer)
        except OSError:
            return  # the engine is gone
        except Exception as error:  # noqa: BLE001  whatever broke, the engine must hear of it
            self._answer(Broken(where(error)))

    def _messages(self) -> Iterator[object]:
        while not self._inbox.closed:
            yield from self._inbox.take(wait=True)

    def _allocate(self, executor: Executor | Paced, message: Allocate) -> None:
        os.nice(message.nice)
        if isinstance(executor, Paced):
            return
        if not message.shared:
            executor.allocate(message.blocks, message.block_tokens)
            return
        assert isinstance(executor, SharesMemory)
        os.truncate(self._memory[self._index], executor.kv_bytes(message.blocks, message.block_tokens))
        executor.allocate_in(self._map(self._index), message.blocks, message.block_tokens)

    def _map(self, replica: int) -> mmap.mmap:
        if replica not in self._mapped:
            self._mapped[replica] = mmap.mmap(self._memory[replica], 0)
        return self._mapped[replica]

    def _answer(self, message: object) -> None:
        self._sock.sendall(frame(message))


def make_executor(text: str, given: Mapping[str, object]) -> Executor | Paced:
    """The executor of this spec. Raises UsageError for what it cannot do with what it is given."""
    spec = parse(text)
    arguments = {field.name for field in fields(find("executors", spec.name)) if field.init}
    without = next((name for name in given if name not in arguments | {"seed"}), None)  # chance has a seed as well
    if without is not None:
        raise UsageError(
            f"{without} does not apply to the executor '{spec.name}' of the engine; its arguments are: "
            f"{', '.join(sorted(arguments))}."
        )
    executor: Executor | Paced = make("executors", spec, **given)
    return executor


def built(executor: Executor | Paced) -> Built:
    """What an executor says of itself."""
    facts = {"vocab_size": executor.vocab_size, "max_tokens": executor.max_tokens, **executor.describe()}
    return Built(facts, isinstance(executor, SharesMemory))


def main() -> None:
    """Serve the socket whose descriptor is the first argument."""
    termination.led()  # by the engine, which closes the socket
    sock = socket.socket(fileno=int(sys.argv[1]))
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        ExecutorWorker(sock, int(sys.argv[2]), [int(number) for number in sys.argv[3:]]).serve()


class ExecutorProcesses:
    """One process for each of these messages; the number of a process is that of its replica."""

    def __init__(self, messages: ListOf[Build]) -> None:
        memory = [_anonymous_file() for _ in messages]  # each one has its KV blocks there; all can copy from it
        self._sockets: dict[int, socket.socket] = {}
        self._inboxes: dict[int, Inbox] = {}
        self._processes: list[subprocess.Popen[bytes]] = []
        for index in range(len(messages)):
            parent, child = socket.socketpair()
            with child:
                numbers = [child.fileno(), index, *memory]
                process = subprocess.Popen(  # noqa: S603  this very program
                    python("backends.engine_process.executor_processes", *map(str, numbers)),
                    pass_fds=[child.fileno(), *memory], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                    process_group=0,  # Ctrl-C and SIGTERM are for the command
                )  # fmt: skip
            self._processes.append(process)
            self._sockets[index], self._inboxes[index] = parent, Inbox(parent)
        for descriptor in memory:
            os.close(descriptor)
        for index, message in enumerate(messages):
            self.send(index, message)

    def built(self) -> list[Built]:
        """All executors are made. Raises the error of the first that could not be."""
        return self._all(Built)

    def allocate(self, messages: ListOf[Allocate]) -> None:
        """Make their KV memory. Raises the error of the first that could not."""
        for index, message in enumerate(messages):
            self.send(index, message)
        self._all(Allocated)

    def send(self, index: int, message: object) -> None:
        """Pass an executor a message; one that has ended gets none, and `take` tells."""
        if index in self._sockets:
            try:
                self._sockets[index].sendall(frame(message))
            except (BrokenPipeError, ConnectionResetError):
                self._inboxes[index].closed = True

    def take(self, also: socket.socket, patience_s: float | None) -> Iterator[tuple[int, object]]:
        """What has come from executors, after up to `patience_s` of waiting for that or for something from `also`.

        `Broken` is the last that comes from one that has ended.
        """
        gone = any(inbox.closed for inbox in self._inboxes.values())
        readable = select.select([also, *self._sockets.values()], [], [], 0 if gone else patience_s)[0]
        for index, inbox in list(self._inboxes.items()):
            broken = False
            if not inbox.closed and self._sockets[index] in readable:
                try:
                    for message in inbox.take(wait=False):
                        broken = broken or isinstance(message, Broken)
                        yield index, message
                except ConnectionResetError:
                    inbox.closed = True
            if inbox.closed or broken:
                self._sockets.pop(index).close()
                del self._inboxes[index]
                if not broken:
                    yield index, Broken("its process ended")

    def close(self) -> None:
        for sock in self._sockets.values():
            sock.close()
        for process in self._processes:
            process.kill()
            process.wait()

    def _all(self, kind: type[T]) -> list[T]:
        answers = []
        for index, inbox in self._inboxes.items():
            answer = next(inbox.take(wait=True), None)
            if isinstance(answer, Refused):
                raise answer.error
            if not isinstance(answer, kind):
                raise BackendError(f"The executor of replica {index} ended before the run began.")
            answers.append(answer)
        return answers


class OwnExecutor:
    """The executor of a single replica, in this process: a step runs, or is waited for, while its answer is taken."""

    def __init__(self, message: Build) -> None:
        self._executor = make_executor(message.executor, message.given)
        self._runner = StepRunner(self._executor)
        self._sent: deque[Message] = deque()

    def built(self) -> list[Built]:
        return [built(self._executor)]

    def allocate(self, messages: ListOf[Allocate]) -> None:
        """Make its KV memory."""
        (message,) = messages
        os.nice(message.nice)
        if not isinstance(self._executor, Paced):
            self._executor.allocate(message.blocks, message.block_tokens)

    def send(self, index: int, message: Message) -> None:  # noqa: ARG002  the only one
        self._sent.append(message)

    def take(self, also: socket.socket, patience_s: float | None) -> Iterator[tuple[int, object]]:
        """The answers to what was sent; without any, wait up to `patience_s` for something from `also`."""
        if not self._sent:
            select.select([also], [], [], patience_s)
        while self._sent:
            answer = self._runner.perform(self._sent.popleft())
            if answer is not None:
                yield 0, answer

    def close(self) -> None:
        """Nothing is left behind."""


def _anonymous_file() -> int:
    """Descriptor of an empty file without a name: it is gone with the last process that has it."""
    if sys.platform == "linux":
        return os.memfd_create("kv")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())

"""The executors of a cluster: starts their processes, passes messages, notices when one ends; or one without."""

import os
import select
import socket
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterator
from collections.abc import Sequence as ListOf
from typing import TypeVar

from backends.engine_process.cluster import Message
from backends.engine_process.executor_worker import (
    Allocate,
    Allocated,
    Broken,
    Build,
    Built,
    Refused,
    StepRunner,
    built,
    make_executor,
)
from backends.executors.paced import Paced
from harness.errors import BackendError
from harness.ipc import Inbox, frame, python

T = TypeVar("T", Built, Allocated)


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
                    python("backends.engine_process.executor_worker", *map(str, numbers)),
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

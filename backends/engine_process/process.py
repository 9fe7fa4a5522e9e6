"""Client side of the engine process: starts it, sends requests, receives turns, ends it."""

import asyncio
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from backends.engine_process import worker
from backends.engine_process.generation import Turn
from harness.errors import BackendError
from harness.ipc import frame, python, receive

PATIENCE_S = 60.0  # to build the model; loading a large folder from a slow disk takes its time
GRACE_S = 5.0  # for the process to leave after its socket closed


@dataclass(slots=True)
class EngineProcess:
    """`on_turn` gets every turn; `on_failure` is called once, with the error that ended the process."""

    on_turn: Callable[[Turn], None]
    on_failure: Callable[[BackendError], None]
    process: asyncio.subprocess.Process | None = field(default=None, init=False)
    _writer: asyncio.StreamWriter | None = field(default=None, init=False)
    _listener: asyncio.Task[None] | None = field(default=None, init=False)

    async def open(self, message: worker.Open) -> Mapping[str, object]:
        """Start the process and build the model; its facts. Raises UsageError or BackendError when it cannot."""
        parent, child = socket.socketpair()
        with child:
            self.process = await asyncio.create_subprocess_exec(
                *python(worker.__name__, str(child.fileno())),
                pass_fds=[child.fileno()],
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
                process_group=0,  # Ctrl-C and SIGTERM are for this process, which closes the socket
            )  # fmt: skip
        reader, self._writer = await asyncio.open_unix_connection(sock=parent)
        self.send(message)
        try:
            ready = await asyncio.wait_for(receive(reader), PATIENCE_S)
        except (asyncio.IncompleteReadError, ConnectionError, TimeoutError) as error:
            await self.close()
            raise BackendError(
                f"The engine did not start ({type(error).__name__}); 'bench doctor' tries it alone."
            ) from None
        assert isinstance(ready, worker.Ready)
        if ready.error is not None:
            await self.close()
            raise ready.error
        self._listener = asyncio.create_task(self._listen(reader))
        return ready.facts

    def send(self, message: object) -> None:
        """Send a message to the process. Raises BackendError when it does not run."""
        if self._writer is None or self._writer.is_closing():
            raise BackendError("The engine is not running.")
        self._writer.write(frame(message))

    async def close(self) -> None:
        """End the process. Safe to call twice, and after a failed `open`."""
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)
            self._listener = None
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if self.process is not None:
            process, self.process = self.process, None
            try:
                await asyncio.wait_for(process.wait(), GRACE_S)
            except TimeoutError:
                process.kill()
                await process.wait()

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        while True:
            try:
                turn = await receive(reader)
            except (asyncio.IncompleteReadError, ConnectionError):
                self._fail("its process ended")
                return
            if isinstance(turn, worker.Failed):
                self._fail(turn.message)
                return
            assert isinstance(turn, Turn)
            try:
                self.on_turn(turn)
            except Exception as error:  # noqa: BLE001  # a bug here must fail all requests, or they would wait forever
                self._fail(f"{type(error).__name__}: {error}")
                return

    def _fail(self, why: str) -> None:
        self.on_failure(
            BackendError(f"The engine failed in the middle of the run: {why}. 'bench doctor' tries it alone.")
        )

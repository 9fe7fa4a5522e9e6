"""The built-in engine: a real transformer behind the serving core, under the wall clock, in a process of its own.

A process of its own, because arithmetic in the load generator's process would make the load generator late. Tokens
are stamped in that process when their step commits; both processes read the same monotonic clock.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field

from backends import _engine_worker as worker
from backends._engine_core import Turn
from backends._frames import frame, receive
from harness.api import Content, Ended, Request, Step, TokenEvent
from harness.errors import BackendError
from harness.registry import make

PATIENCE_S = 60.0  # to build the model; loading a large folder from a slow disk takes its time
GRACE_S = 5.0  # for the process to leave after its socket closed


@dataclass(slots=True)
class Engine:
    """`model` is a Hugging Face folder (Llama, Qwen2, Mistral), None makes small weights from `seed`.

    `policy` and `kv` are specs as in the simulator; KV memory is `kv_blocks` blocks. `threads` limits the BLAS
    library (None: its own choice), `nice` lowers the priority of the engine below that of the load generator.
    """

    model: str | None = None
    policy: str = "sarathi"
    kv: str = "paged"
    kv_blocks: int = 4096
    executor: str = "llama"
    seed: int = 0
    dtype: str = "float32"
    threads: int | None = None
    temperature: float = 0.0
    nice: int = 5
    _facts: dict[str, object] = field(default_factory=dict, init=False)
    _process: asyncio.subprocess.Process | None = field(default=None, init=False)
    _writer: asyncio.StreamWriter | None = field(default=None, init=False)
    _listener: asyncio.Task[None] | None = field(default=None, init=False)
    _queues: dict[int, asyncio.Queue[TokenEvent | Ended | BackendError]] = field(default_factory=dict, init=False)
    _steps: list[Step] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        if self.kv_blocks < 1:
            raise ValueError(f"kv_blocks must be at least 1, got {self.kv_blocks}")
        if self.temperature < 0:
            raise ValueError(f"temperature must be 0 (greedy) or more, got {self.temperature}")
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"threads must be at least 1, got {self.threads}")
        if not 0 <= self.nice <= 19:
            raise ValueError(f"nice must be in 0..19, got {self.nice}")
        make("policies", self.policy)  # a wrong spec is refused here, before anything starts
        make("kv", self.kv)

    async def open(self, content: Content) -> None:
        """Start the process and build the model. Raises UsageError or BackendError when it cannot."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "backends._engine_worker", str(theirs.fileno()), pass_fds=[theirs.fileno()],
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
        reader, self._writer = await asyncio.open_unix_connection(sock=ours)
        given = {"model": self.model, "seed": self.seed, "dtype": self.dtype, "threads": self.threads}
        self._writer.write(
            frame(
                worker.Open(
                    self.executor,
                    given,
                    self.policy,
                    self.kv,
                    self.kv_blocks,
                    self.temperature,
                    self.nice,
                    content.token_ids,
                )  # fmt: skip
            )
        )
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
        self._facts = dict(ready.facts)
        self._listener = asyncio.create_task(self._listen(reader))

    def start_clock(self, epoch_s: float) -> None:
        """All stamps are `time.monotonic() - epoch_s` from now on."""
        self._send(worker.Clock(epoch_s))

    async def submit(self, request: Request) -> AsyncIterator[TokenEvent | Ended]:
        """Token events, then one `Ended`; closing the iterator cancels. Raises BackendError if the process died."""
        queue: asyncio.Queue[TokenEvent | Ended | BackendError] = asyncio.Queue()
        self._queues[request.id] = queue
        ended = False
        self._send(worker.Add(request))
        try:
            while not ended:
                event = await queue.get()
                if isinstance(event, BackendError):
                    ended = True
                    raise event
                ended = isinstance(event, Ended)
                yield event
        finally:
            del self._queues[request.id]
            if not ended:
                self._send(worker.Cancel(request.id))

    def steps(self) -> Sequence[Step]:
        """Step rows since the last call."""
        rows, self._steps = self._steps, []
        return rows

    def describe(self) -> Mapping[str, object]:
        """Facts for run.json."""
        return {
            "backend": "engine", "model": self.model or f"seeded ({self.seed})", "policy": self.policy, "kv": self.kv,
            "executor": self.executor, "gpus": 1, "prefix_cache": False,
        } | self._facts  # fmt: skip

    async def close(self) -> None:
        """End the process. Safe to call twice, and after a failed `open`."""
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)
            self._listener = None
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if self._process is not None:
            process, self._process = self._process, None
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
            for request_id in turn.tokens:
                self._deliver(request_id, TokenEvent(request_id, turn.at_s))
            for ended in turn.ended:
                self._deliver(ended.request_id, ended)
            if turn.step is not None:
                self._steps.append(turn.step)

    def _deliver(self, request_id: int, event: TokenEvent | Ended) -> None:
        queue = self._queues.get(request_id)  # none if the client closed it meanwhile
        if queue is not None:
            queue.put_nowait(event)

    def _fail(self, why: str) -> None:
        error = BackendError(f"The engine failed in the middle of the run: {why}. 'bench doctor' tries it alone.")
        for queue in self._queues.values():
            queue.put_nowait(error)

    def _send(self, message: object) -> None:
        if self._writer is None or self._writer.is_closing():
            raise BackendError("The engine is not running.")
        self._writer.write(frame(message))

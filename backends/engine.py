"""The built-in engine: a real transformer behind the serving core, under the wall clock, in a process of its own.

A process of its own, because arithmetic in the load generator's process would make the load generator late. Tokens
are stamped in that process when their step commits; both processes read the same monotonic clock.
"""

import asyncio
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta

from backends.engine_process import worker
from backends.engine_process.worker import Layout, layout
from backends.simulator.core import Core
from backends.simulator.layout import ROUTER
from backends.simulator.real_time import Turn
from harness.api import ActionEvent, Content, Ended, Prompts, Request, Step, TokenEvent
from harness.bounds import AtLeastOne, check
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


@dataclass(slots=True)
class Engine:
    """`model` is a Hugging Face folder (Llama, Qwen2, Mistral), None makes small weights from `seed`.

    `policy`, `kv` and `admission` are specs as in the simulator; KV memory is `kv_blocks` blocks, 4096 by default.
    With `tiers=dram:size=4GB` what prefix caches fill, or give up, is stored in host memory; a paced engine has all
    tiers of the simulator.

    `executor` runs the batches: `llama` in NumPy, `torch` where that is installed, or `paced`, which computes
    nothing and takes the time of a GPU instead: `executor=paced:latency=abc:vllm`, with `model`, `hardware` and `tp` as
    in the simulator and by default as much KV memory as fits on these GPUs; tokens are arbitrary then. `dtype` and
    `threads` are those of a real model: `threads` limits the threads of its matrix products (None: its own choice).
    `nice` lowers the priority of the engine below that of the load generator, by default by 5 and of a paced one by 0.

    With `replicas`, or `prefill` and `decode` replicas, or a `router` that acts it is a cluster: one process decides as
    in the simulator, and an executor process per replica computes. KV is copied between them, no faster than `link`
    (25Gbps, 600GBps:latency=1ms; none, by default: as fast as it goes; of a paced engine nvlink, as in the simulator),
    pulled or pushed (`handoff`). A side may have a policy and
    a router of its own, and of a paced engine `tp`, `hardware` and `latency` (`prefill=2:tp=2`).
    """

    model: str | None = None
    policy: str = "sarathi"
    kv: str = "paged"
    admission: str = "fcfs"
    prefix_cache: str = "off"
    speculate: str | None = None
    preempt: str = "recompute"
    tiers: str | None = None
    kv_blocks: AtLeastOne | None = None
    executor: str = "llama"
    hardware: str | None = None
    latency: str | None = None
    tp: int | None = None
    seed: int = 0
    dtype: str | None = None
    threads: AtLeastOne | None = None
    temperature: Annotated[float, Meta(ge=0, description="0 is greedy")] = 0.0
    nice: Annotated[int, Meta(ge=0, le=19)] | None = None
    replicas: AtLeastOne = 1
    router: str = ROUTER
    prefill: str | None = None
    decode: str | None = None
    handoff: Literal["pull", "push"] = "pull"
    link: str | None = None
    core: Core = field(init=False)
    """What decides inside its replica."""
    _layout: Layout = field(init=False)
    _facts: dict[str, object] = field(default_factory=dict, init=False)
    _link: EngineProcess | None = field(default=None, init=False)
    _queues: dict[int, asyncio.Queue[TokenEvent | Ended | BackendError]] = field(default_factory=dict, init=False)
    _steps: list[Step] = field(default_factory=list, init=False)
    _actions: list[ActionEvent] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        check(self)
        self.core = Core.of(
            self.policy, self.kv, self.admission, self.seed, self.prefix_cache, self.speculate, self.preempt,
            self.tiers,
        )  # fmt: skip
        self._layout = layout(self, self._given)

    async def open(self, content: Content) -> None:
        """Start the process and build the model. Raises UsageError or BackendError when it cannot."""
        self._link = EngineProcess(self._hear, self._fail)
        self._facts = dict(await self._link.open(self.order(content.token_ids)))

    def order(self, prompts: Prompts | None) -> worker.Open:
        """The first message to the engine process; without `prompts` every request brings its own."""
        return worker.Open(self.executor, self._layout, self.kv_blocks, self.temperature, self.nice, prompts)

    @property
    def _given(self) -> dict[str, object]:
        """Fields of the executor that the user set."""
        names = ("model", "hardware", "latency", "tp", "dtype", "threads")
        return {"seed": self.seed} | {n: value for n in names if (value := getattr(self, n)) is not None}

    def start_clock(self, epoch_s: float) -> None:
        """All stamps are `time.monotonic() - epoch_s` from now on."""
        self._send(worker.Clock(epoch_s))

    async def submit(self, request: Request) -> AsyncIterator[TokenEvent | Ended]:
        """Token events, then one `Ended`; closing the iterator cancels. Raises BackendError if the process died."""
        queue: asyncio.Queue[TokenEvent | Ended | BackendError] = asyncio.Queue()
        self._queues[request.id] = queue
        ended = False
        self._send(worker.Add(request, time.monotonic()))
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
        rows, self._steps = self._steps, []
        return rows

    def actions(self) -> Sequence[ActionEvent]:
        """What the router of a cluster did since the last call."""
        rows, self._actions = self._actions, []
        return rows

    def describe(self) -> Mapping[str, object]:
        predictor, policies = self.core.predictor, dict.fromkeys(part.policy for part in self._layout.parts)
        return {
            "backend": "engine", "model": self.model or f"seeded ({self.seed})", "policy": " + ".join(policies),
            "kv": self.kv, "admission": self.admission, "speculate": self.speculate or "off", "preempt": self.preempt,
            "executor": self.executor, "gpus": self.tp or 1, "prefix_cache": self.core.caches_prefixes,
            **({} if predictor is None else {"predictor": predictor}),
        } | self._facts  # fmt: skip

    async def close(self) -> None:
        """End the process. Safe to call twice, and after a failed `open`."""
        if self._link is not None:
            await self._link.close()

    def _hear(self, turn: Turn) -> None:
        for request_id, tokens in Counter(turn.tokens).items():
            self._deliver(request_id, TokenEvent(request_id, turn.at_s, tokens))
        for ended in turn.ended:
            self._deliver(ended.request_id, ended)
        self._facts |= turn.facts
        self._actions += turn.actions
        if turn.step is not None:
            self._steps.append(turn.step)

    def _deliver(self, request_id: int, event: TokenEvent | Ended) -> None:
        queue = self._queues.get(request_id)  # none if the client closed it meanwhile
        if queue is not None:
            queue.put_nowait(event)

    def _fail(self, error: BackendError) -> None:
        for queue in self._queues.values():
            queue.put_nowait(error)

    def _send(self, message: object) -> None:
        if self._link is None:
            raise BackendError("The engine is not running.")
        self._link.send(message)

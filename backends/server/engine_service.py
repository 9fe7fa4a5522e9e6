"""The engine behind `bench serve`: token ids in, sampled token ids out, over the socket of the engine's process."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from backends.engine import Engine, EngineProcess
from backends.engine_process import worker
from backends.engine_process.generation import GenerationParams, block_names
from backends.server.fields import longest_tokens
from backends.server.service import Listener, Sampling, Stats, Ticket, Tokenizer, UnderWay
from backends.server.tokenizer import Builtin, config, of_folder
from backends.serving.replica import Replica
from backends.simulator.real_time import Turn
from harness.api import Request, Step
from harness.errors import BackendError
from harness.spec import Spec, build


def make(spec: Spec) -> EngineService:
    """The service of `engine:model=DIR,policy=...`."""
    return EngineService(build(Engine, spec))


@dataclass(slots=True)
class EngineService:
    """Answers with the tokens of a real transformer, or of a paced engine; they are due when their step has ended."""

    engine: Engine
    model: str = field(default="", init=False)
    max_model_len: int = field(default=0, init=False)
    tokenizer: Tokenizer = field(init=False, repr=False)
    _ends: frozenset[int] = field(default=frozenset(), init=False)
    _facts: dict[str, object] = field(default_factory=dict, init=False, repr=False)
    _vocab_size: int = field(default=0, init=False)
    _link: EngineProcess = field(init=False, repr=False)
    _judge: Replica = field(init=False, repr=False)  # knows what never fits
    _under_way: UnderWay = field(default_factory=UnderWay, init=False, repr=False)
    _running: int = field(default=0, init=False)
    _kv_used: float = field(default=0.0, init=False)  # share of the KV memory
    _failure: BackendError | None = field(default=None, init=False)
    _paced: bool = field(default=False, init=False)  # its tokens are due at a time of their own

    def __post_init__(self) -> None:
        self._link = EngineProcess(self._hear, self._fail)

    async def start(self) -> None:
        """Start the engine's process and build the model. Raises UsageError or BackendError when it cannot."""
        facts = dict(await self._link.open(self.engine.order(None)))
        self._paced = "late_after_s" in facts
        folder = Path(self.engine.model) if self.engine.model is not None and not self._paced else None
        own = of_folder(folder) if folder is not None else None
        self._facts = dict(self.engine.describe()) | facts
        self._vocab_size = _whole(facts["vocab_size"])
        self.tokenizer = own or Builtin(self._vocab_size)
        self._ends = _ends_of(folder) if folder is not None else frozenset()
        blocks = _whole(facts["kv_blocks"])
        memory = self.engine.core.memory(worker.token_bytes(facts))
        self._judge = self.engine.core.replica(memory, blocks)
        self.model = str(facts["model"])
        self.max_model_len = longest_tokens(self._judge, _whole(facts["max_tokens"]))

    def submit(
        self,
        token_ids: Sequence[int],
        sampling: Sampling,
        listener: Listener,
        received_s: float | None = None,  # noqa: ARG002  it arrives when its tokens are known
    ) -> Ticket:
        """Hand it to the engine now. Raises ValueError when it can never be served, BackendError when it is gone."""
        if self._failure is not None:
            raise self._failure
        wrong = next((i for i in token_ids if not 0 <= i < self._vocab_size), None)
        if wrong is not None:
            raise ValueError(f"token id {wrong} is not in the vocabulary of {self._vocab_size} tokens")
        request = Request(self._under_way.number(), time.monotonic(), len(token_ids), sampling.max_tokens)
        refusal = self._judge.refusal(request)
        if refusal is not None:
            raise ValueError(refusal)
        ends = frozenset() if sampling.ignore_eos else self._ends
        params = GenerationParams(
            token_ids, ends, sampling.min_tokens, sampling.temperature, sampling.top_p, sampling.seed
        )
        if self._judge.cache is not None:
            size = self._judge.blocks.size
            request = replace(request, prefix_ids=block_names(token_ids, size), prefix_block_tokens=size)
        self._link.send(worker.Add(request, time.monotonic(), params))

        return self._under_way.take_in(request.id, listener, len(token_ids), self._withdraw, ends)

    def stats(self) -> Stats:
        """As the last step left things."""
        under_way = self._under_way
        running = min(self._running, len(under_way.answers))
        failure = str(self._failure) if self._failure is not None else None
        return Stats(
            running, len(under_way.answers) - running, self._kv_used, under_way.preemptions,
            0 if self._judge.cache is None else under_way.queried_tokens, under_way.hit_tokens, failure,
        )  # fmt: skip

    def steps(self) -> Sequence[Step]:
        return self._under_way.take_steps()

    def clear_cache(self) -> None:
        """Forget the unreferenced stored blocks, before the next step."""
        with contextlib.suppress(BackendError):  # it is gone with all that it stored
            self._link.send(worker.Forget())

    def describe(self) -> Mapping[str, object]:
        return self._facts

    async def close(self) -> None:
        """End the process. Safe to call twice, and after a failed `start`."""
        self._under_way.answers.clear()
        await self._link.close()

    def _hear(self, turn: Turn) -> None:
        self._running = turn.running
        if turn.total_blocks:
            self._kv_used = 1 - turn.free_blocks / turn.total_blocks
        self._facts |= turn.facts
        self._under_way.hear(turn, time.monotonic() if self._paced else turn.at_s)

    def _fail(self, error: BackendError) -> None:
        self._failure = error
        self._under_way.fail(str(error))

    def _withdraw(self, number: int) -> None:
        with contextlib.suppress(BackendError):  # it is gone with all its sequences
            self._link.send(worker.Cancel(number))


def _whole(fact: object) -> int:
    assert isinstance(fact, int)
    return fact


def _ends_of(folder: Path) -> frozenset[int]:
    """Token ids that end an answer: `eos_token_id` of `generation_config.json`, else of `config.json`.

    It may be one number or a list. Raises UsageError for a file that is not JSON.
    """
    for name in ("generation_config.json", "config.json"):
        if (eos_ids := config(folder / name).get("eos_token_id")) is not None:
            return frozenset(eos_ids if isinstance(eos_ids, list) else [eos_ids])
    return frozenset()

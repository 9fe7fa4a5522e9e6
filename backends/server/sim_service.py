"""The simulator behind `bench serve`: a stand-in for a GPU server, token by token in real time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from backends.engine_process.generation import answer_seed, block_names
from backends.executors.paced import drawn_words
from backends.server.fields import longest_tokens
from backends.server.service import Listener, Sampling, Stats, Ticket, UnderWay
from backends.server.tokenizer import Builtin
from backends.sim import Sim
from backends.simulator.real_time import RealTime
from harness import registry
from harness.api import Request, Step
from harness.catalog import model
from harness.spec import Spec
from harness.timer import Alarm


def make(spec: Spec) -> SimService:
    """The service of `sim:model=opt-13b,hardware=a100-80g,policy=...`. Raises UsageError where it cannot be live."""
    return SimService(registry.make("backends", spec))


@dataclass(slots=True)
class SimService:
    """Each token is due at its simulated time; the clock of the simulation is `clock`, without any drift.

    A simulated model emits no end of sequence: answers have `max_tokens` tokens.
    """

    sim: Sim
    clock: Callable[[], float] = time.monotonic
    model: str = field(init=False)
    max_model_len: int = field(init=False)
    tokenizer: Builtin = field(init=False, repr=False)
    _live: RealTime = field(init=False, repr=False)
    _alarm: Alarm | None = field(default=None, init=False, repr=False)
    _under_way: UnderWay = field(default_factory=UnderWay, init=False, repr=False)
    _words: dict[int, Iterator[int]] = field(default_factory=dict, init=False, repr=False)  # to come, by number

    def __post_init__(self) -> None:
        shape = model(self.sim.model)
        self.model = self.sim.model
        self.max_model_len = longest_tokens(self.sim.cluster, self.sim.max_tokens)
        self.tokenizer = Builtin(shape.vocab)
        self._live = self.sim.real_time()

    async def start(self) -> None:
        """Set the alarm up in the running loop."""
        self._alarm = Alarm(self._ring)

    def submit(
        self,
        token_ids: Sequence[int],
        sampling: Sampling,
        listener: Listener,
        received_s: float | None = None,  # noqa: ARG002  it arrives when its tokens are known
    ) -> Ticket:
        """It arrives now. Raises ValueError when no replica can ever serve it."""
        now_s = self.clock()
        request = Request(self._under_way.number(), now_s, len(token_ids), sampling.max_tokens)
        refusal = self.sim.cluster.refusal(request)
        if refusal is not None:
            raise ValueError(refusal)
        seed = answer_seed(token_ids, sampling.temperature, sampling.seed)
        output_ids = drawn_words(seed, sampling.max_tokens, self.tokenizer.words)
        self._words[request.id] = map(int, output_ids)
        replica = self.sim.cluster.replicas[0]
        if replica.cache is not None:  # names for its blocks and for those that its answer, known beforehand, will fill
            size = replica.blocks.size
            names = block_names([*token_ids, *output_ids.tolist()], size)
            request = replace(request, prefix_ids=names, prefix_block_tokens=size)
        ticket = self._under_way.take_in(request.id, listener, len(token_ids), self._withdraw)
        self._live.arrive(request, now_s)
        self._set_alarm()
        return ticket

    def stats(self) -> Stats:
        """All replicas together."""
        replicas, under_way = self.sim.cluster.replicas, self._under_way
        free, total = (sum(r.blocks.free for r in replicas), sum(r.blocks.total for r in replicas))
        return Stats(
            sum(r.running for r in replicas), self._live.waiting, 1 - free / total, under_way.preemptions,
            0 if replicas[0].cache is None else under_way.queried_tokens, under_way.hit_tokens,
            up=self.sim.cluster.takes_requests,
        )  # fmt: skip

    def steps(self) -> Sequence[Step]:
        """Steps that have ended since the last call."""
        return self._under_way.take_steps()

    def clear_cache(self) -> None:
        """Forget the stored blocks that no request holds."""
        self.sim.cluster.forget_prefixes(self.clock())

    def describe(self) -> Mapping[str, object]:
        return self.sim.describe()

    async def close(self) -> None:
        """Stop answering. Safe to call twice."""
        if self._alarm is not None:
            self._alarm.close()
            self._alarm = None
        self._under_way.answers.clear()

    def _ring(self) -> None:
        """Send what is due by now; what becomes due meanwhile comes after the loop has read its sockets."""
        for turn in self._live.advance(self.clock()):
            # one whose client has hung up may have tokens still, which are dropped
            turn.token_ids = [next(self._words[number]) if number in self._words else 0 for number in turn.tokens]
            self._under_way.hear(turn, self.clock())
            for ended in turn.ended:
                self._words.pop(ended.request_id, None)
        self._set_alarm()

    def _withdraw(self, number: int) -> None:
        del self._words[number]
        self._live.withdraw(number)

    def _set_alarm(self) -> None:
        next_s = self._live.next_s
        if self._alarm is not None and next_s < inf:
            self._alarm.set(next_s)

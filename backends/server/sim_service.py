"""The simulator behind `bench serve`: a stand-in for a GPU server, token by token in real time."""

from __future__ import annotations

import itertools
import time
import zlib
from array import array
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from backends.engine_process.generation import block_names
from backends.server.fields import longest_tokens
from backends.server.service import STEPS_KEPT, EndReason, Listener, Sampling, Stats, Ticket
from backends.server.tokenizer import Builtin, builtin
from backends.sim import Sim
from backends.simulator.real_time import RealTime, RequestLost, StepDone
from harness import registry
from harness.api import Request, Step
from harness.catalog import model
from harness.runner import timer
from harness.spec import Spec

_GOLDEN = 2654435761  # 2**32 over the golden ratio: neighbours land far apart (Knuth, TAOCP 3, section 6.4)


def make(spec: Spec) -> SimService:
    """The service of `sim:model=opt-13b,hardware=a100-80g,policy=...`. Raises UsageError where it cannot be live."""
    return SimService(registry.make("backends", spec))


@dataclass(slots=True)
class _SimAnswer:
    """One answer under way: `made` tokens of words that follow from `seed`."""

    listener: Listener
    ticket: Ticket
    seed: int
    made: int = 0

    def next(self, words: range) -> int:
        """The next token: a made-up word, the same each time for the same prompt."""
        self.made += 1
        return self.token(self.made, words)

    def token(self, nth: int, words: range) -> int:
        """Token number `nth`, from 1 on."""
        return words[(self.seed + nth * _GOLDEN) % 2**32 % len(words)]


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
    _alarm: timer.Alarm | None = field(default=None, init=False, repr=False)
    _open: dict[int, _SimAnswer] = field(default_factory=dict, init=False, repr=False)
    _ids: itertools.count[int] = field(default_factory=itertools.count, init=False, repr=False)
    _steps: deque[Step] = field(default_factory=lambda: deque(maxlen=STEPS_KEPT), init=False, repr=False)
    _preemptions: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        shape = model(self.sim.model)
        self.model = self.sim.model
        self.max_model_len = longest_tokens(self.sim.cluster, self.sim.max_tokens)
        self.tokenizer = builtin(shape.vocab)
        self._live = self.sim.real_time()

    async def start(self) -> None:
        """Set the alarm up in the running loop."""
        self._alarm = timer.alarm(self._ring)

    def submit(
        self,
        token_ids: Sequence[int],
        sampling: Sampling,
        listener: Listener,
        received_s: float | None = None,  # noqa: ARG002  it arrives when its tokens are known
    ) -> Ticket:
        """It arrives now. Raises ValueError when no replica can ever serve it."""
        now_s = self.clock()
        request = Request(next(self._ids), now_s, len(token_ids), sampling.max_tokens)
        refusal = self.sim.cluster.refusal(request)
        if refusal is not None:
            raise ValueError(refusal)

        def abort() -> None:
            if self._open.pop(request.id, None) is not None:
                self._live.withdraw(request.id)

        ticket = Ticket(abort)
        # equal for equal prompts; where the client asks for chance, for equal seeds
        start = sampling.seed if sampling.temperature and sampling.seed is not None else 0
        seed = zlib.crc32(array("q", token_ids), start & 0xFFFFFFFF)
        self._open[request.id] = answer = _SimAnswer(listener, ticket, seed)
        replica = self.sim.cluster.replicas[0]
        if replica.cache is not None:  # names for its blocks and for those that its answer, known beforehand, will fill
            words, size = self.tokenizer.words, replica.blocks.size
            output_ids = [answer.token(nth, words) for nth in range(1, request.output_tokens + 1)]
            names = block_names([*token_ids, *output_ids], size)
            request = replace(request, prefix_ids=names, prefix_block_tokens=size)
        self._live.arrive(request, now_s)
        self._set_alarm()
        return ticket

    def stats(self) -> Stats:
        """All replicas together."""
        replicas = self.sim.cluster.replicas
        free, total = (sum(r.blocks.free for r in replicas), sum(r.blocks.total for r in replicas))
        return Stats(
            sum(r.running for r in replicas), self._live.waiting, 1 - free / total, self._preemptions,
            sum(r.cache.queried_tokens for r in replicas if r.cache is not None),
            sum(r.cache.hit_tokens for r in replicas if r.cache is not None),
            up=self.sim.cluster.takes_requests,
        )  # fmt: skip

    def steps(self) -> Sequence[Step]:
        """Steps that have ended since the last call."""
        rows = list(self._steps)
        self._steps.clear()
        return rows

    def clear_cache(self) -> None:
        """Forget the unreferenced stored blocks."""
        for replica in self.sim.cluster.replicas:
            replica.forget_prefixes(self.clock())

    def describe(self) -> Mapping[str, object]:
        return self.sim.describe()

    async def close(self) -> None:
        """Stop answering. Safe to call twice."""
        if self._alarm is not None:
            self._alarm.close()
            self._alarm = None
        self._open.clear()

    def _ring(self) -> None:
        """Send what is due by now; what becomes due meanwhile comes after the loop has read its sockets."""
        for ran in self._live.advance(self.clock()):
            self._tell(ran)
        self._set_alarm()

    def _tell(self, ran: StepDone | RequestLost) -> None:
        if isinstance(ran, RequestLost):
            if (lost := self._open.pop(ran.request_id, None)) is not None:
                lost.listener.step((), self.clock(), ran.at_s, "error", ran.why)
            return
        self._steps.append(ran.step)
        self._preemptions += len(ran.preempted)
        for (request_id, at_s), cached in zip(ran.started, ran.cached, strict=True):
            if (answer := self._open.get(request_id)) is not None:
                answer.ticket.scheduled_s, answer.ticket.cached_tokens = at_s, cached
        for request_id in ran.preempted:
            if (answer := self._open.get(request_id)) is not None:
                answer.ticket.preemptions += 1
        due_s, ended, words, clock = ran.step.end_s, ran.ended, self.tokenizer.words, self.clock
        for request_id, count in Counter(ran.tokens).items():
            answer = self._open.get(request_id)
            if answer is None:
                continue  # withdrawn by the listener of another answer
            end: EndReason | None = None
            if request_id in ended:
                end = "length"
                del self._open[request_id]
            answer.listener.step(tuple(answer.next(words) for _ in range(count)), clock(), due_s, end)

    def _set_alarm(self) -> None:
        next_s = self._live.next_s
        if self._alarm is not None and next_s < inf:
            self._alarm.set(next_s)

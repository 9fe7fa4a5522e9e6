"""What stands behind `bench serve`: one contract for the engine, the simulator in real time and the null service.

All times are `time.monotonic()`, not counted from a start. Everything is called in the event loop of the server.

Note: tokens are handed over by a call and not by an iterator, because a step that ends for 500 streams would wake 500
tasks; so one step is one pass over its streams, and what a stream gets in a step leaves in one write.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from harness.api import Step

if TYPE_CHECKING:
    from backends.simulator.real_time import Turn

STEPS_KEPT = 100_000
"""The most steps kept until they are taken; older ones are dropped."""

EndReason = Literal["stop", "length", "error"]
"""Why tokens end: end of sequence, `max_tokens` reached, or the backend failed."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How an answer is sampled. `temperature` or `seed` None: the default of the backend.

    `max_tokens` is at least 1, and prompt and answer fit `max_model_len`: the front checks both. An end-of-sequence
    token before `min_tokens`, or with `ignore_eos`, does not end the answer.
    """

    max_tokens: int
    min_tokens: int = 0
    ignore_eos: bool = False
    temperature: float | None = None
    top_p: float = 1.0
    seed: int | None = None


class Listener(Protocol):
    """Receives the tokens of one request."""

    def step(self, token_ids: Sequence[int], at_s: float, due_s: float, end: EndReason | None, error: str = "") -> None:
        """One call per step that gave this request tokens; `end` is not None in the last call, and only there.

        `token_ids` are the new ones (usually one; an end-of-sequence token is among them; none where the backend
        failed). `at_s` is when they were ready, `due_s` when they should have been: where nothing is promised (the
        engine) both are the end of the step. Called during `submit` for no request. Never raises.
        """


@dataclass(slots=True)
class Ticket:
    """A request in flight and its state so far.

    `scheduled_s` is when it first left the queue, `cached_tokens` how much of its prompt came out of the prefix
    cache; both are set before its first token is sent. `abort` may be called at any time, twice, and after the end;
    afterwards the listener gets no more calls, and the sequence is gone before the next step.
    """

    abort: Callable[[], None]
    scheduled_s: float | None = None
    cached_tokens: int = 0
    preemptions: int = 0


@dataclass(frozen=True, slots=True)
class Stats:
    """What `/metrics` and `/health` show now. `kv_usage` is a share (0..1).

    Preemptions and prefix tokens are totals since the start; `failure` is why the service has stopped. `up`: whether a
    replica is there to take requests.
    """

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    preemptions: int = 0
    prefix_queried_tokens: int = 0
    prefix_hit_tokens: int = 0
    failure: str | None = None
    up: bool = True


class TextStream(Protocol):
    """Turns the tokens of one answer into text, as they come."""

    def add(self, token_ids: Sequence[int]) -> str:
        """The text that these tokens complete, nothing of special ones; half a character is kept until it is whole."""

    def rest(self) -> str:
        """What was kept, with U+FFFD for what never became a character. Called once, after the last token."""


class Tokenizer(Protocol):
    """Text to tokens and back."""

    @property
    def vocab_size(self) -> int:
        """Token ids are in [0, vocab_size)."""

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Token ids of a text; `special` adds the special tokens of the model (such as a begin token)."""

    def chat(self, messages: Sequence[Mapping[str, object]]) -> list[int]:
        """Token ids of a conversation, in the model's template, ready for the answer. Raises ValueError (one sentence)
        when the template refuses it; message contents are texts here, the front joins lists of parts."""

    def stream(self) -> TextStream:
        """A new one for each answer."""


class Service(Protocol):
    """A serving system that answers token ids with token ids, in real time."""

    @property
    def model(self) -> str:
        """The name by which clients ask for it."""

    @property
    def max_model_len(self) -> int:
        """Longest prompt and answer together, in tokens."""

    @property
    def tokenizer(self) -> Tokenizer:
        """Known after `start`."""

    async def start(self) -> None:
        """Get ready; raises UsageError or BackendError. Nothing else is called before it has returned."""

    def submit(
        self, token_ids: Sequence[int], sampling: Sampling, listener: Listener, received_s: float | None = None
    ) -> Ticket:
        """Take a request in now. Raises ValueError (one sentence, for the client) when it can never be served.

        `received_s` is when its last byte had been read, None for now: promised times count from there.
        """

    def stats(self) -> Stats:
        """Cheap: called for every request and every scrape."""

    def steps(self) -> Sequence[Step]:
        """Steps since the last call; empty where there are none."""

    def clear_cache(self) -> None:
        """Forget prefixes that no running sequence holds."""

    def describe(self) -> Mapping[str, object]:
        """Facts for the log and the ready line."""

    async def close(self) -> None:
        """Let go of everything. Safe to call twice, and after a failed `start`."""


@dataclass(frozen=True, slots=True)
class Answering:
    """One answer under way; a token of `ends` is its last."""

    listener: Listener
    ticket: Ticket
    prompt_tokens: int
    ends: frozenset[int]


@dataclass(slots=True)
class UnderWay:
    """The answers under way of a service whose tokens come in steps, by number, and what these steps did so far."""

    answers: dict[int, Answering] = field(default_factory=dict)
    preemptions: int = 0
    queried_tokens: int = 0
    hit_tokens: int = 0
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _steps: deque[Step] = field(default_factory=lambda: deque(maxlen=STEPS_KEPT))

    def number(self) -> int:
        """Return the number of a further request."""
        return next(self._numbers)

    def take_in(
        self,
        number: int,
        listener: Listener,
        prompt_tokens: int,
        withdraw: Callable[[int], None],
        ends: frozenset[int] = frozenset(),
    ) -> Ticket:
        """Return the ticket of an answer that is under way from now on; `withdraw` drops it where it is computed."""

        def abort() -> None:
            if self.answers.pop(number, None) is not None:
                withdraw(number)

        ticket = Ticket(abort)
        self.answers[number] = Answering(listener, ticket, prompt_tokens, ends)
        return ticket

    def take_steps(self) -> Sequence[Step]:
        """Return the steps since the last call."""
        rows = list(self._steps)
        self._steps.clear()
        return rows

    def hear(self, turn: Turn, at_s: float) -> None:
        """Pass on what a turn brought, its tokens ready at `at_s`. A listener may abort any answer meanwhile."""
        self.preemptions += len(turn.preempted)
        if turn.step is not None:
            self._steps.append(turn.step)
            self._note(turn, turn.step.start_s)
        done = {ended.request_id for ended in turn.ended if ended.status == "ok"}
        by_number: dict[int, list[int]] = {}  # several tokens of one with drafts
        for number, token in zip(turn.tokens, turn.token_ids, strict=True):
            by_number.setdefault(number, []).append(token)
        for number, tokens in by_number.items():
            if (answer := self.answers.get(number)) is None:
                continue
            end: EndReason | None = None
            if number in done:
                end = "stop" if tokens[-1] in answer.ends else "length"
                del self.answers[number]
            answer.listener.step(tokens, at_s, turn.at_s, end)
        for ended in turn.ended:
            if ended.status in ("rejected", "error") and (lost := self.answers.pop(ended.request_id, None)) is not None:
                lost.listener.step((), turn.at_s, turn.at_s, "error", ended.error or ended.status)

    def fail(self, why: str) -> None:
        """End all answers: nothing more will come."""
        now_s = time.monotonic()
        answers, self.answers = list(self.answers.values()), {}
        for answer in answers:
            answer.listener.step((), now_s, now_s, "error", why)

    def _note(self, turn: Turn, start_s: float) -> None:
        """Keep the tickets up to date."""
        for number, cached in zip(turn.started, turn.cached, strict=True):
            if (answer := self.answers.get(number)) is not None:
                answer.ticket.scheduled_s, answer.ticket.cached_tokens = start_s, cached
                self.queried_tokens += answer.prompt_tokens
                self.hit_tokens += cached
        for number in turn.preempted:
            if (answer := self.answers.get(number)) is not None:
                answer.ticket.preemptions += 1

"""The contract between workloads, backends, metrics and reports. Everybody may import this page.

Seconds and tokens everywhere. Times of one run share one origin: the start of the run is 0.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

from harness.errors import Crashed

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    import pyarrow as pa

VERSION = 2
"""Schema of run.json and of the tables beside it: this bench reads up to it."""

Status = Literal["ok", "rejected", "timeout", "cancelled", "error", "truncated", "dropped", "empty"]
"""How a request ended. Everything but `ok` misses its SLO and stays in the table; `empty` ended well without text."""

ENDED_WELL: tuple[Status, ...] = ("ok", "empty")
"""Statuses of requests that did not fail."""


CountedBy = Literal["usage", "continuous usage", "server tokenizer", "tokenizer", "events"]
"""Where the number of output tokens of a remote answer comes from, best first."""
End = Literal["finished", "interrupted", "stopped", "failed"]
Timing = Literal["drawn", "recorded", "closed"]
"""What decides when requests come: chance, a recording (it has its own rate, and the seed does not change it), or
the answers to those before (a closed loop: its rate follows from the answers)."""
AnswerKind = Literal["autoregressive", "diffusion", "beams"]
CacheHit = Literal["right", "wrong", "stale"]
"""An answer from a response cache: to the same question, to another one, or one that was true when it was stored."""
ActionKind = Literal["migrate", "abort", "copy", "role", "scale", "drain", "down", "up", "replicate", "lend", "hold",
                     "reject", "retime"]  # fmt: skip
Prompts = Callable[["Request", int], "np.ndarray"]
"""(request, vocab_size) -> token ids of its prompt, (T,) int64."""
FollowUps = Callable[["RequestRecord"], Iterable["Request"]]
"""The requests that are due now that this one has ended; each tells by `scheduled_s` when."""
WARM_UP = "warm-up"
"""The tag of requests that only bring a cache up to date."""
Row = dict[str, str | int | float | bool | None]
"""A row of the table of a closed form, a function of its parameters in the file of a published system.

The name of a column ends in its unit (`_s`, `_bytes`, `_bytes_per_s`, `_tokens_per_s`, `_rps`, `_share`, `_ratio`);
None stands where a row has no value. What follows the first paragraph of the docstring is printed below the table.
"""


@dataclass(frozen=True, slots=True)
class LatencySlo:
    """Someone watches the answer come: its token j (from 0 on) is due `ttft_s` + j `tbt_s` after the request.

    So early tokens bank slack. Source: the latency-sensitive requests of JITServe (NSDI 2026).
    """

    ttft_s: float
    tbt_s: float


@dataclass(frozen=True, slots=True)
class DeadlineSlo:
    """The whole answer is due `e2e_s` after the request; later it is of no use."""

    e2e_s: float


@dataclass(frozen=True, slots=True)
class ProgramSlo:
    """The last answer of the program is due `program_s` after its first request; later all of them are of no use."""

    program_s: float


SloClass = LatencySlo | DeadlineSlo | ProgramSlo
"""What an answer must keep to be of use."""


@dataclass(frozen=True, slots=True)
class Extra:
    """What only some systems need to know of a request.

    `tenant` pays for it; `category` and `cluster` say what it is about (a semantic cache); it is a call of stage
    `stage` of `program`; `offline` requests have no one who waits. `image_tokens` of the prompt are those of images,
    `reasoning_tokens` of the answer come before what is shown, and there are `n` answers, of `model` where that is not
    the one that is served. `kind` is how they are made: `beams` are those of one beam search.
    """

    tenant: str | None = None
    category: str | None = None
    cluster: int | None = None
    program: int | None = None
    stage: int = 0
    offline: bool = False
    image_tokens: int = 0
    kind: AnswerKind = "autoregressive"
    reasoning_tokens: int = 0
    n: int = 1
    model: str | None = None
    slo: SloClass | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """One request to a serving system, immutable.

    It is due at `scheduled_s`, or `delay_s` after the answers to all requests in `after` have ended if that is later;
    so the `scheduled_s` of a follow-up is the earliest time that is possible. A follow-up in the `session` of a request
    that failed is dropped; one without a session is sent all the same.

    `prefix_ids` names the leading blocks of the prompt, `prefix_block_tokens` tokens each: equal id = equal content.
    The end of the prompt may cut the last block short, which then holds the first tokens of its content; whole blocks
    named beyond it are those that the answer fills. Tokens beyond the named blocks belong to this request alone.
    `slo_task_s` bounds the time from when the first request of the session was due to the last token of its last.
    """

    id: int
    scheduled_s: float
    prompt_tokens: int
    output_tokens: int
    prefix_ids: tuple[int, ...] = ()
    prefix_block_tokens: int = 512
    session: int | None = None
    turn: int = 0
    tag: str | None = None
    slo_ttft_s: float | None = None
    slo_tpot_s: float | None = None
    priority: int = 0
    after: tuple[int, ...] = ()
    delay_s: float = 0.0
    slo_task_s: float | None = None
    extra: Extra | None = None

    @property
    def slo_e2e_s(self) -> float | None:
        """When its whole answer is due, after the request; None where nothing tells."""
        slo = None if self.extra is None else self.extra.slo
        return slo.e2e_s if isinstance(slo, DeadlineSlo) else None

    @property
    def model(self) -> str | None:
        """The model or adapter that it asks for; None for the one that is served."""
        return None if self.extra is None else self.extra.model

    @property
    def answers(self) -> int:
        """How many answers it asks for, of `output_tokens` each."""
        return 1 if self.extra is None else self.extra.n


def names_answer(blocks: int, block_tokens: int, prompt_tokens: int) -> bool:
    """Whether so many named blocks go on behind the prompt: its answer fills them, and a follow-up has them."""
    return blocks * block_tokens - prompt_tokens >= block_tokens


def alike(a: Sequence[object], b: Sequence[object]) -> int:
    """How many items two lists begin with alike."""
    shorter = min(len(a), len(b))
    return shorter if a[:shorter] == b[:shorter] else next(i for i in range(shorter) if a[i] != b[i])


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """`tokens` output tokens of a request arrived at `at_s` (one chunk may carry several)."""

    request_id: int
    at_s: float
    tokens: int = 1


@dataclass(frozen=True, slots=True)
class Ended:
    """The last event of every request: how it ended, and what the backend knows about it."""

    request_id: int
    at_s: float
    status: Status
    error: str | None = None
    sent_s: float | None = None
    prompt_tokens_server: int | None = None
    cached_tokens: int | None = None
    replica: int | None = None
    preemptions: int | None = None
    prefill_start_s: float | None = None
    prefill_end_s: float | None = None
    handoff_start_s: float | None = None
    handoff_end_s: float | None = None
    decode_start_s: float | None = None
    arrived_s: float | None = None
    exchange: Exchange | None = None
    unseen_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Exchange:
    """What was seen on the wire of one request to a remote server: a row of the `http` table.

    Times are in seconds of the run. `written_s` is when its last byte was handed to the kernel; `connect_s` how long
    it waited for a connection to be opened (None: one was open); `resent` whether it was sent again because a kept
    connection proved closed before the server saw it. `first_event_s` is the first event of any kind,
    `first_content_s` the first text of the answer itself, after reasoning. `counted_by` tells where `output_tokens`
    comes from. `read_lag_s` is the longest time from the arrival of bytes to their reading, `shared_events` the token
    events that were read together with a later one, `held_events` those that came together with an earlier one and
    `held_s` the silence before them (an answer in one event counts as a whole), `process_stamps` the reads of which the
    kernel gave no time that can be believed. `refused_tokens` is the server's count of output tokens where the answer
    cannot have so many. The `server_*` times are the server's own word. `unknown_text` names fields that no known
    server has and that were taken for text.
    """

    sender: int = 0
    address: str = ""
    http_status: int | None = None
    finish_reason: str | None = None
    counted_by: CountedBy | None = None
    written_s: float | None = None
    connect_s: float | None = None
    resent: bool = False
    first_event_s: float | None = None
    first_content_s: float | None = None
    reasoning_tokens: int | None = None
    server_queue_s: float | None = None
    server_ttft_s: float | None = None
    server_prefill_s: float | None = None
    server_decode_s: float | None = None
    reads: int = 0
    read_lag_s: float | None = None
    shared_events: int = 0
    process_stamps: int = 0
    refused_tokens: int | None = None
    held_events: int | None = None
    held_s: float | None = None
    unknown_text: str | None = None


def tpot(first_s: float, last_s: float, tokens: float) -> float | None:
    """Time per output token after the first: (last - first) / (tokens - 1), seconds; None for less than two tokens."""
    return (last_s - first_s) / (tokens - 1) if tokens > 1 else None


@dataclass(slots=True)
class RequestRecord:
    """What happened to one request, whatever happened; metrics see nothing else.

    `token_s` (n,) are the stamps of the token events; `token_n` (n,) how many tokens each held, None when every
    event held one. `output_tokens` is the number produced, the other one the number requested; `unseen_tokens` of those
    produced were never streamed, such as hidden reasoning;
    `arrived_s` is when the scheduler of the system saw the request, where the backend knows it; `ended_s` is when the
    request ended, where that was not its last token. `cap_wait_s` is how long it waited because the run allows no
    more requests in flight, or a response cache was searched; None where it did not. `answers` is how many were
    requested where that is several: both counts of output tokens are those of all of them, and a stamp may hold a token
    of each. `cache_hit` is what a response cache answered with; None where the backend did.
    """

    request_id: int
    scheduled_s: float
    sent_s: float | None
    token_s: Sequence[float]
    token_n: Sequence[int] | None
    prompt_tokens: int
    output_tokens: int
    output_tokens_asked: int
    status: Status
    error: str | None = None
    session: int | None = None
    turn: int = 0
    tag: str | None = None
    prompt_tokens_server: int | None = None
    cached_tokens: int | None = None
    replica: int | None = None
    preemptions: int | None = None
    prefill_start_s: float | None = None
    prefill_end_s: float | None = None
    handoff_start_s: float | None = None
    handoff_end_s: float | None = None
    decode_start_s: float | None = None
    slo_ttft_s: float | None = None
    slo_tpot_s: float | None = None
    arrived_s: float | None = None
    ended_s: float | None = None
    slo_task_s: float | None = None
    exchange: Exchange | None = None
    unseen_tokens: int | None = None
    slo_e2e_s: float | None = None
    cap_wait_s: float | None = None
    answers: int | None = None
    cache_hit: CacheHit | None = None

    @property
    def ttft_s(self) -> float | None:
        """First token minus `scheduled_s`; None without a token."""
        return self.token_s[0] - self.scheduled_s if len(self.token_s) else None

    @property
    def tpot_s(self) -> float | None:
        """`tpot` of the streamed tokens; None too where all came in one event, whose time nothing divides."""
        if len(self.token_s) < 2:
            return None
        streamed_tokens = self.output_tokens - (self.unseen_tokens or 0)
        return tpot(self.token_s[0], self.token_s[-1], streamed_tokens / (self.answers or 1))


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended. `not_sent` were scheduled and never left; `cut` were sent and not waited for.

    `crash` is the traceback of a bug in bench that ended it, or a sentence on a process of bench that was killed.
    """

    ended: End
    sent: int
    not_sent: int
    cut: int
    error: str | None = None
    crash: str | None = None

    def check(self, *, whole: bool = False) -> None:
        """Raises Crashed where a bug ended the run; where it must be `whole`, KeyboardInterrupt where a signal did."""
        if self.crash is not None:
            raise Crashed.of(self.error or "the run broke", self.crash)
        if whole and self.ended in ("interrupted", "stopped"):
            raise KeyboardInterrupt


class Workload(Protocol):
    """A stream of requests, follow-ups included, ordered by `scheduled_s`."""

    def start(self, rng: np.random.Generator) -> Iterator[pa.Table]:
        """Chunks of the `schedule` table (`harness.data.records.SCHEDULE`). Without end, perhaps: the caller cuts.

        Ids are unique, and whatever a row comes `after` stands above it.
        """
        ...

    def describe(self) -> Mapping[str, object]:
        """Facts for the report: preparation and tokenizer of the lengths, source, trace hash."""
        ...


class Arrivals(Protocol):
    """When requests arrive."""

    @property
    def mean_rate_rps(self) -> float:
        """Long-run mean rate in requests per second."""
        ...

    def times(self, rng: np.random.Generator) -> Iterator[float]:
        """Endless arrival times in seconds from 0, never falling."""
        ...


@runtime_checkable
class Omits(Protocol):
    """The result format of another tool, which cannot hold everything of a run."""

    @property
    def omits(self) -> str:
        """What it cannot hold, as a list for one line."""
        ...


@runtime_checkable
class GapLaw(Protocol):
    """Arrivals whose gaps follow one law, which a schedule can be tested against."""

    @property
    def gap_cdf(self) -> Callable[[np.ndarray], np.ndarray] | None:
        """(n,) gaps -> (n,) probability that a gap is at most so long; None where these arguments give no such law.

        Gaps are seconds, or expected arrivals (mean 1) where there is an `operational_time`.
        """
        ...


@runtime_checkable
class RateCurve(Protocol):
    """Arrivals whose rate changes along a known curve."""

    @property
    def operational_time(self) -> Callable[[np.ndarray], np.ndarray] | None:
        """(n,) seconds -> (n,) arrivals expected from 0 up to then; None where these arguments give no such curve."""
        ...


@runtime_checkable
class RandomRate(Protocol):
    """Arrivals that draw their rate at random, so that a short schedule need not have the mean rate."""

    @property
    def settles_s(self) -> float:
        """Seconds from which on the rate of a schedule is judged."""
        ...


@runtime_checkable
class RecordedArrivals(Protocol):
    """Arrivals that are those of a recorded trace, and end with it."""

    @property
    def trace(self) -> Sized:
        """The trace; its length is how many arrivals there are."""
        ...


class Lengths(Protocol):
    """How long prompts and answers are."""

    @property
    def mean_tokens(self) -> tuple[float, float]:
        """Mean prompt and output tokens of the sampler."""
        ...

    def pairs(self, rng: np.random.Generator) -> Iterator[tuple[int, int]]:
        """Endless (prompt_tokens, output_tokens), both at least 1."""
        ...


@runtime_checkable
class LengthQuantiles(Protocol):
    """Lengths with known quantiles, which need not be estimated from draws."""

    def quantile_tokens(self, percent: int) -> tuple[int, int]:
        """Prompt and output tokens that `percent` (0..100) of all are at most, each by itself."""
        ...


@runtime_checkable
class Sourced(Protocol):
    """Arrivals, lengths or a content that can say where they come from."""

    @property
    def facts(self) -> Mapping[str, object]:
        """For the report: source, preparation, tokenizer, licence, hash of a file, what was left out."""
        ...


class Content(Protocol):
    """What is inside a prompt."""

    def token_ids(self, request: Request, vocab_size: int) -> np.ndarray:
        """Exactly `request.prompt_tokens` token ids, (T,) int64 in [0, vocab_size); equal prefix ids, equal tokens."""
        ...


@dataclass(frozen=True, slots=True)
class Loaded:
    """A workload ready to draw from, and what a report says about it.

    `rate_rps` is the long-run rate of requests, None where answers decide it (closed loop); `arrivals_rps` that of
    the arrivals alone where each starts a session of several requests. `slo` holds default bounds in seconds,
    `requests` the default number (None: no default). `gap_cdf` is the law of the gaps between arrivals where
    there is one: in seconds, or in `operational_time` (s -> expected arrivals) where there is that. `provenance`
    holds source, preparation, tokenizer, licence, and for a trace its hash and what was left out. A run shorter than
    `settles_s` need not have the mean rate, because the arrivals draw their rate at random. `warmup` is the default
    rule of what is not measured, such as requests that only fill the caches. `expected` tells the rate and the
    dispersion of 9 of 10 such runs, where the arrivals draw their rate; it takes a second.
    """

    name: str
    workload: Workload
    content: Content
    arrivals_text: str
    lengths_text: str
    rate_rps: float | None
    slo: Mapping[str, float] = field(default_factory=dict)
    requests: int | None = None
    gap_cdf: Callable[[np.ndarray], np.ndarray] | None = None
    provenance: Mapping[str, object] = field(default_factory=dict)
    operational_time: Callable[[np.ndarray], np.ndarray] | None = None
    arrivals_rps: float | None = None
    settles_s: float = 0.0
    timing: Timing = "drawn"
    warmup: str | None = None
    expected: Callable[[], str] | None = None

    @property
    def slo_text(self) -> str:
        """The default SLO as a spec, such as 'ttft=0.25,tpot=0.1' or 'ttft@chat=2'."""
        return ",".join(f"{metric}={bound:g}" for metric, bound in self.slo.items())


class ExactWords(NamedTuple):
    """Words that are one token each beside one another: `lead` stands before the first, `joint` between two."""

    lead: str
    joint: str
    words: tuple[str, ...] = ()

    def of(self, words: Iterable[str]) -> str:
        """The text of some words."""
        joined = self.joint.join(words)
        return self.lead + joined if joined else ""


@runtime_checkable
class TextContent(Content, Protocol):
    """A content that is available as text too, for servers that take text."""

    def text(self, request: Request, opening: Sequence[int] = ()) -> str:
        """The prompt; its tokens are `request.prompt_tokens`, exactly or as nearly as the content knows.

        Each number of `opening` chooses one of its first tokens.
        """
        ...


@runtime_checkable
class LearningContent(TextContent, Protocol):
    """A text content that learns what its words are for a server, by the server's tokenizer or by its counts."""

    @property
    def words(self) -> ExactWords | None:
        """The words of its texts, where they are a token each; None: their tokens are learned by `observe`."""
        ...

    def search(self) -> Generator[str, Sequence[int], ExactWords | None]:
        """Yields texts and takes their token ids, without special ones; returns words for `use`, None without any."""
        ...

    def use(self, words: ExactWords | None) -> None:
        """Make texts of these words from now on."""
        ...

    def observe(self, text: str, prompt_tokens_server: int) -> None:
        """A text that `text` made has `prompt_tokens_server` tokens by the server's count."""
        ...


@runtime_checkable
class RecordedContent(TextContent, Protocol):
    """A content whose prompts were recorded: the body of a request is sent as it was.

    Its counts are those of the schedule; what the server counts (usage) holds.
    """

    def fields(self, request: Request) -> Mapping[str, object]:
        """The fields of the body: `messages`, or the text `prompt`, and the fields beside them.

        Raises ValueError where the record is gone.
        """
        ...


class Source(Protocol):
    """Where traffic comes from: a preset or a spec of lengths, or a recorded trace."""

    def load(self, name: str, **options: Any) -> Loaded:
        """The workload of that name or file. Raises UsageError for what is wrong with it, or with the options."""
        ...


@dataclass(frozen=True, slots=True)
class Step:
    """One executor call: a row of the `steps` table.

    Tokens and sequences are those of this step; `context_tokens` counts the KV entries that its decodes read;
    `waiting`, `running` and `free_blocks` are taken when the batch was formed. Its parts (`StepParts`) are None where
    they are not known, its `lane` where the replica has one batch under way at a time, and the `instances` of the model
    that ran it together where that is always one.
    """

    replica: int
    start_s: float
    end_s: float
    prefill_tokens: int
    decode_seqs: int
    context_tokens: int
    waiting: int
    running: int
    free_blocks: int
    attention_s: float | None = None
    linear_s: float | None = None
    experts_s: float | None = None
    communication_s: float | None = None
    host_s: float | None = None
    lane: int | None = None
    instances: int | None = None


@dataclass(frozen=True, slots=True)
class ActionEvent:
    """Something that a router did, or that befell a replica: a row of the `actions` table.

    `end_s` is when it was over. Of a migration `replica` is the source, `stop_s` when the sequence stopped decoding
    there, `tokens` what was copied; on the engine each copy of it, or of a hand-off, is a row as well, and each of a
    replica from and to its tiers. `detail` is a role, or why a migration was aborted, a request rejected or a replica
    down (drained, failed). What the router does with a request by itself (hold, reject) has no replica.
    """

    kind: ActionKind
    at_s: float
    end_s: float
    replica: int | None
    target: int | None = None
    request_id: int | None = None
    stop_s: float | None = None
    tokens: int | None = None
    detail: str | None = None


@runtime_checkable
class ActionLog(Protocol):
    """A backend or simulator that knows what routers did in it."""

    def actions(self) -> Sequence[ActionEvent]:
        """Those since the last call, in order of their ends."""
        ...


class Backend(Protocol):
    """A serving system under the wall clock."""

    async def open(self, content: Content) -> None:
        """Get ready to serve prompts of this content. Raises UsageError or BackendError when it cannot."""
        ...

    def start_clock(self, epoch_s: float) -> None:
        """The run starts: all stamps are `time.monotonic() - epoch_s` from now on."""
        ...

    def submit(self, request: Request) -> AsyncIterator[TokenEvent | Ended]:
        """Send now. Yields token events, then exactly one `Ended`. Closing the iterator cancels the request."""
        ...

    def steps(self) -> Sequence[Step]:
        """Step rows since the last call; empty where the backend cannot see its steps."""
        ...

    def describe(self) -> Mapping[str, object]:
        """Facts for run.json: model, memory, policy, gpus."""
        ...

    async def close(self) -> None:
        """Let go of everything. Safe to call twice, and after a failed `open`."""
        ...


class Scraper(Protocol):
    """Reads the metrics of a server before, during and after a run. Its calls may block."""

    def before(self) -> None:
        """Look once, before the clock starts."""
        ...

    def follow(self, epoch_s: float) -> None:
        """Look every second from now on, in a thread; time 0 is `epoch_s` of the monotonic clock."""
        ...

    def stop(self) -> Mapping[str, object]:
        """Look a last time; gives the facts for run.json."""
        ...

    def facts(self) -> Mapping[str, object]:
        """What is known so far: kind of server, address of its metrics."""
        ...


@runtime_checkable
class Remote(Backend, Protocol):
    """A backend in another process or on another machine, to which several processes may send.

    `open` asks the server what it can do; after it the object can be pickled, and each sender works with its own copy.
    A sender keeps answers unread while requests leave, because reading them would make departures late:
    `fetch` gives what came, and `read` makes events of it, later and elsewhere.

    `default_content` is the spec of the prompts where the user names none, `timeout_s` how long an answer may take;
    without `stream` answers come whole, so nothing is known of single tokens. `answer` is the dataclass of what is
    fetched, of plain data and arrays of doubles: a sender hands it over as such. `from_environment` holds the arguments
    that it took from there.
    """

    @property
    def default_content(self) -> str: ...
    @property
    def timeout_s(self) -> float: ...
    @property
    def stream(self) -> bool: ...
    @property
    def answer(self) -> type: ...
    @property
    def from_environment(self) -> Mapping[str, str]: ...

    async def open(self, content: Content, shared: Path | None = None, history: str | None = None) -> None:
        """As of every backend. What the server can do is read from the file `shared` where it is known, else put there.

        By it the runs of one command ask a server once. Follow-ups repeat what `--history` says.
        """
        ...

    async def connect(self, sender: int, rate_rps: float, output_tokens: float) -> None:
        """In a sender: open the connections that this rate and mean length of answers are likely to need."""
        ...

    def prepare(self, request: Request) -> None:
        """Build the bytes of a request that will be fetched, so that sending it is one write. May be left out."""
        ...

    def fetch(self, request: Request) -> Awaitable[object]:
        """Send in this call, and keep what comes until the answer has ended, well or not: data of the kind `answer`."""
        ...

    def hang_up(self, request_id: int, status: Status, why: str) -> None:
        """End a request under way: its `fetch` returns at once with what has come, to be read as `status`."""
        ...

    def read(self, request: Request, answer: object) -> Iterator[TokenEvent | Ended]:
        """The token events of what `fetch` gave, then one `Ended`. No I/O; the same events wherever it is called."""
        ...

    async def recount(self) -> Mapping[int, tuple[CountedBy, Sequence[int]]]:
        """After the run, by request id: tokens of each event of the answers whose tokens `read` could only guess."""
        ...

    def redact(self, text: str) -> str:
        """A text without the secrets that this backend was given."""
        ...

    def scraper(self, write: Callable[[pa.Table], None]) -> Scraper | None:
        """The reader of the server's own metrics, which writes rows of `server_metrics`; None where there are none."""
        ...

    def sender_facts(self) -> Mapping[str, object]:
        """What a sender knows in the end: connections opened and resent, clock steps, the kind of stamps."""
        ...


class Served(Protocol):
    """What a null server did for one request, in seconds of the host's monotonic clock."""

    @property
    def arrived_s(self) -> float:
        """When it arrived, by the kernel."""
        ...

    @property
    def written_s(self) -> Sequence[float]:
        """When its tokens were written."""
        ...


class NullServer(Protocol):
    """A running built-in server whose own times are known."""

    @property
    def client(self) -> Remote:
        """The backend whose client is measured, towards this server: unopened, without keys, proxy and TLS."""
        ...

    def served(self) -> tuple[Mapping[str, Served], float]:
        """What it did since the last call, by request id; 99th percentile of how late it wrote tokens. Blocks."""
        ...


@runtime_checkable
class Calibrated(Remote, Protocol):
    """A remote backend whose client can be measured against a null server."""

    def null_server(self, ttft_s: float, itl_s: float) -> AbstractContextManager[NullServer]:
        """A server in a process of its own that answers with these times."""
        ...


class CachedAnswer(NamedTuple):
    """An answer that needs no backend: all of it is there `after_s` seconds after the lookup."""

    hit: CacheHit
    after_s: float


class ResponseCache(Protocol):
    """Stands before a backend of any kind and answers requests in its place. One instance per run."""

    @property
    def search_s(self) -> float:
        """Seconds after which a request goes on to the backend, where nothing is found for it."""
        ...

    def lookup(self, request: Request, now_s: float) -> CachedAnswer | None:
        """The answer to a request that arrives now; None where the backend must answer it."""
        ...

    def store(self, request: Request, record: RequestRecord) -> None:
        """The backend is done with a request, well or not; in the order in which requests end."""
        ...


@runtime_checkable
class Simulator(Protocol):
    """A serving system under a virtual clock."""

    def simulate(self, requests: Iterable[Request], follow_ups: FollowUps | None = None) -> Iterator[RequestRecord]:
        """One record per request, in the order in which they end. `requests` are ordered by `scheduled_s`."""
        ...

    def steps_table(self) -> pa.Table:
        """The `steps` rows since the last call (harness.data.records.STEPS)."""
        ...

    def describe(self) -> Mapping[str, object]:
        """Facts for run.json: model, hardware, latency model, memory, policy, gpus."""
        ...


@runtime_checkable
class TableSimulator(Simulator, Protocol):
    """A simulator that gives tables, which takes less time than an object per request."""

    def tables(
        self, requests: Iterable[Request], follow_ups: FollowUps | None = None, rows: int = 4096
    ) -> Iterator[pa.Table]:
        """The records of `simulate`, `rows` rows of `harness.data.records.REQUESTS` at a time.

        Where an error or an interrupt ends it, what has ended until then comes before.
        """
        ...


@runtime_checkable
class CachedSimulator(Protocol):
    """A simulator that a response cache can stand before, which then sees the requests as virtual time passes."""

    response_cache: ResponseCache | None


@runtime_checkable
class ReusableSimulator(Simulator, Protocol):
    """A simulator that serves one trial after the other without being built again."""

    def reset(self) -> None:
        """Forget everything that was simulated: idle replicas and empty memory, as newly built."""
        ...


@runtime_checkable
class Elastic(Protocol):
    """A system that may change its size by itself, which a measurement in the steady state has to wait for."""

    @property
    def settles_s(self) -> float:
        """Seconds from the start until it has the size that its traffic asks for; 0 where the size is fixed."""
        ...


@runtime_checkable
class LatencyModel(Protocol):
    """How long a step takes. A decode reads its `context_tokens` cached tokens and adds one per sequence."""

    def step_s(self, prefills: Sequence[tuple[int, int]], decode_seqs: int, context_tokens: int) -> float:
        """Seconds of one step; `prefills` holds (new tokens, tokens already stored) per piece of prompt."""
        ...

    def decode_s(self, decode_seqs: int, context_tokens: int) -> float:
        """Equal to `step_s((), decode_seqs, context_tokens)`, bit for bit."""
        ...

    def decode_line(self, decode_seqs: int) -> tuple[float, float] | DecodeCurve | None:
        """(base, slope) if `decode_s(decode_seqs, c)` is `base + slope * c` for every c, bit for bit; else a curve that
        adds up steps by itself, or None."""
        ...

    def decode_many_s(self, decode_seqs: int, context_tokens: np.ndarray) -> np.ndarray:
        """(k,) seconds; element i equals `decode_s(decode_seqs, context_tokens[i])`, bit for bit."""
        ...


class DecodeCurve(Protocol):
    """Decode steps of so many sequences, of a latency model whose times are on no straight line."""

    def extend(
        self, ends: list[float], most: int, now_s: float, horizon_s: float, context: int, seqs: int, longer: float
    ) -> None:
        """Append the ends of at most `most` steps in a row, the first from `now_s` on `context` cached tokens, the last
        one at the first end that is not before `horizon_s`; each takes `longer` times `decode_s`, bit for bit."""
        ...


class StepLoads(NamedTuple):
    """What (n,) steps run: decodes, the cached tokens that these read, and (p,) pieces of prompts in order of steps."""

    decode_seqs: np.ndarray
    context_tokens: np.ndarray
    step: np.ndarray  # (p,) index of the step of a piece
    new_tokens: np.ndarray  # (p,)
    stored_tokens: np.ndarray  # (p,) before the new ones


class StepParts(NamedTuple):
    """(n,) seconds of the parts of steps, over all stages of a pipeline; their sum is the time of a step.

    attention_s: over KV; linear_s: other matrices, and what goes with them such as norms; experts_s: routed and shared
    experts with their gate; communication_s: between GPUs; host_s: launches and the work of the host.
    """

    attention_s: np.ndarray
    linear_s: np.ndarray
    experts_s: np.ndarray
    communication_s: np.ndarray
    host_s: np.ndarray


@runtime_checkable
class PartsOfSteps(Protocol):
    """A latency model that also knows of what the time of a step consists."""

    def step_parts(self, loads: StepLoads) -> StepParts | None:
        """Parts of `step_s` for each of the steps; None: not known."""
        ...


@runtime_checkable
class FrontTime(Protocol):
    """A latency model that also knows what a request takes before its scheduler sees it: HTTP, tokenizer."""

    @property
    def front_s(self) -> float:
        """Seconds, at least 0, the same for every request; they are part of no step."""
        ...


@runtime_checkable
class TokenizerTime(FrontTime, Protocol):
    """A latency model whose front end takes longer for longer prompts."""

    @property
    def front_token_s(self) -> float:
        """Seconds more for each token of a prompt, at least 0."""
        ...


@runtime_checkable
class ExpertPool(Protocol):
    """A latency model of replicas whose experts are on GPUs of their own, beside those of the shape."""

    @property
    def expert_gpus(self) -> int:
        """How many, at least 1."""
        ...

    @property
    def expert_kind(self) -> str:
        """Their kind."""
        ...


@runtime_checkable
class ExpertServers(ExpertPool, Protocol):
    """A latency model of replicas that go on without some of the GPUs that have their experts."""

    def without(self, servers: frozenset[int]) -> LatencyModel | None:
        """The model without these, counted from 0; None where an expert is on no other."""
        ...


@runtime_checkable
class StoredBits(Protocol):
    """A latency model that knows in how many bits its system stores weights and KV, for counting memory."""

    @property
    def stored_bits(self) -> tuple[float | None, float | None]:
        """Bits of an element of the weights of the layers, and of the KV; None: those of the model as published."""
        ...


@runtime_checkable
class MeasuredOn(Protocol):
    """A latency model whose times were measured on one system; it is refused for any other."""

    @property
    def measured_on(self) -> Mapping[str, object]:
        """Those of `model`, `hardware`, `tp` and `pp` for which alone it holds; they go before its fields."""
        ...


@dataclass(slots=True)
class Piece:
    """What an executor must run for one sequence in one step.

    `token_ids` (n,) are fed at positions `position`..`position+n-1`; their KV goes to the pages `blocks` (block i
    holds positions i*block_size..). `sample` asks for the next token after the last one; `temperature` 0 is
    greedy, else the token is drawn with a generator seeded by (`seed`, its position), from the likeliest tokens whose
    probabilities add up to `top_p`; those in `forbidden` cannot come.
    """

    request_id: int
    token_ids: Sequence[int]
    position: int
    blocks: Sequence[int]
    sample: bool
    temperature: float = 0.0
    seed: int = 0
    top_p: float = 1.0
    forbidden: Sequence[int] = ()


class Executor(Protocol):
    """Executes a batch on a real model, over paged KV memory."""

    @property
    def vocab_size(self) -> int:
        """Token ids are in [0, vocab_size)."""
        ...

    @property
    def max_tokens(self) -> int:
        """Longest sequence (prompt + output) that the model takes."""
        ...

    def allocate(self, num_blocks: int, block_size: int) -> None:
        """Make the KV memory: `num_blocks` pages of `block_size` tokens. Called once, before the first step."""
        ...

    def execute(self, pieces: Sequence[Piece]) -> list[int | None]:
        """Run one step; per piece the sampled token, None where `sample` is False."""
        ...

    def copy_out(self, blocks: Sequence[int]) -> Sequence[object]:
        """What these pages hold, copied to the host, one item per page."""
        ...

    def copy_in(self, kept: Sequence[object], blocks: Sequence[int]) -> None:
        """Copy what `copy_out` gave into these pages."""
        ...

    def describe(self) -> Mapping[str, object]:
        """Facts for run.json: model, parameters, dtype, KV bytes per token."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One quantity of the `requests` table: a row that decides how it is computed, where it is shown, and as what.

    `of` gives float64 values: (requests,) with NaN where undefined, or, of a `pooled` metric, one per token event;
    `worst` is then the largest of each request. A plug-in is such a row, or a class with `name`, `unit`, `better`, `of`
    and whichever other of these members it needs; the defaults show it everywhere.
    """

    name: str
    about: str
    unit: str = "s"
    better: Literal["higher", "lower"] = "lower"
    assume: Literal["exact", "nothing"] = "nothing"
    of: Callable[[pa.Table], np.ndarray]
    pooled: bool = False
    worst: Callable[[pa.Table], np.ndarray] | None = None
    whole: bool = False  # the value of a request depends on others: it takes the table at once
    gaps: bool = False  # the first and the last token of a request do not tell it
    on_request: bool = False  # dear: computed only where an SLO names it

    place: int = 100  # among the metrics of a table or figure, rising
    title: str | None = None  # in reports; the name where there is none
    worst_title: str | None = None  # of the largest of each request, in figures
    terms: tuple[tuple[str, str], ...] = ()  # what reports define, word by word
    headline: bool = False  # in the lines and columns that hold one or two metrics; has intervals within a run
    in_summary: bool = True  # a row in the table of every run, a curve in its figures, a value of every sweep
    compared: tuple[str, ...] | None = ("mean", "p99")  # what `bench compare` shows ungated; None: it compares nothing

    one_token: bool = False  # the wait for one token: a bound of a minute was meant in milliseconds
    needs_token_times: bool = False  # no answer that comes whole tells it
    decided_by: Literal["prefill", "decode"] | None = None  # the side of a disaggregated system that decides it alone
    phases: tuple[str, ...] = ()  # of the time of a request that it is made of; all where empty
    floor: Literal["ttft", "tpot", "itl", "e2e", "lateness"] | None = None  # its error in the client's measured floor

    @property
    def label(self) -> str:
        """As it is printed."""
        return self.title or self.name


class SentPrompt(NamedTuple):
    """A prompt when it was sent (s): ids of its blocks and of those its answer fills (blocks,), tokens of a block.

    It has `tokens` tokens, its answer `answer_tokens`; `measured`: whether it counts.
    """

    sent_s: float
    blocks: np.ndarray
    block_tokens: int
    tokens: int
    answer_tokens: int
    measured: bool

    @property
    def goes_on(self) -> bool:
        """Whether blocks that its answer fills are named too, because a follow-up has them."""
        return names_answer(len(self.blocks), self.block_tokens, self.tokens)


@dataclass(frozen=True, slots=True)
class RunTables:
    """What a metric of a whole run sees: its tables from `since_s` on, where its warm-up was cut.

    `steps()` gives the steps in pieces, with all columns or at least those named, those of a replica in the order of
    their start; none where the backend does not show them. `http` is None for a backend that is not remote. `step_w`
    are the limits of the power (W) of the GPUs that a step keeps busy, by replica, the last one for all that follow;
    none where a GPU's is unknown. `prompts()` gives all prompts in the order of their sending, those of the warm-up
    too; none where no prompt names blocks. `tiers` is what the backend counts of each tier of KV memory.
    """

    requests: pa.Table
    steps: Callable[..., Iterator[pa.Table]]
    http: pa.Table | None = None
    since_s: float = 0.0
    step_w: Sequence[float] = ()
    prompts: Callable[[], Iterator[SentPrompt]] = lambda: iter(())
    tiers: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMetric:
    """One quantity of a whole run, which needs its steps or its requests together: a row, as `Metric` is.

    `of` gives (n,) float64 values without NaN, none where the run cannot tell. No SLO bounds them.
    """

    name: str
    about: str
    unit: str = "share"
    better: Literal["higher", "lower"] = "lower"
    assume: Literal["exact", "nothing"] = "nothing"
    of: Callable[[RunTables], np.ndarray]
    place: int = 100  # among the metrics of a run, rising
    title: str | None = None  # in reports; the name where there is none

    @property
    def label(self) -> str:
        """As it is printed."""
        return self.title or self.name


@dataclass(frozen=True, slots=True)
class Bound:
    """One limit of an SLO: `metric <= limit`, for one class of traffic (`tag`) or all.

    With `percentile` (0..100) it binds that percentile of the run instead of every request.
    """

    metric: str
    limit: float
    tag: str | None = None
    percentile: float | None = None

    @property
    def name(self) -> str:
        """What it binds, as it is written: 'p99:ttft@long'."""
        percentile = "" if self.percentile is None else f"p{_plain(self.percentile)}:"
        return f"{percentile}{self.metric}{'' if self.tag is None else '@' + self.tag}"

    def __str__(self) -> str:
        """As it is written, in seconds: 'p99:ttft@long=2'; of an infinite limit requests bring along their own."""
        return f"{self.name}={_plain(self.limit)}" if math.isfinite(self.limit) else f"{self.metric} (per request)"


def _plain(value: float) -> str:
    return repr(value).removesuffix(".0")


@dataclass(frozen=True, slots=True)
class Slo:
    """Bounds that a request must all meet, and the share of requests that must meet them (`goal`)."""

    bounds: tuple[Bound, ...] = ()
    goal: float = 0.9

    def __str__(self) -> str:
        """The bounds as they are written, joined by commas."""
        return ",".join(map(str, self.bounds))


@dataclass(frozen=True, slots=True)
class RunWarning:
    """Something a reader of the result must know, with a remedy."""

    code: str
    message: str
    remedy: str = ""

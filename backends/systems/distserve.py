"""DistServe: prefill and decode on GPUs of their own, each divided as its own bound asks for.

Source: Zhong et al., DistServe, OSDI 2024; LLMServe/DistServe @82831f1. It claims up to 7.4 times the rate of vLLM
within the same SLO, or an SLO that is 12.6 times tighter (final text; 4.48 and 10.2 times in its first version).

`simulated` and `rate_per_gpu` are the paper's own simulator and the search of its planner: hand-offs take no time,
memory does not limit admission, and vLLM's constants are slower than DistServe's. They are for its published numbers.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from math import ceil, exp, inf, isclose, sqrt
from typing import Annotated, Literal, TypeAlias

import numpy as np
from msgspec import Meta

from backends.latency import step_times
from backends.latency.abc import Abc
from backends.serving.batch import Batch, VisibleRequest
from backends.serving.replica import Replica, Role
from backends.serving.routing import (
    Action,
    ClusterView,
    Decision,
    Drain,
    FinishedRequest,
    ReplicaView,
    Requirements,
    Scale,
    SetRole,
)
from backends.systems._sent import Sent
from backends.systems.laws import mean_wait, wait_quantile
from harness import catalog, registry
from harness.api import Request, Row
from harness.bounds import AtLeastOne, AtLeastTwo, Checked, NotNegative, Positive, PositiveShare
from harness.errors import UsageError
from harness.spec import link_bytes_per_s

HORIZON = 20
"""Stationary windows over which a false alarm has the probability `alpha`."""
GPU = "a100-80g"
"""The only GPU that its simulator has constants for."""
STAGE_S, CALL_S, CONTEXT_TOKEN_S = 1e-3, 2e-3, 1e-7
"""Seconds that its simulator adds to the fitted constants: for each stage of a prefill, and at the first stage for each
step and each token of context (simdistserve/base/worker.py and estimators/time_estimator.py)."""
CONTEXT_TOKENS = 50_000
"""Tokens of context that a decode step of its simulator reads at most; sequences then take turns."""
DOUBLINGS = 4
RESOLUTION = 0.05
"""A rate is searched at least to this share of itself; the width of the planner alone is coarse for large models."""

Cluster: TypeAlias = Mapping[Role, "Side"]
"""Replicas by role: `mixed`, or `prefill` and `decode`; one of these alone is tried as if the other were unlimited."""


@dataclass(frozen=True, slots=True)
class DistservePrefillPolicy(Checked):
    """DistServe's prefill scheduler: whole prompts in order of arrival, nothing else.

    Source: LLMServe/DistServe @82831f1, distserve/context_stage_scheduler.py (128 requests, 8,192 tokens a batch).
    Memory of prompts that wait for their hand-off counts, so a full decode side stops prefill.

    At most `max_seqs` prompts and `max_batched_tokens` tokens a step; a longer prompt runs alone.

    The paper's L_m, the shortest prompt that saturates the GPU, is max_batched_tokens=512 for OPT-13B on an A100.
    """

    max_seqs: AtLeastOne = 128
    max_batched_tokens: AtLeastOne = 8192

    @property
    def serves(self) -> Role:
        """Replicas for prefill alone."""
        return "prefill"

    def fill(self, replica: Replica, batch: Batch) -> None:
        """Prompts in order of arrival; on a replica that is no prefill replica decodes follow when none waits."""
        replica.admit_whole(batch, self.max_batched_tokens, self.max_seqs)
        if not batch.prefills and replica.decoding.members:
            replica.decode(batch)
            batch.repeats = not batch.preempted


@dataclass(frozen=True, slots=True)
class DistserveDecodePolicy(Checked):
    """DistServe's decode scheduler: every sequence that was handed on decodes in every step, in order of arrival.

    Source: LLMServe/DistServe @82831f1, distserve/decoding_stage_scheduler.py (1,024 sequences a batch). Sequences that
    lost their memory come first; what is computed again runs alone.

    At most `max_seqs` sequences decode at a time.
    """

    max_seqs: AtLeastOne = 1024

    @property
    def serves(self) -> Role:
        """Replicas for decode alone."""
        return "decode"

    def has_room(self, replica: Replica) -> bool:
        """Whether one more sequence may decode."""
        return replica.running < self.max_seqs

    def fill(self, replica: Replica, batch: Batch) -> None:
        """What lost its memory is computed again when there is room; else all decodes."""
        while replica.waiting and self.has_room(replica) and replica.admissible():
            replica.admit(batch, replica.waiting[0].need())
        if not batch.prefills and replica.decoding.members:
            replica.decode(batch)
            batch.repeats = not batch.preempted


@dataclass(slots=True)
class Window:
    """Gaps between arrivals (s), lengths of prompts and of answers that ended (tokens)."""

    gaps_s: list[float] = field(default_factory=list)
    prompts: list[float] = field(default_factory=list)
    outputs: list[float] = field(default_factory=list)

    def statistics(self) -> tuple[list[float], list[float], list[float]]:
        """The samples that are compared."""
        return self.gaps_s, self.prompts, self.outputs


@dataclass(frozen=True, slots=True)
class ShortestPrefillQueueRouter:
    """Shortest prefill queue: the replica with the fewest requests whose prompts are not computed; the first of
    equals.

    Source: Zhong et al., DistServe, OSDI 2024, section 4.3; LLMServe/DistServe @82831f1,
    simdistserve/base/scheduler.py.

    Counts requests that wait or are being prefilled.
    """

    def load(self, replica: Replica) -> int:
        """Prompts that are not computed."""
        return len(replica.waiting) + (len(replica.prefilling) if replica.pipeline is None else replica.prefill_seqs)


@dataclass(frozen=True, slots=True)
class LeastLoadedDecodeRouter:
    """Least loaded decode: the replica with the fewest blocks of context, those on their way included; the first of
    equals.

    Source: Zhong et al., DistServe, OSDI 2024, section 4.3.

    Counts blocks held, and those that queued requests will take for their prompts.
    """

    @property
    def watches(self) -> bool:
        """True: decoding takes blocks."""
        return True

    def load(self, replica: Replica) -> int:
        """Blocks."""
        blocks = replica.blocks
        queued = sum([blocks.blocks_for(seq.prompt) for seq in replica.waiting])
        queued += sum([blocks.blocks_for(seq.prompt) for seq, _ in replica.inbox.offers])
        return blocks.total - blocks.free + queued


@dataclass(slots=True)
class ReplanRouter(Checked):
    """Re-planning: roles, and perhaps the number of replicas, follow a shift of the traffic.

    A profiler watches the arrivals and the lengths, and where they shift placement runs again on recent traffic;
    reloading weights takes minutes (DistServe, section 4.3). The tests (two-sample Kolmogorov-Smirnov) and their
    thresholds are ours, and so is the plan, the min-rule of DistServe over equal GPUs.

    Compares every window of `window_s` seconds with the one that the plan is made for.

    The traffic has shifted where gaps, prompts or answers differ (Kolmogorov-Smirnov, `alpha` over 20 windows and three
    tests) and their mean by more than `shift`. The new plan divides the replicas so that prefill and decode sustain the
    same rate at `tpot_s`; with `most` there may be so many, as many as keep them busy for the share `busy`. A replica
    that changes is emptied first and loads its weights for `reload_s`. The first window is the first plan's.
    """

    window_s: Positive = 60.0
    alpha: Annotated[float, Meta(gt=0, lt=1)] = 0.01
    shift: Positive = 0.2
    tpot_s: Positive = 0.05
    busy: PositiveShare = 0.7
    most: AtLeastTwo | None = None
    reload_s: NotNegative = 30.0
    report_s: float = 0.0
    shifts_s: list[float] = field(default_factory=list, init=False, repr=False, compare=False)
    """When shifts were detected."""
    _sent: Sent = field(default_factory=Sent, init=False, repr=False, compare=False)
    _planned: Window | None = field(default=None, init=False, repr=False, compare=False)
    _window: Window = field(default_factory=Window, init=False, repr=False, compare=False)
    _last_s: float | None = field(default=None, init=False, repr=False, compare=False)  # arrival

    @property
    def requires(self) -> Requirements:
        """Prefill and decode replicas, whose roles it changes by predicted times; with `most` it adds some."""
        settles_s = 0.0 if self.most is None else 2 * self.window_s + self.reload_s
        return Requirements(
            "apart", changes_roles=True, scales=self.most is not None, step_times=True, settles_s=settles_s
        )

    @property
    def tick_s(self) -> float:
        """A window."""
        return self.window_s

    def decide(self, request: VisibleRequest, now_s: float, view: ClusterView) -> Decision:
        """The least loaded replicas, as under `min-load`."""
        if self._last_s is not None:
            self._window.gaps_s.append(now_s - self._last_s)
        self._last_s = now_s
        self._window.prompts.append(request.prompt_tokens)
        return self._sent.least_loaded(request, now_s, view)

    def on_finish(self, finished: FinishedRequest) -> None:
        """The length of an answer is known."""
        self._sent.on_finish(finished)
        if finished.output_tokens:
            self._window.outputs.append(finished.output_tokens)

    def tick(self, now_s: float, view: ClusterView) -> list[Action]:
        """A window is over."""
        window, self._window = self._window, Window()
        if not window.prompts or not window.outputs:
            return []
        if self._planned is None:
            self._planned = window
        elif self._has_shifted(self._planned, window):
            self.shifts_s.append(now_s)
            self._planned = window
            return self._plan(window, view)
        return []

    def _has_shifted(self, old: Window, new: Window) -> bool:
        alpha = self.alpha / (3 * HORIZON)
        return any(
            a and b and abs(_mean(b) - _mean(a)) > self.shift * _mean(a) and differ(a, b) < alpha
            for a, b in zip(old.statistics(), new.statistics(), strict=True)
        )

    def _plan(self, window: Window, view: ClusterView) -> list[Action]:
        alive = [r for r in view.replicas if r.alive]
        prefills, decodes = ([r for r in alive if r.role == role and r.open] for role in ("prefill", "decode"))
        if not prefills or not decodes:
            return []
        prefill_busy, decode_busy = self._work(window, prefills[0], decodes[0])
        count = len(prefills) + len(decodes)
        if self.most is not None:
            count = min(self.most, max(2, ceil(prefill_busy / self.busy) + ceil(decode_busy / self.busy)))
        prefill_count = min(
            range(1, count), key=lambda n: (max(prefill_busy / n, decode_busy / (count - n)), abs(2 * n - count))
        )
        return _actions(prefills, decodes, prefill_count, count - prefill_count, self.reload_s)

    def _work(self, window: Window, prefill: ReplicaView, decode: ReplicaView) -> tuple[float, float]:
        """Replicas that prompts, and that decodes at `tpot_s`, keep busy all the time."""
        rate_rps = 1 / _mean(window.gaps_s) if window.gaps_s else 0.0
        prompt, output = max(1, round(_mean(window.prompts))), _mean(window.outputs)
        context = round(prompt + output / 2)
        room = decode.total_blocks * decode.block_tokens // context
        low, high = 1, max(2, room)  # sequences of a step that takes tpot_s at most
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if decode.step_s([], middle, middle * context) <= self.tpot_s else (low, middle)
        decode_s = decode.step_s([], low, low * context) / low
        return rate_rps * prefill.step_s([(prompt, 0)], 0, 0), rate_rps * output * decode_s


def _actions(
    prefills: list[ReplicaView], decodes: list[ReplicaView], want_prefill: int, want_decode: int, reload_s: float
) -> list[Action]:
    """Change roles first, then add or give up what is left."""
    actions: list[Action] = []
    sides: tuple[tuple[list[ReplicaView], int, Role], ...] = (
        (prefills, want_prefill, "prefill"), (decodes, want_decode, "decode"),
    )  # fmt: skip
    spare = [r for side, want, _ in sides for r in sorted(side, key=lambda r: r.requests)[: max(0, len(side) - want)]]
    for side, want, role in sides:
        actions += [
            SetRole(spare.pop().index, role, "drain", reload_s) if spare else Scale(role, reload_s)
            for _ in range(want - len(side))
        ]
    return actions + [Drain(replica.index) for replica in spare]


def _mean(values: ListOf[float]) -> float:
    return sum(values) / len(values)


def differ(first: ListOf[float], second: ListOf[float]) -> float:
    """P value of the two-sample Kolmogorov-Smirnov test, asymptotic (Smirnov 1948), with Stephens' correction."""
    a, b = sorted(first), sorted(second)
    i = j = 0
    largest = 0.0
    while i < len(a) and j < len(b):
        value = min(a[i], b[j])
        while i < len(a) and a[i] == value:
            i += 1
        while j < len(b) and b[j] == value:
            j += 1
        largest = max(largest, abs(i / len(a) - j / len(b)))
    root = sqrt(len(a) * len(b) / (len(a) + len(b)))
    x = (root + 0.12 + 0.11 / root) * largest
    if x < 0.2:
        return 1.0  # where the series does not converge
    tail = 2 * sum((1 if k % 2 else -1) * exp(-2 * (k * x) ** 2) for k in range(1, 101))
    return min(1.0, max(0.0, tail))


@dataclass(frozen=True, slots=True)
class Side:
    """`count` replicas alike, each on `tp` x `pp` GPUs."""

    count: int = 1
    tp: int = 1
    pp: int = 1


def kv_tokens(name: str, tp: int = 1, pp: int = 1) -> int:
    """KV capacity of a replica in tokens, as its simulator has it (`max_num_tokens.csv`); 0 where weights do not fit.

    Utilisation 0.95, reserve 1 %, blocks of 16; its weights are vocab * h + 2048 * h, undivided, and
    (12 * h^2 / tp + 5 * h) per layer of the stage, all in fp16.
    """
    shape = catalog.model(name)
    h, layers = shape.hidden, shape.layers / pp
    weights = 2 * (shape.vocab * h + 2048 * h + 12 * layers * h * h / tp + 5 * layers * h)
    block = 16 * 2 * layers * (h / tp) * 2
    memory_bytes = catalog.hardware(GPU).memory_bytes
    return max(0, int((memory_bytes * 0.95 - memory_bytes * 0.01 - weights) // block)) * 16


@dataclass(slots=True)
class _Item:
    """A request on its way: `left` decode steps are to come, `context` tokens are stored."""

    number: int
    arrived_s: float
    prompt: int
    left: int
    context: int
    replica: int = 0
    first_s: float = inf
    last_s: float = inf


class _Stage:
    """A worker of its simulator: one stage of one replica, with queues of its own."""

    __slots__ = ("batch", "constants", "decodes", "following", "is_first", "is_last", "pp", "prefilling",
                 "prompt_tokens", "prompts", "replica")  # fmt: skip

    def __init__(self, replica: int, rank: int, pp: int, constants: Abc, prompt_tokens: int) -> None:
        self.replica, self.pp = replica, pp
        self.is_first, self.is_last = rank == 0, rank == pp - 1
        self.constants = constants
        self.prompt_tokens = prompt_tokens  # of a prefill batch at most
        self.prompts: deque[list[_Item]] = deque()  # of the first stage one by one, then batch by batch
        self.decodes: deque[_Item] = deque()
        self.following: _Stage = self
        self.batch: list[_Item] = []
        self.prefilling = 0

    def start(self) -> float | None:
        """Begin the next batch, prompts first; how long it takes, or None where nothing waits."""
        context = 0
        if self.prompts:
            self.batch = self._prompts() if self.is_first else self.prompts.popleft()
            self.prefilling = len(self.batch)
            context = sum(item.prompt for item in self.batch)
            lasts_s = self.constants.step_s([(item.prompt, 0) for item in self.batch], 0, 0) + STAGE_S * self.pp
        elif self.decodes:
            # The token that a step makes counts as context; what exceeds the cap keeps its place in the queue.
            while self.decodes and context + len(self.batch) + self.decodes[0].context + 1 <= CONTEXT_TOKENS:
                context += self.decodes[0].context
                self.batch.append(self.decodes.popleft())
            lasts_s = self.constants.decode_s(len(self.batch), context + len(self.batch))
        else:
            return None
        return lasts_s + (CALL_S + CONTEXT_TOKEN_S * context if self.is_first else 0.0)

    def _prompts(self) -> list[_Item]:
        batch, tokens_left = [], self.prompt_tokens
        while self.prompts and self.prompts[0][0].prompt <= tokens_left:
            batch += self.prompts.popleft()
            tokens_left -= batch[-1].prompt
        return batch


class _Simulator:
    """All stages of all replicas; an item goes from stage to stage, and round again for each token."""

    def __init__(self, cluster: Cluster, name: str, engine: str, *, fitted: bool) -> None:
        numbers = count()
        self._heads = {role: [*_replicas(side, numbers, name, engine, fitted)] for role, side in cluster.items()}
        self._events: list[tuple[float, int, bool, _Stage]] = []  # heap of (time, number, batch done?, stage)
        self._number = count()

    def run(self, items: ListOf[_Item]) -> None:
        """Set the times of the first and the last token of each item; they are in order of arrival."""
        arrivals = deque(items)
        while arrivals or self._events:
            # At one instant arrivals come first.
            if arrivals and (not self._events or arrivals[0].arrived_s <= self._events[0][0]):
                self._arrive(arrivals.popleft())
                continue
            now_s, _, done, stage = heappop(self._events)
            if done:
                self._leave(stage, now_s)
            if not stage.batch and (lasts_s := stage.start()) is not None:
                self._push(stage, now_s + lasts_s, done=True)

    def _arrive(self, item: _Item) -> None:
        if item.prompt + item.left > CONTEXT_TOKENS:
            return  # the original would wait for it for ever
        heads = self._heads.get("mixed") or self._heads.get("prefill")
        if heads is None:
            item.first_s = item.arrived_s
            self._decode(item, item.arrived_s)
        elif item.prompt <= heads[0].prompt_tokens:
            head = min(heads, key=lambda stage: stage.prefilling + len(stage.prompts))
            item.replica = head.replica
            head.prompts.append([item])
            self._wake(head, item.arrived_s)

    def _decode(self, item: _Item, now_s: float) -> None:
        """Queue an item on its replica, or on the decode replica with the fewest; without one it is over."""
        heads = self._heads.get("decode") or self._heads.get("mixed")
        if heads is None or not item.left:
            item.last_s = now_s
            return
        if "decode" in self._heads:
            item.replica = min(heads, key=lambda stage: stage.prefilling + len(stage.decodes)).replica
        head = next(stage for stage in heads if stage.replica == item.replica)
        head.decodes.append(item)
        self._wake(head, now_s)

    def _leave(self, stage: _Stage, now_s: float) -> None:
        """Hand a finished batch to the following stage; after the last one a token is out."""
        batch, stage.batch = stage.batch, []
        is_prefill, stage.prefilling = bool(stage.prefilling), 0
        if is_prefill and stage.is_last:
            for item in batch:
                item.first_s = now_s
                self._decode(item, now_s)
            return
        if is_prefill:
            stage.following.prompts.append(batch)
        else:
            stage.following.decodes.extend(self._counted(batch, now_s) if stage.is_last else batch)
        if stage.following is not stage:
            self._wake(stage.following, now_s)

    def _counted(self, batch: list[_Item], now_s: float) -> Iterator[_Item]:
        """Count the token that each item has emitted; those with more to come."""
        for item in batch:
            item.context += 1
            item.left -= 1
            item.last_s = now_s
            if item.left:
                yield item

    def _wake(self, stage: _Stage, now_s: float) -> None:
        if not stage.batch:
            self._push(stage, now_s, done=False)

    def _push(self, stage: _Stage, at_s: float, *, done: bool) -> None:
        heappush(self._events, (at_s, next(self._number), done, stage))


def _replicas(side: Side, numbers: Iterator[int], name: str, engine: str, fitted: bool) -> Iterator[_Stage]:
    """The first stage of each replica; its stages follow one another in a ring."""
    constants = Abc(engine, name, side.tp, side.pp, GPU, fitted)
    for number in (next(numbers) for _ in range(side.count)):
        stages = [
            _Stage(number, rank, side.pp, constants, kv_tokens(name, side.tp, side.pp)) for rank in range(side.pp)
        ]
        for stage, following in zip(stages, [*stages[1:], stages[0]], strict=True):
            stage.following = following
        yield stages[0]


def simulated(
    requests: ListOf[tuple[float, int, int]], cluster: Cluster, name: str = "opt-13b", engine: str | None = None, *,
    fitted: bool = False,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """(requests,) TTFT and TPOT in seconds by DistServe's simulator; infinite for a request that can never run.

    `requests` are (arrival in seconds, prompt tokens, output tokens) in order of arrival. An answer of n tokens takes n
    decode steps after the first token, and TPOT is their mean. `engine` is that of the constants: by default vllm for
    `mixed` replicas, else distserve; `fitted` takes them without the factors of the released code.
    Raises UsageError for a model and tp of which no constants are published.
    """
    if not cluster:
        raise UsageError("DistServe's simulator needs mixed, prefill or decode replicas.")
    items = [_Item(i, at_s, prompt, output, prompt) for i, (at_s, prompt, output) in enumerate(requests)]
    _Simulator(cluster, name, engine or ("vllm" if "mixed" in cluster else "distserve"), fitted=fitted).run(items)
    first, last = (np.array([getattr(item, attribute) for item in items]) for attribute in ("first_s", "last_s"))
    outputs = np.array([output for _, _, output in requests])
    with np.errstate(invalid="ignore"):  # infinite less infinite
        tpot_s = np.where(np.isfinite(last), (last - first) / outputs, inf)
    return first - np.array([item.arrived_s for item in items]), tpot_s


def arrivals_s(rate_rps: float, requests: int, seed: int = 0) -> np.ndarray:
    """(requests,) times of a Poisson process as its simulator draws them: numpy's legacy generator, the first at 0."""
    gaps_s = np.random.RandomState(seed).gamma(1, 1 / rate_rps, size=requests - 1)
    return np.cumsum([0.0, *gaps_s])


def rate_per_gpu(
    lengths: ListOf[tuple[int, int]], bounds_s: tuple[float, float], cluster: Cluster, name: str = "opt-13b",
    engine: str | None = None, *, fitted: bool = False, joint: bool = False, goal: float = 0.9, seed: int = 0,
    top_rps: float = 8.0, width_rps: float = 0.0625,
) -> float:  # fmt: skip
    """The highest rate per GPU that the search of DistServe's planner finds: it halves from 0 to `top_rps`.

    The top is doubled while it holds, at most `DOUBLINGS` times: a side alone may sustain more.

    A rate holds where the share `goal` of the requests, of these (prompt, output) `lengths`, meets the bounds on TTFT
    and TPOT in seconds: each by itself, or with `joint` both at once.
    """
    gpus = sum(side.count * side.tp * side.pp for side in cluster.values())
    unit_s = arrivals_s(1.0, len(lengths), seed)

    def holds(rate_rps: float) -> bool:
        at_s = (unit_s / (rate_rps * gpus)).tolist()
        requests = [(arrival_s, prompt, output) for arrival_s, (prompt, output) in zip(at_s, lengths, strict=True)]
        times = simulated(requests, cluster, name, engine, fitted=fitted)
        met = [values <= bound_s for values, bound_s in zip(times, bounds_s, strict=True)]
        return bool(min([np.mean(met[0] & met[1])] if joint else [np.mean(flags) for flags in met]) >= goal - 1e-9)

    low_rps, high_rps = 0.0, top_rps
    for _ in range(DOUBLINGS):
        if not holds(high_rps):
            break
        low_rps, high_rps = high_rps, 2 * high_rps
    while high_rps - low_rps > min(width_rps, RESOLUTION * high_rps) and high_rps > width_rps / 16:
        middle_rps = (low_rps + high_rps) / 2
        low_rps, high_rps = (middle_rps, high_rps) if holds(middle_rps) else (low_rps, middle_rps)
    return low_rps


def prefill(
    execution_s: float = 1.0, rate_rps: float | None = None, tp: int = 2, pp: int = 2, speedup: float = 1.6,
    replicas: int = 1, simulate: bool = False, requests: int = 100_000, seed: int = 0,
) -> list[Row]:  # fmt: skip
    """Compare the TTFT of prompts of equal length on one GPU, on `tp` GPUs and in `pp` pipeline stages.

    An M/D/1 queue: prompts of `execution_s` on one GPU arrive at random and are prefilled one at a time; `tp` GPUs are
    `speedup` times as fast. No rate stands for half of what one GPU sustains. A queue that is busy all the time grows
    without end and has no TTFT ('-'). The simulation has `requests` prompts.

    Source: Zhong et al., DistServe, OSDI 2024, section 3.1; Franx 2001 (distribution of waiting times).
    """
    rate = replicas * 0.5 / execution_s if rate_rps is None else rate_rps
    forms = {"one GPU": Prefill(execution_s, replicas=replicas)}
    if tp > 1:
        forms[f"tp {tp}, {speedup:g}x"] = Prefill(execution_s, tp=tp, speedup=speedup, replicas=replicas)
    if pp > 1:
        forms[f"pp {pp}"] = Prefill(execution_s, pp=pp, replicas=replicas)
    rows: list[Row] = []
    for name, form in forms.items():
        busy = form.utilisation(rate)
        stable = busy < 1 and not isclose(busy, 1.0)  # 20 req/s of 50 ms come to 1 less a rounding error
        row: Row = {
            "replica": name, "rate_rps": rate, "busy_share": busy if stable else 1.0,
            "mean_ttft_s": form.mean_s(rate) if stable else None,
            "p90_ttft_s": form.quantile_s(rate, 0.9) if stable else None,
            "p99_ttft_s": form.quantile_s(rate, 0.99) if stable else None,
        }  # fmt: skip
        if simulate and stable:
            times_s = prefill_times_s(form, rate, requests, seed)
            row["simulated_mean_s"] = float(times_s.mean())
            row |= {f"simulated_p{p}_s": float(np.quantile(times_s, p / 100)) for p in (90, 99)}
        rows.append(row)
    return rows


def crossover(speedup: float = 1.6, ways: int = 2, execution_s: float = 1.0, replicas: int = 1) -> list[Row]:
    """Find the load from which on a pipeline has a lower mean TTFT than tensor parallelism over as many GPUs.

    The load is the rate times the time of a prompt on one GPU, per replica. No crossover ('-') where tensor parallelism
    stays ahead as long as both queues are stable.

    Source: Zhong et al., DistServe, OSDI 2024, section 3.1.
    """
    if ways < 2:
        raise ValueError("ways must be at least 2; a pipeline has two stages or more.")
    load = crossover_load(speedup, ways)
    return [{"load": load, "rate_rps": None if load is None else load / execution_s * replicas}]


def kv(
    model: str = "opt-13b", length_tokens: int = 512, rate_rps: float = 10.0, link: str = "200Gbps",
    memory_bytes: float | None = None, hardware: str = "a100-80g", latency: str = "roofline", tp: int = 1,
) -> list[Row]:  # fmt: skip
    """Size the KV of a prompt, and time its transfer from a prefill to a decode replica.

    A transfer is hidden if the link keeps up with the rate and the layer-wise transfer of a prompt ends with its
    prefill. 'room' is how many tokens memory_bytes hold. For 512 tokens of OPT-66B at 10 a second DistServe prints
    1.13 GB and 90 Gbps: GiB, in decimal units 96.6 Gbps.

    Source: Zhong et al., DistServe, OSDI 2024, sections 3.3 and 6.3.
    """
    per_token = catalog.kv_bytes_per_token(catalog.model(model))
    catalog.hardware(hardware)
    size = length_tokens * per_token
    transfer_s = size / link_bytes_per_s(link)
    try:
        prefill_s = step_times(latency, model=model, hardware=hardware, tp=tp).step_s([(length_tokens, 0)], 0, 0)
    except UsageError:
        if latency != "roofline":
            raise
        prefill_s = None  # roofline times no system of this shape
    row: Row = {
        "bytes_per_token": per_token, "kv_bytes": size, "bytes": size, "gbps": rate_rps * size * 8 / 1e9,
        "transfer_s": transfer_s, "in_use_share": rate_rps * transfer_s, "prefill_s": prefill_s,
        "hidden": None if prefill_s is None else rate_rps * transfer_s < 1 and transfer_s <= prefill_s,
    }  # fmt: skip
    return [row if memory_bytes is None else {**row, "room": int(memory_bytes // per_token)}]


def knee(
    phase: Literal["prefill", "decode"] = "prefill", length_tokens: int = 512, batch: int = 128,
    model: str = "opt-13b", hardware: str = "a100-80g", latency: str = "roofline", tp: int = 1, pp: int = 1,
) -> list[Row]:  # fmt: skip
    """Find the batch, of up to `batch` sequences, at which the throughput of a step saturates.

    A prompt, or the context of a decode, has length_tokens. A batch passes every pipeline stage, so stages raise the
    throughput and do not change the time of a step. 'of best' is the share of the highest throughput in these rows.

    Source: Zhong et al., DistServe, OSDI 2024, figures 3 and 5.
    """
    timed = step_times(latency, model=model, hardware=hardware, tp=tp, pp=pp)

    def tokens_per_s(sequences: int) -> float:
        if phase == "prefill":
            return sequences * length_tokens / timed.step_s([(length_tokens, 0)] * sequences, 0, 0)
        return sequences / timed.decode_s(sequences, sequences * length_tokens)

    sizes = [*(1 << n for n in range(batch.bit_length()) if 1 << n < batch), batch]
    rates = {size: tokens_per_s(size) for size in sizes}
    per_sequence = length_tokens if phase == "prefill" else 1
    return [{"batch": size, "step_s": pp * size * per_sequence / rate, "throughput_tokens_per_s": rate,
             "of_best_share": rate / max(rates.values())} for size, rate in rates.items()]  # fmt: skip


def chunking(
    chunk_tokens: int = 512, prompt_tokens: int = 2048, simulate: bool = False, model: str = "opt-13b",
    hardware: str = "a100-80g", latency: str = "roofline", tp: int = 1,
) -> list[Row]:  # fmt: skip
    """Compare the time of a prompt in chunks with its time in one piece.

    Every chunk reads the KV of all before it: N (N - 1) / 2 chunk-loads in N chunks. A ratio below 1 comes from step
    times by which one long piece takes longer than its chunks together; latency=roofline has the cost of reading alone.

    Source: Zhong et al., DistServe, OSDI 2024, section 2.3.
    """
    system = {"model": model, "hardware": hardware, "tp": tp}
    timed = step_times(latency, **system)
    pieces = [(min(chunk_tokens, prompt_tokens - start), start) for start in range(0, prompt_tokens, chunk_tokens)]
    chunks, whole_s = len(pieces), timed.step_s([(prompt_tokens, 0)], 0, 0)
    chunked_s = sum(timed.step_s([piece], 0, 0) for piece in pieces)
    row: Row = {"chunks": chunks, "kv_chunk_loads": chunks * (chunks - 1) // 2, "in_chunks_s": chunked_s,
                "in_one_piece_s": whole_s, "chunks_ratio": chunked_s / whole_s}  # fmt: skip
    if simulate:
        simulator = registry.make(
            "backends", "sim", policy=f"sarathi:budget={chunk_tokens}", kv_blocks=prompt_tokens // 8 + 64,
            log_steps=False, latency=latency, **system,
        )  # fmt: skip
        (record,) = simulator.simulate(iter([Request(0, 0.0, prompt_tokens, 1)]))
        row["simulated_s"] = record.token_s[0]
    return [row]


@dataclass(frozen=True, slots=True)
class Prefill:
    """A replica that prefills prompts of `execution_s` seconds each, split over GPUs in one of two ways.

    With `tp` GPUs side by side a prompt takes execution_s / `speedup`; with `pp` stages it takes as long as on one,
    and the next may begin after execution_s / pp. `replicas` share the arrivals at random.
    """

    execution_s: float
    tp: int = 1
    pp: int = 1
    speedup: float = 1.0
    replicas: int = 1

    @property
    def own_s(self) -> float:
        """Seconds of a prompt that does not wait."""
        return self.execution_s / self.speedup

    @property
    def between_s(self) -> float:
        """Seconds from the start of one prompt to that of the next, while others wait."""
        return self.own_s / self.pp

    def utilisation(self, rate_rps: float) -> float:
        """Busy share of the first stage when `rate_rps` prompts arrive per second at all replicas together."""
        return rate_rps / self.replicas * self.between_s

    def mean_s(self, rate_rps: float) -> float:
        """Mean TTFT in seconds; infinite where the queue grows."""
        return self.own_s + self.between_s * mean_wait(self.utilisation(rate_rps))

    def quantile_s(self, rate_rps: float, share: float) -> float:
        """TTFT in seconds that a `share` of the requests does not exceed."""
        return self.own_s + self.between_s * wait_quantile(self.utilisation(rate_rps), share)


def crossover_load(speedup: float, ways: int = 2) -> float | None:
    """rho = rate x execution time below which `ways`-way tensor parallelism with this speed-up has the lower mean TTFT.

    Above it pipeline parallelism over as many stages has. None where tensor parallelism is the better one as long as
    both are stable; 0 where it never is.
    """
    tensor, pipeline = Prefill(1.0, tp=ways, speedup=speedup), Prefill(1.0, pp=ways)

    def ahead(rho: float) -> float:
        return pipeline.mean_s(rho) - tensor.mean_s(rho)

    if speedup <= 1:
        return 0.0
    low, high = 0.0, min(speedup, ways) * (1 - 1e-12)
    if ahead(high) > 0:
        return None
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if ahead(middle) > 0 else (low, middle)
    return high


def prefill_times_s(form: Prefill, rate_rps: float, requests: int, seed: int = 0) -> np.ndarray:
    """(requests,) TTFT in seconds of prompts of equal length, one at a time, on a simulated replica.

    With several replicas each gets its share of the rate, of which one is simulated. Gaps are exponential and scaled so
    that their mean is that of the rate: most of the noise of a mean wait is noise of the rate.
    """
    own_gaps_s = gaps_s(form, rate_rps, requests, seed)
    simulator = registry.make(
        "backends", f"sim:pp={form.pp}" if form.pp > 1 else "sim", policy="vllm-v0:max_seqs=1", kv_blocks=4 * form.pp,
        log_steps=False,
        latency=f"linear:base_s={form.between_s!r},prefill_token_s=0,decode_seq_s=0,context_token_s=0",
    )  # fmt: skip
    prompts = (Request(i, at_s, 16, 1) for i, at_s in enumerate(np.cumsum(own_gaps_s).tolist()))
    times = np.empty(requests)
    for record in simulator.simulate(prompts):
        times[record.request_id] = record.token_s[0] - record.scheduled_s
    return times


def gaps_s(form: Prefill, rate_rps: float, requests: int, seed: int = 0) -> np.ndarray:
    """(requests,) exponential gaps, whose mean is that of the rate of one replica."""
    gaps_s = np.random.default_rng(seed).standard_exponential(requests)
    gaps_s *= form.replicas / rate_rps / gaps_s.mean()
    return gaps_s

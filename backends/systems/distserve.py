"""DistServe: prefill and decode on GPUs of their own, each divided as its own bound asks for.

Source: Zhong et al., DistServe, OSDI 2024; LLMServe/DistServe @82831f1. It claims up to 7.4 times the rate of vLLM
within the same SLO, or an SLO that is 12.6 times tighter (final text; 4.48 and 10.2 times in its first version).
"""

from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field
from math import ceil, exp, sqrt

from backends.serving._checks import at_least, positive
from backends.serving.batch import Batch, VisibleRequest
from backends.serving.replica import Replica, Role
from backends.serving.routers._sent import Sent
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

HORIZON = 20
"""Stationary windows over which a false alarm has the probability `alpha`."""


@dataclass(frozen=True, slots=True)
class DistservePrefillPolicy:
    """DistServe's prefill scheduler: whole prompts in order of arrival, nothing else.

    Source: LLMServe/DistServe @82831f1, distserve/context_stage_scheduler.py (128 requests, 8,192 tokens a batch).
    Memory of prompts that wait for their hand-off counts, so a full decode side stops prefill.

    At most `max_seqs` prompts and `max_batched_tokens` tokens a step; a longer prompt runs alone.

    The paper's L_m, the shortest prompt that saturates the GPU, is max_batched_tokens=512 for OPT-13B on an A100.
    """

    max_seqs: int = 128
    max_batched_tokens: int = 8192

    def __post_init__(self) -> None:
        positive(self, "max_seqs", "max_batched_tokens")

    @property
    def serves(self) -> Role:
        """Replicas for prefill alone."""
        return "prefill"

    def fill(self, replica: Replica, batch: Batch) -> None:
        """Prompts in order of arrival; on a replica that is no prefill replica decodes follow when none waits."""
        tokens = 0
        waiting = replica.waiting
        while waiting and len(batch.prefills) < self.max_seqs and replica.admissible():
            need = waiting[0].need()
            if tokens and tokens + need > self.max_batched_tokens:
                break
            replica.admit(batch, need)
            tokens += need
        if not tokens and replica.decoding.members:
            replica.decode(batch)
            batch.repeats = not batch.preempted


@dataclass(frozen=True, slots=True)
class DistserveDecodePolicy:
    """DistServe's decode scheduler: every sequence that was handed on decodes in every step, in order of arrival.

    Source: LLMServe/DistServe @82831f1, distserve/decoding_stage_scheduler.py (1,024 sequences a batch). Sequences that
    lost their memory come first; what is computed again runs alone.

    At most `max_seqs` sequences decode at a time.
    """

    max_seqs: int = 1024

    def __post_init__(self) -> None:
        at_least("max_seqs", self.max_seqs)

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


@dataclass(frozen=True, slots=True)
class DistserveSimPolicy:
    """The colocated scheduler of DistServe's simulator: prompts first, all that wait in one batch; else all decodes.

    Source: LLMServe/DistServe @82831f1, simdistserve/base/worker.py. A prefill batch takes prompts up to the KV
    capacity whatever is stored already; a decode step reads at most `max_decode_tokens`, and sequences then take turns.

    At most `max_prefill_tokens` prompt tokens a step (OPT-13B on one A100-80G), `max_decode_tokens` of context.
    """

    max_prefill_tokens: int = 66144
    max_decode_tokens: int = 50000

    def __post_init__(self) -> None:
        positive(self, "max_prefill_tokens", "max_decode_tokens")

    def refusal(self, prompt: int, output: int) -> str | None:
        """A prompt must fit one prefill step, and its longest decode step one decode step."""
        if prompt > self.max_prefill_tokens:
            return f"a prompt of {prompt} tokens exceeds max_prefill_tokens {self.max_prefill_tokens}"
        if output > 1 and prompt + output - 1 > self.max_decode_tokens:
            return f"a context of {prompt + output - 1} tokens exceeds max_decode_tokens {self.max_decode_tokens}"
        return None

    def fill(self, replica: Replica, batch: Batch) -> None:
        """Prompts if any wait, else the sequences whose turn it is."""
        left = self.max_prefill_tokens
        waiting = replica.waiting
        while waiting and waiting[0].need() <= left and replica.admissible():
            left -= waiting[0].need()
            replica.admit(batch, waiting[0].need())
        if batch.prefills:
            return
        steps = self._take_turns(replica)
        if replica.decoding.members:
            replica.decode(batch)
            batch.repeats = False if batch.preempted else steps

    def _take_turns(self, replica: Replica) -> int:
        """Park what exceeds the context of one step, in order of last turn; for how many steps none will."""
        decoding, parked = replica.decoding, replica.parked
        if not parked:
            if not decoding:
                return 0
            steps = (self.max_decode_tokens - decoding.context) // len(decoding)
            if steps > 0:
                return steps
        for seq in list(decoding):
            replica.park(seq)
        left = self.max_decode_tokens
        while parked and (computed := next(iter(parked)).computed) < left:
            left -= computed + 1
            replica.unpark()
        return 0


@dataclass(slots=True)
class Window:
    """Gaps between arrivals (s), lengths of prompts and of answers that ended (tokens)."""

    gaps_s: list[float] = field(default_factory=list)
    prompts: list[float] = field(default_factory=list)
    outputs: list[float] = field(default_factory=list)

    def statistics(self) -> tuple[list[float], list[float], list[float]]:
        """The samples that are compared."""
        return self.gaps_s, self.prompts, self.outputs


@dataclass(slots=True)
class ReplanRouter:
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

    window_s: float = 60.0
    alpha: float = 0.01
    shift: float = 0.2
    tpot_s: float = 0.05
    busy: float = 0.7
    most: int | None = None
    reload_s: float = 30.0
    report_s: float = 0.0
    shifts_s: list[float] = field(default_factory=list, init=False, repr=False, compare=False)
    """When shifts were detected."""
    _sent: Sent = field(default_factory=Sent, init=False, repr=False, compare=False)
    _planned: Window | None = field(default=None, init=False, repr=False, compare=False)
    _window: Window = field(default_factory=Window, init=False, repr=False, compare=False)
    _last_s: float | None = field(default=None, init=False, repr=False, compare=False)  # arrival

    def __post_init__(self) -> None:
        at_least("most", self.most, 2)
        if min(self.window_s, self.shift, self.tpot_s) <= 0 or self.reload_s < 0:
            raise ValueError("window_s, shift and tpot_s must be above 0, reload_s at least 0")
        if not (0 < self.alpha < 1 and 0 < self.busy <= 1):
            raise ValueError(f"alpha and busy must be shares in (0, 1), got {self.alpha} and {self.busy}")

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
        wanted = min(
            range(1, count), key=lambda n: (max(prefill_busy / n, decode_busy / (count - n)), abs(2 * n - count))
        )
        return _actions(prefills, decodes, wanted, count - wanted, self.reload_s)

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

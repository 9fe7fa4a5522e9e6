"""semi-PD: prefill and decode run side by side on shares of the same GPUs, with one copy of the weights and of the KV.

Source: the paper on semi-PD in infinigence/Semi-PD, algorithm 1 and its text; the code there @2565f9f,
`python/sglang/semi_pd/utils.py` (shares of 80 and 100 %), `python/sglang/srt/managers/semi_pd_*_scheduler.py`.
It claims 1.55 to 1.72 times the rate of colocated and disaggregated serving.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field
from math import ceil, inf
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from backends.serving.plugins import Policy
from harness.bounds import AtLeastOne, NotNegative, PartialShare, Positive, PositiveShare, check
from harness.errors import UsageError

if TYPE_CHECKING:
    from backends.serving.batch import Batch, Sequence
    from backends.serving.replica import Replica

DECODE, PREFILL = 0, 1
FIXED_SHARE = 0.3818 / (0.6284 + 0.3818)
"""Of a decode step, what takes as long with any share of the GPU: by the published fit 0.6284 / y + 0.3818."""
SHIPPED = "80/100"
"""Shares of prefill and decode in percent with which the code is shipped."""
REMEMBERED = 16
"""Windows from which a fit is made."""


@dataclass(slots=True)
class Fit:
    """A line `y = slope * x + base` through the last windows, by least squares."""

    points: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    def line(self) -> tuple[float, float] | None:
        """(slope, base); None while all `x` are equal, or where `y` does not grow with it."""
        count = len(self.points)
        mean_x, mean_y = (sum(column) / count for column in zip(*self.points, strict=True))
        spread = sum((x - mean_x) ** 2 for x, _ in self.points)
        if spread < 1e-9:
            return None
        slope = sum((x - mean_x) * (y - mean_y) for x, y in self.points) / spread
        return (slope, mean_y - slope * mean_x) if slope > 0 else None

    def predict(self, x: float) -> float:
        """`y` at `x`: by the line, else in proportion to the last point."""
        if (line := self.line()) is not None:
            return line[0] * x + line[1]
        last_x, last_y = self.points[-1]
        return last_y * x / last_x


@dataclass(slots=True)
class SemiPdPolicy:
    """semi-PD: a lane for prefill and one for decode on shares of the same GPUs, with one KV memory and no hand-off.

    Prompts run in order of arrival, `budget` tokens a step; at most `max_seqs` sequences decode. Where decodes run out
    of memory the youngest goes back to the front of the queue.

    `shares` are those of prefill and decode in percent, such as 80/100; their sum may exceed 100. A lane that works
    alone has the speed of its share: for prefill the share itself, for decode less is lost, as a part `fixed` of a step
    does not depend on it. While both work, each has min(1, `sigma` / sum of shares) of that: `sigma` is what two
    batches side by side do together over what one does, to be measured; 1 where they only take turns.

    With shares=auto they start at 80/100, and every `window_s` seconds the P90 of TTFT and TPOT are compared with
    `ttft_s` and `tpot_s`. If one alone fails, its lane gets `step` more, up to `most_steps` times, until a fit to the
    last windows predicts that it holds: TTFT as a / (x - load) + b, TPOT as a / y + b, of shares over their sum. New
    shares hold `delay_s` later, from the next step of each lane on. With `printed` it acts for TTFT where both fail,
    too, as the algorithm is printed; its text says keep.
    """

    shares: str = "auto"
    budget: AtLeastOne = 8192
    max_seqs: AtLeastOne = 512
    sigma: Annotated[float, Meta(ge=1, le=2)] = 1.3
    fixed: PartialShare = FIXED_SHARE
    window_s: Annotated[float, Meta(ge=0.001)] = 10.0
    step: PositiveShare = 0.1
    most_steps: AtLeastOne = 3
    ttft_s: Positive = 0.3
    tpot_s: Positive = 0.15
    quantile: PositiveShare = 0.9
    delay_s: NotNegative = 0.0
    printed: bool = False
    _wanted: tuple[float, float] = field(init=False, repr=False, compare=False)  # shares by lane, from `_since_s` on
    _since_s: float = field(default=0.0, init=False, repr=False, compare=False)
    _in_force: list[float] = field(init=False, repr=False, compare=False)  # shares by lane, of the batch under way
    _window: _Window = field(init=False, repr=False, compare=False)
    _fits: tuple[Fit, Fit] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check(self)
        self._wanted = _parsed(SHIPPED if self.shares == "auto" else self.shares)
        self._in_force = list(self._wanted)
        self._window = _Window()
        self._fits = Fit(), Fit()

    @property
    def simulated(self) -> str:
        """It has lanes."""
        return "runs batches side by side"

    def fill(self, replica: Replica, batch: Batch) -> None:  # noqa: ARG002
        """Raise UsageError: this driver has no lanes."""
        raise UsageError("policy=semi-pd runs two batches side by side, which only simulated replicas do.")

    def lanes(self) -> ListOf[Policy]:
        """Decode and prefill."""
        return _DecodeLane(self), _PrefillLane(self)

    def rates(self, lanes: ListOf[int]) -> ListOf[float]:
        """By the shares in force; less while both work."""
        shares = [self._in_force[lane] for lane in lanes]
        contention = min(1.0, self.sigma / sum(shares)) if len(lanes) > 1 else 1.0
        return [contention * self._speed(lane, share) for lane, share in zip(lanes, shares, strict=True)]

    def _speed(self, lane: int, share: float) -> float:
        return share if lane == PREFILL else 1 / ((1 - self.fixed) / share + self.fixed)

    def begin(self, lane: int, now_s: float) -> None:
        """A lane is about to form a batch: the only clock."""
        if self.shares == "auto" and now_s >= self._window.begun_s + self.window_s:
            self._control(self._window, now_s)
            self._window = _Window(now_s)
        if now_s >= self._since_s:
            self._in_force[lane] = self._wanted[lane]

    def prefilled(self, batch: Batch, seconds: float) -> None:
        """A step of the lane for prefill took so long, contention included."""
        window = self._window
        window.busy_s += seconds
        window.ttft_s += [
            seq.prefill_end_s - seq.request.scheduled_s
            for seq, _ in batch.prefills
            if seq.emitted == 1 and seq.prefill_end_s is not None
        ]

    def finished(self, seq: Sequence) -> None:
        """An answer has ended."""
        if len(seq.token_s) > 1:
            self._window.tpot_s.append((seq.token_s[-1] - seq.token_s[0]) / (len(seq.token_s) - 1))

    def _control(self, window: _Window, now_s: float) -> None:
        """Algorithm 1: give the lane that alone misses its objective more, as far as the fits say that it needs."""
        decode, prefill = self._wanted
        x = prefill / (prefill + decode)
        load = min(x * window.busy_s / (now_s - window.begun_s), 0.99 * x)
        ttft_s, tpot_s = (_quantile(samples, self.quantile) for samples in (window.ttft_s, window.tpot_s))
        for fit, at, latency_s in ((self._fits[0], 1 / (x - load), ttft_s), (self._fits[1], 1 / (1 - x), tpot_s)):
            if latency_s:
                fit.points.append((at, latency_s))
        ttft_fails, tpot_fails = ttft_s > self.ttft_s, tpot_s > self.tpot_s
        if ttft_fails and (self.printed or not tpot_fails):
            self._raise(PREFILL, lambda x: self._fits[0].predict(1 / (x - load)) > self.ttft_s, now_s)
        elif tpot_fails and not ttft_fails:
            self._raise(DECODE, lambda x: self._fits[1].predict(1 / (1 - x)) > self.tpot_s, now_s)

    def _raise(self, lane: int, fails: Callable[[float], bool], now_s: float) -> None:
        shares = list(self._wanted)
        for _ in range(self.most_steps):
            more = min(self.step, 1.0 - shares[lane])  # who has all of the GPU gets more by what the other loses
            shares[lane] += more
            shares[1 - lane] = max(self.step, shares[1 - lane] - (self.step - more))
            if not fails(shares[PREFILL] / sum(shares)):
                break
        self._wanted, self._since_s = (shares[DECODE], shares[PREFILL]), now_s + self.delay_s


@dataclass(slots=True)
class _Window:
    """What was measured since `begun_s`: TTFT of prompts and TPOT of answers that ended, time in prefill steps."""

    begun_s: float = 0.0
    busy_s: float = 0.0
    ttft_s: list[float] = field(default_factory=list)
    tpot_s: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _PrefillLane:
    """Prompts in order of arrival, in chunks."""

    shared: SemiPdPolicy

    def on_step_start(self, now_s: float) -> None:
        self.shared.begin(PREFILL, now_s)

    def fill(self, replica: Replica, batch: Batch) -> None:
        left = replica.run_chunks(batch, self.shared.budget)
        replica.admit_chunks(batch, left, self.shared.max_seqs)

    def on_step_end(self, batch: Batch, seconds: float) -> None:
        self.shared.prefilled(batch, seconds)


@dataclass(frozen=True, slots=True)
class _DecodeLane:
    """Every sequence whose prompt is computed."""

    shared: SemiPdPolicy

    def on_step_start(self, now_s: float) -> None:
        self.shared.begin(DECODE, now_s)

    def fill(self, replica: Replica, batch: Batch) -> None:
        if replica.decoding.members:
            replica.decode(batch)

    def has_room(self, replica: Replica) -> bool:
        return replica.running < self.shared.max_seqs

    def on_finish(self, seq: Sequence) -> None:
        self.shared.finished(seq)


def _parsed(text: str) -> tuple[float, float]:
    """Shares of decode and prefill of `80/100`, in percent of prefill and decode. Raises UsageError."""
    try:
        prefill, decode = (float(share) / 100 for share in text.split("/"))
    except ValueError:
        prefill = decode = inf
    if not (0 < prefill <= 1 and 0 < decode <= 1):
        raise UsageError(f"shares must be auto, or percents of prefill and decode such as 80/100, got '{text}'.")
    return decode, prefill


def _quantile(samples: list[float], share: float) -> float:
    """The smallest sample that so many are not above; 0 where there are none."""
    return sorted(samples)[ceil(share * len(samples)) - 1] if samples else 0.0

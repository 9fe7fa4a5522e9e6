"""JITServe: serves tokens just in time for the objectives of requests and programs, with lengths that are predicted.

Source: JITServe (NSDI 2026), algorithm GMAX; constants of UIUC-MLSys/JITServe, `jitserve/scheduler/policy.py` and
`scripts/e2e/benchmark_rps.sh`. It claims 1.4 to 6.3 times the goodput of schedulers without objectives.
"""

from collections import deque
from collections.abc import Iterator
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field
from math import ceil, inf
from typing import Annotated

from msgspec import Meta

from backends.serving.batch import Batch, Sequence
from backends.serving.plugins import Predictor
from backends.serving.replica import Replica
from backends.serving.visible import MOST_PROGRAMS, program_of
from backends.systems._ranked import Ranks, Seats, best
from harness.api import DeadlineSlo, LatencySlo, ProgramSlo, SloClass
from harness.bounds import NotNegative, check
from harness.registry import make

LEAST = 1e-6
"""Of what it would earn in time, what one that is much too late is expected to earn."""
STEP_S = 0.02
"""Seconds of a step before any has run."""
SAMPLES = 10
"""Intervals whose steps make the moving average."""


@dataclass(frozen=True, slots=True)
class Call:
    """A request as part of its program (a request that stands alone is a program of one call).

    `since_s` is when its clock began, `due_s` when its last token is due, inf for one whose tokens are due one by one.
    """

    slo: SloClass
    program: tuple[str, int]
    since_s: float
    due_s: float


@dataclass(slots=True)
class Programs:
    """The programs seen so far. A request without bounds has those of `default`."""

    default: LatencySlo
    _begun_s: dict[tuple[str, int], float] = field(default_factory=dict)

    def call(self, seq: Sequence) -> Call:
        """The place of a sequence in its program, which begins with the first call that is seen."""
        request = seq.request
        slo = request.slo or self.default
        program = program_of(seq.request)
        begun_s = self._begun_s.get(program)
        if begun_s is None:
            begun_s = self._begun_s[program] = seq.request.scheduled_s
            if len(self._begun_s) > MOST_PROGRAMS:
                del self._begun_s[next(iter(self._begun_s))]
        match slo:
            case ProgramSlo():
                return Call(slo, program, begun_s, begun_s + slo.program_s)
            case DeadlineSlo():
                return Call(slo, program, seq.request.scheduled_s, seq.request.scheduled_s + slo.e2e_s)
            case LatencySlo():
                return Call(slo, program, seq.request.scheduled_s, inf)


@dataclass(slots=True)
class GmaxPolicy:
    """GMAX of JITServe: who earns most tokens within objectives for each second of service runs first.

    A request is expected to earn its prompt and `w_output` for each token of its answer, less the later it is predicted
    to be; what it earns for each second that it still needs is its density. With `p` 100 that is the shortest remaining
    time among those that can still be in time. The calls of a program share one density. There who loses a seat is
    swapped out; here it sits out with its memory until others need it, and loses it by the way of `preempt`. Chunked
    prefill as in Sarathi-Serve.

    At most `max_seqs` sequences run in a step of `budget` tokens; all are ranked every `interval` steps.

    With `group` above 1 the best `group` times `max_seqs` compete, and those of similar length run together. A request
    without bounds of its own is someone's who watches: first token within `ttft_s`, each later one `tbt_s` after the
    one before.
    """

    predictor: str = "quantile"
    p: NotNegative = 100.0
    budget: int = 512
    max_seqs: int = 32
    interval: int = 50
    group: Annotated[float, Meta(ge=1)] = 1.0
    w_prompt: NotNegative = 1.0
    w_output: NotNegative = 8.0
    ttft_s: float = 2.0
    tbt_s: float = 0.1
    _seats: Seats = field(init=False, repr=False, compare=False)
    _programs: Programs = field(init=False, repr=False, compare=False)
    _lengths: Predictor = field(init=False, repr=False, compare=False)
    _now_s: float = field(default=0.0, init=False, repr=False, compare=False)
    _took_s: float = field(default=0.0, init=False, repr=False, compare=False)
    _step_s: deque[float] = field(init=False, repr=False, compare=False)  # mean of each of the last intervals

    def __post_init__(self) -> None:
        check(self)
        self._seats = Seats(self.budget, self.max_seqs, self.interval)
        self._programs = Programs(LatencySlo(self.ttft_s, self.tbt_s))
        self._lengths = make("predictors", self.predictor)
        self._step_s = deque(maxlen=SAMPLES)

    def on_step_start(self, now_s: float) -> None:
        """The only clock."""
        self._now_s = now_s

    def fill(self, replica: Replica, batch: Batch) -> None:
        """The densest sequences, under the budget."""
        self._seats.fill(replica, batch, self._rank, self._choose)

    def on_step_end(self, batch: Batch, seconds: float) -> None:  # noqa: ARG002  a step is a step
        """A step of the interval is over; the last one gives the interval's mean."""
        seats = self._seats
        seats.steps += 1
        self._took_s += seconds
        if seats.steps == self.interval:
            self._step_s.append(self._took_s / self.interval)
            self._took_s = 0.0

    def on_finish(self, seq: Sequence) -> None:
        self._lengths.on_finish(seq)

    @property
    def unit_s(self) -> float:
        return sum(self._step_s) / len(self._step_s) if self._step_s else STEP_S

    def _rank(self, seqs: ListOf[Sequence]) -> Ranks:
        ranks: Ranks = {}
        for _, members in self._by_program(seqs):
            density = self._density(members)
            ranks |= {seq: (-density, seq.order) for seq, _ in members}
        return ranks

    def _by_program(self, seqs: ListOf[Sequence]) -> Iterator[tuple[tuple[str, int], list[tuple[Sequence, Call]]]]:
        """The calls of each program; those whose tokens are due one by one stand alone."""
        programs: dict[tuple[str, int], list[tuple[Sequence, Call]]] = {}
        for seq in seqs:
            call = self._programs.call(seq)
            key = call.program if isinstance(call.slo, ProgramSlo) else ("request", seq.request.id)
            programs.setdefault(key, []).append((seq, call))
        return iter(programs.items())

    def _density(self, members: list[tuple[Sequence, Call]]) -> float:
        """What the active calls of a program earn together for each second that they still need together."""
        unit_s, gain = self.unit_s, 0.0
        lengths = [self._lengths.output_tokens(seq) for seq, _ in members]
        rest_s = unit_s * sum(self._rest(seq, length) for (seq, _), length in zip(members, lengths, strict=True))
        for (seq, call), length in zip(members, lengths, strict=True):
            waited_s = self._now_s - call.since_s
            match call.slo:
                case LatencySlo(ttft_s, tbt_s):
                    in_time = self._in_time(ttft_s + length * tbt_s, waited_s + rest_s)
                    if seq.emitted:
                        gain += self._gained(seq, call.slo)
                        gain += self.w_output * self._rest(seq, length) * in_time
                    else:
                        gain += self.w_prompt * seq.prompt * self._in_time(ttft_s, waited_s + unit_s)
                        gain += self.w_output * length * in_time
                case _:
                    earned = self.w_prompt * seq.prompt + self.w_output * length
                    gain += earned * self._in_time(call.due_s - call.since_s, waited_s + rest_s)
        return gain / rest_s

    @staticmethod
    def _rest(seq: Sequence, length: float) -> float:
        return max(1.0, length - seq.emitted)

    def _in_time(self, allowed_s: float, needed_s: float) -> float:
        return float(max(LEAST, min(1.0, allowed_s / needed_s if needed_s > 0 else 1.0)) ** self.p)

    def _gained(self, seq: Sequence, slo: LatencySlo) -> float:
        """What an answer under way has earned: as if all its tokens were as late as the first."""
        assert seq.prefill_end_s is not None
        in_time = seq.prefill_end_s - seq.request.scheduled_s <= slo.ttft_s
        return self.w_prompt * seq.prompt + self.w_output * seq.emitted if in_time else 0.0

    def _choose(self, ranks: Ranks, seats: int) -> ListOf[Sequence]:
        """The window of the best of similar length; then every program with a deadline gets what it needs."""
        chosen = self._window(ranks, seats)
        return self._with_demands(ranks, chosen)

    def _window(self, ranks: Ranks, seats: int) -> list[Sequence]:
        candidates = list(best(ranks, int(self.group * seats)))
        if len(candidates) <= seats:
            return candidates
        candidates.sort(key=lambda seq: (seq.prompt + seq.emitted, seq.order))
        densities = [-ranks[seq][0] for seq in candidates]
        start = max(range(len(candidates) - seats + 1), key=lambda i: sum(densities[i : i + seats]))
        return sorted(candidates[start : start + seats], key=ranks.__getitem__)

    def _with_demands(self, ranks: Ranks, chosen: list[Sequence]) -> list[Sequence]:
        """Calls of programs that run too slowly to be in time take the seats of the last in rank of no program.

        A call that runs makes a token a step; a program needs as many as make its rest in the time that is left.
        """
        seated = dict.fromkeys(chosen)
        spare = [seq for seq in reversed(chosen) if not isinstance(self._programs.call(seq).slo, ProgramSlo)]
        for _, members in self._by_program(sorted(ranks, key=ranks.__getitem__)):
            call = members[0][1]
            left_s = call.due_s - self._now_s
            if not isinstance(call.slo, ProgramSlo) or left_s <= 0:
                continue
            rest = sum(self._rest(seq, self._lengths.output_tokens(seq)) for seq, _ in members)
            need = ceil(rest * self.unit_s / left_s)
            if need > len(members):
                continue  # late whatever runs
            short = need - sum(seq in seated for seq, _ in members)
            for seq in [seq for seq, _ in members if seq not in seated][: max(0, short)]:
                if not spare:
                    return list(seated)
                del seated[spare.pop(0)]
                seated[seq] = None
        return list(seated)


@dataclass(slots=True)
class EdfPolicy:
    """Earliest deadline first: whose next token, answer or program is due first runs; the baseline EDF of JITServe.

    Source: Liu and Layland, JACM 1973; JITServe (NSDI 2026), comparison with EDF. Chunked prefill as in Sarathi-Serve.

    At most `max_seqs` sequences run in a step of `budget` tokens; all are ranked every `interval` steps.

    A request without bounds of its own is someone's who watches: first token within `ttft_s`, each later one `tbt_s`
    after the one before.
    """

    budget: int = 512
    max_seqs: int = 32
    interval: int = 20
    ttft_s: float = 2.0
    tbt_s: float = 0.1
    _seats: Seats = field(init=False, repr=False, compare=False)
    _programs: Programs = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._seats = Seats(self.budget, self.max_seqs, self.interval)
        self._programs = Programs(LatencySlo(self.ttft_s, self.tbt_s))

    def fill(self, replica: Replica, batch: Batch) -> None:
        """The sequences that are due first, under the budget."""
        self._seats.fill(replica, batch, self._rank)

    def on_step_end(self, batch: Batch, seconds: float) -> None:  # noqa: ARG002  a step is a step
        """Count the steps until all are ranked again."""
        self._seats.steps += 1

    def _rank(self, seqs: ListOf[Sequence]) -> Ranks:
        return {seq: (self._due_s(seq), seq.order) for seq in seqs}

    def _due_s(self, seq: Sequence) -> float:
        call = self._programs.call(seq)
        if isinstance(call.slo, LatencySlo):
            return seq.request.scheduled_s + call.slo.ttft_s + seq.emitted * call.slo.tbt_s
        return call.due_s

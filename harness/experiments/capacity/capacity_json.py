"""capacity.json as a type: what was searched and, once the search is over, what was found."""

from typing import Literal

from msgspec import UNSET, UnsetType, field

from harness.data.codec import Count, Document, Facts, Number, Part, Positive, Share, Text
from harness.data.run_json import Floor, StepTimes, StoredSlo, Warned, Workload


class RateBracket(Part, frozen=True, kw_only=True):
    """The highest rate that was sustained and the lowest that was not, each None where no trial lies there.

    `met` requests of those on a side met the condition; a side is not `sure` where they are too few to tell. They were
    sent at `rates` rates: of 1 it is that of the side; others are higher ones that met, or lower ones that missed.
    """

    low_rate_rps: Positive | None = None
    low_seeds: Count | None = None
    low_requests: Count | None = None
    low_grew: bool | None = None
    low_met: Count | None = None
    low_sure: bool | None = None
    low_rates: Count | None = None
    high_rate_rps: Positive | None = None
    high_seeds: Count | None = None
    high_requests: Count | None = None
    high_grew: bool | None = None
    high_met: Count | None = None
    high_sure: bool | None = None
    high_rates: Count | None = None


class BoundCapacity(Part, frozen=True, kw_only=True):
    """A bound of the SLO, and the share that met it in the trials near the capacity."""

    text: str
    goal: Share
    attainment: Share | None = None


class RateVerdict(Part, frozen=True, kw_only=True):
    """Whether the rate of --at is sustained."""

    rate_rps: Positive
    verdict: Literal["carried", "not carried", "unresolved"]


class HorizonRuns(Part, frozen=True, kw_only=True):
    """The runs of a simulated search: of `horizon_s` seconds after `settle_s` that are not counted; `runs` of them tell
    the capacity. Over less than `lasting_s` it is an upper bound for longer runs. A request that has not begun within
    `waits_s` has missed, where no bound of the SLO is on waiting.
    """

    horizon_s: Positive
    settle_s: Positive = 0.0
    lasting_s: Positive = 0.0
    waits_s: Positive | None = None
    runs: Count = 0


class RunsNear(Part, frozen=True, kw_only=True):
    """What runs near the capacity were like: mean attainment by quarter of the horizon, the worst run, the share of
    runs that `met` the goal by themselves, and that `collapsed`, below half of it."""

    runs: Count
    quarters: list[Share]
    worst: Share
    met: Share
    collapsed: Share


class GoalCapacity(Part, frozen=True, kw_only=True):
    """The capacity at a goal, in requests per second, with its 95% interval; over a `horizon` on a simulator,
    which serves `stable_rps` where more requests come (None: not seen), because something is `full`: prefill, decode,
    their memory, or the batch.

    `knees` are ln(capacity) by seed, whose mean is ln(capacity): jackknife pseudo-values, or what each run tells.
    `why` says what ended the search, `needs` what would decide what is open.
    """

    goal: Share
    state: str = ""
    capacity_rps: Positive | None = None
    low_rps: Positive | None = None
    high_rps: Positive | None = None
    half_width: Positive | None = None
    bracket: RateBracket | None = None
    requests: Count | None = None
    seeds: Count = 0
    per_gpu_rps: Positive | None = None
    binding: Text = None
    bounds: list[BoundCapacity] = field(default_factory=list)
    why: Text = None
    needs: Text = None
    knees: dict[str, Number] = field(default_factory=dict)
    at: RateVerdict | None = None
    horizon: HorizonRuns | None = None
    near: RunsNear | None = None
    stable_rps: Positive | None = None
    full: Text = None

    @property
    def bracket_rps(self) -> tuple[Positive | None, Positive | None]:
        """The rates on both sides of the goal that were tried."""
        return (None, None) if self.bracket is None else (self.bracket.low_rate_rps, self.bracket.high_rate_rps)


class RatePoint(Part, frozen=True, kw_only=True):
    """Attainment over the whole trials at a rate, the range of the seeds, and the mean made to fall with the rate."""

    rate_rps: Positive
    seeds: Count = 0
    requests: Count = 0
    attainment: Share
    least: Share
    most: Share
    overloaded: Count
    falling: Share


class SearchCost(Part, frozen=True, kw_only=True):
    """What the search took, in requests, trials, seconds of traffic and seconds of waiting."""

    requests: Count
    trials: Count
    probes: Count
    system_s: Positive
    trials_s: Positive = 0.0
    wall_s: Positive


class TrialOptions(Part, frozen=True, kw_only=True):
    """Requests of a trial, whether the user set them, its warm-up, and the most requests of the whole search."""

    requests: Count | None = None
    max_requests: Count | None = None
    fixed: bool | None = None
    warmup: Text = None


class CapacityAnswer(Document, frozen=True, kw_only=True):
    """capacity.json. A search that is not over has no `answers`.

    `over_horizon`: trials are runs over a horizon, without a set number of requests. `floor` is the client's error,
    where it was measured once for the whole search.
    """

    schema: int = 1
    kind: Literal["capacity"] = "capacity"
    versions: Facts = field(default_factory=dict)
    spec: Facts = field(default_factory=dict)
    workload: Text = None
    traffic: Workload = Workload()
    backend: Facts = field(default_factory=dict)
    step_times: list[StepTimes] = field(default_factory=list)
    host: Facts = field(default_factory=dict)
    slo: StoredSlo = StoredSlo()
    goals: list[Share] = field(default_factory=list)
    clock: Text = None
    definition: Text = None
    run: TrialOptions = TrialOptions()
    state: Text = None
    exit_code: Count = 0
    gpus: Count | None = None
    confidence: Share = 0.95
    tolerance: Positive | None = None
    one_traffic: bool = False
    answers: list[GoalCapacity] = field(default_factory=list)
    invalid: list[str] = field(default_factory=list)
    warnings: list[Warned] = field(default_factory=list)
    over_horizon: bool = False
    horizon_s: Positive | None = None
    windows: Share | None = None
    curve_of: Text = None
    curve: list[RatePoint] = field(default_factory=list)
    cost: SearchCost | None = None
    output_tokens: dict[str, Number] | UnsetType = UNSET
    floor: Floor | None = None

    @property
    def searched_goals(self) -> list[Share]:
        """The goals that have an answer; before the search is over all of them."""
        return [answer.goal for answer in self.answers] or self.goals

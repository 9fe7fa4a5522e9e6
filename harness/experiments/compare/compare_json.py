"""The answers of `bench compare` as types: a row for each quantity of pairs, each metric of a trend run by run."""

from typing import Literal

from msgspec import UNSET, UnsetType, field

from harness.data.codec import Count, Document, Facts, Number, Part, Share, Text
from harness.data.run_json import Warned

RowVerdict = Literal["improved", "equivalent", "regressed", "inconclusive"]
CompareVerdict = Literal["improved", "equivalent", "regressed", "refused", "invalid", "inconclusive"]
LengthChange = Literal["same", "shorter", "longer"]
MetricState = Literal["longer", "regressed", "improved", "changed", "suspect", "steady", "few", "none"]
TrendState = Literal["longer", "regressed", "improved", "steady", "few", "invalid", "incomparable", "missing"]


class Side(Part, frozen=True, kw_only=True):
    """The base or the head: its name, its runs, and the system that they measured."""

    label: str
    runs: list[str]
    system: Facts


class CachedShares(Part, frozen=True):
    """The share of the prompt tokens that came from a prefix cache on either side."""

    base: Share | None = None
    head: Share | None = None


class ComparedPair(Part, frozen=True, kw_only=True):
    """Two runs of the same requests, or an attempt at them, which has no `point`, `reasons`, `cut_s` and `cached`.

    `order` is AB where the base ran first. Pairs that were made for the comparison have the rest: `why` an attempt
    failed or, `unusual`, was made again, whether both clocks were virtual, and the seconds of either run.
    """

    pair: Count
    point: dict[str, str] | UnsetType = UNSET
    seed: object = None
    schedule_hash: Text = None
    order: Text = None
    base_run: str
    head_run: str
    valid: bool
    reasons: list[str] | UnsetType = UNSET
    repeated: bool = False
    cut_s: Number | UnsetType = UNSET
    cached: CachedShares | UnsetType = UNSET
    why: Text | UnsetType = UNSET
    unusual: bool = False
    exact: bool | UnsetType = UNSET
    base_s: Number | UnsetType = UNSET
    head_s: Number | UnsetType = UNSET

    @property
    def problems(self) -> list[str]:
        """Why it does not count."""
        return self.reasons or ([self.why] if self.why else [])

    def run(self, side: str) -> str:
        """The path of the run of the base or of the head."""
        return self.base_run if side == "base" else self.head_run


class SideValues(Part, frozen=True):
    """The values of all pairs on either side."""

    base: list[Number | None] = field(default_factory=list)
    head: list[Number | None] = field(default_factory=list)

    def on(self, side: str) -> list[Number | None]:
        """Those of the base or the head."""
        return self.base if side == "base" else self.head


class Row(Part, frozen=True, kw_only=True):
    """A quantity at a point of a sweep: both values, the change with its bounds, and the losses pair by pair.

    `low_pct` and `high_pct` are one-sided bounds, `p` decides, `p_mean` is that of the mean alone, `mde_pct` the
    minimum detectable effect; `endless` pairs have a value on one side only. Losses are above 0 where the
    head is worse.
    """

    point: dict[str, str]
    metric: str
    label: str
    unit: str
    better: Literal["higher", "lower"]
    scale: Literal["ratio", "difference"]
    base: Number | None
    head: Number | None
    change_pct: Number | None
    low_pct: Number | None
    high_pct: Number | None
    p: Number | None
    p_mean: Number | None = None
    p_signflip: Number | None
    mde_pct: Number | None
    pairs: Count
    endless: Count = 0
    changes_pct: list[Number | None]
    losses: list[Number | None]
    values: SideValues = SideValues()

    def on(self, side: str) -> Number | None:
        """The value of the base or the head."""
        return self.base if side == "base" else self.head

    @property
    def bounds_pct(self) -> tuple[Number, Number] | None:
        """Both bounds of the change; None where there are none."""
        return None if self.low_pct is None or self.high_pct is None else (self.low_pct, self.high_pct)

    @property
    def is_significant(self) -> bool:
        """Whether the bounds leave out 0."""
        return self.bounds_pct is not None and not self.bounds_pct[0] <= 0 <= self.bounds_pct[1]


class LengthRow(Row, frozen=True, kw_only=True):
    """Output tokens per request, of so many requests."""

    change: LengthChange
    requests: Count


class SteadyRow(Part, frozen=True, kw_only=True):
    """The same loss without what strikes a part of a run: of the median group of requests.

    `losses` and `scatter`, the standard deviation over the groups, are of each pair.
    """

    change_pct: Number
    low_pct: Number
    high_pct: Number
    p: Number
    losses: list[Number]
    scatter: list[Number]


class GateRow(Row, frozen=True, kw_only=True):
    """A row that decides, with the limits of its gate; output tokens do where the answers of the head are shorter."""

    steady: SteadyRow | None = None

    change: LengthChange | UnsetType = UNSET
    requests: Count | UnsetType = UNSET
    min_effect_pct: Number
    must_detect_pct: Number
    pairs_needed: Count | None
    verdict: RowVerdict


class FirstDifference(Part, frozen=True, kw_only=True):
    """The first request or step that differs, the first of its columns that does, and of a list the first item."""

    request_id: int | UnsetType = UNSET
    scheduled_s: Number | UnsetType | None = UNSET
    step: int | UnsetType = UNSET
    start_s: Number | UnsetType | None = UNSET
    column: str
    item: Count | UnsetType = UNSET
    base: object
    head: object


class Parting(Part, frozen=True, kw_only=True):
    """Whether simulated runs are equal to the last bit, and where those of a pair part; counts are of all pairs."""

    pair: Count = 1
    identical: bool
    requests: Count
    requests_differ: Count
    first_request: FirstDifference | None
    steps: Count | None
    first_step: FirstDifference | None


class Difference(Part, frozen=True):
    """A field in which base and head differ."""

    field: str
    base: str
    head: str


class Refusal(Difference, frozen=True):
    """A difference that must not be, as a sentence."""

    message: str


class CompareAnswer(Document, frozen=True, kw_only=True):
    """compare.json. `interim` are the numbers of pairs after which a verdict was requested.

    Where runs were not made `in_turns`, differences of speed decide nothing.
    """

    schema: int = 1
    kind: Literal["compare"] = "compare"
    versions: Facts = field(default_factory=dict)
    verdict: CompareVerdict
    mode: Literal["exact", "paired"]
    alpha: Share
    interim: list[Count] = field(name="looks")
    in_turns: bool = True
    base: Side
    head: Side
    workload: Facts | None
    slo: Text
    goal: Share
    rescored: bool = False
    warmup: Text = None
    pairs: list[ComparedPair]
    gates: list[GateRow]
    shown: list[Row]
    output_lengths: list[LengthRow] = field(default_factory=list)
    exact: Parting | None
    differences: list[Difference]
    refused: list[Refusal]
    allowed_differences: list[Refusal]
    notes: list[str]
    warnings: list[Warned] = field(default_factory=list)
    exit_code: Count = 0
    text: str = ""

    @property
    def rows(self) -> list[Row]:
        """Every row: those of the gates, then those that decide nothing."""
        return [*self.gates, *self.shown]

    @property
    def same_requests(self) -> bool:
        """Whether both sides of every pair sent the same requests; else --allow-different let others pass."""
        return all(refusal.field != "schedule" for refusal in (*self.refused, *self.allowed_differences))

    def on(self, side: str) -> Side:
        return self.base if side == "base" else self.head


class FactChange(Part, frozen=True, kw_only=True):
    """An option, a version or a machine that is another one than before."""

    what: str
    before: str
    after: str


class ChangedRun(Part, frozen=True, kw_only=True):
    """The run from which on facts differ."""

    night: str
    changed: list[FactChange]


class InvalidRun(Part, frozen=True, kw_only=True):
    """A run without values, and why it has none."""

    night: str
    path: str
    why: str


class AcceptedRun(Part, frozen=True, kw_only=True):
    """The run from which on a new level counts, accepted at `date`."""

    night: str
    run: str
    date: str
    reason: Text


class Step(Part, frozen=True, kw_only=True):
    """A change that lasts: from the run `first` on, called at `called`; `ended` where the level went back.

    Of a drift `first` is where half of it was reached. `before` is the reference, `after` the median of the last runs
    of the change; None where they were overloaded. `open` until the level goes back, is accepted or, of a gain, has
    lasted and is the reference.
    """

    side: Literal["worse", "better"]
    first: str
    commit: Text
    night_before: str
    commit_before: Text
    called: str
    ended: Text
    open: bool
    before: Number | None
    after: Number | None
    loss_pct: Number | None
    changed: list[FactChange]


class RunValue(Part, frozen=True, kw_only=True):
    """The value of one run with its 95% interval; the reference, and the change of a week's median it allowed."""

    night: str
    commit: Text
    path: str
    value: Number | None
    low: Number | None = None
    high: Number | None = None
    overloaded: bool
    state: Literal["gap", "few", "steady", "suspect", "worse", "better"]
    reference: Number | None
    threshold_pct: Number | None


class TrendMetric(Part, frozen=True, kw_only=True):
    """One metric over the runs of a series; only `judged` ones decide. `needed` more runs give a level.

    `reference` is the accepted level, or from the run `gained` on that of a gain which has lasted. `level_pct` is the
    median of the last week, or since the change, beside it with its 95% interval.
    """

    name: str
    unit: str
    better: Literal["higher", "lower"]
    judged: bool
    state: MetricState
    needed: Count
    last: Number | None
    reference: Number | None
    gained: Text = None
    change_pct: Number | None
    sd_pct: Number | None
    noisy: bool
    level_pct: Number | None = None
    level_low_pct: Number | None = None
    level_high_pct: Number | None = None
    steps: list[Step]
    runs: list[RunValue] = field(name="nights")

    @property
    def has_regressed(self) -> bool:
        """Whether it is judged, and worse than the reference."""
        return self.judged and self.state == "regressed"


class TrendSeries(Part, frozen=True, kw_only=True):
    """Runs of one workload and system. Values are not compared across `breaks`; `versions` only mark them."""

    name: str
    exact: bool
    first: str
    last: str
    runs: Count = field(name="nights")
    valid: Count
    missing: bool
    metrics: list[TrendMetric]
    gaps: list[InvalidRun]
    breaks: list[ChangedRun]
    versions: list[ChangedRun] = field(default_factory=list)
    accepted: list[AcceptedRun] = field(default_factory=list)

    @property
    def judged(self) -> list[TrendMetric]:
        """The metrics that decide."""
        return [metric for metric in self.metrics if metric.judged]


class TrendAnswer(Document, frozen=True, kw_only=True):
    """What `bench compare --trend` writes."""

    schema: int = 1
    kind: Literal["trend"] = "trend"
    versions: Facts = field(default_factory=dict)
    exit_code: Count
    folder: str
    state: TrendState
    series: list[TrendSeries]

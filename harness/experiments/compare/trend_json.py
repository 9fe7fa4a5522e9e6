"""The answer of `bench compare --trend` as a type: each metric of each series, run by run, and the steps in it."""

from typing import Literal

from msgspec import field

from harness.data.codec import Count, Document, Facts, Number, Part, Text

MetricState = Literal["longer", "regressed", "improved", "changed", "suspect", "steady", "few", "none"]
TrendState = Literal["longer", "regressed", "improved", "steady", "few", "invalid", "incomparable", "missing"]


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

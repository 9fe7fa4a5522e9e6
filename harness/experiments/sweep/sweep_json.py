"""sweep.json as a type: the plan of a sweep and, point by point, the results of its runs."""

from typing import Literal

from msgspec import UNSET, UnsetType, field

from harness.data.codec import Count, Document, Facts, Number, Part, Percentile, Share, Text
from harness.data.run_json import Resolution, ScoredBound, Warned, Workload
from harness.stats.seeds import Spread


class SweepAxis(Part, frozen=True, kw_only=True):
    """A varied option."""

    name: str
    values: list[object]


class SweptRun(Part, frozen=True, kw_only=True):
    """A run of a point, scored under the SLO of the point."""

    seed: object
    valid: bool
    overloaded: bool
    reasons: list[str] = field(default_factory=list)
    failed_for: Text = None
    warnings: list[Warned] = field(default_factory=list)
    gpus: object | UnsetType = UNSET
    requests: Count
    warmup: Facts = field(default_factory=dict)
    schedule_sha256: Text = None
    slo: Text = None
    attainment: Share | None
    bounds: list[ScoredBound] = field(default_factory=list)
    resolution: Resolution | None = None
    goodput_rps: Number | None = None
    throughput_rps: Number | None = None
    output_tps: Number | None = None
    failed: Number | None = None
    metrics: dict[str, dict[str, Number | None]] = field(default_factory=dict)
    folder: str


class SweptBound(Part, frozen=True, kw_only=True):
    """A bound over the seeds: the share of requests that met it, or the value of its percentile.

    `limit_s` is None where each request brings its own.
    """

    text: str
    metric: str
    limit_s: Number | None
    tag: Text = None
    percentile: Percentile | None = None
    attainment: Spread | None = None
    value_s: Spread | None = None
    passed: bool | None = None


class SweepPoint(Part, frozen=True, kw_only=True):
    """All seeds at `values` of the axes. Only valid runs count; without `metrics` where a run was overloaded."""

    values: Facts
    folder: str
    slo: Text = None
    requests: Count
    valid: Count
    invalid: Count
    overloaded: Count
    attainment: Spread | None
    bounds: list[SweptBound]
    goodput_rps: Spread | None
    throughput_rps: Spread | None
    output_tps: Spread | None
    failed: Spread | None
    metrics: dict[str, dict[str, Spread | None]]
    runs: list[SweptRun]

    @property
    def mean_attainment(self) -> Number | None:
        """The share of requests that met the SLO, None where every bound is on a percentile."""
        return None if self.attainment is None else self.attainment.mean

    @property
    def saturated(self) -> bool:
        """Whether the queue grew all through every run: attainment then depends on the length of the runs alone."""
        return 0 < self.valid == self.overloaded


class Crossing(Part, frozen=True, kw_only=True):
    """Where attainment crosses a goal along an axis, `where` the others stand; `why` not, and on which `side` it is.

    `low` and `high` are the 95% interval of `at`, None where the seeds do not give one.
    """

    along: str
    where: Facts
    goal: Share
    at: Number | None
    low: Number | None = None
    high: Number | None = None
    between: tuple[Number, Number] | None
    side: Literal["above", "below"] | None
    why: Text


class SystemRatio(Part, frozen=True, kw_only=True):
    """The rate that `head` sustains at a goal over that of `base`, with its 95% interval, paired by seed."""

    goal: Share
    base: Facts
    head: Facts
    ratio: Number
    low: Number | None
    high: Number | None


class SystemDifference(Part, frozen=True, kw_only=True):
    """Attainment of `head` less that of `base`, the first system, with its 95% interval, paired by seed.

    `at` is the rate and the SLO, of the axes that there are.
    """

    at: Facts
    base: Facts
    head: Facts
    seeds: Count
    difference: Number
    low: Number | None
    high: Number | None


class RunCount(Part, frozen=True):
    """Runs that are planned, and done."""

    planned: Count
    done: Count


class SweepAnswer(Document, frozen=True, kw_only=True):
    """sweep.json."""

    schema: int = 1
    kind: Literal["sweep"] = "sweep"
    versions: Facts = field(default_factory=dict)
    spec: Facts
    traffic: Workload = Workload()
    backend: Facts | UnsetType = UNSET
    clock: Text
    fixed: bool = False
    axes: list[SweepAxis]
    seeds: list[int]
    goals: list[Share]
    fail_under: Share | None
    state: str
    exit_code: Count
    runs: RunCount
    points: list[SweepPoint]
    crossings: list[Crossing]
    ratios: list[SystemRatio] = field(default_factory=list)
    differences: list[SystemDifference] = field(default_factory=list)
    error: Text = None
    warnings: list[str]

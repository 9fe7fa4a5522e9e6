"""slo.json as a type: stored runs scored again, and attainment over the rate where they have several."""

from typing import Literal

from msgspec import field

from harness.data.codec import Count, Document, Facts, Number, Part, Percentile, Positive, Range, Share, Text
from harness.data.run_json import Resolution
from harness.stats.seeds import Spread


class Latency(Part, frozen=True):
    """A metric over the requests that ended well, in seconds."""

    n: Count
    mean: Number | None
    p50: Number | None
    p90: Number | None
    p99: Number | None


class ConditionScore(Part, frozen=True):
    """A condition: the share of requests that met it, or the value of its percentile; of a rule no bound."""

    text: str
    metric: Text
    limit_s: Number | None
    tag: Text
    percentile: Percentile | None
    requests: Count
    attainment: Share | None
    value_s: Number | None
    passed: bool | None


class TaskScore(Part, frozen=True):
    """Sessions of which every request met the SLO; the last rate also counts requests outside of sessions."""

    tasks: Count
    met: Count
    attainment: Share
    goodput_tasks_rps: Number | None
    goodput_users_rps: Number | None


class ScaleScore(Part, frozen=True):
    """Attainment at `factors` of every bound; `crossings` are the least factors that reach each goal.

    `holds_from` has the factor from which on each bound on a percentile is met.
    """

    factors: list[Number]
    attainment: list[Share | None]
    bounds: dict[str, list[Share | None]]
    goodput_rps: list[Number | None]
    crossings: list[Number | None]
    holds_from: dict[str, Number | None]


class GoodTokens(Part, frozen=True):
    """Tokens that came in time, and service goodput by its weights of a prompt and an output token."""

    good_output_tokens: Count
    good_prompt_tokens: Count
    due_output_tokens: Count
    share: Share | None
    token_goodput_tps: Number | None
    service: dict[str, Number | None]


class TokenScore(GoodTokens, frozen=True):
    """The tokens of a run, and of each of its classes."""

    whole_answers_tps: Number | None
    classes: dict[str, GoodTokens]


class SloScore(Part, frozen=True, kw_only=True):
    """A run under one SLO; `met` and `attainment` are None where every bound is on a percentile.

    `joint` and `separate`: whether each goal is met by requests that meet all bounds, or by each bound alone.
    """

    text: str
    goal: Share
    attainment: Share | None
    met: Count | None
    goodput_rps: Number | None
    goodput_rps_per_gpu: Number | None
    joint: list[bool]
    separate: list[bool]
    binding: Text
    bounds: list[ConditionScore]
    classes: dict[str, Share | None]
    resolution: Resolution | None
    tasks: TaskScore | None
    scale: ScaleScore | None
    tokens: TokenScore | None

    def reached(self, conditions: Literal["joint", "separate"]) -> list[bool]:
        """Whether each goal is met."""
        return self.joint if conditions == "joint" else self.separate


class Percentiles(Part, frozen=True):
    """A latency in seconds, of the requests that ended well."""

    p50: Number | None
    p99: Number | None


class GroupScore(Part, frozen=True, kw_only=True):
    """A group of requests under each of the SLOs."""

    name: str
    requests: Count
    failed: Count
    attainment: list[Share | None]
    goodput_rps: list[Number | None]
    bounds: list[dict[str, Share | None]]
    latencies: dict[str, Percentiles]


class Groups(Part, frozen=True):
    """The requests of a run, grouped by one of their properties."""

    by: str
    slos: list[str]
    groups: list[GroupScore]


class ProfileColumn(Part, frozen=True):
    """What a tool would have printed: latencies in seconds, then the score; `more` has what only it reports."""

    name: str
    tool: str
    notes: list[str]
    values: dict[str, Number | None]
    more: dict[str, Number | bool | None] = field(name="said")


class Profiles(Part, frozen=True):
    """Definitions of other tools side by side; `apart` is the largest value over the smallest, minus 1."""

    limits: dict[str, Number]
    left_out: list[str]
    columns: list[ProfileColumn]
    apart: dict[str, Number | None]


class ScoredRun(Part, frozen=True, kw_only=True):
    """A run; requests before the cut of the warm-up are `left_out`, the others `measured`."""

    name: str
    path: str
    source: Facts | None
    workload: Text
    rate_rps: Number | None
    spec: Facts
    seed: object
    state: Text
    started: Text
    gpus: object
    valid: bool | None
    reasons: list[str]
    warmup: Facts | None
    missing: list[str]
    aggregates: Facts | None
    queue_grew: bool
    overloaded: bool
    goals: list[Share]
    requests: Count
    measured: Count
    left_out: Count
    failed: Count
    window_s: Number | None
    scheduled_rps: Number | None
    throughput_rps: Number | None
    output_tps: Number | None
    latencies: dict[str, Latency]
    slos: list[SloScore]
    groups: list[Groups]
    profiles: Profiles | None

    @property
    def sent_rps(self) -> Number | None:
        """The rate of the traffic, else that of the schedule."""
        return self.rate_rps or self.scheduled_rps

    @property
    def tool(self) -> str:
        """The tool whose file it is of, empty where it is ours."""
        return str((self.source or {}).get("tool") or "")

    @property
    def backend(self) -> str:
        """The backend as it was specified."""
        return str(self.spec.get("backend") or "")


class CurvePoint(Part, frozen=True, kw_only=True):
    """The runs at one rate; `scale` is their mean attainment at `factors` of every bound.

    `missed` counts, for each bound on a percentile, the runs that miss it.
    """

    rate_rps: Positive
    runs: Count
    requests: Count
    overloaded: Count
    invalid: Count
    attainment: Spread | None
    goodput_rps: Spread | None
    bounds: dict[str, Spread | None]
    factors: list[Number]
    scale: list[Share]
    missed: dict[str, Count] = field(default_factory=dict)


class CurveCrossing(Part, frozen=True):
    """Where the mean attainment crosses a goal; None where it does not between the rates at hand."""

    goal: Share
    at_rps: Number | None
    between: Range | None
    side: Text


class SloCurve(Part, frozen=True, kw_only=True):
    """Attainment of one system and SLO over the rate; `label` has the options in which it differs from the others."""

    options: Facts
    slo: str
    points: list[CurvePoint]
    crossings: list[CurveCrossing]
    label: str = ""


class SloAnswer(Document, frozen=True, kw_only=True):
    """slo.json."""

    schema: int = 1
    kind: Literal["slo"] = "slo"
    versions: Facts = field(default_factory=dict)
    conditions: Literal["joint", "separate"]
    fail_under: Share | None
    runs: list[ScoredRun]
    curves: list[SloCurve]
    exit_code: Count

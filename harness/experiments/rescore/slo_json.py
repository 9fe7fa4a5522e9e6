"""slo.json as a type: stored runs scored again, and several of them together, as the points of a sweep."""

from typing import Literal

from msgspec import field

from harness.data.codec import Count, Document, Facts, Number, Part, Share, Text
from harness.data.run_json import Described, Resolution, ScoredBound
from harness.experiments.sweep.sweep_json import SweepAnswer


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
    bounds: list[ScoredBound]
    classes: dict[str, Share | None]
    resolution: Resolution | None
    tasks: TaskScore | None
    scale: ScaleScore | None
    tokens: TokenScore | None

    def reached(self, conditions: Literal["joint", "separate"]) -> list[bool]:
        """Whether each goal is met."""
        return self.joint if conditions == "joint" else self.separate


class GroupScore(Part, frozen=True, kw_only=True):
    """A group of requests under each of the SLOs."""

    name: str
    requests: Count
    failed: Count
    attainment: list[Share | None]
    goodput_rps: list[Number | None]
    bounds: list[dict[str, Share | None]]
    latencies: dict[str, Described]


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
    latencies: dict[str, Described]
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


class SloAnswer(Document, frozen=True, kw_only=True):
    """slo.json. `curve` has several runs as the points of a sweep, also over the SLO where there are several, and
    `scaled` over the scale of the SLO too."""

    schema: int = 1
    kind: Literal["slo"] = "slo"
    versions: Facts = field(default_factory=dict)
    conditions: Literal["joint", "separate"]
    fail_under: Share | None
    runs: list[ScoredRun]
    curve: SweepAnswer | None = None
    scaled: SweepAnswer | None = None
    exit_code: Count

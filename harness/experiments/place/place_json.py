"""place.json as a type: what was searched and, once the search is over, what came of it."""

from typing import Literal

from msgspec import UNSET, UnsetType, field

from harness.data.codec import Count, Document, Facts, Number, Part, Positive, Share, Text
from harness.data.run_json import StepTimes, Warned


class PlaceGroup(Part, frozen=True, kw_only=True):
    """Equal replicas: GPUs that share one stage, and pipeline stages of each."""

    role: Literal["mixed", "prefill", "decode"]
    count: Count
    hardware: str
    tp: Count
    pp: Count
    dp: Count = 1
    ep: Count = 1


class PlaceSystem(Part, frozen=True, kw_only=True):
    """Groups of replicas that serve together, or one side alone."""

    kind: Literal["colocated", "pair", "prefill", "decode"]
    name: str
    hardware: str
    gpus: Count
    groups: list[PlaceGroup] = field(default_factory=list)


class PlacedUnit(PlaceSystem, frozen=True, kw_only=True):
    """A system with its rate, the 95% interval of the rate (None: no interval), and what it is valued at.

    `at_least`: no rate was shown to be too high; `binding`: what is missed above the rate. At a requested rate,
    `attainment` with its interval is the share of the condition `binding`, and `meets` whether it surely reaches the
    goal (None: not decided); `with_error` and `holds` are the same with latencies longer by the known error of the step
    times. `load` is the rate as a share of what it serves at most by its step times and KV memory.
    """

    algorithm: str
    rate_rps: Positive
    rate_per_gpu_rps: Positive
    low_per_gpu_rps: Number | None = None
    high_per_gpu_rps: Number | None = None
    by_seed: dict[str, Number] = field(default_factory=dict)
    value: Positive
    binding: Text = None
    at_least: bool = False
    attainment: Share | None = None
    attainment_low: Share | None = None
    attainment_high: Share | None = None
    meets: bool | None = None
    with_error: Share | None = None
    holds: bool | None = None
    load: Positive | None = None


class BestUnit(PlacedUnit, frozen=True, kw_only=True):
    """The recommendation, or an alternative: what it takes (GPUs, money per hour or watts), money per million output
    and input tokens, the error of its step times as shares of TTFT and TPOT (None: not known), the run that confirms
    it, and what the seeds do not separate from it."""

    taken: Positive | None = None
    per_million_tokens: Positive | None = None
    per_million_input_tokens: Positive | None = None
    ttft_error: Positive | None = None
    tpot_error: Positive | None = None
    command: Text = None
    not_apart: list[str] = field(default_factory=list)


class PlaceObjective(Part, frozen=True):
    """What is maximized: gpu, cost or power, with the table of prices or watts."""

    name: str
    unit: str
    table: Facts = field(default_factory=dict)


class PlaceSkipped(Part, frozen=True):
    """A parallelism that was left out, and why."""

    hardware: str
    name: str
    reason: str


class PlaceCost(Part, frozen=True, kw_only=True):
    """What the search took; `left` are deployments that take less than the best, may meet, and were not run."""

    candidates: Count
    left: Count = 0
    requests: Count
    wall_s: Positive


class PlaceQuery(Part, frozen=True, kw_only=True):
    """The options of a search; those of the runs stand beside them."""

    workload: Text = None
    trace: Text = None
    model: Text = None
    nodes: Count | None = None
    gpus_per_node: Count | None = None
    hardware: list[str] = field(default_factory=list)
    algorithms: list[str] = field(default_factory=list)
    slo: Text = None
    goal: Share | None = None
    conditions: Text = None


class PlaceAnswer(Document, frozen=True, kw_only=True):
    """place.json. Without `cost` the search is not over; `searched` is what it can resume from.

    `best` holds the recommendation and its alternatives. `step_times` says how far the latency model was from
    measurements on these GPUs.
    """

    schema: int = 1
    kind: Literal["place"] = "place"
    versions: Facts = field(default_factory=dict)
    query: PlaceQuery = field(default=PlaceQuery(), name="asked")
    state: Text = None
    exit_code: Count = 0
    objective: PlaceObjective = PlaceObjective("gpu", "")
    target_rps: Positive | None = None
    step_times: list[StepTimes] = field(default_factory=list)
    best: list[BestUnit] = field(default_factory=list)
    candidates: list[PlacedUnit] = field(default_factory=list)
    skipped: list[PlaceSkipped] = field(default_factory=list)
    cost: PlaceCost | None = None
    warnings: list[Warned] = field(default_factory=list)
    searched: Facts | UnsetType = UNSET

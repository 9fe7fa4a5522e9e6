"""place.json as a type: what was searched and, once the search is over, what came of it."""

from typing import Literal

from msgspec import UNSET, UnsetType, field

from harness.data.codec import Count, Document, Facts, Number, Part, Positive, Share, Text
from harness.data.run_json import Warned


class PlaceShape(Part, frozen=True):
    """GPUs that share one stage, and pipeline stages of one replica."""

    tp: Count
    pp: Count


class PlaceSystem(Part, frozen=True, kw_only=True):
    """GPUs of one kind, with the shape of the replicas of each role."""

    kind: Text | UnsetType = UNSET
    name: str
    hardware: str
    gpus: Count
    cross_nodes: Count | UnsetType = UNSET
    prefill: PlaceShape | UnsetType = UNSET
    decode: PlaceShape | UnsetType = UNSET
    mixed: PlaceShape | UnsetType = UNSET


class PlaceMember(PlaceSystem, frozen=True, kw_only=True):
    """Replicas that belong to a unit."""

    count: Count


class PlacedUnit(PlaceSystem, frozen=True, kw_only=True):
    """Replicas that belong together, their rate with its 95% interval (None: no interval), and what it is valued at.

    `at_least`: no rate was shown to be too high; `binding`: what is missed above the rate.
    """

    algorithm: str
    rate_rps: Positive
    rate_per_gpu_rps: Positive
    mean_per_gpu_rps: Positive
    low_per_gpu_rps: Number | None
    high_per_gpu_rps: Number | None
    by_seed: dict[str, Number] = field(default_factory=dict)
    value: Positive
    binding: Text = None
    at_least: bool = False


class PlaceCandidate(PlacedUnit, frozen=True, kw_only=True):
    """A system that was searched."""

    kind: Literal["colocated", "pair", "prefill", "decode"]


class Near(Part, frozen=True, kw_only=True):
    """A unit beside the best of its algorithm."""

    name: str
    hardware: str
    gpus: Count
    rate_per_gpu_rps: Number


class Replicated(Part, frozen=True, kw_only=True):
    """Copies of a unit that sustain the rate of --rate."""

    members: list[PlaceMember]
    gpus: Count
    rate_rps: Number
    target_rps: Number
    fits: bool


class BestUnit(PlacedUnit, frozen=True, kw_only=True):
    """The best of an algorithm, what equals it, and what the seeds do not separate from it."""

    members: list[PlaceMember] = field(default_factory=list)
    replicated: Replicated | UnsetType = UNSET
    ties: list[Near] = field(default_factory=list)
    not_apart: list[Near] = field(default_factory=list)
    times_the_worst: Number | None = None


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
    """What the search took; `left` candidates were not searched."""

    candidates: Count
    left: Count
    trials: Count
    requests: Count
    wall_s: Positive


class PlaceQuery(Part, frozen=True, kw_only=True):
    """The options of a search; those of the runs stand beside them."""

    workload: Text = None
    requests: Count | None = None
    model: Text = None
    nodes: Count | None = None
    gpus_per_node: Count | None = None
    hardware: list[str] = field(default_factory=list)
    algorithms: list[str] = field(default_factory=list)
    slo: Text = None
    goal: Share | None = None
    conditions: Text = None
    seeds: list[Count] = field(default_factory=list)
    max_rate: Positive | None = None
    width: Positive | None = None
    planner: Text = None


class PlaceAnswer(Document, frozen=True, kw_only=True):
    """place.json. Without `cost` the search is not over; `searched` is what it can resume from."""

    schema: int = 1
    kind: Literal["place"] = "place"
    versions: Facts = field(default_factory=dict)
    query: PlaceQuery = field(default=PlaceQuery(), name="asked")
    state: Text = None
    exit_code: Count = 0
    objective: PlaceObjective = PlaceObjective("gpu", "")
    target_rps: Positive | None = None
    best: list[BestUnit] = field(default_factory=list)
    candidates: list[PlaceCandidate] = field(default_factory=list)
    skipped: list[PlaceSkipped] = field(default_factory=list)
    cost: PlaceCost | None = None
    warnings: list[Warned] = field(default_factory=list)
    searched: Facts | UnsetType = UNSET

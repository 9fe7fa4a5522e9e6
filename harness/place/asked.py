"""What a placement is asked: the cluster, the algorithms, the objective, and how each candidate is searched."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness import catalog
from harness.api import Slo
from harness.capacity.aim import LONGEST
from harness.capacity.conditions import Condition, Definition, conditions
from harness.config import RunSpec
from harness.errors import UsageError, no_such
from harness.measure import metrics, placed
from harness.place.estimate import MOST_SEEDS
from harness.place.space import ALGORITHMS, Algorithm, Cluster
from harness.place.systems import Kind, Shape, System
from harness.place.task import spec_of
from harness.place.worth import Worth
from harness.plan import make_backend
from harness.registry import make
from harness.spec import parse

REQUESTS = 300
"""Requests of a trial, as in DistServe's search."""

SMALL = 4 * 2 * REQUESTS
"""GPUs times algorithms times requests of a search that is over in a second or two."""

COMPAT = "distserve_sim"
ENGINES = {"colocated": "abc:vllm"}
"""Which released constants DistServe's planner takes: vLLM's for colocated replicas, its own for the others."""

UTILISATION = 0.95
"""Share of the memory that DistServe's planner gives to weights and KV."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A placement to search. `spec` is the traffic and what all systems share; rates are per GPU.

    `released`: as the planner that DistServe released, with its scheduler, its constants and its arrivals.
    """

    spec: RunSpec
    slo: Slo
    cluster: Cluster
    hardware: tuple[str, ...]
    algorithms: tuple[Algorithm, ...]
    definition: Definition
    seeds: tuple[int, ...]
    top_rps: float
    width_rps: float
    worth: Worth
    target_rps: float | None
    released: bool
    fixed: bool = False
    """Whether the user named the requests of a trial."""

    @property
    def most_requests(self) -> int | None:
        """Requests that a trial may have; None for the planner of DistServe, which asks no trial to be long."""
        requests = self.spec.requests or REQUESTS
        return None if self.released else requests if self.fixed else LONGEST * requests

    @property
    def is_small(self) -> bool:
        """Whether other processes would take longer to start than to help: they take as long as some 100 trials."""
        requests = self.spec.requests or REQUESTS
        systems = self.cluster.gpus * len(self.algorithms) * len(self.hardware)
        return systems * len(self.seeds) * requests <= SMALL

    def of(self, system: System) -> RunSpec:
        """The spec that makes a system."""
        latency = self.spec.latency
        if self.released and latency is None:
            latency = ENGINES.get(system.kind, "abc:distserve")
        policy = self.spec.policy
        if policy is None and system.kind == "colocated" and not self.released:
            policy = "vllm-v0"
        return replace(spec_of(self.spec, system, latency), policy=policy if system.kind == "colocated" else None)

    def refused(self, kind: Kind, hardware: str, shape: Shape) -> str | None:
        """Why a replica of that shape cannot run; None where it can."""
        system = System(kind, hardware, shape, shape if kind == "pair" else None)
        try:
            if self.released:  # there memory is checked nowhere else
                model = self.spec.model
                assert model is not None
                catalog.kv_capacity_blocks(model, hardware, tp=shape.tp, pp=shape.pp, utilisation=UTILISATION)
            make_backend(self.of(system))
        except UsageError as error:
            return str(error).rstrip(".")
        return None

    def bounds(self, kind: Kind) -> Slo:
        """The SLO of a trial: of one side alone, the bounds that it decides. Raises UsageError."""
        if kind in ("colocated", "pair"):
            return self.slo
        kept = tuple(bound for bound in self.slo.bounds if metrics()[bound.metric].decided_by == kind)
        foreign = [bound.metric for bound in self.slo.bounds if metrics()[bound.metric].decided_by is None]
        if foreign or not kept:
            mine = [metric.name for metric in placed() if metric.decided_by == kind]
            what = f"'{foreign[0]}' belongs to both sides" if foreign else f"no bound is on {' or '.join(mine)}"
            raise UsageError(
                f"--algorithm high searches both sides apart, and {what}; bound ttft and tpot, or take low."
            )
        return replace(self.slo, bounds=kept)

    def wanted(self, kind: Kind) -> tuple[Condition, ...]:
        """The conditions of a trial."""
        slo = self.bounds(kind)
        return conditions(slo, slo.goal, self.definition)


def seeds_of(count: int, first: int) -> tuple[int, ...]:
    """So many seeds from the first on. Raises UsageError for too many."""
    if count > MOST_SEEDS:
        raise UsageError(f"--seeds must be at most {MOST_SEEDS}, got {count}.")
    return tuple(range(first, first + count))


def algorithms_of(text: str) -> tuple[Algorithm, ...]:
    """`all`, or names with commas. Raises UsageError with the nearest known name."""
    names = [part.strip().lower() for part in text.split(",")]
    for name in names:
        if name not in (*ALGORITHMS, "all"):
            raise no_such("placement algorithm", name, (*ALGORITHMS, "all"))
    return tuple(known for known in ALGORITHMS if known in names or "all" in names)


def hardware_of(text: str) -> tuple[str, ...]:
    """Names of kinds of GPU with commas, each once."""
    return tuple(dict.fromkeys(part.strip().lower() for part in text.split(",") if part.strip()))


def is_released(spec: RunSpec, hardware: Sequence[str]) -> bool:
    """Whether to search as DistServe's planner: asked for by compat, or where nothing says otherwise and it can."""
    backend = parse(spec.backend)
    if backend.args.get("compat") == COMPAT:
        return True
    given = set(spec.parts()) - {"model", "hardware"}
    if backend.name != "sim" or backend.args or backend.first or given:
        return False
    return all(_has_constants(spec.model or "opt-13b", name) for name in hardware)


def _has_constants(model: str, hardware: str) -> bool:
    """Whether any of the released constants is there; which tp they are for is told when a system is refused."""
    for tp in (1, 2):
        try:
            make("latency", "abc:vllm", model=model, hardware=hardware, tp=tp)
        except UsageError:
            continue
        return True
    return False


def with_backend(spec: RunSpec, *, released: bool) -> RunSpec:
    """The spec with what all trials share: no table of steps, and the compatibility mode where it is asked for."""
    backend = parse(spec.backend)
    args = {"log_steps": "false", **backend.args} | ({"compat": COMPAT} if released else {})
    return replace(spec, backend=str(replace(backend, args=args)))

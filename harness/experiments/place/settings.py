"""The options of a placement: the cluster, the algorithms, the objective, and how each candidate is searched.

Also how they are read from a command line.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from harness import catalog, configs, registry
from harness import options as configuration
from harness.api import LatencyModel, ReusableSimulator, Simulator, Slo
from harness.catalog import Shape
from harness.data.run_json import StepTimes
from harness.data.schedule import Schedule
from harness.errors import UsageError, no_such
from harness.experiments.capacity.conditions import Definition, conditions, definition_of
from harness.experiments.capacity.horizon import SHORTEST_S, usual_s
from harness.experiments.place.systems import (
    ROLES_OF,
    Algorithm,
    Cluster,
    Deployment,
    Group,
    Objective,
    load_objective,
)
from harness.experiments.trial import Filling, filling, own_rate, without_steps
from harness.metrics.objective import parse_slo
from harness.options import Given, RunSpec, with_parts
from harness.runner.plan import load_workload, make_backend
from harness.spec import parse
from harness.validity.step_times import nearest

BUDGET_S = 120.0
WORKLOAD = "distserve-fig1"
"""The example of DistServe: 512 tokens in and 64 out."""


@dataclass(frozen=True, slots=True)
class PlaceOptions:
    """A placement to search. `spec` is the traffic and what all systems share, `rate_rps` the requested rate."""

    spec: RunSpec
    slo: Slo
    cluster: Cluster
    hardware: tuple[str, ...]
    algorithms: tuple[Algorithm, ...]
    definition: Definition
    objective: Objective
    rate_rps: float | None
    own_rps: float
    horizon_s: float = SHORTEST_S
    """How long the runs of every deployment last."""
    filling: Filling = field(default_factory=Filling)
    recorded_requests: int | None = None
    """Of a recording, which is one run."""
    max_requests: int | None = None
    """Of the search of one deployment."""
    budget_s: float = math.inf
    """What is not begun by then is not run."""

    def of(self, deployment: Deployment) -> RunSpec:
        """The spec that makes a deployment."""
        spec = self.spec if deployment.kind == "colocated" else replace(self.spec, policy=None)
        link = (self.link or deployment.link(self.cluster)) if deployment.kind == "pair" else None
        return with_parts(spec, {"link": link, **deployment.parts})

    @property
    def link(self) -> str | None:
        """The link from prefill to decode replicas where it is given."""
        return parse(self.spec.backend).args.get("link")

    def kv_tokens(self, group: Group) -> int:
        """The tokens of KV that a replica holds. Raises UsageError where it cannot run."""
        backend = cast("Simulator", make_backend(self.of(Deployment((group,)))))
        return int(str(backend.describe()["kv_tokens"]))

    @property
    def latency(self) -> str:
        """The spec of the model of step times."""
        return self.spec.latency or parse(self.spec.backend).args.get("latency") or "operators"

    def step_times(self, hardware: str, shape: Shape) -> LatencyModel:
        """That model for a replica."""
        parallel = {"tp": shape.tp, "pp": shape.pp, "dp": shape.dp, "ep": shape.ep}
        latency_model = registry.make("latency", self.latency, model=self.spec.model, hardware=hardware, **parallel)
        return cast("LatencyModel", latency_model)

    def compared(self, gpu: str) -> StepTimes:
        """How far step times on this GPU were from the nearest measurements."""
        m, on = catalog.model(self.spec.model or ""), catalog.hardware(gpu)
        return nearest(self.latency, gpu, m, on, policy=self.spec.policy or "")

    def errors(self, deployment: Deployment) -> Mapping[str, float]:
        """How far step times were from measurements: TTFT where prompts are computed, TPOT where tokens are."""
        first, last = (self.compared(deployment.groups[place].hardware) for place in (0, -1))
        errors = {"ttft": first.ttft_error, "tpot": last.tpot_error}
        return {metric: error for metric, error in errors.items() if error is not None}

    def slower(self, slo: Slo, deployment: Deployment) -> Slo | None:
        """The bounds that latencies without the error meet just where those longer by it meet `slo`."""
        if not (errors := self.errors(deployment)):
            return None
        tpot = errors.get("tpot", 0.0)  # of most answers the time is that of the tokens
        longer = {"itl": tpot, "e2e": tpot, **errors}
        bounds = (replace(bound, limit=bound.limit / (1 + longer.get(bound.metric, 0.0))) for bound in slo.bounds)
        return replace(slo, bounds=tuple(bounds))


def algorithms_of(text: str) -> tuple[Algorithm, ...]:
    """`all`, or names with commas. Raises UsageError with the nearest known name."""
    names = [part.strip().lower() for part in text.split(",")]
    for name in names:
        if name not in (*ROLES_OF, "all"):
            raise no_such("placement algorithm", name, (*ROLES_OF, "all"))
    return tuple(algorithm for algorithm in ROLES_OF if algorithm in names or "all" in names)


def place_options(run: Given, config: str | None, own: Mapping[str, Any]) -> PlaceOptions:
    """The options of `bench place`: those of a run, a file of them, and its own. Raises UsageError."""
    spec = _spec(run, config, own)
    gpus = (gpu.strip() for gpu in own["hardware"].split(",") if gpu.strip())
    hardware = tuple(dict.fromkeys(gpu if catalog.is_file(gpu) else gpu.lower() for gpu in gpus))
    if not hardware:
        raise UsageError("--hardware names no GPU; see 'bench list hardware'.")
    backend = registry.find("backends", parse(spec.backend).name)
    if not issubclass(backend, ReusableSimulator):
        raise UsageError(f"bench place simulates its candidates; leave out --backend '{spec.backend}', or take sim.")
    loaded = load_workload(spec)
    bounds = parse_slo(spec.slo if spec.slo is not None else loaded.slo_text, goal=spec.goal)
    if not bounds.bounds:
        raise UsageError("A placement needs an SLO to meet; give one, such as --slo ttft=0.25,tpot=0.1.")
    spec = replace(without_steps(spec), slo=str(bounds))
    own_rps = own_rate(spec)
    recorded = loaded.timing == "recorded"
    rate_rps = own["rate"] if own["rate"] is not None or not recorded else own_rps
    if recorded and own.get("max_requests") is not None:
        raise UsageError(f"--max-requests {own['max_requests']}: a recording is run as a whole; give --limit.")
    definition = definition_of(own["conditions"])
    # one for all deployments; without a rate the shortest that a queue allows, because any may be fast
    most_rps = math.inf if rate_rps is None else rate_rps
    horizon_s = usual_s(conditions(bounds, bounds.goal, definition), bounds, most_rps)
    return PlaceOptions(
        spec=spec,
        slo=bounds,
        cluster=Cluster(own["nodes"], own["gpus"]),
        hardware=hardware,
        algorithms=algorithms_of(own["algorithm"]),
        definition=definition,
        objective=_objective(own, hardware),
        rate_rps=rate_rps,
        own_rps=own_rps,
        horizon_s=horizon_s,
        filling=Filling() if recorded else filling(spec),
        recorded_requests=len(Schedule.draw(loaded.workload, seed=spec.seed)) if recorded else None,
        max_requests=own.get("max_requests"),
        budget_s=BUDGET_S if own.get("budget") is None else own["budget"],
    )


def _spec(run: Given, config: str | None, own: Mapping[str, Any]) -> RunSpec:
    values = dict(run.values)
    values.update({name: own[name] for name in ("goal", "seed") if own[name] is not None})
    file = configs.read(config) if config is not None else None
    if "backend" not in values and (file is None or "backend" not in file.given.values):
        values["backend"] = "sim"
    spec = configuration.run_spec(replace(run, values=values), file.given if file else None)
    has_workload = "workload" in values or (file is not None and "workload" in file.given.values)
    workload = spec.workload if has_workload or spec.trace is not None else WORKLOAD
    timed = None if spec.latency is None else registry.system_in(spec.latency).get("model")
    return replace(spec, workload=workload, model=spec.model or timed or "opt-13b", hardware=None)


def _objective(own: Mapping[str, Any], hardware: tuple[str, ...]) -> Objective:
    """What is saved, by the table that is given: money, power, or without one GPUs."""
    if own["prices"] is not None and own["power"] is not None:
        raise UsageError("--prices and --power are two objectives; give one of them.")
    if own["prices"] is not None:
        return load_objective("cost", own["prices"], hardware)
    return Objective() if own["power"] is None else load_objective("power", own["power"], hardware)

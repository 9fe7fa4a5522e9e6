"""A placement from the texts of a command line."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from harness import config as configuration
from harness import pool, registry, slo
from harness.capacity.conditions import Definition
from harness.config import CHECKS, Given, RunSpec
from harness.errors import UsageError, no_such
from harness.place.asked import (
    REQUESTS,
    Asked,
    algorithms_of,
    hardware_of,
    is_released,
    seeds_of,
    with_backend,
)
from harness.place.space import Cluster
from harness.place.worth import OBJECTIVES, worth
from harness.plan import load_workload
from harness.spec import parse

WORKLOAD = "distserve-fig1"
"""The example of DistServe: 512 tokens in and 64 out."""

POOLS = ("processes", "ray")
CONDITIONS: tuple[Definition, ...] = ("joint", "separate")


def asked(run: Given, config: str | None, own: Mapping[str, Any]) -> Asked:
    """What `bench place` is asked: the options of a run, a file of them, and its own. Raises UsageError."""
    spec = _spec(run, config, own)
    hardware = hardware_of(own["hardware"])
    if not hardware:
        raise UsageError("--hardware names no GPU; see 'bench list hardware'.")
    backend = registry.find("backends", parse(spec.backend).name)
    if not (hasattr(backend, "simulate") and hasattr(backend, "reset")):
        raise UsageError(f"bench place simulates its candidates; leave out --backend '{spec.backend}', or take sim.")
    released = is_released(spec, hardware)
    objective = slo.parse(spec.slo if spec.slo is not None else load_workload(spec).slo_text, goal=spec.goal)
    if not objective.bounds:
        raise UsageError("A placement needs an SLO to keep; give one, such as --slo ttft=0.25,tpot=0.1.")
    found = Asked(
        spec=with_backend(spec, released=released),
        slo=objective,
        cluster=Cluster(_whole(own["nodes"], "--nodes"), _whole(own["gpus"], "--gpus")),
        hardware=hardware,
        algorithms=algorithms_of(own["algorithm"]),
        definition=_one_of("condition", own["conditions"], CONDITIONS),
        seeds=seeds_of((1 if released else 3) if own["seeds"] is None else _whole(own["seeds"], "--seeds"), spec.seed),
        top_rps=_rate(own["max_rate"], "--max-rate"),
        width_rps=_rate(own["width"], "--width"),
        worth=worth(_one_of("objective", own["objective"], OBJECTIVES), _file(own), hardware),
        target_rps=None if own["rate"] is None else _rate(own["rate"], "--rate"),
        released=released,
        fixed=own["requests"] is not None,
    )
    if found.width_rps >= found.top_rps:
        raise UsageError(f"--width must be below --max-rate, got {found.width_rps:g} and {found.top_rps:g}.")
    for algorithm in found.algorithms:
        for kind in ("prefill", "decode") if algorithm == "high" else ():
            found.bounds(kind)
    return found


def _spec(run: Given, config: str | None, own: Mapping[str, Any]) -> RunSpec:
    values = dict(run.values)
    values.update({name: own[name] for name in ("requests", "goal", "seed") if own[name] is not None})
    file = configuration.read(config) if config is not None else None
    if "backend" not in values and (file is None or "backend" not in file.given.values):
        values["backend"] = "sim"
    spec = configuration.run_spec(replace(run, values=values), file.given if file else None)
    if spec.trace is not None:
        raise UsageError("bench place draws its traffic; fit a workload to the trace (bench trace fit), and name that.")
    named = "workload" in values or (file is not None and "workload" in file.given.values)
    workload = spec.workload if named else WORKLOAD
    model = spec.model or "opt-13b"
    return replace(spec, workload=workload, requests=spec.requests or REQUESTS, model=model, hardware=None)


def opened(text: str, workers: str | None, *, small: bool = False) -> pool.Pool:
    """The pool of that name: processes of this machine, or Ray; this process for what is `small`. Raises UsageError."""
    count = None if workers is None else _whole(workers, "--workers")
    name, _, address = text.partition(":")
    if name not in POOLS or (address and name != "ray"):
        raise no_such("pool", text, POOLS, "Or ray:ADDRESS for a cluster that runs.")
    if name == "processes":
        return pool.of(1 if small and count is None else count)
    from harness.pool_ray import Ray  # Ray is an extra

    return Ray(address or None, count)


def _file(own: Mapping[str, Any]) -> str | None:
    for objective, option in (("cost", "prices"), ("power", "power")):
        if own[option] is not None and own["objective"] != objective:
            raise UsageError(f"--{option} belongs to --objective {objective}; give both.")
    return {"cost": own["prices"], "power": own["power"]}.get(own["objective"])


def _one_of(what: str, text: str, known: tuple[Any, ...]) -> Any:
    if text.strip().lower() not in known:
        raise no_such(what, text, known)
    return text.strip().lower()


def _whole(value: str, name: str) -> int:
    found: int = CHECKS["replicas"](value, name)  # type: ignore[assignment]  # a whole number from 1 on
    return found


def _rate(value: str, name: str) -> float:
    return float(CHECKS["rate"](value, name))  # type: ignore[arg-type]  # a number above 0

"""Which replicas a cluster of the engine has: alike, or some for prefill and some for decode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from backends.serving.replica import Role
from backends.simulator.core import Core
from backends.simulator.layout import Side, deciding, rate, router_acts, side
from harness.catalog import hardware
from harness.errors import UsageError

if TYPE_CHECKING:
    from backends.engine import Engine


@dataclass(frozen=True, slots=True)
class Part:
    """`count` equal replicas of one role; `given` are the fields of their executors, `core` decides in each of them."""

    role: Role
    count: int
    policy: str
    router: str
    given: Mapping[str, object]
    core: Core


@dataclass(frozen=True, slots=True)
class Layout:
    """The parts of a cluster, prefill first; whether KV is pulled or pushed, over which link."""

    parts: tuple[Part, ...]
    pull: bool
    link: str


def layout(engine: Engine, given: Mapping[str, object]) -> Layout:
    """The replicas that these options ask for. Raises UsageError."""
    disaggregated = engine.prefill is not None or engine.decode is not None
    acts = router_acts(engine.router)
    for name, off in (("handoff", "pull"), ("link", "none")):
        if not disaggregated and not (acts and name == "link") and (value := getattr(engine, name)) != off:
            raise UsageError(f"Without prefill and decode replicas there is no {name}; leave out {name}={value}.")
    if (engine.prefill is None) != (engine.decode is None):
        raise UsageError("The engine needs prefill and decode replicas; give both, or neither.")
    rate(engine.link, hardware(engine.hardware or "a100-80g"))  # raises UsageError for what is none
    parts: tuple[Part, ...]
    if engine.prefill is None or engine.decode is None:
        parts = (_part(engine, given, "mixed", Side(engine.replicas), engine.policy, engine.router),)
    else:
        if engine.replicas != 1 or engine.tp is not None:
            name = "replicas" if engine.replicas != 1 else "tp"
            raise UsageError(
                f"{name} is that of replicas alike; with prefill and decode give prefill=2 or prefill=2:tp=2 instead."
            )
        sides: tuple[tuple[Role, str], ...] = ("prefill", engine.prefill), ("decode", engine.decode)
        parts = tuple(_one_side(engine, given, role, text) for role, text in sides)
    return Layout(parts, engine.handoff == "pull", engine.link)


def _one_side(engine: Engine, given: Mapping[str, object], role: Role, text: str) -> Part:
    its = side(text, role)
    return _part(engine, given, role, its, *deciding(its, role, engine.policy, engine.router))


def _part(engine: Engine, given: Mapping[str, object], role: Role, its: Side, policy: str, router: str) -> Part:
    if its.pp != 1:
        raise UsageError("The engine has no pipelines; leave out pp.")
    for name, value in (("dp", its.dp), ("ep", its.ep)):
        if value != 1:
            raise UsageError(f"The engine does not divide experts or attention by {name}; leave out {name}.")
    options = {"tp": its.tp if its.tp != 1 else None, "hardware": its.hardware, "latency": its.latency}
    core = Core.of(
        policy, engine.kv, engine.admission, engine.seed, engine.prefix_cache, engine.speculate, engine.preempt
    )
    return Part(role, its.count, policy, router, {**given, **{k: v for k, v in options.items() if v is not None}}, core)

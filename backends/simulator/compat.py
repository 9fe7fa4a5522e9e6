"""Compatibility modes: the simulator as another simulator would have it, for comparison with its numbers."""

from dataclasses import dataclass

from backends.latency.abc import SIMDISTSERVE
from harness.catalog import Shape, hardware, model, simdistserve_tokens
from harness.errors import UsageError, no_such
from harness.spec import Spec, parse

NAMES = ("distserve_sim",)
ENDLESS_KV = "reserve-oracle:block_tokens=1048576,blocks=262144"  # one block a sequence, more than ever run


@dataclass(frozen=True, slots=True)
class Mode:
    """Specs that a compatibility mode puts in place."""

    latency: str
    policy: str
    kv: str


def mode(name: str, latency: str | None, model_name: str, shape: Shape) -> Mode:
    """The mode `distserve_sim`: LLMServe/DistServe's simulator @82831f1.

    `latency` is a spec of `abc` (vllm if None). Prompts go first, all that wait in one batch up to the KV capacity;
    a decode step reads at most 50,000 tokens of context; stored tokens do not limit admission; its overheads are
    charged. An answer of n tokens takes n decode steps after the first token, so it has n + 1 here, and TPOT as
    defined is the decode span over n. Hand-offs take no time. Raises UsageError for another mode or latency model.
    """
    if name not in NAMES:
        raise no_such("compatibility mode", name, NAMES)
    spec = parse(latency or "abc:vllm")
    if spec.name != "abc":
        raise UsageError(f"compat={name} needs latency=abc:vllm or abc:distserve, got '{latency}'.")
    overheads = {key: str(value) for key, value in SIMDISTSERVE.items()}
    tokens = simdistserve_tokens(model(model_name), hardware(shape.hardware), shape.tp, shape.pp)
    return Mode(
        latency=str(Spec(spec.name, overheads | spec.args, spec.first)),
        policy=f"distserve-sim:max_prefill_tokens={tokens}",
        kv=ENDLESS_KV,
    )

"""Compatibility modes: the simulator as another simulator would have it, for comparison with its numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from backends._catalog import hardware, model, simdistserve_tokens
from backends.latency.abc import SIMDISTSERVE
from harness.errors import UsageError, no_such
from harness.spec import Spec, parse

if TYPE_CHECKING:
    from harness.api import FollowUps, Request

NAMES = ("distserve_sim",)
ENDLESS_KV = "reserve-oracle:block_tokens=1048576,blocks=262144"  # one block a sequence, more than ever run


@dataclass(frozen=True, slots=True)
class Mode:
    """Specs that a compatibility mode puts in place, and the tokens that it adds to each answer."""

    latency: str
    policy: str
    kv: str
    further_tokens: int

    def requests(self, asked: Iterable[Request]) -> Iterator[Request]:
        """The requests as the mode reads them."""
        return (replace(r, output_tokens=r.output_tokens + self.further_tokens) for r in asked)

    def follow_ups(self, released: FollowUps | None) -> FollowUps | None:
        """What answers set free, as the mode reads it."""
        return None if released is None else lambda record: self.requests(released(record))


def mode(name: str, latency: str | None, model_name: str, hardware_name: str, tp: int) -> Mode:
    """The mode `distserve_sim`: LLMServe/DistServe's simulator @82831f1, colocated.

    `latency` is a spec of `abc` (vllm if None). Prompts go first, all that wait in one batch up to the KV capacity;
    a decode step reads at most 50,000 tokens of context; stored tokens do not limit admission; its overheads are
    charged. An answer of n tokens takes n decode steps after the first token, so it has n + 1 here, and TPOT as
    defined is the decode span over n. Raises UsageError for another mode or latency model.
    """
    if name not in NAMES:
        raise no_such("compatibility mode", name, NAMES)
    spec = parse(latency or "abc:vllm")
    if spec.name != "abc":
        raise UsageError(f"compat={name} needs latency=abc:vllm or abc:distserve, got '{latency}'.")
    overheads = {key: str(value) for key, value in SIMDISTSERVE.items()}
    tokens = simdistserve_tokens(model(model_name), hardware(hardware_name), tp)
    return Mode(
        latency=str(Spec(spec.name, overheads | spec.args, spec.first)),
        policy=f"distserve-sim:max_prefill_tokens={tokens}",
        kv=ENDLESS_KV,
        further_tokens=1,
    )

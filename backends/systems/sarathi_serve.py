"""Sarathi-Serve: chunked prefill and stall-free batching, so that prompts do not interrupt decodes.

Source: Agrawal et al., Sarathi-Serve, OSDI 2024. It claims 3.7 times the capacity of vLLM and 4.0 times that of Orca
under a strict bound on the gaps between tokens. Its policy is policy=sarathi; here is what its table 4 compares with.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from backends.latency import step_times
from backends.serving.batch import Batch
from backends.serving.replica import Replica
from harness import catalog, registry
from harness.api import Row
from harness.bounds import AtLeastOne, Checked
from harness.errors import UsageError
from harness.spec import parse

STEPS = MappingProxyType({"strict": 5, "relaxed": 25})
"""Decode steps that a token may take (section 5.1)."""
PUBLISHED_S: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "mistral-7b": (0.1, 0.5),  # on 1 A100-80G PCIe
        "yi-34b": (0.2, 1.0),  # on 2 A100-80G, TP2
        "llama2-70b": (1.0, 5.0),  # on 8 A40, TP4-PP2
        "falcon-180b": (1.0, 5.0),  # on 2 x 4 A100, TP4-PP2
    }
)
"""P99 of the time between tokens in seconds, strict and relaxed (table 3)."""


@dataclass(slots=True)
class ChunkOnlyPolicy(Checked):
    """Chunks of prompts and decodes in turns, never in one step: chunked prefill without stall-free batching.

    Source: the "chunked-prefills-only" column of table 4 of Agrawal et al., Sarathi-Serve, OSDI 2024, as scheduled by
    microsoft/sarathi-serve `simple_chunking_scheduler.py`: a prefill turn runs unfinished prompts, else new ones.

    At most `budget` prompt tokens in a prefill turn; at most `max_seqs` running sequences.
    """

    budget: AtLeastOne = 512
    max_seqs: AtLeastOne = 128
    _decoded: bool = field(default=True, init=False, repr=False)  # the last turn was not a prefill turn

    def fill(self, replica: Replica, batch: Batch) -> None:
        """A prefill turn if the last turn decoded (or nothing decodes), else a decode turn."""
        tried = self._decoded or not replica.decoding.members
        if tried and self._prompts(replica, batch):
            self._decoded = False
            return
        self._decoded = True
        if replica.decoding.members:
            replica.decode(batch)
        batch.repeats = not batch.preempted and (tried or not (replica.prefilling or replica.waiting))

    def _prompts(self, replica: Replica, batch: Batch) -> bool:
        left = replica.run_chunks(batch, self.budget)
        if not batch.prefills:
            replica.admit_chunks(batch, left, self.max_seqs)
        return bool(batch.prefills)


def slo(
    model: str = "opt-13b", hardware: str = "a100-80g", latency: str = "roofline", tp: int = 1, pp: int = 1,
    batch: int = 32, context_tokens: int = 4096,
) -> list[Row]:  # fmt: skip
    """Derive ITL objectives as multiples of a decode step: p99 of ITL within 5 steps (strict) or 25 (relaxed).

    'fits' is whether the model takes that context and the GPUs hold the KV of all sequences; a latency model prices a
    step that does not fit all the same. The published capacities also need a median scheduling delay of at most 2 s.
    For Yi-34B the public run of the paper's repository took 87.9 ms a step, which probably included overhead of the
    engine: more than the 40 ms that its strict SLO stands for.

    Source: Agrawal et al., Sarathi-Serve, OSDI 2024, section 5.1 and table 3.
    """
    timed = step_times(latency, model=model, hardware=hardware, tp=tp, pp=pp)
    system = registry.system_of(timed)
    if pp > 1 and "pp" not in system:
        raise UsageError(f"'{parse(latency).name}' has no pipeline stages; leave out pp, or use latency=roofline.")
    step_s = pp * timed.decode_s(batch, batch * context_tokens)  # a batch passes every stage
    fits = _fits(model, hardware, tp * pp, batch, context_tokens) if "model" in system else None
    published_s = dict(zip(STEPS, PUBLISHED_S.get(model, ()), strict=False)) if "model" in system else {}
    return [
        {"slo": name, "decode_step_s": step_s, "steps": steps, "itl_p99_s": steps * step_s,
         "bound": f"p99:itl={steps * step_s:.4g}", "published_s": limit_s,
         "over_published_ratio": steps * step_s / limit_s if limit_s else None, "fits": fits}
        for name, steps in STEPS.items() for limit_s in [published_s.get(name)]
    ]  # fmt: skip


def _fits(model: str, hardware: str, gpus: int, batch: int, context_tokens: int) -> bool:
    try:
        room = 16 * catalog.kv_capacity_blocks(model, hardware, catalog.Shape(gpus), utilisation=0.9, block_tokens=16)
    except UsageError:  # the weights alone do not fit
        return False
    return context_tokens <= catalog.model(model).max_tokens and batch * context_tokens <= room

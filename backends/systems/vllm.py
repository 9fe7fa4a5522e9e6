"""vLLM: KV memory in blocks that are taken on demand, so that nearly all of it holds tokens and batches are larger.

Source: Kwon et al., Efficient Memory Management for Large Language Model Serving with PagedAttention, SOSP 2023; the
announcement of 2023. Policies and memory are those that everybody runs: `vllm-v0`, `vllm-v1`, `paged`. It claims 14 to
24 times the throughput of Hugging Face Transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from random import Random
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from harness import catalog, registry
from harness.api import Request, Row
from harness.bounds import AtLeastOne, Checked
from harness.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

MEMORY_USE: Mapping[str, tuple[float, float | None]] = MappingProxyType({
    "paged": (0.963, 30.42), "oracle": (0.382, 13.62), "pow2": (0.268, None), "max": (0.204, 7.0)
})  # fmt: skip
"""Share of the KV memory that holds tokens, and mean batch, of OPT-13B in 12 GiB (Kwon et al., vLLM, SOSP 2023)."""
MODES = {
    "paged": "paged",
    "oracle": "reserve-oracle:buddy=true",
    "pow2": "reserve-pow2:buddy=true",
    "max": "reserve-max",
}
"""Short names of the modes as vLLM compared them: contiguous memory comes from a buddy allocator."""
LONGEST_TOKENS = 2048
"""Of prompt and output: what OPT takes, and what `max` reserves."""
ROUNDS = 50
"""In which the means of lengths come to be what they should."""


@dataclass(frozen=True, slots=True)
class ReserveOracleKv(Checked):
    """Memory for exactly the prompt and the output, reserved at admission (an oracle).

    Source: Yu et al., Orca, OSDI 2022, as compared in Kwon et al., vLLM, SOSP 2023 (Orca (Oracle)).

    Reserves what will be used; it must know the output, so results with it are oracle results.

    `buddy` gives memory out in powers of two, as the allocator of contiguous memory in vLLM's comparison does.
    """

    block_tokens: AtLeastOne = 16
    blocks: AtLeastOne | None = None
    buddy: bool = False

    @property
    def watermark(self) -> float:
        """0: what is reserved cannot run short."""
        return 0.0

    @property
    def reserves(self) -> bool:
        """True: all memory at admission."""
        return True

    def reserved_tokens(self, prompt: int, output: int) -> int:
        """Prompt plus output."""
        return next_power_of_two(prompt + output) if self.buddy else prompt + output


@dataclass(frozen=True, slots=True)
class ReservePow2Kv(ReserveOracleKv):
    """Memory for the prompt and the output rounded up to a power of two, reserved at admission (an oracle).

    Source: Yu et al., Orca, OSDI 2022, as compared in Kwon et al., vLLM, SOSP 2023 (Orca (Pow2)).

    Reserves at most twice the true output; it must know the output, so results with it are oracle results.

    `buddy` gives memory out in powers of two, as the allocator of contiguous memory in vLLM's comparison does.
    """

    def reserved_tokens(self, prompt: int, output: int) -> int:
        """Prompt plus the power of two that holds the output."""
        tokens = prompt + next_power_of_two(output)
        return next_power_of_two(tokens) if self.buddy else tokens


def next_power_of_two(tokens: int) -> int:
    """The least power of two that is at least `tokens`."""
    return 1 << (tokens - 1).bit_length()


def memory(
    kv: str = "paged", model: str = "opt-13b", memory_bytes: float = 12 * 2.0**30, tp: int = 1, requests: int = 1500,
    seed: int = 0,
) -> list[Row]:  # fmt: skip
    """Simulate a saturated replica: the share of its KV memory that holds tokens, and the mean batch.

    `kv` is paged, oracle, pow2, max or a spec of 'bench list kv'. A long queue waits from the start, with ShareGPT's
    mean lengths (161 in, 338 out) and every sequence in every step. oracle and pow2 come from a buddy allocator.
    'published' is vLLM's OPT-13B in 12 GiB.

    Source: Kwon et al., vLLM, SOSP 2023, figures 2 and 13.
    """
    slots = int(memory_bytes // catalog.kv_bytes_per_token(catalog.model(model)))
    traffic = Traffic(requests=requests, seed=seed)
    simulated = filled(kv, slots, traffic, model=model, tp=tp)
    share, batch = MEMORY_USE.get(kv, (None, None))
    return [{"simulated_use_share": simulated.used, "simulated_use_of_all_share": simulated.of_all,
             "simulated_batch": simulated.batch, "published_use_share": share, "published_batch": batch}]  # fmt: skip


Parents = Literal["none", "any", "one"]


def forks(
    answers: int = 2, beams: Parents = "none", prompt_tokens: float = 161.31, output_tokens: float = 337.99,
    block_tokens: int = 16, requests: int = 200, seed: int = 0,
) -> list[Row]:  # fmt: skip
    """Share of the KV blocks that `answers` to one prompt need no memory for, because they share them.

    Blocks are counted by references: a fork takes no block, and the first write to a shared one copies it. Parallel
    samples (`beams=none`) share the full blocks of their prompt; of beam search each beam goes on from any beam of the
    step before, drawn at random (`any`), or all from the same one (`one`), and blocks that no beam has are free.
    Lengths are lognormal with these means, by default ShareGPT's, and a coefficient of variation of 1; every request
    has a token a step.

    Source: Kwon et al., vLLM, SOSP 2023, sections 4.4 and 6.3 (figure 15: blocks saved over blocks without sharing).
    """
    if answers < 1:
        raise UsageError(f"answers must be at least 1, got {answers}.")
    drawn, held, alone = Random(seed), 0, 0
    for request in Traffic(prompt_tokens, output_tokens, 1.0, requests, seed).requests_at_once():
        blocks = distinct_blocks(request, answers, block_tokens, None if beams == "none" else parents(beams, drawn))
        held += sum(blocks)
        stored = range(request.prompt_tokens + 1, request.prompt_tokens + request.output_tokens)
        alone += answers * sum(-(-tokens // block_tokens) for tokens in stored)
    return [{"saved_share": 1 - held / alone if alone else 0.0}]


def parents(beams: Parents, drawn: Random) -> Callable[[int], list[int]]:
    """Which beams of the last step so many beams go on from."""
    return (lambda count: drawn.choices(range(count), k=count)) if beams == "any" else lambda count: [0] * count


def distinct_blocks(
    request: Request, answers: int, size: int, parents_of: Callable[[int], list[int]] | None
) -> Iterator[int]:  # fmt: skip
    """Blocks that the answers to a request hold in each step after the first token of each."""
    made = -(-request.prompt_tokens // size)
    tables = [list(range(made))] * answers
    for position in range(request.prompt_tokens, request.prompt_tokens + request.output_tokens - 1):
        place, owners = position // size, set[int]()
        tables = [list(tables[parent]) for parent in (range(answers) if parents_of is None else parents_of(answers))]
        for table in tables:
            if place == len(table):
                table.append(made)
                made += 1
            elif table[place] in owners:  # another one writes there: a copy
                table[place], made = made, made + 1
            owners.add(table[place])
        yield len(set(chain.from_iterable(tables)))


@dataclass(frozen=True, slots=True)
class Traffic:
    """Lognormal lengths of this coefficient of variation; longer ones than OPT takes are left out.

    The means, of what is left, are ShareGPT's in vLLM; the variation is ours (outputs of two public preparations have
    0.6 and 1.2).
    """

    prompt_tokens: float = 161.31
    output_tokens: float = 337.99
    variation: float = 1.0
    requests: int = 1500
    seed: int = 0

    def requests_at_once(self) -> Iterator[Request]:
        """All requests, waiting from the start."""
        for i, (prompt, output) in enumerate(self._lengths().tolist()):
            yield Request(i, 0.0, prompt, output)

    def _lengths(self) -> np.ndarray:
        """(requests, 2) tokens of prompts and outputs."""
        import numpy as np

        sigma = float(np.sqrt(np.log(1 + self.variation**2)))
        shape = np.exp(sigma * np.random.default_rng(self.seed).standard_normal((2 * self.requests, 2)))
        means = np.array([self.prompt_tokens, self.output_tokens])
        scale, lengths = means.copy(), np.empty((0, 2), np.int64)
        for _ in range(ROUNDS):  # what is left out would lower the means
            lengths = np.maximum(1, np.rint(scale * shape)).astype(np.int64)
            lengths = lengths[lengths.sum(axis=1) <= LONGEST_TOKENS][: self.requests]
            scale *= means / lengths.mean(axis=0)
        return lengths


@dataclass(frozen=True, slots=True)
class Filled:
    """What a memory mode reached: `used` of the memory that is given out and `of_all` of the whole hold tokens.

    `batch` is the mean number of sequences in a step.
    """

    used: float
    of_all: float
    batch: float


def filled(mode: str, slots: int, traffic: Traffic, **system: object) -> Filled:
    """Simulate `slots` token slots of a `system` under a memory mode: a short name of `MODES`, or a spec of its own.

    A long queue waits from the start, every running sequence is in every step, and the means are taken while the queue
    lasts and the first fifth is over.
    """
    import numpy as np

    spec = MODES.get(mode, mode)
    # pages of bytes hold as many tokens as the model and its parallelism make them, which the simulator knows
    size = registry.make("backends", "sim", kv=spec, kv_blocks=1, **system).cluster.replicas[0].blocks.size
    total = slots // size
    if total * size < LONGEST_TOKENS:
        raise UsageError(f"{slots:,} slots hold no sequence of {LONGEST_TOKENS:,} tokens; give more memory.")
    simulator = registry.make(
        "backends", "sim", policy="orca:max_batch=100000", kv=spec, kv_blocks=total, leap=False,
        latency="linear:base_s=0.02,prefill_token_s=0.0001,decode_seq_s=0,context_token_s=0", **system,
    )  # fmt: skip
    for _ in simulator.simulate(traffic.requests_at_once()):
        pass
    table = simulator.steps_table()
    steps = {name: table[name].to_numpy() for name in table.column_names}
    lasting = np.flatnonzero(steps["waiting"] > 0)
    counted = lasting[len(lasting) // 5 :]
    if not len(counted):
        raise UsageError(f"{traffic.requests} requests never filled {slots:,} slots; give more requests.")
    stored = (steps["context_tokens"] + steps["decode_seqs"] + steps["prefill_tokens"])[counted].sum()
    allocated = ((simulator.cluster.replicas[0].blocks.total - steps["free_blocks"]) * size)[counted].sum()
    capacity = len(counted) * simulator.cluster.replicas[0].blocks.total * size
    return Filled(float(stored / allocated), float(stored / capacity), float(steps["running"][counted].mean()))

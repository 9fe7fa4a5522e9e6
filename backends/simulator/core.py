"""The preemption option: `recompute`, or `swap` with its host memory and link.

The serving core: the plug-ins and switches that decide inside a replica, under either clock.
"""

import re
from collections.abc import Callable, Iterable
from collections.abc import Sequence as ListOf
from dataclasses import dataclass
from math import inf
from random import Random
from types import MappingProxyType
from typing import Any, Literal, Self

from backends.serving.blocks import Adapters, Swap
from backends.serving.hierarchy import Hierarchy
from backends.serving.journal import Journal
from backends.serving.plugins import MapTime, Memory, Policy, Predicting
from backends.serving.replica import Replica
from backends.serving.speculation import Speculation
from harness.bounds import AtLeastOne, Checked, NotNegative, PositiveShare
from harness.catalog import Model, Shape, adapter_bytes, bits_of_kv, block_bytes, hardware
from harness.errors import UsageError, no_such
from harness.registry import make
from harness.spec import Spec, build, parse

GIB = 2**30
COPY_S = 5e-6
"""Seconds to issue one copy: between 2.3 us (taco-project/FlexKV pull 193, H20) and about 9 us (vllm-project/vllm pull
11531, A100: 3.1 GB/s over many pages, if a page is 32 KiB)."""
LINK_SHARE = 0.78
"""What copies reach of the rate of the link: nvbandwidth moves 24.8 GB/s over the 32 GB/s of an A100's PCIe 4.0 x16
(NVIDIA developer forums, topic 352186)."""
SWITCH = MappingProxyType({"on": True, "off": False, "true": True, "false": False})
"""Words that turn a part on or off."""
_PLUS = re.compile(r"\+(?=[a-z])")  # between tiers, and not that of 1e+9


@dataclass(frozen=True, slots=True)
class BlockCost:
    """What a block is on one GPU: its bytes, the layers whose keys and values it holds, the rate of the host link."""

    bytes: float
    layers: int
    bytes_per_s: float


FREE = BlockCost(1.0, 0, inf)
"""Nothing is charged: the engine copies, and that takes what it takes."""


def block_cost(m: Model, shape: Shape, block_tokens: int, kv_bits: float | None) -> BlockCost:
    """Cost of moving a block of one GPU to the host; blocks of data-parallel groups move at the same time."""
    link_bytes_per_s = hardware(shape.hardware).pcie_bytes_per_s / 2 * shape.dp  # one of the two directions
    return BlockCost(
        block_bytes(m, shape, block_tokens=block_tokens, kv_bits=kv_bits), m.layers // shape.pp, link_bytes_per_s
    )


def token_bytes(m: Model, tp: int, kv_bits: float | None) -> int:
    """Bytes of the keys (or the values) of one token in one layer on one of `tp` GPUs; of a latent, all of it."""
    elements = m.kv_elements_per_gpu(tp) // (2 if m.latent is None else 1)
    return max(1, int(elements * bits_of_kv(m, kv_bits=kv_bits) // 8))


@dataclass(frozen=True, slots=True)
class Swapping(Checked):
    """KV of preempted sequences goes to `host_bytes` of host memory per GPU (or room for `blocks` blocks).

    Every layer's keys and values of a block are a copy of their own, each of which takes `copy_s` besides its bytes,
    at `link_share` of the rate of PCIe; `group` blocks of a sequence lie side by side and are one copy. The simulator
    charges for both, with `overlap` only what exceeds the step before; on the engine it takes what it takes. 4 GiB is
    vLLM's default.
    """

    host_bytes: AtLeastOne = 4 * GIB
    blocks: AtLeastOne | None = None
    copy_s: NotNegative = COPY_S
    link_share: PositiveShare = LINK_SHARE
    group: AtLeastOne = 1
    overlap: bool = False

    def swap(self, cost: BlockCost) -> Swap:
        """Host memory for blocks of this cost."""
        block_s = cost.bytes / (cost.bytes_per_s * self.link_share) + 2 * cost.layers * self.copy_s / self.group
        return Swap(self.blocks or int(self.host_bytes // cost.bytes), block_s, overlaps=self.overlap)


@dataclass(frozen=True, slots=True)
class Lora(Checked):
    """Requests that name a model run with a LoRA adapter of this `rank`, of which `slots` are in GPU memory at a time.

    All adapters are in host memory. `layers` says what they change: all matrices, or those of attention. Loading takes
    the bytes of one on a GPU at `link_share` of the rate of PCIe (the A and B of every matrix are copies of their own,
    each of which takes `copy_s` besides), or `load_s` where that is given. A step with adapters takes the share
    `step_share` longer: a quarter, the median of the measurements in docs/design/013. Other defaults: SGLang's
    8 a batch, vLLM's greatest rank.
    """

    slots: AtLeastOne = 8
    rank: AtLeastOne = 16
    layers: Literal["all", "attention"] = "all"
    load_s: NotNegative | None = None
    step_share: NotNegative = 0.25
    copy_s: NotNegative = COPY_S
    link_share: PositiveShare = LINK_SHARE

    def bytes_on(self, m: Model, shape: Shape) -> float:
        """Bytes of one adapter on each GPU of a replica."""
        return adapter_bytes(m, shape, self.rank, feed_forward=self.layers == "all")

    def adapters(self, m: Model, shape: Shape) -> Adapters:
        """The slots of a replica, all of them empty."""
        load_s = self.load_s
        if load_s is None:
            matrices = 4 + (0 if self.layers == "attention" else 3 if m.gated else 2)
            link = hardware(shape.hardware).pcie_bytes_per_s / 2 * self.link_share
            load_s = self.bytes_on(m, shape) / link + 2 * matrices * m.layers / shape.pp * self.copy_s
        return Adapters(self.slots, load_s, self.step_share)


@dataclass(frozen=True, slots=True)
class Recompute:
    """KV of preempted sequences is dropped and computed again."""


def swapping(text: str) -> Swapping | None:
    """What `preempt` asks for, None where KV is recomputed. Raises UsageError for what is not known."""
    spec = parse(text)
    if spec.name == "recompute":
        build(Recompute, spec)
        return None
    if spec.name != "swap":
        raise no_such("way to preempt", spec.name, ["recompute", "swap"])
    return build(Swapping, spec)


def preemption_costs(replicas: Iterable[Replica]) -> dict[str, object]:
    """What preemption cost so far, for run.json; nothing where it cost nothing."""
    lanes = [lane for r in replicas for lane in ([r] if r.pipeline is None else r.pipeline.lanes)]
    swaps = {id(lane.swap): lane.swap for lane in lanes if lane.swap is not None}
    costs = {
        "recomputed_tokens": sum(lane.recomputed_tokens for lane in lanes),
        "swapped_blocks": sum(swap.copied + swap.moved for swap in swaps.values()),
    }
    return {name: count for name, count in costs.items() if count}


def adapter_facts(lora: str | None, replicas: ListOf[Replica]) -> dict[str, object]:
    """How adapters were loaded so far, for run.json; nothing where there are none."""
    slots = [replica.adapters for replica in replicas if replica.adapters is not None]
    if not slots:
        return {}
    loads, load_s = sum(pool.loads for pool in slots), sum(pool.loads * pool.load_s for pool in slots)
    return {"lora": lora, "adapter_slots": sum(pool.slots for pool in slots), "adapter_loads": loads,
            "adapter_load_s": load_s / loads if loads else slots[0].load_s}  # fmt: skip


def mtp(m: Model) -> str:
    """The spec of drafts by the layers of a model that predict further tokens (multi-token prediction).

    Each draft takes the share of a step that one of its layers has. Raises UsageError for a model whose own drafts have
    no known acceptance.
    """
    if m.draft_acceptance is None:
        raise UsageError(f"No acceptance is published of drafts by {m.name} itself; give speculate=[k=1,alpha=0.8].")
    return f"k={m.drafts},alpha={m.draft_acceptance!r},cost={1 / m.layers!r}"


@dataclass(frozen=True, slots=True)
class Core:
    """Policy, KV memory mode and rule of admission, parsed and checked; what is drafted, and where KV is swapped to.

    Every replica gets a policy and a rule of its own, and a stream of chance that follows from `seed` and its index.
    `caches_prefixes`: whether a replica keeps full blocks for those that begin alike.
    """

    policy: Spec
    kv: Spec
    admission: Spec
    seed: int
    caches_prefixes: bool
    speculation: Speculation | None
    swapping: Swapping | None
    tiers: tuple[Spec, ...]

    @classmethod
    def of(
        cls,
        policy: str = "sarathi",
        kv: str = "paged",
        admission: str = "fcfs",
        seed: int = 0,
        prefix_cache: str = "off",
        speculate: str | None = None,
        preempt: str = "recompute",
        tiers: str | None = None,
    ) -> Self:
        """The core that these options of the simulator and the engine ask for. Raises UsageError for a wrong one."""
        specs = {"policies": parse(policy), "kv": parse(kv), "admission": parse(admission)}
        for kind in ("policies", "kv"):
            make(kind, specs[kind])
        drafts = speculate is not None and speculate != "off"
        speculation = build(Speculation, parse(f"speculate:{speculate}")) if drafts else None
        swap = swapping(preempt)
        make("admission", specs["admission"])
        if seed < 0:
            raise UsageError(f"seed must be at least 0, got {seed}.")
        if prefix_cache not in SWITCH:
            raise UsageError(f"prefix_cache must be on or off, got '{prefix_cache}'.")
        below = () if tiers is None else tuple(parse(tier) for tier in _PLUS.split(tiers))
        for tier in below:
            make("tiers", tier)
        if below and not SWITCH[prefix_cache]:
            raise UsageError(f"tiers={tiers} store what a prefix cache knows; give prefix_cache=on.")
        return cls(
            specs["policies"], specs["kv"], specs["admission"], seed, SWITCH[prefix_cache], speculation, swap, below
        )

    def memory(self, token_bytes: int | None = None) -> Any:
        """The KV memory mode; `blocks` of it is None where its spec does not set it.

        `token_bytes` are those of the keys of one token in one layer on one GPU, for modes whose pages have bytes.
        """
        return make("kv", self.kv, **({} if token_bytes is None else {"token_bytes": token_bytes}))

    def hierarchy(self, parts: ListOf[tuple[object, float, float]]) -> Hierarchy | None:
        """The tiers under the prefix caches of a cluster; None where there are none. Raises UsageError.

        Of each part: what its blocks are, and their bytes, and the rate of PCIe to the GPUs of a replica.
        """
        if not self.tiers:
            return None
        if len({kind for kind, *_ in parts}) > 1:
            raise UsageError("Tiers store blocks of all replicas, which must be alike: of one size, format and model.")
        rate = LINK_SHARE * min(pcie_bytes_per_s for *_, pcie_bytes_per_s in parts)
        given = {} if rate == inf else {"pcie_bytes_per_s": rate}  # an engine that copies has none
        return Hierarchy([(spec.name, make("tiers", spec, **given)) for spec in self.tiers], parts[0][1])

    @property
    def predictor(self) -> str | None:
        """Spec of the length predictor of the policy; None where it estimates no lengths."""
        policy = make("policies", self.policy)
        return policy.predictor if isinstance(policy, Predicting) else None

    def replica(
        self,
        memory: Memory,
        blocks: int,
        index: int = 0,
        journal: Journal | None = None,
        cost: BlockCost = FREE,
        adapters: Adapters | None = None,
        policy: Policy | None = None,
    ) -> Replica:
        """A fresh replica with `blocks` blocks of KV memory; `cost` is that of moving one of them to the host.

        `policy` where it is a lane, with one of its own.
        """
        return Replica(
            policy or make("policies", self.policy),
            memory,
            blocks,
            index,
            journal,
            admission=None if self.admission.name == "fcfs" else make("admission", self.admission),
            chance=self.chance("replica", index),
            prefix_cache=self.caches_prefixes,
            speculation=self.speculation,
            swap=None if self.swapping is None else self.swapping.swap(cost),
            adapters=adapters,
            map_s=memory.step_map_s if isinstance(memory, MapTime) else 0.0,
            maps_ahead=isinstance(memory, MapTime) and memory.maps_ahead,
            tiered=bool(self.tiers),
        )

    def chance(self, purpose: str, index: int) -> Callable[[], float]:
        """Draws from [0, 1), a stream of its own for every purpose and replica."""
        return Random(f"{purpose} {index} {self.seed}").random

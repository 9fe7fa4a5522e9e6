"""The serving core as it is asked for: the plug-ins and switches that decide inside a replica, under either clock."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import Any

from backends._swapping import FREE, BlockCost, swapping
from backends.serving.journal import Journal
from backends.serving.plugins import Memory
from backends.serving.replica import Replica
from backends.serving.speculation import Speculation
from harness.errors import UsageError
from harness.registry import make
from harness.spec import build, parse

SWITCH = MappingProxyType({"on": True, "off": False, "true": True, "false": False})
"""Words that turn a part on or off."""


@dataclass(frozen=True, slots=True)
class Core:
    """Specs of a policy, a KV memory mode and a rule of admission, as the simulator and the engine have them.

    Every replica gets a policy and a rule of its own, and a stream of chance that follows from `seed` and its index;
    wrong specs are refused by `check`.
    """

    policy: str = "sarathi"
    kv: str = "paged"
    admission: str = "fcfs"
    seed: int = 0
    prefix_cache: str = "off"
    speculate: str | None = None
    preempt: str = "recompute"

    def check(self) -> None:
        """Raise UsageError for a wrong spec, before anything starts."""
        make("policies", self.policy)
        self.memory()
        self.speculation()
        swapping(self.preempt)
        make("admission", self.admission)
        if self.seed < 0:
            raise UsageError(f"seed must be at least 0, got {self.seed}.")
        self.caches_prefixes()

    def speculation(self) -> Speculation | None:
        """What is drafted, if anything."""
        if self.speculate is None or self.speculate == "off":
            return None
        return build(Speculation, parse(f"speculate:{self.speculate}"))

    def memory(self, token_bytes: int | None = None) -> Any:
        """The KV memory mode; `blocks` of it is None where its spec does not say how many there are.

        `token_bytes` are those of the keys of one token in one layer on one GPU, for modes whose pages have bytes.
        """
        return make("kv", self.kv, **({} if token_bytes is None else {"token_bytes": token_bytes}))

    def caches_prefixes(self) -> bool:
        """Whether a replica keeps full blocks for those that begin alike. Raises UsageError for a word not known."""
        if self.prefix_cache not in SWITCH:
            raise UsageError(f"prefix_cache must be on or off, got '{self.prefix_cache}'.")
        return SWITCH[self.prefix_cache]

    def replica(
        self,
        memory: Memory,
        blocks: int,
        index: int = 0,
        journal: Journal | None = None,
        cost: BlockCost = FREE,
    ) -> Replica:
        """A fresh replica with `blocks` blocks of KV memory; `cost` is that of moving one of them to the host."""
        asked = swapping(self.preempt)
        return Replica(
            make("policies", self.policy),
            memory,
            blocks,
            index,
            journal,
            admission=None if self.admission == "fcfs" else make("admission", self.admission),
            chance=self.chance("replica", index),
            prefix_cache=self.caches_prefixes(),
            speculation=self.speculation(),
            swap=None if asked is None else asked.swap(cost),
            map_s=getattr(memory, "step_map_s", 0.0),
        )

    def chance(self, purpose: str, index: int) -> Callable[[], float]:
        """Draws from [0, 1), a stream of its own for every purpose and replica."""
        return Random(f"{purpose} {index} {self.seed}").random

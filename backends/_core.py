"""The serving core as it is asked for: the plug-ins and switches that decide inside a replica, under either clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from backends.serving.replica import Replica
from harness.registry import make

if TYPE_CHECKING:
    from backends.serving.journal import Journal
    from backends.serving.plugins import Memory


@dataclass(frozen=True, slots=True)
class Core:
    """Specs of a policy and a KV memory mode, as the simulator and the engine have them.

    Every replica gets a policy of its own; wrong specs are refused by `check`.
    """

    policy: str = "sarathi"
    kv: str = "paged"

    def check(self) -> None:
        """Raise UsageError for a wrong spec, before anything starts."""
        make("policies", self.policy)
        self.memory()

    def memory(self) -> Any:
        """The KV memory mode; `blocks` of it is None where its spec does not say how many there are."""
        return make("kv", self.kv)

    def replica(self, memory: Memory, blocks: int, index: int = 0, journal: Journal | None = None) -> Replica:
        """A fresh replica with `blocks` blocks of KV memory."""
        return Replica(make("policies", self.policy), memory, blocks, index, journal)

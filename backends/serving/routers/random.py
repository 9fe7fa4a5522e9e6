"""Random: any replica, each as likely as the others; the same choices for the same seed."""

from __future__ import annotations

from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.api import Request

if TYPE_CHECKING:
    from backends.serving.replica import Replica

_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 / golden ratio
_WORD = (1 << 64) - 1


@dataclass(slots=True)
class Random:
    """A counter-based generator, SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), so that the core draws nothing."""

    seed: int = 0
    _turn: int = field(default=0, init=False)

    def route(self, request: Request, replicas: ListOf[Replica]) -> int:  # noqa: ARG002  every request is equal
        """The next draw."""
        self._turn += 1
        return _mix(_mix(self.seed) + self._turn * _GOLDEN) * len(replicas) >> 64


def _mix(z: int) -> int:
    z &= _WORD
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _WORD
    return z ^ (z >> 31)

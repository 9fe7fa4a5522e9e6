"""Linear layers with weights of few bits and FP16 activations: what reading fewer bytes gains, up to which batch.

Sources: Frantar et al., MARLIN, PPoPP 2025 (the ideal curve counts activations); Ding et al., Tilus, arXiv 2504.12984
(bit widths from 1 to 8).
"""

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from msgspec import convert

from harness.data.codec import Part


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights of `bits` bits with an FP16 scale for each `group` of them, on a GPU with `flops` per byte of memory.

    `inner` x `columns` is the matrix, whose size decides how much activations count.
    """

    bits: int
    group: int
    flops: float
    inner: int = 18432
    columns: int = 73728

    @property
    def weight_bytes(self) -> float:
        """Bytes of a weight with its share of the scale."""
        return (self.bits + 16 / self.group) / 8

    @property
    def bound(self) -> float:
        """Speed-up over FP16 if nothing but weights were read: 16 / (bits + 16 / group)."""
        return 2 / self.weight_bytes

    @property
    def crossover(self) -> float:
        """The batch from which on arithmetic takes longer than reading the weights."""
        return self.weight_bytes * self.flops / 2

    def speed_up(self, batch: int) -> float:
        """Speed-up over FP16 by the roofline, with reading and writing of FP16 activations."""
        return self._bytes(batch, 2.0) / self._bytes(batch, self.weight_bytes)

    def _bytes(self, batch: int, weight_bytes: float) -> float:
        """Bytes per weight that take as long as the layer: those moved, or what memory reads during the arithmetic."""
        activations = 2 * batch * (self.inner + self.columns) / (self.inner * self.columns)
        return max(weight_bytes + activations, 2 * batch / self.flops)


class Marlin(Part, frozen=True):
    """MARLIN's published speed-ups over FP16 by batch size, on `gpu` with a matrix of `inner` x `columns`."""

    gpu: str
    bits: int
    group: int
    inner: int
    columns: int
    batch: tuple[int, ...]
    speed_up: tuple[float, ...]

    def at(self, weights: Weights, gpu: str) -> dict[int, float]:
        """The speed-ups by batch size, where they are those of these weights on that GPU; else nothing."""
        same = (self.gpu, self.bits, self.group, self.inner, self.columns)
        if same != (gpu, weights.bits, weights.group, weights.inner, weights.columns):
            return {}
        return dict(zip(self.batch, self.speed_up, strict=True))


@cache
def marlin() -> Marlin:
    """The stored figures; their source is named in the file."""
    text = Path(__file__).with_name("marlin.toml").read_text(encoding="utf-8")
    return convert(tomllib.loads(text), Marlin)

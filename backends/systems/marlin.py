"""MARLIN: weights of 4 bits that are multiplied as fast as they are read, up to batches of tens of sequences.

Source: Frantar et al., MARLIN: Mixed-Precision Auto-Regressive Parallel Inference on Large Language Models, PPoPP 2025;
IST-DASLab/marlin. It claims speed-ups near the ideal 3.87 times for batches of up to 16 to 32, and 2.8 times in vLLM.
`bench theory weights` has the ideal curve, `roofline:weight_bits=4.125` the steps of a model with such weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from harness import catalog
from harness.api import Row

MEASURED: Mapping[int, float] = MappingProxyType({1: 3.88, 2: 3.88, 4: 3.88, 8: 3.89, 16: 3.89, 128: 1.56})
"""Speed-up over FP16 by batch, read off IST-DASLab/marlin, assets/peak.png, to about 0.02; not read at 32 and 64."""
MEASURED_ON = ("a10", 4, 128, 18432, 73728)
"""GPU, bits, group, and the matrix of that figure."""


def weights(
    bits: int = 4, gpu: str = "a10", batch: int = 16, group: int = 128, inner: int = 18432, columns: int = 73728
) -> list[Row]:
    """Compute the speed-up over FP16 of a linear layer whose weights have few bits, by the roofline.

    The bound is that of reading weights alone, 16 / (bits + 16 / group). From the crossover batch on, arithmetic takes
    longer than reading the weights; the speed-up counts FP16 activations too. MARLIN's published speed-ups, read off a
    figure to about 0.02, stand beside it for the batches, matrix and GPU of that figure. Tilus reports 1.03x of MARLIN.

    Source: Frantar et al., MARLIN, PPoPP 2025; Ding et al., Tilus, arXiv 2504.12984.
    """
    if bits > 8:
        raise ValueError(f"bits must be from 1 to 8, got {bits}.")
    device = catalog.hardware(gpu)
    layer = Weights(bits, group, device.peak_flops(2) / device.bandwidth_bytes_per_s, inner, columns)
    speed_up = layer.speed_up(batch)
    measured = MEASURED.get(batch) if (gpu, bits, group, inner, columns) == MEASURED_ON else None
    return [{"bytes_per_weight": layer.weight_bytes, "bound_ratio": layer.bound, "crossover_batch": layer.crossover,
             "speed_up_ratio": speed_up, "marlin_ratio": measured,
             "of_roofline_share": None if measured is None else measured / speed_up}]  # fmt: skip


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

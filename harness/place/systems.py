"""What can be placed: a colocated replica, a pair of a prefill and a decode replica, or one side of it alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["colocated", "pair", "prefill", "decode"]


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """The parallelism of one replica: `tp` GPUs a stage, `pp` stages."""

    tp: int = 1
    pp: int = 1

    @property
    def gpus(self) -> int:
        """GPUs of one replica."""
        return self.tp * self.pp

    def __str__(self) -> str:
        return f"({self.tp},{self.pp})"


@dataclass(frozen=True, slots=True)
class System:
    """A candidate on one kind of GPU. `prefill` alone stands for a colocated replica too; of a pair both sides stand.

    `cross` is how many nodes its pipelines span: the shapes are those inside a node (algorithm 2), and each node
    holds a segment of both sides, so that KV never leaves it.
    """

    kind: Kind
    hardware: str
    prefill: Shape
    decode: Shape | None = None
    cross: int = 1

    @property
    def gpus(self) -> int:
        """GPUs of one unit; of one side tried alone, those of that side."""
        if self.kind == "pair":
            assert self.decode is not None
            return self.cross * (self.prefill.gpus + self.decode.gpus)
        return self.cross * self.prefill.gpus

    @property
    def name(self) -> str:
        """`P(2,1) D(1,1)`: (tp, pp) as the papers write it, pp over all nodes."""
        if self.kind == "pair":
            assert self.decode is not None
            return f"P{self._whole(self.prefill)} D{self._whole(self.decode)}"
        side = {"colocated": "", "prefill": "P", "decode": "D"}[self.kind]
        return f"{side}{self._whole(self.prefill)}"

    def _whole(self, shape: Shape) -> Shape:
        return Shape(shape.tp, self.cross * shape.pp)

    @property
    def parts(self) -> Mapping[str, object]:
        """The options of a run that make this system."""
        own = self._whole(self.prefill)
        if self.kind == "colocated":
            return {"tp": own.tp, "pp": own.pp} if own.pp > 1 else {"tp": own.tp}
        sides: dict[str, object] = {} if self.kind == "decode" else {"prefill": _role(own)}
        if self.kind == "prefill":
            return sides
        return {**sides, "decode": _role(own if self.decode is None else self._whole(self.decode))}

    def describe(self) -> dict[str, object]:
        """As it stands in place.json."""
        shape = {"tp": self.prefill.tp, "pp": self.cross * self.prefill.pp}
        told: dict[str, object] = {"kind": self.kind, "name": self.name, "hardware": self.hardware, "gpus": self.gpus,
                                   "cross_nodes": self.cross}  # fmt: skip
        if self.kind == "pair":
            assert self.decode is not None
            return {**told, "prefill": shape, "decode": {"tp": self.decode.tp, "pp": self.cross * self.decode.pp}}
        return {**told, {"colocated": "mixed"}.get(self.kind, self.kind): shape}


def _role(shape: Shape) -> str:
    return f"1:tp={shape.tp},pp={shape.pp}"

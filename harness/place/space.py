"""All systems that an algorithm looks at, and those that it leaves out with the reason.

Source of the enumeration: Zhong et al., DistServe, OSDI 2024, algorithms 1 and 2: tp divides the attention heads, pp
the layers, weights fit beside some KV memory, and the latency model has numbers for them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from harness import catalog
from harness.place.systems import Shape, System

Algorithm = Literal["low", "high", "vllm++"]
ALGORITHMS: tuple[Algorithm, ...] = ("high", "low", "vllm++")


@dataclass(frozen=True, slots=True)
class Skipped:
    """A parallelism that was left out, and why."""

    hardware: str
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Cluster:
    """`nodes` nodes with `per_node` GPUs each."""

    nodes: int
    per_node: int

    @property
    def gpus(self) -> int:
        """GPUs of all nodes."""
        return self.nodes * self.per_node


@dataclass(frozen=True, slots=True)
class Space:
    """The shapes of replicas of one model on one kind of GPU that can run, by whole stages, and those that cannot."""

    model: str
    hardware: str
    shapes: tuple[Shape, ...]
    skipped: tuple[Skipped, ...]

    def of(self, algorithm: Algorithm, cluster: Cluster) -> Iterator[System]:
        """The candidates of an algorithm."""
        if algorithm == "vllm++":
            return self._alone("colocated", cluster)
        if algorithm == "high":
            return (system for kind in ("prefill", "decode") for system in self._alone(kind, cluster))
        return self._pairs(cluster)

    def _alone(self, kind: Literal["colocated", "prefill", "decode"], cluster: Cluster) -> Iterator[System]:
        """Replicas of any parallelism: tp within a node, pp over all of them."""
        return (System(kind, self.hardware, shape) for shape in self.shapes if shape.gpus <= cluster.gpus)

    def _pairs(self, cluster: Cluster) -> Iterator[System]:
        """Algorithm 2: segments of both sides share a node; both pipelines span the same `cross` nodes."""
        known = set(self.shapes)
        for cross in range(1, cluster.nodes + 1):
            inside = [Shape(s.tp, s.pp // cross) for s in self.shapes if s.pp % cross == 0]
            for prefill in inside:
                for decode in inside:
                    whole = (Shape(shape.tp, cross * shape.pp) for shape in (prefill, decode))
                    if prefill.gpus + decode.gpus <= cluster.per_node and known.issuperset(whole):
                        yield System("pair", self.hardware, prefill, decode, cross)


def space(model: str, hardware: str, cluster: Cluster, refused: Callable[[Shape], str | None]) -> Space:
    """The shapes that fit a cluster; `refused` says why one of them cannot run, or None. Raises UsageError."""
    found = catalog.model(model)
    catalog.hardware(hardware)
    skipped = [*_undivided(found, hardware, cluster)]
    shapes = []
    for tp in _divisors(found.heads, cluster.per_node):
        for pp in _divisors(found.layers, cluster.gpus // tp):
            shape = Shape(tp, pp)
            reason = refused(shape)
            if reason is None:
                shapes.append(shape)
            else:
                skipped.append(Skipped(hardware, str(shape), reason))
    return Space(model, hardware, tuple(shapes), tuple(skipped))


def _undivided(model: object, hardware: str, cluster: Cluster) -> Iterator[Skipped]:
    """Numbers that divide neither heads nor layers, each told once."""
    heads, layers, name = model.heads, model.layers, model.name  # type: ignore[attr-defined]  # a model of the catalogue
    for tp in range(1, cluster.per_node + 1):
        if heads % tp:
            yield Skipped(hardware, f"tp {tp}", f"{tp} does not divide the {heads} attention heads of {name}")
    stages = [pp for pp in range(1, cluster.gpus + 1) if layers % pp]
    if stages:
        yield Skipped(hardware, f"pp {_listed(stages)}", f"does not divide the {layers} layers of {name}")


def _divisors(number: int, most: int) -> list[int]:
    return [n for n in range(1, most + 1) if number % n == 0]


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))

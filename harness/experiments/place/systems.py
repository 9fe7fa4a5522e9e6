"""What can be placed: a colocated replica, a pair of a prefill and a decode replica, or one side of it alone.

All systems that an algorithm considers, and those that it leaves out with the reason.

Source of the enumeration: Zhong et al., DistServe, OSDI 2024, algorithms 1 and 2: tp divides the attention heads, pp
the layers, weights fit beside some KV memory, and the latency model has numbers for them.

What a GPU costs: itself, money per hour, or watts; by kind of GPU, and by what it does where that matters.
"""

import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from harness import catalog
from harness.errors import UsageError

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
        fields: dict[str, object] = {"kind": self.kind, "name": self.name, "hardware": self.hardware, "gpus": self.gpus,
                                   "cross_nodes": self.cross}  # fmt: skip
        if self.kind == "pair":
            assert self.decode is not None
            return {**fields, "prefill": shape, "decode": {"tp": self.decode.tp, "pp": self.cross * self.decode.pp}}
        return {**fields, {"colocated": "mixed"}.get(self.kind, self.kind): shape}


def _role(shape: Shape) -> str:
    return f"1:tp={shape.tp},pp={shape.pp}"


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
    """Numbers that divide neither heads nor layers, each reported once."""
    heads, layers, name = model.heads, model.layers, model.name  # type: ignore[attr-defined]  # a model of the catalogue
    for tp in range(1, cluster.per_node + 1):
        if heads % tp:
            yield Skipped(hardware, f"tp {tp}", f"{tp} does not divide the {heads} attention heads of {name}")
    stages = [pp for pp in range(1, cluster.gpus + 1) if layers % pp]
    if stages:
        yield Skipped(hardware, f"pp {', '.join(map(str, stages))}", f"does not divide the {layers} layers of {name}")


def _divisors(number: int, most: int) -> list[int]:
    return [n for n in range(1, most + 1) if number % n == 0]


ObjectiveName = Literal["gpu", "cost", "power"]
OBJECTIVES: tuple[ObjectiveName, ...] = ("gpu", "cost", "power")
UNITS: Mapping[ObjectiveName, str] = {
    "gpu": "req/s per GPU",
    "cost": "requests per unit of money",
    "power": "requests per kJ",
}
ROLES = ("mixed", "prefill", "decode")


@dataclass(frozen=True, slots=True)
class Objective:
    """What a placement saves. `table` holds the price per hour, or the watts, of a kind of GPU in each role."""

    name: ObjectiveName = "gpu"
    table: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def of(self, system: System, rate_rps: float) -> float:
        """The value of a unit at its total rate: requests per GPU, cost or energy; `UNITS` has the unit."""
        taken = sum(
            gpus * (1.0 if self.name == "gpu" else self.table[system.hardware][role]) for role, gpus in sides(system)
        )
        return rate_rps / taken * {"gpu": 1.0, "cost": 3600.0, "power": 1000.0}[self.name]


def sides(system: System) -> list[tuple[str, int]]:
    """Roles of a unit and the GPUs that each has."""
    if system.kind == "pair":
        assert system.decode is not None
        return [("prefill", system.cross * system.prefill.gpus), ("decode", system.cross * system.decode.gpus)]
    return [("mixed" if system.kind == "colocated" else system.kind, system.gpus)]


def load_objective(name: ObjectiveName, file: str | None, hardware: tuple[str, ...]) -> Objective:
    """The objective with its table read from a TOML file: `h100 = 700`, or `[h100]` with prefill, decode and mixed.

    Raises UsageError for a file that is missing or lacks a kind of GPU that is searched.
    """
    option, what = {"gpu": ("", ""), "cost": ("--prices", "prices per GPU and hour"),
                    "power": ("--power", "watts per GPU")}[name]  # fmt: skip
    if name == "gpu":
        return Objective()
    if file is None:
        raise UsageError(f"--objective {name} needs {option} FILE, a TOML file of {what}: {hardware[0]} = 2.5")
    rows = _read(file)
    return Objective(name, {gpu: _row(rows, gpu, file, what) for gpu in hardware})


def _read(file: str) -> Mapping[str, object]:
    try:
        return tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"'{file}' cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"'{file}' is not TOML: {error}.") from None


def _row(rows: Mapping[str, object], name: str, file: str, what: str) -> Mapping[str, float]:
    row = rows.get(name)
    if row is None:
        known = ", ".join(sorted(rows)) or "nothing"
        raise UsageError(f"'{file}' has no entry for '{name}' ({what}); it has {known}. Add a line: {name} = 2.5")
    if not isinstance(row, Mapping):
        return dict.fromkeys(ROLES, _number(row, name, file))
    missing = [role for role in ROLES if role not in row]
    if missing:
        raise UsageError(f"'{file}' has no '{missing[0]}' for '{name}'; a table needs {', '.join(ROLES)}.")
    return {role: _number(row[role], f"{name}.{role}", file) for role in ROLES}


def _number(value: object, name: str, file: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise UsageError(f"{name} in '{file}' must be a number above 0, got {value!r}.")
    return float(value)

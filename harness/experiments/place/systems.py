"""What can be placed: replicas alike, prefill and decode replicas, or one side of these alone.

All shapes that an algorithm considers, and those that it leaves out with the reason.

Source of the enumeration: Zhong et al., DistServe, OSDI 2024, algorithms 1 and 2: tp divides the attention heads, pp
the layers, weights fit beside some KV memory, and the latency model has numbers for them.

What a GPU costs: itself, money per hour, or watts; by kind of GPU, and by what it does where that matters.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from harness import catalog, untrusted
from harness.catalog import Model, Shape
from harness.errors import UsageError
from harness.experiments.place.place_json import PlaceSkipped

Role = Literal["mixed", "prefill", "decode"]
Kind = Literal["colocated", "pair", "prefill", "decode"]
_LETTER: Mapping[Role, str] = {"mixed": "", "prefill": "P", "decode": "D"}
NETWORK = "400Gbps"
"""The link between replicas that share no node, where the argument `link` does not name one."""
Algorithm = Literal["low", "high", "vllm++"]
ROLES_OF: Mapping[Algorithm, tuple[Role, ...]] = {
    "high": ("prefill", "decode"), "low": ("prefill", "decode"), "vllm++": ("mixed",),
}  # fmt: skip
"""The roles of the replicas of each algorithm."""
ObjectiveName = Literal["gpu", "cost", "power"]
UNITS: Mapping[ObjectiveName, str] = {
    "gpu": "req/s per GPU",
    "cost": "requests per unit of money",
    "power": "requests per kJ",
}
ROLES: tuple[Role, ...] = ("mixed", "prefill", "decode")


def further_axes(shape: Shape) -> dict[str, int]:
    """Its dp and ep, where they are more than 1."""
    return {name: value for name in ("dp", "ep") if (value := getattr(shape, name)) > 1}


def label(shape: Shape) -> str:
    """`(2,1)`: (tp, pp) as the papers write it; `(1,1,dp=4,ep=4)` with data- and expert-parallel groups."""
    further = "".join(f",{name}={value}" for name, value in further_axes(shape).items())
    return f"({shape.tp},{shape.pp}{further})"


@dataclass(frozen=True, slots=True, order=True)
class Group:
    """`count` equal replicas of one role on one kind of GPU."""

    role: Role
    hardware: str
    shape: Shape
    count: int = 1

    @property
    def gpus(self) -> int:
        return self.count * self.shape.gpus

    @property
    def name(self) -> str:
        """`P(2,1)`: role and (tp, pp) as the papers write it, or `P(1,1,dp=4,ep=4)`."""
        return f"{_LETTER[self.role]}{label(self.shape)}"

    def spec(self, hardware: str) -> str:
        """As `--prefill` and `--decode` take it, in a system of that hardware."""
        other = "" if self.hardware == hardware else f",hardware={self.hardware}"
        further = "".join(f",{name}={value}" for name, value in further_axes(self.shape).items())
        return f"{self.count}:tp={self.shape.tp},pp={self.shape.pp}{further}{other}"


@dataclass(frozen=True, slots=True, order=True)
class Deployment:
    """Groups of replicas that serve together, prefill first; one side alone is tried as if the other were unlimited."""

    groups: tuple[Group, ...]

    @property
    def kind(self) -> Kind:
        """What it is: replicas alike, both sides, or one of them."""
        if len(self.groups) == 2:
            return "pair"
        role = self.groups[0].role
        return "colocated" if role == "mixed" else role

    @property
    def gpus(self) -> int:
        return sum(group.gpus for group in self.groups)

    @property
    def hardware(self) -> str:
        return " + ".join(dict.fromkeys(group.hardware for group in self.groups))

    @property
    def name(self) -> str:
        """`P(2,1) D(1,1)`, or `2 x P(1,1) + 1 x D(1,1)`."""
        if all(group.count == 1 for group in self.groups):
            return " ".join(group.name for group in self.groups)
        return " + ".join(f"{group.count} x {group.name}" for group in self.groups)

    @property
    def key(self) -> str:
        """Its name with the kinds of GPU, unique in a search."""
        return " + ".join(f"{group.count} x {group.name} {group.hardware}" for group in self.groups)

    def counted(self, *counts: int) -> "Deployment":
        """The same with so many replicas in each group."""
        return Deployment(tuple(replace(group, count=n) for group, n in zip(self.groups, counts, strict=True)))

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(group.count for group in self.groups)

    @property
    def parts(self) -> dict[str, object]:
        """The options of a run that make it, but for the link."""
        first = self.groups[0]
        options: dict[str, object] = {"hardware": first.hardware}
        if first.role == "mixed":
            shape = first.shape
            more = {"tp": shape.tp, "pp": shape.pp, "replicas": first.count} | further_axes(shape)
            return {**options, **{name: value for name, value in more.items() if value > 1 or name == "tp"}}
        return {**options, **{group.role: group.spec(first.hardware) for group in self.groups}}

    def in_pairs(self, cluster: "Cluster") -> bool:
        """Whether each prefill replica shares its nodes with a decode replica of the same kind of GPU."""
        prefill, decode = self.groups
        same = prefill.hardware == decode.hardware and prefill.count == decode.count
        return same and cluster.share_nodes(prefill.shape, decode.shape)

    def link(self, cluster: "Cluster") -> str | None:
        """The default link from prefill to decode: that within a node where all of it is on one, or where as many of
        each side share theirs in pairs. None where KV is not handed on."""
        if self.kind != "pair":
            return None
        prefill, decode = self.groups
        if not (self.in_pairs(cluster) or (prefill.hardware == decode.hardware and self.gpus <= cluster.per_node)):
            return NETWORK
        return "pcie" if catalog.hardware(prefill.hardware).nvlink_bytes_per_s is None else "nvlink"


@dataclass(frozen=True, slots=True)
class Cluster:
    """`nodes` nodes with `per_node` GPUs each."""

    nodes: int
    per_node: int

    @property
    def gpus(self) -> int:
        return self.nodes * self.per_node

    def holds(self, deployment: Deployment) -> bool:
        """Whether there are GPUs enough; a node has one kind."""
        kinds: dict[str, int] = {}
        for group in deployment.groups:
            kinds[group.hardware] = kinds.get(group.hardware, 0) + group.gpus
        return sum(math.ceil(gpus / self.per_node) for gpus in kinds.values()) <= self.nodes

    def share_nodes(self, prefill: Shape, decode: Shape) -> bool:
        """Whether a pair can be spread over nodes so that each has a segment of both pipelines (algorithm 2)."""
        return any(
            (prefill.gpus + decode.gpus) // cross <= self.per_node
            for cross in range(1, self.nodes + 1)
            if prefill.pp % cross == 0 == decode.pp % cross
        )


def shapes_in(
    cluster: Cluster, model: str, group: Group, kv_tokens: Callable[[Group], int]
) -> tuple[dict[Shape, int], list[PlaceSkipped]]:
    """The shapes of replicas like `group` that fit a cluster, with the tokens of KV of each, and those that cannot run.

    `kv_tokens` raises UsageError, which says why, for one of these. Raises UsageError for an unknown model or GPU.
    """
    model_facts, hardware = catalog.model(model), group.hardware
    catalog.hardware(hardware)
    skipped = [*_undivided(model_facts, hardware, cluster)]
    shapes: dict[Shape, int] = {}
    divided = (  # tensor-parallel within a node, pipelines over all of them
        Shape(tp, pp)
        for tp in _divisors(model_facts.heads, cluster.per_node)
        for pp in _divisors(model_facts.layers, cluster.gpus // tp)
    )
    for shape in (*divided, *_wide(model_facts, cluster)):
        try:
            shapes[shape] = kv_tokens(replace(group, shape=shape))
        except UsageError as error:
            skipped.append(PlaceSkipped(hardware, label(shape), str(error).rstrip(".")))
    return shapes, skipped


def _wide(m: Model, cluster: Cluster) -> Iterator[Shape]:
    """Of a mixture of experts: experts on all GPUs of a replica, whose attention is divided by tp or data-parallel.

    Only replicas of a power of two of GPUs are tried.
    """
    if m.experts is None:
        return
    gpus = 2
    while gpus <= min(cluster.gpus, m.experts.routed):
        for tp in (gpus, 1) if gpus <= cluster.per_node else (1,):
            if m.heads % tp == 0:
                yield Shape(tp, 1, gpus // tp, gpus)
        gpus *= 2


def _undivided(model: Model, hardware: str, cluster: Cluster) -> Iterator[PlaceSkipped]:
    """Numbers that divide neither heads nor layers, each reported once."""
    heads, layers, name = model.heads, model.layers, model.name
    for tp in range(1, cluster.per_node + 1):
        if heads % tp:
            yield PlaceSkipped(hardware, f"tp {tp}", f"{tp} does not divide the {heads} attention heads of {name}")
    stages = [pp for pp in range(1, cluster.gpus + 1) if layers % pp]
    if stages:
        stages_text = f"pp {', '.join(map(str, stages))}"
        yield PlaceSkipped(hardware, stages_text, f"does not divide the {layers} layers of {name}")


def _divisors(number: int, most: int) -> list[int]:
    return [n for n in range(1, most + 1) if number % n == 0]


@dataclass(frozen=True, slots=True)
class Objective:
    """What a placement saves. `table` holds the price per hour, or the watts, of a kind of GPU in each role."""

    name: ObjectiveName = "gpu"
    table: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def taken(self, deployment: Deployment) -> float:
        """What it takes: GPUs, money per hour, or watts."""
        if self.name == "gpu":
            return float(deployment.gpus)
        return sum(group.gpus * self.table[group.hardware][group.role] for group in deployment.groups)

    def of(self, deployment: Deployment, rate_rps: float) -> float:
        """Its value at a rate: requests per GPU, money or energy; `UNITS` has the unit."""
        return rate_rps / self.taken(deployment) * {"cost": 3600.0, "power": 1000.0}.get(self.name, 1.0)


def load_objective(name: ObjectiveName, file: str, hardware: tuple[str, ...]) -> Objective:
    """Read the table of an objective from a TOML file: `h100 = 700`, or `[h100]` with prefill, decode and mixed.

    Raises UsageError for a file that is missing or lacks a kind of GPU that is searched.
    """
    what = "prices per GPU and hour" if name == "cost" else "watts per GPU"
    with untrusted.readable(f"'{file}'"):
        rows = untrusted.read_toml(Path(file))
    return Objective(name, {gpu: _row(rows, gpu, file, what) for gpu in hardware})


def _row(rows: Mapping[str, object], name: str, file: str, what: str) -> Mapping[str, float]:
    row = rows.get(name)
    if row is None:
        names = ", ".join(sorted(rows)) or "nothing"
        raise UsageError(f"'{file}' has no entry for '{name}' ({what}); it has {names}. Add a line: {name} = 2.5")
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

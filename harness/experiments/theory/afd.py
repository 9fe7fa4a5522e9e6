"""Decode with attention and experts on different GPUs (AFD) beside colocated replicas: tokens per second and GPU.

Source: MegaScale-Infer, arXiv 2504.02263: times linear in the micro-batch (Ta = k1 b + k2, Te = k3 b + k4), transfers,
the search of the deployment, and the rule that balances both sides. Here the constants are those of the peaks of the
GPU: arithmetic and memory traffic add up, for both systems alike. Sizes are those of BF16.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import floor, inf

from harness.catalog import Experts, Hardware, Model
from harness.errors import UsageError
from harness.experiments.theory.moe import PingPong

ELEMENT_BYTES = 2
MEMORY_SHARE = 0.9
DEGREES = (1, 2, 4, 8)
"""GPUs of a node that a part is divided over."""
MICRO_BATCHES = (3, 4)
MOST_NODES = 64


@dataclass(frozen=True, slots=True)
class Decode:
    """A decode of `model` on `gpu` with `context` tokens of each sequence, within `itl_s` a step.

    Nodes of attention and experts exchange `network_bytes_per_s` per GPU and direction.
    """

    model: Model
    gpu: Hardware
    context: int
    itl_s: float
    network_bytes_per_s: float

    @property
    def experts(self) -> Experts:
        """The experts of the model. Raises UsageError where it has none."""
        if self.model.experts is None:
            raise UsageError(f"{self.model.name} has no experts; name a mixture of experts, such as mixtral-8x22b.")
        return self.model.experts

    def kv_bytes(self, tp: int) -> float:
        """KV of a sequence on one GPU, in one layer."""
        return self.context * self.model.kv_elements_per_gpu(tp) * ELEMENT_BYTES

    def attention(self, tp: int) -> tuple[float, float]:
        """k1 and k2: seconds per sequence, and of reading the weights, of attention on one of `tp` GPUs."""
        matrix = self.model.attention_matrix(tp)
        kv_s = self.kv_bytes(tp) / self.gpu.bandwidth_bytes_per_s
        return self._product_s(matrix) + kv_s + self.reduce_s(tp), self._read_s(matrix)

    def expert(self, tp: int) -> tuple[float, float]:
        """k3 and k4: the same per token of one expert, whose node has `tp` GPUs."""
        matrix = self.model.expert_matrix / tp
        return self._product_s(matrix) + self.reduce_s(tp), self._read_s(matrix)

    @property
    def memory_bytes(self) -> float:
        """Bytes of a GPU for weights and KV."""
        return MEMORY_SHARE * self.gpu.memory_bytes

    def batch_within(self, most: int, step_s: Callable[[int], float]) -> int:
        """The largest batch, up to `most`, whose step meets the SLO; 0 where none does."""
        low, high = 0, max(0, most)
        while low < high:
            middle = (low + high + 1) // 2
            if step_s(middle) <= self.itl_s:
                low = middle
            else:
                high = middle - 1
        return low

    def _product_s(self, matrix: float) -> float:
        return 2 * matrix / self.gpu.bf16_flops

    def _read_s(self, matrix: float) -> float:
        return matrix * ELEMENT_BYTES / self.gpu.bandwidth_bytes_per_s

    def reduce_s(self, tp: int) -> float:
        """A ring all-reduce of the hidden state of one token over `tp` GPUs of a node."""
        return 2 * (tp - 1) / tp * self.model.hidden * ELEMENT_BYTES / self.gpu.link_bytes_per_s


@dataclass(frozen=True, slots=True)
class Colocated:
    """A replica of `tp` GPUs a stage and `pp` stages, each with a batch of its own."""

    tp: int
    pp: int
    batch: int
    step_s: float

    @property
    def rate(self) -> float:
        """Tokens per second and GPU."""
        return self.batch / self.step_s / self.tp


@dataclass(frozen=True, slots=True)
class Disaggregated:
    """`nodes` nodes of attention of `tp_a` GPUs, a node of `tp_e` GPUs for each expert, `m` micro-batches of `batch`
    sequences on each node of attention. `rule`: how many nodes balance both sides, k1 E / (k3 K)."""

    tp_a: int
    tp_e: int
    nodes: int
    m: int
    batch: int
    step: PingPong
    gpus: int
    rule: float

    @property
    def rate(self) -> float:
        """Tokens per second and GPU."""
        return self.batch * self.m * self.nodes / self.step.formula_s(self.m) / self.gpus


def colocated(decode: Decode) -> Colocated | None:
    """The best replica of whole nodes or parts of them; None where the model does not fit on eight stages of them."""
    model, experts, found = decode.model, decode.experts, []
    for tp in DEGREES:
        for pp in (n for n in range(1, 9) if model.layers % n == 0):
            layers = model.layers // pp
            weights = layers * (model.attention_matrix(tp) + experts.routed * model.expert_matrix / tp)
            weights += 2 * model.embedding / tp / pp
            room = decode.memory_bytes - weights * ELEMENT_BYTES
            (k1, k2), (k3, k4) = decode.attention(tp), decode.expert(tp)

            one_s = k1 + k3 * experts.per_token - (experts.per_token - 1) * decode.reduce_s(tp)  # one reduce of all

            def step_s(size: int, one_s: float = one_s, k2: float = k2, k4: float = k4) -> float:
                return model.layers * (one_s * size + k2 + k4 * experts.hit(size))

            batch = decode.batch_within(floor(room / (decode.kv_bytes(tp) * layers * pp)), step_s)
            if batch:
                found.append(Colocated(tp, pp, batch, step_s(batch)))
    return max(found, key=lambda one: one.rate, default=None)


def disaggregated(decode: Decode, tp_a: int, tp_e: int, nodes: int) -> Disaggregated | None:
    """The best batch and number of micro-batches that hide the transfers; None where none does, or nothing fits."""
    model, experts = decode.model, decode.experts
    (k1, k2), (k3, k4) = decode.attention(tp_a), decode.expert(tp_e)
    if model.expert_matrix * model.layers * ELEMENT_BYTES / tp_e > decode.memory_bytes:
        return None
    weights = model.layers * model.attention_matrix(tp_a) + 2 * model.embedding / tp_a
    room = decode.memory_bytes - weights * ELEMENT_BYTES
    per_expert = nodes * experts.per_token / experts.routed  # tokens of an expert by those of a node of attention

    def step(batch: int) -> PingPong:
        at_expert = batch * per_expert
        sent = max(batch * experts.per_token / tp_a, at_expert / tp_e) * model.hidden * ELEMENT_BYTES
        return PingPong(k1 * batch + k2, k3 * at_expert + k4, sent / decode.network_bytes_per_s, model.layers)

    best: list[Disaggregated] = []
    for m in MICRO_BATCHES:
        most = floor(room / (decode.kv_bytes(tp_a) * model.layers) / m)
        batch = decode.batch_within(most, partial(_hidden_s, step, m))
        if batch:
            gpus, rule = nodes * tp_a + experts.routed * tp_e, k1 * experts.routed / (k3 * experts.per_token)
            best.append(Disaggregated(tp_a, tp_e, nodes, m, batch, step(batch), gpus, rule))
    return max(best, key=lambda one: one.rate, default=None)


def _hidden_s(step: Callable[[int], PingPong], m: int, batch: int) -> float:
    """Seconds of a step, for which the formula is exact; infinite where so few micro-batches do not hide transfers.

    The share of transfers grows with the batch, as both sides have constant parts and transfers have none.
    """
    found = step(batch)
    return found.formula_s(m) if found.least <= m else inf


def deployments(decode: Decode) -> Iterator[Disaggregated]:
    """For each division of both sides the best number of nodes of attention."""
    for tp_a in DEGREES:
        for tp_e in DEGREES:
            several = (disaggregated(decode, tp_a, tp_e, nodes) for nodes in range(1, MOST_NODES + 1))
            best = max((one for one in several if one is not None), key=lambda one: one.rate, default=None)
            if best is not None:
                yield best

"""MegaScale-Infer: attention and experts of a model on GPUs of their own, each with the batch that suits it.

Source: Zhu et al., MegaScale-Infer (arXiv 2504.02263): ping-pong pipelines of micro-batches between nodes of attention
and of experts. It claims up to 2.56 times the decode rate per GPU of vLLM, and 1.28 times that of TensorRT-LLM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import heapify, heappop, heappush
from math import floor, inf
from typing import Any, NamedTuple

import numpy as np

from backends.latency.roofline import Roofline
from harness import catalog
from harness.api import Row
from harness.bounds import AtLeastOne, check
from harness.catalog import Experts, Hardware, Model
from harness.errors import UsageError
from harness.spec import link_bytes_per_s

ELEMENT_BYTES = 2
"""Weights and KV of BF16 in the closed forms."""
MEMORY_SHARE = 0.9
DEGREES = (1, 2, 4, 8)
"""GPUs of a node that a part is divided over."""
MICRO_BATCHES = (3, 4)
MOST_NODES = 64
SHOWN_DIVISIONS = 5
"""Divisions of attention and experts that `afd` lists, the best first."""
MOST_VISITS = 1_000_000
"""Visits of micro-batches to layers that are simulated."""


class _Micro(NamedTuple):
    """Seconds of a micro-batch of so many tokens in all layers: attention without KV, experts, transfers one way."""

    plain_s: float
    experts_s: float
    sent_s: float


@dataclass(frozen=True, slots=True)
class AfLatency:
    """Attention and experts on different GPUs: micro-batches take turns between the two (MegaScale-Infer).

    The times of both sides are those of the roofline.

    A step of a mixture of experts whose attention and routed experts are on different GPUs.

    The replica's own GPUs (`tp` x `dp` of `hardware`) have attention, KV and all that is no expert; `experts` more GPUs
    of `expert_hardware` (by default the same kind) have the experts, whole ones on each. The tokens of a step are cut
    into `micro` micro-batches: while one is with its experts, attention computes another. Both ways a token is sent to
    each of its experts over `network_bytes_per_s` a GPU and direction (by default that of the slower kind of GPU).
    """

    experts: AtLeastOne = 8
    expert_hardware: str | None = None
    micro: AtLeastOne = 3
    network_bytes_per_s: float | None = None
    model: str = "mixtral-8x22b"
    hardware: str = "a100-80g"
    tp: int = 1
    dp: int = 1
    _attention: Roofline = field(init=False, repr=False, compare=False)
    _experts: Roofline = field(init=False, repr=False, compare=False)
    _network: float = field(init=False, repr=False, compare=False)
    _layers: int = field(init=False, repr=False, compare=False)
    _known: dict[int, _Micro] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check(self)
        m = catalog.model(self.model)
        kinds = [catalog.hardware(self.hardware), catalog.hardware(self.expert_kind)]
        if m.experts is None:
            raise UsageError(f"latency=af parts attention from experts, and {self.model} has none; leave it out.")
        network = self.network_bytes_per_s or min(gpu.network_bytes_per_s or 0.0 for gpu in kinds)
        if not network > 0:
            raise UsageError("latency=af needs the rate of the network of a GPU; give network_bytes_per_s=25e9.")
        put, parts = object.__setattr__, self.experts
        put(self, "_attention", Roofline(model=self.model, hardware=self.hardware, tp=self.tp, dp=self.dp))
        put(self, "_experts", Roofline(model=self.model, hardware=self.expert_kind, dp=parts, ep=parts))
        put(self, "_network", network)
        put(self, "_layers", m.layers)
        put(self, "_known", {})
        needed, available = catalog.expert_bytes(m, parts), kinds[1].memory_bytes
        if needed > 0.95 * available:
            raise UsageError(
                f"The experts of {self.model} take {needed / 1e9:.0f} GB on each of {parts} GPUs, and a "
                f"{self.expert_kind} has {available / 1e9:.0f} GB; give more, such as experts={2 * parts}."
            )

    @property
    def expert_gpus(self) -> int:
        """GPUs beside those of the shape."""
        return self.experts

    @property
    def expert_kind(self) -> str:
        """Their kind."""
        return self.expert_hardware or self.hardware

    def step_s(self, prefills: Sequence[tuple[int, int]], decode_seqs: int, context_tokens: int) -> float:
        """Seconds of one step; `prefills` holds (new tokens, tokens already stored) per piece of prompt."""
        tokens = decode_seqs + sum(new for new, _ in prefills)
        kv_s = self._attention.kv_s(prefills, decode_seqs, context_tokens)
        return float(self._step_s(tokens, decode_seqs + len(prefills), kv_s))

    def decode_s(self, decode_seqs: int, context_tokens: int) -> float:
        """Seconds of a step of decodes alone."""
        return self.step_s((), decode_seqs, context_tokens)

    def decode_line(self, decode_seqs: int) -> None:
        """None: which side is the slower one changes with the context."""

    def decode_many_s(self, decode_seqs: int, context_tokens: np.ndarray) -> np.ndarray:
        """(k,) seconds of decode steps with these (k,) cached tokens."""
        times_s: np.ndarray = self._step_s(
            decode_seqs, decode_seqs, self._attention.kv_s((), decode_seqs, context_tokens)
        )
        return times_s

    def _step_s(self, tokens: int, seqs: int, kv_s: Any) -> Any:
        """`kv_s`: seconds of the attention over KV of all micro-batches, a number or several.

        One pass of a micro-batch through a layer, then in each further layer the longer of such a pass and of the
        slower side serving all micro-batches, and the others' turns at the end.
        """
        batch = self._micro(-(-tokens // self.micro))
        attention_s, experts_s = (batch.plain_s + kv_s / self.micro) / self._layers, batch.experts_s / self._layers
        slower_s = np.maximum(attention_s, experts_s)
        pass_s = attention_s + experts_s + 2 * batch.sent_s / self._layers
        turns_s = (self._layers - 1) * np.maximum(self.micro * slower_s, pass_s) + (self.micro - 1) * slower_s
        return self._attention.ends_s(seqs) + pass_s + turns_s

    def _micro(self, tokens: int) -> _Micro:
        times = self._known.get(tokens)
        if times is None:
            m, group_tokens = self._attention.description, -(-tokens // self.dp)
            assert m.experts is not None
            gpus = min(self.tp * self.dp, self.experts)
            sent_bytes = tokens * m.experts.per_token * m.hidden * 2 / gpus
            times = self._known[tokens] = _Micro(
                self._attention.beside_experts_s(group_tokens),
                self._experts.experts_s(tokens, -(-tokens // self.experts)),
                m.routed_layers * sent_bytes / self._network,
            )
        return times


def ping_pong(
    m: int = 3, transfer_s: float = 0.3e-3, attention_s: float = 1e-3, experts_s: float = 1e-3, layers: int = 56
) -> list[Row]:
    """Time a decode step with attention and experts on different GPUs, in `m` micro-batches.

    The times are those of a micro-batch and layer, a transfer one way. The formula, attention + experts + 2 transfers +
    slower side x (m layers - 1), is exact from 'least m' = 2 (1 + transfer / slower side) on; the simulation follows
    every micro-batch, and is longer with fewer. 'of ideal' is the share of the step in which the slower side works,
    'gain' the gain in throughput by the last micro-batch.

    Source: MegaScale-Infer, arXiv 2504.02263.
    """
    if m * layers > MOST_VISITS:
        raise ValueError(f"{m:,} micro-batches in {layers:,} layers are more than {MOST_VISITS:,} visits.")
    step = PingPong(attention_s, experts_s, transfer_s, layers)
    share = step.busy_share(m)
    return [{"least_m": step.least, "hidden": m >= step.least, "formula_s": step.formula_s(m),
             "simulated_s": step.simulated_s(m), "of_ideal_share": share,
             "gain_ratio": share / step.busy_share(m - 1) if m > 1 else None}]  # fmt: skip


def afd(
    experts: int | None = None, model: str = "mixtral-8x22b", gpu: str = "a100-80g", context_tokens: int = 650,
    itl_s: float = 0.15, link: str = "200Gbps",
) -> list[Row]:  # fmt: skip
    """Compare the best deployments with attention and experts on different GPUs with the best colocated replica.

    Decode tokens per second and GPU with steps within itl_s; no experts stand for those of the model. 'gain' is over
    the colocated replica. Only 3 or 4 micro-batches (m) that hide the transfers count. 'rule' is the number of
    attention nodes that balances both sides, k1 E / (k3 K). Constants are those of the peaks; arithmetic and memory
    traffic add up for both; tokens choose experts evenly.

    Source: MegaScale-Infer, arXiv 2504.02263.
    """
    decode = Decode(catalog.model(model), catalog.hardware(gpu), context_tokens, itl_s, link_bytes_per_s(link))
    if experts is not None:
        if experts < decode.experts.per_token:
            raise ValueError(f"a token of {model} visits {decode.experts.per_token} experts, got {experts}.")
        decode = replace(decode, model=replace(decode.model, experts=replace(decode.experts, routed=experts)))
    together = colocated(decode)
    rows: list[Row] = [
        {"system": f"colocated, tp {together.tp}, pp {together.pp}", "gpus": together.tp * together.pp,
         "sequences": together.batch * together.pp, "per_gpu_tokens_per_s": together.rate}
    ] if together else []  # fmt: skip
    best = sorted(deployments(decode), key=lambda division: -division.rate)[:SHOWN_DIVISIONS]
    return rows + [
        {"system": f"attention tp {division.tp_a}, experts tp {division.tp_e}", "gpus": division.gpus,
         "sequences": division.batch * division.m * division.nodes, "per_gpu_tokens_per_s": division.rate,
         "gain_ratio": division.rate / together.rate if together else None, "m": division.m, "nodes": division.nodes,
         "rule": division.rule}
        for division in best
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class PingPong:
    """A step of `layers` layers: `attention_s` and `experts_s` of a micro-batch, `transfer_s` each way."""

    attention_s: float
    experts_s: float
    transfer_s: float
    layers: int

    @property
    def slower_s(self) -> float:
        """Seconds of the slower side."""
        return max(self.attention_s, self.experts_s)

    @property
    def least(self) -> float:
        """Micro-batches from which on transfers are hidden: 2 (1 + transfer / slower side)."""
        return 2 * (1 + self.transfer_s / self.slower_s)

    def formula_s(self, micro_batches: int) -> float:
        """Seconds of a step by the formula: one pass, and the slower side for all others."""
        once_s = self.attention_s + self.experts_s + 2 * self.transfer_s
        return once_s + self.slower_s * (micro_batches * self.layers - 1)

    def simulated_s(self, micro_batches: int) -> float:
        """Seconds of a step, event by event: each side serves micro-batches as they come."""
        waiting = [(0.0, number, 0) for number in range(micro_batches)]  # (arrival, micro-batch, visits so far)
        heapify(waiting)
        free_s, end_s = [0.0, 0.0], 0.0  # attention, experts
        service_s = (self.attention_s, self.experts_s)
        while waiting:
            at_s, number, visits = heappop(waiting)
            side = visits % 2
            free_s[side] = max(at_s, free_s[side]) + service_s[side]
            end_s = free_s[side] + self.transfer_s
            if visits + 1 < 2 * self.layers:
                heappush(waiting, (end_s, number, visits + 1))
        return end_s

    def busy_share(self, micro_batches: int) -> float:
        """Share of the step in which the slower side works: the throughput, of what is possible at most."""
        return micro_batches * self.layers * self.slower_s / self.simulated_s(micro_batches)


@dataclass(frozen=True, slots=True)
class Decode:
    """A decode of `model` on `gpu` with `context` tokens of each sequence, within `itl_s` a step.

    Nodes of attention and experts exchange `network_bytes_per_s` per GPU and direction. Times are linear in the
    micro-batch: k1 b + k2 of attention, k3 b + k4 of experts.
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
    model, experts, replicas = decode.model, decode.experts, []
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
                replicas.append(Colocated(tp, pp, batch, step_s(batch)))
    return max(replicas, key=lambda replica: replica.rate, default=None)


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

    several: list[Disaggregated] = []
    for m in MICRO_BATCHES:
        most = floor(room / (decode.kv_bytes(tp_a) * model.layers) / m)
        batch = decode.batch_within(most, partial(_hidden_s, step, m))
        if batch:
            gpus, rule = nodes * tp_a + experts.routed * tp_e, k1 * experts.routed / (k3 * experts.per_token)
            several.append(Disaggregated(tp_a, tp_e, nodes, m, batch, step(batch), gpus, rule))
    return max(several, key=lambda division: division.rate, default=None)


def _hidden_s(step: Callable[[int], PingPong], m: int, batch: int) -> float:
    """Seconds of a step, for which the formula is exact; infinite where so few micro-batches do not hide transfers.

    The share of transfers grows with the batch, as both sides have constant parts and transfers have none.
    """
    ping_pong = step(batch)
    return ping_pong.formula_s(m) if ping_pong.least <= m else inf


def deployments(decode: Decode) -> Iterator[Disaggregated]:
    """For each division of both sides the best number of nodes of attention."""
    for tp_a in DEGREES:
        for tp_e in DEGREES:
            several = (disaggregated(decode, tp_a, tp_e, nodes) for nodes in range(1, MOST_NODES + 1))
            best = max((d for d in several if d is not None), key=lambda division: division.rate, default=None)
            if best is not None:
                yield best

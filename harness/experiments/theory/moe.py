"""Experts on GPUs: tokens that an expert needs, attention and experts on different GPUs (AFD), load and redundancy.

Sources: DeepSeek-V3 technical report, arXiv 2412.19437, section 3.4 (deployment; redundant experts by load) and 2.1.2
(node-limited routing); MegaScale-Infer, arXiv 2504.02263 (times linear in the micro-batch, Ta = k1 b + k2 and Te = k3 b
+ k4; the total time of a step whose micro-batches go to and fro and hide the transfers; the search of the deployment,
and the rule that balances both sides); deepseek-ai/EPLB (replicas for the most loaded expert, heaviest first onto the
least loaded GPU); ai-dynamo/aiconfigurator, `power_law_logits_v3` (popularity of experts). Constants are those of the
peaks of the GPU: arithmetic and memory traffic add up, for all systems alike. Sizes are those of BF16.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from heapq import heapify, heappop, heappush, heapreplace
from math import ceil, floor, inf

import numpy as np
import numpy.typing as npt

from harness.catalog import Experts, Hardware, Model, Shape
from harness.errors import UsageError

ELEMENT_BYTES = 2
MEMORY_SHARE = 0.9
DEGREES = (1, 2, 4, 8)
"""GPUs of a node that a part is divided over."""
MICRO_BATCHES = (3, 4)
MOST_NODES = 64

Array = npt.NDArray[np.float64]
HOTTEST = 0.8
"""Share of the tokens up to which the power law of popularity reaches."""
AT_ONCE = 4096
"""Tokens that choose their experts in one array."""
STEPS = 4
"""Steps after the one whose counters decide where experts are placed."""


@dataclass(frozen=True, slots=True)
class ExpertMatrix:
    """One matrix of an expert, `inner` x `columns`; `element_bytes` is 1 for FP8. The defaults are DeepSeek-V3's."""

    inner: int = 7168
    columns: int = 2048
    element_bytes: float = 1.0

    def intensity(self, rows: float) -> float:
        """FLOP per byte of `rows` tokens times the matrix: 2MNK / (MK + NK + MN) elements."""
        k, n = self.columns, self.inner
        if rows == inf:
            return 2 * n * k / (k + n) / self.element_bytes
        return 2 * rows * n * k / (rows * k + n * k + rows * n) / self.element_bytes

    def rows_for(self, ridge: float) -> int | None:
        """The fewest tokens of an expert with at least `ridge` FLOP per byte; None where no number has."""
        if self.intensity(inf) <= ridge:
            return None
        k, n, r = self.columns, self.inner, ridge * self.element_bytes
        rows = ceil(r * n * k / (2 * n * k - r * (n + k)))
        return rows - 1 if rows > 1 and self.intensity(rows - 1) >= ridge else rows


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


@dataclass(frozen=True, slots=True)
class ExpertUnit:
    """GPUs of `shape` with all experts of a layer of `model` and `redundant` copies, the same number on each GPU.

    `shared`: the shared expert is placed like a routed one, which every token chooses; else each GPU has it. Every
    expert has `copies` at least, which redundant ones are first taken for.
    """

    model: Model
    shape: Shape
    redundant: int = 0
    shared: bool = False
    copies: int = 1

    @property
    def experts(self) -> Experts:
        """The experts of the model. Raises UsageError where it has none."""
        if self.model.experts is None:
            raise UsageError(f"{self.model.name} has no experts; name a mixture of experts, such as deepseek-v3-fp8.")
        return self.model.experts

    @property
    def placed(self) -> int:
        """Different experts that are placed."""
        return self.experts.routed + (self.experts.shared if self.shared else 0)

    @property
    def per_gpu(self) -> int:
        """Experts on each GPU. Raises UsageError where GPUs would hold unequal numbers, or the shape is wrong."""
        experts, gpus = self.experts, self.shape.gpus
        Shape(self.shape.tp, self.shape.pp, self.shape.dp).check(self.model)
        if self.shape.ep != self.shape.stage_gpus:
            raise UsageError(f"ep={self.shape.ep} must be all {self.shape.stage_gpus} GPUs, each with whole experts.")
        if self.shared and not experts.shared:
            raise UsageError(f"{self.model.name} has no shared expert.")
        if self.redundant < (needed := self.placed * (self.copies - 1)):
            raise UsageError(f"{self.copies} copies of {self.placed} experts need {needed} redundant ones or more.")
        if (self.placed + self.redundant) % gpus:
            least = -self.placed % gpus
            raise UsageError(
                f"{self.placed} experts and {self.redundant} redundant ones do not fill {gpus} GPUs evenly; "
                f"take {least} or {least + gpus} redundant experts."
            )
        return (self.placed + self.redundant) // gpus

    def replicas(self, load: Array) -> npt.NDArray[np.int64]:
        """Copies of each expert: each redundant one goes to the expert whose copies have most to do."""
        copies = np.full(len(load), self.copies, np.int64)
        heap = [(-value, number) for number, value in enumerate((load / self.copies).tolist())]
        heapify(heap)
        for _ in range(self.redundant - len(load) * (self.copies - 1)):
            _, hottest = heap[0]
            copies[hottest] += 1
            heapreplace(heap, (-float(load[hottest] / copies[hottest]), hottest))
        return copies

    def place(self, load: Array, copies: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """How many copies of each expert each GPU has, (GPUs, experts): heaviest first onto the least loaded GPU.

        A GPU gets a second copy of an expert only where all others with room have one. Where every expert has several
        copies, GPUs that share the fewest experts come first: else one partner would take over all that a GPU serves.
        """
        share, gpus = load / copies, self.shape.gpus
        where, loaded, room = np.zeros((gpus, len(load)), np.int64), np.zeros(gpus), np.full(gpus, self.per_gpu)
        for expert in np.argsort(-share, kind="stable").tolist():
            for _ in range(copies[expert]):
                partners = where @ where[where[:, expert] > 0].sum(axis=0) if self.copies > 1 else np.zeros(gpus)
                gpu = np.lexsort((loaded, partners, where[:, expert], room == 0))[0]
                where[gpu, expert] += 1
                loaded[gpu] += share[expert]
                room[gpu] -= 1
        return where

    def in_order(self) -> npt.NDArray[np.int64]:
        """The same with experts in their order, as many on each GPU as there are; without redundant ones."""
        gpus = self.shape.gpus
        where = np.zeros((gpus, self.placed), np.int64)
        for expert in range(self.placed):
            where[expert * gpus // self.placed, expert] = 1
        return where


def popularity(experts: Experts, tokens: int, skew: float, rng: np.random.Generator) -> Array:
    """How often each expert is wanted: from a power law of exponent `skew`, from 1 to 0.8 `tokens`; 0: equally."""
    if skew == 0:
        return np.ones(experts.routed)
    drawn, most = rng.random(experts.routed), max(2.0, HOTTEST * tokens)
    if skew == 1:
        return np.asarray(most**drawn)
    low, high = 1.0, most ** (1 - skew)
    return np.asarray(((high - low) * drawn + low) ** (1 / (1 - skew)))


def chosen(experts: Experts, wanted: Array, tokens: int, rng: np.random.Generator) -> Array:
    """Tokens that choose each expert: of `tokens`, each `per_token` different ones in at most `group_limit` groups.

    A token draws without replacement in proportion to `wanted`; a group counts by its best per_token / group_limit.
    """
    counts, logs = np.zeros(experts.routed), np.log(wanted)
    for begin in range(0, tokens, AT_ONCE):
        score = logs + rng.gumbel(size=(min(AT_ONCE, tokens - begin), experts.routed))  # (T, E)
        if experts.groups > experts.group_limit:
            grouped = score.reshape(len(score), experts.groups, -1)  # (T, G, E / G)
            best = max(1, experts.per_token // experts.group_limit)
            of_group = np.sort(grouped, axis=2)[:, :, -best:].sum(axis=2)
            left = np.argpartition(-of_group, experts.group_limit - 1, axis=1)[:, experts.group_limit :]
            np.put_along_axis(grouped, left[:, :, None], -np.inf, axis=1)
        top = np.argpartition(-score, experts.per_token - 1, axis=1)[:, : experts.per_token]
        counts += np.bincount(top.ravel(), minlength=experts.routed)
    return counts


@dataclass(frozen=True, slots=True)
class Imbalance:
    """The most loaded GPU over the mean of all: `in_order`, and `placed` by load. `tokens` is the mean of an expert and
    `hottest` the most of any."""

    tokens: float
    hottest: float
    in_order: float
    placed: float


def imbalance(unit: ExpertUnit, tokens: int, skew: float, seed: int) -> Imbalance:
    """Of a few steps of `tokens` tokens, placed by the counters of the step before them. Means over the steps."""
    rng, experts = np.random.default_rng(seed), unit.experts
    wanted = popularity(experts, tokens, skew, rng)
    shared = np.full(unit.placed - experts.routed, float(tokens))
    counters, *steps = (np.append(chosen(experts, wanted, tokens, rng), shared) for _ in range(1 + STEPS))
    copies = unit.replicas(counters)
    of = {"in_order": unit.in_order(), "placed": unit.place(counters, copies) / copies}
    ratio = {
        name: float(np.mean([(loads := where @ step).max() / loads.mean() for step in steps]))
        for name, where in of.items()
    }
    hottest = float(np.mean([step[: experts.routed].max() for step in steps]))
    return Imbalance(tokens * experts.per_token / experts.routed, hottest, ratio["in_order"], ratio["placed"])


@dataclass(frozen=True, slots=True)
class Failure:
    """One GPU of a unit fails. `stops` is the share of GPUs whose failure leaves an expert without a copy, so that no
    step can end; `loss` and `worst` are the mean and the largest loss of throughput of the others (None: all stop)."""

    stops: float
    loss: float | None
    worst: float | None


def failure(unit: ExpertUnit, tokens: int, skew: float, seed: int) -> Failure:
    """Throughput after the failure of each GPU in turn, where tokens go to the least loaded live copy.

    In the limit of many tokens this is the even split that makes the most loaded GPU least loaded; experts bound the
    throughput before and after (Expert-as-a-Service, arXiv 2509.17863: clients choose among live replicas).
    """
    rng, experts = np.random.default_rng(seed), unit.experts
    wanted = popularity(experts, tokens, skew, rng)
    load = np.append(chosen(experts, wanted, tokens, rng), np.full(unit.placed - experts.routed, float(tokens)))
    where = unit.place(load, unit.replicas(load)) > 0
    whole, losses = least_most(where, load), []
    for gpu in range(len(where)):
        live = np.delete(where, gpu, axis=0)
        if live.any(axis=0).all():
            losses.append(1 - whole / least_most(live, load))
    stops = 1 - len(losses) / len(where)
    return Failure(stops, float(np.mean(losses)), max(losses)) if losses else Failure(stops, None, None)


def least_most(where: npt.NDArray[np.bool_], load: Array) -> float:
    """The load of the most loaded GPU if each expert's load is divided among its GPUs, (GPUs, experts), as well as
    possible: a linear program over the shares of all copies."""
    from scipy.optimize import linprog

    gpu, expert = np.nonzero(where)
    number, gpus, scale = np.arange(len(gpu)), len(where), load.sum() / len(where)
    # minimise the last variable, which no GPU's sum exceeds; the others are the loads of copies
    least, most = np.zeros(len(gpu) + 1), np.zeros((gpus, len(gpu) + 1))
    every = np.zeros((len(load), len(gpu) + 1))
    least[-1], most[:, -1], most[gpu, number], every[expert, number] = 1.0, -1.0, 1.0, 1.0
    found = linprog(least, A_ub=most, b_ub=np.zeros(gpus), A_eq=every, b_eq=load / scale, method="highs")
    assert found.status == 0
    return float(found.fun * scale)

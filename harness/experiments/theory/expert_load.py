"""Load of the GPUs that share the experts of a layer, and what redundant experts do about it.

Sources: DeepSeek-V3 technical report, arXiv 2412.19437, section 3.4 (deployment; redundant experts by load) and 2.1.2
(node-limited routing); deepseek-ai/EPLB (replicas for the most loaded expert, heaviest first onto the least loaded
GPU); ai-dynamo/aiconfigurator, `power_law_logits_v3` (popularity of experts).
"""

from dataclasses import dataclass
from heapq import heapify, heapreplace

import numpy as np
import numpy.typing as npt

from harness.catalog import Experts, Model, Shape
from harness.errors import UsageError

Array = npt.NDArray[np.float64]
HOTTEST = 0.8
"""Share of the tokens up to which the power law of popularity reaches."""
AT_ONCE = 4096
"""Tokens that choose their experts in one array."""
STEPS = 4
"""Steps after the one whose counters decide where experts are placed."""


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

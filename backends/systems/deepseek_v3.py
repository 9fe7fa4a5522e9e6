"""DeepSeek-V3: experts spread over so many GPUs that each has enough tokens, with redundant copies of the hottest.

Source: DeepSeek-V3 Technical Report, arXiv 2412.19437, section 3.4; Insights into DeepSeek-V3, arXiv 2505.09343. Its
units of 32 GPUs for prefill and 320 for decode are claimed to balance load between GPUs. `bench theory moe` and
`exchange` have the arithmetic, `bench theory experts` draws the load, and the latency model `ep` runs such units.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from math import ceil, floor, inf
from statistics import fmean

import numpy as np
import numpy.typing as npt

from backends.latency.roofline import Roofline
from backends.serving.plugins import draw
from harness import catalog
from harness.api import Row
from harness.bounds import AtLeastZero, NotNegative, PositiveShare, check
from harness.catalog import Experts, Model, Shape
from harness.errors import UsageError
from harness.spec import link_bytes_per_s

SLIDE_STEP = 10
"""Tokens of an expert are rounded up to multiples of this on the slide."""
EXCHANGED_BYTES, EXCHANGE_LAYERS = (1.0 + 2.0) * 7000, 61
"""Bytes of a token to one expert and back, and layers of DeepSeek-V3 (Insights into DeepSeek-V3)."""
MOST_TOKENS = 1_000_000
"""Tokens of a step whose experts are drawn."""
HOTTEST = 0.8
"""Share of the tokens up to which the power law of popularity reaches."""
AT_ONCE = 4096
"""Tokens that choose their experts in one array."""
DRAWS, LARGE_STEP = 8, 8192
"""Loads that are stored for each size of a step, and the tokens of the largest."""
STEPS = 4
"""Steps after the one whose counters decide where experts are placed."""
Array = npt.NDArray[np.float64]


def moe(
    gpu: str = "h800", local: int = 30, inner: int = 7168, columns: int = 2048, experts: int = 256, top_k: int = 8,
    element_bytes: int = 1,
) -> list[Row]:  # fmt: skip
    """Find the tokens that make an expert compute-bound, and the GPUs over which experts are spread for that.

    'slide' takes 2M FLOP per byte and rounds up to tens; 'exact' is the full formula. `local` sequences run on each
    GPU. 'ridge' is FLOP per byte of the GPU, 'intensity' those of an expert with m tokens, 'endless' those of endless
    batches; no numbers ('-') for a GPU that not even these fill. The defaults are DeepSeek-V3's experts in FP8
    (element_bytes 2: BF16).

    Source: DeepSeek-V3, arXiv 2412.19437, section 3.4; S. Feng, LLMs Serving Techniques I.
    """
    if top_k > experts:
        raise ValueError(f"top_k must be at most the {experts} experts, got {top_k}.")
    if element_bytes not in (1, 2):
        raise ValueError(f"element_bytes must be 1 (FP8) or 2 (BF16), got {element_bytes}.")
    device, shape = catalog.hardware(gpu), ExpertMatrix(inner, columns, element_bytes)
    if element_bytes == 1 and device.fp8_flops is None:
        raise ValueError(f"{gpu} has no FP8 tensor cores; use element_bytes=2.")
    ridge = device.peak_flops(element_bytes) / device.bandwidth_bytes_per_s
    least = {"slide": floor(ridge / 2 * element_bytes), "exact": shape.rows_for(ridge)}
    rows: list[Row] = []
    for mode, m in least.items():
        rows.append({"mode": mode, "ridge": ridge, "endless": shape.intensity(inf)})
        if m is not None:
            spread_m = ceil(m / SLIDE_STEP) * SLIDE_STEP if mode == "slide" else m
            tokens = spread_m * experts / top_k
            rows[-1] |= {
                "least_m": m, "m": spread_m, "tokens_in_flight": round(tokens), "gpus": tokens / local,
                "whole_gpus": ceil(tokens / local), "intensity": shape.intensity(spread_m),
            }  # fmt: skip
    return rows


def exchange(tokens: int = 32, top_k: int = 8, link: str = "50GBps") -> list[Row]:
    """Time the exchanges of expert parallelism: the tokens of a GPU go to their experts and come back.

    1 byte an element out, 2 back, 7,000 elements a token, to the routed experts and a shared one. Each of 61 layers has
    two micro-batches that take turns, so two exchanges, none of them overlapped. The last column is the most tokens per
    second of a sequence.

    Source: Insights into DeepSeek-V3, arXiv 2505.09343.
    """
    exchange_s = EXCHANGED_BYTES * tokens * (top_k + 1) / link_bytes_per_s(link)
    layer_s = 2 * exchange_s
    token_s = EXCHANGE_LAYERS * layer_s
    return [{"exchange_s": exchange_s, "layer_s": layer_s, "token_s": token_s, "at_most_tokens_per_s": 1 / token_s}]


def experts(
    redundant: int = 0, model: str = "deepseek-v3-fp8", tp: int = 4, dp: int = 8, shared: bool = False,
    tokens: int = 1024, skew: float = 1.01, seeds: int = 5,
) -> list[Row]:  # fmt: skip
    """Draw the load of the GPUs that share the experts of a layer: the most loaded one over the mean of all.

    Means over `seeds` draws in which `tokens` tokens of each GPU choose experts: with experts in their order and none
    redundant ('in order'), and placed by the counters of the step before ('placed', with the least and the most).
    'idle' is the share of a step in which the mean GPU waits. How strongly tokens prefer some experts is a model, a
    power law with exponent `skew` (0: all alike), not a measurement.

    The default is DeepSeek-V3's unit of prefill (32 GPUs); that of decode is dp=80,redundant=63,shared=true,tokens=30.

    Source: DeepSeek-V3, arXiv 2412.19437, section 3.4; deepseek-ai/EPLB (placement); ai-dynamo/aiconfigurator (skew).
    """
    shape = Shape(tp, dp=dp, ep=tp * dp)
    unit = ExpertUnit(catalog.model(model), shape, redundant, shared)
    per_gpu = unit.per_gpu  # refuses a wrong unit before anything is drawn
    if tokens * shape.gpus > MOST_TOKENS:
        raise ValueError(f"{tokens:,} tokens on {shape.gpus:,} GPUs are more than {MOST_TOKENS:,} tokens a step.")
    drawn = [imbalance(unit, tokens * shape.gpus, skew, seed) for seed in range(seeds)]
    placed = [draw.placed for draw in drawn]
    row: Row = {
        "experts_a_gpu": per_gpu, "tokens_an_expert": drawn[0].tokens,
        "hottest": round(fmean(draw.hottest for draw in drawn)), "in_order_ratio": fmean(d.in_order for d in drawn),
        "placed_ratio": fmean(placed), "least_ratio": min(placed), "most_ratio": max(placed),
        "idle_share": 1 - 1 / fmean(placed),
    }  # fmt: skip
    return [row]


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
class ExpertUnit:
    """GPUs of `shape` with all experts of a layer of `model` and `redundant` copies, the same number on each GPU.

    Replicas are for the most loaded expert, and the heaviest go first onto the least loaded GPU (deepseek-ai/EPLB).
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
        counts, loaded, room = np.zeros((gpus, len(load)), np.int64), np.zeros(gpus), np.full(gpus, self.per_gpu)
        for expert in np.argsort(-share, kind="stable").tolist():
            for _ in range(copies[expert]):
                partners = counts @ counts[counts[:, expert] > 0].sum(axis=0) if self.copies > 1 else np.zeros(gpus)
                gpu = np.lexsort((loaded, partners, counts[:, expert], room == 0))[0]
                counts[gpu, expert] += 1
                loaded[gpu] += share[expert]
                room[gpu] -= 1
        return counts

    def in_order(self) -> npt.NDArray[np.int64]:
        """The same with experts in their order, as many on each GPU as there are; without redundant ones."""
        gpus = self.shape.gpus
        placement = np.zeros((gpus, self.placed), np.int64)
        for expert in range(self.placed):
            placement[expert * gpus // self.placed, expert] = 1
        return placement


def popularity(experts: Experts, tokens: int, skew: float, rng: np.random.Generator) -> Array:
    """How often each expert is wanted: from a power law of exponent `skew`, from 1 to 0.8 `tokens`; 0: equally.

    Source: ai-dynamo/aiconfigurator, `power_law_logits_v3`.
    """
    if skew == 0:
        return np.ones(experts.routed)
    drawn, most = rng.random(experts.routed), max(2.0, HOTTEST * tokens)
    if skew == 1:
        return np.asarray(most**drawn)
    low, high = 1.0, most ** (1 - skew)
    return np.asarray(((high - low) * drawn + low) ** (1 / (1 - skew)))


def chosen(experts: Experts, wanted: Array, tokens: int, rng: np.random.Generator) -> Array:
    """Tokens that choose each expert: of `tokens`, each `per_token` different ones in at most `group_limit` groups.

    A token draws without replacement in proportion to `wanted`; a group counts by its best per_token / group_limit
    (DeepSeek-V3, section 2.1.2: node-limited routing).
    """
    counts, logs = np.zeros(experts.routed), np.log(wanted)
    for begin in range(0, tokens, AT_ONCE):
        score = logs + rng.gumbel(size=(min(AT_ONCE, tokens - begin), experts.routed))  # (T, E)
        if experts.groups > experts.group_limit:
            grouped = score.reshape(len(score), experts.groups, -1)  # (T, G, E / G)
            best = max(1, experts.per_token // experts.group_limit)
            of_group = np.sort(grouped, axis=2)[:, :, -best:].sum(axis=2)
            excluded = np.argpartition(-of_group, experts.group_limit - 1, axis=1)[:, experts.group_limit :]
            np.put_along_axis(grouped, excluded[:, :, None], -np.inf, axis=1)
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
    weights = popularity(experts, tokens, skew, rng)
    shared = np.full(unit.placed - experts.routed, float(tokens))
    counters, *steps = (np.append(chosen(experts, weights, tokens, rng), shared) for _ in range(1 + STEPS))
    copies = unit.replicas(counters)
    placements = {"in_order": unit.in_order(), "placed": unit.place(counters, copies) / copies}
    ratio = {
        name: float(np.mean([(loads := placement @ step).max() / loads.mean() for step in steps]))
        for name, placement in placements.items()
    }
    hottest = float(np.mean([step[: experts.routed].max() for step in steps]))
    return Imbalance(tokens * experts.per_token / experts.routed, hottest, ratio["in_order"], ratio["placed"])


@dataclass(frozen=True, slots=True)
class ExpertLoads:
    """How much more the fullest GPU of a unit has to do than the mean, which differs from step to step.

    `seed` decides once how popular each expert is, by a power law of exponent `skew`; copies are placed by the counters
    of one step. The loads of `DRAWS` further steps of each size are drawn and stored, and a step picks one of them.
    Each live copy of an expert gets as many tokens as the others, or with `least` tokens go to the least loaded copy.
    GPUs that have `failed` get none.
    """

    unit: ExpertUnit
    skew: float
    seed: int
    least: bool = False
    failed: frozenset[int] = frozenset()
    _wanted: Array = field(init=False, repr=False, compare=False)
    _live: npt.NDArray[np.int64] = field(init=False, repr=False, compare=False)  # (GPUs, experts) copies
    _ratios: dict[int, tuple[float, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        rng, put = np.random.default_rng(self.seed), object.__setattr__
        put(self, "_wanted", popularity(self.unit.experts, LARGE_STEP, self.skew, rng))
        counters = chosen(self.unit.experts, self._wanted, LARGE_STEP, rng)
        live = self.unit.place(counters, self.unit.replicas(counters))
        live[sorted(self.failed)] = 0
        put(self, "_live", live)
        put(self, "_ratios", {})

    @property
    def complete(self) -> bool:
        """Whether every expert has a live copy."""
        return bool(self._live.any(axis=0).all())

    @staticmethod
    def number(seed: int, tokens: int, context_tokens: int) -> int:
        """Which of the stored loads a step has, by what it runs: the same however its time is worked out."""
        return draw(seed, (context_tokens << 24) + tokens) % DRAWS

    def fullest(self, tokens: int, number: int) -> float:
        """The most loaded GPU over the mean of all GPUs of the unit, in draw `number` of a step of so many tokens.

        Sizes are rounded up to a power of two; beyond `LARGE_STEP` tokens chance does not matter any more.
        """
        size = min(LARGE_STEP, 1 << max(tokens - 1, 0).bit_length())
        if size not in self._ratios:
            rng, alive = np.random.default_rng((self.seed, size)), self._live.any(axis=1)
            steps = [chosen(self.unit.experts, self._wanted, size, rng) for _ in range(DRAWS)]
            even = self._live / self._live.sum(axis=0)
            most = [least_most(self._live[alive] > 0, step) if self.least else (even @ step).max() for step in steps]
            gpus = len(self._live)
            self._ratios[size] = tuple(float(m / step.sum() * gpus) for m, step in zip(most, steps, strict=True))
        return self._ratios[size][number]

    def matrices(self, tokens: float) -> float:
        """Experts that a GPU reads in a step of so many tokens."""
        experts = self.unit.experts
        return self.unit.per_gpu * experts.hit(tokens) / experts.routed


@dataclass(frozen=True, slots=True)
class EpLatency:
    """Attention and experts on the same GPUs, experts and `redundant` copies spread over all of them (DeepSeek-V3).

    A unit has `dp` groups of `tp` GPUs, as many as hold its experts evenly, even more than there are experts. Times are
    those of the roofline, the experts' those of the fullest GPU, whose load is drawn for each step: tokens choose
    experts by a power law of exponent `skew` (0: all alike), in few groups where the model limits them. With `overlap`
    the exchange of tokens is hidden behind the work of another micro-batch, else it adds up; links and networks reach
    `link_share` of their rate. Memory is counted without the redundant experts, and each GPU has the shared one.
    """

    redundant: AtLeastZero = 0
    skew: NotNegative = 1.01
    overlap: bool = True
    link_share: PositiveShare = 0.6
    seed: int = 0
    model: str = "deepseek-v3-fp8"
    hardware: str = "h800"
    tp: int = 4
    dp: int = 8
    _roofline: Roofline = field(init=False, repr=False, compare=False)
    _loads: ExpertLoads = field(init=False, repr=False, compare=False)
    _known: dict[tuple[int, int, int], tuple[float, float]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check(self)
        m, gpus, put = catalog.model(self.model), self.tp * self.dp, object.__setattr__
        unit = ExpertUnit(m, Shape(self.tp, dp=self.dp, ep=gpus), self.redundant)
        assert unit.per_gpu  # refuses a wrong unit
        ep = max(parts for parts in range(1, min(gpus, unit.experts.routed) + 1) if gpus % parts == 0)
        roofline = Roofline(self.model, self.hardware, self.tp, dp=self.dp, ep=ep, link_share=self.link_share)
        put(self, "_roofline", roofline)
        put(self, "_loads", ExpertLoads(unit, self.skew, self.seed))
        put(self, "_known", {})

    def step_s(self, prefills: Sequence[tuple[int, int]], decode_seqs: int, context_tokens: int) -> float:
        """Seconds of one step; `prefills` holds (new tokens, tokens already stored) per piece of prompt."""
        tokens = decode_seqs + sum(new for new, _ in prefills)
        own = max(-(-tokens // self.dp), *(new for new, _ in prefills), 0)
        number = self._loads.number(self.seed, tokens, context_tokens)
        computed_s, sent_s = self._known.get((tokens, own, number)) or self._layers_s(tokens, own, number)
        computed_s += self._roofline.kv_s(prefills, decode_seqs, context_tokens)
        layers_s = max(computed_s, sent_s) if self.overlap else computed_s + sent_s
        return float(layers_s + self._roofline.ends_s(decode_seqs + len(prefills)))

    def _layers_s(self, tokens: int, own: int, number: int) -> tuple[float, float]:
        """Seconds of all layers without KV, and of their exchanges."""
        roofline, m, gpus = self._roofline, self._roofline.description, self.tp * self.dp
        assert m.experts is not None
        rows = self._loads.fullest(tokens, number) * tokens * m.experts.per_token / gpus
        experts_s = m.routed_layers * sum(roofline.matrices_s(rows, self._loads.matrices(tokens), m.experts.ffn))
        computed_s = roofline.beside_experts_s(own) + roofline.experts_s(0, own) + experts_s
        self._known[tokens, own, number] = computed_s, m.routed_layers * 2 * roofline.exchange_s(tokens)
        return self._known[tokens, own, number]

    def decode_s(self, decode_seqs: int, context_tokens: int) -> float:
        """Seconds of a step of decodes alone."""
        return self.step_s((), decode_seqs, context_tokens)

    def decode_line(self, decode_seqs: int) -> None:
        """None: loads differ from step to step."""

    def decode_many_s(self, decode_seqs: int, context_tokens: np.ndarray) -> np.ndarray:
        """(k,) seconds of decode steps with these (k,) cached tokens."""
        return np.array([self.decode_s(decode_seqs, context) for context in context_tokens.tolist()])


def least_most(where: npt.NDArray[np.bool_], load: Array) -> float:
    """The load of the most loaded GPU if each expert's load is divided among its GPUs, (GPUs, experts), as well as
    possible: a linear program over the shares of all copies."""
    from scipy.optimize import linprog

    gpu, expert = np.nonzero(where)
    number, gpus, scale = np.arange(len(gpu)), len(where), load.sum() / len(where)
    # minimise the last variable, which no GPU's sum exceeds; the others are the loads of copies
    least, most = np.zeros(len(gpu) + 1), np.zeros((gpus, len(gpu) + 1))
    sums = np.zeros((len(load), len(gpu) + 1))
    least[-1], most[:, -1], most[gpu, number], sums[expert, number] = 1.0, -1.0, 1.0, 1.0
    split = linprog(least, A_ub=most, b_ub=np.zeros(gpus), A_eq=sums, b_eq=load / scale, method="highs")
    assert split.status == 0
    return float(split.fun * scale)

"""MegaScale-Infer: attention and experts of a model on GPUs of their own, each with the batch that suits it.

Source: Zhu et al., MegaScale-Infer (arXiv 2504.02263): ping-pong pipelines of micro-batches between nodes of attention
and of experts. It claims up to 2.56 times the decode rate per GPU of vLLM, and 1.28 times that of TensorRT-LLM.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

import numpy as np

from backends.latency.roofline import Roofline
from backends.systems.deepseek_v3 import ExpertLoads, ExpertUnit
from harness import catalog
from harness.api import Row
from harness.bounds import AtLeastOne, NotNegative, check
from harness.catalog import Shape
from harness.errors import UsageError

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

    With `copies` of each expert the GPUs of experts are servers of their own (Expert-as-a-Service): tokens go to the
    least loaded live copy, and `fail=expert:1@60s` takes a server away (`failed=3/7`: two from the start). With `skew`
    the tokens of the fullest server are drawn for each step, as by the latency model `ep`.
    """

    experts: AtLeastOne = 8
    expert_hardware: str | None = None
    micro: AtLeastOne = 3
    network_bytes_per_s: float | None = None
    copies: AtLeastOne = 1
    skew: NotNegative = 0.0
    failed: str = ""
    seed: int = 0
    model: str = "mixtral-8x22b"
    hardware: str = "a100-80g"
    tp: int = 1
    dp: int = 1
    _attention: Roofline = field(init=False, repr=False, compare=False)
    _experts: Roofline = field(init=False, repr=False, compare=False)
    _network: float = field(init=False, repr=False, compare=False)
    _layers: int = field(init=False, repr=False, compare=False)
    _loads: ExpertLoads | None = field(init=False, repr=False, compare=False)
    _known: dict[tuple[int, int], _Micro] = field(init=False, repr=False, compare=False)

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
        lost = frozenset(map(int, self.failed.split("/"))) if self.failed else frozenset()
        drawn = self.copies > 1 or self.skew > 0 or lost
        unit = ExpertUnit(m, Shape(1, dp=parts, ep=parts), m.experts.routed * (self.copies - 1), copies=self.copies)
        put(self, "_loads", ExpertLoads(unit, self.skew, self.seed, True, lost) if drawn else None)
        put(self, "_known", {})
        needed, available = self.copies * catalog.expert_bytes(m, parts), kinds[1].memory_bytes
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

    def without(self, servers: frozenset[int]) -> AfLatency | None:
        """The model without these servers; None where an expert is on no other."""
        left = replace(self, failed="/".join(map(str, sorted(servers))))
        return left if left.complete else None

    @property
    def complete(self) -> bool:
        """Whether every expert is on a server that has not failed."""
        return self._loads is None or self._loads.complete

    def step_s(self, prefills: Sequence[tuple[int, int]], decode_seqs: int, context_tokens: int) -> float:
        """Seconds of one step; `prefills` holds (new tokens, tokens already stored) per piece of prompt."""
        tokens = decode_seqs + sum(new for new, _ in prefills)
        kv_s = self._attention.kv_s(prefills, decode_seqs, context_tokens)
        number = 0 if self._loads is None else self._loads.number(self.seed, tokens, context_tokens)
        return float(self._step_s(tokens, decode_seqs + len(prefills), kv_s, number))

    def decode_s(self, decode_seqs: int, context_tokens: int) -> float:
        """Seconds of a step of decodes alone."""
        return self.step_s((), decode_seqs, context_tokens)

    def decode_line(self, decode_seqs: int) -> None:
        """None: which side is the slower one changes with the context."""

    def decode_many_s(self, decode_seqs: int, context_tokens: np.ndarray) -> np.ndarray:
        """(k,) seconds of decode steps with these (k,) cached tokens."""
        if self._loads is not None:
            return np.array([self.decode_s(decode_seqs, context) for context in context_tokens.tolist()])
        times_s: np.ndarray = self._step_s(
            decode_seqs, decode_seqs, self._attention.kv_s((), decode_seqs, context_tokens)
        )
        return times_s

    def _step_s(self, tokens: int, seqs: int, kv_s: Any, number: int = 0) -> Any:
        """`kv_s`: seconds of the attention over KV of all micro-batches, a number or several.

        One pass of a micro-batch through a layer, then in each further layer the longer of such a pass and of the
        slower side serving all micro-batches, and the others' turns at the end.
        """
        batch = self._micro(-(-tokens // self.micro), number)
        attention_s, experts_s = (batch.plain_s + kv_s / self.micro) / self._layers, batch.experts_s / self._layers
        slower_s = np.maximum(attention_s, experts_s)
        pass_s = attention_s + experts_s + 2 * batch.sent_s / self._layers
        turns_s = (self._layers - 1) * np.maximum(self.micro * slower_s, pass_s) + (self.micro - 1) * slower_s
        return self._attention.ends_s(seqs) + pass_s + turns_s

    def _micro(self, tokens: int, number: int) -> _Micro:
        times = self._known.get((tokens, number))
        if times is None:
            m, group_tokens = self._attention.description, -(-tokens // self.dp)
            assert m.experts is not None
            gpus = min(self.tp * self.dp, self.experts)
            sent_bytes = tokens * m.experts.per_token * m.hidden * 2 / gpus
            times = self._known[tokens, number] = _Micro(
                self._attention.beside_experts_s(group_tokens),
                self._experts_s(tokens, -(-tokens // self.experts), number),
                m.routed_layers * sent_bytes / self._network,
            )
        return times

    def _experts_s(self, tokens: int, own: int, number: int) -> float:
        """Seconds of the experts of all layers for `tokens` tokens, on the fullest server."""
        if self._loads is None:
            return self._experts.experts_s(tokens, own)
        m = self._experts.description
        assert m.experts is not None
        rows = self._loads.fullest(tokens, number) * tokens * m.experts.per_token / self.experts
        matrices_s = self._experts.matrices_s(rows, self._loads.matrices(tokens), m.experts.ffn)
        return self._experts.experts_s(0, own) + m.routed_layers * sum(matrices_s)


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

"""MegaScale-Infer: attention and experts of a model on GPUs of their own, each with the batch that suits it.

Source: Zhu et al., MegaScale-Infer (arXiv 2504.02263): ping-pong pipelines of micro-batches between nodes of attention
and of experts. It claims up to 2.56 times the decode rate per GPU of vLLM, and 1.28 times that of TensorRT-LLM.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from backends.latency.roofline import Roofline
from harness.catalog import expert_bytes, hardware, model
from harness.errors import UsageError


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

    experts: int = 8
    expert_hardware: str | None = None
    micro: int = 3
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
        if self.experts < 1 or self.micro < 1:
            raise ValueError(f"experts and micro must be at least 1, got {self.experts} and {self.micro}")
        m, kinds = model(self.model), [hardware(self.hardware), hardware(self.expert_kind)]
        if m.experts is None:
            raise UsageError(f"latency=af parts attention from experts, and {self.model} has none; leave it out.")
        network = self.network_bytes_per_s or min(one.network_bytes_per_s or 0.0 for one in kinds)
        if not network > 0:
            raise UsageError("latency=af needs the rate of the network of a GPU; give network_bytes_per_s=25e9.")
        put, parts = object.__setattr__, self.experts
        put(self, "_attention", Roofline(model=self.model, hardware=self.hardware, tp=self.tp, dp=self.dp))
        put(self, "_experts", Roofline(model=self.model, hardware=self.expert_kind, dp=parts, ep=parts))
        put(self, "_network", network)
        put(self, "_layers", m.layers)
        put(self, "_known", {})
        needed, there = expert_bytes(m, parts), kinds[1].memory_bytes
        if needed > 0.95 * there:
            raise UsageError(
                f"The experts of {self.model} take {needed / 1e9:.0f} GB on each of {parts} GPUs, and a "
                f"{self.expert_kind} has {there / 1e9:.0f} GB; give more, such as experts={2 * parts}."
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
        found: np.ndarray = self._step_s(
            decode_seqs, decode_seqs, self._attention.kv_s((), decode_seqs, context_tokens)
        )
        return found

    def _step_s(self, tokens: int, seqs: int, kv_s: Any) -> Any:
        """`kv_s`: seconds of the attention over KV of all micro-batches, a number or several.

        One pass of a micro-batch through a layer, then in each further layer the longer of such a pass and of the
        slower side serving all micro-batches, and the others' turns at the end.
        """
        one = self._micro(-(-tokens // self.micro))
        attention_s, experts_s = (one.plain_s + kv_s / self.micro) / self._layers, one.experts_s / self._layers
        slower_s = np.maximum(attention_s, experts_s)
        pass_s = attention_s + experts_s + 2 * one.sent_s / self._layers
        turns_s = (self._layers - 1) * np.maximum(self.micro * slower_s, pass_s) + (self.micro - 1) * slower_s
        return self._attention.ends_s(seqs) + pass_s + turns_s

    def _micro(self, tokens: int) -> _Micro:
        known = self._known.get(tokens)
        if known is None:
            m, own = self._attention.description, -(-tokens // self.dp)
            assert m.experts is not None
            gpus = min(self.tp * self.dp, self.experts)
            sent_bytes = tokens * m.experts.per_token * m.hidden * 2 / gpus
            known = self._known[tokens] = _Micro(
                self._attention.beside_experts_s(own),
                self._experts.experts_s(tokens, -(-tokens // self.experts)),
                m.routed_layers * sent_bytes / self._network,
            )
        return known

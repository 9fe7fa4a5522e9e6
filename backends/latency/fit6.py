"""Fit6: a roofline of the whole model with six fitted constants, one set for every parallel degree.

The calibrated roofline: weights and cached tokens over bandwidth or arithmetic over peak, whichever is longer, plus
what the host, each running sequence and each communicated token cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from backends.latency._shared import measured_on, resolved
from harness.catalog import Model, Shape, active_parameters, hardware, kv_bytes_per_token, model, parameters

if TYPE_CHECKING:
    import numpy as np

TERMS = (
    "memory_share", "flops_share", "overhead_s", "seq_s", "token_s", "prefill_token_squared_s", "front_end_s",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fit6:
    """Seconds of a step with n prompt tokens and B decodes that read `ctx` cached tokens, on `tp` GPUs:

    max((W + KV*ctx) / (tp*bandwidth*memory_share), 2*P*(n+B) / (tp*peak*flops_share)) + overhead + seq*B
    + token*(n+B)*2(tp-1)/tp + prefill_token_squared * sum of (p+l)^2 - p^2 over pieces of l tokens after p stored ones.

    W, P and KV are the weight bytes, parameters and bytes of KV per token of `model`, with `dtype_bytes` an element;
    peak and bandwidth are those of `hardware`. With experts W holds those that n+B tokens meet on the average, each
    choosing without preference, and P those that a token meets. What is stored of a piece is read like context.
    Constants that are not given come from the set `constants` (`fit6.toml`). front_end is not part of a step: the
    simulator adds it before a request reaches its scheduler. With `pp` stages the time is that of one stage: only the
    overhead stays whole.
    """

    constants: str = "h100"
    model: str = "llama3-70b"
    hardware: str = "h100"
    tp: int = 1
    pp: int = 1
    dtype_bytes: int = 2
    memory_share: float | None = None
    flops_share: float | None = None
    overhead_s: float | None = None
    seq_s: float | None = None
    token_s: float | None = None
    prefill_token_squared_s: float | None = None
    front_end_s: float | None = None
    _shape: Model = field(init=False, repr=False, compare=False)
    front_s: float = field(init=False, repr=False, compare=False)
    _plain_s: float = field(init=False, repr=False, compare=False)  # reading all weights but routed experts
    _expert_s: float = field(init=False, repr=False, compare=False)  # reading one routed expert of every layer
    _weights: dict[float, float] = field(init=False, repr=False, compare=False)
    _context_s: float = field(init=False, repr=False, compare=False)
    _compute_s: float = field(init=False, repr=False, compare=False)
    _host_s: float = field(init=False, repr=False, compare=False)
    _seq_s: float = field(init=False, repr=False, compare=False)
    _link_s: float = field(init=False, repr=False, compare=False)
    _squared_s: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        shape, gpu = model(self.model), hardware(self.hardware)
        Shape(self.tp, self.pp).check(shape)
        values = resolved("fit6.toml", self.constants, {name: getattr(self, name) for name in TERMS})
        for name in ("memory_share", "flops_share"):
            if not 0 < values[name] <= 1:
                raise ValueError(f"{name} must be above 0 and at most 1")
        gpus = self.tp * self.pp
        byte_s = 1 / (gpus * gpu.bandwidth_bytes_per_s * values["memory_share"])
        flop_s = 1 / (gpus * gpu.peak_flops(self.dtype_bytes) * values["flops_share"])
        routed = shape.experts.routed if shape.experts is not None else 0
        per_expert = shape.routed_layers * shape.expert_matrix
        attributes: dict[str, object] = {
            "front_s": values["front_end_s"],
            "_plain_s": (parameters(shape) - routed * per_expert) * self.dtype_bytes * byte_s,
            "_expert_s": per_expert * self.dtype_bytes * byte_s,
            "_weights": {},
            "_shape": shape,
            "_context_s": kv_bytes_per_token(shape, kv_bits=8 * self.dtype_bytes) * byte_s,
            "_compute_s": 2 * active_parameters(shape) * flop_s,
            "_host_s": values["overhead_s"],
            "_seq_s": values["seq_s"] / self.pp,
            "_link_s": values["token_s"] * 2 * (self.tp - 1) / self.tp / self.pp,
            "_squared_s": values["prefill_token_squared_s"] / self.pp,
        }
        for name, value in attributes.items():
            object.__setattr__(self, name, value)

    @property
    def measured_on(self) -> Mapping[str, object]:
        """The GPU of the set of constants, which hold for other models and degrees."""
        return measured_on("fit6.toml", self.constants)

    def step_s(self, prefills: Sequence[tuple[float, float]], decode_seqs: int, context_tokens: float) -> float:
        """Seconds of one step; `prefills` holds (new tokens, tokens already stored) per piece of prompt."""
        if not prefills:
            return self.decode_s(decode_seqs, context_tokens)
        tokens, pairs, read = float(decode_seqs), 0.0, context_tokens
        for new, stored in prefills:
            tokens += new
            read += stored
            pairs += new * (new + 2 * stored)
        time_s = max(self._weights_s(tokens) + self._context_s * read, self._compute_s * tokens)
        return time_s + self._beside_s(tokens, decode_seqs) + self._squared_s * pairs

    def _weights_s(self, tokens: float) -> float:
        """Reading the weights that a step with so many tokens needs."""
        experts = self._shape.experts
        if experts is None:
            return self._plain_s
        weights_s = self._weights.get(tokens)
        if weights_s is None:
            weights_s = self._weights[tokens] = self._plain_s + self._expert_s * experts.hit(tokens)
        return weights_s

    def _beside_s(self, tokens: float, decode_seqs: int) -> float:
        """Host, running sequences and communication."""
        return self._host_s + self._seq_s * decode_seqs + self._link_s * tokens

    def decode_line(self, decode_seqs: int) -> tuple[float, float] | None:
        """(base, slope): seconds without context, and per cached token; None where a short context is hidden."""
        weights_s = self._weights_s(decode_seqs)
        if self._compute_s * decode_seqs > weights_s:
            return None
        return weights_s + self._beside_s(decode_seqs, decode_seqs), self._context_s

    def decode_s(self, decode_seqs: int, context_tokens: float) -> float:
        """Seconds of a step of decodes alone."""
        line = self.decode_line(decode_seqs)
        if line is not None:
            return line[0] + line[1] * context_tokens
        time_s = max(self._weights_s(decode_seqs) + self._context_s * context_tokens, self._compute_s * decode_seqs)
        return time_s + self._beside_s(decode_seqs, decode_seqs)

    def decode_many_s(self, decode_seqs: int, context_tokens: np.ndarray) -> np.ndarray:
        """(k,) seconds of decode steps with these (k,) cached tokens."""
        line = self.decode_line(decode_seqs)
        if line is not None:
            times: np.ndarray = line[0] + line[1] * context_tokens
            return times
        floor_s = self._compute_s * decode_seqs
        times = (self._weights_s(decode_seqs) + self._context_s * context_tokens).clip(min=floor_s)
        return times + self._beside_s(decode_seqs, decode_seqs)

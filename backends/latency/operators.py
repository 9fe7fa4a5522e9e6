"""Operators: the measured times of a model's operators, added up over one step.

What is measured apart is looked up apart: everything that depends on the number of tokens alone (projections, norms,
feed-forward), the head by sequences, attention by chunk, stored tokens, decodes and their context.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import numpy as np
from msgspec import Meta

from backends.kernels.steps import Steps
from backends.kernels.tables import measured_kernels
from backends.latency._interpolated import Curve, Interpolated
from harness import untrusted
from harness.api import StepLoads, StepParts
from harness.bounds import NotNegative, Positive, check
from harness.catalog import Shape, format_named, hardware, model, parameters, weight_bytes
from harness.errors import UsageError

KEYS = (
    "tokens",
    "dense_s",
    "seqs",
    "head_s",
    "decode_seqs",
    "decode_context",
    "decode_s",
    "chunk",
    "stored",
    "prefill_s",
)


NOT_KERNELS = MappingProxyType({
    "seq_s": 2e-6,
    "prefill_scale": 1.3,
    "launch_s": 60e-6,
    "graph_tokens": 512,
    "front_s": 3e-3,
    "front_token_s": 5e-6,
})  # fmt: skip
"""What a step or a request takes beyond kernels; times of a file hold all of it.

A request whose predecessor has just ended comes in during the next step: its answer has to be sent first (`front_s`).
"""
NOTHING = MappingProxyType({name: 1.0 if name == "prefill_scale" else 0 for name in NOT_KERNELS})
MIXED_DECODE = 2.0


@dataclass(frozen=True, slots=True)
class Operators:
    """A step as the sum of its operators, from measured times of kernels: any model on any GPU, divided as it may be.

    Times of kernels are those in `backends/kernels/measured` (nine GPUs), or of `data`: a folder in the layout of
    aiconfigurator (SYSTEM/KIND/ENGINE/VERSION/*.parquet), or `aiconfigurator`, the installed package. `system` is one
    of its systems, by default that of the GPU; for a GPU that was not measured, the nearest one by peaks, whose
    efficiencies are applied to the peaks of `hardware`. `dp` groups of `tp` GPUs share the sequences of a replica,
    whose experts lie on `ep` parts of all of them. Weights and KV are stored as the model says, or as `linear` (plain
    feed-forwards), `attention`, `experts` and `kv` do (`bench list formats`). Experts run in the fastest kernels, or in
    those with `expert_kernels` in their name, such as triton, where `data` tells kernels apart.

    Kernels are not all: `seq_s` seconds of the host for each running sequence of a step, and `overhead_s` of each step.
    A step that holds prompts, and more than `graph_tokens` tokens, is in no CUDA graph: it takes at least `launch_s`
    seconds of the host for each of its kernels. vLLM captures up to 512 tokens; engines without such graphs have 0.
    The arithmetic of prompts, and nothing else in their steps, takes `prefill_scale` times as long as it was measured,
    alone and at the highest clock. These constants come from rows of public benchmarks (SOURCE), the same for all
    engines: constants of each engine did no better on models and GPUs left out.
    Attention of decodes takes `mixed_decode` times as long beside prompts, in all: 2 on GPUs without NVLink, which
    run both in one kernel (FlashAttention-2 under vLLM on an RTX 4090, median of LLMServingSim's profile from 16
    decodes and 512 tokens on), else 1. In the front end, before its scheduler and for its first answer, a request takes
    `front_s` seconds, and `front_token_s` for each token of its prompt: a tokenizer of Hugging Face takes 3 us of a CPU
    a token of text, and 5 us of random ones.
    Measured times are multiplied by `scale`. Experts are as popular as in the tables (a power law, 1.01); `skew`
    multiplies the tokens of the fullest part.

    Or `file` is a JSON file of measured times in seconds, over all layers of one GPU: `dense_s` (T,) at `tokens` tokens
    a step; `head_s` (S,) at `seqs` sequences that get a token; `decode_s` (D, C) of the attention of `decode_seqs`
    decodes with `decode_context` stored tokens each; `prefill_s` (P, K) of the attention of `chunk` new tokens after
    `stored` ones. `mixed_s` (P, K, D, C), if there, is the attention of both in one step; without it the two are added.
    Beside them nothing is added unless it is given. Between measured points times are interpolated, beyond them
    continued in a straight line.
    """

    file: str | None = None
    data: str | None = None
    system: str | None = None
    model: str = "llama3.1-70b"
    hardware: str = "h100"
    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    linear: str | None = None
    attention: str | None = None
    experts: str | None = None
    kv: str | None = None
    expert_kernels: str = ""
    overhead_s: NotNegative = 0.0
    seq_s: NotNegative | None = None
    prefill_scale: Annotated[float, Meta(ge=1)] | None = None
    launch_s: NotNegative | None = None
    graph_tokens: int | None = None
    mixed_decode: float | None = None
    front_s: NotNegative | None = None
    front_token_s: NotNegative | None = None
    scale: Positive = 1.0
    skew: Annotated[float, Meta(ge=1, description="the tokens of the fullest GPU over the mean")] = 1.0
    stored_bits: tuple[float | None, float | None] = field(default=(None, None), init=False, repr=False, compare=False)
    step_s: Callable[..., float] = field(init=False, repr=False, compare=False)
    decode_s: Callable[..., float] = field(init=False, repr=False, compare=False)
    decode_line: Callable[..., Curve] = field(init=False, repr=False, compare=False)
    decode_many_s: Callable[..., np.ndarray] = field(init=False, repr=False, compare=False)
    step_parts: Callable[[StepLoads], StepParts | None] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        put = object.__setattr__
        for name, value in NOT_KERNELS.items():
            if getattr(self, name) is None:
                is_none = self.file is not None or (name == "front_token_s" and not self.front_s)
                put(self, name, NOTHING[name] if is_none else value)
        check(self)
        formats = {key: value for key in ("linear", "attention", "experts", "kv") if (value := getattr(self, key))}
        if self.file is not None:
            if self.data or self.system or formats:
                raise ValueError("file holds all times; it does not go with data, system or formats")
            self._keep(_read(self.file))
            return
        m, shape = model(self.model), Shape(self.tp, self.pp, self.dp, self.ep)
        shape.check(m)
        gpu = hardware(self.hardware)
        if self.mixed_decode is None and gpu.nvlink_bytes_per_s is None:
            put(self, "mixed_decode", MIXED_DECODE)
        kernels = measured_kernels(self.data, self.system, gpu, self.expert_kernels)
        steps = Steps(m, shape, replace(m.formats, **formats), kernels, self.skew)
        self._keep(steps.grids(), steps.launches)
        if formats:
            stored = replace(m, formats=replace(m.formats, **formats))
            bits = 8 * weight_bytes(stored) / parameters(stored)
            put(self, "stored_bits", (bits, None if self.kv is None else format_named(self.kv).bits))

    def _keep(self, tables: dict[str, np.ndarray], launches: float = 0.0) -> None:
        """Take over the methods of the steps from these tables, so that none costs a call more."""
        steps = Interpolated(
            tables, overhead_s=self.overhead_s, seq_s=self.seq_s or 0.0, scale=self.scale,
            slower=(self.prefill_scale or 1.0) - 1, launched_s=(self.launch_s or 0.0) * launches,
            graph_tokens=self.graph_tokens or 0,
            mixed_decode=1.0 if self.mixed_decode is None else self.mixed_decode, dp=self.dp, pp=self.pp,
        )  # fmt: skip
        for name in ("step_s", "decode_s", "decode_line", "decode_many_s", "step_parts"):
            object.__setattr__(self, name, getattr(steps, name))


def _read(file: str) -> dict[str, np.ndarray]:
    with untrusted.readable(f"'{file}'"):
        fields: Any = untrusted.read_json(Path(file))
    missing = [key for key in KEYS if not isinstance(fields, dict) or key not in fields]
    if missing:
        raise UsageError(f"'{file}' holds no {', '.join(missing)}; operators needs {', '.join(KEYS)}.")
    try:
        tables = {key: np.array(value, float) for key, value in fields.items() if key in (*KEYS, "mixed_s")}
    except (TypeError, ValueError):
        raise UsageError(f"'{file}': every table of operator times must hold numbers, with equal rows.") from None
    _check_shapes(file, tables)
    return tables


def _check_shapes(file: str, t: dict[str, np.ndarray]) -> None:
    prompts, decodes = ("chunk", "stored"), ("decode_seqs", "decode_context")
    axes: dict[str, tuple[str, ...]] = {
        "dense_s": ("tokens",),
        "head_s": ("seqs",),
        "decode_s": decodes,
        "prefill_s": prompts,
        "mixed_s": (*prompts, *decodes),
    }
    for axis in ("tokens", "seqs", *decodes, *prompts):
        if t[axis].ndim != 1 or len(t[axis]) < 2 or not (np.diff(t[axis]) > 0).all():
            raise UsageError(f"'{file}': {axis} must be two numbers or more that rise.")
    for name, over in axes.items():
        expected = tuple(len(t[axis]) for axis in over)
        if name in t and t[name].shape != expected:
            raise UsageError(
                f"'{file}': {name} must have {expected} values, over {', '.join(over)}; not {t[name].shape}."
            )
        if name in t and not (np.isfinite(t[name]).all() and (t[name] >= 0).all()):
            raise UsageError(f"'{file}': {name} must hold seconds of 0 or more.")

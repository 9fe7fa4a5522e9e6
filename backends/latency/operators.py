"""Operators: the measured times of a model's operators, added up over one step.

What is measured apart is looked up apart: everything that depends on the number of tokens alone (projections, norms,
feed-forward), the head by sequences, attention by chunk, stored tokens, decodes and their context.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

import numpy as np
from msgspec import Meta

from backends.kernels.steps import Steps
from backends.kernels.tables import measured_kernels
from backends.latency._shared import largest, total
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
FULL = 2048
"""Tokens of a step whose time is that of their arithmetic, not of reading weights: what a token of a prompt takes is
its part of a step of at least so many."""
MOST_KNOWN = 100_000
"""Pieces of prompts whose time is kept."""


class _Line:
    """The polygon through (x, y), constant before it, its last piece continued to the right where it rises."""

    __slots__ = ("_arrays", "_places", "_slopes", "_starts", "_values")

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        """`x` must rise, (n,) of two or more; `y` is (n,), or (n, m) for m polygons, read by `row`."""
        slopes = (np.diff(y, axis=0).T / np.diff(x)).T
        beyond = np.maximum(slopes[-1:], 0.0)
        pieces = x, np.append(x[0], x), np.concatenate([y[:1], y]), np.concatenate([0 * beyond, slopes, beyond])
        self._arrays = pieces
        self._places, self._starts, self._values, self._slopes = (part.tolist() for part in pieces)

    def at(self, place: float) -> float:
        """The value at one place."""
        i = bisect_right(self._places, place)
        value: float = self._values[i] + self._slopes[i] * (place - self._starts[i])
        return value

    def row(self, place: float) -> np.ndarray:
        """(m,) values of all polygons at one place."""
        _, starts, values, slopes = self._arrays
        i = bisect_right(self._places, place)
        interpolated: np.ndarray = values[i] + slopes[i] * (place - starts[i])
        return interpolated

    def over(self, places: np.ndarray) -> np.ndarray:
        """(k,) values at (k,) places, the same to the last bit."""
        x, starts, values, slopes = self._arrays
        i = np.searchsorted(x, places, "right")
        interpolated: np.ndarray = values[i] + slopes[i] * (places - starts[i])
        return interpolated


class _Curve(NamedTuple):
    """Decode steps of so many sequences: seconds without attention, and of it over the context of all of them."""

    base_s: float
    attention: _Line


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
    _launched_s: float = field(default=0.0, init=False, repr=False, compare=False)  # of all kernels of a stage
    _tables: dict[str, np.ndarray] = field(init=False, repr=False, compare=False)
    _curves: dict[int, _Curve] = field(init=False, repr=False, compare=False)
    _lines: dict[str, _Line] = field(init=False, repr=False, compare=False)  # of the tables over one axis
    _lists: dict[str, list[Any]] = field(init=False, repr=False, compare=False)  # the tables over several
    _dense: _Line = field(init=False, repr=False, compare=False)  # of the tokens of a step
    _head: _Line = field(init=False, repr=False, compare=False)  # of its sequences
    _full_token_s: float = field(default=0.0, init=False, repr=False, compare=False)  # of a token in a step of `FULL`
    _slower: float = field(default=0.0, init=False, repr=False, compare=False)  # share that arithmetic of prompts adds
    _known: dict[tuple[int, int], float] = field(init=False, repr=False, compare=False)  # seconds of pieces of prompts

    def __post_init__(self) -> None:
        put = object.__setattr__
        for name, value in NOT_KERNELS.items():
            if getattr(self, name) is None:
                is_none = self.file is not None or (name == "front_token_s" and not self.front_s)
                put(self, name, NOTHING[name] if is_none else value)
        check(self)
        for memory in ("_curves", "_lines", "_lists", "_known"):
            put(self, memory, {})
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
        self._keep(steps.grids())
        put(self, "_launched_s", (self.launch_s or 0.0) * steps.launches)
        if formats:
            stored = replace(m, formats=replace(m.formats, **formats))
            bits = 8 * weight_bytes(stored) / parameters(stored)
            put(self, "stored_bits", (bits, None if self.kv is None else format_named(self.kv).bits))

    def _keep(self, tables: dict[str, np.ndarray]) -> None:
        put = object.__setattr__
        put(self, "_tables", tables)
        put(self, "_dense", self._over("tokens", "dense_s"))
        put(self, "_head", self._over("seqs", "head_s"))
        put(self, "_full_token_s", self._dense.at(FULL) / FULL)
        put(self, "_slower", (self.prefill_scale or 1.0) - 1)

    @property
    def _mixed_decode(self) -> float:
        return 1.0 if self.mixed_decode is None else self.mixed_decode

    @property
    def _graph_tokens(self) -> int:
        return self.graph_tokens or 0

    @property
    def _seq_s(self) -> float:
        return self.seq_s or 0.0

    def _host_s(self, seqs: int) -> float:
        """Seconds of the host for its sequences: each group has a scheduler of its own."""
        return self._seq_s * -(-seqs // self.dp)

    def step_s(self, prefills: Sequence[tuple[int, int]], decode_seqs: int, context_tokens: int) -> float:
        """Seconds of one step; `prefills` holds (new tokens, tokens already stored) per piece of prompt."""
        if not prefills:
            return self.decode_s(decode_seqs, context_tokens)
        new = sum(piece for piece, _ in prefills)
        tokens, seqs = decode_seqs + new, decode_seqs + len(prefills)
        decodes_s, prompts_s = self._attention_s(prefills, decode_seqs, context_tokens)
        dense_s = self._dense.at(tokens)
        token_s = dense_s / tokens if tokens > FULL else self._full_token_s
        prompts_s += self._slower * (prompts_s + token_s * new)
        kernels_s = self.scale * (dense_s + self._head.at(seqs) + decodes_s + prompts_s)
        # The host launches while the GPU computes, so the longer of both counts.
        if tokens > self._graph_tokens:
            kernels_s = max(kernels_s, self._launched_s)
        return self.overhead_s + self._host_s(seqs) + kernels_s

    def decode_s(self, decode_seqs: int, context_tokens: int) -> float:
        """Seconds of a step of decodes alone."""
        curve = self._curve(decode_seqs)
        return curve.base_s + curve.attention.at(context_tokens)

    def decode_line(self, decode_seqs: int) -> None:
        """None: measured times are no straight line in the context."""

    def decode_many_s(self, decode_seqs: int, context_tokens: np.ndarray) -> np.ndarray:
        """(k,) seconds of decode steps with these (k,) cached tokens."""
        curve = self._curve(decode_seqs)
        times: np.ndarray = curve.base_s + curve.attention.over(context_tokens)
        return times

    def step_parts(self, loads: StepLoads) -> StepParts | None:
        """Of what the time of steps consists, over all stages; None for times of a file, which are not apart."""
        if "linear_s" not in self._tables:
            return None
        new, pieces = total(loads, loads.new_tokens), total(loads, np.ones_like(loads.step))
        tokens, seqs = loads.decode_seqs + new, loads.decode_seqs + pieces
        full = np.maximum(tokens, FULL)
        linear, experts, sent, other = (
            line.over(tokens) + self._slower * line.over(full) * new / full
            for line in (self._over("tokens", f"{name}_s") for name in ("linear", "experts", "communication", "other"))
        )
        linear += other + self._head.over(seqs)
        lengths = zip(loads.new_tokens.tolist(), loads.stored_tokens.tolist(), strict=True)
        pieces_s = np.array([self._piece_s(*length) for length in lengths], float)
        attention = total(loads, pieces_s)
        if self.dp > 1:
            attention = np.maximum(attention / self.dp, largest(loads, pieces_s))
        attention *= 1 + self._slower
        order = np.argsort(loads.decode_seqs, kind="stable")
        for alike in np.split(order, np.flatnonzero(np.diff(loads.decode_seqs[order])) + 1):
            if len(alike) and (decoding := int(loads.decode_seqs[alike[0]])):
                alone_s = self._curve(decoding).attention.over(loads.context_tokens[alike]) / self.scale
                attention[alike] += np.where(seqs[alike] > decoding, self._mixed_decode, 1.0) * alone_s
        factor = self.scale * self.pp
        host_s = (self.overhead_s + self._seq_s * -(-seqs // self.dp)) * self.pp
        kernels_s = self.scale * (attention + linear + experts + sent)
        waits_s = np.where(tokens > self._graph_tokens, np.maximum(self._launched_s - kernels_s, 0.0), 0.0)
        host_s[loads.step] += waits_s[loads.step] * self.pp  # of the GPU for the host, in steps with prompts
        return StepParts(attention * factor, linear * factor, experts * factor, sent * factor, host_s)

    def _curve(self, decode_seqs: int) -> _Curve:
        curve = self._curves.get(decode_seqs)
        if curve is None:
            kernels_s = self._dense.at(decode_seqs) + self._head.at(decode_seqs)
            base_s = self.overhead_s + self._host_s(decode_seqs) + self.scale * kernels_s
            of_context = self.scale * self._over("decode_seqs", "decode_s").row(decode_seqs)
            curve = _Curve(base_s, _Line(self._tables["decode_context"] * decode_seqs, of_context))
            self._curves[decode_seqs] = curve
        return curve

    def _over(self, axis: str, name: str) -> _Line:
        """The table of this name over its axis."""
        line = self._lines.get(name)
        if line is None:
            line = self._lines[name] = _Line(self._tables[axis], self._tables[name])
        return line

    def _piece_s(self, new: int, stored: int) -> float:
        """Measured seconds of the attention of a piece of a prompt."""
        piece_s = self._known.get((new, stored))
        if piece_s is None:
            if len(self._known) == MOST_KNOWN:
                self._known.clear()
            piece_s = self._known[new, stored] = self._between("prefill_s", ("chunk", "stored"), (new, stored))
        return piece_s

    def _between(self, name: str, axes: Sequence[str], place: Sequence[float]) -> float:
        if name not in self._lists:
            self._lists.update((key, self._tables[key].tolist()) for key in (name, *axes))
        return max(_grid(self._lists[name], [self._lists[axis] for axis in axes], place), 0.0)

    def _attention_s(
        self, prefills: Sequence[tuple[int, int]], decode_seqs: int, context_tokens: int
    ) -> tuple[float, float]:
        """Measured seconds of attention of the decodes of one step, and of its prompts."""
        pieces_s = [self._piece_s(new, stored) for new, stored in prefills]
        prompts_s = sum(pieces_s)
        if self.dp > 1:  # pieces of the groups at the same time, none of them divided
            prompts_s = max(prompts_s / self.dp, *pieces_s)
        if not decode_seqs:
            return 0.0, prompts_s
        alone_s = self._curve(decode_seqs).attention.at(context_tokens) / self.scale
        if "mixed_s" not in self._tables:
            return self._mixed_decode * alone_s, prompts_s
        most = max(range(len(prefills)), key=pieces_s.__getitem__)
        place = [*prefills[most], decode_seqs, context_tokens / decode_seqs]
        both_s = self._between("mixed_s", ("chunk", "stored", "decode_seqs", "decode_context"), place)
        return alone_s, prompts_s - pieces_s[most] + max(both_s - alone_s, 0.0)


def _read(file: str) -> dict[str, np.ndarray]:
    try:
        fields: Any = untrusted.read_json(Path(file))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UsageError(f"'{file}' cannot be read as JSON of operator times ({error}).") from None
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


def _grid(table: list[Any], axes: Sequence[list[float]], place: Sequence[float]) -> float:
    """The value of a table at a place between its points, linear along each axis; the edge piece goes on beyond it."""
    axis, point = axes[0], place[0]
    i = min(max(bisect_left(axis, point) - 1, 0), len(axis) - 2)
    share = max((point - axis[i]) / (axis[i + 1] - axis[i]), 0.0)
    low, high = table[i : i + 2]
    if len(axes) > 1:
        low, high = (_grid(part, axes[1:], place[1:]) for part in (low, high))
    value: float = low * (1 - share) + high * share
    return value

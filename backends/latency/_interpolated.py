"""Seconds of steps from tables of operator times: between measured points interpolated, beyond them in a straight line.

What runs for every step of a simulation with `operators`, whose options and tables are in the module of that name.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, Final

import numpy as np

from backends.latency._shared import largest, total
from harness.api import StepLoads, StepParts

FULL: Final = 2048
"""Tokens of a step whose time is that of their arithmetic, not of reading weights: what a token of a prompt takes is
its part of a step of at least so many."""
MOST_KNOWN: Final = 100_000
"""Points of an axis whose place is kept."""


class Line:
    """The polygon through (x, y), constant before it, its last piece continued to the right where it rises."""

    __slots__ = ("_known", "arrays", "places", "slopes", "starts", "values")

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        """`x` must rise, (n,) of two or more; `y` is (n,), or (n, m) for m polygons, read by `over`."""
        slopes = (np.diff(y, axis=0).T / np.diff(x)).T
        beyond = np.maximum(slopes[-1:], 0.0)
        arrays = x, np.append(x[0], x), np.concatenate([y[:1], y]), np.concatenate([0 * beyond, slopes, beyond])
        self.arrays = arrays
        # a piece goes up to its place (the last one for ever): its start, the value there, and the slope
        places, starts, values, slopes_of = (part.astype(float).tolist() for part in arrays)
        self.places: list[float] = [*places, inf]
        self.starts: list[float] = starts
        self.values: list[float] = values
        self.slopes: list[float] = slopes_of
        self._known: dict[int, float] = {}  # by whole number

    def at(self, place: float) -> float:
        """The value at one place."""
        i = bisect_right(self.places, place)
        return self.values[i] + self.slopes[i] * (place - self.starts[i])

    def of_count(self, count: int) -> float:
        """The value at a whole number, which comes again and again."""
        value = self._known.get(count)
        if value is None:
            value = self._known[count] = self.at(count)
        return value

    def of_counts(self, counts: np.ndarray) -> np.ndarray:
        """(k,) values at (k,) whole numbers, which may be many times the same."""
        every = np.arange(counts.max(initial=0) + 1)
        return self.over(every)[counts] if len(every) < len(counts) else self.over(counts)

    def over(self, places: np.ndarray) -> np.ndarray:
        """(k,) or (k, m) values at (k,) places, the same to the last bit; of m polygons at one place."""
        x, starts, values, slopes = self.arrays
        i = np.searchsorted(x, places, "right")
        interpolated: np.ndarray = values[i] + slopes[i] * (places - starts[i])
        return interpolated


class TableAxis:
    """An axis of a table."""

    __slots__ = ("_points", "_steps", "known")

    def __init__(self, points: np.ndarray) -> None:
        """`points` must rise, (n,) of two or more."""
        self._points = points
        self._steps: list[float] = points.tolist()
        self.known: dict[float, tuple[int, float]] = {}  # places by point

    def place(self, point: float) -> tuple[int, float]:
        """The piece in which a point lies, and how far in it; beyond the end more than 1."""
        if len(self.known) == MOST_KNOWN:
            self.known.clear()
        steps = self._steps
        i = min(max(bisect_left(steps, point) - 1, 0), len(steps) - 2)
        self.known[point] = place = i, max((point - steps[i]) / (steps[i + 1] - steps[i]), 0.0)
        return place

    def places(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The same of (k,) points."""
        axis = self._points
        i = np.clip(np.searchsorted(axis, points) - 1, 0, len(axis) - 2)
        return i, np.maximum((points - axis[i]) / (axis[i + 1] - axis[i]), 0.0)


class Curve:
    """Decode steps of so many sequences: seconds without attention, and of it over the context of all of them."""

    __slots__ = ("attention", "base_s")

    def __init__(self, base_s: float, attention: Line) -> None:
        self.base_s = base_s
        self.attention = attention

    def extend(
        self, ends: list[float], most: int, now_s: float, horizon_s: float, context: int, seqs: int, longer: float
    ) -> None:
        """See `harness.api.DecodeCurve`."""
        line, base_s = self.attention, self.base_s
        places, until = line.places, -inf  # where the piece ends
        start = value_s = slope_s = 0.0
        for _ in range(most):
            if context >= until:
                i = bisect_right(places, context)
                until, start, value_s, slope_s = places[i], line.starts[i], line.values[i], line.slopes[i]
            now_s += (base_s + (value_s + slope_s * (context - start))) * longer
            ends.append(now_s)
            if now_s >= horizon_s:
                return
            context += seqs


class Interpolated:
    """The steps of one replica.

    `tables` are those of `operators`; `overhead_s` and `seq_s` of the host are added, kernels multiplied by `scale`.
    Arithmetic of prompts takes the share `slower` longer, and kernels `launched_s` or more where a step with prompts
    has more than `graph_tokens` tokens. `dp` groups share the sequences of a replica with `pp` stages.
    """

    __slots__ = ("_chunk", "_curves", "_dense", "_dp", "_full_token_s", "_graph_tokens", "_head", "_launched_s",
                 "_lines", "_mixed", "_mixed_axes", "_mixed_decode", "_overhead_s", "_pp", "_prefill_s", "_scale",
                 "_seq_s", "_slower", "_stored", "_tables")  # fmt: skip

    def __init__(
        self, tables: Mapping[str, np.ndarray], *, overhead_s: float, seq_s: float, scale: float, slower: float,
        launched_s: float, graph_tokens: int, mixed_decode: float, dp: int, pp: int,
    ) -> None:  # fmt: skip
        self._tables = tables
        self._overhead_s = overhead_s
        self._seq_s = seq_s
        self._scale = scale
        self._slower = slower
        self._launched_s = launched_s
        self._graph_tokens = graph_tokens
        self._mixed_decode = mixed_decode
        self._dp = dp
        self._pp = pp
        self._curves: dict[int, Curve] = {}
        self._lines: dict[str, Line] = {}  # of the tables over one axis
        self._chunk = TableAxis(tables["chunk"])
        self._stored = TableAxis(tables["stored"])
        self._prefill_s: list[list[float]] = tables["prefill_s"].tolist()
        self._mixed: list[Any] = tables["mixed_s"].tolist() if "mixed_s" in tables else []
        decodes = [TableAxis(tables[name]) for name in ("decode_seqs", "decode_context")]
        self._mixed_axes = [self._chunk, self._stored, *decodes]
        self._dense = self._over("tokens", "dense_s")
        self._head = self._over("seqs", "head_s")
        self._full_token_s = self._dense.at(FULL) / FULL  # of a token in a step of `FULL`

    def step_s(self, prefills: Sequence[tuple[int, int]], decode_seqs: int, context_tokens: int) -> float:
        """Seconds of one step; `prefills` holds (new tokens, tokens already stored) per piece of prompt."""
        if not prefills:
            return self.decode_s(decode_seqs, context_tokens)
        new, decodes_s, prompts_s = 0, 0.0, 0.0
        for piece, stored in prefills:
            new += piece
            prompts_s += self._piece_s(piece, stored)
        tokens, seqs = decode_seqs + new, decode_seqs + len(prefills)
        if self._dp > 1:  # pieces of the groups at the same time, none of them divided
            prompts_s = max(prompts_s / self._dp, max([self._piece_s(piece, stored) for piece, stored in prefills]))
        if decode_seqs:
            alone_s = self.decode_line(decode_seqs).attention.at(context_tokens) / self._scale
            if self._mixed:
                decodes_s, prompts_s = alone_s, self._beside(prefills, decode_seqs, context_tokens, alone_s, prompts_s)
            else:
                decodes_s = self._mixed_decode * alone_s
        dense_s = self._dense.of_count(tokens)
        token_s = dense_s / tokens if tokens > FULL else self._full_token_s
        prompts_s += self._slower * (prompts_s + token_s * new)
        kernels_s = self._scale * (dense_s + self._head.of_count(seqs) + decodes_s + prompts_s)
        # The host launches while the GPU computes, so the longer of both counts.
        if tokens > self._graph_tokens and kernels_s < self._launched_s:
            kernels_s = self._launched_s
        return self._overhead_s + self._host_s(seqs) + kernels_s

    def decode_s(self, decode_seqs: int, context_tokens: int) -> float:
        """Seconds of a step of decodes alone."""
        curve = self.decode_line(decode_seqs)
        return curve.base_s + curve.attention.at(context_tokens)

    def decode_many_s(self, decode_seqs: int, context_tokens: np.ndarray) -> np.ndarray:
        """(k,) seconds of decode steps with these (k,) cached tokens."""
        curve = self.decode_line(decode_seqs)
        times: np.ndarray = curve.base_s + curve.attention.over(context_tokens)
        return times

    def step_parts(self, loads: StepLoads) -> StepParts | None:
        """Of what the time of steps consists, over all stages; None for times of a file, which are not apart."""
        if "linear_s" not in self._tables:
            return None
        new, pieces = total(loads, loads.new_tokens), total(loads, np.ones_like(loads.step))
        tokens, seqs = loads.decode_seqs + new, loads.decode_seqs + pieces
        prompts = np.flatnonzero(new)  # steps that have any
        full = np.maximum(tokens[prompts], FULL)
        lines = [self._over("tokens", f"{name}_s") for name in ("linear", "experts", "communication", "other")]
        linear, experts, sent, other = parts = [line.of_counts(tokens) for line in lines]
        for line, part in zip(lines, parts, strict=True):
            part[prompts] += self._slower * line.of_counts(full) * new[prompts] / full
        linear += other + self._head.of_counts(seqs)
        pieces_s = self._pieces_s(loads.new_tokens, loads.stored_tokens)
        attention = total(loads, pieces_s)
        if self._dp > 1:
            attention = np.maximum(attention / self._dp, largest(loads, pieces_s))
        attention *= 1 + self._slower
        rows = np.flatnonzero(loads.decode_seqs)
        alone_s = self._decodes_s(loads.decode_seqs[rows], loads.context_tokens[rows]) / self._scale
        attention[rows] += np.where(seqs[rows] > loads.decode_seqs[rows], self._mixed_decode, 1.0) * alone_s
        factor = self._scale * self._pp
        host_s = (self._overhead_s + self._seq_s * -(-seqs // self._dp)) * self._pp
        kernels_s = self._scale * (attention + linear + experts + sent)
        waits_s = np.where(tokens > self._graph_tokens, np.maximum(self._launched_s - kernels_s, 0.0), 0.0)
        host_s[loads.step] += waits_s[loads.step] * self._pp  # of the GPU for the host, in steps with prompts
        return StepParts(attention * factor, linear * factor, experts * factor, sent * factor, host_s)

    def _pieces_s(self, new: np.ndarray, stored: np.ndarray) -> np.ndarray:
        """(k,) times `_piece_s` of (k,) pieces."""
        table, (i, share), (j, inner) = self._tables["prefill_s"], self._chunk.places(new), self._stored.places(stored)
        shorter_s = table[i, j] * (1 - inner) + table[i, j + 1] * inner
        longer_s = table[i + 1, j] * (1 - inner) + table[i + 1, j + 1] * inner
        times: np.ndarray = np.maximum(shorter_s * (1 - share) + longer_s * share, 0.0)
        return times

    def _decodes_s(self, decode_seqs: np.ndarray, context_tokens: np.ndarray) -> np.ndarray:
        """(k,) seconds of the attention of (k,) steps with decodes, as the curves have them."""
        counts = np.bincount(decode_seqs)
        kinds = np.flatnonzero(counts)
        every = [self.decode_line(seqs).attention.arrays[1:] for seqs in kinds.tolist()]
        edges = np.concatenate([[-inf], self._tables["decode_context"], [inf]])
        starts, values, slopes = np.array(every).reshape(len(kinds), 3, len(edges) - 1).transpose(1, 0, 2)
        piece = np.searchsorted(edges[1:-1], context_tokens / decode_seqs, "right")
        piece += edges[piece + 1] * decode_seqs <= context_tokens  # where the quotient was rounded
        piece -= edges[piece] * decode_seqs > context_tokens
        place = (np.cumsum(counts > 0) - 1)[decode_seqs], piece
        times: np.ndarray = values[place] + slopes[place] * (context_tokens - starts[place])
        return times

    def _host_s(self, seqs: int) -> float:
        """Seconds of the host for its sequences: each group has a scheduler of its own."""
        return self._seq_s * -(-seqs // self._dp)

    def decode_line(self, decode_seqs: int) -> Curve:
        """Measured times are no straight line in the context, but one after the other."""
        curve = self._curves.get(decode_seqs)
        if curve is None:
            kernels_s = self._dense.at(decode_seqs) + self._head.at(decode_seqs)
            base_s = self._overhead_s + self._host_s(decode_seqs) + self._scale * kernels_s
            of_context = self._scale * self._over("decode_seqs", "decode_s").over(np.array([decode_seqs]))[0]
            if not decode_seqs:  # a step that only copies
                of_context = 0 * of_context
            curve = Curve(base_s, Line(self._tables["decode_context"] * max(decode_seqs, 1), of_context))
            self._curves[decode_seqs] = curve
        return curve

    def _over(self, axis: str, name: str) -> Line:
        """The table of this name over its axis."""
        line = self._lines.get(name)
        if line is None:
            line = self._lines[name] = Line(self._tables[axis], self._tables[name])
        return line

    def _piece_s(self, new: int, stored: int) -> float:
        """Measured seconds of the attention of a piece of a prompt."""
        i, share = self._chunk.known.get(new) or self._chunk.place(new)
        j, inner = self._stored.known.get(stored) or self._stored.place(stored)
        low, high = self._prefill_s[i], self._prefill_s[i + 1]
        shorter_s = low[j] * (1 - inner) + low[j + 1] * inner
        longer_s = high[j] * (1 - inner) + high[j + 1] * inner
        return max(shorter_s * (1 - share) + longer_s * share, 0.0)

    def _beside(
        self, prefills: Sequence[tuple[int, int]], decode_seqs: int, context_tokens: int, alone_s: float,
        prompts_s: float,
    ) -> float:  # fmt: skip
        """Measured seconds that attention of prompts adds to that of decodes, of which the longest piece is in one."""
        pieces_s = [self._piece_s(new, stored) for new, stored in prefills]
        most = max(range(len(prefills)), key=pieces_s.__getitem__)
        new, stored = prefills[most]
        place = (new, stored, decode_seqs, context_tokens / decode_seqs)
        both_s = max(_grid(self._mixed, self._mixed_axes, place), 0.0)
        return prompts_s - pieces_s[most] + max(both_s - alone_s, 0.0)


def _grid(table: list[Any], axes: Sequence[TableAxis], place: Sequence[float]) -> float:
    """The value of a table at a place between its points, linear along each axis; the edge piece goes on beyond it."""
    i, share = axes[0].known.get(place[0]) or axes[0].place(place[0])
    low, high = table[i], table[i + 1]
    if len(axes) > 1:
        low, high = _grid(low, axes[1:], place[1:]), _grid(high, axes[1:], place[1:])
    value: float = low * (1 - share) + high * share
    return value

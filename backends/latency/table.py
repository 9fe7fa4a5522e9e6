"""Table: measured times of prefills by tokens and of decodes by sequences, with straight lines between them.

The name is a built-in table (`table.toml`) or the path of a file with the same keys (TOML or JSON).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from backends.latency._shared import FILES, DecodeLine, latency_file, measured_on, named
from harness.bounds import AtLeastOne, check
from harness.errors import UsageError

_Points = tuple[tuple[float, float], ...]  # (tokens or sequences, seconds), sorted
_Chunks = tuple[tuple[float, _Points], ...]  # (new tokens, ((stored tokens, further seconds a new token), ...)), sorted


@dataclass(frozen=True, slots=True)
class Table(DecodeLine):
    """Seconds of a step between the measured points of `name`, beyond the last on the line of the last two.

    A step with prompts takes what a prompt of as many tokens takes (decodes count as one each) with its attention
    replaced by that of the pieces: prefill_token_squared * ((p+n)^2 - p^2) for n tokens after p stored ones, or,
    where `chunks` were measured, what they took beyond a prompt of n tokens. Below the first prefill the line goes to
    the decode of one sequence. A step never is faster than its decodes alone. What decodes read costs context_token a
    cached token. With `pp` stages the time is that of one stage, a pp-th of this.
    """

    name: str = "yi-34b-tp2"
    pp: AtLeastOne = 1
    _prefill: _Points = field(init=False, repr=False, compare=False)  # without attention
    _decode: _Points = field(init=False, repr=False, compare=False)  # without context
    _squared_s: float = field(init=False, repr=False, compare=False)
    _context_s: float = field(init=False, repr=False, compare=False)
    _chunks: _Chunks = field(init=False, repr=False, compare=False)
    _bases: dict[int, float] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check(self)
        held = self._read()
        read = _points(held, self.name)
        for name, value in zip(("_prefill", "_decode", "_squared_s", "_context_s"), read, strict=True):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "_chunks", _measured_chunks(held, read[0], read[2], self.name))
        object.__setattr__(self, "_bases", {})

    @property
    def measured_on(self) -> Mapping[str, object]:
        """The model and tp of a built-in table; nothing for a file."""
        return measured_on("table.toml", self.name)

    def _read(self) -> Mapping[str, Any]:
        if not self.name.endswith(FILES):
            return named("table.toml", self.name)
        held = latency_file(self.name)
        arguments: Mapping[str, Any] = held.get("arguments", held)
        return arguments

    def step_s(self, prefills: Sequence[tuple[int, int]], decode_seqs: int, context_tokens: int) -> float:
        """Seconds of one step; `prefills` holds (new tokens, tokens already stored) per piece of prompt."""
        if not prefills:
            return self.decode_s(decode_seqs, context_tokens)
        tokens, pairs, after_s = decode_seqs, 0, 0.0
        for new, stored in prefills:
            tokens += new
            if self._chunks and stored:
                pairs += new * new
                after_s += new * self._after_s(new, stored)
            else:
                pairs += new * (new + 2 * stored)
        time_s = _between(self._prefill, tokens)
        if decode_seqs:
            time_s = max(time_s, _between(self._decode, decode_seqs))
        return (time_s + self._squared_s * pairs + after_s + self._context_s * context_tokens) / self.pp

    def _after_s(self, new: int, stored: int) -> float:
        """What a new token of a chunk of `new` takes longer after `stored` tokens, between the measured chunks."""
        place = sum(size <= new for size, _ in self._chunks)
        ends = []
        for size, points in self._chunks[max(0, place - 1) : place + 1]:
            last, last_s = points[-1]
            beyond = stored > last
            ends.append((size, last_s + 2 * self._squared_s * (stored - last) if beyond else _between(points, stored)))
        (size, low_s), (other, high_s) = ends[0], ends[-1]
        share = (new - size) / (other - size) if other > size and new > size else 0.0
        return low_s + (high_s - low_s) * min(share, 1.0)

    def decode_line(self, decode_seqs: int) -> tuple[float, float]:
        """(base, slope): seconds without context, and per cached token."""
        base_s = self._bases.get(decode_seqs)
        if base_s is None:
            base_s = self._bases[decode_seqs] = _between(self._decode, decode_seqs) / self.pp
        return base_s, self._context_s / self.pp


def _points(table: Mapping[str, Any], name: str) -> tuple[_Points, _Points, float, float]:
    """(prefill without attention, decode without context, squared, context) of what a table holds."""
    try:
        squared_s, context_s = (float(table.get(k, 0.0)) for k in ("prefill_token_squared_s", "context_token_s"))
        decode = sorted((float(b), float(s) - context_s * float(c)) for b, c, s in table["decode"])
        prefill = sorted((float(n), float(s) - squared_s * float(n) ** 2) for n, s in table["prefill"])
    except (KeyError, TypeError, ValueError):
        raise UsageError(
            f"'{name}' is not a table of step times: it needs prefill = [[tokens, seconds], ...] and "
            "decode = [[sequences, cached tokens, seconds], ...], and may have prefill_token_squared_s and "
            "context_token_s."
        ) from None
    if not decode or not prefill:
        raise UsageError(f"'{name}' needs at least one point of prefill and one of decode.")
    for what, points in (("prefill", prefill), ("decode", decode)):
        _check(what, points, name)
    if prefill[0][0] > 1:
        prefill.insert(0, (1.0, min(_between(tuple(decode), 1), prefill[0][1])))
    return tuple(prefill), tuple(decode), squared_s, context_s


def _measured_chunks(table: Mapping[str, Any], prefill: _Points, squared_s: float, name: str) -> _Chunks:
    """What chunks were measured to take beyond a prompt of as many tokens, by size and stored tokens."""
    try:
        rows = sorted((float(n), float(p), float(s)) for n, p, s in table.get("chunks", ()))
    except (TypeError, ValueError):
        raise UsageError(f"'{name}': chunks must be [[new tokens, stored tokens, seconds], ...].") from None
    by_size: dict[float, list[tuple[float, float]]] = {}
    for new, stored, time_s in rows:
        whole_s = _between(prefill, new) + squared_s * new * new
        points = by_size.setdefault(new, [(0.0, 0.0)])
        if new < 1 or stored <= points[-1][0]:
            raise UsageError(f"'{name}': chunks need a size and different numbers of stored tokens, all above 0.")
        points.append((stored, max(0.0, (time_s - whole_s) / new)))
    return tuple((new, tuple(points)) for new, points in by_size.items())


def _check(what: str, points: list[tuple[float, float]], name: str) -> None:
    for (x, y), (more, later) in pairwise(points):
        if x == more:
            raise UsageError(f"'{name}' has two {what} times for {x:g}; keep one, such as their median.")
        if later < y * (1 - 1e-9):
            raise UsageError(f"'{name}': {what} of {more:g} takes less than of {x:g}, beyond attention and context.")
    if points[0][1] <= 0:
        raise UsageError(f"'{name}': {what} of {points[0][0]:g} takes no time, beyond attention and context.")


def _between(points: _Points, x: float) -> float:
    """Seconds at `x`: on the line between its neighbours, below the first point as long as there."""
    place = bisect_right(points, (x, float("inf")))
    if place == 0 or len(points) == 1:
        return points[0][1]
    (x0, y0), (x1, y1) = points[place - 1 : place + 1] if place < len(points) else points[-2:]
    return y0 + (y1 - y0) * ((x - x0) / (x1 - x0))

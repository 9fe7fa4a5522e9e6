"""The short latency models, a class each."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from backends.latency._shared import FILES, DecodeLine, latency_file, measured_on, named, resolved
from harness import registry
from harness.api import FrontTime, StoredBits, TokenizerTime
from harness.bounds import AtLeastOne, NotNegative, check
from harness.errors import UsageError
from harness.spec import Spec

TERMS = ("floor_s", "base_s", "token_s", "prefill_token_squared_s", "seq_s", "context_token_s", "front_end_s")
_Points = tuple[tuple[float, float], ...]  # (tokens or sequences, seconds), sorted
_Chunks = tuple[tuple[float, _Points], ...]  # (new tokens, ((stored tokens, further seconds a new token), ...)), sorted


@dataclass(frozen=True, slots=True)
class Linear(DecodeLine):
    """Linear: a fixed time per step plus a time per token, per decode and per cached token.

    By default every step takes 10 ms: constants that are not given are 0.

    Seconds of a step: base + decode_seq * sequences + context_token * cached tokens that decodes read.
    Each piece of n prompt tokens after p stored ones adds prefill_token * n + prefill_token_squared *
    ((p+n)^2 - p^2).

    A prompt costs the same in one piece or in many, but for the base of each step. front_end is not part of a step:
    the simulator adds it before a request reaches its scheduler.
    """  # fmt: skip

    base_s: NotNegative = 0.01
    prefill_token_s: NotNegative = 0.0
    decode_seq_s: NotNegative = 0.0
    context_token_s: NotNegative = 0.0
    prefill_token_squared_s: NotNegative = 0.0
    front_end_s: NotNegative = 0.0

    def __post_init__(self) -> None:
        check(self)

    @property
    def front_s(self) -> float:
        """Seconds before a request reaches its scheduler."""
        return self.front_end_s

    def step_s(self, prefills: Sequence[tuple[float, float]], decode_seqs: int, context_tokens: float) -> float:
        """Seconds of one step; `prefills` holds (new tokens, tokens already stored) per piece of prompt."""
        time_s = self.decode_s(decode_seqs, context_tokens)
        if prefills:
            tokens = sum(n for n, _ in prefills)
            squares = sum(n * (n + 2 * p) for n, p in prefills)
            time_s += self.prefill_token_s * tokens + self.prefill_token_squared_s * squares
        return time_s

    def decode_s(self, decode_seqs: int, context_tokens: float) -> float:
        """Seconds of a step of decodes alone."""
        return self.base_s + self.decode_seq_s * decode_seqs + self.context_token_s * context_tokens

    def decode_line(self, decode_seqs: int) -> tuple[float, float]:
        """(base, slope): seconds without context, and per cached token."""
        return self.base_s + self.decode_seq_s * decode_seqs, self.context_token_s


@dataclass(frozen=True, slots=True)
class Mixed(DecodeLine):
    """Mixed: reading the weights or computing the tokens, whichever is longer, plus attention and cached tokens.

    A decode that rides along with a chunk of prompt costs one token and the reading of its context, because the chunk
    hides the weights: what chunked prefill lives on (Agrawal et al., Sarathi-Serve, OSDI 2024, table 2).

    Seconds of a step: max(floor, base + token * tokens) + seq * decodes + context_token * cached tokens read.

    `tokens` counts prompt tokens and decodes together; each piece of n prompt tokens after p stored ones adds
    prefill_token_squared * ((p+n)^2 - p^2). Constants that are not given come from the set `constants` (`mixed.toml`);
    with `constants=given` they are 0. front_end is not part of a step: the simulator adds it before a request reaches
    its scheduler. With `pp` stages the time is that of one stage, a pp-th of all this.
    """

    constants: str = "yi-34b-tp2"
    pp: AtLeastOne = 1
    floor_s: float | None = None
    base_s: float | None = None
    token_s: float | None = None
    prefill_token_squared_s: float | None = None
    seq_s: float | None = None
    context_token_s: float | None = None
    front_end_s: float | None = None
    front_s: float = field(init=False, repr=False, compare=False)
    _floor: float = field(init=False, repr=False, compare=False)
    _base: float = field(init=False, repr=False, compare=False)
    _token: float = field(init=False, repr=False, compare=False)
    _squared: float = field(init=False, repr=False, compare=False)
    _seq: float = field(init=False, repr=False, compare=False)
    _context: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check(self)
        values = resolved("mixed.toml", self.constants, {name: getattr(self, name) for name in TERMS})
        if not any(values.values()):
            raise ValueError("every constant is 0; name a set of constants or give floor, token, ...")
        object.__setattr__(self, "front_s", values.pop("front_end_s"))
        names = ("_floor", "_base", "_token", "_squared", "_seq", "_context")
        for name, value in zip(names, values.values(), strict=True):
            object.__setattr__(self, name, value / self.pp)

    @property
    def measured_on(self) -> Mapping[str, object]:
        """The model and tp of the set of constants."""
        return measured_on("mixed.toml", self.constants)

    def step_s(self, prefills: Sequence[tuple[float, float]], decode_seqs: int, context_tokens: float) -> float:
        """Seconds of one step; `prefills` holds (new tokens, tokens already stored) per piece of prompt."""
        if not prefills:
            return self.decode_s(decode_seqs, context_tokens)
        tokens, pairs = float(decode_seqs), 0.0
        for new, stored in prefills:
            tokens += new
            pairs += new * (new + 2 * stored)
        time_s = max(self._floor, self._base + self._token * tokens) + self._seq * decode_seqs
        return time_s + self._context * context_tokens + self._squared * pairs

    def decode_line(self, decode_seqs: int) -> tuple[float, float]:
        """(base, slope): seconds without context, and per cached token."""
        dense_s = max(self._floor, self._base + self._token * decode_seqs)
        return dense_s + self._seq * decode_seqs, self._context


@dataclass(frozen=True, slots=True)
class Table(DecodeLine):
    """Table: measured times of prefills by tokens and of decodes by sequences, with straight lines between them.

    The name is a built-in table (`table.toml`) or the path of a file with the same keys (TOML or JSON).

    Seconds of a step between the measured points of `name`, beyond the last on the line of the last two.

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

    def step_s(self, prefills: Sequence[tuple[float, float]], decode_seqs: int, context_tokens: float) -> float:
        """Seconds of one step; `prefills` holds (new tokens, tokens already stored) per piece of prompt."""
        if not prefills:
            return self.decode_s(decode_seqs, context_tokens)
        tokens, pairs, after_s = float(decode_seqs), 0.0, 0.0
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

    def _after_s(self, new: float, stored: float) -> float:
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


@dataclass(frozen=True, slots=True)
class File:
    """File: any latency model from a TOML or JSON file, as `bench fit` writes it.

    The file names the model and its arguments: `latency = "mixed"` and a table `[arguments]`.

    The latency model that the file `path` describes, for `model` on `tp` x `pp` GPUs; a file of others is refused.

    Its methods are those of the model in the file, so that reading it from there costs nothing per step. A model that
    has no pipeline stages gives the time of one.
    """

    path: str
    model: str = "opt-13b"
    hardware: str = "a100-80g"
    tp: int = 1
    pp: int = 1
    front_s: float = field(init=False, repr=False, compare=False)
    front_token_s: float = field(init=False, repr=False, compare=False)
    stored_bits: tuple[float | None, float | None] = field(init=False, repr=False, compare=False)
    measured_on: Mapping[str, object] = field(init=False, repr=False, compare=False)
    step_s: Callable[..., float] = field(init=False, repr=False, compare=False)
    decode_s: Callable[..., float] = field(init=False, repr=False, compare=False)
    decode_line: Callable[..., tuple[float, float] | None] = field(init=False, repr=False, compare=False)
    decode_many_s: Callable[..., Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        held = latency_file(self.path)
        inner = self._inner(held)
        object.__setattr__(self, "front_s", inner.front_s if isinstance(inner, FrontTime) else 0.0)
        token_s = inner.front_token_s if isinstance(inner, TokenizerTime) else 0.0
        object.__setattr__(self, "front_token_s", token_s)
        object.__setattr__(self, "stored_bits", inner.stored_bits if isinstance(inner, StoredBits) else (None, None))
        fit = held.get("fit")  # what `bench fit` noted: the GPU for which its constants hold
        measured_on = {"hardware": fit["hardware"]} if isinstance(fit, dict) and "hardware" in fit else {}
        object.__setattr__(self, "measured_on", measured_on)
        for name in ("step_s", "decode_s", "decode_line", "decode_many_s"):
            object.__setattr__(self, name, getattr(inner, name))

    def _inner(self, held: Mapping[str, Any]) -> Any:
        name = held.get("latency")
        if not isinstance(name, str) or name in ("file", "recorded"):
            raise UsageError(f"'{self.path}' must name its latency model: latency = \"mixed\", or linear, abc, ...")
        inherited: dict[str, object] = {key: getattr(self, key) for key in ("model", "hardware", "tp", "pp")}
        if name in ("table", "abc"):  # they read lists themselves
            return registry.make("latency", Spec(name, {}, self.path), **inherited)
        arguments = held.get("arguments", {})
        if not isinstance(arguments, dict):
            raise UsageError(f"'{self.path}': arguments must be a table of the arguments of {name}.")
        try:
            spec = Spec(name, {key: _text(value) for key, value in arguments.items()})
            return registry.make("latency", spec, **inherited)
        except UsageError as error:
            raise UsageError(f"In '{self.path}': {error}") from None


def _text(value: object) -> str:
    """A value as a spec has it, exact."""
    return str(value).lower() if isinstance(value, bool) else str(value)

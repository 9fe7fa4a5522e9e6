"""Mixed: reading the weights or computing the tokens, whichever is longer, plus attention and cached tokens.

A decode that rides along with a chunk of prompt costs one token and the reading of its context, because the chunk
hides the weights: what chunked prefill lives on (Agrawal et al., Sarathi-Serve, OSDI 2024, table 2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from backends.latency._shared import DecodeLine, measured_on, resolved
from harness.bounds import AtLeastOne, check

TERMS = ("floor_s", "base_s", "token_s", "prefill_token_squared_s", "seq_s", "context_token_s", "front_end_s")


@dataclass(frozen=True, slots=True)
class Mixed(DecodeLine):
    """Seconds of a step: max(floor, base + token * tokens) + seq * decodes + context_token * cached tokens read.

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

    def step_s(self, prefills: Sequence[tuple[int, int]], decode_seqs: int, context_tokens: int) -> float:
        """Seconds of one step; `prefills` holds (new tokens, tokens already stored) per piece of prompt."""
        if not prefills:
            return self.decode_s(decode_seqs, context_tokens)
        tokens, pairs = decode_seqs, 0
        for new, stored in prefills:
            tokens += new
            pairs += new * (new + 2 * stored)
        time_s = max(self._floor, self._base + self._token * tokens) + self._seq * decode_seqs
        return time_s + self._context * context_tokens + self._squared * pairs

    def decode_line(self, decode_seqs: int) -> tuple[float, float]:
        """(base, slope): seconds without context, and per cached token."""
        dense_s = max(self._floor, self._base + self._token * decode_seqs)
        return dense_s + self._seq * decode_seqs, self._context

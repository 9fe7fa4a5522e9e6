"""Abc: three constants per phase, as DistServe fitted them for OPT-13B and OPT-66B on an A100-80G.

Source: Zhong et al., DistServe, OSDI 2024, appendix A; the constants are those of its simulator (`abc.toml`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from backends.latency._shared import FILES, DecodeLine, latency_file, sets
from harness.bounds import AtLeastOne, check
from harness.errors import UsageError, no_such

LARGE_BATCH = 95
"""Decodes of this many sequences and more have constants of their own (LLMServe/DistServe, profile_data)."""

_Constants = tuple[float, float, float]


def _of_file(path: str) -> dict[str, list[float]]:
    """The constants of a file, in milliseconds as in `abc.toml`."""
    held = latency_file(path)
    table = held.get("arguments", held)
    try:
        fit = {
            name: [1000 * float(x) for x in table[f"{name}_s"]] for name in ("prefill", "decode_small", "decode_large")
        }
    except (KeyError, TypeError, ValueError):
        fit = {}
    if not fit or any(len(constants) != 3 or min(constants) < 0 for constants in fit.values()):
        raise UsageError(
            f"'{path}' is not a set of abc constants: it needs prefill_s, decode_small_s and decode_large_s, each with "
            "three numbers that are not negative."
        )
    return fit


@dataclass(frozen=True, slots=True)
class Abc(DecodeLine):
    """Seconds of a step from DistServe's constants: `engine` vllm or distserve, for one model and tp.

    `engine` may be a file with constants of another system (TOML or JSON): prefill_s, decode_small_s and
    decode_large_s with a, b and c each, in seconds; model, tp and hardware are then not looked at.

    Prefill takes a + b * tokens + c * sum of (p+n)^2 - p^2 over pieces of n tokens after p stored ones, so
    that cutting a prompt costs one a per further step and nothing else. Decode takes a + b * context +
    c * sequences, with other constants from 95 sequences on; there the published fits may fall a little. A
    mixed step takes the larger a once, and the further terms of both. With `pp` stages the time is that of
    one stage: a batch leaves after pp of them.

    `fitted` takes the plain fits instead of those of DistServe's main branch (prefill 1.1 or 1.4 times,
    decode 1.0 or 1.2 times as long).
    """

    engine: str = "vllm"
    model: str = "opt-13b"
    tp: int = 1
    pp: AtLeastOne = 1
    hardware: str = "a100-80g"
    fitted: bool = False
    _prefill: _Constants = field(init=False, repr=False, compare=False)
    _small: _Constants = field(init=False, repr=False, compare=False)
    _large: _Constants = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check(self)
        fit = self._fit()
        a, b, c = self._per_stage(fit["prefill"])
        object.__setattr__(self, "_prefill", (a, b, max(0.0, c)))
        object.__setattr__(self, "_small", self._per_stage(fit["decode_small"]))
        object.__setattr__(self, "_large", self._per_stage(fit["decode_large"]))

    def _fit(self) -> dict[str, list[float]]:
        if self.engine.endswith(FILES):
            return _of_file(self.engine)
        engines = sets("abc.toml")["fitted" if self.fitted else "main"]
        models = engines.get(self.engine)
        if models is None:
            raise no_such("engine of abc constants", self.engine, engines)
        fit: dict[str, list[float]] | None = models.get(self.model.lower(), {}).get(f"tp{self.tp}")
        if fit is None or self.hardware.lower() != "a100-80g":
            combinations = "; ".join(f"{m} with tp {', '.join(tp[2:] for tp in tps)}" for m, tps in models.items())
            requested = f"{self.engine}, {self.model}, tp={self.tp} on {self.hardware}"
            raise UsageError(
                f"No abc constants for {requested}. Known: {' and '.join(engines)} on a100-80g, {combinations}; "
                "for other models or GPUs use the latency model 'roofline'."
            )
        return fit

    def _per_stage(self, constants_ms: list[float]) -> _Constants:
        a, b, c = (x / 1000 / self.pp for x in constants_ms)
        return a, b, c

    def step_s(self, prefills: Sequence[tuple[float, float]], decode_seqs: int, context_tokens: float) -> float:
        """Seconds of one step; `prefills` holds (new tokens, tokens already stored) per piece of prompt."""
        if not prefills:
            return self.decode_s(decode_seqs, context_tokens)
        base_s, token_s, squared_s = self._prefill
        time_s = 0.0
        if decode_seqs:
            a, b, c = self._small if decode_seqs < LARGE_BATCH else self._large
            base_s = max(base_s, a)
            time_s = c * decode_seqs + b * context_tokens
        tokens = sum(n for n, _ in prefills)
        squares = sum(n * (n + 2 * p) for n, p in prefills)
        return base_s + token_s * tokens + squared_s * squares + time_s

    def decode_line(self, decode_seqs: int) -> tuple[float, float]:
        """(base, slope): seconds without context, and per cached token."""
        a, b, c = self._small if decode_seqs < LARGE_BATCH else self._large
        return a + c * decode_seqs, b

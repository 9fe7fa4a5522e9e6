"""File: any latency model from a TOML or JSON file, as `bench fit` writes it.

The file names the model and its arguments: `latency = "mixed"` and a table `[arguments]`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from backends.latency._shared import latency_file
from harness import registry
from harness.api import FrontTime, StoredBits, TokenizerTime
from harness.errors import UsageError
from harness.spec import Spec


@dataclass(frozen=True, slots=True)
class File:
    """The latency model that the file `path` describes, for `model` on `tp` x `pp` GPUs; a file of others is refused.

    Its methods are those of the model in the file, so that reading it from there costs nothing per step. A model that
    has no pipeline stages gives the time of one.
    """

    path: str
    model: str = "opt-13b"
    hardware: str = "a100-80g"
    tp: int = 1
    pp: int = 1
    inner: Any = field(init=False, repr=False, compare=False)
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
        object.__setattr__(self, "inner", inner)
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

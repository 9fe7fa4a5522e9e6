"""What latency models share: their constants, decodes on a straight line, and sums over what several steps run.

Constants come from named sets beside this file (`mixed.toml`, `table.toml`, ...), or from a file of the user, as
`bench fit` writes it: TOML or JSON with `latency` and its `arguments`.
"""

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from harness import untrusted
from harness.api import StepLoads
from harness.errors import UsageError, no_such

FILES = (".toml", ".json")
GIVEN = "given"
"""The set without constants: what is not given in the spec itself is 0."""
_ORIGIN = ("model", "hardware", "tp")


@cache
def sets(file: str) -> Mapping[str, Mapping[str, Any]]:
    """What a file beside this one holds, by name."""
    path = Path(__file__).with_name(file)
    return MappingProxyType(tomllib.loads(path.read_text(encoding="utf-8")))


def named(file: str, name: str) -> Mapping[str, Any]:
    """The set of that name. Raises UsageError with the nearest known name."""
    constants = sets(file).get(name.lower())
    if constants is None:
        raise no_such(f"set of constants of {file.removesuffix('.toml')}", name, sets(file))
    return constants


def measured_on(file: str, name: str) -> Mapping[str, object]:
    """The system that the set `name` holds for, where it holds for one alone; nothing for constants that are given."""
    return MappingProxyType({key: value for key, value in sets(file).get(name.lower(), {}).items() if key in _ORIGIN})


def resolved(file: str, name: str, given: Mapping[str, float | None]) -> dict[str, float]:
    """`given` with what is None taken from the set `name`, else 0. Raises ValueError for a negative number."""
    constants = {} if name == GIVEN else named(file, name)
    values = {key: float(constants.get(key, 0.0)) if value is None else value for key, value in given.items()}
    for key, value in values.items():
        if value < 0:
            raise ValueError(f"{key} must not be negative")
    return values


def latency_file(path: str) -> Mapping[str, Any]:
    """What the file holds. Raises UsageError if it is not there or neither TOML nor JSON."""
    file = Path(path)
    if not file.is_file():
        raise UsageError(f"'{path}' is not a file; a latency model in a file is what 'bench fit --out' writes.")
    with untrusted.readable(f"'{path}'"):
        held = untrusted.read_json(file) if file.suffix == ".json" else untrusted.read_toml(file)
    if not isinstance(held, dict):
        raise UsageError(f"'{path}' must hold a table with the key latency, got {type(held).__name__}.")
    return held


class DecodeLine:
    """The times of decodes alone, of a latency model that has their line for every number of sequences."""

    __slots__ = ()

    def decode_line(self, decode_seqs: int) -> tuple[float, float]:
        """(base, slope): seconds without context, and per cached token."""
        raise NotImplementedError

    def decode_s(self, decode_seqs: int, context_tokens: float) -> float:
        """Seconds of a step of decodes alone."""
        base_s, slope_s = self.decode_line(decode_seqs)
        return base_s + slope_s * context_tokens

    def decode_many_s(self, decode_seqs: int, context_tokens: np.ndarray) -> np.ndarray:
        """(k,) seconds of decode steps with these (k,) cached tokens."""
        base_s, slope_s = self.decode_line(decode_seqs)
        times: np.ndarray = base_s + slope_s * context_tokens
        return times


def total(loads: StepLoads, of_pieces: np.ndarray) -> np.ndarray:
    """(n,) sums over the pieces of each step, of their type."""
    return np.bincount(loads.step, of_pieces, len(loads.decode_seqs)).astype(of_pieces.dtype, copy=False)


def largest(loads: StepLoads, of_pieces: np.ndarray) -> np.ndarray:
    """(n,) the largest of the pieces of each step, 0 where it has none."""
    maxima = np.zeros(len(loads.decode_seqs), of_pieces.dtype)
    np.maximum.at(maxima, loads.step, of_pieces)
    return maxima

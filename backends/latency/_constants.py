"""Named sets of constants: `mixed.toml`, `table.toml` and `fit6.toml` stand beside their latency models."""

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from harness.errors import no_such

GIVEN = "given"
"""The set without constants: what is not given in the spec itself is 0."""
_ORIGIN = ("model", "hardware", "tp")


@cache
def _sets(file: str) -> Mapping[str, Mapping[str, Any]]:
    path = Path(__file__).with_name(file)
    return MappingProxyType(tomllib.loads(path.read_text(encoding="utf-8")))


def names(file: str) -> list[str]:
    """The sets of one file, sorted."""
    return sorted(_sets(file))


def named(file: str, name: str) -> Mapping[str, Any]:
    """The set of that name. Raises UsageError with the nearest known name."""
    found = _sets(file).get(name.lower())
    if found is None:
        raise no_such(f"set of constants of {file.removesuffix('.toml')}", name, names(file))
    return found


def measured_on(file: str, name: str) -> Mapping[str, object]:
    """The system that the set `name` holds for, where it holds for one alone; nothing for constants that are given."""
    return MappingProxyType({key: value for key, value in _sets(file).get(name.lower(), {}).items() if key in _ORIGIN})


def resolved(file: str, name: str, given: Mapping[str, float | None]) -> dict[str, float]:
    """`given` with what is None taken from the set `name`, else 0. Raises ValueError for a negative number."""
    constants = {} if name == GIVEN else named(file, name)
    values = {key: float(constants.get(key, 0.0)) if value is None else value for key, value in given.items()}
    for key, value in values.items():
        if value < 0:
            raise ValueError(f"{key} must not be negative")
    return values

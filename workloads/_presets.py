"""Reads the presets: workloads as data, one TOML file each."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.api import Request

FOLDER = Path(__file__).with_name("presets")


@dataclass(frozen=True, slots=True)
class Preset:
    """What a preset file says; either `lengths` and `arrivals` (specs) or a list of requests."""

    about: str
    lengths: str | None = None
    arrivals: str = "poisson"
    content: str = "tokens"
    requests: int | None = None
    slo: Mapping[str, float] = field(default_factory=dict)
    provenance: Mapping[str, object] = field(default_factory=dict)
    request: tuple[Mapping[str, Any], ...] = ()

    def listed(self) -> tuple[Request, ...]:
        """The requests of a preset that lists them."""
        rows = enumerate(self.request)
        return tuple(Request(**{"id": i, "scheduled_s": 0.0, **row}) for i, row in rows)


def names() -> list[str]:
    """Sorted names of the presets."""
    return sorted(file.stem for file in FOLDER.glob("*.toml"))


def text(name: str) -> str:
    """The TOML of a preset."""
    return (FOLDER / f"{name}.toml").read_text(encoding="utf-8")


def read(name: str) -> Preset:
    """The preset of this name, which exists."""
    values = tomllib.loads(text(name))
    values["about"] = values["about"].strip()
    return Preset(**values)

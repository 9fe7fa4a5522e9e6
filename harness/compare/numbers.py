"""Numbers that a command prints as JSON, for comparisons of what leaves no table of requests."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.storage import write_json

FILE = "numbers.json"


def read(folder: Path) -> dict[str, float] | None:
    """Name -> number of a folder that `write` made; None where there is no such file."""
    try:
        kept = json.loads((folder / FILE).read_text(encoding="utf-8"))["numbers"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return {str(name): float(value) for name, value in kept.items()}


def write(folder: Path, numbers: Mapping[str, float]) -> None:
    """Store the numbers of one run in its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / FILE, {"schema": 1, "kind": "numbers", "numbers": dict(numbers)})


def found(text: str) -> dict[str, float]:
    """Name -> number of a JSON object: the whole text, or the last of its lines that is one; empty where none is.

    Objects inside give names with dots; truth values, texts, lists and what is not finite are no numbers.
    """
    for part in (text, *reversed(text.splitlines())):
        if (value := _json_object(part)) is not None:
            return dict(_numbers(value))
    return {}


def _json_object(text: str) -> dict[str, Any] | None:
    if not text.lstrip().startswith("{"):
        return None
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _numbers(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _numbers(value, f"{before}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            yield f"{before}{name}", float(value)

"""Numbers that a command prints as JSON, for comparisons of what leaves no table of requests."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.storage import write_json

FILE = "numbers.json"

_BEGIN = re.compile(r"^\{", re.MULTILINE)


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
    """Name -> number of the JSON object in a text, the last of those that begin at a line; empty where none is.

    Objects inside give names with dots; truth values, texts, lists and what is not finite are no numbers.
    """
    for match in reversed([*_BEGIN.finditer(text := text.lstrip())]):
        if (value := _json_object(text, match.start())) is not None:
            return dict(_numbers(value))
    return {}


def _json_object(text: str, begin: int) -> dict[str, Any] | None:
    """The object that begins there; None where there is none, or where its last line goes on."""
    try:
        value, end = json.JSONDecoder().raw_decode(text, begin)
    except ValueError:
        return None
    return value if isinstance(value, dict) and not text[end:].partition("\n")[0].strip() else None


def _numbers(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _numbers(value, f"{before}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            yield f"{before}{name}", float(value)

"""The file of a fitted latency model: TOML that `--latency file:PATH` reads."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness import writable


def text(latency: str, arguments: Mapping[str, Any], notes: Mapping[str, Any]) -> str:
    """TOML with the model, its arguments, and a table `fit` of `notes` on where they come from."""
    lines = [f"latency = {json.dumps(latency)}", "", "[arguments]"]
    lines += [f"{name} = {_value(value)}" for name, value in arguments.items()]
    lines += ["", "[fit]"]
    lines += [f"{name} = {_value(value)}" for name, value in notes.items()]
    return "\n".join(lines) + "\n"


def _value(value: object) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_value(one) for one in value) + "]"
    return json.dumps(value, ensure_ascii=False)


def write(path: Path, content: str) -> None:
    """Write it. Raises UsageError where that fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        writable.put(path, content.encode())
    except OSError as error:
        raise writable.refused(path, error) from None

"""The JSON in a file: one value, or several one below the other."""

import json
from pathlib import Path
from typing import Any

from harness.errors import UsageError


def documents(path: Path) -> list[Any]:
    """Every JSON value of a file, in order. Raises UsageError for a file that is not all JSON, or holds none."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(f"'{path}' cannot be read as results: {why}.") from None
    try:
        found = _values(text)
    except ValueError as error:
        raise UsageError(f"'{path}' holds no results that bench knows: it is not JSON ({error}).") from None
    if not found:
        raise UsageError(f"'{path}' is empty; name a file of results.")
    return found


def _values(text: str) -> list[Any]:
    decoder, found, at = json.JSONDecoder(), [], _next(text, 0)
    while at < len(text):
        value, end = decoder.raw_decode(text, at)
        found.append(value)
        at = _next(text, end)
    return found


def _next(text: str, at: int) -> int:
    """The first character from `at` on that is no space."""
    while at < len(text) and text[at].isspace():
        at += 1
    return at

"""The answers that commands leave behind: JSON files which say what kind they are, told again by `reports.answers`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.errors import UsageError

KINDS = ("sweep", "capacity", "place", "slo", "compare", "trend", "validate", "theory")
SCHEMA = 1
FORMS = ("text", "markdown", "csv", "json")
"""What an answer can be told as; csv where its kind is a table."""
WRONG = (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError)
"""What a damaged answer ends in, when it is told."""


def of(path: str | Path) -> dict[str, Any] | None:
    """The answer in a folder (`sweep.json`, `capacity.json`, ...), or in such a file; None where there is none.

    Of a sweep that was killed or still goes on it is made now, of the runs that have ended. Raises UsageError for one
    that cannot be read, or that a newer bench wrote.
    """
    given = Path(path)
    files = [given / f"{kind}.json" for kind in KINDS] if given.is_dir() else [given]
    file = next((f for f in files if f.is_file() and f.suffix == ".json"), None)
    if file is None:
        return None
    try:
        info = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        if given.is_dir():
            raise UsageError(f"'{file}' cannot be read ({error}).") from None
        return None
    if not isinstance(info, dict) or info.get("kind") not in KINDS:
        return None
    if not isinstance(info.get("schema"), int) or info["schema"] > SCHEMA:
        raise UsageError(
            f"'{file}' has schema {info.get('schema')}, this bench reads up to {SCHEMA}; use a newer bench."
        )
    return _current(info, file.parent)


def _current(info: dict[str, Any], folder: Path) -> dict[str, Any]:
    if info["kind"] != "sweep" or info.get("state") != "running":
        return info
    from harness.experiments.sweep.execute import reported  # heavy, and it writes answers itself

    try:
        return reported(folder, info)
    except WRONG as error:
        raise damaged(info, folder, error) from None


def command(info: Mapping[str, Any]) -> str:
    """The command that gave an answer."""
    return "bench compare --trend" if info["kind"] == "trend" else f"bench {info['kind']}"


def damaged(info: Mapping[str, Any], path: str | Path, error: Exception) -> UsageError:
    """What is told where one of `WRONG` came of an answer."""
    return UsageError(
        f"'{path}' holds an answer of {command(info)} that is damaged or was changed by hand "
        f"({type(error).__name__}: {ascii(str(error)[:200])[1:-1]}); make it again."
    )

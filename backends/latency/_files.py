"""Latency models in files, as `bench fit` writes them: TOML or JSON with `latency` and its `arguments`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness import untrusted
from harness.errors import UsageError

FILES = (".toml", ".json")


def latency_file(path: str) -> Mapping[str, Any]:
    """What the file holds. Raises UsageError if it is not there or neither TOML nor JSON."""
    file = Path(path)
    if not file.is_file():
        raise UsageError(f"'{path}' is not a file; a latency model in a file is what 'bench fit --out' writes.")
    try:
        held = untrusted.read_json(file) if file.suffix == ".json" else untrusted.read_toml(file)
    except (ValueError, OSError) as error:  # both decoders raise ValueErrors
        raise UsageError(f"'{path}' cannot be read as {file.suffix[1:].upper() or 'TOML'}: {error}.") from None
    if not isinstance(held, dict):
        raise UsageError(f"'{path}' must hold a table with the key latency, got {type(held).__name__}.")
    return held

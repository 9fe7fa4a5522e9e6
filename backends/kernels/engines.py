"""What the hosts of serving engines take beside their kernels: `engines.toml`."""

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from harness.errors import no_such


@cache
def _engines() -> Mapping[str, Mapping[str, Any]]:
    return MappingProxyType(tomllib.loads(Path(__file__).with_name("engines.toml").read_text(encoding="utf-8")))


def engine_host(engine: str | None) -> Mapping[str, float]:
    """Seconds of the host of an engine; all 0 for None. Raises UsageError with the nearest known name."""
    if engine is None:
        return dict.fromkeys(("overhead_s", "seq_s", "front_s", "front_token_s"), 0.0)
    found = _engines().get(engine)
    if found is None:
        raise no_such("engine", engine, sorted(_engines()))
    return {key: float(value) for key, value in found.items() if isinstance(value, int | float)}

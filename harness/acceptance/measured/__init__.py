"""Results that need minutes of a quiet machine, stored by the command that measured them and read by the table."""

import json
from pathlib import Path
from typing import Any

ENGINE = Path(__file__).with_name("simulator_against_engine.json")


def engine() -> dict[str, Any] | None:
    """What `tests/perf/simulator_against_engine.py --store` has written; None before it was ever run."""
    if not ENGINE.exists():
        return None
    found: dict[str, Any] = json.loads(ENGINE.read_text(encoding="utf-8"))
    return found

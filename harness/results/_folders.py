"""Which folders below a folder hold runs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path


def runs_below(folder: Path) -> Iterator[Path]:
    """Folders with a run.json, in the order of their names, numbers by value; nothing is looked for inside a run."""
    for at, folders, files in os.walk(folder):
        if "run.json" in files:
            folders.clear()
            yield Path(at)
        folders[:] = sorted((name for name in folders if not name.startswith(".")), key=in_order)


def in_order(name: str) -> list[tuple[float, str]]:
    """A key that sorts 'rate=2' before 'rate=10', and 'rate=2' before 'rate=2.5'."""
    return [(float(part), "") if i % 2 else (-1.0, part) for i, part in enumerate(re.split(r"(\d+(?:\.\d+)?)", name))]

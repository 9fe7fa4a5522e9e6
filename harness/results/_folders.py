"""Which folders below a folder hold runs."""

import os
import re
from collections.abc import Iterator
from pathlib import Path


def run_folders(path: str | os.PathLike[str]) -> list[Path]:
    """The run folders at or below `path`, in the order of their names; none where there is no such folder."""
    return list(runs_below(Path(path)))


def runs_below(folder: Path) -> Iterator[Path]:
    """Folders with a run.json, in the order of their names, numbers by value; nothing is looked for inside a run."""
    return (at for at, files in folders(folder) if "run.json" in files)


def folders(folder: Path) -> Iterator[tuple[Path, list[str]]]:
    """Every folder at or below `folder` with the names of its files, both in order; nothing inside a run is visited."""
    for at, inner, files in os.walk(folder):
        inner[:] = [] if "run.json" in files else sorted((n for n in inner if not n.startswith(".")), key=in_order)
        yield Path(at), sorted(files, key=in_order)


def in_order(name: str) -> list[tuple[float, str]]:
    """A key that sorts 'rate=2' before 'rate=10', and 'rate=2' before 'rate=2.5'."""
    return [(float(part), "") if i % 2 else (-1.0, part) for i, part in enumerate(re.split(r"(\d+(?:\.\d+)?)", name))]

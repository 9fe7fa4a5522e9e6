"""Stored runs, whoever wrote them: our run folders, folders of those, and the result files of other tools.

Each other file here reads the results of one tool, and is found by what stands in a file, not by the file's name.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import UsageError
from harness.folder import load
from harness.results._folders import runs_below

if TYPE_CHECKING:
    from harness.folder import Run

__all__ = ["open"]


def open(path: str | os.PathLike[str]) -> list[Run]:  # noqa: A001  # read as results.open
    """The runs at `path`: of a run folder one, of a folder of runs all below it in the order of their names.

    Raises UsageError, naming what was looked for, where there is none.
    """
    path = Path(path)
    folder = path.parent if path.name == "run.json" else path
    if (folder / "run.json").exists() or not folder.is_dir():
        return [load(folder)]
    found = [load(each) for each in runs_below(folder)]
    if not found:
        raise UsageError(f"No run in '{path}' or below it; name what 'bench run --out' or 'bench sweep --out' wrote.")
    return found

"""Stored runs: run folders, folders of those, and the result files of other tools.

Each class in a file here without a leading underscore reads the results of one tool, which is recognized by the
contents of its file, not by the file's name.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from harness.data.folder import Run, load
from harness.data.large import load as load_thin
from harness.errors import UsageError
from harness.experiments.imports import _foreign
from harness.experiments.imports._foreign import in_order, run_folders, runs_below

__all__ = ["foreign_below", "in_order", "is_foreign", "open", "run_folders"]


def open(path: str | os.PathLike[str], *, thin: bool = False) -> list[Run]:  # noqa: A001  # read as results.open
    """The runs at `path`: of a run folder one, of another tool's file those in it, of a folder all below it.

    Runs come in the order of their names; with `thin` large ones are not held whole (`harness.data.large`). Raises
    UsageError, naming what was looked for, where there is none.
    """
    read = load_thin if thin else load
    path = Path(path)
    if path.is_file() and path.name != "run.json":
        return _foreign.of_file(path)
    folder = path.parent if path.name == "run.json" else path
    if (folder / "run.json").exists() or not folder.is_dir():
        return [read(folder)]
    found = [*map(read, runs_below(folder)), *foreign_below(folder)]
    if not found:
        raise UsageError(
            f"No run in '{path}': neither it nor a folder below it has a run.json; name what 'bench run' or "
            f"'bench sweep' wrote, or a file of results of {', '.join(_foreign.tools())}."
        )
    return found


def foreign_below(path: str | os.PathLike[str]) -> Iterator[Run]:
    """The runs in files of other tools below a folder."""
    return _foreign.below(Path(path))


def is_foreign(run: Run) -> bool:
    """Whether a run was read from a file of another tool."""
    return bool(run.info.source)

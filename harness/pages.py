"""Reports as files: where that of a run, an answer or several stands, and how it gets there whole or not at all."""

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from harness import writable
from harness.errors import BenchError

_WHOLE = ("sweep.json", "capacity.json")
"""Files that stand for the folder they are in, as run.json does."""


def beside(path: str | Path, ending: str = "html") -> Path:
    """Where the report of what is stored at `path` goes: into its folder, or beside its file as FILE.report.html."""
    given = Path(path)
    if given.is_dir():
        return given / f"report.{ending}"
    return given.with_name(f"report.{ending}" if given.name in _WHOLE else f"{given.name}.report.{ending}")


def put(path: Path, content: str | bytes) -> None:
    """Write the file whole or not at all. Raises UsageError where it cannot be written, BenchError on a full disk."""
    try:
        writable.put(path, content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise writable.refused(path, error) from None


def kept(path: Path, make: Callable[[], str], say: Callable[[str], None], where: str | Path) -> Path | None:
    """Write what `make` gives; a failure is told and costs nothing else. `where` the data stand.

    The path, or None where no report was written.
    """
    try:
        put(path, make())
    except Exception as error:  # noqa: BLE001  # the measurement is worth more than its picture
        said = str(error).rstrip(".") if isinstance(error, BenchError) else f"{type(error).__name__}: {error}"
        say(f"{path.name} could not be written ({said}); see '{where}'.")
        return None
    return path


def write_page(info: Mapping[str, Any], folder: Path, say: Callable[[str], None]) -> Path | None:
    """Write report.html of an answer into its folder, at the end of the command that gave it; never raises."""
    pages = importlib.import_module("reports.pages")  # harness may not import reports statically
    return kept(beside(folder), lambda: str(pages.page(info, folder)), say, folder)

"""Stored runs: run folders, folders of those, and the result files of other tools.

Each class in a file here without a leading underscore reads the results of one tool, which is recognized by the
contents of its file, not by the file's name.
"""

import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from harness import registry, untrusted
from harness.data.folder import Run, load
from harness.data.large import load as load_thin
from harness.errors import UsageError
from harness.experiments.imports._table import ToolRun, as_run

__all__ = ["foreign_below", "in_order", "open", "run_folders"]

_ENDS = (".json", ".jsonl")
_YAML = (".yaml", ".yml")


class Reader(Protocol):
    """What reads the results of one tool."""

    def recognizes(self, values: Sequence[Any]) -> bool:
        """Whether these JSON values are results of the tool."""

    def runs(self, values: Sequence[Any]) -> Iterator[ToolRun]:
        """The runs in these values."""


@runtime_checkable
class FilesReader(Protocol):
    """A reader of a tool that writes several files of one run into one folder."""

    @property
    def beside(self) -> Sequence[str]:
        """Names of these files, in the order in which they are read."""


def open(path: str | os.PathLike[str], *, thin: bool = False) -> list[Run]:  # noqa: A001  # read as results.open
    """The runs at `path`: of a run folder one, of another tool's file those in it, of a folder all below it.

    Runs come in the order of their names; with `thin` large ones are not held whole (`harness.data.large`). Raises
    UsageError, naming what was looked for, where there is none.
    """
    read = load_thin if thin else load
    path = Path(path)
    if path.is_file() and path.name != "run.json":
        return of_file(path)
    folder = path.parent if path.name == "run.json" else path
    if (folder / "run.json").exists() or not folder.is_dir():
        return [read(folder)]
    runs = [*map(read, run_folders(folder)), *foreign_below(folder)]
    if not runs:
        raise UsageError(
            f"No run in '{path}': neither it nor a folder below it has a run.json; name what 'bench run' or "
            f"'bench sweep' wrote, or a file of results of {', '.join(tools())}."
        )
    return runs


def tools() -> list[str]:
    """Names of the tools whose results can be read."""
    return registry.names("results")


def of_file(path: Path) -> list[Run]:
    """The runs of a file and of the files beside it that belong to it. Raises UsageError for an unknown format."""
    values = documents(path)
    reader = _reader(values)
    if reader is None:
        raise UsageError(
            f"'{path}' holds no results that bench knows. It reads those of {', '.join(tools())}, and the folders that "
            "'bench run' writes; name one of these."
        )
    for other in _beside(reader):
        if other != path.name and (path.parent / other).is_file():
            more = documents(path.parent / other)
            values = [*values, *more] if reader.recognizes(more) else values
    try:
        runs = list(reader.runs(values))
        names = [path.name if len(runs) == 1 else f"{path.name} ({i} of {len(runs)})" for i in range(1, len(runs) + 1)]
        return [as_run(tool_run, path, name) for tool_run, name in zip(runs, names, strict=True)]
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, ArithmeticError) as error:
        name = registry.name_of(reader)
        raise UsageError(
            f"'{path}' appears to hold results of {name}, but cannot be read ({type(error).__name__}: {error}); "
            "let the tool write it again, or report this with the version of the tool."
        ) from error


def foreign_below(path: str | os.PathLike[str]) -> Iterator[Run]:
    """The runs in files of other tools below a folder; other files are passed over."""
    for folder, names in folders(Path(path)):
        if "run.json" in names:
            continue
        done: set[str] = set()
        for name in (n for n in names if n.endswith(_ENDS)):
            try:
                reader = _reader(documents(folder / name))
            except UsageError:
                continue
            if reader is None or name in done:
                continue
            others = [other for other in _beside(reader) if other in names]
            if name in others or not others:
                done.update(others)
                yield from of_file(folder / name)


def _reader(values: Sequence[Any]) -> Reader | None:
    readers: Iterator[Reader] = (registry.make("results", name) for name in tools())
    return next((reader for reader in readers if reader.recognizes(values)), None)


def _beside(reader: Reader) -> Sequence[str]:
    return reader.beside if isinstance(reader, FilesReader) else ()


def documents(path: Path) -> list[Any]:
    """Every JSON value of a file, in order; of YAML the one document.

    Raises UsageError for a file that is not all JSON, or holds none.
    """
    with untrusted.readable(f"'{path}'"):
        text = untrusted.read_text(path, encoding="utf-8-sig")
    try:
        if path.suffix in _YAML:
            return [untrusted.parse_yaml(text, f"'{path}'")]
        values: list[Any] = untrusted.parse_json(text, f"'{path}'", _values)
    except ValueError as error:
        kind = "YAML" if path.suffix in _YAML else "JSON"
        raise UsageError(f"'{path}' holds no results that bench knows: it is not {kind} ({error}).") from None
    if not values:
        raise UsageError(f"'{path}' is empty; name a file of results.")
    return values


def _values(text: str) -> list[Any]:
    decoder, values, start = json.JSONDecoder(), [], _next(text, 0)
    while start < len(text):
        value, end = decoder.raw_decode(text, start)
        values.append(value)
        start = _next(text, end)
    return values


def _next(text: str, at: int) -> int:
    """The first character from `at` on that is no space."""
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def run_folders(path: str | os.PathLike[str]) -> list[Path]:
    """Folders with a run.json at or below `path`, in the order of their names; nothing is looked for inside a run."""
    return [folder for folder, files in folders(Path(path)) if "run.json" in files]


def folders(folder: Path) -> Iterator[tuple[Path, list[str]]]:
    """Every folder at or below `folder` with the names of its files, both in order; nothing inside a run is visited."""
    for place, inner, files in os.walk(folder):
        inner[:] = [] if "run.json" in files else sorted((n for n in inner if not n.startswith(".")), key=in_order)
        yield Path(place), sorted(files, key=in_order)


def in_order(name: str) -> list[tuple[float, str]]:
    """A key that sorts 'rate=2' before 'rate=10', and 'rate=2' before 'rate=2.5'."""
    return [(float(part), "") if i % 2 else (-1.0, part) for i, part in enumerate(re.split(r"(\d+(?:\.\d+)?)", name))]

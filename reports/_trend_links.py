"""Where the reports of stored nights stand, seen from a page that links to them by relative path."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

REPORT = "report.html"


def links(info: Mapping[str, Any], page: Path) -> dict[str, str]:
    """Path of a night -> link to its report, of those nights that have one; of several runs a night, the first.

    `page` is the file or the folder that the page will stand in. Nights are looked for where they were, and, of an
    answer that was moved together with its folder, below that of the page.
    """
    start = page if page.is_dir() else page.parent
    paths = {n["path"] for one in info["series"] for metric in one["metrics"] for n in metric["nights"]}
    found = {path: _report(path, info, start) for path in sorted(paths)}
    # as URLs: slashes, and nothing in them that a browser reads otherwise
    return {
        path: quote(Path(os.path.relpath(report, start)).as_posix())
        for path, report in found.items()
        if report is not None
    }


def _report(path: str, info: Mapping[str, Any], start: Path) -> Path | None:
    """The report of a night, in its folder or in that of one of its runs."""
    folder = next((place for place in _places(path, info, start) if place.is_dir()), None)
    if folder is None:
        return None
    if (folder / REPORT).is_file():
        return folder / REPORT
    return next(iter(sorted(folder.glob(f"*/{REPORT}"))), None)


def _places(path: str, info: Mapping[str, Any], start: Path) -> Iterator[Path]:
    yield Path(path)
    root = Path(str(info["folder"]))
    try:
        below = Path(path).relative_to(root)
    except ValueError:
        return
    yield start / below
    yield start / root.name / below

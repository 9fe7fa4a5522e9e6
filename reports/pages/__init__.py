"""One module per kind of answer with `sheet(info, path)`: the page of a sweep, a search, a comparison, a series.

from harness import answers
from reports import pages

html = pages.page(answers.of("curve"), "curve")
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from harness.errors import UsageError, no_such
from harness.experiments import answers
from reports import _sheet
from reports._sheet import Cell, Section, Sheet
from reports.document import Document
from reports.document import html as document_html

if TYPE_CHECKING:
    from harness.data.folder import Run

__all__ = ["html", "kinds", "moved", "page", "pictures", "sheet", "together"]


def kinds() -> list[str]:
    """The kinds of answers that have a page."""
    return sorted(p.stem for p in Path(__file__).parent.glob("*.py") if not p.stem.startswith("_"))


def page(
    info: Mapping[str, Any], path: str | Path, *, bundle: str | None = None, plain: bool = False,
    sections: Sequence[str] = (),
) -> str:  # fmt: skip
    """One offline HTML file of a stored answer; `path` is its folder (or file), where its runs are looked for.

    The same answer gives the same bytes. Raises UsageError for a kind that has no page.
    """
    return html(sheet(info, path), bundle=bundle, plain=plain, sections=sections)


def sheet(info: Mapping[str, Any], path: str | Path) -> Any:
    """What stands on the page of a stored answer. Raises UsageError for a kind without a page, and a damaged answer."""
    told = importlib.import_module(f"reports.answers.{info['kind']}")
    if hasattr(told, "document"):
        try:
            return told.document(info, Path(path))
        except answers.WRONG as error:
            raise answers.damaged(info, path, error) from error
    if info["kind"] not in kinds():
        raise UsageError(
            f"An answer of {answers.command(info)} has no page; take --format text. Pages: {', '.join(kinds())}."
        )
    module = importlib.import_module(f"{__name__}.{info['kind']}")
    try:
        found: Sheet = module.sheet(info, Path(path))
    except answers.WRONG as error:
        raise answers.damaged(info, path, error) from error
    return found


def together(answers: Sequence[tuple[Mapping[str, Any], Path]], runs: Iterable[Run], home: Path = Path()) -> Any:
    """What stands on one page of several sweeps and searches, each with where it is stored, and several runs.

    Links to the runs are relative to `home`, the folder in which the page will stand.
    """
    module = importlib.import_module("reports.answers._together")
    found: Any = module.sheet(answers, runs, home)
    return found


def moved(sheet: Any, home: Path, folder: Path) -> Any:
    """The page that was to stand in `home`, for `folder`: what its tables link to stays where it is."""
    if isinstance(sheet, Document):
        return document_html.moved(sheet, home, folder)
    way = quote(Path(os.path.relpath(home, folder)).as_posix())
    return sheet if way == "." else replace(sheet, sections=tuple(_led(section, way) for section in sheet.sections))


def _led(section: Section, way: str) -> Section:
    def linked(cell: str | Cell) -> str | Cell:
        if isinstance(cell, str) or cell.link is None or cell.link.startswith("#"):
            return cell
        return replace(cell, link=f"{way}/{cell.link}")

    rows = (tuple(tuple(map(linked, row)) for row in table.rows) for table in section.tables)
    return replace(section, tables=tuple(replace(t, rows=r) for t, r in zip(section.tables, rows, strict=True)))


def html(sheet: Any, *, bundle: str | None = None, plain: bool = False, sections: Sequence[str] = ()) -> str:
    """A page as one offline HTML file; with `sections` only those. Raises UsageError for a section it does not have."""
    if isinstance(sheet, Document):
        return document_html.render(sheet, bundle=bundle, plain=plain, sections=sections)
    return _sheet.render(_chosen(sheet, sections), bundle=bundle, plain=plain)


def pictures(sheet: Any, *, bundle: str | None = None, sections: Sequence[str] = ()) -> dict[str, bytes]:
    """The figures of a page by name, each as a PNG file. Raises BenchError where no browser can draw them."""
    from reports import _pictures  # only where pictures are asked for

    if isinstance(sheet, Document):
        return _pictures.drawn(document_html.figures(sheet, sections), bundle=bundle)
    parts = [part for section in _chosen(sheet, sections).sections for part in section.parts]
    return _pictures.drawn(parts, bundle=bundle)


def _chosen(sheet: Sheet, sections: Sequence[str]) -> Sheet:
    known = [section.key for section in sheet.sections]
    for name in sections:
        if name not in known:
            raise no_such("section", name, known)
    return replace(sheet, sections=tuple(s for s in sheet.sections if s.key in sections)) if sections else sheet

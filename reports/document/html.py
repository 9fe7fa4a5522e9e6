"""A document as one offline HTML file, with its figures drawn by plotly.js inside."""

import os
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from harness.errors import UsageError, no_such
from reports import _page
from reports._page import Part
from reports.document import Block, Cell, Document, Figure, Section, Table


def render(document: Document, *, bundle: str | None = None, plain: bool = False, sections: Sequence[str] = ()) -> str:
    """The whole file as text; of its sections only those named, where any are. Equal documents give equal bytes.

    Raises UsageError for a section that the document does not have, and where the plotly bundle cannot be read.
    """
    stated = {finding.text for finding in document.findings}
    rendered = [
        replace(section, blocks=tuple(_captioned(_drawn(block), stated) for block in section.blocks))
        for section in chosen(document, sections)
    ]
    parts = [block for section in rendered for block in section.blocks if isinstance(block, Part)]
    return _page.render("document.html.j2", parts, bundle=bundle, plain=plain, document=document, sections=rendered)


def figures(document: Document, sections: Sequence[str] = (), names: Sequence[str] = ()) -> list[Part]:
    """The figures of those sections, drawn; only those `names`, where any are given.

    Raises UsageError for an unknown name, and for a named figure without data.
    """
    blocks = [block for section in chosen(document, sections) for block in section.blocks]
    by_name = {block.key: block for block in blocks if isinstance(block, Figure)}
    parts: list[Part] = []
    for name in names:
        if name not in by_name:
            raise no_such("figure", name, by_name) if by_name else UsageError("This report has no figures.")
        parts.append(part := _page.part(name, by_name[name].title, by_name[name].draw()))
        if part.table is None:
            raise UsageError(f"Figure '{name}' has no data: {part.finding}")
    return parts if names else [part for part in map(_drawn, blocks) if isinstance(part, Part)]


def _drawn(block: Block) -> Block:
    return _page.part(block.key, block.title, block.draw(), block.rows) if isinstance(block, Figure) else block


def _captioned(block: Block, stated: Collection[str]) -> Block:
    """The block without a finding in its caption that the verdict has stated."""
    if not isinstance(block, Part) or block.table is None or block.finding not in stated:
        return block
    return replace(block, caption=block.caption.removeprefix(block.finding).strip())


def chosen(document: Document, names: Sequence[str]) -> list[Section]:
    """The sections of these names, all of them where none is named."""
    keys = [section.key for section in document.sections]
    for name in names:
        if name not in keys:
            raise no_such("section", name, keys)
    return [section for section in document.sections if not names or section.key in names]


def moved(document: Document, home: Path, folder: Path) -> Document:
    """The page that was to stand in `home`, for `folder`: what its tables link to stays where it is."""
    way = quote(Path(os.path.relpath(home, folder)).as_posix())

    def linked(cell: str | Cell) -> str | Cell:
        if isinstance(cell, str) or cell.link is None or cell.link.startswith("#"):
            return cell
        return replace(cell, link=f"{way}/{cell.link}")

    def led(block: Block) -> Block:
        if not isinstance(block, Table):
            return block
        return replace(block, rows=tuple(tuple(map(linked, row)) for row in block.rows))

    sections = tuple(replace(section, blocks=tuple(map(led, section.blocks))) for section in document.sections)
    return document if way == "." else replace(document, sections=sections)

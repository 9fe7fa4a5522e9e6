"""A document as one offline HTML file, with its figures drawn by plotly.js inside, and tables of their points."""

import base64
import gzip
import hashlib
import json
import os
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
import numpy as np

from harness.errors import UsageError, no_such
from reports import _format
from reports.document import Block, Cell, Document, Figure, Table
from reports.figures import caption as caption_of
from reports.figures.drawing import Drawing
from reports.figures.style import DARK, MARKS, MOST_ROWS

SERIES = "series"
"""Head of the first column where points of several series stand below one another."""
ROWS, COLUMNS = 16, 8
"""The most rows and columns of the table of a heat map."""


@dataclass(frozen=True, slots=True)
class DataTable:
    """Column heads with units, printed rows, and how many points the figure holds in all.

    `note` is what the rows are of the points, where they are neither all of them nor an even choice.
    """

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    points: int
    note: str = ""


def data_table(figure: Drawing, most: int = MOST_ROWS) -> DataTable:
    """The points of `figure`, one row per shared x (or y), else one row per point; evenly thinned to `most` rows.

    Of a heat map a row per y and a column per x.
    """
    traces = [t for t in figure.data if t.get("meta") != MARKS]
    if traces and "z" in traces[0]:
        across, rows, note = _grid(traces[0])
        value_name = f"{traces[0]['name']} at {_title(figure, traces[0], 'x')}"
        heads = [_title(figure, traces[0], "y"), *(f"{value_name} {x}" for x in across)]
        return DataTable(tuple(map(_plain, heads)), tuple(rows), traces[0]["z"].size, note)
    xs, ys = ([np.asarray(t[letter]) for t in traces] for letter in "xy")
    if _equal(xs):
        heads = [_title(figure, traces[-1], "x"), *(f"{t['name']}: {_title(figure, t, 'y')}" for t in traces)]
        columns = [xs[0], *ys]
    elif _equal(ys):
        heads = [_title(figure, traces[0], "y"), *(f"{t['name']}: {_title(figure, t, 'x')}" for t in traces)]
        columns = [ys[0], *xs]
    else:
        heads = [
            SERIES,
            _title(figure, traces[-1], "x"),
            " or ".join(dict.fromkeys(_title(figure, t, "y") for t in traces)),
        ]
        names = np.concatenate([np.full(len(x), t["name"], dtype=object) for t, x in zip(traces, xs, strict=True)])
        columns = [names, np.concatenate(xs), np.concatenate(ys)]
    chosen = _thinned(columns[0] if heads[0] == SERIES else np.zeros(len(columns[0])), most)
    printed = tuple(
        tuple(
            _plain(value) if isinstance(value, str) else "-" if value is None else _format.option(float(value))
            for value in (column[i] for column in columns)
        )
        for i in chosen
    )
    return DataTable(tuple(_plain(head) for head in heads), printed, len(columns[0]))


def _grid(trace: dict[str, Any]) -> tuple[list[str], list[tuple[str, ...]], str]:
    """Of a heat map of counts: labels of the columns, rows that begin with their label, and what they are.

    `z` (rows, columns) has the common logarithm of each count; those of neighbouring cells are added up.
    """
    z = np.nan_to_num(np.round(10.0 ** np.asarray(trace["z"], np.float64)))
    rows, columns = (
        np.unique(np.linspace(0, n, min(n, most) + 1).astype(np.int64))
        for n, most in zip(z.shape, (ROWS, COLUMNS), strict=True)
    )
    cells = np.add.reduceat(np.add.reduceat(z, rows[:-1], axis=0), columns[:-1], axis=1)
    down, across = (
        [f"{low} to {high}" for low, high in pairwise(map(_format.number, np.asarray(a, np.float64)[places].tolist()))]
        for a, places in ((trace["y"], rows), (trace["x"], columns))
    )
    filled = [(y, *(f"{n:,.0f}" for n in row)) for y, row in zip(down, cells, strict=True) if np.any(row)]
    return across, filled, f"the {np.count_nonzero(z):,} cells drawn, counts of neighbouring cells added up"


def _thinned(series: np.ndarray, most: int) -> np.ndarray:
    """Indices of at most `most` rows, evenly chosen within each series, its first and last among them."""
    names = list(dict.fromkeys(series.tolist()))
    quota = max(2, most // max(1, len(names)))
    places = [np.flatnonzero(series == name) for name in names]
    chosen = [rows[np.unique(np.linspace(0, len(rows) - 1, min(quota, len(rows))).astype(np.int64))] for rows in places]
    indices: np.ndarray = np.concatenate(chosen) if chosen else np.empty(0, np.int64)
    return indices


def _equal(arrays: Sequence[np.ndarray]) -> bool:
    return all(len(a) == len(arrays[0]) and bool(np.array_equal(a, arrays[0])) for a in arrays)


def _title(figure: Drawing, trace: dict[str, Any], letter: str) -> str:
    axis = trace.get(f"{letter}axis", letter)
    return str(figure.axis(letter, int(axis[1:] or 1))["title"]["text"])


def _plain(text: str) -> str:
    """Figure text as plain text again: it is escaped once more where it is printed."""
    for name, mark in (("<br>", " "), ("&lt;", "<"), ("&gt;", ">"), ("&#123;", "{"), ("&amp;", "&")):
        text = text.replace(name, mark)
    return re.sub(r"\s+", " ", text)


@dataclass(frozen=True, slots=True)
class Part:
    """One place on the page for a figure: drawn, or the sentence that says what would bring it."""

    key: str
    title: str
    finding: str
    caption: str
    height: int
    table: DataTable | None
    data: dict[str, object] | None  # data and layout for plotly.js


def part(key: str, title: str, figure: Drawing | str, rows: int = MOST_ROWS) -> Part:
    """The place of a figure with a table of at most `rows`, or of the sentence that stands for it.

    `key` is unique on the page.
    """
    if isinstance(figure, str):
        return Part(key, title, figure, figure, 0, None, None)
    # as JSON values: coordinates as packed float32
    data = [{k: v for k, v in trace.items() if k != "meta"} for trace in figure.data]
    drawn = {"key": key, "data": _values(data), "layout": _values(figure.layout)}
    return Part(
        key, title, figure.finding, caption_of(figure), figure.layout["height"], data_table(figure, rows), drawn
    )


def fill(template: str, parts: Sequence[Part], *, plain: bool = False, **values: object) -> str:
    """The whole file as text: `template` with the `values`, and the data of the `parts`.

    `plain` leaves plotly.js and the data uncompressed. Equal input gives equal bytes.
    """
    drawn = [part.data for part in parts if part.data is not None]
    content = {"dark": DARK, "figures": drawn}
    data = in_script(json.dumps(content, ensure_ascii=True, separators=(",", ":"), allow_nan=False))
    library = plotly_js() if drawn else b""
    # of the content, so that equal input gives an equal file; and text from outside cannot contain it
    digest = hashlib.sha256(data.encode() + hashlib.sha256(library).digest()).digest()
    return _template(template).render(
        parts=parts,
        data=data if plain else _packed(data.encode()),
        drawn=bool(drawn),
        nonce=base64.urlsafe_b64encode(digest[:18]).decode(),
        library=library.decode() if plain else _packed_library(library),
        plain=plain,
        **values,
    )


def _packed(content: bytes) -> str:
    """As the page unpacks it again: gzip, the same bytes at any time, in base64.

    Level 4: 5 takes a third longer, a thirtieth of a short run, and makes the library 3% smaller.
    """
    return base64.b64encode(gzip.compress(content, 4, mtime=0)).decode()


@cache
def _packed_library(library: bytes) -> str:
    return _packed(library)  # it is the same 4.5 MB on every page


def in_script(text: str) -> str:
    """JSON that cannot end the script element it stands in, nor start a comment there."""
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _values(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _values(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_values(v) for v in value]
    if isinstance(value, np.ndarray) and value.dtype.kind in "OU":
        return value.tolist()
    if isinstance(value, np.ndarray):
        packed = {"dtype": "f4", "bdata": base64.b64encode(value.astype("<f4").tobytes()).decode()}
        return packed if value.ndim == 1 else {**packed, "shape": ", ".join(str(n) for n in value.shape)}
    if isinstance(value, np.generic):
        value = value.item()
    return None if value != value else value  # JSON has no NaN, and plotly leaves a gap at null


def plotly_js() -> bytes:
    """The library that the installed plotly brings."""
    package = find_spec("plotly")
    assert package is not None and package.origin is not None  # it is installed with bench
    return (Path(package.origin).parent / "package_data" / "plotly.min.js").read_bytes()


@cache
def _template(name: str) -> jinja2.Template:
    loader = jinja2.FileSystemLoader(Path(__file__).parents[1] / "templates")
    environment = jinja2.Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    return environment.get_template(name)


def render(document: Document) -> str:
    """The whole file as text. Equal documents give equal bytes."""
    stated = {finding.text for finding in document.findings}
    rendered = [
        replace(section, blocks=tuple(_captioned(_drawn(block), stated) for block in section.blocks))
        for section in document.sections
    ]
    parts = [block for section in rendered for block in section.blocks if isinstance(block, Part)]
    return fill("document.html.j2", parts, document=document, sections=rendered)


def figure(document: Document, name: str) -> Part:
    """A figure of the page, drawn. Raises UsageError for an unknown name, and for a figure without data."""
    blocks = [block for section in document.sections for block in section.blocks]
    by_name = {block.key: block for block in blocks if isinstance(block, Figure)}
    if name not in by_name:
        raise no_such("figure", name, by_name) if by_name else UsageError("This report has no figures.")
    block = by_name[name]
    drawn = part(name, block.title, block.draw(), block.rows)
    if drawn.table is None:
        raise UsageError(f"Figure '{name}' has no data: {drawn.finding}")
    return drawn


def _drawn(block: Block) -> Block:
    return part(block.key, block.title, block.draw(), block.rows) if isinstance(block, Figure) else block


def _captioned(block: Block, stated: Collection[str]) -> Block:
    """The block without a finding in its caption that the verdict has stated."""
    if not isinstance(block, Part) or block.table is None or block.finding not in stated:
        return block
    return replace(block, caption=block.caption.removeprefix(block.finding).strip())


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

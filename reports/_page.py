"""Puts figures, their tables and plotly.js into one offline HTML file; what else a page says is up to its template."""

import base64
import gzip
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import plotly.graph_objects as go

from harness.errors import UsageError
from reports import figures
from reports._twin import MOST_ROWS, Twin, twin
from reports.figures._style import DARK


@dataclass(frozen=True, slots=True)
class Part:
    """One place on the page for a figure: drawn, or the sentence that says what would bring it.

    `markup`, of our own making, stands in the place of a drawing (sliders); `data` then travels with the figures.
    """

    key: str
    title: str
    finding: str
    caption: str
    height: int
    table: Twin | None
    data: dict[str, object] | None  # data and layout for plotly.js
    markup: str = ""


def part(key: str, title: str, figure: go.Figure | str, rows: int = MOST_ROWS) -> Part:
    """The place of a figure with a table of at most `rows`, or of the sentence that stands for it.

    `key` is unique on the page.
    """
    if isinstance(figure, str):
        return Part(key, title, figure, figure, 0, None, None)
    caption, finding = figures.caption(figure), figures.finding(figure)
    height = int(figure.layout.height)
    # as JSON values: coordinates as packed float32, without template and meta
    data = [{k: v for k, v in trace.to_plotly_json().items() if k not in ("meta", "uid")} for trace in figure.data]
    layout = {k: v for k, v in figure.layout.to_plotly_json().items() if k not in ("template", "meta")}
    drawn = {"key": key, "data": _values(data), "layout": _values(layout)}
    return Part(key, title, finding, caption, height, twin(figure, rows), drawn)


def render(
    template: str, parts: Sequence[Part], *, bundle: str | None = None, plain: bool = False, **values: object
) -> str:
    """The whole file as text: `template` with the `values`, and the data of the `parts`.

    `bundle` is a plotly.js file to use instead of the one that the installed plotly brings; `plain` leaves it, and
    the data, uncompressed. Equal input gives equal bytes. Raises UsageError when the bundle cannot be read.
    """
    drawn = [part.data for part in parts if part.data is not None]
    content = {"dark": DARK, "figures": drawn}
    data = in_script(json.dumps(content, ensure_ascii=True, separators=(",", ":"), allow_nan=False))
    library = _library(bundle) if drawn else b""
    # of the content, so that equal input gives an equal file; nobody can foresee it in what he wrote himself
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


def markup(template: str, **values: object) -> str:
    """A piece of a page, for `Part.markup`."""
    return _template(template).render(**values)


def _packed(content: bytes) -> str:
    """As the page unpacks it again: gzip, the same bytes at any time, in base64."""
    return base64.b64encode(gzip.compress(content, 9, mtime=0)).decode()


_packed_library = cache(_packed)  # it is the same 4.5 MB on every page


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
        return value.item()
    return value


def _library(path: str | None) -> bytes:
    import plotly  # where the library lies

    file = Path(path) if path else Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
    try:
        return file.read_bytes()
    except OSError as error:
        raise UsageError(f"The plotly bundle '{file}' cannot be read: {error.strerror}.") from None


@cache
def _template(name: str) -> jinja2.Template:
    loader = jinja2.FileSystemLoader(Path(__file__).parent / "templates")
    environment = jinja2.Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    return environment.get_template(name)

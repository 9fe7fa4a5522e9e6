"""One offline HTML file: verdict, tables and figures of a run, with plotly.js inside and no request to any host."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import numpy as np

from harness.errors import UsageError
from reports import _view, figures
from reports._twin import Twin, twin
from reports.figures._style import DARK

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from harness.folder import Run


@dataclass(frozen=True, slots=True)
class Part:
    """One place on the page for a figure: drawn, or the sentence that says what would bring it."""

    key: str
    title: str
    finding: str
    caption: str
    height: int
    table: Twin | None


@dataclass(frozen=True, slots=True)
class Html:
    """The page of a run; the same run gives the same bytes.

    `plotly_bundle` is a plotly.js file to use instead of the one that the installed plotly brings; `plain` leaves
    it uncompressed, for browsers that cannot unpack it.
    """

    plotly_bundle: str | None = None
    plain: bool = False

    def render(self, run: Run) -> str:
        """The whole file as text. Raises UsageError when the plotly bundle cannot be read."""
        parts, drawn = _parts(run)
        data = in_script(
            json.dumps({"dark": DARK, "figures": drawn}, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
        )
        library = _library(self.plotly_bundle) if drawn else b""
        return _template().render(
            view=_view.view(run),
            parts=parts,
            data=data,
            drawn=bool(drawn),
            nonce=_nonce(data, library),
            plain=library.decode() if self.plain else None,
            packed=None if self.plain else base64.b64encode(gzip.compress(library, 9, mtime=0)).decode(),
        )


def in_script(text: str) -> str:
    """JSON that cannot end the script element it stands in, nor start a comment there."""
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _parts(run: Run) -> tuple[list[Part], list[dict[str, object]]]:
    parts, drawn = [], []
    for key, module in figures.modules().items():
        figure = module.figure(run)
        if isinstance(figure, str):
            parts.append(Part(key, module.TITLE, figure, figure, 0, None))
            continue
        caption, finding = figures.caption(figure), figures.finding(figure)
        parts.append(Part(key, module.TITLE, finding, caption, int(figure.layout.height), twin(figure)))
        drawn.append(_plain_data(key, figure))
    return parts, drawn


def _plain_data(key: str, figure: go.Figure) -> dict[str, object]:
    """Data and layout as JSON values; coordinates as packed float32, without template and meta."""
    data = [{k: v for k, v in trace.to_plotly_json().items() if k not in ("meta", "uid")} for trace in figure.data]
    layout = {k: v for k, v in figure.layout.to_plotly_json().items() if k not in ("template", "meta")}
    return {"key": key, "data": _values(data), "layout": _values(layout)}


def _values(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _values(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_values(v) for v in value]
    if isinstance(value, np.ndarray):
        return {"dtype": "f4", "bdata": base64.b64encode(value.astype("<f4").tobytes()).decode()}
    if isinstance(value, np.generic):
        return value.item()
    return value


def _nonce(data: str, library: bytes) -> str:
    """Of the content, so that equal input gives an equal file; nobody can foresee it in what he wrote himself."""
    digest = hashlib.sha256(data.encode() + hashlib.sha256(library).digest()).digest()
    return base64.b64encode(digest[:18]).decode()


def _library(path: str | None) -> bytes:
    import plotly  # where the library lies

    file = Path(path) if path else Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
    try:
        return file.read_bytes()
    except OSError as error:
        raise UsageError(f"The plotly bundle '{file}' cannot be read: {error.strerror}.") from None


def _template() -> jinja2.Template:
    loader = jinja2.FileSystemLoader(Path(__file__).parent / "templates")
    environment = jinja2.Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    return environment.get_template("page.html.j2")

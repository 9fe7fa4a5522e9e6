"""One figure a file: `figure(run)` gives a plotly Figure, or the sentence that says what would bring its data.

    from harness import folder
    from reports.figures import caption, latency_cdf

    figure = latency_cdf.figure(folder.load("bench-runs/..."))
    print(caption(figure))
    figure.show()

A module holds `ORDER` and `SECTION` (its place on the page), `TITLE` and `figure`; it is found because it is there. One
with `OVER_TIME` shows the requests before the cut of the warm-up too.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, cast

if TYPE_CHECKING:
    from collections.abc import Callable

    import plotly.graph_objects as go

    from harness.folder import Run


class FigureModule(Protocol):
    """What every file of this folder holds."""

    ORDER: int
    SECTION: Literal["figures", "fidelity"]
    TITLE: str
    figure: Callable[[Run], go.Figure | str]


def modules() -> dict[str, FigureModule]:
    """All figure modules by name, in the order of the page."""
    stems = sorted(p.stem for p in Path(__file__).parent.glob("*.py") if not p.stem.startswith("_"))
    found = {stem: cast("FigureModule", importlib.import_module(f"{__name__}.{stem}")) for stem in stems}
    return dict(sorted(found.items(), key=lambda item: item[1].ORDER))


def finding(figure: go.Figure) -> str:
    """The one sentence that says what the figure shows."""
    return str(figure.layout.meta["finding"])


def caption(figure: go.Figure) -> str:
    """The finding, and how the points were reduced, if they were."""
    notes = [str(note) for note in figure.layout.meta["notes"]]
    return " ".join([finding(figure), *notes])

"""One figure a file: `figure(subject)` gives a plotly Figure, or the sentence that says what would bring its data.

    from harness import results
    from reports.figures import caption, latency_cdf, measured

    (run,) = results.open("bench-runs/...")
    figure = latency_cdf.figure(measured(run))
    print(caption(figure))
    figure.show()

A module holds `OF` (what it draws: see SUBJECTS), `ORDER` and `SECTION` (its place on the page), `TITLE`, `figure`;
it is found because it is there. Of runs, one with `OVER_TIME` shows the requests before the cut of the warm-up too.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from harness.data.folder import Run

FIDELITY = "fidelity"
"""The section of figures about the sending."""
Subject = Literal["run", "study", "compare", "trend", "validate", "place", "theory"]
SUBJECTS: dict[str, str] = {
    "run": "a harness.data.folder.Run",
    "study": "a reports.study.Study: systems over the rate, from sweeps, searches or several runs",
    "compare": "a reports.comparison.Comparison: the answer of `bench compare`, and what its stored runs tell",
    "trend": "the answer of `bench compare --trend` as trend.json has it",
    "validate": "one comparison of the answer of `bench validate --against`: its name, pairs, errors and targets",
    "place": "the answer of `bench place` as place.json has it",
    "theory": "a picture of the answer of `bench theory`: its title, axes and lines",
}
"""What figures are made of."""


class FigureModule(Protocol):
    """What every file of this folder holds."""

    OF: Subject
    ORDER: int
    SECTION: str
    TITLE: str
    figure: Callable[[Any], go.Figure | str]


def modules(of: Subject = "run") -> dict[str, FigureModule]:
    """All figure modules of a subject by name, in the order of the page."""
    stems = sorted(p.stem for p in Path(__file__).parent.glob("*.py") if not p.stem.startswith("_"))
    found = {stem: cast("FigureModule", importlib.import_module(f"{__name__}.{stem}")) for stem in stems}
    ours = {stem: module for stem, module in found.items() if of == module.OF}
    return dict(sorted(ours.items(), key=lambda item: (item[1].SECTION == FIDELITY, item[1].ORDER)))


def whole(module: FigureModule) -> bool:
    """Whether a figure of a run shows the requests before the cut of the warm-up too: the sending, and over time."""
    return module.SECTION == FIDELITY or getattr(module, "OVER_TIME", False)


def measured(run: Run) -> Run:
    """The run without the requests before the cut of its warm-up, as all other figures want it."""
    from reports import _data  # heavy, and only for runs

    return _data.measured(run)


def finding(figure: go.Figure) -> str:
    """The one sentence that says what the figure shows."""
    return str(figure.layout.meta["finding"])


def caption(figure: go.Figure) -> str:
    """The finding, and how the points were reduced, if they were."""
    notes = [str(note) for note in figure.layout.meta["notes"]]
    return " ".join([finding(figure), *notes])

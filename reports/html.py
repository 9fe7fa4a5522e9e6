"""One offline HTML file: verdict, tables and figures of a run, with plotly.js inside and no request to any host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from reports import _data, _page, _view, figures

if TYPE_CHECKING:
    from harness.folder import Run


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
        modules = figures.modules()
        shown = _data.measured(run)
        parts = [
            _page.part(key, module.TITLE, module.figure(run if _whole(module) else shown))
            for key, module in modules.items()
        ]
        return _page.render(
            "page.html.j2",
            parts,
            bundle=self.plotly_bundle,
            plain=self.plain,
            view=_view.view(run),
            fidelity=[key for key, module in modules.items() if module.SECTION == "fidelity"],
        )


def _whole(module: figures.FigureModule) -> bool:
    """Whether a figure shows the requests before the cut of the warm-up too: those of the sending and over time do."""
    return module.SECTION == "fidelity" or getattr(module, "OVER_TIME", False)

"""A picture of each figure of a run, as PNG files, drawn by the Chromium or Chrome of this machine."""

from dataclasses import dataclass

from harness.data.folder import Run
from reports import _pictures
from reports.answers.run import document
from reports.document import html


@dataclass(frozen=True, slots=True)
class Png:
    """PNG files in the light look, `width` CSS pixels wide, `scale` dots for each of them; of the `sections` named.

    `plotly_bundle` is a plotly.js file to use instead of the one that the installed plotly brings.
    """

    width: int = _pictures.WIDTH
    scale: float = _pictures.SCALE
    sections: tuple[str, ...] = ()
    plotly_bundle: str | None = None

    def render(self, run: Run) -> dict[str, bytes]:
        """The files by the names of their figures. Raises BenchError where no browser draws them."""
        parts = html.figures(document(run), self.sections)
        return _pictures.drawn(parts, bundle=self.plotly_bundle, width=self.width, scale=self.scale)

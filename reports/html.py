"""One offline HTML file: verdict, tables and figures of a run, with plotly.js inside and no request to any host."""

from dataclasses import dataclass

from harness.data.folder import Run
from reports.answers.run import document
from reports.document import html


@dataclass(frozen=True, slots=True)
class Html:
    """The page of a run; the same run gives the same bytes.

    `plotly_bundle` is a plotly.js file to use instead of the one that the installed plotly brings; `plain` leaves
    it uncompressed, for browsers that cannot unpack it. Of its `sections` only those named, where any are.
    """

    plotly_bundle: str | None = None
    plain: bool = False
    sections: tuple[str, ...] = ()

    def render(self, run: Run) -> str:
        """The whole file as text.

        Raises UsageError when the plotly bundle cannot be read, and for a section that the page does not have.
        """
        return html.render(document(run), bundle=self.plotly_bundle, plain=self.plain, sections=self.sections)

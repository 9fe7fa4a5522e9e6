"""The result for the terminal: percentiles with bounds, key facts, warnings, verdict, what next."""

import shutil
from dataclasses import dataclass

from harness.data.folder import Run
from reports.answers.run import document
from reports.document import text


@dataclass(frozen=True, slots=True)
class Text:
    """The summary; with `color` for a terminal, without it plain text that a file or a pipe can take.

    With `curve` attainment against the SLO scale is drawn too, with `ascii` in ASCII alone. Texts are broken at `width`
    columns: by default those of the terminal (or COLUMNS), at most 100. Commands are never broken.
    """

    color: bool = False
    width: int | None = None
    curve: bool = False
    ascii: bool = False

    def render(self, run: Run) -> str:
        """The text, ending with a newline; the last lines are the verdict and what to do next."""
        width = shutil.get_terminal_size((text.WIDTH, 24)).columns if self.width is None else self.width
        curve = self.curve and width >= text.CURVE_COLUMNS
        return text.render(document(run), text.Look(self.color, curve, not self.ascii, width))

"""The result for the terminal: percentiles with bounds, key facts, warnings, verdict, what next."""

import shlex
import shutil
from dataclasses import dataclass, replace

from harness.data.folder import Run
from reports import _sending
from reports._format import clean
from reports.answers.run import document
from reports.document import Command, Section, text


@dataclass(frozen=True, slots=True)
class Text:
    """The summary; with `color` for a terminal, without it plain text that a file or a pipe can take.

    With `curve` attainment against the SLO scale is drawn too, with `ascii` in ASCII alone. Texts are broken at `width`
    columns: by default those of the terminal (or COLUMNS), at most 100. Paths and commands can be copied whole.
    """

    color: bool = False
    width: int | None = None
    curve: bool = False
    ascii: bool = False

    def render(self, run: Run) -> str:
        """The text, ending with a newline; the last lines are the verdict and what to do next."""
        width = shutil.get_terminal_size((text.WIDTH, 24)).columns if self.width is None else self.width
        curve = self.curve and width >= text.CURVE_COLUMNS
        page = run.path / "report.html"
        where = clean(page, None) if page.exists() else f"bench report {shlex.quote(clean(run.path, None))}"
        shown = document(run)
        remote = ("Client", _sending.line(run)), ("Server", _sending.server_line(run))
        facts = (*shown.key_facts, *(remote if _sending.client(run) else ()))
        shown = replace(
            shown, key_facts=facts, sections=(*shown.sections, Section("report", "", (Command("report", where),)))
        )
        return text.render(shown, text.Look(self.color, curve, not self.ascii, width))

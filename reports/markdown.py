"""The result as markdown: verdict, percentile table, key facts and warnings, for a pull request or a wiki."""

from dataclasses import dataclass, replace

from harness.data.folder import Run
from reports.answers.run import document
from reports.document import markdown

DETAILS = ("client", "server", "ran")
"""Folded sections of the page that markdown has too."""


@dataclass(frozen=True, slots=True)
class Markdown:
    """The summary of a run; text from outside is escaped and never becomes markup or a link."""

    def render(self, run: Run) -> str:
        """The text, ending with a newline."""
        shown = document(run)
        sections = tuple(replace(one, detail=one.detail and one.key not in DETAILS) for one in shown.sections)
        findings = tuple(replace(one, text=f"{shown.mark}. {one.text}") for one in shown.findings)
        return markdown.render(replace(shown, findings=findings, sections=sections))

"""The result as markdown: verdict, percentile table, key facts and warnings, for a pull request or a wiki."""

from dataclasses import dataclass

from harness.data.folder import Run
from reports.answers.run import document
from reports.document import markdown


@dataclass(frozen=True, slots=True)
class Markdown:
    """The summary of a run; text from outside is escaped and never becomes markup or a link."""

    def render(self, run: Run) -> str:
        """The text, ending with a newline."""
        return markdown.render(document(run))

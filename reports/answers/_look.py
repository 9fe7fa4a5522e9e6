"""How an answer is printed: plain for files and pipes; on a terminal with a curve, in colour where that is wanted."""

from dataclasses import dataclass

from reports.answers._curve import ROOM


@dataclass(frozen=True, slots=True)
class Look:
    """On a `terminal` the verdict stands last, and a small `curve` above it; `color` brings colours.

    Without `blocks` nothing but ASCII is drawn. A terminal of too few `columns` gets no curve: it would wrap.
    """

    terminal: bool = False
    color: bool = False
    blocks: bool = True
    columns: int = 100

    @property
    def curve(self) -> bool:
        """Whether a curve is drawn, and fits."""
        return self.terminal and self.columns >= ROOM

    def bold(self, text: str) -> str:
        """What is to be seen first."""
        return self._styled(text, "bold")

    def judged(self, text: str, good: bool | None) -> str:
        """Good or bad news; None: neither."""
        return self._styled(text, "bold" if good is None else "bold green" if good else "bold red")

    def _styled(self, text: str, style: str) -> str:
        """Every line by itself, so that a pager which begins in the middle shows it right."""
        if not self.color:
            return text
        from rich.color import ColorSystem
        from rich.style import Style

        made = Style.parse(style)
        return "\n".join(made.render(line, color_system=ColorSystem.STANDARD) for line in text.split("\n"))


PLAIN = Look()
"""What every form but a terminal gets."""

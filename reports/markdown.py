"""The result as markdown: verdict, percentile table, counts and warnings, for a pull request or a wiki."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from reports import _view
from reports._clean import in_markdown

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from harness.folder import Run

HEADS = ("metric", "unit", "mean", "p50", "p90", "p99", "bound", "within")


@dataclass(frozen=True, slots=True)
class Markdown:
    """The summary of a run; text from outside is escaped and never becomes markup or a link."""

    def render(self, run: Run) -> str:
        """The text, ending with a newline."""
        view = _view.view(run)
        state = f"{view.word}, {view.qualified}." if view.qualified else f"{view.word}: {view.verdict}"
        blocks = [
            f"## {in_markdown(view.title)}",
            in_markdown(view.traffic, None),
            f"**{view.mark.text}. {in_markdown(view.answer, None)}**",
            in_markdown(state, None),
            *(f"> {in_markdown(f'{w.message} {w.remedy}'.strip(), None)}" for w in view.warnings),
            "\n".join(f"- {name}: {in_markdown(value)}" for name, value in view.heads),
            _table(HEADS, _rows(view)),
            in_markdown(view.flow, None),
            _table(("status", "requests", "share"), view.counts),
            f"Sending: {in_markdown(view.fidelity, None)}",
            "\n".join(["What was run:", "", *(f"- {name}: {in_markdown(value)}" for name, value in view.ran)]),
        ]
        return "\n\n".join(block for block in blocks if block) + "\n"


def _rows(view: _view.View) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [(r.name, r.unit, r.mean, r.p50, r.p90, r.p99, r.bound, r.met) for r in view.rows]
    return [*rows, ("all bounds", *[""] * 5, view.goal, view.met)] if view.bounded else rows


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    ruler = ["---", *["---:"] * (len(heads) - 1)]
    cells = [heads, ruler, *([in_markdown(cell) or " " for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)

"""The result as markdown: verdict, percentile table, counts and warnings, for a pull request or a wiki."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.data.folder import Run
from reports import _view
from reports._format import in_markdown

HEADS = ("metric", "unit", "mean", "p50", "p90", "p99", "bound", "within")


@dataclass(frozen=True, slots=True)
class Markdown:
    """The summary of a run; text from outside is escaped and never becomes markup or a link."""

    def render(self, run: Run) -> str:
        """The text, ending with a newline."""
        view = _view.view(run)
        client = [
            "The client that measured:",
            "",
            *(f"- {name}: {in_markdown(text, None)}" for name, text in view.client),
        ]
        state = f"{view.word}, {view.qualified}." if view.qualified else f"{view.word}: {view.verdict}"
        blocks = [
            f"## {in_markdown(view.title)}",
            in_markdown(view.traffic, None),
            f"**{view.mark.text}. {in_markdown(view.answer, None)}**",
            in_markdown(state, None),
            *(f"> {in_markdown(f'{w.message} {w.remedy}'.strip(), None)}" for w in view.warnings),
            "\n".join(f"- {name}: {in_markdown(value)}" for name, value in view.heads),
            _table((*HEADS, "client floor p50 / p99") if view.floors else HEADS, _rows(view)),
            in_markdown(view.flow, None),
            f"Interval: {in_markdown(view.interval, None)}" if view.interval else "",
            _table(("status", "requests", "share"), view.counts),
            f"Sending: {in_markdown(view.fidelity, None)}",
            "\n".join(client) if view.client else "",
            _server(view),
            "\n".join(["What was run:", "", *(f"- {name}: {in_markdown(value)}" for name, value in view.ran)]),
        ]
        return "\n\n".join(block for block in blocks if block) + "\n"


def _rows(view: _view.View) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [(r.name, r.unit, r.mean, r.p50, r.p90, r.p99, r.bound, r.met) for r in view.rows]
    rows += [("all bounds", *[""] * 5, view.goal, view.met)] if view.bounded else []
    if not view.floors:
        return rows
    return [(*row, floor) for row, floor in zip(rows, [*(r.floor for r in view.rows), ""], strict=False)]


def _server(view: _view.View) -> str:
    if not view.server:
        return f"{in_markdown(view.server_note, None)}." if view.server_note else ""
    heads = ("quantity", "unit", "client", "server", "difference", "")
    rows = [(s.name, s.unit, s.client, s.server, s.difference, s.said) for s in view.server]
    return f"{in_markdown(view.server_note, None)}:\n\n{_table(heads, rows)}"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    ruler = ["---", *["---:"] * (len(heads) - 1)]
    cells = [heads, ruler, *([in_markdown(cell) or " " for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)

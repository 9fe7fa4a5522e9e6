"""A figure in the plain values of plotly.js: loading plotly's own classes takes longer than most runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast

if TYPE_CHECKING:
    import plotly.graph_objects as go


def number(row: int) -> str:
    """What the names of the axes of a panel end with."""
    return "" if row == 1 else str(row)


@dataclass(slots=True)
class Drawing:
    """Traces and layout in the terms of plotly.js, with what they show: one sentence, and `notes`.

    Panels stand above one another; the top one is row 1.
    """

    layout: dict[str, Any]
    data: list[dict[str, Any]] = field(default_factory=list)
    finding: str = ""
    notes: tuple[str, ...] = ()

    def trace(self, kind: str, *, row: int | None = None, **values: Any) -> None:
        """Add a trace, in a panel where there are several; what is None is left to plotly.js."""
        panel = {} if row is None else {"xaxis": f"x{number(row)}", "yaxis": f"y{number(row)}"}
        self.data.append({"type": kind, **{key: v for key, v in values.items() if v is not None}, **panel})

    def shape(self, kind: Literal["line", "rect"], **values: Any) -> None:
        """Add a line or an area."""
        self.layout.setdefault("shapes", []).append({"type": kind, **values})

    def text(self, **values: Any) -> None:
        """Add a text at a place."""
        self.layout.setdefault("annotations", []).append(values)

    def axis(self, letter: str, row: int = 1) -> dict[str, Any]:
        """What an axis of a panel has so far, to be added to."""
        return cast("dict[str, Any]", self.layout.setdefault(f"{letter}axis{number(row)}", {}))

    def plotly(self) -> go.Figure:
        """It as a figure of plotly, to show, to change or to save; `layout.meta` has finding and notes."""
        import plotly.graph_objects as go  # heavy

        meta = {"finding": self.finding, "notes": list(self.notes)}
        return go.Figure({"data": self.data, "layout": {**self.layout, "template": "none", "meta": meta}})

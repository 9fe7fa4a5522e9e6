"""The look all figures share: palette, dashes, axes, and where a figure keeps its finding.

The colours are those of Okabe and Ito (Color Universal Design, 2008) that keep a contrast of 3:1 on white; a dash
or a marker always says the same as the colour.
"""

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from reports import _format

BLUE, VERMILLION, GREEN, PURPLE, GREY = "#0072b2", "#d55e00", "#009e73", "#bb6699", "#777777"
OCHRE = "#8a6d00"
_NIGHT = {
    BLUE: "#56b4e9",
    VERMILLION: "#f5843c",
    GREEN: "#2fc39b",
    PURPLE: "#dd9cc4",
    GREY: "#a3a3a3",
    OCHRE: "#f0e442",
}
HALO = "rgb(255,255,255)"
"""The colour of the ground, around a line over shades."""

MARKS = "marks"
"""`meta` of a trace that only marks points of another one; it is not repeated in the table."""

COUNTS = "counts"
"""`meta` of a heat map of counts, its `z` their common logarithm: its table adds up those of neighbouring cells."""

Table: TypeAlias = tuple[list[str], list[list[str]], int, str]
"""Heads, printed rows, how many points the figure holds, and what the rows are of them."""

_SHADES = {
    "rgb(226,236,245)": "rgb(38,50,62)",
    "rgb(158,198,226)": "rgb(34,84,125)",
    "rgb(80,150,200)": "rgb(52,136,190)",
    "rgb(20,95,160)": "rgb(124,190,232)",
    "rgb(8,42,92)": "rgb(222,240,252)",
}
SHADES = [[i / (len(_SHADES) - 1), shade] for i, shade in enumerate(_SHADES)]
"""Colour scale of heat maps and contours: one hue, away from the ground with rising value, on either ground."""

_FEW = 3
"""Ticks that a log axis over several values has at least."""

_EACH = 12
"""Whole numbers up to which each gets a tick."""

_FONT = {"family": "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", "size": 13, "color": "#1b1f24"}
_AXIS = {
    "gridcolor": "#d9dde2", "linecolor": "#777777", "zeroline": False, "showline": True, "ticks": "outside",
    "tickcolor": "#777777", "automargin": True, "exponentformat": "none", "separatethousands": True,
}  # fmt: skip


def faint(color: str) -> str:
    """The colour of a band behind a line of `color` ('#rrggbb')."""
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.22)"


DARK = {
    **_NIGHT,
    **{faint(color): faint(instead) for color, instead in _NIGHT.items()},
    **_SHADES,
    HALO: "rgb(21,24,28)",
}
"""What the page puts in the place of each colour on a dark ground."""


def line(color: str, dash: str = "solid", width: float = 2.0) -> dict[str, object]:
    """The line of a trace."""
    return {"color": color, "dash": dash, "width": width}


def axis(title: str, **more: object) -> dict[str, object]:
    """An axis whose title ends with its unit."""
    return {**_AXIS, "title": {"text": title}, **more}


def log_axis(title: str, values: Iterable[float], **more: object) -> dict[str, object]:
    """A log axis over positive `values`, with plain numbers at 1, 2 and 5 of each decade."""
    import numpy as np

    positive = np.asarray([v for v in values if v > 0 and np.isfinite(v)] or [1.0])
    low, high = np.log10(positive.min()), np.log10(positive.max())
    pad = max(0.03 * (high - low), 0.02)
    low, high = float(low - pad), float(high + pad)
    wide = high - low
    steps: tuple[float, ...] = (1, 1.5, 2, 3, 4, 5, 7) if wide < 1.2 else (1, 2, 5) if wide <= 3 else (1,)
    ticks = [m * 10.0**e for e in range(int(np.floor(low)), int(np.ceil(high)) + 1) for m in steps]
    shown = [t for t in ticks if low <= np.log10(t) <= high]
    if len(shown) < _FEW:
        several = positive.max() > positive.min()
        shown = _even(10.0**low, 10.0**high) if several else [float(f"{10.0 ** ((low + high) / 2):.3g}")]
    text = [_format.plain(t, 10) for t in shown]
    return axis(title, type="log", range=[low, high], tickvals=shown, ticktext=text, **more)


def _even(low: float, high: float) -> list[float]:
    """Round numbers at even distances from `low` to `high`, three to seven of them."""
    import numpy as np

    wide = high - low
    unit = 10.0 ** np.floor(np.log10(wide / _FEW))
    step = float(max(m * unit for m in (1, 2, 5) if m * unit * _FEW <= wide))
    return [round(i * step, 12) for i in range(int(np.ceil(low / step)), int(np.floor(high / step)) + 1)]


def whole(most: int) -> dict[str, object]:
    """What gives an axis of up to `most` whole numbers no ticks between them."""
    return {"tickformat": "d", **({"dtick": 1} if most <= _EACH else {})}


def new(height: int = 420) -> go.Figure:
    """An empty figure of one panel in the shared look."""
    return go.Figure(layout=_layout(height))


def panels(heights: Sequence[float], height: int, *, shared: bool = True, spacing: float = 0.05) -> go.Figure:
    """An empty figure of panels above one another that share their x axis, unless not `shared`."""
    figure = make_subplots(
        rows=len(heights), cols=1, shared_xaxes=shared, row_heights=list(heights), vertical_spacing=spacing
    )
    figure.update_layout(_layout(height))
    return figure


def done(figure: go.Figure, finding: str, notes: Iterable[str] = (), table: Table | None = None) -> go.Figure:
    """`figure` with its finding (one sentence), its notes, and the `table` for its points if it brings one."""
    own = {} if table is None else {"table": table}
    figure.update_layout(meta={"finding": finding, "notes": [n for n in notes if n], **own})
    return figure


def level(figure: go.Figure, y: float, text: str, **where: Any) -> None:
    """A horizontal grey line with its name at the left end."""
    figure.add_hline(
        y=y, line={"color": GREY, "width": 1, "dash": "dash"}, annotation_text=text,
        annotation_position="top left", annotation_font_size=12, **where,
    )  # fmt: skip


def _layout(height: int) -> dict[str, object]:
    return {
        "template": "none", "height": height, "font": _FONT, "hovermode": "closest",
        "paper_bgcolor": "#ffffff", "plot_bgcolor": "#ffffff",
        "margin": {"l": 70, "r": 24, "t": 40, "b": 56},
        "legend": {
            "orientation": "h", "x": 0, "y": 1.02, "xanchor": "left", "yanchor": "bottom", "traceorder": "normal",
        },
        "hoverlabel": {"namelength": -1},
    }  # fmt: skip

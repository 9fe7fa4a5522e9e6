"""What all figures share: colours and styles, axes, lines with their names, fewer points, and where a finding stands.

The colours are those of Okabe and Ito (Color Universal Design, 2008) that keep a contrast of 3:1 on white; a dash
or a marker always says the same as the colour.
"""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from reports import _format
from reports.figures.drawing import Drawing, number

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

_SHADES = {
    "rgb(226,236,245)": "rgb(38,50,62)",
    "rgb(158,198,226)": "rgb(34,84,125)",
    "rgb(80,150,200)": "rgb(52,136,190)",
    "rgb(20,95,160)": "rgb(124,190,232)",
    "rgb(8,42,92)": "rgb(222,240,252)",
}
SHADES = [[i / (len(_SHADES) - 1), shade] for i, shade in enumerate(_SHADES)]
"""Colour scale of heat maps: one hue, away from the ground with rising value, on either ground."""

MARKS = "marks"
"""`meta` of a trace that only marks points of another one; it is not repeated in the table."""

BESIDE = 78
"""Pixels to the right of the panels, where values stand beside rows or bars."""

MOST_ROWS = 40
"""Rows of the table of a figure."""

SECONDS = "%{x:.2f} s: %{y:.4r} s"
PERCENT = "%{x:.4r}: %{y:.1f}%"
OF_SECONDS = "%{x:.4r} s: %{y:.1f}%"
OF_SCALE = "scale %{x:.3r}: %{y:.1f}%"
OF_TOKENS = "%{x:,} tokens: %{y:.1f}%"
"""Hover texts that several figures have."""

BELOW = "requests at or below (%)"
WITHIN = "requests within the SLO (%)"
"""Titles of axes that several figures have."""

UNBOUND = "There is no bound on single requests, so there is no attainment to draw; give --slo ttft=0.25,tpot=0.1."
UNANSWERED = "No request ended well, so there is nothing to draw; the counts by status and the errors say why."
"""Why a figure is missing."""

HOLLOW = "Hollow points: a queue grew all through a run, so a longer run falls further."

_EACH = 12
"""Whole numbers up to which each gets a tick."""


_FONT = {"family": "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", "size": 13, "color": "#1b1f24"}
_AXIS = {
    "gridcolor": "#d9dde2", "linecolor": "#777777", "zeroline": False, "showline": True, "ticks": "outside",
    "tickcolor": "#777777", "automargin": True, "exponentformat": "none", "separatethousands": True,
}  # fmt: skip
_COLORS = (BLUE, VERMILLION, GREEN, PURPLE)
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star", "triangle-down", "hexagon")
_WRAP, _CHARACTER, _LINE, _STEM = 12, 7, 16, 20
"""Letters of a line of an end label, its width and height in pixels, and the length of the stem before it."""
MOST = 2000
"""Points of a trace."""
MARKED = 12
"""Markers that tell a long curve from the others."""
RANKS = "evenly spaced ranks, tails whole"
EXTREMES = "the least and the greatest of each stretch"
EVENLY = "evenly chosen, with the extremes of each stretch"


class Look(NamedTuple):
    """How a curve differs from the others."""

    color: str
    dash: str = "solid"
    symbol: str = "circle"
    width: float = 2.0

    @property
    def line(self) -> dict[str, Any]:
        """The line of a trace."""
        return {"color": self.color, "dash": self.dash, "width": self.width}

    def symbols(self, hollow: Iterable[object]) -> list[str]:
        """The marker of each point, an open one where it is `hollow`."""
        return [f"{self.symbol}-open" if open_ else self.symbol for open_ in hollow]


def faint(color: str) -> str:
    """The colour of a band behind a line of `color` ('#rrggbb')."""
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.22)"


ALL = Look(BLUE, width=3.0)
"""All bounds of an SLO together: solid, as in DistServe (OSDI 2024, figures 8 and 9); TTFT dotted, TPOT dashed."""

TTFT, TPOT = Look(VERMILLION, "dot", "square"), Look(GREEN, "dash", "diamond")
BOUNDS = (TTFT, TPOT, Look(PURPLE, "dashdot", "x"))
"""Single bounds, in their order."""

SYSTEMS = tuple(Look(_COLORS[i % len(_COLORS)], symbol=symbol) for i, symbol in enumerate(_SYMBOLS))
"""Systems beside one another: as many as one figure can tell apart."""


SIDES = {"base": Look(GREY, width=3.0), "head": Look(BLUE, symbol="diamond", width=3.0)}
"""Both sides of a comparison."""


DARK = {
    **_NIGHT,
    **{faint(color): faint(instead) for color, instead in _NIGHT.items()},
    **_SHADES,
    HALO: "rgb(21,24,28)",
}
"""What the page puts in the place of each colour on a dark ground."""


def new(height: int = 420) -> Drawing:
    """An empty figure of one panel in the shared look."""
    return Drawing(layout(height))


def panels(heights: Sequence[float], height: int, *, shared: bool = True, spacing: float = 0.05) -> Drawing:
    """An empty figure of panels above one another that share their x axis, unless not `shared`."""
    figure, rows = new(height), len(heights)
    parts = [(1.0 - spacing * (rows - 1)) * (height / sum(heights)) for height in reversed(heights)]  # from below
    for row in range(1, rows + 1):
        below = rows - row
        low = sum(parts[:below]) + below * spacing
        figure.axis("x", row).update(anchor=f"y{number(row)}", domain=[0.0, 1.0])
        figure.axis("y", row).update(anchor=f"x{number(row)}", domain=[low, min(low + parts[below], 1.0)])
        if shared and below:
            figure.axis("x", row).update(matches=f"x{number(rows)}", showticklabels=False)
    return figure


def layout(height: int) -> dict[str, Any]:
    """What every figure has around its panels."""
    return {
        "height": height, "font": _FONT, "hovermode": "closest",
        "paper_bgcolor": "#ffffff", "plot_bgcolor": "#ffffff",
        "margin": {"l": 70, "r": 24, "t": 40, "b": 56},
        "legend": {
            "orientation": "h", "x": 0, "y": 1.02, "xanchor": "left", "yanchor": "bottom", "traceorder": "normal",
        },
        "hoverlabel": {"namelength": -1},
    }  # fmt: skip


def done(figure: Drawing, finding: str, notes: Iterable[str] = ()) -> Drawing:
    """`figure` with its finding (one sentence) and its notes."""
    figure.finding, figure.notes = finding, tuple(filter(None, notes))
    return figure


def finding(values: Mapping[str, Iterable[str]]) -> str:
    """The sentence of a figure: of each thing its values, as 'TTFT: p50 80 ms, p99 210 ms; TPOT: p50 31 ms.'"""
    texts = {what: ", ".join(filter(None, parts)) for what, parts in values.items()}
    return "; ".join(f"{what}: {text}" for what, text in texts.items() if text) + "."


def axes(figure: Drawing, x: Mapping[str, Any], y: Mapping[str, Any], row: int = 1) -> None:
    """Give a panel its axes."""
    figure.axis("x", row).update(x)
    figure.axis("y", row).update(y)


def axis(title: str, **more: Any) -> dict[str, Any]:
    """An axis whose title ends with its unit."""
    return {**_AXIS, "title": {"text": title}, **more}


def log_axis(title: str, values: Iterable[float], **more: Any) -> dict[str, Any]:
    """A log axis over positive `values`, with plain numbers at 1, 2 and 5 of each decade."""
    positive = np.asarray([v for v in values if v > 0 and np.isfinite(v)] or [1.0])
    low, high = np.log10(positive.min()), np.log10(positive.max())
    pad = max(0.03 * (high - low), 0.02)
    low, high = float(low - pad), float(high + pad)
    if high - low < 1:  # where plotly.js has round numbers at even distances, here few enough for a narrow window
        return axis(title, type="log", range=[low, high], nticks=3, **more)
    steps = (1, 2, 5) if high - low <= 3 else (1,)
    ticks = [m * 10.0**e for e in range(int(np.floor(low)), int(np.ceil(high)) + 1) for m in steps]
    printed = [tick for tick in ticks if low <= np.log10(tick) <= high]
    text = [_format.plain(tick, 10) for tick in printed]
    return axis(title, type="log", range=[low, high], tickvals=printed, ticktext=text, **more)


def share_axis(title: str) -> dict[str, Any]:
    """The axis of shares in percent."""
    return axis(title, range=[-2, 104])


def whole(most: int) -> dict[str, Any]:
    """What gives an axis of up to `most` whole numbers no ticks between them."""
    return {"tickformat": "d", **({"dtick": 1} if most <= _EACH else {})}


def curve(
    figure: Drawing, x: Any, y: Any, name: str, look: Look, hover: str | None, *, row: int | None = None,
    mode: str = "lines+markers", size: Any = 8, symbols: Sequence[str] | None = None, step: str = "",
    ends: tuple[Any, Any] | None = None, across: bool = False, **more: Any,
) -> None:  # fmt: skip
    """A line with markers (or what `mode` says); `symbols` is that of each point, `step` the shape of a step line.

    `ends` are the lower and upper ends of intervals, NaN where a point has none: of y, or of x where they lie `across`.
    """
    if ends is not None:
        low, high, centre = (np.asarray(values, np.float64) for values in (*ends, x if across else y))
        more["error_x" if across else "error_y"] = {
            "type": "data", "symmetric": False, "array": np.nan_to_num(high - centre),
            "arrayminus": np.nan_to_num(centre - low), "color": look.color, "thickness": 1.5,
        }  # fmt: skip
    if "lines" in mode:
        more["line"] = {**look.line, "shape": step} if step else look.line
    if "markers" in mode:
        marker = more.get("marker", {})
        more["marker"] = {"symbol": symbols or look.symbol, "size": size, "color": look.color, **marker}
    if hover is None:
        more["hoverinfo"] = "skip"
    figure.trace("scatter", row=row, x=x, y=y, name=name, mode=mode, hovertemplate=hover, **more)


def cumulative(
    figure: Drawing, values: np.ndarray, name: str, look: Look, hover: str, *, most: int | None = None, **more: Any
) -> int:
    """The share of sorted `values` at or below each; returns how many points are drawn."""
    indices = ranks(len(values), most or MOST)
    share = (indices + 1) / len(values) * 100.0
    curve(figure, values[indices], share, name, look, hover, mode="lines", **more)
    return len(indices)


def diagonal(figure: Drawing, ends: Sequence[float], name: str, **where: Any) -> None:
    """The line on which x and y are the same."""
    look = Look(GREY, "dash", width=1.5)
    curve(figure, ends, ends, name, look, None, mode="lines", meta=MARKS, **where)


def band(
    figure: Drawing, x: Any, ends: tuple[Any, Any], names: tuple[str, str], color: str, *, row: int | None = None,
    hover: str | None = None, **upper: Any,
) -> None:  # fmt: skip
    """The ground between two curves, both of which are columns of the table."""
    look = Look(color, width=0)
    curve(figure, x, ends[0], names[0], look, hover, mode="lines", row=row, showlegend=False)
    fill = {"fill": "tonexty", "fillcolor": faint(color), "showlegend": False, **upper}
    curve(figure, x, ends[1], names[1], look, hover, mode="lines", row=row, **fill)


def at_a_press(figure: Drawing, what: str, traces: Sequence[int]) -> None:
    """Hide these traces until a button called `what`, above the panel, is pressed, and again when it is released."""
    for i in traces:
        figure.data[i]["visible"] = False
    shown, hidden = ["visible", True, list(traces)], ["visible", False, list(traces)]
    button = {"label": what, "method": "restyle", "args": shown, "args2": hidden}
    figure.layout["updatemenus"] = [{
        "type": "buttons", "buttons": [button], "showactive": False, "active": -1, "x": 1, "xanchor": "right",
        "y": 1.02, "yanchor": "bottom", "pad": {"t": 0, "b": 0, "l": 0, "r": 0}, "bgcolor": HALO,
        "bordercolor": GREY, "font": {"size": 12},
    }]  # fmt: skip


def panel_of(figure: Drawing, row: int) -> tuple[Any, Any, dict[str, Any], dict[str, Any]]:
    """Both axes of a panel, and what an annotation or shape is placed by: in its data, in parts of it."""
    data = {"xref": f"x{number(row)}", "yref": f"y{number(row)}"}
    parts = {"xref": f"x{number(row)} domain", "yref": f"y{number(row)} domain"}
    return figure.axis("x", row), figure.axis("y", row), data, parts


def _noted(scale: Mapping[str, Any], value: float) -> float:
    """Where a note stands at a value: on a log axis plotly takes the logarithm for notes alone."""
    return float(np.log10(value)) if scale.get("type") == "log" else value


def level(figure: Drawing, y: float, text: str = "", row: int = 1) -> None:
    """A horizontal grey line with its name at the left end; the axes of the panel are there."""
    _, scale, data, parts = panel_of(figure, row)
    figure.shape("line", x0=0, x1=1, y0=y, y1=y, xref=parts["xref"], yref=data["yref"],
        line={"color": GREY, "width": 1, "dash": "dash" if text else "solid"},
    )  # fmt: skip
    if text:
        label(figure, 0, _noted(scale, y), text, row, xref=parts["xref"], yref=data["yref"])


def upright(
    figure: Drawing, x: float, text: str = "", place: int = 0, *, row: int = 1, look: Look | None = None,
    top: float | None = None, span: tuple[float, float] | None = None,
) -> None:  # fmt: skip
    """A vertical line with its name beside it, on the side that has room; names of several stand above one another.

    From `top` (in data) down where it is given; `span` is the interval of `x`. The axes of the panel are there.
    """
    look = look or Look(GREY, "dot", width=1.0)
    scale, height, data, parts = panel_of(figure, row)
    ends = {"y0": 0, "y1": 1, "xref": data["xref"], "yref": parts["yref"]}
    if top is not None:
        ends = {"y0": height["range"][0], "y1": top, **data}
    figure.shape("line", x0=x, x1=x, line={**look.line, "width": min(look.width, 1.5)}, **ends)
    if span is not None:
        fill = {"fillcolor": faint(look.color), "line": {"width": 0}, "layer": "below"}
        figure.shape("rect", x0=span[0], x1=span[1], **fill, **ends)
    if text:
        x_pos = _noted(scale, x)
        on_left = x_pos > sum(scale["range"]) / 2
        label(figure, x_pos, 0.02 + 0.08 * place, text, row, left=on_left, xref=data["xref"], yref=parts["yref"])


def above(figure: Drawing, x: float, text: str) -> None:
    """A name above the one panel, over `x`, where it lies on no curve."""
    label(figure, _noted(figure.axis("x"), x), 1, text, xanchor="center", yref="y domain", xshift=0)


def label(figure: Drawing, x: Any, y: float, text: str, row: int = 1, *, left: bool = False, **where: Any) -> None:
    """A name above and beside a point of a panel."""
    shift = 0 if "domain" in where.get("xref", "") else -4 if left else 4
    figure.text(**{
        "x": x, "y": y, "text": text, "showarrow": False, "font": {"size": 12}, "yanchor": "bottom", "xshift": shift,
        "xanchor": "right" if left else "left", **panel_of(figure, row)[2], **where,
    })  # fmt: skip


def end_labels(figure: Drawing, curves: Sequence[tuple[float, float, str, str]], levels: Mapping[float, str]) -> None:
    """The names of curves beside their right ends, and of levels, apart from one another, in the place of a legend.

    `curves` are x, y, name and colour of each. The axes of the one panel are there, that of y is linear.
    """
    scale = figure.axis("x")
    ends = [(_noted(scale, x), y, name, color) for x, y, name, color in curves]
    ends += [(scale["range"][1], y, name, GREY) for y, name in levels.items()]
    texts = [wrapped(name) for *_, name, _ in ends]
    widest = max(len(line) for text in texts for line in text)
    figure.layout.update(showlegend=False, margin={"l": 70, "r": _STEM + 10 + widest * _CHARACTER, "t": 62, "b": 56})
    low, high = figure.axis("y")["range"]
    tall = figure.layout["height"] - 118
    pixels = [(high - y) / (high - low) * tall for _, y, _, _ in ends]  # pixels from the top
    half = [(len(text) * _LINE + 4) / 2 for text in texts]
    order = sorted(range(len(ends)), key=lambda i: pixels[i])
    placed = dict(zip(order, _apart([pixels[i] for i in order], [half[i] for i in order], tall), strict=True))
    for i, (x, y, _, color) in enumerate(ends):
        figure.text(
            x=x, y=y, ax=_STEM, ay=placed[i] - pixels[i], text="<br>".join(texts[i]), xanchor="left", align="left",
            font={"size": 12}, showarrow=True, arrowhead=0, arrowwidth=1.5, arrowcolor=color, standoff=5,
        )  # fmt: skip


def wrapped(name: str) -> list[str]:
    """Short lines of a name."""
    lines = textwrap.wrap(name.replace(":", ": "), _WRAP, break_long_words=False, break_on_hyphens=False)
    return [line if len(line) <= _WRAP + 2 else f"{line[: _WRAP + 1]}…" for line in lines]


def _apart(at: Sequence[float], half: Sequence[float], most: float) -> list[float]:
    """Centres in rising order, moved as little as it takes for none to lie on another or beyond `most`."""
    centres: list[float] = []
    for centre, room in zip(at, half, strict=True):
        centres.append(max(centre, centres[-1] + half[len(centres) - 1] + room if centres else room))
    # what was pushed beyond the end is pushed back from there, and with it whatever it then lies on
    limit = most
    for i in reversed(range(len(centres))):
        centres[i] = min(centres[i], limit - half[i])
        limit = centres[i] - half[i]
    return centres


def extremes(columns: Sequence[np.ndarray], most: int = MOST) -> np.ndarray:
    """Indices to keep of equally long `columns`: of each run of neighbours the least and the greatest of each.

    First and last stay too; the result is sorted and holds at most `most` indices.
    """
    n = len(columns[0]) if columns else 0
    if n <= most:
        return np.arange(n)
    # a line through every so-manieth point would lose the peaks that readers look for
    bins = max(1, (most - 2) // (2 * len(columns)))
    edges = np.linspace(0, n, bins + 1).astype(np.int64)
    keep = [0, n - 1]
    for column in columns:
        for a, b in pairwise(edges):
            values = np.nan_to_num(np.asarray(column[a:b], dtype=np.float64), nan=0.0)
            keep += [a + np.argmin(values), a + np.argmax(values)]
    return np.unique(keep)


def sampled(values: np.ndarray, most: int = MOST) -> np.ndarray:
    """Indices to keep of a cloud of points: evenly chosen ones, so that its density stays, and the extremes."""
    return np.union1d(evenly(len(values), most * 3 // 4), extremes([values], most // 4)) if len(values) > most else (
        np.arange(len(values))
    )  # fmt: skip


def evenly(n: int, most: int) -> np.ndarray:
    """At most `most` of the indices of `n` things, first and last among them."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).astype(np.int64))


def ranks(n: int, most: int = MOST) -> np.ndarray:
    """Ranks (from 0) of `n` sorted values to draw: all, or evenly spaced ones with both tails kept whole."""
    if n <= most:
        return np.arange(n)
    # the tails hold the few requests that decide p99, and evenly spaced ranks would skip most of them
    tail = most // 20
    middle = np.linspace(tail, n - tail - 1, most - 2 * tail).astype(np.int64)
    return np.unique(np.concatenate([np.arange(tail), middle, np.arange(n - tail, n)]))


def reduced(n: int, drawn: int, what: str, how: str) -> str:
    """The note that names a reduction; empty where nothing was left out."""
    return f"{drawn:,} of {n:,} {what} are drawn ({how})." if drawn < n else ""

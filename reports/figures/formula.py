"""A closed form over one axis, with what was simulated as marks over it."""

from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go

from reports._format import in_figure
from reports.figures import _real
from reports.figures import _style as style

ORDER = 1
OF = "theory"
SECTION = "figures"
TITLE = "By the formula"
MISSING = "This form has no curve."


def figure(picture: Mapping[str, Any]) -> go.Figure | str:
    """Every line of a picture; simulated points as open marks of the colour of their formula."""
    lines = [line for line in picture["lines"] if line["points"]]
    if not lines:
        return MISSING
    drawn = style.new()
    places = {name: place for place, name in enumerate(dict.fromkeys(line["name"] for line in lines))}
    for line in lines:
        color, symbol, dash = _real.look(places[line["name"]])
        name = in_figure(line["name"], 60)
        x, y = zip(*line["points"], strict=True)
        if line["simulated"]:
            drawn.add_scatter(x=x, y=y, name=f"{name}, simulated", mode="markers",
                              marker={"size": 10, "symbol": f"{symbol}-open", "color": color})  # fmt: skip
        else:
            drawn.add_scatter(x=x, y=y, name=name, mode="lines", line=style.line(color, dash))
    values = [y for line in lines for _, y in line["points"]]
    drawn.update_xaxes(style.axis(in_figure(picture["x"])))
    drawn.update_yaxes(style.log_axis(in_figure(picture["y"]), values) if picture["y_log"]
                       else style.axis(in_figure(picture["y"]), rangemode="tozero"))  # fmt: skip
    note = "Open marks were simulated." if any(line["simulated"] for line in lines) else ""
    return style.done(drawn, f"{in_figure(picture['title'], 100)}.", [note])

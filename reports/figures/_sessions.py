"""Sessions: how many requests they have, and how long their users think."""

import numpy as np
import plotly.graph_objects as go

from reports import _format
from reports.figures import _reduce
from reports.figures import _style as style
from reports.figures._traffic import Floats


def turns(counts: Floats) -> go.Figure:
    """Share of the sessions that have at least so many requests, on two log axes."""
    drawn = style.new(360)
    at, of = np.unique(counts, return_counts=True)
    share = (len(counts) - np.cumsum(of) + of) / len(counts) * 100
    kept = _reduce.extremes([share]) if len(at) > _reduce.MOST else np.arange(len(at))
    drawn.add_scatter(
        x=at[kept], y=share[kept], name="sessions", mode="lines+markers", line={**style.line(style.BLUE)},
        marker={"size": 6, "color": style.BLUE, "symbol": "circle"}, hovertemplate="%{x} or more: %{y:.3r}%",
    )  # fmt: skip
    drawn.update_layout(
        xaxis=style.log_axis("requests of the session, or more (log scale)", [float(at[0]), float(at[-1])]),
        yaxis=style.log_axis("sessions (%, log scale)", [100.0, float(share[-1])]),
    )
    one, middle, high = float(np.mean(counts == 1)), *np.quantile(counts, [0.5, 0.99])
    said = (
        f"{len(counts):,} sessions have {_format.number(float(counts.mean()))} requests in the mean, {middle:,.0f} in "
        f"the median and {high:,.0f} at p99; {_format.share(one)} are a single request."
    )
    return style.done(drawn, said)


def think(times_s: Floats, since: str) -> go.Figure:
    """Cumulative share of the think times on a log axis."""
    drawn = style.new(340)
    found = np.sort(times_s)
    kept = _reduce.ranks(len(found), 1000)
    drawn.add_scatter(
        x=found[kept], y=(kept + 1) / len(found) * 100, name="think times", mode="lines",
        line={**style.line(style.BLUE), "shape": "hv"}, hovertemplate="%{x:.3r} s: %{y:.1f}%",
    )  # fmt: skip
    drawn.update_layout(
        xaxis=style.log_axis(f"seconds since {since} (log scale)", [float(v) for v in found]),
        yaxis=style.axis("think times at or below (%)", range=[-2, 104]),
    )
    middle, high = (float(v) for v in np.quantile(found, [0.5, 0.9]))
    said = f"Half of the next requests come within {_format.seconds(middle)} of {since}, a tenth after "
    said += f"{_format.seconds(high)}."
    return style.done(drawn, said, [_reduce.note(len(found), len(kept), "think times", _reduce.RANKS)])

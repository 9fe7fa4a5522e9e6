"""Heat map of the gaps between tokens over the time of the run: prefills that stall decodes show as bands."""

import numpy as np
import plotly.graph_objects as go

from harness.data.folder import Run
from harness.metrics.measure import missing
from reports import _data, _format
from reports._counted import Gaps
from reports.figures import _style as style

ORDER = 8
OF = "run"
SECTION = "figures"
OVER_TIME = True
TITLE = "Gaps between tokens over the run"
NONE = "No request has two tokens or more, so there are no gaps; ask for longer answers, or see the counts by status."
LOST = "The file that these requests were read from does not hold the times of single tokens, so gaps are not drawn."
_TIMES, _HEIGHT = 120, 60
_DEEP = 20
"""The picture reaches down to this part of the median gap at most: below are tokens that came together."""

_QUANTILES = ((0.5, "p50", "solid"), (0.99, "p99", "dash"))
_LEAST = 100
"""Gaps that a stretch must have for a percentile of its own."""


def figure(run: Run) -> go.Figure | str:
    """Counts of gaps by when they ended and how long they were (ms, log axis), with lines at p50 and p99."""
    if run.requests.num_rows == 0:
        return _data.EMPTY
    if "itl" in missing(run.requests):
        return LOST
    found = _data.gaps(run)
    if not found.total or len(found.bins_s) < 2:
        return NONE
    by = -(-(len(found.edges_s) - 1) // _TIMES)
    edges_s, counts = found.edges_s[::by], np.add.reduceat(found.counts, np.arange(0, len(found.counts), by), axis=0)
    drawn = style.new(460)
    _cells(drawn, edges_s, found.bins_s, counts)
    _lines(drawn, edges_s, found.bins_s, counts)
    deepest = binned_quantile(found.bins_s, found.counts.sum(axis=0), 0.5) / _DEEP
    span_s = np.maximum(found.bins_s[[0, -1]], deepest)  # the shortest and the longest gap of the picture
    below = float(found.counts[:, found.bins_s[1:] <= span_s[0]].sum()) / found.total
    drawn.update_layout(
        xaxis=style.axis("time since the start (s)", range=[float(edges_s[0]), float(edges_s[-1])]),
        yaxis=style.log_axis("gap between tokens (ms, log scale)", span_s * 1000.0),
        margin={"r": 90},
    )  # fmt: skip
    notes = [
        f"{found.total:,} gaps are counted, in stretches of {_format.seconds(float(edges_s[1] - edges_s[0]))}.",
        "Lines are read off the bins of the counts, which are at most 3.2% wide.",
        f"{_format.share(below)} of the gaps are shorter than the picture reaches." if below else "",
        _data.warmed_up(run),
    ]
    return style.done(drawn, _finding(run, found), notes)


def _cells(drawn: go.Figure, edges_s: np.ndarray, bins_s: np.ndarray, counts: np.ndarray) -> None:
    """Neighbouring bins together, so that there are about sixty; cells without a gap stay empty."""
    by = max(1, -(-counts.shape[1] // _HEIGHT))
    first = np.arange(0, counts.shape[1], by)
    cells = np.add.reduceat(counts, first, axis=1).T.astype(np.float64)  # (bins, times)
    tops = np.append(bins_s[first], bins_s[-1])
    most = float(cells.max())
    decades = range(int(np.floor(np.log10(most))) + 1)
    shade = np.full(cells.shape, np.nan)
    shade[cells > 0] = np.log10(cells[cells > 0])
    drawn.add_heatmap(
        x=edges_s, y=np.maximum(tops, bins_s[1] / 2) * 1000.0, z=shade, name="gaps", meta=style.COUNTS,
        customdata=cells, colorscale=style.SHADES, zmin=0.0, zmax=max(1.0, float(np.log10(most))), hoverongaps=False,
        colorbar={"title": {"text": "gaps", "side": "top"}, "thickness": 12, "len": 0.9, "outlinewidth": 0,
                  "tickvals": list(decades), "ticktext": [f"{10**n:,}" for n in decades]},
        hovertemplate="%{x:.1f} s, %{y:.3r} ms: %{customdata:,} gaps",
    )  # fmt: skip


def _lines(drawn: go.Figure, edges_s: np.ndarray, bins_s: np.ndarray, counts: np.ndarray) -> None:
    """Percentiles of each stretch that has gaps enough."""
    enough = np.flatnonzero(counts.sum(axis=1) >= _LEAST)
    middle = (edges_s[:-1] + edges_s[1:]) / 2
    for q, name, dash in _QUANTILES:
        if len(enough):
            values = np.array([binned_quantile(bins_s, counts[i], q) for i in enough])
            drawn.add_scatter(
                x=middle[enough], y=values * 1000.0, name=f"ground of {name}", mode="lines", meta=style.MARKS,
                line=style.line(style.HALO, width=4.5), showlegend=False, hoverinfo="skip",
            )  # fmt: skip
            drawn.add_scatter(
                x=middle[enough], y=values * 1000.0, name=f"{name} of the stretch", mode="lines", meta=style.MARKS,
                line=style.line(style.VERMILLION, dash, 2.5), hovertemplate=f"{name} at %{{x:.1f}} s: %{{y:.3r}} ms",
            )  # fmt: skip


def binned_quantile(bins_s: np.ndarray, counts: np.ndarray, q: float) -> float:
    """The middle of the bin in which quantile `q` lies."""
    i = int(np.searchsorted(np.cumsum(counts), q * counts.sum()))
    return float(bins_s[i] + bins_s[i + 1]) / 2


def _finding(run: Run, found: Gaps) -> str:
    """Long gaps are those from the bin on in which ten times the median lies: counts are exact at its edge."""
    middle, high = _data.quantiles(run, "itl", (0.5, 0.99))
    first = max(0, int(np.searchsorted(found.bins_s, 10 * middle, side="right")) - 1)
    long = found.counts[:, first:]
    share = float(long.sum()) / found.total
    when = int(np.count_nonzero(long.sum(axis=1))) / int(np.count_nonzero(found.counts.sum(axis=1)))
    text = f"Half of the gaps are below {_format.seconds(middle)} and 1% above {_format.seconds(high)}"
    if not middle > 0:
        return text + "."
    if share == 0:
        return text + "; none is longer than ten times the median."
    least = _format.seconds(float(found.bins_s[first]))
    return (
        f"{text}; {_format.share(share)} last {least}, about ten times the median, or longer, and they occur in "
        f"{_format.share(when)} of the stretches of the run."
    )

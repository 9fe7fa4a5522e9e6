"""The tail of TTFT, TPOT and of the worst gap of a request: share of requests beyond a latency, on two log axes."""

from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go

from harness.data.folder import Run
from harness.metrics.measure import metrics
from harness.metrics.quantiles import quantile
from reports import _data, _format
from reports.figures import _latencies, _reduce
from reports.figures import _style as style
from reports.figures._latencies import looks

ORDER = 7
OF = "run"
SECTION = "figures"
TITLE = "Tail of the latency"
_MARKED = (0.9, 0.99, 0.999, 0.9999)


class Tail(NamedTuple):
    """Sorted values (requests,) of a metric of the requests that ended well, in seconds."""

    metric: str
    values: np.ndarray

    def beyond(self, limit_s: float) -> float:
        """Share of the requests that take longer."""
        return 1.0 - float(np.searchsorted(self.values, limit_s, side="right")) / len(self.values)


def figure(run: Run) -> go.Figure | str:
    """Share of the requests (%) that take longer, against seconds."""
    tails = [Tail(name, _latencies.of_requests(run, name)) for name in looks() if metrics()[name].one_token]
    tails = [tail for tail in tails if np.any(tail.values > 0)]
    if not tails:
        return _data.EMPTY if run.requests.num_rows == 0 else (
            "No request ended well, so there is no tail to draw; the counts by status and the errors say why."
        )  # fmt: skip
    drawn = style.new()
    kept = sum(_draw(drawn, tail) for tail in tails)
    limits = _latencies.limits(run, [tail.metric for tail in tails])
    ends = [float(v) for tail in tails for v in tail.values[tail.values > 0][[0, -1]]]
    drawn.update_layout(
        xaxis=style.log_axis("seconds (log scale)", [*ends, *limits.values()]),
        yaxis=style.log_axis("requests beyond (%, log scale)", [100.0, 100.0 / max(len(t.values) for t in tails)]),
    )
    for i, tail in enumerate(tail for tail in tails if tail.metric in limits):
        _bound(drawn, tail, limits[tail.metric], i)
    total = sum(len(tail.values) for tail in tails)
    return style.done(drawn, _finding(tails, limits), [_reduce.note(total, kept, "values", _reduce.TAIL_RANKS)])


def _draw(drawn: go.Figure, tail: Tail) -> int:
    """The curve without its last point, beyond which is nothing, and marks at percentiles."""
    name, color, dash, symbol = looks()[tail.metric]
    n = len(tail.values)
    kept = _reduce.tail_ranks(n)
    kept = kept[tail.values[kept] > 0]
    share = np.where(kept < n - 1, (n - 1 - kept) / n, 1 / n) * 100.0
    drawn.add_scatter(
        x=tail.values[kept], y=share, name=name, mode="lines", legendgroup=tail.metric,
        line={**style.line(color, dash), "shape": "hv"}, hovertemplate="longer than %{x:.4r} s: %{y:.3r}%",
    )  # fmt: skip
    marks = [q for q in _MARKED if n * (1 - q) >= 1]
    drawn.add_scatter(
        x=[quantile(tail.values, q) for q in marks], y=[(1 - q) * 100 for q in marks], mode="markers",
        name=f"{name} percentiles", showlegend=False, legendgroup=tail.metric, meta=style.MARKS,
        marker={"symbol": symbol, "size": 9, "color": color}, text=[f"p{q * 100:g}" for q in marks],
        hovertemplate="%{text}: %{x:.4r} s",
    )  # fmt: skip
    return len(kept)


def _bound(drawn: go.Figure, tail: Tail, limit_s: float, place: int) -> None:
    """A line at the bound, in the look of its curve, with the share of requests beyond it."""
    name, color, dash, _ = looks()[tail.metric]
    low, high = drawn.layout.xaxis.range
    left = np.log10(limit_s) > (low + high) / 2  # the side that has room
    drawn.add_vline(x=limit_s, line={"color": color, "width": 1.5, "dash": dash})
    drawn.add_annotation(
        x=float(np.log10(limit_s)), y=0.03 + 0.08 * place, yref="paper", showarrow=False, font={"size": 12},
        xanchor="right" if left else "left", xshift=-4 if left else 4, yanchor="bottom",
        text=f"{name} SLO {_format.limit(limit_s)}: {_format.share(tail.beyond(limit_s))} beyond",
    )  # fmt: skip


def _finding(tails: list[Tail], limits: dict[str, float]) -> str:
    parts = []
    for tail in tails:
        worst, high = (_format.seconds(quantile(tail.values, q)) for q in (1.0, 0.999))
        text = f"{looks()[tail.metric].name} is {worst} at worst"
        if len(tail.values) >= 1000 and high != worst:
            text = f"{looks()[tail.metric].name} exceeds {high} in one of 1,000 requests and is {worst} at worst"
        if tail.metric in limits:
            beyond = _format.share(tail.beyond(limits[tail.metric]))
            text += f" ({beyond} beyond its bound of {_format.limit(limits[tail.metric])})"
        parts.append(text)
    return "; ".join(parts) + ", of the requests that ended well."

"""Distribution of TTFT, TPOT, worst gap and E2E: share of requests at or below a latency, with the SLO marked."""

import numpy as np
import plotly.graph_objects as go

from harness.data.folder import Run
from harness.metrics.quantiles import quantile
from reports import _data, _format
from reports.figures import _latencies, _reduce
from reports.figures import _style as style
from reports.figures._latencies import looks

ORDER = 7
OF = "run"
SECTION = "figures"
TITLE = "Latency of the requests"
_MARKED = (0.5, 0.9, 0.99)


def figure(run: Run) -> go.Figure | str:
    """Cumulative share of the requests that have the latency, against seconds on a log axis."""
    values = {name: _latencies.of_requests(run, name) for name in looks()}
    if not any(len(v) for v in values.values()):
        return _data.EMPTY if run.requests.num_rows == 0 else (
            "No request ended well, so there is no latency to draw; the counts by status and the errors say why."
        )  # fmt: skip
    drawn = style.new()
    kept = sum(_draw(drawn, name, found) for name, found in values.items() if len(found))
    everything = np.concatenate([v[v > 0][[0, -1]] for v in values.values() if np.any(v > 0)] or [np.ones(1)])
    limits = _latencies.limits(run, list(looks()))
    drawn.update_layout(
        xaxis=style.log_axis("seconds (log scale)", [*everything, *limits.values()]),
        yaxis=style.axis("requests at or below (%)", range=[-2, 104]),
    )
    for i, (name, limit) in enumerate(limits.items()):
        _bound(drawn, name, limit, values[name], i)
    return style.done(drawn, _finding(values, limits), _notes(values, kept))


def _draw(drawn: go.Figure, name: str, found: np.ndarray) -> int:
    shown, color, dash, symbol = looks()[name]
    kept = _reduce.ranks(len(found))
    share = (kept + 1) / len(found) * 100.0
    drawn.add_scatter(
        x=found[kept], y=share, name=shown, line=style.line(color, dash), mode="lines",
        legendgroup=name, hovertemplate="%{x:.4r} s: %{y:.1f}%",
    )  # fmt: skip
    drawn.add_scatter(
        x=[quantile(found, q) for q in _MARKED], y=[q * 100 for q in _MARKED], mode="markers", legendgroup=name,
        name=f"{shown} p50, p90, p99", showlegend=False, meta=style.MARKS,
        marker={"symbol": symbol, "size": 9, "color": color}, hovertemplate="p%{y:g}: %{x:.4r} s",
    )  # fmt: skip
    return len(kept)


def _notes(values: dict[str, np.ndarray], kept: int) -> list[str]:
    zeros = {name: int(np.sum(found <= 0)) for name, found in values.items()}
    left = [f"{_format.count(n, 'value')} of {looks()[name].name} at 0 s cannot stand on a log axis."
            for name, n in zeros.items() if n]  # fmt: skip
    return [_reduce.note(sum(len(v) for v in values.values()), kept, "values", _reduce.RANKS), *left]


def _bound(drawn: go.Figure, name: str, limit: float, found: np.ndarray, place: int) -> None:
    shown, color, dash, _ = looks()[name]
    low, high = drawn.layout.xaxis.range
    left = np.log10(limit) > (low + high) / 2  # the side that has room
    drawn.add_vline(x=limit, line={"color": color, "width": 1.5, "dash": dash})
    within = f": {_format.share(float(np.mean(found <= limit)))}" if len(found) else ""
    drawn.add_annotation(
        x=float(np.log10(limit)), y=0.02 + 0.07 * place, yref="paper", showarrow=False,
        xanchor="right" if left else "left", xshift=-4 if left else 4,
        text=f"{shown} SLO {_format.limit(limit)}{within}", font={"size": 12}, yanchor="bottom",
    )  # fmt: skip


def _finding(values: dict[str, np.ndarray], limits: dict[str, float]) -> str:
    parts = []
    for name, found in values.items():
        if not len(found):
            continue
        text = f"{looks()[name].name} is {_format.seconds(quantile(found, 0.5))} in the median"
        text += f" and {_format.seconds(quantile(found, 0.99))} at p99"
        if name in limits:
            text += f" ({_format.share(float(np.mean(found <= limits[name])))} within {_format.limit(limits[name])})"
        parts.append(text)
    return "; ".join(parts) + ", of the requests that ended well."

"""Lengths asked and got: prompt tokens, output tokens asked, output tokens that came."""

import numpy as np
import plotly.graph_objects as go

from harness.data.folder import Run
from harness.metrics.quantiles import quantile
from reports import _data
from reports.figures import _reduce
from reports.figures import _style as style

ORDER = 14
OF = "run"
SECTION = "fidelity"
TITLE = "Lengths asked and got"
_LOOKS = (
    ("prompt_tokens", "prompt", style.BLUE, "solid"),
    ("output_tokens_asked", "output asked", style.GREEN, "dash"),
    ("output_tokens", "output got", style.VERMILLION, "dot"),
)


def figure(run: Run) -> go.Figure | str:
    """Cumulative share of the requests against tokens on a log axis."""
    if run.requests.num_rows == 0:
        return _data.EMPTY
    drawn = style.new(360)
    ends: list[float] = []
    total = drawn_points = 0
    for column, name, color, dash in _LOOKS:
        found = np.sort(_data.column(run, column))
        kept = _reduce.ranks(len(found))
        ends += [float(v) for v in found[found > 0][[0, -1]]] if np.any(found > 0) else []
        drawn.add_scatter(
            x=found[kept], y=(kept + 1) / len(found) * 100.0, name=name, mode="lines",
            line={**style.line(color, dash), "shape": "hv"}, hovertemplate="%{x:,} tokens: %{y:.1f}%",
        )  # fmt: skip
        total, drawn_points = total + len(found), drawn_points + len(kept)
    drawn.update_layout(
        xaxis=style.log_axis("tokens (log scale)", ends), yaxis=style.axis("requests at or below (%)", range=[-2, 104])
    )
    return style.done(drawn, _finding(run), [_reduce.note(total, drawn_points, "values", _reduce.RANKS)])


def _finding(run: Run) -> str:
    prompt, asked, got = (_data.column(run, column) for column, *_ in _LOOKS)
    answered = _data.answered(run)
    text = (
        f"Prompts are {quantile(prompt, 0.5):,.0f} tokens in the median and {quantile(prompt, 0.99):,.0f} at p99, "
        f"outputs asked {quantile(asked, 0.5):,.0f} and {quantile(asked, 0.99):,.0f}; "
    )
    short = int(np.sum(got[answered] != asked[answered]))
    if not np.any(answered):
        return text + "no request was answered."
    return text + ("every answer has the length asked." if short == 0 else
                   f"{short:,} of {int(np.sum(answered)):,} answers differ from the length asked.")  # fmt: skip

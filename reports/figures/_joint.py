"""Prompt against output length, request by request, with the median output along the prompts."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from harness.metrics.quantiles import spearman
from reports.figures import _reduce
from reports.figures import _style as style
from reports.figures._traffic import Floats, Stream

MOST = 1200
PARTS = 20
FEW = "Prompt against output needs ten requests or more."
CONSTANT = "All prompts or all outputs have one length, so there is nothing to see in them together."
_LOOKS = ((style.BLUE, "circle", "solid"), (style.VERMILLION, "diamond-open", "dash"))


def figure(streams: Sequence[Stream]) -> go.Figure | str:
    """A point per request (an even sample of many), and per twentieth of the prompts the median of its outputs."""
    pairs = []
    for s in streams:
        if s.prompt_tokens is not None and s.output_tokens is not None:
            shown = (s.prompt_tokens > 0) & (s.output_tokens > 0)  # by a log axis
            if np.count_nonzero(shown) >= 10:
                pairs.append((s.name, s.prompt_tokens[shown], s.output_tokens[shown]))
    if not pairs:
        return FEW
    if np.ptp(pairs[0][1]) == 0 or np.ptp(pairs[0][2]) == 0:
        return CONSTANT
    drawn = style.new(440)
    for (name, prompt, output), (color, symbol, _) in zip(pairs, _LOOKS, strict=False):
        kept = np.linspace(0, len(prompt) - 1, min(MOST, len(prompt))).astype(np.int64)
        drawn.add_scatter(
            x=prompt[kept], y=output[kept], name=name, mode="markers",
            marker={"size": 3.5, "color": color, "symbol": symbol, "opacity": 0.45},
            hovertemplate="prompt %{x:,}, output %{y:,}",
        )  # fmt: skip
    for (name, prompt, output), (color, _, dash) in zip(pairs, _LOOKS, strict=False):
        order = np.argsort(prompt, kind="stable")
        parts = np.array_split(order, min(PARTS, len(order) // 5 or 1))  # of equally many requests
        at, middle = (np.array([np.median(tokens[part]) for part in parts]) for tokens in (prompt, output))
        drawn.add_scatter(
            x=at, y=middle, name=f"{name}, median output", mode="lines", line=style.line(color, dash, 3),
            hovertemplate="prompts near %{x:,.0f}: output %{y:,.0f}",
        )  # fmt: skip
    every = [np.concatenate([pair[i] for pair in pairs]) for i in (1, 2)]
    drawn.update_layout(
        xaxis=style.log_axis("prompt (tokens, log scale)", [every[0].min(), every[0].max()]),
        yaxis=style.log_axis("output (tokens, log scale)", [every[1].min(), every[1].max()]),
    )
    n = len(pairs[0][1])
    return style.done(drawn, _finding(pairs), [_reduce.note(n, min(MOST, n), "requests", "evenly chosen")])


def _finding(pairs: Sequence[tuple[str, Floats, Floats]]) -> str:
    found = [(name, spearman(prompt, output)) for name, prompt, output in pairs]
    texts = [f"{value:.2f}" + (f" ({name})" if len(found) > 1 else "") for name, value in found]
    how = "rise with" if found[0][1] > 0.1 else "fall with" if found[0][1] < -0.1 else "neither rise nor fall with"
    return f"Outputs {how} the length of the prompt, on the whole: rank correlation {' and '.join(texts)}."

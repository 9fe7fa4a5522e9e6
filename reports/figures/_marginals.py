"""Lengths of prompts and outputs: cumulative shares against tokens on a log axis."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from reports.figures import _reduce
from reports.figures import _style as style
from reports.figures._traffic import Floats, Stream

_LOOKS = (
    (("prompt", style.BLUE, "solid"), ("output", style.GREEN, "dash")),
    (("prompt", style.PURPLE, "dot"), ("output", style.VERMILLION, "dashdot")),
)


def figure(streams: Sequence[Stream]) -> go.Figure | str:
    """Prompt and output tokens of each stream."""
    drawn = style.new(360)
    known = [stream for stream in streams if stream.prompt_tokens is not None]
    ends: list[float] = []
    total = kept = 0
    for stream, looks in zip(known, _LOOKS, strict=False):
        for tokens, (kind, color, dash) in zip((stream.prompt_tokens, stream.output_tokens), looks, strict=True):
            if tokens is None:
                continue
            name = kind if len(known) == 1 else f"{kind}, {stream.name}"
            points, found = _add(drawn, tokens, name, style.line(color, dash))
            ends += [float(v) for v in found[found > 0][[0, -1]]] if np.any(found > 0) else []
            total, kept = total + len(found), kept + points
    drawn.update_layout(
        xaxis=style.log_axis("tokens (log scale)", ends), yaxis=style.axis("requests at or below (%)", range=[-2, 104])
    )
    return style.done(drawn, _finding(known[0]), [_reduce.note(total, kept, "values", _reduce.RANKS)])


def _add(drawn: go.Figure, tokens: Floats, name: str, line: dict[str, object]) -> tuple[int, Floats]:
    found = np.sort(tokens)
    kept = _reduce.ranks(len(found), 1000)
    drawn.add_scatter(
        x=found[kept], y=(kept + 1) / len(found) * 100.0, name=name, mode="lines", line={**line, "shape": "hv"},
        hovertemplate="%{x:,} tokens: %{y:.1f}%",
    )  # fmt: skip
    return len(kept), found


def _finding(stream: Stream) -> str:
    texts = []
    for kind, tokens in (("prompts", stream.prompt_tokens), ("outputs", stream.output_tokens)):
        if tokens is not None:
            middle, high = np.quantile(tokens, [0.5, 0.99])
            zero = int(np.sum(tokens <= 0))
            none = f" ({zero:,} are 0)" if zero else ""
            texts.append(f"{kind} are {middle:,.0f} tokens in the median and {high:,.0f} at p99{none}")
    text = ", ".join(texts)
    return text[:1].upper() + text[1:] + "."

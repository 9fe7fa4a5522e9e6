"""What the replicas did over time: batch size, prefill tokens, waiting requests and free blocks per step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from reports import _numbers
from reports.figures import _reduce
from reports.figures import _style as style

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from harness.folder import Run

ORDER = 10
TITLE = "Batches, queue and memory over time"
MISSING = (
    "This backend does not show its steps; --backend engine or --backend sim records batch size, queue and free blocks."
)
_PANELS = (
    ("decode_seqs", "decoding", "decoding<br>sequences", style.BLUE),
    ("prefill_tokens", "prefill", "prefill<br>tokens", style.VERMILLION),
    ("waiting", "waiting", "waiting<br>requests", style.PURPLE),
    ("free_blocks", "free blocks", "free<br>blocks", style.GREEN),
)
_REPLICAS = 4
_DASHES = ("solid", "dash", "dot", "dashdot")


def figure(run: Run) -> go.Figure | str:
    """Four panels over the time of the run, one point a step (the busiest and idlest steps when there are many)."""
    if run.steps is None:
        return MISSING
    if run.steps.num_rows == 0:
        return "No step was recorded: no request reached a batch, or the run was stopped before its first flush."
    steps = {name: run.steps.column(name).to_numpy() for name in run.steps.column_names}
    replicas = np.unique(steps["replica"])
    shown = replicas[:_REPLICAS]
    drawn = style.panels([0.28, 0.24, 0.24, 0.24], 640)
    kept = 0
    for i, replica in enumerate(shown):
        name = "" if len(replicas) == 1 else f", replica {replica}"
        kept += _draw(drawn, {k: v[steps["replica"] == replica] for k, v in steps.items()}, name, _DASHES[i])
    for row, (_, _, title, _) in enumerate(_PANELS, start=1):
        drawn.update_yaxes(style.axis(title, rangemode="tozero"), row=row, col=1)
        drawn.update_xaxes(style.axis("" if row < len(_PANELS) else "time since the start (s)"), row=row, col=1)
    total = int(np.sum(np.isin(steps["replica"], shown)))
    notes = [_reduce.note(total, kept, "steps", "the least and the greatest of each stretch")]
    if len(replicas) > len(shown):
        notes.append(f"The first {len(shown)} of {len(replicas)} replicas are drawn.")
    return style.done(drawn, _finding(steps), notes)


def _draw(drawn: go.Figure, steps: dict[str, np.ndarray], name: str, dash: str) -> int:
    order = np.argsort(steps["start_s"], kind="stable")
    columns = [steps[column][order] for column, *_ in _PANELS]
    kept = _reduce.extremes(columns)
    start = steps["start_s"][order][kept]
    hover = "%{x:.2f} s: %{y:,}"
    for row, ((_, short, _, color), values) in enumerate(zip(_PANELS, columns, strict=True), start=1):
        drawn.add_scatter(
            x=start, y=values[kept], row=row, col=1, name=short + name, mode="lines",
            line={**style.line(color, dash, 1.5), "shape": "hv"}, hovertemplate=hover,
        )  # fmt: skip
    return len(kept)


def _finding(steps: dict[str, np.ndarray]) -> str:
    span = steps["end_s"] - steps["start_s"]
    busy = float(np.sum(span))
    weights = span / busy if busy > 0 else np.full(len(span), 1.0 / len(span))
    decoding = float(np.sum(weights * steps["decode_seqs"]))
    queued = float(np.sum(weights * (steps["waiting"] > 0)))
    return (
        f"Over {_numbers.count(len(span), 'step')} a batch decoded {_numbers.number(decoding)} sequences in the mean "
        f"of the busy time and {int(np.max(steps['decode_seqs'])):,} at most; requests waited during "
        f"{_numbers.share(queued)} of it; free blocks never fell below {int(np.min(steps['free_blocks'])):,}."
    )

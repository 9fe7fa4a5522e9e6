"""What the replicas did over time: batch size, prefill tokens, waiting requests and free blocks per step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from reports import _numbers
from reports.figures import _gauges, _reduce
from reports.figures import _style as style

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from harness.folder import Run

ORDER = 10
OF = "run"
SECTION = "figures"
OVER_TIME = True
TITLE = "Batches, queue and memory over time"
MISSING = (
    "This backend does not show its steps; --backend engine or --backend sim records batch size, queue and free "
    "blocks, and of a remote server its own metrics show them, where it has some that are known."
)
_PANELS = (
    ("decode_seqs", "decoding", "decoding<br>sequences", style.BLUE),
    ("prefill_tokens", "prefill", "prefill<br>tokens", style.VERMILLION),
    ("waiting", "waiting", "waiting<br>requests", style.PURPLE),
    ("free_blocks", "free blocks", "free<br>blocks", style.GREEN),
)
_REPLICAS = 4
_RAW = 600
_STRETCHES = 300
_DASHES = ("solid", "dash", "dot", "dashdot")


def figure(run: Run) -> go.Figure | str:
    """Four panels over the time of the run: every step, or least, mean and greatest of stretches of them."""
    if run.steps is None:
        return _gauges.figure(run) or MISSING
    if run.steps.num_rows == 0:
        return "No step was recorded: no request reached a batch, or the run was stopped before its first flush."
    steps = {name: run.steps.column(name).to_numpy() for name in run.steps.column_names}
    replicas = np.unique(steps["replica"])
    drawn = style.panels([0.28, 0.24, 0.24, 0.24], 640)
    if len(replicas) == 1 and len(steps["start_s"]) > _RAW:
        notes = [_draw_stretches(drawn, steps)]
    else:
        notes = _draw_replicas(drawn, steps, replicas)
    for row, (_, _, title, _) in enumerate(_PANELS, start=1):
        drawn.update_yaxes(style.axis(title, rangemode="tozero"), row=row, col=1)
        drawn.update_xaxes(style.axis("" if row < len(_PANELS) else "time since the start (s)"), row=row, col=1)
    return style.done(drawn, _finding(steps), notes)


def _draw_replicas(drawn: go.Figure, steps: dict[str, np.ndarray], replicas: np.ndarray) -> list[str]:
    """A line per replica, through its steps or through the least and the greatest of stretches of them."""
    shown = replicas[:_REPLICAS]
    kept = 0
    for replica, dash in zip(shown, _DASHES, strict=False):
        name = "" if len(replicas) == 1 else f", replica {replica}"
        kept += _draw(drawn, {k: v[steps["replica"] == replica] for k, v in steps.items()}, name, dash)
    total = int(np.sum(np.isin(steps["replica"], shown)))
    some = f"The first {len(shown)} of {len(replicas)} replicas are drawn." if len(shown) < len(replicas) else ""
    return [_reduce.note(total, kept, "steps", "the least and the greatest of each stretch"), some]


def _draw(drawn: go.Figure, steps: dict[str, np.ndarray], name: str, dash: str) -> int:
    order = np.argsort(steps["start_s"], kind="stable")
    columns = [steps[column][order] for column, *_ in _PANELS]
    kept = _reduce.extremes(columns)
    start = steps["start_s"][order][kept]
    for row, ((_, short, _, color), values) in enumerate(zip(_PANELS, columns, strict=True), start=1):
        _line(drawn, row, start, values[kept], short + name, style.line(color, dash, 1.5))
    return len(kept)


def _draw_stretches(drawn: go.Figure, steps: dict[str, np.ndarray]) -> str:
    """Least to greatest as a band and the mean over time as a line, of stretches of equally many steps."""
    order = np.argsort(steps["start_s"], kind="stable")
    first = np.linspace(0, len(order), _STRETCHES + 1).astype(np.int64)[:-1]
    start = steps["start_s"][order][first]
    span = (steps["end_s"] - steps["start_s"])[order]
    time = np.maximum(np.add.reduceat(span, first), 1e-12)
    for row, (column, short, _, color) in enumerate(_PANELS, start=1):
        values = steps[column][order]
        edge = style.line(color, width=0)
        least, greatest = np.minimum.reduceat(values, first), np.maximum.reduceat(values, first)
        _line(drawn, row, start, least, f"{short}, least", edge, showlegend=False)
        _line(
            drawn,
            row,
            start,
            greatest,
            f"{short}, greatest",
            edge,
            showlegend=False,
            fill="tonexty",
            fillcolor=style.faint(color),
        )
        mean = np.add.reduceat(values * span, first) / time
        _line(drawn, row, start, mean, f"{short}, mean", style.line(color, width=1.5))
    return f"{_STRETCHES} stretches of {len(order):,} steps are drawn: least to greatest as a band, the mean as a line."


def _line(
    drawn: go.Figure, row: int, x: np.ndarray, y: np.ndarray, name: str, line: dict[str, object], **more: object
) -> None:
    hover = "%{x:.2f} s: %{y:,.4~g}"
    drawn.add_scatter(
        x=x, y=y, row=row, col=1, name=name, mode="lines", line={**line, "shape": "hv"}, hovertemplate=hover, **more
    )


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

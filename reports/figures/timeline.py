"""What the replicas did over time: batch size, prefill tokens, waiting requests, KV memory, preemptions."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go

from harness.data.folder import Run
from reports import _data, _format
from reports._counted import Stretches
from reports.figures import _gauges, _reduce
from reports.figures import _style as style
from reports.figures._rate import stretch

ORDER = 10
OF = "run"
SECTION = "figures"
OVER_TIME = True
TITLE = "Batches, queue and memory over time"
MISSING = (
    "This backend does not show its steps; --backend engine or --backend sim records batch size, queue and free "
    "blocks, and of a remote server its own metrics show them, where it has some that are known."
)
_FREE = "free_blocks"


class Panel(NamedTuple):
    """A column of the steps: short name, title of its axis, colour, and what to draw of its values."""

    column: str
    short: str
    title: str
    color: str
    shown: Callable[[np.ndarray], np.ndarray] = np.asarray


_REPLICAS = 4
_RAW = 600
_STRETCHES = 300
_DASHES = ("solid", "dash", "dot", "dashdot")


def figure(run: Run) -> go.Figure | str:
    """Panels over the time of the run: every step, or least, mean and greatest of stretches of them."""
    if not _data.has_steps(run):
        return _gauges.figure(run) or MISSING
    found = _data.stretches(run)
    if found is None:
        return "No step was recorded: no request reached a batch, or the run was stopped before its first flush."
    told = run.info.backend.get("kv_blocks")
    blocks = told if isinstance(told, int) and told > 0 else None  # of KV memory of one replica
    panels = _panels(blocks)
    again_s = _preempted_s(run)
    rows = len(panels) + bool(len(again_s))
    drawn = style.panels([1 / rows] * rows, 160 * rows)
    if (steps := _single_steps(run)) is not None:
        notes = _draw_replicas(drawn, panels, steps)
    else:
        notes = [_draw_stretches(drawn, panels, found)]
    if len(again_s):
        notes.append(_preemptions(drawn, rows, again_s, _data.end_s(run)))
    for row in range(1, rows + 1):
        drawn.update_xaxes(style.axis("" if row < rows else "time since the start (s)"), row=row, col=1)
    return style.done(drawn, _finding(found, blocks, len(again_s)), notes)


def _single_steps(run: Run) -> dict[str, np.ndarray] | None:
    """The steps, where they are few or of several replicas; None of a large run, whose steps are only counted."""
    if run.steps is None:
        return None
    steps = {name: run.steps.column(name).to_numpy() for name in run.steps.column_names}
    return steps if len(steps["replica"]) <= _RAW or np.ptp(steps["replica"]) > 0 else None


def _panels(blocks: int | None) -> list[Panel]:
    memory = Panel(_FREE, "free blocks", "free<br>blocks", style.GREEN)
    if blocks is not None:
        memory = Panel(
            _FREE, "KV memory", "KV memory<br>in use (%)", style.GREEN, lambda free: (1.0 - free / blocks) * 100.0
        )
    return [
        Panel("decode_seqs", "decoding", "decoding<br>sequences", style.BLUE),
        Panel("prefill_tokens", "prefill", "prefill<br>tokens", style.VERMILLION),
        Panel("waiting", "waiting", "waiting<br>requests", style.PURPLE),
        memory,
    ]


def _preempted_s(run: Run) -> np.ndarray:
    """When the requests that were preempted ended (s), once for each time that they were."""
    times = np.nan_to_num(_data.column(run, "preemptions")).astype(np.int64)
    ended = np.where(times > 0, _data.column(run, "scheduled_s") + _data.metric(run, "e2e"), np.nan)
    found = np.repeat(ended, times)
    ended_well: np.ndarray = found[np.isfinite(found)]
    return ended_well


def _preemptions(drawn: go.Figure, row: int, at_s: np.ndarray, end_s: float) -> str:
    width = stretch(end_s, len(at_s), _STRETCHES // 3)
    counts = np.bincount((at_s // width).astype(np.int64))
    edges = np.arange(len(counts) + 1) * width
    line = style.line(style.OCHRE, width=1.5)
    _line(drawn, row, edges, np.append(counts, counts[-1]), "preemptions", line)
    drawn.update_yaxes(style.axis("preemptions<br>(count)", rangemode="tozero"), row=row, col=1)
    return f"Preemptions are counted per {_format.limit(width)}, when the preempted request ended."


def _draw_replicas(drawn: go.Figure, panels: list[Panel], steps: dict[str, np.ndarray]) -> list[str]:
    """A line per replica, through its steps or through the least and the greatest of stretches of them."""
    replicas = np.unique(steps["replica"])
    shown = replicas[:_REPLICAS]
    kept = 0
    for replica, dash in zip(shown, _DASHES, strict=False):
        name = "" if len(replicas) == 1 else f", replica {replica}"
        kept += _draw(drawn, panels, {k: v[steps["replica"] == replica] for k, v in steps.items()}, name, dash)
    total = int(np.sum(np.isin(steps["replica"], shown)))
    some = f"The first {len(shown)} of {len(replicas)} replicas are drawn." if len(shown) < len(replicas) else ""
    return [_reduce.note(total, kept, "steps", "the least and the greatest of each stretch"), some]


def _draw(drawn: go.Figure, panels: list[Panel], steps: dict[str, np.ndarray], name: str, dash: str) -> int:
    order = np.argsort(steps["start_s"], kind="stable")
    columns = [panel.shown(steps[panel.column][order]) for panel in panels]
    kept = _reduce.extremes(columns)
    start = steps["start_s"][order][kept]
    for row, (panel, values) in enumerate(zip(panels, columns, strict=True), start=1):
        _line(drawn, row, start, values[kept], panel.short + name, style.line(panel.color, dash, 1.5))
        drawn.update_yaxes(style.axis(panel.title, rangemode="tozero"), row=row, col=1)
    return len(kept)


def _draw_stretches(drawn: go.Figure, panels: list[Panel], found: Stretches) -> str:
    """Least to greatest as a band and the mean over time as a line, of stretches of equally many steps."""
    for row, panel in enumerate(panels, start=1):
        edge = style.line(panel.color, width=0)
        ends = [panel.shown(of[panel.column]) for of in (found.least, found.greatest)]
        least, greatest = np.minimum(*ends), np.maximum(*ends)
        band = {"fill": "tonexty", "fillcolor": style.faint(panel.color), "showlegend": False}
        _line(drawn, row, found.start_s, least, f"{panel.short}, least", edge, showlegend=False)
        _line(drawn, row, found.start_s, greatest, f"{panel.short}, greatest", edge, **band)
        mean = panel.shown(found.mean[panel.column])
        _line(drawn, row, found.start_s, mean, f"{panel.short}, mean", style.line(panel.color, width=1.5))
        drawn.update_yaxes(style.axis(panel.title, rangemode="tozero"), row=row, col=1)
    each = -(-found.steps // len(found.start_s))
    return (
        f"{len(found.start_s)} stretches of about {each:,} steps are drawn: least to greatest as a band, the mean as a "
        "line."
    )


def _line(
    drawn: go.Figure, row: int, x: np.ndarray, y: np.ndarray, name: str, line: dict[str, object], **more: object
) -> None:
    hover = "%{x:.2f} s: %{y:,.4~g}"
    drawn.add_scatter(
        x=x, y=y, row=row, col=1, name=name, mode="lines", line={**line, "shape": "hv"}, hovertemplate=hover, **more
    )


def _finding(found: Stretches, blocks: int | None, preemptions: int) -> str:
    fewest = found.fewest[_FREE]
    memory = f"free blocks never fell below {fewest:,}"
    if blocks is not None:
        memory = f"{_format.share(1.0 - fewest / blocks)} of the KV memory was in use at most"
    again = f"; requests were preempted {_format.count(preemptions, 'time')}" if preemptions else ""
    return (
        f"Over {_format.count(found.steps, 'step')} a batch decoded {_format.number(found.means['decode_seqs'])} "
        f"sequences in the mean of the busy time and {found.most['decode_seqs']:,} at most; a batch left "
        f"requests waiting during {_format.share(found.waiting_share)} of it; {memory}{again}."
    )

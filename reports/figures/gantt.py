"""Single requests as bars of their phases: the worst ones from when they were due, and neighbours over the time."""

from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go

from harness.data.folder import Run
from harness.data.lists import number
from reports import _data, _format, _stages
from reports.figures import _phases
from reports.figures import _style as style

ORDER = 12
OF = "run"
SECTION = "figures"
TITLE = "Single requests, phase by phase"
NONE = (
    "No request ended well with the times of its sending, first and last token, of which phases are told; the counts "
    "by status and the errors say more."
)
WORST = 20
NEIGHBOURS = 20
_THIN = 0.002
"""Stalls of a smaller part of the picture's width are not drawn: they would be thinner than a pixel."""

_MOST_STALLS = 1500


class Chosen(NamedTuple):
    """Some requests (requests,): names, replicas, per phase when it began and ended, last token, what befell them.

    All times are in seconds of the run; a stall is here the wait between prefill and decode.
    """

    names: list[str]
    replica: np.ndarray
    due: np.ndarray
    phases: dict[str, tuple[np.ndarray, np.ndarray]]
    last: np.ndarray
    preempted: np.ndarray
    missed: np.ndarray


class Bars(NamedTuple):
    """Intervals in seconds of the run, and which of the requests each is of."""

    start: np.ndarray
    end: np.ndarray
    which: np.ndarray


def figure(run: Run) -> go.Figure | str:
    """Bars of the worst requests above those of neighbours in the middle of the run; preempted and missed marked."""
    if run.requests.num_rows == 0:
        return _data.EMPTY
    stages = _stages.of(run)
    if stages is None:
        return NONE
    known = np.flatnonzero(stages.known)
    at_worst, by = _worst(run, known)
    # neighbours: requests that were due one after the other, in the middle of the run
    order = known[np.argsort(_data.column(run, "scheduled_s")[known], kind="stable")]
    at_near = order[max(0, (len(order) - NEIGHBOURS) // 2) :][:NEIGHBOURS]
    rows = len(at_worst) + len(at_near)
    plot = 90 + 15 * rows  # pixels of the panels and of what stands between them
    drawn = style.panels([len(at_worst), len(at_near)], 100 + plot, shared=False, spacing=75 / plot)
    alone = _stages.prompts_alone(run) if stages.apart else {}
    shown: set[str] = set()
    worst, near = _chosen(run, at_worst, stages), _chosen(run, at_near, stages)
    left = _panel(drawn, 1, worst, worst.due, alone, shown)
    left += _panel(drawn, 2, near, np.zeros(len(near.due)), alone, shown)
    drawn.update_layout(barmode="overlay", bargap=0.25)
    drawn.update_xaxes(style.axis("time since the request was due (s)"), row=1, col=1)
    drawn.update_xaxes(style.axis("time since the start (s)"), row=2, col=1)
    how = f"Above: {_format.count(len(at_worst), 'request')}, the worst first; below: "
    how += f"{_format.count(len(at_near), 'neighbour')} from the middle of the run; all of those that ended well."
    hidden = f"{_format.count(left, 'stall')} too short to see {'is' if left == 1 else 'are'} not drawn."
    notes = [how, "" if stages.apart else _stages.UNTOLD, hidden if left else ""]
    return style.done(drawn, _finding(run, stages, at_worst, by), notes, _table(stages, at_worst, at_near, worst, near))


def _worst(run: Run, known: np.ndarray) -> tuple[np.ndarray, str]:
    """Indices of the worst requests, the worst first, and what is bad about them."""
    margins = _data.margins(run)
    bad = _data.joint(margins) if margins else _data.metric(run, "e2e")
    order = known[np.argsort(-bad[known], kind="stable")[:WORST]]
    if not margins:
        return order, "took longest"
    return order, "exceed their bounds most" if bad[order[0]] > 1.0 else "come nearest to their bounds"


def _chosen(run: Run, at: np.ndarray, stages: _stages.Stages) -> Chosen:
    rows = run.requests.take(at)
    due, sent, replica, preemptions = (
        number(rows, name) for name in ("scheduled_s", "sent_s", "replica", "preemptions")
    )
    first, last = (due + _data.metric(run, name)[at] for name in ("ttft", "e2e"))
    begun, done, taken, given, decodes = (number(rows, name) for name in _STAMPS)
    apart = {
        _stages.LATENESS: (due, sent),
        _stages.QUEUE: (sent, begun),
        _stages.PREFILL: (begun, done),
        _stages.HANDOFF: (taken, given),
        _stages.DECODE: (decodes, last),
        _stages.STALL: (done, decodes),
    }
    together = {_stages.LATENESS: (due, sent), _stages.FIRST: (sent, first), _stages.DECODE: (first, last)}
    margins = _data.margins(run)
    missed = _data.joint(margins)[at] > 1.0 if margins else np.zeros(len(at), bool)
    names = [f"{n:.0f}" for n in number(rows, "request_id")]
    return Chosen(names, replica, due, apart if stages.apart else together, last, preemptions > 0, missed)


_STAMPS = ("prefill_start_s", "prefill_end_s", "handoff_start_s", "handoff_end_s", "decode_start_s")


def _panel(
    drawn: go.Figure, row: int, chosen: Chosen, since_s: np.ndarray, alone: dict[int, tuple[np.ndarray, np.ndarray]],
    shown: set[str],
) -> int:  # fmt: skip
    """Draw the requests, one below the other; returns how many stalls are too short to see."""
    width = float(np.max(chosen.last - since_s) - np.min(chosen.due - since_s))
    bars = {}
    for key, (start, end) in chosen.phases.items():
        real = np.flatnonzero(end - start > 0)
        bars[key] = Bars(start[real], end[real], real)
    left = 0
    if _stages.STALL in bars:
        stalls, left = _stalls(chosen, alone, width * _THIN)
        bars[_stages.STALL] = Bars(*map(np.concatenate, zip(bars[_stages.STALL], stalls, strict=True)))
    for key, found in bars.items():
        if len(found.start):
            _add(drawn, row, key, found, chosen.names, since_s, legend=key not in shown)
            shown.add(key)
    _marks(drawn, row, chosen, chosen.last - since_s, 0.012 * width, shown)
    drawn.update_yaxes(
        style.axis("request (id)", type="category", categoryorder="array", categoryarray=chosen.names[::-1],
                   showgrid=False, tickfont={"size": 10}, dtick=1, range=[-0.6, len(chosen.names) - 0.4]),
        row=row, col=1,
    )  # fmt: skip
    return left


def _stalls(chosen: Chosen, alone: dict[int, tuple[np.ndarray, np.ndarray]], thin_s: float) -> tuple[Bars, int]:
    """Steps of prompts alone within the decodes of the requests, and how many of them are too short to see."""
    nothing = np.empty(0)
    parts = [Bars(nothing, nothing, np.empty(0, np.int64))]
    for i, (begun, last) in enumerate(zip(*chosen.phases[_stages.DECODE], strict=True)):
        start, end = alone.get(int(np.nan_to_num(chosen.replica[i], nan=-1)), (nothing, nothing))
        if np.isfinite(begun):
            inside = slice(*np.searchsorted(start, [begun, last]))
            parts.append(Bars(start[inside], end[inside], np.full(len(start[inside]), i)))
    found = Bars(*map(np.concatenate, zip(*parts, strict=True)))
    lengths = found.end - found.start
    kept = np.sort(np.argsort(-lengths, kind="stable")[:_MOST_STALLS])
    kept = kept[lengths[kept] >= thin_s]
    return Bars(*(column[kept] for column in found)), len(lengths) - len(kept)


def _add(
    drawn: go.Figure, row: int, key: str, found: Bars, names: list[str], since_s: np.ndarray, *, legend: bool
) -> None:
    look = _phases.LOOKS[key]
    drawn.add_bar(
        y=[names[i] for i in found.which.tolist()], x=found.end - found.start, base=found.start - since_s[found.which],
        orientation="h", row=row, col=1, name=look.name, legendgroup=key, showlegend=legend,
        marker=_phases.marker(key), meta=style.MARKS, hovertemplate=f"%{{y}}: {look.name} %{{x:.4r}} s",
    )  # fmt: skip


def _marks(drawn: go.Figure, row: int, chosen: Chosen, end: np.ndarray, aside: float, shown: set[str]) -> None:
    """A triangle behind the requests that were preempted, a cross behind those that missed the SLO."""
    looks = (
        ("preempted", chosen.preempted, "triangle-left", style.PURPLE),
        ("missed the SLO", chosen.missed, "x", style.VERMILLION),
    )
    for name, which, symbol, color in looks:
        ours = np.flatnonzero(which)
        places = 1 + (chosen.preempted[ours] & (symbol == "x"))
        if len(ours):
            drawn.add_scatter(
                x=end[ours] + aside * places, y=[chosen.names[i] for i in ours.tolist()], row=row, col=1,
                mode="markers", name=name, legendgroup=name, showlegend=name not in shown,
                hovertemplate=f"%{{y}}: {name}", meta=style.MARKS, marker={"symbol": symbol, "size": 8, "color": color},
            )  # fmt: skip
            shown.add(name)


def _table(
    stages: _stages.Stages, at_worst: np.ndarray, at_near: np.ndarray, worst: Chosen, near: Chosen
) -> style.Table:
    """The phases of the requests in seconds, the upper panel first."""
    used = [i for i in range(len(stages.keys)) if np.any(stages.seconds[i][np.concatenate([at_worst, at_near])] > 0)]
    names = [_phases.LOOKS[stages.keys[i]].name for i in used]
    heads = ["panel", "request (id)", "due at (s)", *(f"{name} (s)" for name in names), "E2E (s)", "marked"]
    rows = [
        [panel, name, _format.number(float(due)), *(_format.number(float(stages.seconds[i][at])) for i in used),
         _format.number(float(stages.seconds[:, at].sum())),
         ", ".join(text for text, true in (("preempted", again), ("missed the SLO", missed)) if true) or "-"]
        for panel, ats, found in (("upper", at_worst, worst), ("lower", at_near, near))
        for at, name, due, again, missed in zip(ats, found.names, found.due, found.preempted, found.missed, strict=True)
    ]  # fmt: skip
    return heads, rows, len(rows), f"all {len(rows)} requests drawn, with the stalls in full"


def _finding(run: Run, stages: _stages.Stages, worst: np.ndarray, by: str) -> str:
    first = int(worst[0])
    seconds = stages.seconds[:, first]
    took = [(seconds[i], _phases.LOOKS[key].name) for i, key in enumerate(stages.keys) if seconds[i] > 0]
    parts = ", ".join(f"{name} {_format.seconds(float(value))}" for value, name in took)
    row = run.requests.slice(first, 1)
    tokens = _format.count(number(row, "prompt_tokens")[0], "token")
    many = int(np.sum(number(run.requests.take(worst), "preemptions") > 0))
    again = f"; {many} of these {len(worst)} were preempted" if many else ""
    return (
        f"Of the requests that {by}, the worst, {number(row, 'request_id')[0]:.0f} with a prompt of {tokens}, took "
        f"{_format.seconds(float(np.sum(seconds)))}: {parts}{again}."
    )

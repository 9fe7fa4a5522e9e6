"""Single requests as bars of their phases: the worst ones from when they were due, and neighbours over the time."""

from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go

from harness.data.folder import Run
from harness.data.lists import number
from reports import _data, _format, _stages
from reports.figures import style
from reports.figures.stages import NO_STAMPS, PHASES
from reports.figures.style import Look

WORST = 20
NEIGHBOURS = 20
_THIN = 0.002
"""Stalls of a smaller part of the picture's width are not drawn: they would be thinner than a pixel."""

_MOST_STALLS = 1500
_STAMPS = ("prefill_start_s", "prefill_end_s", "handoff_start_s", "handoff_end_s", "decode_start_s")
_PREEMPTED, _MISSED = Look(style.PURPLE, symbol="triangle-left"), Look(style.VERMILLION, symbol="x")

Steps = dict[int, tuple[np.ndarray, np.ndarray]]
"""Replica -> when its steps of prompts alone began and ended (s)."""


class Chosen(NamedTuple):
    """Some requests (requests,): where they stand in the table, names, replicas, phases, last token, what befell them.

    All times are in seconds of the run; a stall is here the wait between prefill and decode.
    """

    at: np.ndarray
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


def gantt(run: Run) -> go.Figure | str:
    """Bars of the worst requests above those of neighbours in the middle of the run; preempted and missed marked."""
    if run.requests.num_rows == 0:
        return _data.EMPTY
    found = _stages.of(run)
    if found is None:
        return NO_STAMPS
    known = np.flatnonzero(found.known)
    margins = _data.margins(run)
    bad = _data.joint(margins) if margins else _data.metric(run, "e2e")
    worst = _chosen(run, known[np.argsort(-bad[known], kind="stable")[:WORST]], found)
    # neighbours: requests that were due one after the other, in the middle of the run
    order = known[np.argsort(_data.column(run, "scheduled_s")[known], kind="stable")]
    near = _chosen(run, order[max(0, (len(order) - NEIGHBOURS) // 2) :][:NEIGHBOURS], found)
    plot = 90 + 15 * (len(worst.at) + len(near.at))  # pixels of the panels and of what stands between them
    drawn = style.panels([len(worst.at), len(near.at)], 100 + plot, shared=False, spacing=75 / plot)
    alone = _stages.prompts_alone(run) if found.apart else {}
    shown: set[str] = set()
    left = _panel(drawn, 1, worst, worst.due, alone, shown)
    left += _panel(drawn, 2, near, np.zeros(len(near.due)), alone, shown)
    drawn.update_layout(barmode="overlay", bargap=0.25)
    drawn.update_xaxes(style.axis("time since the request was due (s)"), row=1, col=1)
    drawn.update_xaxes(style.axis("time since the start (s)"), row=2, col=1)
    by = "of those that took longest" if not margins else "by how much of their bounds they used"
    above = f"Above: {_format.count(len(worst.at), 'request')}, the worst first, {by}"
    notes = [
        f"{above}; below: {len(near.at)} neighbours from the middle of the run; all of those that ended well.",
        "" if found.apart else _stages.note(found.keys),
        f"Stalls too short to see, which are not drawn: {left:,}." if left else "",
    ]
    first = int(worst.at[0])
    seconds = found.seconds[:, first]
    took = [f"{PHASES[key].name} {_format.seconds(float(seconds[i]))}" for i, key in enumerate(found.keys)
            if seconds[i] > 0]  # fmt: skip
    prompt = f"{number(run.requests.slice(first, 1), 'prompt_tokens')[0]:,.0f} prompt tokens"
    many = int(np.sum(worst.preempted))
    values = {f"Worst request ({worst.names[0]})": [prompt, f"E2E {_format.seconds(float(seconds.sum()))}", *took]}
    if many:
        values["preempted"] = [f"{many} of these {len(worst.at)}"]
    return style.done(drawn, style.finding(values), notes, _table(found, worst, near))


def _chosen(run: Run, at: np.ndarray, found: _stages.Stages) -> Chosen:
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
    return Chosen(at, names, replica, due, apart if found.apart else together, last, preemptions > 0, missed)


def _panel(
    drawn: go.Figure, row: int, chosen: Chosen, since_s: np.ndarray, alone: Steps, shown: set[str]
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
            phase = PHASES[key]
            drawn.add_bar(
                y=[chosen.names[i] for i in found.which.tolist()], x=found.end - found.start,
                base=found.start - since_s[found.which], orientation="h", row=row, col=1, name=phase.name,
                legendgroup=key, showlegend=key not in shown, marker=phase.marker, meta=style.MARKS,
                hovertemplate=f"%{{y}}: {phase.name} %{{x:.4r}} s",
            )  # fmt: skip
            shown.add(key)
    # behind the bars, a cross beside a triangle where a request has both
    aside = 1 + (chosen.preempted & chosen.missed)
    for name, which, places, look in (
        ("preempted", chosen.preempted, np.ones_like(aside), _PREEMPTED),
        ("missed the SLO", chosen.missed, aside, _MISSED),
    ):
        ours = np.flatnonzero(which)
        if len(ours):
            x = (chosen.last - since_s + 0.012 * width * places)[ours]
            style.curve(
                drawn, x, [chosen.names[i] for i in ours.tolist()], name, look, f"%{{y}}: {name}", mode="markers",
                row=row, legendgroup=name, showlegend=name not in shown, meta=style.MARKS,
            )  # fmt: skip
            shown.add(name)
    y = style.axis("request (id)", type="category", categoryorder="array", categoryarray=chosen.names[::-1],
                   showgrid=False, tickfont={"size": 10}, dtick=1, range=[-0.6, len(chosen.names) - 0.4])  # fmt: skip
    drawn.update_yaxes(y, row=row, col=1)
    return left


def _stalls(chosen: Chosen, alone: Steps, thin_s: float) -> tuple[Bars, int]:
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


def _table(found: _stages.Stages, worst: Chosen, near: Chosen) -> style.Table:
    """The phases of the requests in seconds, the upper panel first."""
    every = np.concatenate([worst.at, near.at])
    used = [i for i in range(len(found.keys)) if np.any(found.seconds[i][every] > 0)]
    names = [PHASES[found.keys[i]].name for i in used]
    heads = ["panel", "request (id)", "due at (s)", *(f"{name} (s)" for name in names), "E2E (s)", "marked"]
    rows = []
    for panel, ours in (("upper", worst), ("lower", near)):
        for at, name, due, again, missed in zip(
            ours.at, ours.names, ours.due, ours.preempted, ours.missed, strict=True
        ):
            seconds = found.seconds[:, at]
            marks = ", ".join(text for text, true in (("preempted", again), ("missed the SLO", missed)) if true)
            numbers = map(_format.number, map(float, (due, *seconds[used], seconds.sum())))
            rows.append([panel, name, *numbers, marks or "-"])
    return heads, rows, len(rows), f"all {len(rows)} requests drawn, with the stalls in full"

"""Where the time of the requests of a run went, and which phase made them miss the SLO.

After figure 10 of DistServe (OSDI 2024).
"""

from typing import NamedTuple

import numpy as np

from harness.data.folder import Run
from harness.metrics.stages import (
    CAP_WAIT,
    DECODE,
    FRONT,
    HANDOFF,
    LATENESS,
    PREEMPTED,
    PREFILL,
    QUEUE,
    QUEUE_PREFILL,
    STALL,
    UNKNOWN,
    in_pieces,
)
from harness.validity.server_metrics import queue_shares
from reports import _data, _format
from reports._data import NAMES, RULE, note
from reports._format import in_figure
from reports.figures import style
from reports.figures.drawing import Drawing

NO_STAMPS = (
    "No request ended well with the times of its sending, first and last token, of which phases are known; the counts "
    "by status and the errors say more."
)
UNBOUND = "The run had no bound on single requests; give --slo ttft=0.25,tpot=0.1 to see what makes requests miss it."
NO_MISS = (
    "No request missed the SLO, so there are no causes to tell apart; a higher --rate or a tighter --slo shows them."
)
_BEFORE_FIRST = (CAP_WAIT, LATENESS, FRONT, QUEUE, QUEUE_PREFILL, PREFILL)
_GROUPS = (("fastest half", 0.0, 0.5), ("next 40%", 0.5, 0.9), ("next 9%", 0.9, 0.99), ("slowest 1%", 0.99, 1.0))
_LEAST = 100
"""From this many requests on they are grouped, so that one stands for the slowest hundredth."""


class Phase(NamedTuple):
    """Name, colour, and the hatch that says the same as the colour."""

    name: str
    color: str
    hatch: str

    @property
    def marker(self) -> dict[str, object]:
        """The `marker` of bars: hatched in their colour on a faint ground of the same."""
        pattern = {"shape": self.hatch, "size": 6, "solidity": 0.35, "fgcolor": self.color, "fillmode": "replace"}
        ground = {"bgcolor": style.faint(self.color)} if self.hatch else {}
        return {"color": self.color, "pattern": {**pattern, **ground}, "line": {"color": self.color, "width": 1}}


PHASES = {
    CAP_WAIT: Phase(NAMES[CAP_WAIT], style.GREY, "x"),
    LATENESS: Phase(NAMES[LATENESS], style.GREY, "."),
    FRONT: Phase(NAMES[FRONT], style.OCHRE, "-"),
    QUEUE: Phase(NAMES[QUEUE], style.PURPLE, "/"),
    QUEUE_PREFILL: Phase(NAMES[QUEUE_PREFILL], style.VERMILLION, "/"),
    PREFILL: Phase(NAMES[PREFILL], style.VERMILLION, ""),
    HANDOFF: Phase(NAMES[HANDOFF], style.GREEN, "|"),
    STALL: Phase(NAMES[STALL], style.OCHRE, "x"),
    DECODE: Phase(NAMES[DECODE], style.BLUE, "\\"),
}
_CAUSES = {
    PREEMPTED: Phase(NAMES[PREEMPTED], style.GREEN, "+"),
    UNKNOWN: Phase(NAMES[UNKNOWN], style.GREY, "-"),
}


def cause_of(key: str) -> Phase:
    """A cause of misses: a phase, preemption, or how the request failed."""
    return PHASES.get(key) or _CAUSES.get(key) or Phase(f"failed ({in_figure(key)})", style.GREY, "-")


def stages(run: Run) -> Drawing | str:
    """Bars of mean seconds before the first token, above bars of percent of the whole time, stacked by phase."""
    if run.requests.num_rows == 0:
        return _data.EMPTY
    if not _data.stages(run).times:
        return NO_STAMPS
    keys, mean_s, percent, groups = _by_group(run)
    names = [f"{name.replace(' ', '<br>')}<br>n = {count:,}" for name, count in groups.items()]
    drawn = style.panels([0.5, 0.5], 600, spacing=0.08)
    for i, key in enumerate(keys):
        if any(percent[i] > 0):
            if key in _BEFORE_FIRST:
                _bars(drawn, 1, names, mean_s[i].tolist(), key, " s")
            _bars(drawn, 2, names, percent[i].tolist(), key, "%")
    drawn.layout.update(barmode="stack", bargap=0.35)
    y = style.axis("mean time before<br>the first token (s)", rangemode="tozero")
    style.axes(drawn, style.axis("", type="category"), y, 1)
    x = style.axis("requests by their TTFT (n = requests)", type="category")
    style.axes(drawn, x, style.axis("time of a request (%)", range=[0, 100.5]), 2)
    ranked = sorted(_data.stages(run).times.items(), key=lambda item: -item[1].share)
    values = {"All time of the requests": [
        f"{PHASES[key].name} {_format.share(time.share)}" for key, time in ranked if time.share >= 0.0005
    ]}  # fmt: skip
    return style.done(drawn, style.finding(values), [
        "Percentages are means of those of the single requests.",
        note(keys),
    ])  # fmt: skip


def _bars(drawn: Drawing, row: int, names: list[str], values: list[float], key: str, unit: str) -> None:
    phase = PHASES[key]
    drawn.trace(
        "bar", x=names, y=values, row=row, name=phase.name, legendgroup=key, showlegend=unit == "%",
        marker=phase.marker, hovertemplate=f"{phase.name}: %{{y:.3r}}{unit}",
    )  # fmt: skip


def _by_group(run: Run) -> tuple[tuple[str, ...], np.ndarray, np.ndarray, dict[str, int]]:
    """The stages; (stages, groups) mean seconds, and means of the percentages of the single requests, by groups of
    requests of like TTFT; the requests of each group."""
    seen = _data.seen(run)
    known = np.concatenate([part.known for _, part in in_pieces(run, seen, queue_shares)])
    # stable, so that requests of equal TTFT fall into the same groups on every platform
    order = np.flatnonzero(known)[np.argsort(_data.metric(run, "ttft")[known], kind="stable")]
    groups = {"all requests": order}
    if len(order) >= _LEAST:
        groups = {name: order[round(a * len(order)) : round(b * len(order))] for name, a, b in _GROUPS}
    group = np.zeros(len(known), np.int8)
    for number, members in enumerate(groups.values()):
        group[members] = number
    keys: tuple[str, ...] = ()
    sums = np.zeros(1)  # (2, stages, groups)
    for rows, part in in_pieces(run, seen, queue_shares):
        keys, seconds, inside = part.keys, part.of_known(), group[rows][part.known]
        percent = seconds * (100.0 / np.maximum(seconds.sum(axis=0), 1e-12))
        sums = sums + [[np.bincount(inside, row, len(groups)) for row in each] for each in (seconds, percent)]
    counts = {name: len(members) for name, members in groups.items()}
    mean_s, mean_percent = sums / np.maximum(1, list(counts.values()))
    return keys, mean_s, mean_percent, counts


def misses(run: Run) -> Drawing | str:
    """Bars of the share of the misses that each cause has (%), the greatest first."""
    if run.requests.num_rows == 0:
        return _data.EMPTY
    stages = _data.stages(run)
    causes = stages.misses
    if not causes:
        return UNBOUND if causes is None else NO_MISS
    total = sum(causes.values())
    drawn = style.new(130 + 42 * len(causes))
    names = [cause_of(key).name for key in causes]
    shares = [_format.share(count / total) for count in causes.values()]
    drawn.trace(
        "bar", name="misses", x=[round(count / total * 100.0, 1) for count in causes.values()], y=names,
        orientation="h",
        text=[f"{share} ({count:,})" for share, count in zip(shares, causes.values(), strict=True)],
        textposition="outside", textfont={"size": 12}, cliponaxis=False,
        marker={"color": style.faint(style.VERMILLION), "line": {"color": style.VERMILLION, "width": 1.5}},
        hovertemplate="%{y}: %{text}",
    )  # fmt: skip
    room = 1.35 * max(causes.values()) / total * 100.0  # for the text behind the longest bar
    drawn.layout.update(showlegend=False, bargap=0.35, margin={**drawn.layout["margin"], "r": style.BESIDE})
    style.axes(
        drawn,
        style.axis("share of the requests that missed (%)", range=[0, room], tickvals=[0, 20, 40, 60, 80, 100]),
        style.axis("cause", type="category", categoryorder="array", categoryarray=names[::-1]),
    )
    values = {f"{total:,} of {run.requests.num_rows:,} requests missed the SLO":
              [f"{cause} {share}" for cause, share in zip(names, shares, strict=True)][:4]}  # fmt: skip
    keys = tuple(stages.times)
    source = "" if not keys or STALL in keys else note(keys)
    return style.done(drawn, style.finding(values), [RULE, source])

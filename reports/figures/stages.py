"""Where the time of requests went and which phase made them miss the SLO: of a run, and of systems over the rate.

After figure 10 of DistServe (OSDI 2024).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
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
    of,
)
from harness.validity.server_metrics import queue_shares
from reports import _data, _format
from reports._data import NAMES, RULE, note
from reports._format import in_figure
from reports.figures import style, systems
from reports.figures.drawing import Drawing
from reports.figures.systems import Group
from reports.study import GONE, Study, phases, samples_of

NO_STAMPS = (
    "No request ended well with the times of its sending, first and last token, of which phases are known; the counts "
    "by status and the errors say more."
)
UNBOUND = "The run had no bound on single requests; give --slo ttft=0.25,tpot=0.1 to see what makes requests miss it."
NO_MISS = (
    "No request missed the SLO, so there are no causes to tell apart; a higher --rate or a tighter --slo shows them."
)
NO_RUN = "No run has ended, so there is no time to tell apart."
_BEFORE_FIRST = (CAP_WAIT, LATENESS, FRONT, QUEUE, QUEUE_PREFILL, PREFILL)
_GROUPS = (("fastest half", 0.0, 0.5), ("next 40%", 0.5, 0.9), ("next 9%", 0.9, 0.99), ("slowest 1%", 0.99, 1.0))
_SIDE_BY_SIDE = 6
"""Rates whose labels stand side by side on a phone."""
_LEAST = 100
"""From this many requests on they are grouped, so that one stands for the slowest hundredth."""
Percents = dict[str, dict[str, float]]
"""Label of a group -> key of a phase or cause -> percent."""


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
    divided = of(run, _data.seen(run), queue_shares)
    seconds = divided.of_known()
    # stable, so that requests of equal TTFT fall into the same groups on every platform
    order = np.argsort(_data.metric(run, "ttft")[divided.known], kind="stable")
    groups = {"all requests": order}
    if len(order) >= _LEAST:
        groups = {name: order[round(a * len(order)) : round(b * len(order))] for name, a, b in _GROUPS}
    parts = [seconds[:, rows] for rows in groups.values()]
    mean_s = np.array([part.mean(axis=1) for part in parts]).T  # (stages, groups)
    percent = np.array([_percent(part) for part in parts]).T
    names = [f"{name}<br>n = {len(rows):,}" for name, rows in groups.items()]
    drawn = style.panels([0.5, 0.5], 600, spacing=0.08)
    for i, key in enumerate(divided.keys):
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
        note(divided.keys),
    ])  # fmt: skip


def _bars(drawn: Drawing, row: int, names: list[str], values: list[float], key: str, unit: str) -> None:
    phase = PHASES[key]
    drawn.trace(
        "bar", x=names, y=values, row=row, name=phase.name, legendgroup=key, showlegend=unit == "%",
        marker=phase.marker, hovertemplate=f"{phase.name}: %{{y:.3r}}{unit}",
    )  # fmt: skip


def _percent(seconds: np.ndarray) -> np.ndarray:
    """(stages,) the mean of the percentages of the single requests, of (stages, requests) seconds."""
    total = np.maximum(seconds.sum(axis=0), 1e-12)
    return np.array([(row / total).mean() for row in seconds]) * 100.0  # stage by stage: little memory at one time


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
    drawn.layout.update(showlegend=False, bargap=0.35)
    drawn.layout["margin"]["r"] = style.BESIDE
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


def stages_rate(study: Study) -> Drawing | str:
    """Percent of the time of the requests in each phase, by rate with a panel for each system, or by system."""
    groups = systems.groups(study)
    stacks = []
    for group in groups:
        by_rate = {name: phases(samples_of(study, point)) for name, point in group.points.items()}
        if shares := {name: percents for name, percents in by_rate.items() if percents}:  # whose runs can be read
            stacks.append((group, shares))
    if not stacks:
        return GONE if groups else NO_RUN
    drawn = _stacked(study, stacks, "time (%)", top=100.5)
    phase_notes = dict.fromkeys(note(tuple(shares)) for _, percents in stacks for shares in percents.values())
    notes = ["Time of all requests taken together.", *phase_notes]
    return style.done(drawn, _growth(*stacks[0]), [*notes, systems.no_panel(study, [g for g, _ in stacks])])


def _growth(group: Group, percents: Percents) -> str:
    """The share of the phase that grows most from the lowest rate to the highest; of single points the greatest."""
    labels = list(percents)
    first, last = percents[labels[0]], percents[labels[-1]]
    rising = bool(group.unit) and len(labels) > 1
    most = max(last, key=lambda key: last[key] - (first.get(key, 0.0) if len(labels) > 1 else 0.0))
    printed = [labels[0], labels[-1]] if rising else labels[:4]
    name = f"{PHASES[most].name} of all time of the requests"
    values = [f"{_format.share(percents[label].get(most, 0.0) / 100)} at {label} {group.unit}".strip()
              for label in printed]  # fmt: skip
    grows = "grows most" if rising else ""
    return style.finding({f"{group.name}, {name}" if group.name else name.capitalize(): [*values, grows]})


def misses_rate(study: Study) -> Drawing | str:
    """Percent of all requests that missed for each cause: by rate with a panel for each system, or by system."""
    groups = systems.groups(study)
    by_group = [(group, causes) for group in groups if (causes := _causes(study, group))]
    if not by_group:
        readable = any(samples_of(study, point) for group in groups for point in group.points.values())
        return UNBOUND if readable else GONE
    if not any(shares for _, causes in by_group for shares in causes.values()):
        return "No request missed the SLO; higher rates or a tighter --slo show what makes them miss."
    percents = [(group, _ordered(causes)) for group, causes in by_group]
    drawn = _stacked(study, percents, "requests that<br>missed (%)")
    notes = [RULE, systems.no_panel(study, [group for group, _ in by_group])]
    group, causes = by_group[0]
    label, shares = max(causes.items(), key=lambda item: sum(item[1].values()))
    total, most = sum(shares.values()), max(shares, key=lambda cause: shares[cause])
    heading = f"{group.name}, missed" if group.name else "Missed"
    return style.done(drawn, style.finding({f"{heading} at {label} {group.unit}".strip(): [
        _format.share(total / 100),
        f"first cause {cause_of(most).name} ({_format.share(shares[most] / total)} of them)",
    ]}), notes)  # fmt: skip


def _causes(study: Study, group: Group) -> Percents:
    """The percent of all requests at each label whose runs can be read and had an SLO of their own."""
    percents = {}
    for label, point in group.points.items():
        read = [(run.requests, run.stages.misses) for run in samples_of(study, point)]
        scored = [(requests, causes) for requests, causes in read if causes is not None]
        # of all requests, not of those that missed: bars of other rates then show how many more miss
        total, counted = sum(requests for requests, _ in scored), Counter[str]()
        for _, causes in scored:
            counted.update(causes)
        if scored:
            percents[label] = {cause: 100 * (count / max(1, total)) for cause, count in counted.items()}
    return percents


def _ordered(causes: Percents) -> Percents:
    """The same with every cause at every label, the greatest first."""
    summed = Counter[str]()
    for shares in causes.values():
        summed.update(shares)
    keys = [cause for cause, _ in summed.most_common()]
    return {label: {key: shares.get(key, 0.0) for key in keys} for label, shares in causes.items()}


def _stacked(
    study: Study, found: Sequence[tuple[Group, Percents]], title: str, top: float | None = None
) -> Drawing:  # fmt: skip
    """Stacked bars over the rate, a panel for each system, or over the systems; `top` is the end of the y axis."""
    drawn = style.panels([1 / len(found)] * len(found), 160 + 260 * len(found), spacing=0.2 / len(found))
    bars = [parts for _, percents in found for parts in percents.values()]
    keys = dict.fromkeys(key for parts in bars for key in parts)
    causes = {key: cause_of(key) for key in keys if any(parts.get(key, 0.0) > 0 for parts in bars)}
    rates = {rate for group, percents in found if group.unit for rate in percents}  # of one panel or of several
    order = {"categoryorder": "array", "categoryarray": sorted(rates, key=_number)} if rates else {}
    for row, (group, percents) in enumerate(found, 1):
        _stack(drawn, row, group, percents, causes, alone=len(found) == 1)
        span = {"range": [0, top]} if top is not None else {"rangemode": "tozero"}
        y = style.axis(f"{group.name}<br>{title}" if group.name else title, **span)
        last = systems.rate_title(study) if row == len(found) and group.unit else ""
        turned = {"tickangle": -90} if max(len(g.points) for g, _ in found) > _SIDE_BY_SIDE and group.unit else {}
        style.axes(drawn, style.axis(last, type="category", **order, **turned), y, row)
    drawn.layout.update(barmode="stack", bargap=0.3)
    return drawn


def _number(label: str) -> float:
    """The rate that a label prints, such as 2,000."""
    return float(label.replace(",", ""))


def _stack(
    drawn: Drawing, row: int, group: Group, percents: Percents, shown: Mapping[str, Phase], *, alone: bool
) -> None:
    """Bars of one system; of several the legend has entries of its own, so that the bars can be named after both."""
    for key, phase in shown.items():
        if not alone and row == 1:
            drawn.trace(
                "bar", x=[next(iter(percents))], y=[None], row=1, name=phase.name, legendgroup=key,
                marker=phase.marker, meta=style.MARKS,
            )  # fmt: skip
        drawn.trace(
            "bar", x=list(percents), y=[parts.get(key, 0.0) for parts in percents.values()], row=row, legendgroup=key,
            name=phase.name if alone else f"{group.name}: {phase.name}", showlegend=alone, marker=phase.marker,
            hovertemplate="%{x}: %{y:.2f}%",
        )  # fmt: skip

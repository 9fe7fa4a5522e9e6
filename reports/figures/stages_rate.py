"""Where the time of requests went and which phase made them miss the SLO, of systems over the rate."""

from collections import Counter
from collections.abc import Mapping, Sequence

from reports import _format
from reports._data import RULE, note
from reports.figures import style, systems
from reports.figures.drawing import Drawing
from reports.figures.stages import PHASES, UNBOUND, Phase, cause_of
from reports.figures.systems import Group
from reports.study import GONE, Study, phases, runs_of

NO_RUN = "No run has ended, so there is no time to tell apart."
_SIDE_BY_SIDE = 6
"""Rates whose labels stand side by side on a phone."""
Percents = dict[str, dict[str, float]]
"""Label of a group -> key of a phase or cause -> percent."""


def stages_rate(study: Study) -> Drawing | str:
    """Percent of the time of the requests in each phase, by rate with a panel for each system, or by system."""
    groups = systems.groups(study)
    stacks = []
    for group in groups:
        by_rate = {name: phases(runs_of(study, point)) for name, point in group.points.items()}
        if shares := {name: percents for name, percents in by_rate.items() if percents}:  # whose runs can be read
            stacks.append((group, shares))
    if not stacks:
        return GONE if groups else NO_RUN
    drawn = _stacked(study, stacks, "time (%)", top=100.5)
    phase_notes = dict.fromkeys(note(tuple(shares)) for _, percents in stacks for shares in percents.values())
    notes = ["Time of all requests taken together.", *phase_notes]
    return style.done(
        drawn, _growth(*stacks[0]), [*notes, systems.left_out(study, sum(group.systems for group, _ in stacks))]
    )


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
        readable = any(runs_of(study, point) for group in groups for point in group.points.values())
        return UNBOUND if readable else GONE
    if not any(shares for _, causes in by_group for shares in causes.values()):
        return "No request missed the SLO; higher rates or a tighter --slo show what makes them miss."
    percents = [(group, _ordered(causes)) for group, causes in by_group]
    drawn = _stacked(study, percents, "requests that<br>missed (%)")
    notes = [RULE, systems.left_out(study, sum(group.systems for group, _ in by_group))]
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
        read = [(run.summary.requests or 0, run.stages.misses) for run in runs_of(study, point)]
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

"""Why requests missed the SLO as the rate grows: one cause for each miss, from the stored requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import plotly.graph_objects as go

from reports import _format, _tables
from reports._format import in_figure
from reports.figures import _phases, _stacked, _systems, misses
from reports.figures import _style as style
from reports.figures._systems import Group
from reports.study import runs as study_runs

if TYPE_CHECKING:
    from reports.study import Study

ORDER = 13
OF = "study"
SECTION = "time"
TITLE = "What made requests miss the SLO, by rate"
_AXIS = "requests that<br>missed (%)"

Causes = dict[str, dict[str, float]]
"""Rate -> cause -> share of all requests."""


def figure(study: Study) -> go.Figure | str:
    """Percent of all requests that missed for each cause: by rate with a panel for each system, or by system."""
    groups = _systems.groups(study)
    found = [(group, causes) for group in groups if (causes := _causes(study, group))]
    if not found:
        readable = any(study_runs.of(study, point) for group in groups for point in group.points.values())
        return misses.UNBOUND if readable else study_runs.GONE
    if not any(shares for _, causes in found for shares in causes.values()):
        return "No request missed the SLO; higher rates or a tighter --slo show what makes them miss."
    drawn = _stacked.figure(study, [(group, _percents(causes)) for group, causes in found], _AXIS, _look)
    seeds = study_runs.seeds_note(study, [point for group in groups for point in group.points.values()])
    left = _systems.no_panel(study, [group for group, _ in found])
    rescored = any(axis.get("rescored") for source in study.sources for axis in source.get("axes") or [])
    under = "Misses are those of the SLO under which the runs were made." if rescored else ""
    return style.done(drawn, _finding(*found[0]), [under, _tables.RULE, seeds, left])


def _causes(study: Study, group: Group) -> Causes:
    """The shares at each label whose runs can be read and had an SLO of their own."""
    told = {label: study_runs.of(study, point) for label, point in group.points.items()}
    return {
        label: _shares([(one.requests, one.causes) for one in runs if one.causes is not None])
        for label, runs in told.items()
        if any(one.causes is not None for one in runs)
    }


def _shares(runs: Sequence[tuple[int, Mapping[str, int]]]) -> dict[str, float]:
    total, counted = sum(requests for requests, _ in runs), Counter[str]()
    for _, causes in runs:
        counted.update(causes)
    return {cause: count / max(1, total) for cause, count in counted.items()}


def _percents(causes: Causes) -> Causes:
    """In percent, the greatest causes first."""
    summed = Counter[str]()
    for shares in causes.values():
        summed.update(shares)
    return {label: {cause: 100 * shares.get(cause, 0.0) for cause, _ in summed.most_common()}
            for label, shares in causes.items()}  # fmt: skip


def _look(cause: str) -> _phases.Look:
    """The look of a phase; of other causes one of their own."""
    if cause in _phases.LOOKS:
        return _phases.LOOKS[cause]
    color, hatch = (style.GREEN, "+") if cause == _tables.PREEMPTED else (style.GREY, "-")
    return _phases.Look(in_figure(misses.name(cause)), color, hatch)


def _finding(group: Group, causes: Causes) -> str:
    label, shares = max(causes.items(), key=lambda item: sum(item[1].values()))
    total = sum(shares.values())
    most = max(shares, key=lambda cause: shares[cause])
    at = f"{f'{group.name}: at' if group.name else 'At'} {label} {group.unit}".strip()
    first = f"the first cause is {in_figure(misses.name(most))} ({_format.share(shares[most] / total)} of them)"
    return f"{at} {_format.share(total)} of the requests missed; {first}."
